"""A consistent view of a store directory while its broker writes to it.

    documents ──► log, up to its last valid record ──► documents again: still the same?    yes: that is the snapshot
        ▲                                                      │ no
        └──────────────────────────────────────────────────────┘ only what was added to the log is read again

So topics, groups, deletions and changes are those of that end of the log, and no offset is beyond it. Queues, key index and timers
are not copied: they are derived from the log, and a broker that does not find them rebuilds them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from ariane.errors import StoreError
from ariane.store.check.check_report import inspect_files
from ariane.store.disk.files import Disk, OpenFiles, exists, read_whole
from ariane.store.disk.segments import Segments
from ariane.store.log.record_scanner import RecordScanner

CONFIG, LOG, EPOCHS = "config", "commitlog", "ariane/epochs"
_ATTEMPTS = 100  # documents are saved every few seconds; an attempt takes milliseconds once the log has been read


class LogPart(NamedTuple):
    """A file of the commit log, as far as it has records."""

    base: int
    size: int  # bytes of the file
    modified_ms: int
    length: int  # bytes up to the end of its last valid record
    records: int


class StoreSnapshot(NamedTuple):
    """What has to be copied of a store."""

    documents: dict[str, bytes]  # by path below the store directory
    log: tuple[LogPart, ...]  # ascending
    corrupt_ranges: tuple[str, ...]  # copied as they are

    @property
    def log_start(self) -> int:
        return self.log[0].base if self.log else 0

    @property
    def log_end(self) -> int:
        return self.log[-1].base + self.log[-1].length if self.log else 0


class CheckedLog:
    """The commit log of a store: reads its files, and remembers which parts of it have been checked.

    Args:
        directory: Of the commit log.
        known: Finished files that an earlier backup checked: they are read again only if they changed.
    """

    def __init__(self, disk: Disk, directory: str, known: dict[int, LogPart]) -> None:
        self.directory = directory
        self.corrupt_ranges: dict[int, str] = {}  # by offset
        self._disk = disk
        self._parts_read = dict(known)  # by offset

    def read(self) -> tuple[LogPart, ...]:
        """Return the files as they are now.

        Raises:
            StoreError: a file between two others is missing, or cannot be read.
        """
        files = OpenFiles(self._disk)
        try:
            segments, _ = inspect_files(files, self.directory, "mappedFileSizeCommitLog")
            return tuple(self._parts(segments))
        finally:
            files.close()

    def chunks(self, part: LogPart, chunk_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a file, in pieces."""
        handle = self._disk.open(
            Segments(OpenFiles(self._disk), self.directory, part.size, [part.base]).path(part.base)
        )
        try:
            for position in range(0, part.length, chunk_bytes):
                size = min(chunk_bytes, part.length - position)
                data = self._disk.pread(handle, size, position)
                yield data.ljust(size, b"\0")
        finally:
            self._disk.close(handle)

    def _parts(self, segments: Segments) -> list[LogPart]:
        for before, base in itertools.pairwise(segments.bases):
            if base != before + segments.size:
                raise StoreError(f"{segments.path(before + segments.size)} is missing; `ariane store check` says more")
        parts = [part for base in segments.bases if (part := self._part(segments, base)) is not None]
        # Files are created before they are needed, so the last ones may be empty.
        while parts and not parts[-1].length:
            parts.pop()
        for index, part in enumerate(parts[:-1]):
            if part.length < part.size:
                end = part.base + part.length
                self.corrupt_ranges[end] = f"{part.size - part.length} bytes at {end} are not a record"
                parts[index] = part._replace(length=part.size)
        return parts

    def _part(self, segments: Segments, base: int) -> LogPart | None:
        """Return a file as it is now; None if the retention removed it meanwhile."""
        modified_ms = self._disk.modified_ms(segments.path(base))
        if modified_ms is None:
            return None
        part = self._parts_read.get(base) or LogPart(base, segments.size, modified_ms, 0, 0)
        # Writes through a map do not always change the time of a file, so only that of a finished one says that it is the same.
        if part.length < part.size or (part.size, part.modified_ms) != (segments.size, modified_ms):
            if part.length == part.size:
                part = LogPart(base, segments.size, modified_ms, 0, 0)
            part = self._parts_read[base] = self._extended(segments, part)._replace(modified_ms=modified_ms)
        return part

    def _extended(self, segments: Segments, part: LogPart) -> LogPart:
        """Scan what follows the part of a file that is known."""
        scanner, records = self._scanned(segments, part)
        if scanner.corrupt_ranges:
            # The broker may be writing there: only what is invalid the second time, too, is damaged.
            scanner, records = self._scanned(segments, part)
        self.corrupt_ranges |= {corrupt.offset: str(corrupt) for corrupt in scanner.corrupt_ranges}
        return part._replace(length=scanner.end - part.base, records=part.records + records)

    @staticmethod
    def _scanned(segments: Segments, part: LogPart) -> tuple[RecordScanner, int]:
        start, stop = part.base + part.length, part.base + segments.size
        scanner = RecordScanner(segments, start, stop, check_crc=True, min_store_ms=0)
        return scanner, sum(run.scanned.records for run in scanner.runs())


def take_snapshot(disk: Disk, root: str, log: CheckedLog) -> StoreSnapshot:
    """Return a consistent view of the store.

    Raises:
        StoreError: the directory has no store, or it changed at each of many attempts.
    """
    if not exists(disk, f"{root}/{CONFIG}") or not exists(disk, log.directory):
        raise StoreError(f"{root} is not a store directory: {CONFIG} or {log.directory} is missing")
    for _ in range(_ATTEMPTS):
        documents = _documents(disk, root)
        parts = log.read()
        if _documents(disk, root) == documents:
            return StoreSnapshot(documents, parts, tuple(text for _, text in sorted(log.corrupt_ranges.items())))
    raise StoreError(f"The files in {root}/{CONFIG} changed {_ATTEMPTS} times during a backup: repeat it")


def _documents(disk: Disk, root: str) -> dict[str, bytes]:
    """Return the small files of a store."""
    names = (name for name in disk.listdir(f"{root}/{CONFIG}") if not name.endswith(".tmp"))
    documents: dict[str, bytes] = {}
    for path in (*(f"{CONFIG}/{name}" for name in names), EPOCHS):
        try:
            data = read_whole(disk, f"{root}/{path}")
        except (IsADirectoryError, FileNotFoundError):
            continue  # not a document, or replaced meanwhile: the next look differs
        if data is not None:
            documents[path] = data
    return documents
