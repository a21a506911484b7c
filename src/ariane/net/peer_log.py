"""Log lines that peers cause, at most a few a minute for each address: nobody may fill a disk with them.

The line that exhausts an address's budget says so; the first line of its next minute names how many were suppressed. What is
not caused by one address, such as a setting of a consumer group, has a budget by its name.
"""

from __future__ import annotations

import logging
from typing import Any

LINES_PER_ADDRESS = 10  # of one address in a window
LINES_IN_ALL = 200  # of all addresses in a window
WINDOW_S = 60.0
ADDRESSES_MAX = 4096


class _LogWindow:
    """The lines of one address, or of all."""

    __slots__ = ("began", "lines", "suppressed")

    def __init__(self, began: float) -> None:
        self.began = began
        self.lines = 0
        self.suppressed = 0

    def is_over(self, now: float) -> bool:
        return not 0 <= now - self.began < WINDOW_S  # a clock that was set back begins another window


class PeerLog:
    """Writes lines to `log` within the budget of the address that caused them. Times are those of one monotonic clock."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._windows: dict[str, _LogWindow] = {}
        self._all = _LogWindow(float("-inf"))

    def warning(self, ip: str, now: float, text: str, *args: object) -> None:
        self.line(logging.WARNING, ip, now, text, *args)

    def error(self, ip: str, now: float, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        self.line(logging.ERROR, ip, now, text, *args, exc_info=exc_info)

    def line(self, level: int, ip: str, now: float, text: str, *args: object, **kwargs: Any) -> None:
        """Write a line that the peer at `ip` caused, unless its budget or that of all is exhausted."""
        window = self._window(ip, now)
        if self._all.is_over(now):
            self._all = _LogWindow(now)
        if window.lines >= LINES_PER_ADDRESS or self._all.lines >= LINES_IN_ALL:
            window.suppressed += 1
            return
        window.lines += 1
        self._all.lines += 1
        is_of_address = window.lines == LINES_PER_ADDRESS
        if is_of_address or self._all.lines == LINES_IN_ALL:
            text += f" (further lines about {'%s' if is_of_address else 'any peer'} are suppressed for a minute)"
            args = (*args, ip) if is_of_address else args
        self._log.log(level, text, *args, **kwargs)

    def _window(self, ip: str, now: float) -> _LogWindow:
        window = self._windows.get(ip)
        if window is None or window.is_over(now):
            suppressed = 0 if window is None else window.suppressed
            self._windows.pop(ip, None)  # it goes behind the others: the first is the oldest
            self._windows[ip] = window = _LogWindow(now)
            if len(self._windows) > ADDRESSES_MAX:
                del self._windows[next(iter(self._windows))]
            if suppressed:
                self._log.warning("%d log lines about %s were suppressed in the last minutes", suppressed, ip)
        return window
