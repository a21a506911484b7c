"""The POP state of all groups, and its changes in the change log (`state.saved.change_records`).

A change is recorded before it is made: what was answered survives the death of the process, in SYNC_FLUSH a power loss, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from ariane.broker.state.pop_queue import PopQueue, TakenMessage
from ariane.broker.state.saved.change_records import (
    MessageHidden,
    MessagesAcknowledged,
    MessagesReturned,
    MessagesTaken,
    PopRestarted,
)

__all__ = ["PopChange", "PopDocument", "PopTable", "QueueKey"]

PopChange = MessagesTaken | MessagesAcknowledged | MessageHidden | MessagesReturned | PopRestarted


class QueueKey(NamedTuple):
    """A queue, as one group consumes it."""

    group: str
    topic: str
    queue_id: int


class PopQueueEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A queue in popState.json."""

    next: int
    taken: tuple[tuple[int, int, int, int], ...]  # offset, and the numbers of its TakenMessage
    attempt: str | None = None  # of the last ordered request


class PopDocument(msgspec.Struct, frozen=True, rename="camel"):
    """popState.json: group → topic → queue id → state."""

    groups: dict[str, dict[str, dict[int, PopQueueEntry]]] = {}


class PopTable:
    """The queues from which groups have taken messages."""

    def __init__(self, document: PopDocument | None = None) -> None:
        self._queues: dict[tuple[str, str], dict[int, PopQueue]] = {}  # by group and topic, and by queue id
        # The same in the last document, of groups without unacknowledged messages, until they change: thousands of groups
        # that take nothing must not delay others at each save.
        self._entries: dict[tuple[str, str], dict[int, PopQueueEntry]] = {}
        self.replace(document or PopDocument())

    def replace(self, document: PopDocument) -> None:
        """Replace everything by a document."""
        self._queues.clear()
        self._entries.clear()
        for group, topics in document.groups.items():
            for topic, queues in topics.items():
                for queue_id, entry in queues.items():
                    queue = self.open(QueueKey(group, topic, queue_id), entry.next)
                    queue.attempt_id = entry.attempt
                    for offset, *message in entry.taken:
                        queue.restore(offset, TakenMessage(*message))

    def get(self, key: QueueKey) -> PopQueue | None:
        return self._queues.get(key[:2], {}).get(key.queue_id)

    def queues_of(self, group: str, topic: str) -> Iterable[PopQueue]:
        return self._queues.get((group, topic), {}).values()

    def keys_of(self, group: str, topic: str | None) -> list[QueueKey]:
        """Return the queues of a group, of one topic or of all."""
        return [
            QueueKey(*pair, queue_id)
            for pair, queues in self._queues.items()
            if pair[0] == group and topic in (None, pair[1])
            for queue_id in queues
        ]

    def open(self, key: QueueKey, first: int) -> PopQueue:
        """Return a new state of a queue that begins at an offset, in place of the former one."""
        self._entries.pop(key[:2], None)
        queue = self._queues.setdefault(key[:2], {})[key.queue_id] = PopQueue(first)
        return queue

    def apply(self, change: PopChange) -> None:
        """Make a change that is recorded."""
        key = QueueKey(change.group, change.topic, change.queue_id)
        if isinstance(change, PopRestarted):
            self.open(key, change.next)
            return
        queue = self.get(key) or self.open(key, 0)
        self._entries.pop(key[:2], None)
        match change:
            case MessagesTaken():
                queue.take(change.offsets, change.at_ms, change.visible_ms)
                queue.skip_to(change.next)
                queue.attempt_id = change.attempt_id
            case MessagesAcknowledged():
                queue.drop(change.offsets)
            case MessagesReturned():
                queue.give_back(change.offsets, change.at_ms)
            case MessageHidden() if (message := queue.taken.get(change.offset)) is not None:
                queue.hide(change.offset, message.taken_ms, change.at_ms, change.visible_ms)

    def skip_to(self, key: QueueKey, offset: int) -> None:
        """Continue at an offset, without a record: a group that skips unwanted messages skips them again after a crash."""
        if (queue := self.get(key)) is not None and offset > queue.next:
            self._entries.pop(key[:2], None)
            queue.skip_to(offset)

    def remove_topic(self, name: str) -> None:
        self._remove(key for key in self._queues if key[1] == name)

    def remove_group(self, name: str) -> None:
        self._remove(key for key in self._queues if key[0] == name)

    def _remove(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in list(keys):
            del self._queues[key]
            self._entries.pop(key, None)

    def limit(self, end_of: Callable[[str, int], int]) -> int:
        """Forget what is beyond the end of its queue, after a start that lost the end of the log; return how many queues."""
        beyond = [
            (QueueKey(group, topic, queue_id), queue, end)
            for (group, topic), queues in self._queues.items()
            for queue_id, queue in queues.items()
            if queue.next > (end := end_of(topic, queue_id))
        ]
        for key, former, end in beyond:
            queue = self.open(key, end)
            queue.attempt_id = former.attempt_id
            for offset, message in former.taken.items():
                if offset < end:
                    queue.restore(offset, message)
        return len(beyond)

    def document(self) -> PopDocument:
        """Return the state as popState.json stores it."""
        groups: dict[str, dict[str, dict[int, PopQueueEntry]]] = {}
        for key, queues in self._queues.items():
            group, topic = key
            groups.setdefault(group, {})[topic] = self._entries.get(key) or self._entries_of(key, queues)
        return PopDocument(groups)

    def _entries_of(self, key: tuple[str, str], queues: Mapping[int, PopQueue]) -> dict[int, PopQueueEntry]:
        entries = {
            queue_id: PopQueueEntry(
                queue.next, tuple((offset, *message) for offset, message in queue.taken.items()), queue.attempt_id
            )
            for queue_id, queue in queues.items()
        }
        if not any(queue.taken for queue in queues.values()):
            self._entries[key] = entries
        return entries
