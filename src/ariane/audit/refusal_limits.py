"""Limits of records that peers without permission cause: repeated ones are counted, and the counts are recorded. Pure.

Within a minute each sender (address, account, code) has PER_SENDER records, each address PER_ADDRESS, and all together IN_ALL. The
narrowest limit that is exhausted counts the request. At the end of the minute each count becomes one record.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

PER_SENDER = 10
PER_ADDRESS = 60
IN_ALL = 600
WINDOW_S = 60.0


class Sender(NamedTuple):
    """Who sent requests, and which; empty texts stand for all."""

    ip: str = ""
    account: str = ""
    request: str = ""
    result: str = ""


ALL = Sender()


class RefusalLimits:
    """Decides which requests are recorded by themselves."""

    def __init__(self) -> None:
        self._started_s = float("-inf")  # of this window
        self._records: Counter[Sender] = Counter()  # records of this window; bounded by IN_ALL
        self._suppressed: Counter[Sender] = Counter()  # requests without a record

    def permits(self, sender: Sender, now_s: float) -> bool:
        """Return whether a request is recorded; otherwise it is counted. A window that is over must be `drained` before."""
        address = Sender(sender.ip)
        for scope, limit in ((sender, PER_SENDER), (address, PER_ADDRESS), (ALL, IN_ALL)):
            if self._records[scope] >= limit:
                self._suppressed[scope] += 1
                return False
        if not self._records:
            self._started_s = now_s
        self._records.update((sender, address, ALL))
        return True

    def is_over(self, now_s: float) -> bool:
        """Return whether the window is over."""
        return bool(self._records) and now_s - self._started_s >= WINDOW_S

    def drain(self) -> list[tuple[Sender, int]]:
        """Return the counts of this window, and begin the next one."""
        counts = list(self._suppressed.items())
        self._records.clear()
        self._suppressed.clear()
        return counts
