"""Slows down failed log-ins: per account and address, per address, per account, and per account and known device.

    failures within 15 minutes        then an attempt begins this long after the one before it
    5 of an account and an address    1, 2, 4, … 30 s     guessing a password
    20 of an address                  1, 2, 4, 5 s        one password for many accounts
    100 of an account                 1, 2, 4, 5 s        guessing from many addresses
    5 of a known device               1, 2, 4, … 30 s     instead of the others

No account is locked: the right password is accepted after the delay. An attempt that would wait for more than 30 s, or while 64
others wait, is refused. It counts from its begin, so that simultaneous attempts do not escape; success takes it back.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import NamedTuple

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.net.limits.connection_limits import network_of

WINDOW_SECONDS = 15 * 60.0
WAIT_MAX_S = 30.0  # half of the time for which nginx waits for a response
WAITING_MAX = 64  # attempts of all subjects together
ENTRIES_MAX = 10_000  # each of at most some hundred times


class TooManyAttempts(Exception):
    """An attempt was refused; it may begin after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class LoginLimit(NamedTuple):
    """How fast a subject (kind, name, address) may try within the window."""

    subject: tuple[str, str, str]
    free: int
    """Attempts without a delay."""
    delay_max_s: float


class _Attempts:
    """The attempts of a subject within the window."""

    def __init__(self) -> None:
        self.times_s: deque[float] = deque()
        self.next_s = 0.0  # the next one does not begin earlier

    def count(self, time_s: float, limit: LoginLimit) -> None:
        """Count an attempt that begins at a time."""
        self.times_s.append(time_s)
        if (excess := len(self.times_s) - limit.free) >= 0:
            self.next_s = time_s + min(2.0 ** min(excess, 10), limit.delay_max_s)

    def take_back(self, limit: LoginLimit) -> None:
        """Take the last attempt back."""
        if self.times_s:
            self.times_s.pop()
        if len(self.times_s) < limit.free:
            self.next_s = 0.0


class LoginLimiter:
    """Counts attempts to log in, in bounded memory, and delays them."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, entries_max: int = ENTRIES_MAX) -> None:
        self._clock = clock
        self._entries_max = entries_max
        # The subject with the oldest last attempt is first.
        self._attempts: OrderedDict[tuple[str, str, str], _Attempts] = OrderedDict()
        self._waiting = 0  # attempts that are delayed now

    async def admit(self, account: str, address: str, device: str = "") -> None:
        """Count an attempt, and return when it may begin.

        Args:
            account: Name of an account, which need not exist.
            device: Id of a device that has logged in to this account before; empty if it is not known.

        Raises:
            TooManyAttempts: it would wait too long, or too many attempts wait; it does not count.
        """
        now_s = self._clock.monotonic()
        limits = _limits(account, address, device)
        wait_s = max(0.0, *(self._next_s(limit.subject, now_s) - now_s for limit in limits))
        if wait_s > WAIT_MAX_S or (wait_s > 0 and self._waiting >= WAITING_MAX):
            raise TooManyAttempts(math.ceil(wait_s))
        for limit in limits:
            self._attempts.setdefault(limit.subject, _Attempts()).count(now_s + wait_s, limit)
            self._attempts.move_to_end(limit.subject)
        while len(self._attempts) > self._entries_max:
            self._attempts.popitem(last=False)
        if wait_s > 0:
            self._waiting += 1
            try:
                await self._clock.sleep(wait_s)
            finally:
                self._waiting -= 1

    def succeed(self, account: str, address: str, device: str = "") -> None:
        """Take the last attempt back, and forget the failures of this account from this address or device."""
        first, *others = _limits(account, address, device)
        self._attempts.pop(first.subject, None)
        for limit in others:
            if attempts := self._attempts.get(limit.subject):
                attempts.take_back(limit)
                if not attempts.times_s:
                    del self._attempts[limit.subject]

    def _next_s(self, subject: tuple[str, str, str], now_s: float) -> float:
        """Return when the next attempt of a subject may begin; forget those before the window."""
        attempts = self._attempts.get(subject)
        if attempts is None:
            return 0.0
        while attempts.times_s and attempts.times_s[0] <= now_s - WINDOW_SECONDS:
            attempts.times_s.popleft()
        return attempts.next_s


def _limits(account: str, address: str, device: str) -> tuple[LoginLimit, ...]:
    network, name = network_of(address), account[:64]
    if device:
        return (LoginLimit(("device", name, device), 5, 30.0),)
    return (
        LoginLimit(("pair", name, network), 5, 30.0),
        LoginLimit(("address", "", network), 20, 5.0),
        LoginLimit(("account", name, ""), 100, 5.0),
    )
