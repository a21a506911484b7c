"""Consume rates, with a fake clock."""

from __future__ import annotations

from ariane.client.consuming.consume_rates import ConsumeRates
from ariane.protocol.requests.callbacks import ConsumeStatus
from ariane.testing.clock import FakeClock


def test_rates_cover_a_minute_and_failures_an_hour() -> None:
    clock = FakeClock(is_auto=True)
    rates = ConsumeRates(clock.monotonic)
    assert rates.status("T") == ConsumeStatus()
    clock.advance_ms(30_000)
    rates.record_pull("T", 30, 0.010)
    rates.record_consume("T", 20, 0.004, ok=True)
    rates.record_consume("T", 10, 0.008, ok=False)
    rates.record_consume("other", 1, 1, ok=False)
    known = rates.status("T")
    assert (known.pull_tps, known.consume_ok_tps, known.consume_failed_msgs) == (1.0, 20 / 30, 10)
    assert (round(known.pull_rt), round(known.consume_rt), known.consume_failed_tps) == (10, 6, 10 / 30)
    clock.advance_ms(70_000)
    later = rates.status("T")
    assert (later.pull_tps, later.consume_rt, later.consume_failed_tps, later.consume_failed_msgs) == (0, 0, 0, 10)
    clock.advance_ms(3_600_000)
    assert rates.status("T").consume_failed_msgs == 0


def test_at_most_an_hour_is_retained() -> None:
    clock = FakeClock(is_auto=True)
    rates = ConsumeRates(clock.monotonic)
    for _ in range(1_000):
        clock.advance_ms(10_000)
        rates.record_consume("T", 1, 0, ok=False)
    assert rates.status("T").consume_failed_msgs == 360


def test_only_a_minute_is_retained_without_failures() -> None:
    clock = FakeClock(is_auto=True)
    rates = ConsumeRates(clock.monotonic)
    for _ in range(1_000):
        clock.advance_ms(10_000)
        rates.record_consume("T", 60, 0, ok=True)
    assert rates.status("T").consume_ok_tps == 7.0  # the buckets of 0 to 60 seconds ago
    assert len(rates._buckets["T"]) <= 8
