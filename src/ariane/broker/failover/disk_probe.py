"""Measures whether the disk of a store responds: a thread writes and flushes a small file, over and over.

A flush that hangs reports no error, and its thread cannot be cancelled. What shows it is the age of the last one that completed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ariane.store.disk.files import Disk

log = logging.getLogger("ariane.broker.failover.disk_probe")

PROBE_BYTES = 4096


class DiskProbe:
    """Probes of one store directory. `completed_at` is the start of the last one that completed, by the clock of `now`."""

    def __init__(
        self, disk: Disk, root: str, log_directory: str, *, interval_s: float, now: Callable[[], float]
    ) -> None:
        self.completed_at = now()
        self._disk = disk
        self._path = f"{root}/ariane/probe"
        self._log_directory = log_directory  # may be on another disk
        self._interval_s = interval_s
        self._now = now
        self._stop = threading.Event()
        self._fault = ""
        # A daemon: a probe that hangs must not prevent the end of the process.
        self._thread = threading.Thread(target=self._run, name="ariane-disk-probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the probe in flight, without waiting for it."""
        self._stop.set()

    def probe(self) -> None:
        """Write and flush once.

        Raises:
            OSError: the disk refused it.
        """
        started, disk = self._now(), self._disk
        if disk.size(self._path) is None:
            for directory in disk.make_dirs(self._path.rpartition("/")[0]):
                disk.fsync_dir(directory)
            disk.close(disk.create(self._path, PROBE_BYTES))
        handle = disk.open(self._path)
        try:
            disk.pwrite(handle, f"{started:.3f}".encode().ljust(PROBE_BYTES), 0)
            disk.fsync(handle)
        finally:
            disk.close(handle)
        disk.fsync_dir(self._log_directory)
        self.completed_at = started

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.probe()
                self._fault = ""
            except OSError as error:
                if str(error) != self._fault:  # once per reason
                    self._fault = str(error)
                    log.error("The disk of %s does not respond: %s", self._path, error)
            self._stop.wait(self._interval_s)
