"""Kills of masters in the demo of failover: when they happen, and for how long no master served. Pure: times are arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ariane.cli.up.demo_tracker import DemoTracker


class KillSchedule(NamedTuple):
    """When masters are killed."""

    interval_s: float
    """Between two kills; longer, if a broker set is not complete by then."""
    kills: int | None
    """After so many kills the demo exits; None: it runs until it is stopped."""


class AcknowledgementPauses:
    """The longest time without an acknowledged send, by broker name, since the last `reset`."""

    def __init__(self) -> None:
        self._last_s: dict[str, float] = {}
        self._longest_s: dict[str, float] = {}

    def on_acknowledged(self, broker: str, now_s: float) -> None:
        self._longest_s[broker] = max(self.longest_s(broker), now_s - self._last_s.get(broker, now_s))
        self._last_s[broker] = now_s

    def reset(self, broker: str, now_s: float) -> None:
        """Measure from now on: a kill follows."""
        self._longest_s[broker] = 0.0
        self._last_s[broker] = now_s

    def last_s(self, broker: str) -> float:
        return self._last_s.get(broker, 0.0)

    def longest_s(self, broker: str) -> float:
        return self._longest_s.get(broker, 0.0)


@dataclass(frozen=True)
class FailoverReport:
    """The last output line of `up --demo --failover --exit`."""

    kills: int
    acknowledged: int  # steps; an order has several
    lost: int  # acknowledged steps that a group did not receive, summed over the groups
    duplicates: int  # repeated deliveries of a step to a group that had it
    out_of_order: int  # steps that a group received after a later step of their order
    without_master_s: list[float]  # longest time without an acknowledgement around each kill


def build_failover_report(tracker: DemoTracker, pauses_s: Sequence[float]) -> FailoverReport:
    return FailoverReport(
        kills=len(pauses_s),
        acknowledged=tracker.sent_count,
        lost=tracker.lost,
        duplicates=tracker.repeated,
        out_of_order=tracker.out_of_order,
        without_master_s=[round(pause_s, 1) for pause_s in pauses_s],
    )
