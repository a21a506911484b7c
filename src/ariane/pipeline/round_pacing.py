"""Paces rounds and micro-batches: a round costs many CPU-seconds, however few rows it adds, and a backlog is committed in parts.

runner ─ RoundPacer.advance ─→ HOME/status/.round, a number ─→ RoundGate, in the process that plans the micro-batches of a source

A source reads when MIN_BATCH_MESSAGES are pending, or when the number has changed. The time between two changes is one interval
while nothing arrives, so a late message is read at once. It doubles with each change whose rounds computed tables, until these take
a tenth of the time, and at most to MAX_INTERVALS.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

MIN_BATCH_MESSAGES = 5_000
MAX_INTERVALS = 40
MAX_SHARE = 0.1  # of the time for rounds of few messages
POLL_S = 0.2  # between checks for appended rows
MAX_WAIT_S = 400.0  # `ariane.reports.tables.pipeline_status.PENDING_MS` is longer
BATCH_S = 20.0  # rounds compete with the sources for the cores, and a backlog shall be committed every 30 s
# Share of a source's limits. Less takes hardly less time, as a round follows each micro-batch.
MIN_LIMITS = 1 / 8
MAX_GROWTH = 4.0  # from a micro-batch to the next one: the first ones are slow


def round_file(home: Path) -> Path:
    """Return the path of the number. Status files of sources do not begin with a dot."""
    return home / "status" / ".round"


def max_wait_s(interval_s: float) -> float:
    """Return the longest time that a few new messages wait for a micro-batch."""
    return max(interval_s, min(interval_s * MAX_INTERVALS, MAX_WAIT_S))


def await_round(
    stop: threading.Event,
    rest_s: float,
    interval_s: float,
    has_appended: Callable[[], bool],
    monotonic: Callable[[], float] = time.monotonic,
) -> bool:
    """Wait `rest_s`, and then until rows were appended, but no longer than one interval altogether; return False to stop."""
    end_s = monotonic() + interval_s
    while not stop.wait(rest_s):
        rest_s = min(POLL_S, end_s - monotonic())
        if rest_s <= 0 or has_appended():
            return True
    return False


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
        self._wait_s = interval_s  # from the last change to the next one
        self._max_wait_s = max_wait_s(interval_s)  # bound of `_wait_s`
        self._due_s = monotonic() + interval_s  # time of the next change
        self._interval_s = interval_s  # wait after a change without rounds that computed tables
        self._computed_s = 0.0  # duration of these rounds since the last change

    def record_round(self, seconds: float) -> None:
        """Record a round that computed tables, and how long it took."""
        self._computed_s += seconds

    def advance(self) -> None:
        """Change the number, if it is time."""
        now_s = self._monotonic()
        if now_s < self._due_s:
            return
        self._number += 1
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(str(self._number))
        temporary.replace(self._path)
        longest_s = min(self._computed_s / MAX_SHARE, self._max_wait_s)
        self._wait_s = max(self._interval_s, min(self._wait_s * 2, longest_s))
        self._due_s, self._computed_s = now_s + self._wait_s, 0.0


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


class BatchSizer:
    """Adapts the share of its limits that a source reads at once, so that a micro-batch of a backlog takes about BATCH_S.

    The first one is small, because the JVM has compiled nothing yet. So is that of a restarted query.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._share = MIN_LIMITS
        self._limited_s: float | None = None  # time when the last micro-batch was planned; None: it was not limited

    def share(self) -> float:
        """Return the share of the limits for a micro-batch that begins now."""
        if self._limited_s is not None:
            # Spark plans a micro-batch of a backlog as soon as the previous one has ended.
            seconds = max(self._monotonic() - self._limited_s, BATCH_S / MAX_GROWTH)
            self._share = min(1.0, max(MIN_LIMITS, self._share * BATCH_S / seconds))
        return self._share

    def record_plan(self, *, is_limited: bool) -> None:
        """Record that a micro-batch begins, and whether more messages are pending than it reads."""
        self._limited_s = self._monotonic() if is_limited else None
