"""Files that are removed from outside while the store is open: noticed by flushes, reads and listings, reported once.

    commit log     no more writes; open files can still be read. The next start explains what is missing
    consume queue  no more writes, since consumers would not see the messages. The next start rebuilds the queue
    key index      rebuilt immediately (`index_builder`)

[no counterpart in Java]
"""

from __future__ import annotations

import logging
from typing import Protocol

from ariane.errors import StoreError
from ariane.store.disk.files import Disk
from ariane.store.index.index_builder import IndexBuilder
from ariane.store.log.commit_log import CommitLog
from ariane.store.queues.consume_queues import ConsumeQueues

logger = logging.getLogger("ariane.store")

LOG_FIX = "copy the messages that can still be read to another broker, or put the file back and restart the broker"
QUEUE_FIX = "restart the broker, which rebuilds it from the commit log"


class WritableStore(Protocol):
    """The part of a store that refuses writes."""

    refusal: StoreError | None


class RemovedFiles:
    """Detects files of one store that were removed from outside."""

    def __init__(self, disk: Disk, log: CommitLog, queues: ConsumeQueues, store: WritableStore) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._store = store
        self._queue_fault: StoreError | None = None

    def check_log(self) -> None:
        """Stop writes if a file of the commit log was removed from its directory."""
        log = self._log
        if log.failure is not None:
            return
        try:
            names = set(self._disk.listdir(log.segments.directory))
        except (FileNotFoundError, NotADirectoryError):
            names = set()
        except OSError:  # for example no free descriptor: no statement about the files
            return
        for base in log.segments.bases:
            path = log.segments.path(base)
            if path.rpartition("/")[2] not in names:
                log.failure = _removed(path, LOG_FIX)
                return

    def check_flushed(self, paths: list[str], index: IndexBuilder) -> None:
        """Stop writes if one of `paths`, which a flush did not find, is a file of a queue whose topic was not deleted.

        If one is a file of the key index, the index is rebuilt.
        """
        # The topic may have been deleted and created again since the flush looked: then the file exists.
        missing = next((path for path in paths if self._queues.has_file(path) and self._disk.size(path) is None), None)
        if missing is not None:
            self.report_removed(missing)
        index.check_missing(paths)

    def report_removed(self, path: str) -> StoreError:
        """Stop writes because `path`, a file of a queue or of the log, is removed; return the error for the caller."""
        if path.startswith(f"{self._log.segments.directory}/"):
            self.check_log()
            return self._log.failure or StoreError(f"{path} was removed and exists again: try again")
        if self._queue_fault is None:
            self._queue_fault = _removed(path, QUEUE_FIX)
            self._store.refusal = self._queue_fault
        return self._queue_fault


def _removed(path: str, fix: str) -> StoreError:
    error = StoreError(f"{path} was removed while the broker runs. Messages are refused: {fix}")
    logger.critical("%s", error, extra={"notice": True})
    return error
