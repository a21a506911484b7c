"""Tables computed message by message are those computed bucket by bucket: the same rows, whatever the order of their inputs."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import pyarrow.parquet as pq
import trace_frames as frames
from trace_frames import after, before, pub

from ariane.model.trace_event import TraceEvent
from ariane.pipeline import jobs
from ariane.pipeline.publishing import (
    combining,
    few_rows,
    incremental,
    minute_patches,
    staged_tables,
    table_publisher,
)
from ariane.pipeline.tables import health, traffic
from ariane.tables import ALL_TABLES, CLOCKS, JOURNEYS, MESSAGES, TRACE_EVENTS, directory_tables, table_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
HOUR_MS = 3_600_000
TABLES = (*jobs.TRACE_TABLES, *jobs.TRAFFIC_TABLES, jobs.HEALTH_TABLE)
HOSTS = ("10.0.0.9:5000", "10.0.0.8:5000")


class Feed:
    """Base tables to which rows are appended, and the tables computed from them."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.home = home
        self._offset = 0
        self._staged = staged_tables.StagedTables(spark, home)

    def append(self, traces: list[tuple[TraceEvent, int, str]], stored: list[dict[str, Any]]) -> None:
        rows = []
        for event, late_ms, host in traces:
            rows.append(frames.message(frames.body([event]), self._offset, host, frames.at(60_000 + late_ms)))
            self._offset += 1
        events = frames.events_of_messages(self.spark, rows)
        added = [(TRACE_EVENTS, events)]
        if stored:
            added.append((MESSAGES, frames.stored_messages(self.spark, stored)))
        for table, frame in added:
            former = table_store.read_version(self.home, table)
            change = table_publisher.TableChange(frame=frame, applied=former.applied if former else {})
            table_publisher.commit(self.home, table, change, 0)

    def rebuild(self, *tables: incremental.IncrementalTable) -> list[int]:
        """Rebuild tables and return the number of changed buckets of each."""
        results = [
            incremental.rebuild_changed(self.spark, self.home, table, 0, staged=self._staged)
            for table in tables or TABLES
        ]
        return [result.buckets if result is not None else 0 for result in results]

    def rows(self, name: str) -> list[str]:
        (table,) = (table for table in ALL_TABLES if table.name == name)
        paths = directory_tables.data_paths(self.home, table)
        return sorted(str(row) for path in paths for row in pq.ParquetFile(path).read(table.column_names).to_pylist())


def in_queue(message_id: str, ms: int, keys: str) -> dict[str, Any]:
    return frames.stored(message_id, ms, broker="b", queue_id=0, queue_offset=ms, commit_log_offset=ms, keys=keys)


def record_combined(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, ...]]:
    """Return a set to which the key of each table is added that is computed from few messages or minutes."""
    combined: set[tuple[str, ...]] = set()
    combine, adjacent = combining.combine, minute_patches._adjacent

    def record_combine(combination: combining.Combination, *args: Any) -> Any:
        result = combine(combination, *args)
        if not result.unknown:
            combined.add(combination.key)
        return result

    def record_adjacent(*args: Any) -> Any:
        combined.add((CLOCKS.name,))
        return adjacent(*args)

    monkeypatch.setattr(combining, "combine", record_combine)
    monkeypatch.setattr(minute_patches, "_adjacent", record_adjacent)
    return combined


@pytest.mark.long(
    "tests/spark/test_pipeline_few_rows.py::test_a_late_event_changes_only_its_message_and_those_of_a_changed_clock",
)
@pytest.mark.parametrize("seed", [1])
def test_rows_in_random_order_yield_the_tables_of_a_whole_rebuild(
    spark: SparkSession, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    ids = [f"7F0000010001AABBCCDD{number % 4 // 3 * 600_000:08X}{number:04X}" for number in range(12)]  # two buckets
    traces: list[tuple[TraceEvent, int, str]] = []
    for number, message_id in enumerate(ids):
        at = number * 40
        for event in (
            pub(message_id, at),
            *(
                part
                for call in range(rng.randrange(3))
                for part in (
                    before(message_id, f"{message_id}-{call}", at + 5, retry_times=call),
                    after(message_id, f"{message_id}-{call}", at + 9, code=rng.choice((0, 2))),
                )
            ),
        ):
            traces.append((event, rng.choice((0, 0, 0, 3, HOUR_MS, 2 * HOUR_MS)), rng.choice(HOSTS)))
    traces += rng.sample(traces, 3)  # read twice
    stored = [in_queue(message_id, number * 40 + 1, f"key-{number % 5}") for number, message_id in enumerate(ids)]
    stored += [frames.stored(message_id, 900, topic="%DLQ%G") for message_id in rng.sample(ids, 2)]
    rng.shuffle(traces)
    rng.shuffle(stored)
    steps = 3
    monkeypatch.setattr(minute_patches, "MAX_PART", 1)  # also if their few events are all of the bucket
    combined = record_combined(monkeypatch)
    gradual = Feed(spark, tmp_path / "gradual")
    for step in range(steps):
        # 8 of 12: some buckets are computed as a whole, those of linked messages always.
        monkeypatch.setattr(few_rows, "MAX_MESSAGES", 8 if step < steps - 1 else 500)
        gradual.append(traces[step::steps], stored[step::steps])
        with ThreadPoolExecutor(1) as thread:  # without an active session of Spark
            thread.submit(gradual.rebuild).result()
    assert combined == {traffic.COMBINATION.key, traffic.SLOWEST.key, health.COMBINATION.key, (CLOCKS.name,)}
    monkeypatch.setattr(few_rows, "MAX_MESSAGES", 0)
    monkeypatch.setattr(staged_tables, "MAX_ROWS", 0)
    whole = Feed(spark, tmp_path / "whole")
    for step in range(steps):
        whole.append(traces[step::steps], stored[step::steps])
    whole.rebuild()
    for table in TABLES:
        assert gradual.rows(table.table.name) == whole.rows(table.table.name), table.table.name
    assert len(whole.rows(JOURNEYS.name)) >= len(ids)


def test_a_late_event_changes_only_its_message_and_those_of_a_changed_clock(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    a, b, c, d, e = (f"7F0000010001AABBCCDD00000000{number:04X}" for number in range(5))
    (journeys,) = (table for table in jobs.TRACE_TABLES if table.table is JOURNEYS)

    def changed() -> dict[str, set[str]]:
        inputs = {
            table.name: version
            for table in journeys.inputs
            if (version := table_store.read_version(feed.home, table)) is not None
        }
        former = table_store.read_version(feed.home, JOURNEYS)
        assert former is not None
        return few_rows.changed_messages(feed.home, inputs, former.applied, journeys.timed)

    feed.append([(pub(a), 0, HOSTS[0]), (pub(b, 5), 0, HOSTS[0]), (pub(c), HOUR_MS, HOSTS[0])], [])
    feed.rebuild()
    assert changed() == {}
    feed.append([(pub(d), HOUR_MS, HOSTS[0])], [])
    feed.rebuild(jobs.TRACE_TABLES[0])
    assert list(changed().values()) == [{d}], "the clock has one more message and the same bounds"
    feed.append([(pub(e, HOUR_MS + 30_000), HOUR_MS, HOSTS[0])], [])
    feed.rebuild(jobs.TRACE_TABLES[0])
    assert set().union(*changed().values()) >= {c, d, e}, "the bounds of their time are narrower"
    plans = [frame._plan.toString() for (name, *_), frame in feed._staged._frames.items() if name == JOURNEYS.name]
    assert [plan.count("Exchange ") for plan in plans] == [1] * len(plans), (
        "after the full outer join of sends and deliveries"
    )
    assert plans


@pytest.mark.long(
    "tests/spark/test_pipeline_few_rows.py::test_a_late_event_changes_only_its_message_and_those_of_a_changed_clock",
)
def test_an_example_is_replaced_by_one_of_its_minute(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"7F0000010001AABBCCDD{number // 20 * 60_000:08X}{number:04X}" for number in range(80)]
    sends = [(pub(message_id, number // 20 * 60_000), HOUR_MS, HOSTS[0]) for number, message_id in enumerate(ids)]
    stored = [in_queue(message_id, number // 20 * 60_000 + number, "") for number, message_id in enumerate(ids)]
    late = [(after(ids[23], "R", 9), 2 * HOUR_MS, HOSTS[0])]
    feed, whole = Feed(spark, tmp_path / "feed"), Feed(spark, tmp_path / "whole")
    feed.append(sends, stored)
    feed.rebuild(jobs.HEALTH_TABLE)
    staged: list[int] = []
    ids_of_rows = few_rows.ids_of_rows

    def record_ids(*args: Any) -> list[str]:
        result = ids_of_rows(*args)
        staged.append(len(result))
        return result

    with monkeypatch.context() as patched:
        patched.setattr(few_rows, "ids_of_rows", record_ids)
        # Only whole buckets are computed by this.
        patched.setattr(incremental, "_compute_staged", None)
        patched.setattr(incremental, "_compute", lambda *args: None)
        feed.append(late, [])
        feed.rebuild(jobs.HEALTH_TABLE)
    assert sum(staged) == 20, "the records of a minute; their traces were stored in another one"
    monkeypatch.setattr(few_rows, "MAX_MESSAGES", 0)
    whole.append(sends + late, stored)
    whole.rebuild(jobs.HEALTH_TABLE)
    assert feed.rows("health") == whole.rows("health")
    assert any(ids[23] in row and "'G'" in row for row in feed.rows("health"))


@pytest.mark.long(
    "tests/spark/test_pipeline_few_rows.py::test_a_late_event_changes_only_its_message_and_those_of_a_changed_clock",
)
def test_a_bucket_is_computed_after_the_preceding_one_only_for_common_ordering_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    a, b, c = (f"7F0000010001AABBCCDD{ms:08X}0001" for ms in (0, 600_000, 1))  # a and c before b's bucket
    feed.append([(pub(a), 0, HOSTS[0]), (pub(b), 0, HOSTS[0])], [in_queue(a, 1, "x"), in_queue(b, 2, "y")])
    assert feed.rebuild(jobs.HEALTH_TABLE) == [2]
    feed.append([(before(a, "R", 5), 9, HOSTS[0])], [])
    assert feed.rebuild(jobs.HEALTH_TABLE) == [1]
    feed.append([(pub(c), 0, HOSTS[0])], [in_queue(c, 3, "y")])
    assert feed.rebuild(jobs.HEALTH_TABLE) == [2]
