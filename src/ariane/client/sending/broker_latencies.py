"""Latency of brokers, so that producers avoid slow and failing ones for a while. [MQFaultStrategy, LatencyFaultTolerance]

each attempt ─→ record(broker, seconds, failed) ─→ avoided until …      (reference client-behaviour 5.9)
select: the next queue whose broker is not avoided; if all are, one of the brokers that responded fastest
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ariane.model.message import MessageQueue

# Latency from which a broker is avoided, and for how long; both in seconds.
AVOIDED_S = ((15.0, 600.0), (3.0, 180.0), (2.0, 120.0), (1.0, 60.0), (0.55, 30.0))
FAILED_S = 600.0


class BrokerLatencies:
    """The last latency of each broker of one producer."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # Broker -> seconds of its last attempt, and when it is used again.
        self._last: dict[str, tuple[float, float]] = {}

    def record(self, broker: str, seconds: float, *, has_failed: bool) -> None:
        """Record an attempt; a failed one counts as very slow."""
        avoided_s = FAILED_S if has_failed else next((avoid for limit, avoid in AVOIDED_S if seconds >= limit), 0.0)
        self._last[broker] = (seconds, self._monotonic() + avoided_s)

    def select(self, queues: Sequence[MessageQueue], turn: int) -> MessageQueue:
        """Return the queue of this turn, or the next of a broker that is not avoided."""
        now, count = self._monotonic(), len(queues)
        for step in range(count):
            queue = queues[(turn + step) % count]
            if now >= self._last.get(queue.broker, (0.0, 0.0))[1]:
                return queue
        # All are avoided: take turns among the faster half, so that the load does not fall on one.
        brokers = sorted({queue.broker for queue in queues}, key=lambda broker: self._last[broker])
        fastest = brokers[turn % max(1, len(brokers) // 2)]
        fastest_queues = [queue for queue in queues if queue.broker == fastest]
        return fastest_queues[turn % len(fastest_queues)]
