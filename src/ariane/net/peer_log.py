"""Rate-limited log lines about peers, so that no peer can fill the disk.

Each address has a budget of lines in a window of time. The line that exhausts it says so; the first line of the next window
reports how many were suppressed. Lines that no single address causes (such as a setting of a consumer group) use a name instead.

    PeerLog(log)                                      10 lines a minute about an address: each of them may be another fault
    PeerLog(log, lines=1, window_s=REPEAT_S)          the same fault again and again: once, then its count every 10 minutes
"""

from __future__ import annotations

import logging
from typing import Any

LINES_PER_ADDRESS = 10  # in a window
LINES_IN_ALL = 200  # in a window, for all addresses together
WINDOW_S = 60.0
REPEAT_S = 600.0  # window of a fault that is repeated until it is corrected
ADDRESSES_MAX = 4096


class _LogWindow:
    """Lines in the current window of one address, or of all."""

    __slots__ = ("lines", "started_at", "suppressed")

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.lines = 0
        self.suppressed = 0

    def is_over(self, now: float, window_s: float) -> bool:
        return not 0 <= now - self.started_at < window_s  # also when the clock was set back


class PeerLog:
    """Writes lines to `log` within the budget of the address that caused them. All times come from one monotonic clock."""

    def __init__(self, log: logging.Logger, *, lines: int = LINES_PER_ADDRESS, window_s: float = WINDOW_S) -> None:
        self._log = log
        self._lines = lines
        self._window_s = window_s
        self._windows: dict[str, _LogWindow] = {}
        self._all = _LogWindow(float("-inf"))

    def warning(self, ip: str, now: float, text: str, *args: object) -> None:
        self.line(logging.WARNING, ip, now, text, *args)

    def error(self, ip: str, now: float, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        self.line(logging.ERROR, ip, now, text, *args, exc_info=exc_info)

    def line(self, level: int, ip: str, now: float, text: str, *args: object, **kwargs: Any) -> None:
        """Log a line caused by the peer at `ip`, unless its budget or the total budget is exhausted."""
        window = self._window(level, ip, now)
        if self._all.is_over(now, self._window_s):
            self._all = _LogWindow(now)
        if window.lines >= self._lines or self._all.lines >= LINES_IN_ALL:
            window.suppressed += 1
            return
        window.lines += 1
        self._all.lines += 1
        is_of_address = window.lines == self._lines
        if is_of_address or self._all.lines == LINES_IN_ALL:
            text += f" (further lines about {'%s' if is_of_address else 'any peer'} are suppressed for {self._window_s:.0f} s)"
            args = (*args, ip) if is_of_address else args
        self._log.log(level, text, *args, **kwargs)

    def _window(self, level: int, ip: str, now: float) -> _LogWindow:
        window = self._windows.get(ip)
        if window is None or window.is_over(now, self._window_s):
            suppressed = 0 if window is None else window.suppressed
            self._windows.pop(ip, None)  # re-inserted at the end: the first entry is the oldest
            self._windows[ip] = window = _LogWindow(now)
            if len(self._windows) > ADDRESSES_MAX:
                del self._windows[next(iter(self._windows))]
            if suppressed:
                self._log.log(level, "%d log lines about %s were suppressed in the last minutes", suppressed, ip)
        return window
