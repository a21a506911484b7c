"""Which brokers a producer avoids, and for how long."""

from __future__ import annotations

import pytest

from ariane.client.sending.broker_latencies import BrokerLatencies
from ariane.model.message import MessageQueue
from ariane.testing.clock import FakeClock

QUEUES = [MessageQueue("T", broker, number) for broker in "abc" for number in range(2)]


def selected(latencies: BrokerLatencies) -> str:
    return "".join(latencies.select(QUEUES, turn).broker for turn in range(6))


# reference client-behaviour 5.9
@pytest.mark.parametrize(
    ("seconds", "has_failed", "avoided_s"),
    [(0.54, False, 0), (0.55, False, 30), (1.0, False, 60), (2.5, False, 120), (3.0, False, 180), (15, False, 600),
     (0.001, True, 600)],
)  # fmt: skip
def test_a_slow_or_failed_broker_is_avoided_for_a_while(seconds: float, has_failed: bool, avoided_s: int) -> None:
    clock = FakeClock()
    latencies = BrokerLatencies(clock.monotonic)
    latencies.record("a", seconds, has_failed=has_failed)
    assert ("a" in selected(latencies)) == (avoided_s == 0)
    clock.advance(max(0, avoided_s - 1))
    assert ("a" in selected(latencies)) == (avoided_s == 0)
    clock.advance(1)
    assert selected(latencies) == "aabbcc"


def test_the_other_brokers_take_their_turns() -> None:
    latencies = BrokerLatencies(FakeClock().monotonic)
    latencies.record("a", 1, has_failed=False)
    assert selected(latencies) == "bbbbcc"


def test_if_all_are_avoided_the_faster_half_is_used() -> None:
    latencies = BrokerLatencies(FakeClock().monotonic)
    for broker, seconds in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        latencies.record(broker, seconds, has_failed=False)
    assert set(selected(latencies)) == {"b"}
