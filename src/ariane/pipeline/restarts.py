"""Retries after transient faults of Spark, and one-line errors for all others.

Under load Spark's JVM gives a new Python worker 10 seconds to connect, a limit that no setting changes; a worker may also be killed
when memory is short. Its work can be repeated: micro-batches and rebuilt tables are published once, by their number.
"""

from __future__ import annotations

import re
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ariane.errors import ArianeError
from ariane.model.backoff import Backoff

T = TypeVar("T")

BACKOFF = Backoff(first_s=5.0, longest_s=60.0)
MAX_FAILURES = 8  # in a row, about five minutes
# A worker that did not connect in time says that the machine is busy, and nothing about the work. Many in a row: Python is broken.
SLOW_START = "Python worker failed to connect back"
MAX_SLOW_STARTS = 30  # in a row, about half an hour
TRANSIENT = re.compile(
    rf"{SLOW_START}|Python worker exited unexpectedly \(crashed\)|"
    r"Python daemon failed to launch worker|Failed to open socket to Python daemon"
)
# Spark logs why the cluster removed the application; every error after that only says that the SparkContext is stopped.
REMOVED = re.compile(r"Application has been killed\. Reason: (.*)|(YARN application has exited unexpectedly .*)")
MAX_LINE_CHARS = 300

Report = Callable[[str], None]

# Retries of this process by task, for its metrics.
retries_by_task: Counter[str] = Counter()


def transient_fault(error: BaseException | None) -> str | None:
    """Return the cause of a transient error of Spark; None for any other error."""
    match = None if error is None else TRANSIENT.search(str(error))
    return f"Spark: {match[0]}" if match else None


class RestartBackoff:
    """Pauses between retries of one task, with exponential growth until a retry succeeds."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._failures = Counter[str]()  # in a row, by kind: slow starts, and all others

    def record_failure(self, fault: str) -> float:
        """Count a failure and return the seconds to wait before the next retry.

        Raises:
            ArianeError: the task failed MAX_FAILURES times in a row, or MAX_SLOW_STARTS times because of slow starts.
        """
        kind, limit = ("slow start", MAX_SLOW_STARTS) if SLOW_START in fault else ("failure", MAX_FAILURES)
        self._failures[kind] += 1
        retries_by_task[self._task] += 1
        if self._failures[kind] >= limit:
            raise ArianeError(f"{self._task} failed {self._failures[kind]} times in a row: {fault}")
        return BACKOFF.delay_s(self._failures[kind])

    def reset(self) -> None:
        self._failures.clear()


def retry_transient(task: str, work: Callable[[], T], stop: threading.Event, report: Report) -> T:
    """Call `work` until it ends without a transient fault and return its result; report each fault. Raise it if `stop` is set."""
    backoff = RestartBackoff(task)
    while True:
        try:
            return work()
        except Exception as error:
            fault = transient_fault(error)
            if fault is None:
                raise
            pause_s = backoff.record_failure(fault)
            report(retry_line(task, fault, pause_s))
            if stop.wait(pause_s):
                raise


def retry_line(task: str, fault: str, pause_s: float) -> str:
    """Return the line that reports a retried fault."""
    return f"{task} failed: {fault}; retrying in {pause_s:g} s"


@contextmanager
def single_line_errors(log: Path, stop: threading.Event) -> Iterator[None]:
    """Convert an error of Spark into a one-line ArianeError and append its traceback to `log`."""
    try:
        yield
    except ArianeError:
        raise
    except Exception as error:
        if not _is_of_spark(error):
            raise
        cause = removal_reason(log) or first_line(error)
        with log.open("a", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
        reason = "Spark ended while the jobs were stopping" if stop.is_set() else f"Spark failed: {cause}"
        raise ArianeError(f"{reason}; see {log} for the whole error") from error


def _is_of_spark(error: Exception) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if isinstance(error, BrokenPipeError):
        # Standard output may be a pipe as well (`ariane pipeline run … | head`).
        frames = traceback.walk_tb(error.__traceback__)
        return any(frame.f_globals.get("__name__", "").startswith("py4j") for frame, _ in frames)
    # Sockets to a JVM that has exited raise errors of the operating system.
    return isinstance(error, PySparkException | Py4JError | ConnectionError)


def removal_reason(log: Path) -> str | None:
    """Return why the cluster removed the application, from Spark's log; None if it did not."""
    if not log.exists():
        return None
    with log.open(encoding="utf-8", errors="replace") as lines:  # a log of weeks may not fit into the memory
        match = next(filter(None, map(REMOVED.search, lines)), None)
    return _short(match[1] or match[2]) if match else None


def first_line(error: Exception) -> str:
    """Return the line of an error that names the cause, without Spark's line about the failed call."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith("An error occurred while calling")]
    return _short(causes[0] if causes else type(error).__name__)


def _short(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}…"
