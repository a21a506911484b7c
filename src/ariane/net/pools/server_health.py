"""Which servers did not respond lately; shared by connection pools, which may be in different threads.

request without a response ─→ report_silence(addr) ─→ listeners: drop what is in flight to this server
response ─→ report_response(addr)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from ariane.clock import SYSTEM_CLOCK, Clock

Listener = Callable[[str], None]


class Silence(NamedTuple):
    """A server that does not respond.

    Attributes:
        since_ms: Time when that was first noticed.
        checked_s: Monotonic time of the last attempt.
        reason: What happened.
    """

    since_ms: int
    checked_s: float
    reason: str


class ServerHealth:
    """State of servers, by address. All methods may be called from any thread.

    Args:
        clock: Replaced by tests.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._silent: dict[str, Silence] = {}
        self._responded_s: dict[str, float] = {}  # monotonic time of the last response of each server
        self._listeners: list[Listener] = []

    def silence(self, addr: str) -> Silence | None:
        """Return why a server is not asked now; None if it may be."""
        return self._silent.get(addr)

    def report_silence(self, addr: str, reason: str) -> None:
        """Record that a server did not respond, and notify the listeners if that is new."""
        with self._lock:
            silence = self._silent.get(addr)
            since_ms = silence.since_ms if silence else self._clock.now_ms()
            self._silent[addr] = Silence(since_ms, self._clock.monotonic(), reason)
            listeners = [] if silence else list(self._listeners)
        for listener in listeners:
            listener(addr)

    def report_attempt(self, addr: str) -> None:
        """Record that a silent server is asked again, so that no second attempt begins at the same time."""
        with self._lock:
            silence = self._silent.get(addr)
            if silence is not None:
                self._silent[addr] = silence._replace(checked_s=self._clock.monotonic())

    def forget_silence(self, addr: str) -> None:
        """Forget that a server did not respond, long ago."""
        with self._lock:
            self._silent.pop(addr, None)

    def report_response(self, addr: str) -> None:
        """Record that a server responded, or that its machine refused the connection, which costs no time."""
        self._responded_s[addr] = self._clock.monotonic()
        if addr in self._silent:
            self.forget_silence(addr)

    def has_responded_since(self, addr: str, since_s: float) -> bool:
        """Return whether a server responded to any request after a monotonic time."""
        return self._responded_s.get(addr, float("-inf")) >= since_s

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` with the address of each server that stops responding, in the thread that notices it."""
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Call `listener` no more."""
        with self._lock:
            self._listeners.remove(listener)
