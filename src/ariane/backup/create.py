"""Creates a backup: copies what the target lacks, then writes the list of files."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ariane.backup.backup_target import BackupTarget
from ariane.backup.manifest import (
    CHUNKS,
    FORMAT,
    BackupManifest,
    SavedFile,
    chunk_name,
    digest_of,
    id_at,
    list_ids,
    read_manifest,
    write_manifest,
)
from ariane.backup.store_snapshot import LOG, CheckedLog, LogPart, StoreSnapshot, take_snapshot
from ariane.errors import ConfigError, StoreLocked
from ariane.store.disk.files import Disk, ReadOnlyDisk
from ariane.store.disk.segments import NAME_DIGITS

CHUNK_BYTES = 16 << 20
# A file that was modified so shortly before an earlier backup may have changed afterwards within the same tick of its clock.
_SETTLED_MS = 2_000


class BackupOutcome(NamedTuple):
    """A backup and what it took."""

    manifest: BackupManifest
    written: int  # bytes that the target did not have
    corrupt_ranges: tuple[str, ...]  # of the log, found by this backup; they are copied as they are


def create_backup(
    root: str,
    target: BackupTarget,
    *,
    now_ms: Callable[[], int],
    commit_log: str | None = None,
    disk: Disk | None = None,
    host: str | None = None,
) -> BackupOutcome:
    """Copy a store to the target; its broker may be running.

    Args:
        root: Store directory (storePathRootDir).
        now_ms: Wall clock, ms.
        commit_log: Directory of the commit log, if storePathCommitLog is set.
        host: Name of this machine.

    Raises:
        StoreError: the store or the target cannot be read or written; the target has no new backup then.
        StoreLocked: another backup of this store is in progress.
        ConfigError: the target has backups of another store.
    """
    disk, host = disk or ReadOnlyDisk(), host or socket.gethostname()
    started_ms = now_ms()
    ids = list(list_ids(target))
    former = read_manifest(target) if ids else None
    if former is not None and (former.host, former.store) != (host, root):
        fix = f"it contains backups of {former.store} on {former.host}: use another URL for this store"
        raise ConfigError("URL", target.url, fix)
    saved = {file.path: file for file in former.files} if former is not None else {}
    log = CheckedLog(disk, commit_log or f"{root}/{LOG}", _known_parts(former))
    snapshot = take_snapshot(disk, root, log)
    writer = _ChunkWriter(target)
    files = tuple(_copied(snapshot, log, saved, writer))
    bases = [int(file.path.rpartition("/")[2]) for file in files if file.path.startswith(f"{LOG}/")]
    manifest = BackupManifest(
        format=FORMAT,
        id=id_at(started_ms),
        host=host,
        store=root,
        started_ms=started_ms,
        finished_ms=now_ms(),
        log_start=bases[0] if bases else snapshot.log_end,
        log_end=snapshot.log_end,
        files=files,
    )
    write_manifest(target, manifest)
    return BackupOutcome(manifest, writer.written, snapshot.corrupt_ranges)


@contextmanager
def sole_backup(root: str) -> Iterator[None]:
    """Hold the right to back up a store: one process at a time copies it and removes its old backups.

    Raises:
        StoreLocked: another process has it.
    """
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise StoreLocked(f"Another backup of {root} is in progress") from error
    finally:
        os.close(handle)


class _ChunkWriter:
    """Writes chunks that the target does not have."""

    def __init__(self, target: BackupTarget) -> None:
        self.written = 0  # bytes
        self._target = target
        self._present = {name.rpartition("/")[2] for name in target.names(CHUNKS)}

    def has_all(self, digests: tuple[str, ...]) -> bool:
        return self._present.issuperset(digests)

    def write(self, data: bytes) -> str:
        """Return the digest of `data`, which the target has afterwards."""
        digest = digest_of(data)
        if digest not in self._present:
            self._target.write(chunk_name(digest), data)
            self._present.add(digest)
            self.written += len(data)
        return digest


def _copied(
    snapshot: StoreSnapshot, log: CheckedLog, saved: dict[str, SavedFile], writer: _ChunkWriter
) -> Iterator[SavedFile]:
    for part in snapshot.log:
        path = _log_path(part.base)
        former = saved.get(path)
        if (
            former is not None
            and (former.length, former.modified_ms) == (part.length, part.modified_ms)
            and writer.has_all(former.chunks)
        ):
            yield former
            continue
        try:
            chunks = tuple(writer.write(data) for data in log.chunks(part, CHUNK_BYTES))
        except FileNotFoundError:
            continue  # the retention removed it, and all before it, meanwhile
        yield SavedFile(path, part.size, part.modified_ms, chunks, part.length, part.records)
    for path, data in sorted(snapshot.documents.items()):
        yield SavedFile(path, len(data), 0, (writer.write(data),), len(data))


def _known_parts(former: BackupManifest | None) -> dict[int, LogPart]:
    """Return the finished files of the log that an earlier backup checked."""
    if former is None:
        return {}
    bases = {file.path: int(file.path.rpartition("/")[2]) for file in former.files if file.path.startswith(f"{LOG}/")}
    return {
        bases[file.path]: LogPart(bases[file.path], file.size, file.modified_ms, file.length, file.records)
        for file in former.files
        if file.path in bases and file.length == file.size and file.modified_ms < former.started_ms - _SETTLED_MS
    }


def _log_path(base: int) -> str:
    return f"{LOG}/{base:0{NAME_DIGITS}d}"
