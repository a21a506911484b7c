"""Limits of failed log-ins: per account and address, per address, and per account.

    5 failures of one account from one address      stops guessing a password, and does not lock others out of the account
    20 failures from one address                    stops trying one password with many accounts
    100 failures of one account                     stops guessing from many addresses

All within 15 minutes. An attempt counts from its begin, so that simultaneous attempts do not escape; success takes it back.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict, deque
from typing import NamedTuple

from ariane.clock import SYSTEM_CLOCK, Clock

WINDOW_SECONDS = 15 * 60.0
ENTRIES_MAX = 10_000  # each of at most 100 times


class LoginLimit(NamedTuple):
    """How many attempts a subject (kind, name, address) may make within the window."""

    subject: tuple[str, str, str]
    attempts: int


class LoginLimiter:
    """Counts attempts to log in, in bounded memory."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, entries_max: int = ENTRIES_MAX) -> None:
        self._clock = clock
        self._entries_max = entries_max
        # Times of attempts; the subject with the oldest last attempt is first.
        self._attempts: OrderedDict[tuple[str, str, str], deque[float]] = OrderedDict()

    def begin(self, account: str, address: str) -> int:
        """Count an attempt and return 0; or return the seconds to wait, without counting, if a limit is reached."""
        now_s = self._clock.monotonic()
        waits = [self._wait(limit, now_s) for limit in _limits(account, address)]
        if any(waits):
            return math.ceil(max(waits))
        for limit in _limits(account, address):
            self._attempts.setdefault(limit.subject, deque()).append(now_s)
            self._attempts.move_to_end(limit.subject)
        while len(self._attempts) > self._entries_max:
            self._attempts.popitem(last=False)
        return 0

    def succeed(self, account: str, address: str) -> None:
        """Take the last attempt back, and forget the failures of this account from this address."""
        pair, *others = _limits(account, address)
        self._attempts.pop(pair.subject, None)
        for limit in others:
            times = self._attempts.get(limit.subject)
            if times:
                times.pop()
            if not times:
                self._attempts.pop(limit.subject, None)

    def _wait(self, limit: LoginLimit, now_s: float) -> float:
        times = self._attempts.get(limit.subject)
        if times is None:
            return 0.0
        while times and times[0] <= now_s - WINDOW_SECONDS:
            times.popleft()
        if len(times) < limit.attempts:
            return 0.0
        return times[-limit.attempts] + WINDOW_SECONDS - now_s


def _limits(account: str, address: str) -> tuple[LoginLimit, LoginLimit, LoginLimit]:
    network, name = _network(address), account[:64]
    return (
        LoginLimit(("pair", name, network), 5),
        LoginLimit(("address", "", network), 20),
        LoginLimit(("account", name, ""), 100),
    )


def _network(address: str) -> str:
    """Return the address, for IPv6 its /64: one subscriber has all its addresses."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, 64), strict=False).network_address)
    return str(ip)
