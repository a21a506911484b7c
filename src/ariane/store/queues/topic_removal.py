"""Removes the queues of deleted topics. Their records stay in the log, and every rebuild skips them (`deletions`).

[DefaultMessageStore.cleanUnusedTopic, cleanExpiredConsumerQueue]
"""

from __future__ import annotations

from typing import Protocol

from ariane.errors import StoreError
from ariane.model.topic import TopicDeletion
from ariane.store.disk.files import write_error
from ariane.store.log.deletions import Deletions
from ariane.store.queues.consume_queue import ConsumeQueue
from ariane.store.queues.consume_queues import ConsumeQueues


class DispatchingStore(Protocol):
    """The part of a store that a removal uses."""

    deletions: Deletions

    @property
    def failure(self) -> StoreError | None: ...
    @property
    def commit_log_min(self) -> int: ...
    @property
    def commit_log_max(self) -> int: ...
    @property
    def last_ms(self) -> int: ...
    def flush(self) -> None: ...
    def dispatch_and_defer_arrivals(self) -> None: ...
    def write_checkpoint(self) -> None: ...


class TopicRemoval:
    """Topic removal of one store."""

    def __init__(self, store: DispatchingStore, queues: ConsumeQueues) -> None:
        self._store = store
        self._queues = queues

    def deletion_of(self, topic: str) -> TopicDeletion | None:
        """Return the deletion to record before `delete`; None if the topic has no queue, and so no message to delete."""
        if not self._queues.of_topic(topic):
            return None
        self._store.flush()  # else a power loss could end the log before the end that the deletion names
        return TopicDeletion(below=self._store.commit_log_max, store_ms=self._store.last_ms)

    def delete(self, topic: str, *, expired_only: bool = False) -> list[int]:
        """Remove the queues of a topic, or those without a record in the log; return their ids."""
        queues = self._queues.of_topic(topic)
        if expired_only:
            queues = self._queues.find_expired(queues, self._store.commit_log_min)
        if not queues:
            return []
        if self._store.failure is not None:
            raise self._store.failure.with_traceback(None)
        self._store.flush()
        self._store.dispatch_and_defer_arrivals()
        self._remove(topic, queues)
        return sorted(queue.queue_id for queue in queues)

    def apply(self, topic: str, deletion: TopicDeletion) -> None:
        """Record a deletion that another broker (the master) made, and remove the queues that contain only deleted records."""
        self._store.deletions.add(topic, deletion)
        if not self._queues.of_topic(topic):
            return
        self._store.flush()
        self._store.dispatch_and_defer_arrivals()
        # Queues with later records belong to the topic that was created again.
        queues = [
            queue for queue in self._queues.of_topic(topic) if _is_deleted(queue, self._queues, self._store.deletions)
        ]
        if queues:
            self._remove(topic, queues)

    def _remove(self, topic: str, queues: list[ConsumeQueue]) -> None:
        try:
            self._queues.remove(queues)
        except OSError as error:
            raise write_error(error, f"the consume queues of {topic}") from error
        self._store.write_checkpoint()


def remove_deleted_queues(queues: ConsumeQueues, deletions: Deletions) -> None:
    """Remove, at a start, the queues whose deletion the last process recorded but did not finish."""
    deleted = [queue for queue in queues.all() if _is_deleted(queue, queues, deletions)]
    if deleted:
        queues.remove(deleted)


def _is_deleted(queue: ConsumeQueue, queues: ConsumeQueues, deletions: Deletions) -> bool:
    """Return whether a queue holds only records of a deleted topic."""
    deletion = deletions.get(queue.topic)
    if deletion is None:
        return False
    opened = queues.get_opened(queue.topic, queue.queue_id) or queue
    if opened.last_end > deletion.below:
        return False
    # A record that is newer than the deletion shows that the deletion was made for another log.
    last_ms = queues.last_store_ms(opened)
    return opened.last_end == 0 or (last_ms is not None and last_ms <= deletion.store_ms)
