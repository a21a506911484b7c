"""Slows rounds down while few messages arrive: a round costs many CPU-seconds, however few rows it adds.

runner ─ RoundPacer.advance ─→ HOME/status/.round, a number ─→ RoundGate, in the process that plans the micro-batches of a source

A source reads when MIN_BATCH_MESSAGES are pending, or when the number has changed. The time between two changes doubles from one
interval to MAX_INTERVALS, so that a started pipeline shows its first results soon.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

MIN_BATCH_MESSAGES = 5_000
MAX_INTERVALS = 40
MAX_WAIT_S = 400.0  # `ariane.reports.tables.pipeline_status.PENDING_MS` is longer


def round_file(home: Path) -> Path:
    """Return the path of the number. Status files of sources do not begin with a dot."""
    return home / "status" / ".round"


def max_wait_s(interval_s: float) -> float:
    """Return the longest time that a few new messages wait for a micro-batch."""
    return max(interval_s, min(interval_s * MAX_INTERVALS, MAX_WAIT_S))


class RoundPacer:
    """Lets the sources read from time to time.

    Args:
        path: File of the number; its directory is created.
        interval_s: Interval of the rounds; the first time between two changes.
        monotonic: Clock in seconds; replaced in tests.
    """

    def __init__(self, path: Path, interval_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path  # file of the number
        self._monotonic = monotonic
        self._number = 0  # of changes since the start
        self._wait_s = interval_s  # from the next change to the one after it
        self._max_wait_s = max_wait_s(interval_s)  # bound of `_wait_s`
        self._due_s = monotonic() + interval_s  # time of the next change

    def advance(self) -> None:
        """Change the number, if it is time."""
        now_s = self._monotonic()
        if now_s < self._due_s:
            return
        self._number += 1
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(str(self._number))
        temporary.replace(self._path)
        self._due_s = now_s + self._wait_s
        self._wait_s = min(self._wait_s * 2, self._max_wait_s)


class RoundGate:
    """Notices changes of the number."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: str | None = None

    def has_advanced(self) -> bool:
        """Return whether the number has changed since the last call."""
        number = self._path.read_text() if self._path.exists() else None
        has_advanced, self._seen = number != self._seen, number
        return has_advanced
