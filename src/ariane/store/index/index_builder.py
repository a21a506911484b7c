"""Builds the key index after the log, in batches: a put only adds its record to a list.

    put -> pending -> ... a thousand of them, a flush, or a query -> hashes -> one write of entries

Pending records are indexed once they are dispatched, so in synchronous mode nothing after the flushed position is. A query first
indexes all that consumers can see. If a batch cannot be written, its records are dropped from the list and read again from the
log. [DefaultMessageStore.CommitLogDispatcherBuildIndex]
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ariane.errors import StoreCorrupt, StoreError
from ariane.kernels.key_hashes import KeyedRecord, KeyHashes, is_indexed
from ariane.kernels.scanned_record import NotARecord, ScannedRecord
from ariane.protocol.records.queue_entry import INDEX_KEY
from ariane.store.disk.files import write_error
from ariane.store.disk.segments import Segments
from ariane.store.index import key_query
from ariane.store.index.index_file import HashedKeys, IndexCorrupt, IndexSizes, ScannedKeys
from ariane.store.index.key_index import IndexProgress, KeyIndex
from ariane.store.index.key_query import KeyQuery, KeyQueryResult
from ariane.store.log.checkpoint import Checkpoint
from ariane.store.log.commit_log import CommitLog
from ariane.store.log.deletions import Deletions
from ariane.store.log.record_scanner import iter_readable_runs, read_record
from ariane.store.queues.consume_queue import QueueFilesChanged
from ariane.store.queues.queue_reader import read_store_ms
from ariane.store.queues.recovery_plan import LoadedStore
from ariane.store.types import StoreConfig

T = TypeVar("T")

log = logging.getLogger("ariane.store")

# Of records that were appended together: offset of the first, store time, `INDEX_KEY` by `INDEX_KEY` in log order.
PendingKeys = tuple[int, int, bytes]

BATCH_RECORDS = 1024  # records whose keys are indexed together: some 0.3 ms
REBUILDS_MAX = 8  # rebuilds of a damaged index in one call before it fails


class _RecordedKeys:
    """The commit log as an `IndexedLog`: store times and keys of its records."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.start = log.start

    def store_ms(self, offset: int) -> int | None:
        return read_store_ms(self._log, offset)

    def key_hashes(self, offset: int) -> list[int]:
        return _hashes_at(self._log.segments, offset)


def open_index(
    loaded: LoadedStore,
    config: StoreConfig,
    log: CommitLog,
    now_ms: Callable[[], int],
    deletions: Deletions | None = None,
    scanned: Iterable[ScannedKeys] = (),
) -> IndexBuilder:
    """Open the key index of a store whose log is recovered, and index the part of the log that it lacks.

    Args:
        now_ms: clock that names new index files.
        deletions: records in it are omitted from all answers.
        scanned: keys of some of the log's records, in log order.
    """
    files, checkpoint = loaded.files, loaded.checkpoint.latest
    if not config.index:
        return IndexBuilder(None, log.segments)
    index = KeyIndex(
        files,
        f"{config.root}/index",
        IndexSizes(config.index_slots, config.index_entries),
        now_ms=now_ms,
        log=_RecordedKeys(log),
    )
    progress = IndexProgress(loaded.clean, checkpoint.indexed_offset, checkpoint.index_files, checkpoint.index_ms)
    index.open(progress, log.end)
    indexing = IndexBuilder(index, log.segments, deletions)
    if progress.position is not None and (index.position < progress.position or len(index) < progress.files):
        # Rebuilt entries are not flushed, so the checkpoint must not cover them.
        loaded.checkpoint.lower(indexing.add_to_checkpoint(checkpoint, log.end))
    index.write_recovered()
    indexing.index_log(log.end, scanned)
    return indexing


class IndexBuilder:
    """The index of a store and its pending keys. Call `add_pending` with each record that `is_indexed`, or `add_pending_keys`."""

    def __init__(self, index: KeyIndex | None, log: Segments, deletions: Deletions | None = None) -> None:
        """Without an `index` nothing is indexed and queries are refused. Records in `deletions` are omitted from answers."""
        self._deletions = deletions
        # None: the store has no index.
        self._index = index
        self._log = log  # read when the list of pending records is incomplete
        self._hashes = KeyHashes()  # hashes many records in one call
        # Keys of records to index, in log order.
        self._pending: deque[PendingKeys] = deque()
        self._pending_count = 0  # keys in them; so many are indexed together
        self._is_reading_log = False  # pending records are incomplete: read the log instead
        self._scanned: Iterable[ScannedKeys] = ()  # for the next read of the log
        self._dispatched = 0  # records below this offset have their queue entries and may be indexed

    @property
    def is_enabled(self) -> bool:
        """Return whether the store has an index."""
        return self._index is not None

    def add_pending(self, record: KeyedRecord) -> None:
        """Hash the keys of a record, to index them once it is dispatched."""
        if self._index is not None:
            _, _, offset, store_ms = record
            self.add_pending_keys(offset, store_ms, self._hashes.hash_keys((record,)))

    def add_pending_keys(self, offset: int, store_ms: int, keys: bytes) -> None:
        """Add the hashed keys (`INDEX_KEY`) of records that were appended together, the first at `offset`."""
        if self._index is not None:
            self._pending.append((offset, store_ms, keys))
            self._pending_count += len(keys) // INDEX_KEY.size or 1

    @property
    def notes(self) -> list[str]:
        """Repairs of the index, in words."""
        return [] if self._index is None else self._index.notes

    def index_log(self, derived: int, scanned: Iterable[ScannedKeys] = ()) -> None:
        """Index the log from `position` on. A failing disk does not stop the start: queries are refused until it works.

        Args:
            scanned: keys that need not be read from the log.
        """
        self._is_reading_log, self._dispatched, self._scanned = True, derived, scanned
        self._try_catch_up()

    def on_dispatched(self, derived: int) -> None:
        """Index the records below `derived` if they are many. A failure is left to the next query."""
        self._dispatched = derived
        if self._pending_count >= BATCH_RECORDS:
            self._try_catch_up()

    def _try_catch_up(self) -> None:
        """Index pending records if the disk allows it: puts and consumers do not need the index."""
        try:
            self._run_repairing(lambda index: None)
        except StoreError:
            self._is_reading_log = True

    def query(self, query: KeyQuery) -> KeyQueryResult:
        """Return records by key, of all that consumers can see.

        Raises:
            StoreError: the index is disabled, or it cannot be brought up to date; the next call tries again.
        """
        return self._run_repairing(lambda index: key_query.find_records(index, self._log, query, self._deletions))

    def complete(self, derived: int) -> None:
        """Index all pending records and complete the files; the caller flushes them."""
        self._dispatched = derived
        if self._index is not None:
            self._run_repairing(KeyIndex.write_slots)

    def _run_repairing(self, work: Callable[[KeyIndex], T]) -> T:
        """Bring the index up to date and call `work` with it; rebuild it first if a file is found damaged."""
        index = self._index
        if index is None:
            raise StoreError("This store has no key index: set messageIndexEnable to true")
        fault: IndexCorrupt | None = None
        for _ in range(REBUILDS_MAX):
            try:
                self._catch_up(index, self._dispatched)
                return work(index)
            except IndexCorrupt as damage:
                fault = damage
                index.remove_damaged(damage.path)
                self._is_reading_log = True
                index.notes.append(f"{damage}: rebuilding the key index from {index.position} of the log")
            except FileNotFoundError as error:
                self._restart(index, error)
            except OSError as error:
                self._is_reading_log = True
                raise write_error(error, index.root) from error
        if fault is None:
            raise StoreError(f"{index.root} is removed repeatedly: find the process that removes it")
        raise StoreCorrupt(fault.path, 0, f"damaged repeatedly: {fault}")

    def check_missing(self, paths: Iterable[str]) -> None:
        """Rebuild the index if one of `paths`, which are missing on the disk, is one of its files."""
        index = self._index
        missing = [] if index is None else [path for path in paths if index.has_file(path)]
        if index is not None and missing:
            try:
                self._restart(index, FileNotFoundError(2, "No such file or directory", missing[0]))
            except StoreError as error:
                log.error("%s", error)
                return
            self._try_catch_up()

    def _restart(self, index: KeyIndex, error: FileNotFoundError) -> None:
        """Restart with an empty index, because its files were removed while the store is open."""
        self._is_reading_log = True
        log.error("%s was removed while the broker runs: the key index is rebuilt from the log", error.filename)
        try:
            index.reset()
        except OSError as fault:
            raise write_error(fault, index.root) from fault

    def _catch_up(self, index: KeyIndex, derived: int) -> None:
        waiting = self._pending
        runs: list[tuple[int, bytes]] = []
        while waiting and waiting[0][0] < derived:
            _, store_ms, keys = waiting.popleft()
            self._pending_count -= len(keys) // INDEX_KEY.size or 1
            runs.append((store_ms, keys))
        if self._is_reading_log:
            self._index_log(index, derived)
        elif runs:
            self._is_reading_log = True  # until it has succeeded
            index.add(_join(runs), derived)
        self._is_reading_log = False
        index.position = max(index.position, derived)

    def _index_log(self, index: KeyIndex, derived: int) -> None:
        """Index the log below `derived`. Only the first attempt uses the scanned keys."""
        position = max(index.position, self._log.start)
        scanned, self._scanned = self._scanned, ()
        for start, end, keys in scanned:
            if position <= start and end <= derived:
                self._index_range(index, position, start)
                index.add(keys, end)
                position = end
        self._index_range(index, position, derived)

    def _index_range(self, index: KeyIndex, start: int, stop: int) -> None:
        for run in iter_readable_runs(self._log, start, stop):
            index.add(HashedKeys(run.scanned.keys, run.scanned.key_times), run.end)

    # --- for the flush ---

    def take_changed(self, derived: int) -> QueueFilesChanged:
        """Index pending records; return the files and directories that the flush which begins now has to fsync."""
        if self._index is None:
            return QueueFilesChanged(set(), set())
        self._dispatched = max(self._dispatched, derived)  # the entries of later ones may be collected
        self._try_catch_up()
        return self._index.take_changed()

    def add_to_checkpoint(self, checkpoint: Checkpoint, flushed: int) -> Checkpoint:
        """Return the checkpoint with the index's part, true once the files of `take_changed` are flushed."""
        index = self._index
        if index is None:
            return checkpoint
        indexed_offset = min(flushed, index.position)
        return checkpoint._replace(index_ms=index.full_ms, indexed_offset=indexed_offset, index_files=len(index))

    # --- for retention ---

    def drop_before(self, min_offset: int) -> int:
        """Drop the index files that have only records below `min_offset`; return how many. The newest file stays.

        They are removed after the next flush of the derived files, once the checkpoint has the new count.
        """
        return 0 if self._index is None else self._index.drop_before(min_offset)


def to_keyed_record(record: ScannedRecord) -> KeyedRecord:
    """Return a record as a put would have added it; one that is not indexed has no properties."""
    properties = record.properties.decode("utf-8", "replace") if is_indexed(record.sys_flag) else ""
    return record.topic.decode("utf-8", "replace"), properties, record.offset, record.store_ms


def _hashes_at(log: Segments, offset: int) -> list[int]:
    """Return the key hashes of the record at `offset`, in the order of their entries; empty if no record begins there."""
    try:
        record, _ = read_record(log, offset)
    except NotARecord:
        return []
    return hash_record_keys(record)


def hash_record_keys(record: ScannedRecord) -> list[int]:
    """Return the hashes of a record's keys, in the order of their entries."""
    return [value for value, _ in INDEX_KEY.iter_unpack(KeyHashes().hash_keys([to_keyed_record(record)]))]


def _join(runs: Sequence[tuple[int, bytes]]) -> HashedKeys:
    """Return keys of records that were stored at these times, without empty runs and with equal times in one run."""
    store_times: list[tuple[int, int]] = []
    last_ms = -1
    count = 0
    for store_ms, keys in runs:
        if store_ms != last_ms and keys:
            if count:
                store_times.append((count, last_ms))
            last_ms, count = store_ms, 0
        count += len(keys) // INDEX_KEY.size
    if count:
        store_times.append((count, last_ms))
    return HashedKeys(b"".join([keys for _, keys in runs]), store_times)
