"""Tracks what the demo sent and consumed, and verifies the outcome. Pure: times are arguments.

order   created, paid, shipped: three messages with the order's id as key, in one queue, each sent after the previous
        one was acknowledged
entry   (order, step), not a message: a retried send may be stored twice, a delivery may be repeated. Both are
        allowed (at least once); a lost step or two steps out of order are faults.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

STEPS = ("created", "paid", "shipped")

Entry = tuple[int, str]


class DemoTracker:
    """The entries of one demo. Each consumer group of `groups` must see every entry."""

    def __init__(self, groups: Sequence[str]) -> None:
        self.groups = tuple(groups)
        self._send_times_s: dict[Entry, float] = {}  # of the first attempt, by the monotonic clock
        self._sent: set[Entry] = set()  # acknowledged
        # By group; also records which entries a group has seen.
        self._latencies_ms: dict[str, dict[Entry, float]] = {group: {} for group in groups}
        self.repeated = 0  # deliveries of an entry that its group had seen

    def on_send(self, order: int, step: str, now_s: float) -> None:
        """Record that a step is about to be sent. Its latency is measured from the first attempt."""
        self._send_times_s.setdefault((order, step), now_s)

    def on_acknowledged(self, order: int, step: str) -> None:
        """Record that a broker acknowledged a step."""
        self._sent.add((order, step))

    def on_consumed(self, group: str, order: int, step: str, now_s: float) -> None:
        """Record that a listener of `group` received a step. Repetitions are only counted."""
        seen = self._latencies_ms[group]
        entry = (order, step)
        if entry in seen:
            self.repeated += 1
        elif entry in self._send_times_s:  # otherwise it is of an earlier demo in the same home
            seen[entry] = (now_s - self._send_times_s[entry]) * 1000

    @property
    def sent_count(self) -> int:
        return len(self._sent)

    @property
    def consumed_count(self) -> int:
        return sum(map(len, self._latencies_ms.values()))

    def acknowledged(self) -> frozenset[Entry]:
        """Return the entries that are acknowledged now."""
        return frozenset(self._sent)

    def missing(self, entries: Set[Entry]) -> int:
        """Return how many of `entries` a group has not seen yet, summed over the groups."""
        return sum(len(entries - seen.keys()) for seen in self._latencies_ms.values())

    @property
    def lost(self) -> int:
        """Acknowledged entries that a group has not seen yet, summed over the groups."""
        return self.missing(self._sent)

    @property
    def out_of_order(self) -> int:
        """Entries first seen after a later step of their order, summed over the groups."""
        return sum(map(count_out_of_order, self._latencies_ms.values()))

    def produce_to_consume_ms(self) -> dict[str, float | None]:
        """Return percentiles of the time from send to consumption."""
        latencies = sorted(latency for seen in self._latencies_ms.values() for latency in seen.values())
        return {"p50": percentile(latencies, 50), "p99": percentile(latencies, 99)}


def count_out_of_order(entries: Iterable[Entry]) -> int:
    """Return how many entries arrived after a later step of the same order."""
    latest: dict[int, int] = {}  # order -> highest step seen
    count = 0
    for order, step in entries:
        index = STEPS.index(step)
        if index < latest.get(order, -1):
            count += 1
        else:
            latest[order] = index
    return count


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Return the nearest-rank percentile of sorted values, rounded to 0.01; None without values."""
    if not ordered:
        return None
    return round(ordered[math.ceil(len(ordered) * percent / 100) - 1], 2)


@dataclass(frozen=True)
class DemoReport:
    """The last output line of `up --demo --exit`. `journeys` is None if Spark did not run."""

    sent: int  # acknowledged steps; an order has several
    consumed: int  # steps that listeners received, once per consumer group; repetitions are not counted
    journeys: int | None
    lost: int  # acknowledged steps that a group did not receive, summed over the groups
    out_of_order: int  # steps that a group received after a later step of their order
    # p50 and p99, from the first attempt to send; one process measures both ends with one clock.
    produce_to_consume_ms: dict[str, float | None]


def build_report(tracker: DemoTracker, journeys: int | None) -> DemoReport:
    return DemoReport(
        tracker.sent_count,
        tracker.consumed_count,
        journeys,
        tracker.lost,
        tracker.out_of_order,
        tracker.produce_to_consume_ms(),
    )


def verify(report: DemoReport, orders: int, groups: int) -> list[str]:
    """Return the faults of a demo of `orders` orders; empty if it succeeded."""
    sent = orders * len(STEPS)
    faults = []
    for name, value, expected in (
        ("steps sent", report.sent, sent),
        ("steps consumed", report.consumed, sent * groups),
        ("journeys", report.journeys, sent * groups),
        ("steps lost", report.lost, 0),
        ("steps out of order", report.out_of_order, 0),
    ):
        if value != expected:
            faults.append(f"{name}: {'unknown' if value is None else value}, expected {expected}")
    return faults
