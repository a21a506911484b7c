"""The directories of a store at its start: created, readable, and locked by one process. [DefaultMessageStore.start]"""

from __future__ import annotations

from ariane.errors import StoreLocked
from ariane.store.disk.files import Disk, OpenFiles, open_error
from ariane.store.log import checkpoint
from ariane.store.types import StoreConfig


def claim(config: StoreConfig, disk: Disk) -> tuple[int, ...]:
    """Create missing directories and lock the store. Return the handles of the locks, for `release`.

    Raises:
        StoreLocked: another process has the store, or the directory of its commit log.
        StoreError: a directory cannot be created, read or written.
    """
    root = config.root
    index = [f"{root}/index"] if config.index else []
    for directory in (root, config.log_directory, f"{root}/consumequeue", *index):
        try:
            for parent in disk.make_dirs(directory):
                disk.fsync_dir(parent)
            disk.listdir(directory)
        except OSError as error:
            raise open_error(error, directory) from error
    try:
        lock = disk.lock(f"{root}/lock", b"lock")
    except BlockingIOError as error:
        raise StoreLocked(
            f"{root} is in use by another process ({error}): stop that one, or give this one another directory"
        ) from error
    except OSError as error:
        raise open_error(error, f"{root}/lock") from error
    try:
        # A lock file would not be one of Java's files there, and a store with another root may name the same directory.
        return lock, disk.lock_dir(config.log_directory)
    except BlockingIOError as error:
        disk.unlock(lock)
        raise StoreLocked(
            f"{config.log_directory} is in use by the store of another process: set storePathCommitLog to a directory of"
            " its own for each broker"
        ) from error
    except OSError as error:
        disk.unlock(lock)
        raise open_error(error, config.log_directory) from error


def release(disk: Disk, locks: tuple[int, ...]) -> None:
    """Unlock the store."""
    for lock in reversed(locks):
        disk.unlock(lock)


def is_running_or_crashed(disk: Disk, root: str) -> bool:
    """Return whether `abort` exists: a process has the store, or the last one did not stop in order."""
    return disk.size(f"{root}/abort") is not None


def mark_stopped(disk: Disk, root: str) -> None:
    """Remove `abort`, after everything is flushed: the next start need not recover."""
    disk.remove(f"{root}/abort")
    disk.fsync_dir(root)


def mark_running(files: OpenFiles, root: str) -> None:
    """Create `abort`, which an orderly stop removes, and the checkpoint at its full size."""
    disk, abort = files.disk, f"{root}/abort"
    if disk.size(abort) is None:
        disk.close(disk.create(abort, 0))
    else:
        disk.close(disk.open(abort))  # fails now, and not at the stop, if it is a directory
    checkpoint.reserve(files, f"{root}/checkpoint")
    disk.fsync_dir(root)
