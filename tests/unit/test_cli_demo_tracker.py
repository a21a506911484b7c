"""The demo's verdict: duplicates are allowed, lost or reordered steps are not."""

from __future__ import annotations

import dataclasses

import pytest

from ariane.cli.up.demo_tracker import (
    STEPS,
    DemoReport,
    DemoTracker,
    build_report,
    count_out_of_order,
    percentile,
    verify,
)

GROUPS = ("billing", "shipping")


def played(orders: int) -> DemoTracker:
    ledger = DemoTracker(GROUPS)
    for order in range(orders):
        for step in STEPS:
            ledger.on_send(order, step, 1.0)
            ledger.on_acknowledged(order, step)
            for group in GROUPS:
                ledger.on_consumed(group, order, step, 1.005)
    return ledger


def test_every_step_once_in_both_groups_is_a_success():
    report = build_report(played(10), journeys=60)
    assert report == DemoReport(30, 60, 60, 0, 0, {"p50": 5.0, "p99": 5.0})
    assert verify(report, orders=10, groups=2) == []


def test_duplicate_sends_and_deliveries_count_once():
    ledger = played(1)
    ledger.on_send(0, "paid", 9.0)
    ledger.on_acknowledged(0, "paid")
    ledger.on_consumed("billing", 0, "paid", 10.0)
    assert (ledger.sent_count, ledger.consumed_count, ledger.repeated) == (3, 6, 1)
    assert ledger.out_of_order == 0, "a repeated early step after a late one is a repetition, not disorder"
    assert ledger.produce_to_consume_ms() == {"p50": 5.0, "p99": 5.0}


def test_an_acknowledged_step_missing_in_one_group_counts_as_lost_once():
    ledger = played(1)
    ledger.on_send(1, "created", 2.0)
    ledger.on_acknowledged(1, "created")
    ledger.on_consumed("billing", 1, "created", 2.1)
    assert ledger.lost == 1


def test_a_step_that_was_never_acknowledged_is_missing_but_not_lost():
    ledger = played(1)
    ledger.on_send(1, "created", 2.0)
    report = build_report(ledger, journeys=6)
    assert (report.lost, report.sent) == (0, 3)
    assert verify(report, orders=2, groups=2) == [
        "steps sent: 3, expected 6",
        "steps consumed: 6, expected 12",
        "journeys: 6, expected 12",
    ]


def test_steps_of_an_earlier_demo_in_the_same_home_do_not_count():
    ledger = DemoTracker(GROUPS)
    ledger.on_consumed("billing", 5, "paid", 3.0)
    assert ledger.consumed_count == 0


@pytest.mark.parametrize(
    ("arrivals", "count"),
    [
        ([(1, "created"), (2, "created"), (1, "paid"), (2, "paid")], 0),
        ([(1, "paid"), (1, "created"), (1, "shipped")], 1),
        ([(1, "shipped"), (1, "paid"), (1, "created")], 2),
        ([(1, "created"), (2, "shipped"), (1, "paid"), (2, "created")], 1),
    ],
)
def test_reordering_counts_within_an_order_only(arrivals, count):
    assert count_out_of_order(arrivals) == count


def test_the_percentile_is_the_nearest_rank_and_unknown_without_values():
    assert percentile([], 50) is None
    assert percentile([1.0], 99) == 1.0
    assert percentile([float(n) for n in range(1, 201)], 99) == 198.0
    assert percentile([float(n) for n in range(1, 201)], 50) == 100.0


def test_unknown_journeys_are_reported_as_unknown_and_fail_the_demo():
    report = dataclasses.replace(build_report(played(1), journeys=None))
    assert verify(report, orders=1, groups=2) == ["journeys: unknown, expected 6"]
