"""From records to queue entries. A put leaves a note of what it appended; `step` turns the notes into entries, queue by queue.

Records that were appended before this process began are read from the log instead (`derive`). Half and rolled-back records get
no entry. In synchronous mode nothing above the flushed position is derived, so that no consumer ever reads what a loss of power
could take back. [DefaultMessageStore.ReputMessageService]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ariane.model.message import TRANSACTION_COMMIT, TRANSACTION_MASK
from ariane.store.consume_queue import ENTRY, ConsumeQueue
from ariane.store.files import write_error
from ariane.store.queues import ConsumeQueues
from ariane.store.scan import Found, tags_code

DERIVE_AT_ONCE = 20_000  # records whose entries are gathered before they are written, when the log is read again


class Arrival(NamedTuple):
    """A consumer can read up to `max_offset` now; the newest message has these tags and this store time."""

    topic: str
    queue_id: int
    max_offset: int
    tags_code: int
    store_ms: int


class Note(NamedTuple):
    """What a put leaves behind: `entry` for `queue` (None: no entry), of a record that ends at `end`."""

    queue: ConsumeQueue | None
    entry: bytes
    queue_offset: int
    tags_code: int
    store_ms: int
    end: int


def has_entry(sys_flag: int) -> bool:
    """Whether a record with these flags appears in its queue."""
    return sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)


def step(notes: deque[Note], up_to: int, queues: ConsumeQueues) -> tuple[list[Arrival], Note | None]:
    """Derive the noted records that end at or below `up_to`; what arrived, and the last note taken.

    All entries are written before any counts: when a write fails the notes stay, and the next call writes the same again.
    """
    groups: dict[ConsumeQueue, list[bytes]] = {}
    ends: dict[ConsumeQueue, int] = {}
    arrivals: list[Arrival] = []
    taken = 0
    last: Note | None = None
    for note in notes:
        queue, entry, queue_offset, tags, store_ms, end = note
        if end > up_to:
            break
        taken += 1
        last = note
        if queue is not None:
            group = groups.get(queue)
            if group is None:
                groups[queue] = [entry]
            else:
                group.append(entry)
            ends[queue] = end
            arrivals.append(Arrival(queue.topic, queue.queue_id, queue_offset + 1, tags, store_ms))
    joined = [(queue, b"".join(group)) for queue, group in groups.items()]
    for queue, data in joined:
        _write(queue, data)
    for queue, data in joined:
        queue.advance(data, ends[queue])
        queues.remember_tail(queue)
    if taken == len(notes):
        notes.clear()
    else:
        for _ in range(taken):
            notes.popleft()
    return arrivals, last


def _write(queue: ConsumeQueue, data: bytes) -> None:
    try:
        queue.write(data)
    except OSError as error:
        raise write_error(error, queue.segments.directory) from error


def derive(records: Iterable[Found], queues: ConsumeQueues, delays_ms: Sequence[int]) -> list[str]:
    """Make the entries of `records` that their queues lack; what could not be made, in words."""
    refused: list[str] = []
    gathered: dict[ConsumeQueue, list[bytes]] = {}
    count = 0
    for found in records:
        if not has_entry(found.sys_flag):
            continue
        fault, queue = queues.of_record(found)
        if queue is None:
            refused.append(f"record at {found.offset}: {fault}")
            continue
        if found.offset < queue.last_end:
            continue
        if found.queue_offset != queue.next_offset:
            _write_gathered(gathered, queue)
            fault = make_room(queue, found.queue_offset)
            if fault:
                refused.append(f"record at {found.offset}: {fault}")
                continue
        gathered.setdefault(queue, []).append(ENTRY.pack(found.offset, found.size, tags_code(found, delays_ms)))
        queue.next_offset += 1
        queue.last_end = found.end
        count += 1
        if count % DERIVE_AT_ONCE == 0:
            for one in list(gathered):
                _write_gathered(gathered, one)
    for one in list(gathered):
        _write_gathered(gathered, one)
    return refused


def _write_gathered(gathered: dict[ConsumeQueue, list[bytes]], queue: ConsumeQueue) -> None:
    data = b"".join(gathered.pop(queue, ()))
    if data:
        _write(queue, data)
        queue.advance(data, queue.last_end)
        queue.forget_tail()


def make_room(queue: ConsumeQueue, number: int) -> str:
    """Let `number` be the next entry of a queue that ends elsewhere; why it cannot be, or ""."""
    if not queue.segments.bases:
        queue.restart(number)
    elif number < queue.max:
        # Offsets only begin again when the topic was deleted and made anew: what came before was deleted with it.
        queue.restart(number)
    elif (number - queue.max) * len(ENTRY.pack(0, 0, 0)) > queue.segments.size:
        return (
            f"queue offset {number} of {queue.topic}-{queue.queue_id}, which ends at {queue.max}, is out of all order"
        )
    else:
        queue.fill(number)
    return ""
