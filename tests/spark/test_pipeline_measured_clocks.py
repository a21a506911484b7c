"""Clock offsets that clients measured and trace messages carry: decoded as in Python, and preferred to the inferred ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_frames as frames
from trace_frames import after, at, before, pub

import skewed_traffic as skewed
from ariane.model import clock_offset
from ariane.pipeline.tables import clocks, journeys, trace_decoding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ariane.model.trace_event import TraceEvent

pytestmark = pytest.mark.spark

BROKER = "10.0.0.1:10911"  # of `pub`
AHEAD = f"{BROKER} -1203 -1198"  # clock of a client that is 1.2 s ahead


def folded(
    spark: SparkSession, *carried: tuple[str, list[TraceEvent]], stored: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return the journeys of trace messages that carry these offsets. All clients have one address."""
    rows = [
        frames.message(frames.body(events), offset, clock_offsets=offsets)
        for offset, (offsets, events) in enumerate(carried)
    ]
    events = frames.solid(spark, trace_decoding.trace_events(frames.messages(spark, rows)))
    messages = frames.solid(spark, frames.stored_messages(spark, stored or []))
    result = journeys.journeys(events, messages, frames.solid(spark, clocks.clocks(events, messages)))
    return sorted(frames.rows(result), key=lambda row: row["message_id"])


TEXTS = (
    f"{BROKER} -2 2," * 100,  # longer than clients write
    "",
    AHEAD,
    f"{AHEAD},10.0.0.2:10911 5 6",
    "10.0.0.2:10911 -7 9,10.0.0.3:10911 -5 12",
    "10.0.0.2:10911 -7 -6,10.0.0.3:10911 5 12",
    f"{BROKER} 4 3",
    f"{BROKER} x 3,{BROKER} 1,,10.0.0.2:10911 0 0",
    f"{BROKER} 1 99999999999999999999",
    f"{BROKER} -9007199254740993 1",
)


def test_offsets_are_decoded_as_in_python(spark: SparkSession) -> None:
    rows = [
        frames.message(frames.body([pub("M"), before("M", "R", 1)]), number, clock_offsets=text)
        for number, text in enumerate(TEXTS)
    ]
    decoded = frames.rows(trace_decoding.trace_events(frames.messages(spark, rows)))
    assert len(decoded) == 2 * len(TEXTS)
    for row in decoded:
        offsets = clock_offset.of_text(TEXTS[row["trace_queue_offset"]])
        expected = clock_offset.to_broker(offsets, row["store_host"] or "")
        assert (row["clock_lower_ms"], row["clock_upper_ms"]) == (expected or (None, None)), TEXTS[
            row["trace_queue_offset"]
        ]


def test_a_producer_that_is_ahead_is_corrected_without_the_tables_of_the_broker(spark: SparkSession) -> None:
    # Sent at 1,200 by a clock that is 1.2 s ahead, delivered to a right clock after 20 ms: before it was sent.
    (row,) = folded(spark, (AHEAD, [pub("M", 1_200)]), (f"{BROKER} -2 2", [before("M", "R", 20), after("M", "R", 27)]))
    assert (row["sent_corrected_at"], row["producer_clock_ms"], row["producer_clock_error_ms"]) == (at(-1), -1_201, 3)
    assert (row["delivered_corrected_at"], row["delivered_error_ms"]) == (at(20), 2)
    assert (row["producer_clock_measured"], row["delivered_clock_measured"]) == (True, True)
    # From the response at 2 (corrected) to the delivery; the send took 3 ms.
    assert (row["queueing_ms"], row["queueing_error_ms"], row["clock_skew"]) == (18, 8, False)


def test_two_clocks_behind_one_address_do_not_contradict_each_other(spark: SparkSession) -> None:
    stored = [frames.stored("M", 1, offset_message_id="OFF-M")]
    events: list[TraceEvent] = [pub("M", 1_200)]
    consumed = [before("M", "R", 20), after("M", "R", 27)]
    (inferred,) = folded(spark, ("", events), ("", consumed), stored=stored)
    assert inferred["queueing_missing"] == "contradiction"
    (measured,) = folded(spark, (AHEAD, events), (f"{BROKER} -2 2", consumed), stored=stored)
    assert (measured["queueing_ms"], measured["queueing_error_ms"], measured["queueing_missing"]) == (19, 2, None)
    assert measured["stored_exact"] is True


def test_measured_clients_do_not_affect_another_client_of_their_address(spark: SparkSession) -> None:
    """Two measured clients at ±500 ms, as many messages each as a client that does not measure, whose clock is right."""
    carried, stored = [], []
    for number in range(6):
        events: list[TraceEvent] = [before(f"M{number}", f"R{number}", 20), after(f"M{number}", f"R{number}", 27)]
        carried.append(("", events))
        stored.append(frames.stored(f"M{number}", 10, offset_message_id=f"OFF-M{number}"))
        for ahead_ms in (500, -500):
            item = f"M{number}{ahead_ms}"
            measured = f"{BROKER} {-ahead_ms - 2} {-ahead_ms + 2}"
            carried.append(
                (measured, [pub(item, ahead_ms), before(item, item, ahead_ms + 9), after(item, item, ahead_ms + 16)])
            )
            stored.append(frames.stored(item, 2, offset_message_id=f"OFF-{item}"))
    rows = {row["message_id"]: row for row in folded(spark, *carried, stored=stored)}
    assert len(rows) == 18
    assert {row["queueing_missing"] for row in rows.values()} == {None}
    assert {
        (rows[f"M{number}"]["queueing_ms"], rows[f"M{number}"]["delivered_clock_measured"]) for number in range(6)
    } == {(10, False)}
    assert {row["queueing_ms"] for item, row in rows.items() if len(item) > 2} == {7}


def test_a_measured_offset_is_preferred_to_a_wider_one(spark: SparkSession) -> None:
    stored = [frames.stored("M", 1, offset_message_id="OFF-M")]
    (inferred,) = folded(spark, ("", [before("M", "R", 5)]), stored=stored)
    assert inferred["delivered_error_ms"] > 1_000  # the trace was stored a minute later
    assert inferred["delivered_clock_measured"] is False
    (measured,) = folded(spark, (f"{BROKER} -2 3", [before("M", "R", 5)]), stored=stored)
    assert (measured["delivered_error_ms"], measured["delivered_clock_measured"]) == (3, True)


def test_the_end_of_a_call_corrects_a_start_that_was_written_before_the_first_measurement(spark: SparkSession) -> None:
    (row,) = folded(spark, ("", [before("M", "R", 1_220)]), (AHEAD, [after("M", "R", 1_227)]))
    assert (row["delivered_corrected_at"], row["delivered_error_ms"]) == (at(19), 3)
    (attempt,) = row["deliveries"]
    assert (attempt["ended_corrected_at"], attempt["clock_error_ms"]) == (at(26), 3)


def test_a_record_that_contradicts_its_measured_offset_is_not_corrected(spark: SparkSession) -> None:
    stored = [frames.stored("M", 1, offset_message_id="OFF-M")]
    (row,) = folded(spark, (AHEAD, [pub("M", 0)]), stored=stored)
    assert (row["sent_corrected_at"], row["producer_clock_ms"], row["producer_clock_measured"]) == (None, None, None)


def test_clients_with_wrong_clocks_end_to_end(spark: SparkSession) -> None:
    """Producer 1.2 s ahead, consumer 0.7 s behind: each time is corrected to the true one, within its error."""
    traffic = skewed.skewed_traffic()
    rows = [
        frames.message(
            trace.body, number, trace.born_host, at(trace.store_ms - frames.T0_MS),
            trace.properties.get(clock_offset.PROPERTY, ""),
        )
        for number, trace in enumerate(traffic.traces)
    ]  # fmt: skip
    events = frames.solid(spark, trace_decoding.trace_events(frames.messages(spark, rows)))
    messages = frames.solid(spark, frames.stored_messages(spark, []))
    found = frames.rows(journeys.journeys(events, messages, frames.solid(spark, clocks.clocks(events, messages))))
    assert {row["message_id"] for row in found} == set(traffic.sent_ms)
    for row in found:
        for column, error, true_ms in (
            ("sent_corrected_at", row["producer_clock_error_ms"], traffic.sent_ms[row["message_id"]]),
            ("delivered_corrected_at", row["delivered_error_ms"], traffic.delivered_ms[row["message_id"]]),
        ):
            assert error <= 8
            assert abs(row[column] - at(true_ms - frames.T0_MS)).total_seconds() * 1000 <= error
        assert row["queueing_missing"] is None
        assert row["delivered_at"] < row["sent_at"]  # as it looks by the clients' clocks
