"""Deletion of topics: their settings, offsets and messages, durably before the response (215, 316)."""

from __future__ import annotations

from collections.abc import Mapping

from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.model.topic import TopicDeletion
from ariane.store.message_store import MessageStore


class TopicRemover:
    """Deletes topics of one broker."""

    def __init__(self, *, tables: PersistentState, store: MessageStore, stats: BrokerStats) -> None:
        self._tables = tables
        self._store = store
        self._stats = stats

    def remove(self, topic: str) -> None:
        """Delete a topic with all its messages and offsets. Return when that is on the disk, in either flush mode.

        The deletion is on the disk before the first file of a queue is removed: a crash in between leaves queues that the next
        start removes, never a topic without its messages. Deleting a topic that does not exist succeeds.
        """
        tables = self._tables
        deletion = self._store.deletion_of(topic)
        if deletion is None and tables.topics.get(topic) is None and not tables.offsets.groups_of(topic):
            return
        tables.delete_topic(topic, deletion)
        self._stats.drop_topic(topic)
        self._store.delete_topic(topic)

    def apply_master_deletions(self, deletions: Mapping[str, TopicDeletion]) -> None:
        """Delete what the master deleted (on a slave). Deletions of messages that this log no longer holds are ignored."""
        store = self._store
        new = {
            topic: deletion
            for topic, deletion in deletions.items()
            if deletion.below > store.commit_log_min and store.deletions.is_later(topic, deletion)
        }
        if not new:
            return
        self._tables.apply_master_deletions(new)
        for topic, deletion in new.items():
            store.apply_deletion(topic, deletion)
