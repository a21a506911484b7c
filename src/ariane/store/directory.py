"""The directories of a store at its start: created, readable, and claimed by one process. [DefaultMessageStore.start]"""

from __future__ import annotations

from ariane.errors import StoreLocked
from ariane.store import checkpoint
from ariane.store.files import Disk, OpenFiles, open_error
from ariane.store.values import StoreConfig


def claim(config: StoreConfig, disk: Disk) -> int:
    """Create what is missing and lock the store. Return the handle of the lock.

    Raises:
        StoreLocked: another process has the store.
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
        return disk.lock(f"{root}/lock", b"lock")
    except BlockingIOError as error:
        raise StoreLocked(
            f"{root} is in use by another process ({error}): stop that one, or give this one another directory"
        ) from error
    except OSError as error:
        raise open_error(error, f"{root}/lock") from error


def mark_running(files: OpenFiles, root: str) -> None:
    """Create `abort`, which an orderly stop removes, and the checkpoint at its full size."""
    disk, abort = files.disk, f"{root}/abort"
    if disk.size(abort) is None:
        disk.close(disk.create(abort, 0))
    else:
        disk.close(disk.open(abort))  # a directory in its place is noticed now, not at the stop
    checkpoint.make_room(files, f"{root}/checkpoint")
    disk.fsync_dir(root)
