"""Empties a closed store whose log cannot be cut at its last common record with another one, and puts the whole log aside.

    1  mark the store as crashed, lower its checkpoint to 0      queues, index and delays are derived again
    2  move the files of the log, newest first, to root/cut/<20 digits>-<number>    readable by `ariane store cat FILE`

A crash in between leaves a store with the first files of its log, which starts with them and is emptied again. What the log had is
lost for this store: its caller makes sure first that nothing relies on it.
"""

from __future__ import annotations

from ariane.store.disk.file_loading import load_log
from ariane.store.disk.files import Disk, OpenFiles, write_error
from ariane.store.log.checkpoint import CheckpointFile
from ariane.store.recovery.log_cut import move_aside
from ariane.store.recovery.store_directory import claim, mark_running, release
from ariane.store.types import StoreConfig


def empty_log(config: StoreConfig, disk: Disk) -> int:
    """Empty the log of a closed store; return how many files were moved to its directory `cut`.

    Raises:
        StoreLocked: the store is open.
        StoreError: the disk fails.
    """
    locks = claim(config, disk)
    files = OpenFiles(disk, config.open_files_max)
    try:
        checkpoint = CheckpointFile(files, f"{config.root}/checkpoint")
        log = load_log(
            files, config.log_directory, config.commit_log_size, clean=True, flushed=checkpoint.latest.safe_offset
        ).segments
        mark_running(files, config.root)
        if checkpoint.latest.safe_offset is not None:
            keys = None if checkpoint.latest.indexed_offset is None else 0
            checkpoint.lower(
                checkpoint.latest._replace(physic_ms=0, logics_ms=0, safe_offset=0, indexed_offset=keys, log_start=None)
            )
        if disk.size(state := f"{config.root}/timers/state") is not None:
            disk.remove(state)
            disk.fsync_dir(f"{config.root}/timers")
        moved = 0
        for base in reversed(list(log.bases)):
            move_aside(disk, config.root, base, log.detach(base))
            moved += 1
        disk.fsync_dir(config.log_directory)
        return moved
    except OSError as error:
        raise write_error(error, error.filename or config.root) from error
    finally:
        files.close()
        release(disk, locks)
