"""Micro-batches of few messages, and those that the driver writes, yield the tables of large ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import msgspec
import pyarrow.parquet as pq
import record_frames
import sample_frames
import trace_frames
from pyspark.sql.types import StructType
from trace_frames import after, before, pub

from ariane.metrics_collector.sample import encode_messages
from ariane.pipeline import jobs, source_reader
from ariane.pipeline.publishing import collected_batches, small_batches, staged_tables, table_publisher
from ariane.tables import RECORD_POSITIONS, SAMPLES_QUEUES, TRACE_EVENTS, TRACE_REJECTS, TableSchema, table_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def traces(spark: SparkSession) -> DataFrame:
    bodies = (trace_frames.body([pub("A"), before("A", "R", 5), after("A", "R", 9)]), b"Pub\x01no time\x02", b"")
    return trace_frames.messages(spark, [trace_frames.message(body, number) for number, body in enumerate(bodies)])


def records(spark: SparkSession) -> DataFrame:
    log = record_frames.Log()
    half = log.half(record_frames.unique_id(1), 5)
    log.op(half, ms=6)
    log.commit(half, 7)
    log.timer(record_frames.unique_id(2), 8, 1_000)
    schema = StructType.fromDDL(jobs.RECORDS.schema)
    assert isinstance(schema, StructType)
    rows = [{name: row.get(name) for name in schema.names} for row in log.rows]
    return spark.createDataFrame(rows, schema)


def samples(spark: SparkSession) -> DataFrame:
    bodies = [body for item in sample_frames.state(1, 3, 9, slave=1.0) for body in encode_messages(item)]
    return sample_frames.messages(spark, [*bodies, b"no sample"])


def texts(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(map(str, rows))


@pytest.mark.parametrize(
    ("source", "messages", "filled"),
    [
        (jobs.TRACES, traces, {TRACE_EVENTS.name, TRACE_REJECTS.name}),
        (jobs.RECORDS, records, {RECORD_POSITIONS.name}),
        (jobs.SAMPLES, samples, {SAMPLES_QUEUES.name}),
    ],
)
def test_a_small_micro_batch_has_the_rows_of_a_large_one(
    spark: SparkSession, tmp_path: Path, source: jobs.TopicSource, messages: Any, filled: set[str]
) -> None:
    batch = messages(spark)
    staged = staged_tables.StagedTables(spark, tmp_path)
    small = small_batches.SmallBatches(staged, source.name, source.schema, source.prepare, source.append_tables)
    small.compute(batch.limit(1).toArrow())
    assert small.compute(batch.limit(0).toArrow()) == {table.name: {} for table, _ in source.append_tables}
    computed = small.compute(batch.toArrow())
    for table, select in source.append_tables:
        expected = select(source.prepare(batch)).toArrow().to_pylist()
        rows = [row | {"bucket": bucket} for bucket, part in computed[table.name].items() for row in part.to_pylist()]
        assert texts(rows) == texts(
            {name: row[name] for name in (*table.column_names, "bucket")} for row in expected
        ), table.name
    assert all(computed[name] for name in filled)


def written(home: Path, table: TableSchema) -> list[Any]:
    """Return what is published of a table: of each file its bucket and statistics, columns, order, and rows."""
    version = table_store.read_version(home, table)
    assert version is not None
    published: list[Any] = [version.as_of_ms]
    for file in version.files:
        rows = pq.ParquetFile(home / table.name / file.path).read()
        # Rows with equal sort columns have no order, and Spark sorts nulls first, pyarrow last.
        order = [row for row in rows.select(table.sort_columns).to_pylist() if None not in row.values()]
        columns = rows.schema.remove_metadata()
        published += [msgspec.structs.replace(file, path="", bytes=0), str(columns), order, texts(rows.to_pylist())]
    return published


@pytest.mark.parametrize(
    ("source", "messages"), [(jobs.TRACES, traces), (jobs.RECORDS, records), (jobs.SAMPLES, samples)]
)
def test_the_driver_writes_the_files_that_tasks_write(
    spark: SparkSession, tmp_path: Path, source: jobs.TopicSource, messages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = messages(spark)
    reader: Any = SimpleNamespace(source=source, _stream=source_reader.SourceStream(batch), _small=object())

    def append(home: Path) -> list[bool]:
        with source_reader.SourceReader._rows(reader, batch, 0) as rows_of:
            rows = [rows_of(append) for append in source.append_tables]
            for append, selected in zip(source.append_tables, rows, strict=True):
                table_publisher.append_batch(selected, home, append.table, "q 1", 0, 0)
        return [isinstance(selected, dict) for selected in rows]

    assert all(append(tmp_path / "driver"))
    monkeypatch.setattr(collected_batches, "MAX_ROWS", 1)
    assert not any(append(tmp_path / "tasks"))
    for table, _ in source.append_tables:
        assert written(tmp_path / "driver", table) == written(tmp_path / "tasks", table), table.name


def test_the_driver_collects_no_more_than_its_limits(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = spark.range(100).persist()
    settings = spark.sparkContext._jsc.sc().conf()
    try:
        assert collected_batches.are_collectible(rows)
        for limit, collectible in (("1k", False), ("64k", True), ("0", True)):
            settings.set("spark.driver.maxResultSize", limit)
            assert collected_batches.are_collectible(rows) is collectible
        monkeypatch.setattr(collected_batches, "MAX_BYTES", 500)
        assert not collected_batches.are_collectible(rows)
        monkeypatch.undo()
        monkeypatch.setattr(collected_batches, "MAX_ROWS", 99)
        assert not collected_batches.are_collectible(rows)
    finally:
        settings.remove("spark.driver.maxResultSize")
        rows.unpersist()


def test_the_offsets_of_a_query_state_how_many_messages_a_micro_batch_has(tmp_path: Path) -> None:
    def ranges(offset: dict[str, Any]) -> list[tuple[int, int]] | None:
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / "7").write_text("v1\n{}\n" + json.dumps(offset))
        small = small_batches.small_ranges(tmp_path, 7)
        return None if small is None else [(part.start, part.end) for part in small]

    def positions(*offsets: int) -> dict[str, Any]:
        return {"T": {"b": {str(queue): offset for queue, offset in enumerate(offsets)}}}

    assert ranges({"from": positions(5, 0), "to": positions(105, 0)}) == [(5, 105)]
    assert ranges({"from": positions(5, 0), "to": positions(105, 1)}) is None
    assert ranges({"initial": positions(5, 0)}) == [], "nothing was stored before"
