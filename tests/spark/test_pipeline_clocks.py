"""Clock offsets of hosts: true offsets are within the bounds, corrected times within their error, no duration is negative."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_cases
import trace_frames as frames
from trace_cases import Traces
from trace_frames import after, at, before, pub

import clock_model as model
from ariane.model.trace_event import TraceEvent
from ariane.pipeline.tables import clocks, journeys
from ariane.tables import CLOCKS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SINCE_MONTH_MS = frames.T0_MS - 1_698_796_800_000  # 2023-11-01


def unique_id(number: int) -> str:
    """Return ids of one bucket."""
    return f"0A00000200010A0B0C0D{SINCE_MONTH_MS:08X}{number:04X}"


def told(event: TraceEvent, host: str, stored_ms: int) -> Traces:
    """Return a trace message of a host."""
    return Traces([event], f"{host}:5000", at(stored_ms))


given = trace_cases.Cases()
Rows = list[dict[str, Any]]
Input = tuple[list[Traces], list[dict[str, Any]]]  # trace messages and stored records


@pytest.fixture(scope="module")
def computed(spark: SparkSession) -> tuple[trace_cases.Results, trace_cases.Results]:
    """Return the clocks and the journeys of all inputs."""
    events, messages = given.frames(spark)
    clock_rows = frames.solid(spark, clocks.clocks(events, messages))
    journey_rows = frames.rows(journeys.journeys(events, messages, clock_rows))
    by_id = sorted(journey_rows, key=lambda row: row["message_id"])
    return given.split(frames.rows(clock_rows)), given.split(by_id)


@pytest.fixture
def clock_rows(computed: tuple[trace_cases.Results, trace_cases.Results], request: pytest.FixtureRequest) -> Rows:
    (found,) = computed[0][request.function.__name__]
    return found


@pytest.fixture
def rows(computed: tuple[trace_cases.Results, trace_cases.Results], request: pytest.FixtureRequest) -> Rows:
    """Return the journeys of the test's input."""
    (found,) = computed[1][request.function.__name__]
    return found


def ahead_by_1200_ms() -> Input:
    reported, stored = [], []
    for number, sent_ms in enumerate((0, 100, 200)):
        item = unique_id(number)
        reported += [
            told(pub(item, sent_ms + 1200, cost_ms=4), "10.0.0.2", sent_ms + 300),
            told(before(item, f"R{number}", sent_ms + 9), "10.0.0.3", sent_ms + 15),
            told(after(item, f"R{number}", sent_ms + 16), "10.0.0.3", sent_ms + 20),
        ]
        stored.append(frames.stored(item, sent_ms + 2, offset_message_id=f"OFF-{item}"))
    return reported, stored


@given.of(ahead_by_1200_ms())
def test_a_producer_clock_1200_ms_ahead_is_corrected(clock_rows: Rows, rows: Rows) -> None:
    """The consumer's clock is right; by the uncorrected clocks the message was consumed before it was sent."""
    by_host = {row["host"]: row for row in clock_rows}
    assert list(by_host["10.0.0.2"]) == list(CLOCKS.column_names)
    producer = by_host["10.0.0.2"]
    assert (producer["lower_ms"], producer["upper_ms"], producer["sends"], producer["deliveries"]) == (
        -1215,
        -1185,
        3,
        0,
    )
    assert by_host["10.0.0.3"]["lower_ms"] <= 0 <= by_host["10.0.0.3"]["upper_ms"]
    for number, row in enumerate(rows):
        assert (row["producer_clock_ms"], row["producer_clock_error_ms"]) == (-1200, 3)
        assert (row["sent_at"], row["sent_corrected_at"]) == (at(100 * number + 1200), at(100 * number))
        assert (row["queueing_ms"], row["clock_skew"], row["stored_exact"]) == (7, False, True)
        assert row["deliveries"][0]["started_corrected_at"] == at(100 * number + 9)


class Truth(NamedTuple):
    """Messages of hosts with wrong clocks: the offset of each host, and when each was sent, stored and delivered."""

    differences: dict[str, float]
    producers: dict[str, float]
    times: dict[str, tuple[float, float, float]]


def random_hosts() -> tuple[Input, Truth]:
    chance = random.Random(4711)
    producers = {f"10.1.0.{n}": chance.uniform(-5000, 5000) for n in range(4)}
    consumers = {f"10.2.0.{n}": chance.uniform(-5000, 5000) for n in range(4)}
    differences = producers | consumers
    reported, stored, truth = [], [], {}

    def by(host: str, true_ms: float) -> int:
        return int((true_ms - differences[host] + 10_000_000) // 1) - 10_000_000

    for number in range(250):
        item, sender, consumer = unique_id(number), chance.choice([*producers]), chance.choice([*consumers])
        sent = chance.uniform(0, 120_000)
        arrived = sent + chance.expovariate(1 / 3)
        answered = arrived + chance.expovariate(1 / 3)
        began = arrived + chance.expovariate(1 / 50)
        ended = began + chance.expovariate(1 / 20)
        truth[item] = (sent, arrived, began)
        cost = by(sender, answered) - by(sender, sent)
        traced = [chance.uniform(0, 600) for _ in range(3)]
        if chance.random() < 0.95:
            reported.append(told(pub(item, by(sender, sent), cost_ms=cost), sender, int(answered + traced[0])))
        if chance.random() < 0.95:
            reported.append(told(before(item, f"R{number}", by(consumer, began)), consumer, int(began + traced[1])))
        if chance.random() < 0.95:
            end, took = by(consumer, ended), by(consumer, ended) - by(consumer, began)
            reported.append(told(after(item, f"R{number}", end, took), consumer, int(ended + traced[2])))
        if chance.random() < 0.9:
            stored.append(frames.stored(item, int(arrived), offset_message_id=f"OFF-{item}"))
    chance.shuffle(reported)
    return (reported, stored), Truth(differences, producers, truth)


RANDOM_HOSTS, TRUTH = random_hosts()


@given.of(RANDOM_HOSTS)
def test_true_offsets_are_within_the_bounds_and_no_duration_is_negative(clock_rows: Rows, rows: Rows) -> None:
    differences, producers, truth = TRUTH
    assert {row["host"] for row in clock_rows} == differences.keys()
    for row in clock_rows:
        assert row["lower_ms"] <= differences[row["host"]] <= row["upper_ms"]
    widths = [row["upper_ms"] - row["lower_ms"] for row in clock_rows if row["host"] in producers]
    assert max(widths) < 60, "the bounds say nothing"
    corrected = 0
    for row in rows:
        sent, arrived, began = truth[row["message_id"]]
        assert all(
            row[name] is None or row[name] >= 0
            for name in row
            if name.endswith(("_cost_ms", "queueing_ms", "delay_ms"))
        )
        assert not row["clock_skew"]
        if row["sent_corrected_at"] is not None:
            corrected += 1
            assert abs(ms(row["sent_corrected_at"]) - sent) <= row["producer_clock_error_ms"] + 1
        if row["delivered_corrected_at"] is not None and row["deliveries"][0]["started_at"] is not None:
            assert abs(ms(row["delivered_corrected_at"]) - began) <= row["delivered_error_ms"] + 1
            if row["queueing_ms"] is not None:
                assert abs(row["queueing_ms"] - (began - arrived)) <= row["queueing_error_ms"] + 2
    assert corrected > 200


def ms(time: Any) -> float:
    return (time - frames.T0).total_seconds() * 1000  # type: ignore[no-any-return]


def two_hosts_with_one_address() -> Input:
    reported, stored = [], []
    for number, ahead_ms in enumerate((0, 10_000)):
        item = unique_id(number)
        reported += [
            told(before(item, f"R{number}", 50 + ahead_ms), "10.0.0.3", 60),
            told(after(item, f"R{number}", 57 + ahead_ms), "10.0.0.3", 70),
        ]
        stored.append(frames.stored(item, 45))
    return reported, stored


@given.of(two_hosts_with_one_address())
def test_two_hosts_with_one_address_are_contradictory(clock_rows: Rows, rows: Rows) -> None:
    """The clocks differ by 10 s: nothing is corrected, no duration between hosts is computed, and the conflict is reported."""
    (clock,) = clock_rows
    assert clock["lower_ms"] > clock["upper_ms"]
    assert [(row["clock_skew"], row["queueing_ms"], row["consume_cost_ms"]) for row in rows] == [(True, None, 7)] * 2
    assert {row["delivered_corrected_at"] for row in rows} == {None}


def ordinary(count: int, host: str = "10.0.0.2") -> Input:
    """Return messages that a host with a right clock sends and consumes itself, one every 20 ms."""
    reported, stored = [], []
    for number in range(count):
        item, sent_ms = unique_id(number), 20 * number
        reported += [
            told(pub(item, sent_ms, cost_ms=4), host, sent_ms + 300),
            told(before(item, f"R{number}", sent_ms + 9), host, sent_ms + 310),
            told(after(item, f"R{number}", sent_ms + 16), host, sent_ms + 320),
        ]
        stored.append(frames.stored(item, sent_ms + 2, offset_message_id=f"OFF-{item}"))
    return reported, stored


def contradictory(wrong: int) -> Input:
    """Return sends whose reported end precedes, for some of them, the store time by 48 ms and more."""
    reported, stored = ordinary(20)
    for number in range(wrong):
        stored[number]["store_timestamp"] = at(20 * number + 52 + number)
        reported[3 * number + 1] = told(before(unique_id(number), f"R{number}", 20 * number + 70), "10.0.0.2", 900)
        reported[3 * number + 2] = told(after(unique_id(number), f"R{number}", 20 * number + 77), "10.0.0.2", 900)
    return reported, stored


def assert_discarded(wrong: int, clock_rows: Rows, rows: Rows) -> None:
    (clock,) = clock_rows
    assert (clock["lower_ms"], clock["upper_ms"], clock["messages"], clock["discarded"]) == (-15, 15, 20, wrong)
    assert clock["discarded_ids"] == [unique_id(number) for number in range(min(wrong, clocks.DISCARDED_IDS_MAX))]
    assert {(row["clock_skew"], row["queueing_missing"], row["queueing_ms"]) for row in rows[wrong:]} == {
        (False, None, 7)
    }
    # The broker stored them and the consumer's records agree: only what the send claims is not used.
    for number, row in enumerate(rows[:wrong]):
        assert (row["sent_corrected_at"], row["producer_clock_ms"]) == (None, None)
        assert (row["clock_skew"], row["queueing_ms"]) == (False, 18 - number)


@given.of(contradictory(1))
def test_a_contradictory_record_is_discarded_without_affecting_others(clock_rows: Rows, rows: Rows) -> None:
    assert_discarded(1, clock_rows, rows)


@given.of(contradictory(9))
def test_contradictory_records_are_discarded_without_affecting_others(clock_rows: Rows, rows: Rows) -> None:
    """Just less than half of all, and more than are listed."""
    assert_discarded(9, clock_rows, rows)


def began_at(began_ms: int) -> Input:
    reported, stored = ordinary(9)
    reported[1] = told(before(unique_id(0), "R0", began_ms), "10.0.0.2", 310)
    reported[2] = told(after(unique_id(0), "R0", began_ms + 7), "10.0.0.2", 320)
    return reported, stored


def assert_outlier(clock_rows: Rows, rows: Rows) -> None:
    assert [(row["discarded"], row["discarded_ids"]) for row in clock_rows] == [(1, [unique_id(0)])]
    bad, *others = rows
    assert (bad["clock_skew"], bad["queueing_missing"], bad["queueing_ms"]) == (True, "outlier", None)
    assert (bad["delivered_corrected_at"], bad["deliveries"][0]["clock_ms"], bad["consume_cost_ms"]) == (None, None, 7)
    assert {(row["clock_skew"], row["queueing_ms"]) for row in others} == {(False, 7)}


@given.of(began_at(-60))
def test_a_delivery_before_its_store_time_is_an_outlier_without_queueing_time(clock_rows: Rows, rows: Rows) -> None:
    assert_outlier(clock_rows, rows)


@given.of(began_at(5000))
def test_a_delivery_after_its_trace_was_stored_is_an_outlier(clock_rows: Rows, rows: Rows) -> None:
    assert_outlier(clock_rows, rows)


def two_clocks() -> Input:
    reported, stored = ordinary(10)
    for at_, item in enumerate(reported):
        if at_ // 3 % 2:
            (event,) = item.events
            later = msgspec.structs.replace(event, timestamp_ms=event.timestamp_ms + 10_000)
            reported[at_] = item._replace(events=[later])
    return reported, stored


@given.of(two_clocks())
def test_two_equally_frequent_clocks_of_one_address_have_no_majority(clock_rows: Rows, rows: Rows) -> None:
    (clock,) = clock_rows
    assert clock["lower_ms"] > clock["upper_ms"]
    assert (clock["discarded"], clock["discarded_ids"]) == (10, [])
    assert {(row["clock_skew"], row["queueing_missing"]) for row in rows} == {(True, "contradiction")}


def test_the_bounds_come_from_the_largest_consistent_set(spark: SparkSession) -> None:
    """Compare with an exhaustive search, for random intervals with many contradictions and open ends."""
    chance = random.Random(7)
    columns = "bucket STRING, host STRING, client STRING, minute TIMESTAMP, message_id STRING, within_lower_ms BIGINT, "
    rows, by_host = [], {}
    for host in range(60):
        some = []
        for number in range(chance.randint(1, clocks.TRIMMED_FROM - 1)):
            low = chance.choice([None, chance.randint(-8, 8)])
            high = chance.choice([None, chance.randint(-8, 8)])
            some.append((f"M{number:02}", low, high))
            rows.append(("s", f"h{host}", None, at(0), f"M{number:02}", low, None, high, low))
        by_host[f"h{host}"] = some
    frame = spark.createDataFrame(rows, columns + "after_ms BIGINT, upper_ms BIGINT, lower_ms BIGINT")
    result = {row["host"]: row for row in frames.rows(clocks._agreed(clocks._edges(frame)))}
    inf = float("inf")
    kinds = set()
    for host, some in by_host.items():
        bounded = [(low, high) for _, low, high in some if low is not None or high is not None]
        spans = [(-inf if low is None else low, inf if high is None else high) for low, high in bounded]
        counts = {x / 2: sum(low <= x / 2 <= high for low, high in spans) for x in range(-20, 21)}
        best = max(counts.values())
        row = result[host]
        if not bounded:
            continue
        if best * 2 <= len(bounded):
            kinds.add("none")
            assert row["lower_ms"] is None or row["upper_ms"] is None or row["lower_ms"] > row["upper_ms"]
            assert row["discarded"] == len(bounded)
            continue
        at_best = [x for x, count in counts.items() if count == best]
        lower = -inf if row["lower_ms"] is None else row["lower_ms"]
        upper = inf if row["upper_ms"] is None else row["upper_ms"]
        assert (max(lower, -10), min(upper, 10)) == (min(at_best), max(at_best)), (host, some)
        outside = sum(low > high or low > upper or high < lower for low, high in spans)
        assert row["discarded"] == outside, (host, some)
        kinds.add("all" if best == len(bounded) else "some")
    assert kinds == {"none", "some", "all"}


@pytest.mark.long(
    "tests/spark/test_pipeline_clocks.py::test_the_bounds_come_from_the_largest_consistent_set",
    "tests/spark/test_pipeline_clocks.py::test_true_offsets_are_within_the_bounds_and_no_duration_is_negative",
)
def test_the_table_is_that_of_the_model(spark: SparkSession) -> None:
    """The bounds of the model hold (tests/simulation/test_clock_faults.py); the table has the same."""
    traces, stored, expected = [], [], {}
    aligned_ms = 60_000 - frames.T0_MS % 60_000  # to a minute
    for index, fault in enumerate(("step", "suspended", "nat", "outliers", "mixed")):
        records = model.simulate(fault, seed=1, messages=150)
        ids = [f"{unique_id(number)[:20]}{SINCE_MONTH_MS + 600_000 * index:08X}{number:04X}" for number in range(150)]
        for record in records:
            item, said_ms, client = ids[record.message], record.said_ms + aligned_ms, record.client
            is_call = record.cost_ms is None
            event = before(item, item, said_ms) if is_call else pub(item, said_ms, cost_ms=record.cost_ms)
            offset_ms = round(client.offset_ms(record.true_ms))
            traces.append(
                frames.message(
                    frames.body([event]),
                    len(traces),
                    f"{client.address}:5000",
                    at(record.traced_ms + aligned_ms),
                    f"10.0.0.1:10911 {offset_ms - 2} {offset_ms + 2}" if client.is_measured else "",
                    f"{client.process}000000000000",
                )
            )
            if not is_call:
                stored.append(frames.stored(item, record.stored_ms + aligned_ms, offset_message_id=f"OFF-{item}"))
        for (host, client_name, minute), clock in model.clocks_of(records).items():
            expected[index, host, client_name, at(minute * 60_000 + aligned_ms)] = clock
    events = frames.events_of_messages(spark, traces)
    table = frames.rows(
        clocks.clocks(frames.solid(spark, events), frames.solid(spark, frames.stored_messages(spark, stored)))
    )
    buckets = sorted({row["bucket"] for row in table})
    found = {
        (buckets.index(row["bucket"]), row["host"], row["client"], row["minute"]): model.Clock(
            row["lower_ms"], row["upper_ms"], row["messages"], row["discarded"]
        )
        for row in table
    }
    assert found == expected
    assert any(not clock.is_agreed for clock in expected.values())
    assert len({client for _, host, client, _ in expected if host == "10.0.0.9"}) == 5


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
def test_the_host_of_a_client_address_identifies_its_clock(
    spark: SparkSession, client_host: str, host: str | None
) -> None:
    frame = spark.createDataFrame([(client_host,)], "client_host STRING")
    assert frame.select(clocks.host_of("client_host")).collect()[0][0] == host
