"""Removes old files from the directory `cut` of a store: cutReservedTime and cutFilesMax. Without them all files stay.

    round 1   list each file that is due in the log of the broker
    round 2   remove the files that round 1 listed, and list the next ones

Only files with the names of `store.recovery.log_cut` are removed. Other files stay.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from ariane.broker.config.broker_config import BrokerConfig
from ariane.store.disk.files import Disk
from ariane.store.recovery.log_cut import CUT_DIRECTORY

log = logging.getLogger("ariane.broker.failover.cut_retention")

ROUND_S = 3600.0
HOUR_MS = 3_600_000
_NAME = re.compile(r"\d{20}-\d+")


class CutRetention:
    """Removes files of one store. Call `run` every ROUND_S."""

    def __init__(self, config: BrokerConfig, disk: Disk, now_ms: Callable[[], int]) -> None:
        self._reserved_ms = config.cut_reserved_time * HOUR_MS  # 0: files of any age stay
        self._files_max = config.cut_files_max  # 0: any number stays
        self._disk = disk
        self._directory = f"{config.store_path_root_dir}/{CUT_DIRECTORY}"
        self._now_ms = now_ms
        self._listed: frozenset[str] = frozenset()  # of the last round

    async def run(self) -> None:
        """Remove the due files that the last round listed, then list the others.

        Raises:
            OSError: the directory cannot be read, or a file not be removed.
        """
        due = self._due()
        for path in [path for path in due if path in self._listed]:
            self._disk.remove(path)
            log.info("Removed %s", path)
        remaining = [path for path in due if path not in self._listed]
        for path in remaining:
            log.warning("%s is removed in an hour: cutReservedTime or cutFilesMax", path, extra={"notice": True})
        self._listed = frozenset(remaining)

    def _due(self) -> list[str]:
        if not self._reserved_ms and not self._files_max:
            return []
        try:
            names = self._disk.listdir(self._directory)
        except FileNotFoundError:
            return []
        paths = [f"{self._directory}/{name}" for name in names if _NAME.fullmatch(name)]
        newest = sorted(paths, key=lambda path: (self._disk.modified_ms(path) or 0, path), reverse=True)
        oldest_ms = self._now_ms() - self._reserved_ms if self._reserved_ms else 0
        return [
            path
            for number, path in enumerate(newest)
            if (self._disk.modified_ms(path) or 0) < oldest_ms or (self._files_max and number >= self._files_max)
        ]
