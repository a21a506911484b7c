"""Consumer offsets: how far each group has come in each queue. [ConsumerOffsetManager]"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ariane.broker.state.change_records import OffsetsPut
from ariane.errors import ReplyError
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.admin import ConsumerOffsetTable

PAIRS_MAX = 500_000  # of a topic and a group; one takes up to 700 bytes
QUEUES_MAX = 2_000_000  # of all pairs together; one takes about 100 bytes


class ConsumerOffsets:
    """`topic@group` → queue id → offset of the next message to consume; `changed` since it was last saved."""

    def __init__(
        self,
        table: ConsumerOffsetTable | None = None,
        record: Callable[[OffsetsPut], object] = lambda change: None,
    ) -> None:
        """`record` stores what a tool sets (`clone`), which is not made if it raises."""
        self._record = record
        self._table: dict[str, dict[int, int]] = dict(table.offset_table) if table else {}
        self._queues = sum(map(len, self._table.values()))
        self.is_changed = False

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Takes any offset, backwards too, as 4.9.4 does: tools reset with the same request."""
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            if len(self._table) >= PAIRS_MAX:
                remark = f"offsets of {PAIRS_MAX} topics and groups are kept already; delete groups first"
                raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
            queues = {}
        if queue_id not in queues:
            if self._queues >= QUEUES_MAX:
                remark = f"offsets of {QUEUES_MAX} queues are kept already; delete groups first"
                raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
            self._queues += 1
            self._table[key] = queues
        queues[queue_id] = offset
        self.is_changed = True

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._table.get(f"{topic}@{group}")
        return queues.get(queue_id) if queues else None

    def queue_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Offsets of a group in all queues of a topic: a copy."""
        return dict(self._table.get(f"{topic}@{group}", {}))

    def groups_of(self, topic: str) -> set[str]:
        """Groups that have committed offsets of a topic."""
        prefix = f"{topic}@"
        return {key[len(prefix) :] for key in self._table if key.startswith(prefix)}

    def topics_of(self, group: str) -> set[str]:
        """Topics of which a group has committed offsets."""
        suffix = f"@{group}"
        return {key[: -len(suffix)] for key in self._table if key.endswith(suffix)}

    def clone(self, source: str, target: str, topic: str) -> bool:
        """Let `target` stand where `source` does; False when that has no offsets of the topic."""
        offsets = self.queue_offsets(source, topic)
        if offsets:
            self._record(OffsetsPut(target, topic, offsets))
            self.put(target, topic, offsets)
        return bool(offsets)

    def put(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Replace all offsets of a group in a topic."""
        if f"{topic}@{group}" in self._table:
            self._remove([f"{topic}@{group}"])
        for queue_id, offset in offsets.items():
            self.commit(group, topic, queue_id, offset)

    def topics_by_group(self) -> dict[str, list[str]]:
        """Topics of which each group has committed offsets, in one pass."""
        found: dict[str, list[str]] = {}
        for key in self._table:
            topic, _, group = key.partition("@")
            found.setdefault(group, []).append(topic)
        return found

    def remove_group(self, group: str) -> None:
        suffix = f"@{group}"
        self._remove([key for key in self._table if key.endswith(suffix)])

    def remove_topic(self, topic: str) -> None:
        prefix = f"{topic}@"
        self._remove([key for key in self._table if key.startswith(prefix)])

    def merge(self, table: ConsumerOffsetTable) -> None:
        """Take over a master's offsets; what only this broker knows stays (a slave)."""
        for key, queues in table.offset_table.items():
            known = self._table.get(key)
            if known is None:
                if len(self._table) >= PAIRS_MAX:
                    raise ReplyError(
                        ResponseCode.SYSTEM_ERROR, f"the master has offsets of more than {PAIRS_MAX} pairs"
                    )
                known = self._table[key] = {}
            if any(known.get(queue_id) != offset for queue_id, offset in queues.items()):
                self._queues += len(queues.keys() - known.keys())
                known.update(queues)
                self.is_changed = True

    def view(self) -> ConsumerOffsetTable:
        """Return the table for consumerOffset.json: a copy of the pairs, whose offsets go on changing."""
        return ConsumerOffsetTable(dict(self._table))

    def table(self) -> ConsumerOffsetTable:
        """What consumerOffset.json and code 43 hold: a copy."""
        return ConsumerOffsetTable({key: dict(queues) for key, queues in self._table.items()})

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            self._queues -= len(self._table.pop(key))
        self.is_changed = self.is_changed or bool(keys)
