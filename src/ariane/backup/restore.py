"""Restores a backup into a new store directory, and checks that a target still has all of a backup."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ariane.backup.backup_target import BackupTarget
from ariane.backup.manifest import BackupManifest, SavedFile, chunk_name, digest_of
from ariane.backup.store_snapshot import LOG
from ariane.errors import ConfigError, StoreCorrupt, StoreError
from ariane.private_files import PRIVATE_MODE, sync_directory

_UNFINISHED = ".restoring"  # suffix of a directory that is not whole yet
_PRIVATE_DIRECTORY = 0o700


class ChunkFault(NamedTuple):
    """A part of a backup that cannot be restored."""

    file: SavedFile
    digest: str
    reason: str


def restore_backup(
    target: BackupTarget, manifest: BackupManifest, root: Path, *, commit_log: Path | None = None
) -> None:
    """Create a store directory from a backup; it appears whole, and on the disk, or not at all.

    Its files are readable by their owner only. A broker's first start rebuilds what is derived from the log.

    Args:
        root: The new store directory.
        commit_log: The new directory of the commit log, for a broker with storePathCommitLog.

    Raises:
        ConfigError: a directory exists already.
        StoreError: a part is missing or damaged, or the disk failed.
    """
    for name, directory in (("DIR", root), ("--commit-log", commit_log)):
        if directory is not None and directory.exists():
            raise ConfigError(name, str(directory), "it exists already: restore into a new directory, then move it")
    unfinished = root.with_name(root.name + _UNFINISHED)
    unfinished_log = unfinished / LOG if commit_log is None else commit_log.with_name(commit_log.name + _UNFINISHED)
    try:
        for directory in (unfinished, unfinished_log):
            shutil.rmtree(directory, ignore_errors=True)  # of an earlier attempt
            directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True)
        for file in manifest.files:
            kind, _, name = file.path.partition("/")
            path = unfinished_log / name if kind == LOG else unfinished / file.path
            path.parent.mkdir(mode=_PRIVATE_DIRECTORY, exist_ok=True)
            _write(path, file, target)
        for directory in {unfinished_log, unfinished, *(path for path in unfinished.iterdir() if path.is_dir())}:
            sync_directory(directory)
        # The store directory comes last: without it no broker starts on the log.
        if commit_log is not None:
            unfinished_log.rename(commit_log)
            sync_directory(commit_log.parent)
        unfinished.rename(root)
        sync_directory(root.parent)
    except OSError as error:
        raise StoreError(f"Cannot write {error.filename or root}: {error.strerror or error}") from error


def find_faults(
    target: BackupTarget, manifest: BackupManifest, *, sound: set[str] | None = None
) -> Iterator[ChunkFault]:
    """Read all parts of a backup and yield those that are missing or damaged.

    Args:
        sound: Parts that are known to be good; those that are read are added.
    """
    sound = sound if sound is not None else set()
    for file in manifest.files:
        for digest in file.chunks:
            if digest in sound:
                continue
            try:
                _read_chunk(target, digest)
            except StoreError as error:
                yield ChunkFault(file, digest, str(error))
            else:
                sound.add(digest)


def _write(path: Path, file: SavedFile, target: BackupTarget) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE)
    with os.fdopen(handle, "wb") as output:
        for digest in file.chunks:
            output.write(_read_chunk(target, digest))
        if output.tell() != file.length:
            raise StoreCorrupt(str(path), output.tell(), f"the backup says {file.length} bytes")
        output.truncate(file.size)
        output.flush()
        os.fsync(output.fileno())


def _read_chunk(target: BackupTarget, digest: str) -> bytes:
    name = chunk_name(digest)
    data = target.read(name)
    if (actual := digest_of(data)) != digest:
        raise StoreCorrupt(f"{target.url}/{name}", 0, f"its {len(data)} bytes have the digest {actual}")
    return data
