"""The lag job on small data frames: samples become minutes of rates; unknown values stay null."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

from pyspark.sql import functions as F
from sample_frames import Row, folded

import collected_samples
from ariane.cluster.lag import queue_lag
from ariane.metrics_collector.sample import Sample
from ariane.pipeline.tables import consumption
from ariane.tables import CONSUMPTION
from ariane.tables.time_buckets import bucket_of_time
from collected_samples import at, away, sample, state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def two_queues(second: float, first: int, end: int | None) -> Sample:
    queues = ((0, first, 0, 100, 5), (1, 10, 0, end, None))
    return sample(
        second, groups=(collected_samples.group(second, *queues),), counters=(collected_samples.got(second, 1.0),)
    )


def only_ends(second: float, end: int) -> Sample:
    return sample(second, topics=(collected_samples.ends(second, (0, 0, end)),))


def progress(second: float, *committed: int | None) -> Sample:
    """Return a sample of a group in several queues."""
    queues = [(number, offset, 0, 1000, None) for number, offset in enumerate(committed)]
    return sample(
        second, groups=(collected_samples.group(second, *queues),), counters=(collected_samples.got(second, 1.0),)
    )


RESET = [*state(5, 50, 100, age=1), *state(15, 70, 100, age=1), *state(25, 0, 100, age=1)]
CASES = {
    "article": [
        one for step in range(12)
        for one in state(5 + 10 * step, 100 * step, 3000 + 50 * step, age=60_000, master=0.0, slave=10.0)
    ],
    "first": state(5, 70, 100),
    "nothing waits": state(5, 100, 100),
    "reset": RESET,
    "reset only": RESET[1:],
    "no offset": [*state(5, None, 100), *state(15, None, 110)],
    "first commit": [*state(5, None, 100), *state(15, 40, 110, age=1)],
    "lost": [*state(5, 50, 100), *state(15, 50, 40)],
    "gap": [*state(5, 50, 100, age=1), *state(305, 80, 100, age=1)],
    "master unreachable": [*state(5, 50, 100, slave=1.0), away(65), sample(65, 1, counters=(collected_samples.got(65, 4.0),))],
    "slave away": [*state(5, 50, 100, age=1), *state(15, 60, 100, age=1), away(5, 1), away(15, 1)],
    "no ends": [two_queues(5, 10, 20), two_queues(15, 40, None)],
    "removed": [sample(5, groups=(collected_samples.group(5, (0, 10, 40, 100, None)),))],
    "no group": [only_ends(5, 100), only_ends(25, 300)],
    "bucket's edge": [*state(-5, 50, 100, age=1), *state(5, 70, 100, age=1)],
    "second queue begins later": [
        progress(5, 0, None), progress(15, 500, None), progress(25, 540, 40), progress(35, 580, 80), progress(45, 620, 120),
    ],
    "queue added": [progress(5, 0), progress(15, 100), progress(25, 200, 0), progress(35, 300, 30)],
    "growing": [*state(5, 50, 100, age=1), *state(15, 60, 200, age=1)],
}  # fmt: skip


@pytest.fixture(scope="module")
def minutes(spark: SparkSession) -> dict[str, list[Row]]:
    """Return the rows of group G in each case."""
    result = folded(spark, CASES)
    return {case: [row for row in rows if row["consumer_group"] == "G"] for case, rows in result.items()} | {
        "no group": result["no group"]
    }


def test_a_backlog_served_by_a_slave_has_its_rates_and_forecast(minutes: dict[str, list[Row]]) -> None:
    """A slave serves a backlog: the master counts no deliveries, the offsets advance, and the lag drains in minutes."""
    first, second = minutes["article"]
    assert set(first) == {*CONSUMPTION.column_names, "bucket"}
    assert (first["window_start"], second["window_start"]) == (at(0), at(60))
    assert (second["consumed_tps"], second["produced_tps"]) == (10.0, 5.0)
    assert (second["delivered_master_tps"], second["delivered_slaves_tps"]) == (0.0, 10.0)
    assert (second["lag"], second["lag_change"]) == (3000 - 50 * 11, -250)
    assert second["drain_s"] == second["lag"] / 5
    assert (second["oldest_age_ms"], second["removed"], second["queues"], second["seconds"]) == (60_000, 0, 1, 60.0)
    assert (first["flags"], second["flags"]) == ([], [])


def test_results_do_not_depend_on_order_or_duplicates_of_samples(spark: SparkSession) -> None:
    assert folded(spark, CASES, seed=7) == folded(spark, CASES)
    assert folded(spark, {}) == {}


def test_the_first_sample_has_a_lag_but_no_rate(minutes: dict[str, list[Row]]) -> None:
    (row,) = minutes["first"]
    assert (row["lag"], row["consumed_tps"], row["produced_tps"], row["drain_s"]) == (30, None, None, None)
    assert row["flags"] == ["only one sample", "message age unknown for some queues"]
    (row,) = minutes["nothing waits"]
    assert (row["lag"], row["drain_s"], row["oldest_age_ms"]) == (0, 0.0, None)


def test_a_growing_lag_has_no_forecast(minutes: dict[str, list[Row]]) -> None:
    (row,) = minutes["growing"]
    assert (row["consumed_tps"], row["produced_tps"], row["lag_change"], row["drain_s"]) == (1.0, 10.0, 90, None)


def test_the_first_minute_of_a_bucket_uses_the_previous_sample(minutes: dict[str, list[Row]]) -> None:
    before, after = minutes["bucket's edge"]
    assert (before["bucket"], before["consumed_tps"]) == (bucket_of_time(collected_samples.T0_MS - 600_000), None)
    assert (after["bucket"], after["consumed_tps"], after["flags"]) == (
        bucket_of_time(collected_samples.T0_MS),
        2.0,
        [],
    )


def test_an_offset_reset_gives_no_negative_rate(minutes: dict[str, list[Row]]) -> None:
    (row,) = minutes["reset"]
    assert (row["consumed_tps"], row["lag"], row["flags"]) == (2.0, 100, ["committed offset moved back"])
    (row,) = minutes["reset only"]
    assert (row["consumed_tps"], row["drain_s"], row["flags"]) == (None, None, ["committed offset moved back"])


def test_a_broker_that_lost_messages_has_no_rate(minutes: dict[str, list[Row]]) -> None:
    (row,) = minutes["lost"]
    assert (row["produced_tps"], row["lag"], row["drain_s"]) == (None, 0, 0.0)
    assert row["flags"] == ["max offset moved back", "committed offset beyond max offset"]


def test_a_queue_without_a_committed_offset_has_an_unknown_lag(minutes: dict[str, list[Row]]) -> None:
    (row,) = minutes["no offset"]
    assert (row["lag"], row["consumed_tps"], row["produced_tps"], row["drain_s"]) == (None, 0.0, 1.0, None)
    assert row["flags"] == ["queue without committed offset"]
    (row,) = minutes["first commit"]
    assert (row["lag"], row["consumed_tps"]) == (70, None)


def test_the_lag_of_the_pipeline_is_that_of_commands_and_console(spark: SparkSession) -> None:
    cases = [(committed, end) for committed in (None, 0, 4, 9, 12) for end in (None, 0, 9)]
    frame = spark.createDataFrame(cases, "committed BIGINT, end BIGINT")
    rows = frame.select("*", consumption.queue_lag(F.col("committed"), F.col("end")).alias("lag")).collect()
    assert [row["lag"] for row in rows] == [None if end is None else queue_lag(offset, end) for offset, end in cases]


def test_samples_far_apart_give_no_rate(minutes: dict[str, list[Row]]) -> None:
    rows = minutes["gap"]
    assert [row["window_start"] for row in rows] == [at(0), at(300)]
    assert (rows[1]["consumed_tps"], rows[1]["lag"], rows[1]["flags"]) == (None, 20, ["samples missing"])


def test_a_minute_without_the_master_is_a_row_of_nulls(minutes: dict[str, list[Row]]) -> None:
    _, row = minutes["master unreachable"]
    known = {name for name, value in row.items() if value is not None}
    assert known == {"window_start", "broker", "topic", "consumer_group", "delivered_slaves_tps", "flags", "bucket"}
    assert row["delivered_slaves_tps"] == 4.0
    assert row["flags"] == ["master counters unknown", "master unreachable"]


def test_deliveries_by_slaves_are_unknown_if_one_is_unreachable(minutes: dict[str, list[Row]]) -> None:
    (row,) = minutes["slave away"]
    assert (row["consumed_tps"], row["delivered_slaves_tps"]) == (1.0, None)
    assert row["flags"] == ["slave counters unknown", "slave 1 unreachable"]


def test_the_lag_is_unknown_if_one_queue_is_unknown(minutes: dict[str, list[Row]]) -> None:
    (row,) = minutes["no ends"]
    assert (row["queues"], row["consumed_tps"], row["lag"], row["drain_s"]) == (2, 3.0, None, None)
    assert "queue bounds unknown" in row["flags"]


def test_rate_and_seconds_are_of_the_same_messages(minutes: dict[str, list[Row]]) -> None:
    """A group's first minutes: some queues have no committed offset yet, or do not exist yet."""
    (row,) = minutes["second queue begins later"]
    assert (row["seconds"], row["consumed_tps"] * row["seconds"]) == (40.0, 620 + 40 + 40)
    (row,) = minutes["queue added"]
    assert (row["seconds"], row["consumed_tps"] * row["seconds"]) == (30.0, 300 + 30)


def test_messages_removed_before_consumption_are_counted(minutes: dict[str, list[Row]]) -> None:
    (row,) = minutes["removed"]
    assert (row["removed"], row["lag"]) == (30, 90)
    assert "unconsumed messages removed" in row["flags"]


def test_a_topic_without_groups_has_a_produce_rate(minutes: dict[str, list[Row]]) -> None:
    (row,) = minutes["no group"]
    assert (row["produced_tps"], row["consumed_tps"], row["lag"], row["flags"]) == (10.0, None, None, [])
