"""Clock offsets that clients measured and trace messages carry: decoded as in Python, and preferred to the inferred ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_cases
import trace_frames as frames
from trace_frames import after, at, before, pub

import skewed_traffic as skewed
from ariane.model import clock_offset
from ariane.pipeline.tables import clocks, journeys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ariane.model.trace_event import TraceEvent

pytestmark = pytest.mark.spark

BROKER = "10.0.0.1:10911"  # of `pub`
AHEAD = f"{BROKER} -1203 -1198"  # clock of a client that is 1.2 s ahead


given = trace_cases.Cases()
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(spark: SparkSession) -> trace_cases.Results:
    """Return the journeys of all inputs. All clients have one address."""
    events, messages = given.frames(spark)
    result = journeys.journeys(events, messages, frames.solid(spark, clocks.clocks(events, messages)))
    return given.split(sorted(frames.rows(result), key=lambda row: row["message_id"]))


def carrying(offsets: str, *events: TraceEvent) -> trace_cases.Traces:
    """Return a trace message with clock offsets."""
    return trace_cases.Traces(events, clock_offsets=offsets)


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
    decoded = frames.rows(frames.events_of_messages(spark, rows))
    assert len(decoded) == 2 * len(TEXTS)
    for row in decoded:
        offsets = clock_offset.of_text(TEXTS[row["trace_queue_offset"]])
        expected = clock_offset.to_broker(offsets, row["store_host"] or "")
        assert (row["clock_lower_ms"], row["clock_upper_ms"]) == (expected or (None, None)), TEXTS[
            row["trace_queue_offset"]
        ]


@given(
    carrying(AHEAD, pub("M", 1_200)),
    carrying(f"{BROKER} -2 2", before("M", "R", 20), after("M", "R", 27)),
)
def test_a_producer_that_is_ahead_is_corrected_without_the_tables_of_the_broker(rows: Rows) -> None:
    # Sent at 1,200 by a clock that is 1.2 s ahead, delivered to a right clock after 20 ms: before it was sent.
    (row,) = rows
    assert (row["sent_corrected_at"], row["producer_clock_ms"], row["producer_clock_error_ms"]) == (at(-1), -1_201, 3)
    assert (row["delivered_corrected_at"], row["delivered_error_ms"]) == (at(20), 2)
    assert (row["producer_clock_measured"], row["delivered_clock_measured"]) == (True, True)
    # From the response at 2 (corrected) to the delivery; the send took 3 ms.
    assert (row["queueing_ms"], row["queueing_error_ms"], row["clock_skew"]) == (18, 8, False)


STORED = [frames.stored("M", 1, offset_message_id="OFF-M")]
CONSUMED = (before("M", "R", 20), after("M", "R", 27))


@given([pub("M", 1_200)], CONSUMED, stored=STORED)
@given(carrying(AHEAD, pub("M", 1_200)), carrying(f"{BROKER} -2 2", *CONSUMED), stored=STORED)
def test_two_clocks_behind_one_address_do_not_contradict_each_other(inputs: list[Rows]) -> None:
    (inferred,), (measured,) = inputs
    assert inferred["queueing_missing"] == "contradiction"
    assert (measured["queueing_ms"], measured["queueing_error_ms"], measured["queueing_missing"]) == (19, 2, None)
    assert measured["stored_exact"] is True


def three_clients() -> tuple[list[trace_cases.Traces], list[dict[str, Any]]]:
    """Return two measured clients at ±500 ms, as many messages each as a client that does not measure, whose clock is right."""
    carried, stored = [], []
    for number in range(6):
        carried.append(carrying("", before(f"M{number}", f"R{number}", 20), after(f"M{number}", f"R{number}", 27)))
        stored.append(frames.stored(f"M{number}", 10, offset_message_id=f"OFF-M{number}"))
        for ahead_ms in (500, -500):
            item = f"M{number}{ahead_ms}"
            measured = f"{BROKER} {-ahead_ms - 2} {-ahead_ms + 2}"
            carried.append(
                carrying(
                    measured, pub(item, ahead_ms), before(item, item, ahead_ms + 9), after(item, item, ahead_ms + 16)
                )
            )
            stored.append(frames.stored(item, 2, offset_message_id=f"OFF-{item}"))
    return carried, stored


@given.of(three_clients())
def test_measured_clients_do_not_affect_another_client_of_their_address(rows: Rows) -> None:
    by_id = {row["message_id"]: row for row in rows}
    assert len(by_id) == 18
    assert {row["queueing_missing"] for row in rows} == {None}
    others = [by_id[f"M{number}"] for number in range(6)]
    assert {(row["queueing_ms"], row["delivered_clock_measured"]) for row in others} == {(10, False)}
    assert {row["queueing_ms"] for item, row in by_id.items() if len(item) > 2} == {7}


@given([before("M", "R", 5)], stored=STORED)
@given(carrying(f"{BROKER} -2 3", before("M", "R", 5)), stored=STORED)
def test_a_measured_offset_is_preferred_to_a_wider_one(inputs: list[Rows]) -> None:
    (inferred,), (measured,) = inputs
    assert inferred["delivered_error_ms"] > 1_000  # the trace was stored a minute later
    assert inferred["delivered_clock_measured"] is False
    assert (measured["delivered_error_ms"], measured["delivered_clock_measured"]) == (3, True)


@given([before("M", "R", 1_220)], carrying(AHEAD, after("M", "R", 1_227)))
def test_the_end_of_a_call_corrects_a_start_that_was_written_before_the_first_measurement(rows: Rows) -> None:
    (row,) = rows
    assert (row["delivered_corrected_at"], row["delivered_error_ms"]) == (at(19), 3)
    (attempt,) = row["deliveries"]
    assert (attempt["ended_corrected_at"], attempt["clock_error_ms"]) == (at(26), 3)


@given(carrying(AHEAD, pub("M", 0)), stored=STORED)
def test_a_record_that_contradicts_its_measured_offset_is_not_corrected(rows: Rows) -> None:
    (row,) = rows
    assert (row["sent_corrected_at"], row["producer_clock_ms"], row["producer_clock_measured"]) == (None, None, None)


@pytest.mark.long(
    "tests/spark/test_pipeline_measured_clocks.py::test_a_producer_that_is_ahead_is_corrected_without_the_tables_of_the_broker",
)
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
    events = frames.solid(spark, frames.events_of_messages(spark, rows))
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
