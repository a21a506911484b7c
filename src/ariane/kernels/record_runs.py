"""Scans the adjacent records at a position of the commit log, and returns what everything derived from them needs.

    | record | record | record | corrupt, blank, filler or the end of the bytes
    └───────── one run ────────┘                                  ┌→ entries of consume queues, by queue
    bytes ── each record is checked as `parse_record` does ───────┼→ hashed keys, with the store times of their records
                                                                  └→ store times, deliveries, decided transactions

A run ends before the first bytes that are not a valid record of their offset. What they are is decided by the caller, who parses
them with `parse_record`: so this function has no errors, and another implementation can replace it with the same results.
"""

from __future__ import annotations

from typing import NamedTuple

from ariane.kernels.key_hashes import KeyedRecord, KeyHashes
from ariane.kernels.scanned_record import NotARecord, ScannedRecord, hash_tags, parse_record
from ariane.model.message import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from ariane.protocol.records.queue_entry import ENTRY, ENTRY_SIZE, INDEX_KEY

LOWEST_MS = -(1 << 63)


class LogPlace(NamedTuple):
    """Where the scanned bytes are stored."""

    offset: int  # in the commit log
    room: int  # bytes left in the log file from `offset` on
    until: int  # a record must begin less than so many bytes after `offset`


class QueueRecords(NamedTuple):
    """The records of one queue in a run that get an entry."""

    topic: bytes  # undecoded
    queue_id: int
    queue_offset: int  # of the first record
    is_consecutive: bool  # each has the queue offset after that of the record before it
    entries: bytes  # `ENTRY` each. In a delay topic their tags codes are not final: they depend on the settings.

    @property
    def size(self) -> int:
        """Number of the records."""
        return len(self.entries) // ENTRY_SIZE


class RunTimes(NamedTuple):
    """Store times of the records of a run, in ms."""

    first_ms: int
    last_ms: int
    floor_ms: int  # highest time that two neighbours have both reached; LOWEST_MS if there is one record
    decreases: int  # records that are older than the one before them


class ScannedRecords(NamedTuple):
    """Adjacent records of the log."""

    size: int  # bytes of the records
    records: int  # number of the records
    times: RunTimes  # of all records
    queues: list[QueueRecords]  # in the order of their first records
    keys: bytes  # `INDEX_KEY` each, in log order; empty if they were not requested
    key_times: list[tuple[int, int]]  # of their records, as runs `(keys, store time)`
    deliveries: list[tuple[int, int]]  # offset and prepared offset of records whose prepared offset is negative
    commits: list[int]  # offsets of records of committed transactions
    rollbacks: list[int]  # offsets of records of rolled-back transactions


def scan_records(
    data: bytes, position: int, place: LogPlace, *, check_crc: bool, hash_keys: bool = False
) -> ScannedRecords | None:
    """Return the run of records at `data[position:]`, which is stored at `place`; None if no record begins there.

    Args:
        check_crc: verify the bodies' checksums, and that the properties were written completely.
        hash_keys: return the keys of the records.
    """
    builder = _ScannedRecordsBuilder(hash_keys=hash_keys)
    at, stop = position, position + place.until
    offset, room = place.offset, place.room
    try:
        while at < stop:
            record = parse_record(data, at, offset, room, check_crc=check_crc)
            builder.add(record)
            size = record.size
            at += size
            offset += size
            room -= size
    except NotARecord:
        pass
    return builder.finish(at - position) if at > position else None


class _QueueRecordsBuilder:
    """Collects the records of one queue."""

    __slots__ = ("entries", "first", "is_consecutive", "next")

    def __init__(self, first: int) -> None:
        self.first = self.next = first
        self.is_consecutive = True
        self.entries: list[bytes] = []


class _ScannedRecordsBuilder:
    """Collects what a run returns, record by record."""

    def __init__(self, *, hash_keys: bool) -> None:
        self._queues: dict[
            tuple[bytes, int], _QueueRecordsBuilder
        ] = {}  # by topic and queue id, in the order of their first records
        self._count = 0  # records
        # Store times, see `RunTimes`.
        self._first_ms = self._last_ms = 0
        self._floor_ms = LOWEST_MS  # ... of all neighbours so far
        self._decreases = 0  # records older than the one before
        # None: no keys are requested.
        self._hashes = KeyHashes() if hash_keys else None
        self._topics: dict[bytes, str] = {}  # decoded, because a run has few of them
        # Records with the last store time whose keys are not hashed yet: one call hashes many.
        self._unhashed: list[KeyedRecord] = []
        self._keys: list[bytes] = []  # hashed, in log order
        # See `ScannedRecords`, as the following.
        self._key_times: list[tuple[int, int]] = []
        self._deliveries: list[tuple[int, int]] = []  # of negative prepared offsets
        self._commits: list[int] = []  # log offsets
        self._rollbacks: list[int] = []  # log offsets

    def add(self, record: ScannedRecord) -> None:
        offset, size, topic, queue_id, queue_offset, sys_flag, store_ms, properties, prepared_offset = record
        if self._count:
            before_ms = self._last_ms
            if store_ms < before_ms:
                self._decreases += 1
                self._floor_ms = max(self._floor_ms, store_ms)
            elif before_ms > self._floor_ms:
                self._floor_ms = before_ms
        else:
            self._first_ms = store_ms
        if self._hashes is not None:
            if store_ms != self._last_ms:
                self._hash()
            self._add_keys(record)
        self._last_ms = store_ms
        self._count += 1
        state = sys_flag & TRANSACTION_MASK
        if prepared_offset < 0 and state != TRANSACTION_ROLLBACK:
            self._deliveries.append((offset, prepared_offset))
        if state:
            if state == TRANSACTION_ROLLBACK:
                self._rollbacks.append(offset)
            if state != TRANSACTION_COMMIT:
                return
            self._commits.append(offset)
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = _QueueRecordsBuilder(queue_offset)
        elif queue_offset != queue.next:
            queue.is_consecutive = False
        queue.next = queue_offset + 1
        queue.entries.append(ENTRY.pack(offset, size, hash_tags(properties)))

    def _add_keys(self, record: ScannedRecord) -> None:
        if record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
            topic = self._topics.get(record.topic)
            if topic is None:
                topic = self._topics[record.topic] = record.topic.decode("utf-8", "replace")
            properties = record.properties.decode("utf-8", "replace")
            self._unhashed.append((topic, properties, record.offset, record.store_ms))

    def _hash(self) -> None:
        """Hash the keys of the collected records, which have the last store time."""
        if self._hashes is None or not self._unhashed:
            return
        keys = self._hashes.hash_keys(self._unhashed)
        self._unhashed.clear()
        count = len(keys) // INDEX_KEY.size
        if not count:
            return
        self._keys.append(keys)
        if self._key_times and self._key_times[-1][1] == self._last_ms:
            count += self._key_times.pop()[0]
        self._key_times.append((count, self._last_ms))

    def finish(self, size: int) -> ScannedRecords:
        """Return the run, which has `size` bytes."""
        self._hash()
        return ScannedRecords(
            size,
            self._count,
            RunTimes(self._first_ms, self._last_ms, self._floor_ms, self._decreases),
            [
                QueueRecords(topic, queue_id, queue.first, queue.is_consecutive, b"".join(queue.entries))
                for (topic, queue_id), queue in self._queues.items()
            ],
            b"".join(self._keys),
            self._key_times,
            self._deliveries,
            self._commits,
            self._rollbacks,
        )
