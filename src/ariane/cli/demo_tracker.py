"""What the demo sent and what came back, step by step, and the verdict. Pure: times are given.

one order  = created, paid, shipped: three messages with the order's id as key, on one queue, each sent when the one
             before it was acknowledged
one entry  = (order, step), not a message: a send that is retried may be stored twice, a delivery may be repeated.
             Both are allowed (at least once); losing a step or turning two around is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STEPS = ("created", "paid", "shipped")

Entry = tuple[int, str]


class DemoTracker:
    """Entries of one demo. `groups` are the consumer groups, each of which has to see every entry."""

    def __init__(self, groups: Sequence[str]) -> None:
        self.groups = tuple(groups)
        self._began: dict[Entry, float] = {}
        self._sent: set[Entry] = set()
        self._waited_ms: dict[str, dict[Entry, float]] = {group: {} for group in groups}
        self.repeated = 0

    def on_send(self, order: int, step: str, now_s: float) -> None:
        """The application asked for this step to be sent; from here its way is measured, retries and all."""
        self._began.setdefault((order, step), now_s)

    def on_acknowledged(self, order: int, step: str) -> None:
        """A broker acknowledged it."""
        self._sent.add((order, step))

    def on_consumed(self, group: str, order: int, step: str, now_s: float) -> None:
        """A listener of `group` got it. Only the first time counts; the order of the first times is kept."""
        seen = self._waited_ms[group]
        entry = (order, step)
        if entry in seen:
            self.repeated += 1
        elif entry in self._began:  # else: of an earlier demo in the same home
            seen[entry] = (now_s - self._began[entry]) * 1000

    @property
    def sent_count(self) -> int:
        return len(self._sent)

    @property
    def consumed_count(self) -> int:
        return sum(map(len, self._waited_ms.values()))

    @property
    def lost(self) -> int:
        """Acknowledged entries that a group has not seen (yet), over all groups."""
        return sum(len(self._sent - seen.keys()) for seen in self._waited_ms.values())

    @property
    def out_of_order(self) -> int:
        """Entries seen for the first time after a later step of their order, over all groups."""
        return sum(map(count_out_of_order, self._waited_ms.values()))

    def produce_to_consume_ms(self) -> dict[str, float | None]:
        waits = sorted(wait for seen in self._waited_ms.values() for wait in seen.values())
        return {"p50": percentile(waits, 50), "p99": percentile(waits, 99)}


def count_out_of_order(entries: Iterable[Entry]) -> int:
    """How many of `entries`, in the order of arrival, came after a later step of the same order."""
    furthest: dict[int, int] = {}
    count = 0
    for order, step in entries:
        place = STEPS.index(step)
        if place < furthest.get(order, -1):
            count += 1
        else:
            furthest[order] = place
    return count


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Nearest rank, to a hundredth; None for no values: unknown is not zero."""
    if not ordered:
        return None
    return round(ordered[math.ceil(len(ordered) * percent / 100) - 1], 2)


@dataclass(frozen=True)
class DemoReport:
    """The last line of `up --demo --exit`. `journeys` None: not computed."""

    sent: int
    consumed: int
    journeys: int | None
    lost: int
    out_of_order: int
    produce_to_consume_ms: dict[str, float | None]


def build_report(ledger: DemoTracker, journeys: int | None) -> DemoReport:
    return DemoReport(
        ledger.sent_count,
        ledger.consumed_count,
        journeys,
        ledger.lost,
        ledger.out_of_order,
        ledger.produce_to_consume_ms(),
    )


def verify(made: DemoReport, orders: int, groups: int) -> list[str]:
    """What is not as it has to be after `orders` orders; empty: the demo succeeded."""
    sent = orders * len(STEPS)
    found = []
    for what, value, expected in (
        ("steps sent", made.sent, sent),
        ("steps consumed", made.consumed, sent * groups),
        ("journeys", made.journeys, sent * groups),
        ("steps lost", made.lost, 0),
        ("steps out of order", made.out_of_order, 0),
    ):
        if value != expected:
            found.append(f"{what}: {'unknown' if value is None else value}, expected {expected}")
    return found
