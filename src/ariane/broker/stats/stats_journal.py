"""stats.log and its older generations: stats.1.log.gz is the newest of them. [logback_broker.xml, RocketmqStatsAppender]

Blocks; called from a worker thread. A generation is compressed beside its place and then moved there, so that a stop in
the middle leaves the log as it was.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterable
from pathlib import Path

FILE_SIZE_MAX = 100 * 1024 * 1024
GENERATIONS = 5


class StatsLogFile:
    """Lines go to the end of `directory`/stats.log."""

    def __init__(self, directory: Path, *, size_max: int = FILE_SIZE_MAX, generations: int = GENERATIONS) -> None:
        self.path = directory / "stats.log"
        self._size_max = size_max
        self._generations = generations

    def write(self, lines: Iterable[str]) -> None:
        """Append lines; the file begins anew before it would grow beyond its size."""
        data = "".join(lines).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and (size := self.path.stat().st_size) and size + len(data) > self._size_max:
            self._rotate()
        with self.path.open("ab") as file:
            file.write(data)

    def _rotate(self) -> None:
        fresh = self.path.with_name("stats.log.gz.tmp")
        with self.path.open("rb") as source, gzip.open(fresh, "wb") as target:
            shutil.copyfileobj(source, target)
        for number in range(self._generations, 1, -1):
            older = self._generation(number - 1)
            if older.exists():
                older.replace(self._generation(number))
        fresh.replace(self._generation(1))
        self.path.unlink()

    def _generation(self, number: int) -> Path:
        return self.path.with_name(f"stats.{number}.log.gz")
