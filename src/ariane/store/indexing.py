"""Keeping the key index up with the log, at its own pace: a put leaves the place of its keys, and many are indexed at once.

    put -> note -> ... a thousand of them, a flush, or a query -> hashes -> one write of entries

What was noted is indexed once its queue entries are made, so in synchronous mode nothing above the flushed position is. A query
brings the index up first: it never knows less than consumers do. When a batch cannot be written, its notes are given up and the
log is read again from where the index ends. [DefaultMessageStore.CommitLogDispatcherBuildIndex]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from ariane.errors import StoreCorrupt, StoreError
from ariane.store import query
from ariane.store.checkpoint import Checkpoint
from ariane.store.commit_log import CommitLog
from ariane.store.files import OpenFiles, write_error
from ariane.store.index import KeyIndex, Known
from ariane.store.index_file import Damaged, Sizes
from ariane.store.keys import Keyed, KeyHashes, is_indexed
from ariane.store.query import Queried, Wanted
from ariane.store.reading import store_ms_of
from ariane.store.scan import Found, readable
from ariane.store.segments import Segments
from ariane.store.values import StoreConfig

T = TypeVar("T")

AT_ONCE = 1024  # records whose keys are indexed together: some 1.5 ms
DAMAGE_MAX = 8  # times that one call finds damage and makes the index anew before it gives up


def opened(
    config: StoreConfig,
    files: OpenFiles,
    log: CommitLog,
    now_ms: Callable[[], int],
    checkpoint: Checkpoint,
    *,
    clean: bool,
) -> Indexing:
    """The index of a store whose log is in order: what the directory holds is taken over, the rest of the log indexed."""
    if not config.index:
        return Indexing(None, log.segments)
    index = KeyIndex(
        files,
        f"{config.root}/index",
        Sizes(config.index_slots, config.index_entries),
        now_ms=now_ms,
        store_ms=lambda offset: store_ms_of(log, offset),
    )
    known = Known(clean, checkpoint.indexed_offset, checkpoint.index_files, checkpoint.index_ms)
    index.open(known, log.start, log.end)
    indexing = Indexing(index, log.segments)
    indexing.read_up_to(log.end)
    return indexing


class Indexing:
    """The index of a store, and what waits to get into it. `note` takes a Keyed for each record that `is_indexed`."""

    def __init__(self, index: KeyIndex | None, log: Segments) -> None:
        """Without an index nothing is done, and queries are refused."""
        self._index = index
        self._log = log
        self._hashes = KeyHashes()
        self._waiting: deque[Keyed] = deque()
        self._reading = False  # the index is behind what was noted: the log is read
        self.note: Callable[[Keyed], None] = self._waiting.append if index is not None else _pass_over

    @property
    def notes(self) -> list[str]:
        """What had to be made anew and why, in words."""
        return [] if self._index is None else self._index.notes

    def read_up_to(self, derived: int) -> None:
        """Index the log from where the index ends."""
        self._reading = True
        self.catch_up(derived)

    def step(self, derived: int) -> None:
        """Index what was noted below `derived` if it is much. A failure is kept for the next `catch_up`."""
        if len(self._waiting) >= AT_ONCE:
            self._try_catch_up(derived)

    def _try_catch_up(self, derived: int) -> None:
        """`catch_up`, unless the disk does not let it: puts and consumers do not need the index."""
        try:
            self.catch_up(derived)
        except StoreError:
            self._reading = True

    def catch_up(self, derived: int) -> None:
        """Index everything below `derived`. StoreFull or StoreError when it cannot be written; the next call tries again."""
        self._undamaged(lambda index: None, derived)

    def query(self, wanted: Wanted, derived: int) -> Queried:
        """Bring the index up, and ask it."""
        return self._undamaged(lambda index: query.find(index, self._log, wanted), derived)

    def complete(self, derived: int) -> None:
        """Index the rest and complete the files; they are the caller's to flush."""
        if self._index is not None:
            self._undamaged(KeyIndex.write_slots, derived)

    def _undamaged(self, work: Callable[[KeyIndex], T], derived: int) -> T:
        """Bring the index up and do `work` with it; a file that is found damaged is made anew first."""
        index = self._index
        if index is None:
            raise StoreError("this store keeps no key index: set messageIndexEnable to true")
        fault: Damaged | None = None
        for _ in range(DAMAGE_MAX):
            try:
                self._catch_up(index, derived)
                return work(index)
            except Damaged as damage:
                fault = damage
                index.remove_damaged(damage.path)
                self._reading = True
                index.notes.append(f"{damage}: the key index is made anew from {index.position} of the log")
            except OSError as error:
                self._reading = True
                raise write_error(error, index.root) from error
        assert fault is not None
        raise StoreCorrupt(fault.path, 0, f"damaged again and again: {fault}")

    def _catch_up(self, index: KeyIndex, derived: int) -> None:
        waiting = self._waiting
        if waiting and waiting[-1][2] < derived:
            taken = list(waiting)
            waiting.clear()
        else:
            taken = []
            while waiting and waiting[0][2] < derived:
                taken.append(waiting.popleft())
        if self._reading:
            position = max(index.position, self._log.start)
            for batch in _batches(readable(self._log, position, derived)):
                index.add(self._hashes.of([keyed(found) for found in batch]), batch[-1].end)
        elif taken:
            self._reading = True  # until it has succeeded
            index.add(self._hashes.of(taken), derived)
        self._reading = False
        index.position = max(index.position, derived)

    # --- for the flush ---

    def take_changed(self, derived: int) -> tuple[list[str], list[str]]:
        """Index what waits; files, and directories, that the flush which begins now has to fsync."""
        if self._index is None:
            return [], []
        self._try_catch_up(derived)
        return self._index.take_changed()

    def in_checkpoint(self, checkpoint: Checkpoint, flushed: int) -> Checkpoint:
        """The checkpoint with what it says about the index, once what `take_changed` gave is flushed."""
        index = self._index
        if index is None:
            return checkpoint
        indexed_offset = min(flushed, index.position)
        return checkpoint._replace(index_ms=index.full_ms, indexed_offset=indexed_offset, index_files=len(index))

    # --- for retention ---

    def below(self, min_offset: int) -> int:
        """How many files know only records below `min_offset`; the newest always stays."""
        return 0 if self._index is None else self._index.below(min_offset)

    def drop_before(self, min_offset: int) -> int:
        """Remove them; how many."""
        if self._index is None:
            return 0
        try:
            return self._index.drop_before(min_offset)
        except OSError as error:
            raise write_error(error, self._index.root) from error


def _pass_over(_: Keyed) -> None:
    """What a store without an index notes."""


def keyed(found: Found) -> Keyed:
    """What a put would have noted of a record; one that is not indexed has no properties."""
    properties = found.properties.decode("utf-8", "replace") if is_indexed(found.sys_flag) else ""
    return found.topic.decode("utf-8", "replace"), properties, found.offset, found.store_ms


def _batches(records: Iterable[Found]) -> Iterable[list[Found]]:
    batch: list[Found] = []
    for found in records:
        batch.append(found)
        if len(batch) >= AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch
