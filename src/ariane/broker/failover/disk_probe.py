"""Measures whether the disk of a store responds, and has room: a thread writes and flushes a small file, over and over.

A flush that hangs reports no error, and its thread cannot be cancelled. What shows it is the age of the last one that completed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ariane.store.disk.files import Disk
from ariane.store.upkeep.retention import used_percent

log = logging.getLogger("ariane.broker.failover.disk_probe")

PROBE_BYTES = 4096


class DiskProbe:
    """Probes of one store directory. `completed_at` is the start of the last one that completed, by the clock of `now`."""

    def __init__(
        self,
        disk: Disk,
        directories: tuple[str, str],
        *,
        interval_s: float,
        full_above: int,
        now: Callable[[], float],
    ) -> None:
        """Prepare the probes.

        Args:
            disk: The file system.
            directories: Of the store, and of its log, which may be on another disk.
            interval_s: From a probe to the next one.
            full_above: Percent of the disk in use, beyond which it is full.
            now: Clock of `completed_at`.
        """
        self.completed_at = now()
        self.is_full = False  # as of the last probe
        self._disk = disk
        self._directories = directories
        self._path = f"{directories[0]}/ariane/probe"
        self._full_above = full_above
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
        disk.fsync_dir(self._directories[1])
        self.is_full = max(used_percent(disk.usage(path)) for path in self._directories) > self._full_above
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
