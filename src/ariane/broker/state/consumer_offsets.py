"""Consumer offsets: the committed offset of each group in each queue. [ConsumerOffsetManager]"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from ariane.broker.state.saved.change_records import OffsetsPut
from ariane.errors import ReplyError
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.admin import ConsumerOffsetTable
from ariane.store.message_store import GetStatus, MessageStore

PAIRS_MAX = 500_000  # pairs of topic and group; one takes up to 700 bytes
QUEUES_MAX = 2_000_000  # queues of all pairs; one takes about 100 bytes


class ConsumerOffsets:
    """The table `topic@group` → queue id → offset of the next message to consume.

    `is_changed` says whether it changed since the last save.
    """

    def __init__(
        self,
        table: ConsumerOffsetTable | None = None,
        record: Callable[[OffsetsPut], object] = lambda change: None,
    ) -> None:
        """Load a table.

        Args:
            table: The stored offsets.
            record: Stores offsets that a tool sets (`clone`). If it raises, they do not change.
        """
        self._record = record
        self._table: dict[str, dict[int, int]] = dict(table.offset_table) if table else {}
        self._queues = sum(map(len, self._table.values()))  # of all pairs, compared with QUEUES_MAX
        self.is_changed = False
        # End of a queue, with failover: commits beyond it are refused, and backward ones counted.
        self.end_of: Callable[[str, int], int] | None = None
        self.refused = 0
        self.backward = 0
        self.on_commit: Callable[[str, str, int, int], None] | None = None  # called with each offset that changes
        # Offsets that changed since `take_changed`, for members that follow this broker; None: there are none.
        self._changed: dict[str, dict[int, int]] | None = None

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of a group in a queue. It may go backwards, as in 4.9.4: tools reset offsets with the same request."""
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            if len(self._table) >= PAIRS_MAX:
                remark = (
                    f"this broker has offsets of {PAIRS_MAX} topics and groups, the maximum; delete unused groups first"
                )
                raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
            queues = {}  # added below, once the other bound is checked
        if queue_id not in queues:
            if self._queues >= QUEUES_MAX:
                remark = f"this broker has offsets of {QUEUES_MAX} queues, the maximum; delete unused groups first"
                raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
            self._queues += 1
            self._table[key] = queues
        elif queues[queue_id] == offset:
            return  # consumers commit each queue every few seconds
        queues[queue_id] = offset
        self.is_changed = True
        if self._changed is not None:
            self._changed.setdefault(key, {})[queue_id] = offset
        if self.on_commit is not None:
            self.on_commit(group, topic, queue_id, offset)

    def commit_consumed(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Commit the offset of a consumer, or one that a tool sets. Return whether it was committed.

        With failover it is not if it is beyond the end of the queue that all in-sync members have: it would skip messages to
        which the next master gives those numbers.
        """
        if self.end_of is not None:
            former = self.get(group, topic, queue_id)
            if offset > (former or 0) and offset > self.end_of(topic, queue_id):
                self.refused += 1
                return False
            self.backward += former is not None and offset < former
        self.commit(group, topic, queue_id, offset)
        return True

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._table.get(f"{topic}@{group}")
        return queues.get(queue_id) if queues else None

    def queue_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Return a copy of the offsets of a group in all queues of a topic."""
        return dict(self._table.get(f"{topic}@{group}", {}))

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups with committed offsets in a topic."""
        prefix = f"{topic}@"
        return {key[len(prefix) :] for key in self._table if key.startswith(prefix)}

    def topics_of(self, group: str) -> set[str]:
        """Return the topics in which a group has committed offsets."""
        suffix = f"@{group}"
        return {key[: -len(suffix)] for key in self._table if key.endswith(suffix)}

    def clone(self, source: str, target: str, topic: str) -> bool:
        """Set the offsets of `target` in a topic to those of `source`. Return False if `source` has none."""
        offsets = self.queue_offsets(source, topic)
        if offsets:
            self._record(OffsetsPut(target, topic, offsets))
            self.put(target, topic, offsets)
        return bool(offsets)

    def put(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Replace all offsets of a group in a topic."""
        # Queues that the new offsets do not name must not keep their old ones.
        if f"{topic}@{group}" in self._table:
            self._remove([f"{topic}@{group}"])
        for queue_id, offset in offsets.items():
            self.commit(group, topic, queue_id, offset)

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return the topics with committed offsets of every group, in one pass."""
        topics: dict[str, list[str]] = {}
        for key in self._table:
            topic, _, group = key.partition("@")
            topics.setdefault(group, []).append(topic)
        return topics

    def remove_group(self, group: str) -> None:
        suffix = f"@{group}"
        self._remove([key for key in self._table if key.endswith(suffix)])

    def remove_topic(self, topic: str) -> None:
        prefix = f"{topic}@"
        self._remove([key for key in self._table if key.startswith(prefix)])

    def merge(self, table: ConsumerOffsetTable) -> None:
        """Apply the offsets of the master (on a slave). Offsets that only this broker has are retained."""
        for key, queues in table.offset_table.items():
            offsets = self._table.get(key)
            if offsets is None:
                if len(self._table) >= PAIRS_MAX:
                    raise ReplyError(
                        ResponseCode.SYSTEM_ERROR,
                        f"cannot copy consumer offsets: the master has more than {PAIRS_MAX} pairs of topic and group",
                    )
                offsets = self._table[key] = {}
            if any(offsets.get(queue_id) != offset for queue_id, offset in queues.items()):
                self._queues += len(queues.keys() - offsets.keys())
                offsets.update(queues)
                self.is_changed = True

    def track_changes(self) -> None:
        """Note from now on which offsets change."""
        if self._changed is None:
            self._changed = {}

    def take_changed(self, pairs_max: int, queues_max: int) -> dict[str, dict[int, int]]:
        """Return newest offsets of those that changed since the last call: of some pairs if there are many, oldest first."""
        changed, count = self._changed or {}, 0
        taken: dict[str, dict[int, int]] = {}
        for key in list(itertools.islice(changed, pairs_max)):
            taken[key] = changed.pop(key)
            count += len(taken[key])
            if count >= queues_max:
                break
        return taken

    def apply(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Set offsets that the master sent (on a slave). Those of other groups and queues stay."""
        for key, queues in offsets.items():
            topic, _, group = key.partition("@")
            for queue_id, offset in queues.items():
                self.commit(group, topic, queue_id, offset)

    def replace(self, table: ConsumerOffsetTable) -> None:
        """Replace all offsets by the master's (on a slave)."""
        self._table = {key: dict(queues) for key, queues in table.offset_table.items()}
        self._queues = sum(map(len, self._table.values()))
        self.is_changed = True

    def limit(self, end_of: Callable[[str, int], int]) -> int:
        """Set offsets beyond the end of their queue to it, after a start that lost the end of the log; return how many.

        The numbers from there on are given to new messages, which a group must not skip.
        """
        count = 0
        for key, queues in self._table.items():
            topic = key.partition("@")[0]
            for queue_id, offset in queues.items():
                if offset > (end := end_of(topic, queue_id)):
                    queues[queue_id] = end
                    count += 1
        self.is_changed = self.is_changed or bool(count)
        return count

    def view(self) -> ConsumerOffsetTable:
        """Return the table for consumerOffset.json: the pairs are copied, their offsets keep changing."""
        return ConsumerOffsetTable(dict(self._table))

    def table(self) -> ConsumerOffsetTable:
        """Return a copy of the table, for consumerOffset.json and code 43."""
        return ConsumerOffsetTable({key: dict(queues) for key, queues in self._table.items()})

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            self._queues -= len(self._table.pop(key))
            if self._changed is not None:
                self._changed.pop(key, None)  # a later commit must not be mistaken for one before the removal
        self.is_changed = self.is_changed or bool(keys)


def starts_first(store: MessageStore, topic: str, queue_id: int) -> bool:
    """Return whether a group without a committed offset starts at 0: the queue still has its first message, in memory."""
    if store.min_offset(topic, queue_id) > 0:
        return False
    first = store.get(topic, queue_id, 0, 1)
    return first.status != GetStatus.FOUND or not first.suggest_slave
