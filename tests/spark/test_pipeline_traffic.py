"""trace_events and journeys to traffic and slow messages: counts and histograms, the same for any order of the input."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_cases
import trace_frames as frames
from trace_cases import Traces
from trace_frames import after, at, before, pub

from ariane.client import Producer
from ariane.clock import SYSTEM_CLOCK
from ariane.model.message import Message
from ariane.model.trace_event import TraceEvent
from ariane.pipeline import run
from ariane.pipeline.jobs import JOBS
from ariane.pipeline.publishing import incremental, table_publisher
from ariane.pipeline.tables import journeys, traffic
from ariane.reports import REPORTS
from ariane.reports.tables import table_views
from ariane.tables import CLOCKS, LATENCIES, SLOW_MESSAGES, TRACE_EVENTS, TRAFFIC
from ariane.tables.declarations.traffic import EXCLUSION_COUNTERS, SLOWEST_PER_BUCKET
from ariane.tables.histogram import histogram_of
from ariane.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MINUTE = at(0).replace(second=0, microsecond=0)
MEASURES = ("send_cost_ms", "queueing_ms", "consume_cost_ms")


given = trace_cases.Cases()
Rows = list[dict[str, Any]]


class Computed(NamedTuple):
    """A table computed from all inputs."""

    columns: list[str]
    results: trace_cases.Results


def of_traces(events: DataFrame) -> DataFrame:
    """Return the journeys computed from traces alone."""
    spark = events.sparkSession
    clocks = spark.createDataFrame([], f"{CLOCKS.ddl}, bucket STRING")
    return journeys.journeys(events, frames.stored_messages(spark, []), clocks)


@pytest.fixture(scope="module")
def computed(spark: SparkSession) -> dict[str, Computed]:
    """Return the tables of all inputs by name."""
    events, _ = given.frames(spark)
    result = frames.solid(spark, of_traces(events))
    minutes = frames.solid(spark, traffic.traffic(events, result))
    tables = (
        (TRAFFIC, minutes),
        (LATENCIES, traffic.latencies(minutes)),
        (SLOW_MESSAGES, traffic.slow_messages(result)),
    )
    return {
        table.name: Computed(frame.columns, given.split(map(readable, frames.rows(frame)))) for table, frame in tables
    }


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its histograms as dictionaries."""
    return {name: dict(value) if value and name in MEASURES else value for name, value in row.items()}


@pytest.fixture
def inputs(computed: dict[str, Computed], request: pytest.FixtureRequest) -> list[Rows]:
    """Return the traffic of each input of the test."""
    found = computed[TRAFFIC.name].results[request.function.__name__]
    return [
        sorted(rows, key=lambda row: (row["minute"], row["direction"], row["topic"] or "", row["client_group"]))
        for rows in found
    ]


@pytest.fixture
def latencies(computed: dict[str, Computed], request: pytest.FixtureRequest) -> Rows:
    (found,) = computed[LATENCIES.name].results[request.function.__name__]
    return found


@pytest.fixture
def slow(computed: dict[str, Computed], request: pytest.FixtureRequest) -> Rows:
    (found,) = computed[SLOW_MESSAGES.name].results[request.function.__name__]
    return found


@given(
    [pub(f"M{number}", 10 * number, cost_ms=number, body_length=100) for number in range(5)],
    [pub("M5", 60, cost_ms=3000, success=False, body_length=100)],
    [before(f"M{number}", f"R{number}", 200) for number in range(4)],
    [after(f"M{number}", f"R{number}", 207, 7, code=2 * (number == 1)) for number in range(3)],
)
def test_a_minute_has_counts_bytes_and_histograms(rows: Rows) -> None:
    received, sent = rows
    assert sent == {
        "minute": MINUTE, "direction": "out", "topic": "T", "client_group": "P", "client_host": "10.0.0.9",
        "messages": 6, "successes": 5, "failures": 1, "bytes": 600, "send_cost_ms": histogram_of([0, 1, 2, 3, 4, 3000]),
        "queueing_ms": None, "consume_cost_ms": None, "send_cost_ms_max": 3000, "queueing_ms_max": None,
        "consume_cost_ms_max": None, **dict.fromkeys(EXCLUSION_COUNTERS), "send_cost_missing": 0,
    }  # fmt: skip
    assert received == {
        "minute": MINUTE, "direction": "in", "topic": "T", "client_group": "G", "client_host": "10.0.0.9",
        "messages": 4, "successes": 2, "failures": 1, "bytes": None, "send_cost_ms": None,
        "queueing_ms": histogram_of([200, 189, 178, 167]), "consume_cost_ms": histogram_of([7, 7, 7]), "send_cost_ms_max": None,
        "queueing_ms_max": 200, "consume_cost_ms_max": 7, **dict.fromkeys(EXCLUSION_COUNTERS, 0), "send_cost_missing": None,
        "consume_cost_missing": 1,
    }  # fmt: skip


TRIES = [("R0", 200, 2), ("R1", 10_200, 2), ("R2", 70_200, 0)]  # two fail, the third succeeds, in the next minute


@given(
    [pub("M", 0)],
    *([before("M", request, ms), after("M", request, ms + 7, 7, code=code)] for request, ms, code in TRIES),
)
def test_each_attempt_is_counted_and_the_first_determines_the_queueing_time(rows: Rows) -> None:
    first, _sent, second = rows
    counts = [(row["messages"], row["successes"], row["failures"]) for row in (first, second)]
    assert counts == [(2, 0, 2), (1, 1, 0)]
    assert (first["queueing_ms"], second["queueing_ms"]) == (histogram_of([197]), None)
    assert (first["consume_cost_ms"], second["consume_cost_ms"]) == (histogram_of([7, 7]), histogram_of([7]))
    assert (first["queueing_redelivered"], second["queueing_redelivered"]) == (1, 1)


@given(
    [pub("EARLY", 1000), pub("OK", 0), pub("LATE", 60_000), pub("BACK", 0, cost_ms=-5)],
    [before("EARLY", "R1", 500), before("UNSENT", "R2", 30)],
    [before("OK", "R3", 20), after("OK", "R3", 27), before("LATE", "R4", 60_090), after("LATE", "R4", 60_099)],
)
def test_values_omitted_from_histograms_are_counted_by_reason(rows: Rows, latencies: Rows) -> None:
    """The counts are also summed in `latencies`, whatever the histograms contain."""
    (ten,) = (row for row in latencies if row["client_group"] == "G" and row["topic"])
    assert (ten["queueing_before_sent"], ten["consume_cost_missing"], ten["queueing_ms_max"]) == (1, 1, 87)
    assert sum(ten["queueing_ms"].values()) == 2
    (unsent,) = (row for row in rows if row["topic"] is None)
    assert (unsent["queueing_no_store_time"], unsent["queueing_ms"]) == (1, None)
    (sent,) = (row for row in latencies if row["client_group"] == "P")
    assert sent["send_cost_missing"] == 1


@given(
    [pub("A", 0), pub("B", 60_000), pub("C", 0, topic="U"), pub("D", 0, group="Q")],
    [after("E", "R", 30, 7)],
)
def test_each_minute_topic_and_group_has_its_own_row(rows: Rows) -> None:
    assert [(row["direction"], row["topic"], row["client_group"], row["minute"] - MINUTE) for row in rows] == [
        ("in", None, "G", timedelta()),
        ("out", "T", "P", timedelta()),
        ("out", "T", "Q", timedelta()),
        ("out", "U", "P", timedelta()),
        ("out", "T", "P", timedelta(minutes=1)),
    ]
    assert rows[0]["queueing_ms"] is None, "a send that left no trace tells no queueing"


BODIES: list[list[TraceEvent]] = [
    [pub("A", 0), pub("A", 3000, offset_message_id="OFF-2")],
    [before("A", "R1", 3100), after("A", "R1", 3107)],
    [pub("B", 50)],
    [before("B", "R2", 60), before("B", "R3", 61, "H"), after("B", "R3", 68, 7, 0, "H")],
    [after("B", "R2", 67)],
]


@given(*BODIES)
@given(*random.Random(7).sample(BODIES * 2, 2 * len(BODIES)))
def test_results_do_not_depend_on_order_duplicates_or_lateness(inputs: list[Rows]) -> None:
    once, shuffled = inputs
    assert shuffled == once
    assert [row["messages"] for row in once if row["direction"] == "out"] == [3], "two sends of A, one of B"


@given(
    [pub(f"M{number}", 20_000 * number, cost_ms=number) for number in range(60)],
    *([before(f"M{number}", f"R{number}", 20_000 * number + 500)] for number in range(3)),
)
def test_ten_minute_rows_sum_their_minutes_and_hosts(latencies: Rows) -> None:
    sent = sorted((row for row in latencies if row["client_group"] == "P"), key=lambda row: row["window_start"])
    # The tests' epoch is 22:13:20: 400 seconds to 22:20, ten minutes, and the rest.
    assert [row["window_start"].minute for row in sent] == [10, 20, 30]
    expected = [histogram_of(range(20)), histogram_of(range(20, 50)), histogram_of(range(50, 60))]
    assert [row["send_cost_ms"] for row in sent] == expected
    assert [row["send_cost_ms_max"] for row in sent] == [19, 49, 59]
    (received,) = (row for row in latencies if row["client_group"] == "G")
    assert received["queueing_ms"] == histogram_of([500, 499, 498])
    assert (received["send_cost_ms"], received["consume_cost_ms_max"]) == (None, None)


@pytest.mark.parametrize(
    ("host", "ip"),
    [("10.0.0.9:5000", "10.0.0.9"), ("10.0.0.9@17@abc", "10.0.0.9"), ("[2001:db8::1]:5000", "[2001:db8::1]"),
     ("2001:db8::1", "2001:db8::1"), ("10.0.0.9", "10.0.0.9"), (None, None)],
)  # fmt: skip
def test_hosts_have_no_port(spark: SparkSession, host: str | None, ip: str | None) -> None:
    frame = spark.createDataFrame([(host,)], "host STRING")
    assert frames.rows(frame.select(traffic._ip("host").alias("ip"))) == [{"ip": ip}]


COUNT = SLOWEST_PER_BUCKET + 3


@given(
    [pub(f"M{number:02}", 1000 * number, cost_ms=number) for number in range(COUNT)],
    *(
        [before(f"M{number:02}", f"{group}{number}", 1000 * number + 500, group) for number in range(COUNT)]
        for group in "GH"
    ),
)
def test_the_slowest_messages_are_listed_by_measure_topic_and_group(slow: Rows) -> None:
    result: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for row in sorted(slow, key=lambda row: row["ms"]):
        result.setdefault((row["measure"], row["client_group"]), []).append((row["message_id"], row["ms"]))
    slowest = [(f"M{number:02}", number) for number in range(COUNT)][3:]
    assert result[("send_cost_ms", "P")] == slowest, "a message of two groups was sent once"
    expected = sorted(((f"M{number:02}", 500 - number) for number in range(SLOWEST_PER_BUCKET)), key=lambda one: one[1])
    assert result[("queueing_ms", "G")] == result[("queueing_ms", "H")] == expected
    assert len(result) == 3


@given(
    [pub("M", 0)],
    Traces([before("M", "R0", 200), after("M", "R0", 60_200, 60_000, 1)], "10.0.0.3:1"),
    Traces([before("M", "R1", 70_200), after("M", "R1", 70_205, 5, 0)], "10.0.0.4:1"),
)
def test_a_retried_message_has_its_slowest_call_and_first_queueing_time(rows: Rows, slow: Rows) -> None:
    """As in the traffic table: a timeout after a minute, on another host than the retry that succeeded quickly."""
    by_measure = {row["measure"]: row for row in slow}
    assert {name: (row["ms"], row["client_host"], row["measured_at"]) for name, row in by_measure.items()} == {
        "send_cost_ms": (3, "10.0.0.9", at(0)),
        "queueing_ms": (197, "10.0.0.3", at(60_200)),
        "consume_cost_ms": (60_000, "10.0.0.3", at(60_200)),
    }
    for measure in ("queueing_ms", "consume_cost_ms"):
        assert by_measure[measure]["ms"] == max(row[f"{measure}_max"] or 0 for row in rows)


def test_the_columns_match_the_table_schemas(computed: dict[str, Computed]) -> None:
    for table in (TRAFFIC, LATENCIES, SLOW_MESSAGES):
        assert computed[table.name].columns == [*table.column_names, "bucket"]


def test_the_job_aggregates_late_events_of_two_buckets_as_duckdb_does(spark: SparkSession, tmp_path: Path) -> None:
    job = JOBS["traffic"]

    def come(number: int, *events: TraceEvent) -> None:
        frame = frames.events(spark, list(events))
        table_publisher.append_batch(frame, tmp_path, TRACE_EVENTS, "traces x", number, frames.T0_MS)
        for fold in job.incremental_tables:
            incremental.rebuild_changed(spark, tmp_path, fold, frames.T0_MS)

    def known() -> list[dict[str, Any]]:
        with table_views.open_views(tmp_path, table_views.whole_table(TRAFFIC)) as sql:
            return table_views.query(
                sql, "SELECT direction, sum(messages)::INT AS m, sum(successes)::INT AS s, count(*)::INT AS parts "
                "FROM traffic GROUP BY ALL ORDER BY ALL",
            )  # fmt: skip

    come(0, pub("A"), pub("B"), before("A", "R", 10))
    parts = len({"A", "B"})  # ids without a time are in buckets by their hash
    assert known() == [
        {"direction": "in", "m": 1, "s": 0, "parts": 1}, {"direction": "out", "m": 2, "s": 2, "parts": parts},
    ]  # fmt: skip
    come(1, after("A", "R", 17))
    assert known()[0] == {"direction": "in", "m": 1, "s": 1, "parts": 1}
    with table_views.open_views(tmp_path, table_views.whole_table(SLOW_MESSAGES)) as sql:
        slow = table_views.query(sql, "SELECT measure, message_id, measured_at FROM slow_messages ORDER BY ALL")
    assert [(row["measure"], row["message_id"]) for row in slow] == [
        ("consume_cost_ms", "A"), ("queueing_ms", "A"), ("send_cost_ms", "A"), ("send_cost_ms", "B"),
    ]  # fmt: skip
    assert isinstance(slow[0]["measured_at"], datetime)


@pytest.mark.long(
    "tests/spark/test_pipeline_traffic.py::test_the_job_aggregates_late_events_of_two_buckets_as_duckdb_does"
)
def test_from_a_broker_to_the_report(spark: SparkSession, tmp_path: Path) -> None:
    async def produce(namesrv: str) -> None:
        async with Producer(namesrv, "orders", trace=True) as producer:
            for number in range(5):
                await producer.send(Message(topic="T", body=b"order", keys=(f"order-{number}",)))

    home = tmp_path / "tables"
    with LocalCluster(tmp_path / "servers", trace_topic_enable=True) as servers:
        asyncio.run(produce(servers.namesrv))
        run.run(JOBS["traffic"], {"namesrv": servers.namesrv}, home, settings=run.RunSettings(once=True))
    now_ms = SYSTEM_CLOCK.now_ms()
    span = {"since_ms": now_ms - 3_600_000, "until_ms": now_ms, "now_ms": now_ms}
    tps = REPORTS["tps"](home, **span, topic="T")
    assert tps.as_of is not None
    assert [(row[:2], row[3]) for row in tps.sections[0].rows] == [(("T", "orders"), 5)]
    sends, *_, slowest = REPORTS["latency"](home, **span).sections
    assert [row[:3] for row in sends.rows] == [("T", "orders", 5)]
    assert {row[0] for row in slowest.rows} == {"Send"}
    assert len({row[6] for row in slowest.rows}) == 5
