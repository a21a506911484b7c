"""Clocks of hosts: the truth lies within the bounds, corrected times within their error, and no duration is negative."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_frames as frames
from trace_frames import after, at, before, pub

from ariane.model.trace import TraceEvent
from ariane.pipeline import clocks, decode, journeys
from ariane.tables import CLOCKS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SINCE_MONTH_MS = frames.T0_MS - 1_698_796_800_000  # 2023-11-01


def unique_id(number: int) -> str:
    """Ids of one slot."""
    return f"0A00000200010A0B0C0D{SINCE_MONTH_MS:08X}{number:04X}"


class Told(NamedTuple):
    """A trace message: its event, from where, and when the broker stored it."""

    event: TraceEvent
    host: str
    stored_ms: int


def folded(
    spark: SparkSession, told: list[Told], stored: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Clocks and journeys."""
    bodies = [
        frames.message(frames.body([one.event]), offset, f"{one.host}:5000", at(one.stored_ms))
        for offset, one in enumerate(told)
    ]
    events = frames.solid(spark, decode.trace_events(frames.messages(spark, bodies)))
    messages = frames.solid(spark, frames.stored_messages(spark, stored))
    known: DataFrame = frames.solid(spark, clocks.clocks(events, messages))
    return frames.rows(known), frames.rows(journeys.journeys(events, messages, known))


def test_a_producer_whose_clock_is_1200_ms_ahead(spark: SparkSession) -> None:
    """And a consumer whose clock is right; by their own clocks the message was consumed before it was sent."""
    told, stored = [], []
    for number, sent_ms in enumerate((0, 100, 200)):
        one = unique_id(number)
        told += [
            Told(pub(one, sent_ms + 1200, cost_ms=4), "10.0.0.2", sent_ms + 300),
            Told(before(one, f"R{number}", sent_ms + 9), "10.0.0.3", sent_ms + 15),
            Told(after(one, f"R{number}", sent_ms + 16), "10.0.0.3", sent_ms + 20),
        ]
        stored.append(frames.stored(one, sent_ms + 2, offset_message_id=f"OFF-{one}"))
    known, rows = folded(spark, told, stored)
    by_host = {row["host"]: row for row in known}
    assert [field for field in by_host["10.0.0.2"] if field != "slot"] == list(CLOCKS.names)
    producer = by_host["10.0.0.2"]
    assert (producer["lower_ms"], producer["upper_ms"], producer["sends"], producer["deliveries"]) == (
        -1203,
        -1197,
        3,
        0,
    )
    assert by_host["10.0.0.3"]["lower_ms"] <= 0 <= by_host["10.0.0.3"]["upper_ms"]
    for number, row in enumerate(sorted(rows, key=lambda row: row["message_id"])):
        assert (row["producer_clock_ms"], row["producer_clock_error_ms"]) == (-1200, 3)
        assert (row["sent_at"], row["sent_corrected_at"]) == (at(100 * number + 1200), at(100 * number))
        assert (row["queueing_ms"], row["clock_skew"], row["stored_exact"]) == (7, False, True)
        assert row["deliveries"][0]["began_corrected_at"] == at(100 * number + 9)


def test_true_differences_lie_within_the_bounds_and_no_duration_is_negative(spark: SparkSession) -> None:
    chance = random.Random(4711)
    producers = {f"10.1.0.{n}": chance.uniform(-5000, 5000) for n in range(4)}
    consumers = {f"10.2.0.{n}": chance.uniform(-5000, 5000) for n in range(4)}
    differences = producers | consumers
    told, stored, truth = [], [], {}

    def by(host: str, true_ms: float) -> int:
        return int((true_ms - differences[host] + 10_000_000) // 1) - 10_000_000

    for number in range(250):
        one, sender, consumer = unique_id(number), chance.choice([*producers]), chance.choice([*consumers])
        sent = chance.uniform(0, 120_000)
        there = sent + chance.expovariate(1 / 3)
        answered = there + chance.expovariate(1 / 3)
        began = there + chance.expovariate(1 / 50)
        ended = began + chance.expovariate(1 / 20)
        truth[one] = (sent, there, began)
        cost = by(sender, answered) - by(sender, sent)
        traced = [chance.uniform(0, 600) for _ in range(3)]
        if chance.random() < 0.95:
            told.append(Told(pub(one, by(sender, sent), cost_ms=cost), sender, int(answered + traced[0])))
        if chance.random() < 0.95:
            told.append(Told(before(one, f"R{number}", by(consumer, began)), consumer, int(began + traced[1])))
        if chance.random() < 0.95:
            end, took = by(consumer, ended), by(consumer, ended) - by(consumer, began)
            told.append(Told(after(one, f"R{number}", end, took), consumer, int(ended + traced[2])))
        if chance.random() < 0.9:
            stored.append(frames.stored(one, int(there), offset_message_id=f"OFF-{one}"))
    chance.shuffle(told)
    known, rows = folded(spark, told, stored)

    assert {row["host"] for row in known} == differences.keys()
    for row in known:
        assert row["lower_ms"] <= differences[row["host"]] <= row["upper_ms"]
    widths = [row["upper_ms"] - row["lower_ms"] for row in known if row["host"] in producers]
    assert max(widths) < 10, "the bounds say nothing"
    corrected = 0
    for row in rows:
        sent, there, began = truth[row["message_id"]]
        assert all(
            row[name] is None or row[name] >= 0
            for name in row
            if name.endswith(("_cost_ms", "queueing_ms", "delay_ms"))
        )
        assert not row["clock_skew"]
        if row["sent_corrected_at"] is not None:
            corrected += 1
            assert abs(ms(row["sent_corrected_at"]) - sent) <= row["producer_clock_error_ms"] + 1
        if row["delivered_corrected_at"] is not None and row["deliveries"][0]["began_at"] is not None:
            assert abs(ms(row["delivered_corrected_at"]) - began) <= row["delivered_error_ms"] + 1
            if row["queueing_ms"] is not None:
                assert abs(row["queueing_ms"] - (began - there)) <= row["queueing_error_ms"] + 2
    assert corrected > 200


def ms(time: Any) -> float:
    return (time - frames.T0).total_seconds() * 1000  # type: ignore[no-any-return]


def test_two_hosts_behind_one_address_contradict_each_other(spark: SparkSession) -> None:
    """Their clocks are 10 s apart: nothing is corrected, nothing between hosts is claimed, and it is said."""
    told, stored = [], []
    for number, ahead_ms in enumerate((0, 10_000)):
        one = unique_id(number)
        told += [
            Told(before(one, f"R{number}", 50 + ahead_ms), "10.0.0.3", 60),
            Told(after(one, f"R{number}", 57 + ahead_ms), "10.0.0.3", 70),
        ]
        stored.append(frames.stored(one, 45))
    known, rows = folded(spark, told, stored)
    (clock,) = known
    assert clock["lower_ms"] > clock["upper_ms"]
    assert [(row["clock_skew"], row["queueing_ms"], row["consume_cost_ms"]) for row in rows] == [(True, None, 7)] * 2
    assert {row["delivered_corrected_at"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("client_host", "host"),
    [
        ("10.0.0.9:5000", "10.0.0.9"),
        ("10.0.0.9", "10.0.0.9"),
        ("10.0.0.9@4711#-1@8", "10.0.0.9"),
        ("[fe80::1]:5000", "fe80::1"),
        ("fe80::1@7", "fe80::1"),
        ("", None),
    ],
)
def test_an_address_is_a_clock(spark: SparkSession, client_host: str, host: str | None) -> None:
    frame = spark.createDataFrame([(client_host,)], "client_host STRING")
    assert frame.select(clocks.host_of("client_host")).collect()[0][0] == host
