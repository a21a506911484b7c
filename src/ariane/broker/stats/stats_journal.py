"""stats.log and its older generations; stats.1.log.gz is the newest. [logback_broker.xml, RocketmqStatsAppender]

All calls block; a worker thread makes them. A generation is compressed into a temporary file and then renamed, so that a stop in
between leaves the log unchanged.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterable
from pathlib import Path

FILE_SIZE_MAX = 100 * 1024 * 1024
GENERATIONS = 5


class StatsLogFile:
    """Appends lines to `directory`/stats.log."""

    def __init__(self, directory: Path, *, size_max: int = FILE_SIZE_MAX, generations: int = GENERATIONS) -> None:
        self.path = directory / "stats.log"
        self._size_max = size_max
        self._generations = generations

    def write(self, lines: Iterable[str]) -> None:
        """Append lines; rotate the file before it exceeds its maximum size."""
        data = "".join(lines).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and (size := self.path.stat().st_size) and size + len(data) > self._size_max:
            self._rotate()
        with self.path.open("ab") as file:
            file.write(data)

    def _rotate(self) -> None:
        compressed = self.path.with_name("stats.log.gz.tmp")
        with self.path.open("rb") as source, gzip.open(compressed, "wb") as target:
            shutil.copyfileobj(source, target)
        # From the oldest to the newest, so that no generation is overwritten before it was renamed.
        for number in range(self._generations, 1, -1):
            older = self._generation(number - 1)
            if older.exists():
                older.replace(self._generation(number))
        compressed.replace(self._generation(1))
        self.path.unlink()

    def _generation(self, number: int) -> Path:
        return self.path.with_name(f"stats.{number}.log.gz")
