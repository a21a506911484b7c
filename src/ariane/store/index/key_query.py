"""Finds records by key: the index returns candidates by hash, the records themselves decide.

Files and chains are read from the newest entry to the oldest, as in Java. A result that does not fit into one response has the
position at which the next query continues. [IndexService.queryOffset, DefaultMessageStore.queryMessage]
"""

from __future__ import annotations

from typing import NamedTuple

from ariane.errors import ProtocolError
from ariane.kernels.key_hashes import key_hash, parse_keys
from ariane.kernels.scanned_record import NotARecord
from ariane.store.disk.segments import Segments
from ariane.store.index.index_file import IndexEntry, IndexFile
from ariane.store.index.key_index import KeyIndex
from ariane.store.log.deletions import Deletions
from ariane.store.log.record_scanner import read_record

BYTES_MAX = 8 << 20  # of one response; a frame may have 16 MiB
ENTRIES_SCANNED_MAX = 50_000  # entries examined for one response, which blocks the event loop: some 0.1 s
NO_LIMIT = (1 << 63) - 1
_SECOND = 999  # an entry's time may be that much earlier than its record's


class QueryPosition(NamedTuple):
    """Where a query continues: at an entry of an index file, or if that is removed, at the record of that entry."""

    offset: int
    file: str
    number: int

    def text(self) -> str:
        """Return the position as it is sent, `<offset>-<file>-<entry>`."""
        return f"{self.offset}-{self.file}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> QueryPosition:
        parts = text.split("-")
        if len(parts) != 3 or not all(part.isdecimal() and part.isascii() and len(part) < 20 for part in parts):
            raise ProtocolError(f"Invalid query position {text!r}: expected the position of an earlier response")
        return cls(int(parts[0]), parts[1], int(parts[2]))


class KeyQuery(NamedTuple):
    """A query by key. Store times from `begin_ms` to `end_ms`, both included."""

    topic: str  # keys are indexed with their topic
    key: str  # a key, or a unique id
    max_count: int  # records, at most
    begin_ms: int = 0
    end_ms: int = NO_LIMIT
    position: QueryPosition | None = None  # where an earlier query stopped; None: start with the newest entry


class KeyQueryResult(NamedTuple):
    """Result of a query: the newest `max_count` matching records in log order.

    `position` is where the next query continues, None at the end; `last_ms` and `last_offset` are those of the last indexed record.
    """

    records: list[bytes]
    position: QueryPosition | None
    last_ms: int
    last_offset: int


class _Full(Exception):
    """The response is full, or enough was examined; the query continues at `position`."""

    def __init__(self, position: QueryPosition) -> None:
        super().__init__()
        self.position = position


def find_records(index: KeyIndex, log: Segments, query: KeyQuery, deletions: Deletions | None = None) -> KeyQueryResult:
    """Return the records of a topic whose UNIQ_KEY, or a word of whose KEYS, is the key.

    Raises:
        IndexCorrupt: an index file is damaged.
    """
    search = _Search(log, query, deletions or Deletions())
    files = index.files()
    position = query.position
    if position is not None and position.file in [file.name for file in files]:
        files = [file for file in files if file.name <= position.file]
    next_position: QueryPosition | None = None
    try:
        for file in files:
            search.search_file(file)
            if file.header.begin_ms < query.begin_ms:
                break
    except _Full as full:
        next_position = full.position
    records = [search.records[offset] for offset in sorted(search.records)]
    return KeyQueryResult(records, next_position, *index.last_update)


class _Search:
    """A running query; `records` are its results by offset."""

    def __init__(self, log: Segments, query: KeyQuery, deletions: Deletions) -> None:
        self._log = log  # candidates are read here
        self._deletions = deletions  # records of deleted topics are omitted
        self._query = query  # key, bounds and limit
        self._topic = query.topic.encode()  # encoded for the comparison with records
        self._hash = key_hash(query.topic, query.key)  # of topic and key
        # Entries and bytes so far: a query blocks the event loop, so both are bounded.
        self._scanned = 0
        self._bytes = 0  # size of the records so far
        self.records: dict[int, bytes] = {}

    def search_file(self, file: IndexFile) -> None:
        """Take the matching records of one file."""
        begin_ms, end_ms = self._query.begin_ms, self._query.end_ms
        if file.header.begin_ms > end_ms or file.header.end_ms < begin_ms:
            return
        position = self._query.position
        last = NO_LIMIT if position is None else position.offset
        for entry in file.chain(self._hash, self._start(file)):
            self._scanned += 1
            if self._scanned > ENTRIES_SCANNED_MAX:
                raise _Full(QueryPosition(entry.offset, file.name, entry.number))
            if entry.offset < self._log.start or entry.ms + _SECOND < begin_ms:
                return
            if entry.hashed == self._hash and entry.offset <= last and entry.ms <= end_ms:
                self._take(file, entry)

    def _start(self, file: IndexFile) -> int:
        position = self._query.position
        is_resumed = position is not None and position.file == file.name
        if is_resumed and position and file.has_entry(self._hash, position.number, position.offset):
            return position.number
        return file.newest(self._hash)

    def _take(self, file: IndexFile, entry: IndexEntry) -> None:
        query = self._query
        if entry.offset in self.records:
            return
        try:
            record, data = read_record(self._log, entry.offset)
        except NotARecord:
            return
        if record.topic != self._topic or not query.begin_ms <= record.store_ms <= query.end_ms:
            return
        if self._deletions.covers(record):
            return
        if query.key not in parse_keys(record.properties.decode("utf-8", "replace")):
            return
        if len(self.records) >= query.max_count or (self.records and self._bytes + len(data) > BYTES_MAX):
            raise _Full(QueryPosition(entry.offset, file.name, entry.number))
        self.records[entry.offset] = data
        self._bytes += len(data)
