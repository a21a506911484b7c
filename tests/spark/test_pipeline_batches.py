"""Micro-batches that the driver decodes have the rows of those that tasks decode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import record_frames
import trace_frames
from trace_frames import after, before, pub

import collected_samples
from ariane.metrics_collector.sample import encode_messages
from ariane.pipeline import jobs, source_reader
from ariane.pipeline.publishing import decoded_batches, table_publisher
from ariane.spark.read.offset_ranges import OffsetRange
from ariane.tables import RECORD_POSITIONS, SAMPLES_QUEUES, TRACE_EVENTS, TRACE_REJECTS, TableSchema, table_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def traces() -> list[dict[str, Any]]:
    bodies = (trace_frames.body([pub("A"), before("A", "R", 5), after("A", "R", 9)]), b"Pub\x01no time\x02", b"")
    return [trace_frames.message(body, number) for number, body in enumerate(bodies)]


def records() -> list[dict[str, Any]]:
    log = record_frames.Log()
    half = log.half(record_frames.unique_id(1), 5)
    log.op(half, ms=6)
    log.commit(half, 7)
    log.timer(record_frames.unique_id(2), 8, 1_000)
    return log.rows


def samples() -> list[dict[str, Any]]:
    bodies = [body for item in collected_samples.state(1, 3, 9, slave=1.0) for body in encode_messages(item)]
    return collected_samples.messages([*bodies, b"no sample"]).to_pylist()


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
        texts = sorted(map(str, rows.to_pylist()))
        published += [msgspec.structs.replace(file, path="", bytes=0), str(columns), order, texts]
    return published


@pytest.mark.spark
@pytest.mark.parametrize(
    ("source", "messages", "filled"),
    [
        (jobs.TRACES, traces, {TRACE_EVENTS.name, TRACE_REJECTS.name}),
        (jobs.RECORDS, records, {RECORD_POSITIONS.name}),
        (jobs.SAMPLES, samples, {SAMPLES_QUEUES.name}),
    ],
)
def test_the_driver_writes_the_files_that_tasks_write(
    spark: SparkSession, tmp_path: Path, source: jobs.TopicSource, messages: Any, filled: set[str]
) -> None:
    rows = [{name: row.get(name) for name in trace_frames.arrow_of(source.schema).names} for row in messages()]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, trace_frames.arrow_of(source.schema)))
    collected = decoded_batches.collect(frame)
    assert collected is not None
    by_table = decoded_batches.rows_of_tables(collected, source.decode, source.tables)
    assert by_table is not None
    assert all(by_table[name] for name in filled)
    for table in source.tables:
        table_publisher.append_batch(by_table[table.name], tmp_path / "driver", table, "q 1", 0, 0)
        by_tasks = decoded_batches.rows_of_table(frame, source.decode, table)
        table_publisher.append_batch(by_tasks, tmp_path / "tasks", table, "q 1", 0, 0)
        assert written(tmp_path / "driver", table) == written(tmp_path / "tasks", table), table.name


def test_an_empty_micro_batch_has_no_rows() -> None:
    for source in (jobs.TRACES, jobs.RECORDS, jobs.SAMPLES):
        rows = decoded_batches.rows_of_tables([], source.decode, source.tables)
        assert rows == {table.name: {} for table in source.tables}


@pytest.mark.spark
def test_the_driver_collects_no_more_than_its_limits(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = spark.range(100)
    assert decoded_batches.collect(messages) is not None
    monkeypatch.setattr(decoded_batches, "MAX_MESSAGES", 99)
    assert decoded_batches.collect(messages) is None


def test_the_driver_reads_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tasks read the rest, so other sources no longer wait for this one."""

    class Reader:
        read_parts = 0

        def read(self, _: Any) -> Iterator[pa.RecordBatch]:
            self.read_parts += 1
            yield from trace_frames.messages(traces()).to_batches()

    reader = Reader()
    source: Any = SimpleNamespace(
        source=jobs.TRACES, _stream=SimpleNamespace(reader=reader), _checkpoint=tmp_path, _max_messages=100
    )
    source._decode = partial(source_reader.SourceReader._decode, source)
    parts: list[Any] = [OffsetRange(None, 0, 3)] * 3  # type: ignore[arg-type]
    monkeypatch.setattr(decoded_batches, "ranges_of", lambda *_: (parts, 60))
    read = partial(source_reader.SourceReader._rows_in_driver, source, None, 0)  # type: ignore[arg-type]
    rows = read()
    assert rows is not None
    assert sum(part.num_rows for part in rows[TRACE_EVENTS.name].values()) == 9
    monkeypatch.setattr(decoded_batches, "PART_BYTES", 1)
    monkeypatch.setattr(decoded_batches, "MAX_ROW_BYTES", 1)
    reader.read_parts = 0
    assert [read() for _ in range(6)] == [None] * 6
    assert reader.read_parts == 2, "read by tasks at once until it is tried again"
    assert not decoded_batches._reading.locked()


def test_a_large_micro_batch_is_decoded_by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`_rows` chooses by the bounds; both ways return the rows of the same tables."""
    batch: Any = type("Batch", (), {"persist": lambda self: self, "unpersist": lambda self: None})()
    reader: Any = type("Reader", (), {"source": jobs.TRACES, "_rows_in_driver": lambda *_: None})()
    monkeypatch.setattr(decoded_batches, "rows_of_table", lambda *given: given)
    with source_reader.SourceReader._rows(reader, batch, 0) as rows_of:
        assert rows_of(TRACE_EVENTS) == (batch, jobs.TRACES.decode, TRACE_EVENTS)
    decoded = decoded_batches.rows_of_tables(
        trace_frames.messages(traces()).to_batches(), jobs.TRACES.decode, jobs.TRACES.tables
    )
    reader = type("Reader", (), {"source": jobs.TRACES, "_rows_in_driver": lambda *_: decoded})()
    with source_reader.SourceReader._rows(reader, batch, 0) as rows_of:
        rows = rows_of(TRACE_EVENTS)
    assert isinstance(rows, dict)
    assert sum(part.num_rows for part in rows.values()) == 3


def test_the_driver_decodes_in_parts_and_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = trace_frames.messages([trace_frames.message(trace_frames.body([pub(f"M{n}")]), n) for n in range(2_500)])
    parts: list[int] = []

    def decode(part: pa.Table) -> Any:
        parts.append(part.num_rows)
        return jobs.TRACES.decode(part)

    whole = decoded_batches.rows_of_tables(messages.to_batches(), decode, jobs.TRACES.tables)
    assert whole is not None
    assert parts == [2_500]
    monkeypatch.setattr(decoded_batches, "PART_BYTES", 1)
    parts.clear()
    in_parts = decoded_batches.rows_of_tables(messages.to_batches(), decode, jobs.TRACES.tables)
    assert parts == [1_000, 1_000, 500]
    assert in_parts is not None
    assert {name: list(rows) for name, rows in in_parts.items()} == {name: list(rows) for name, rows in whole.items()}
    for bucket, rows in whole[TRACE_EVENTS.name].items():
        assert rows.equals(in_parts[TRACE_EVENTS.name][bucket])
    monkeypatch.setattr(decoded_batches, "MAX_ROW_BYTES", 1)
    parts.clear()
    assert decoded_batches.rows_of_tables(messages.to_batches(), decode, jobs.TRACES.tables) is None
    assert parts == [1_000], "the rest is left to tasks"


def test_the_offsets_of_a_query_state_how_many_messages_a_micro_batch_has(tmp_path: Path) -> None:
    def ranges(offset: dict[str, Any]) -> tuple[list[tuple[int, int]], int]:
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / "7").write_text("v1\n{}\n" + json.dumps(offset))
        parts, count = decoded_batches.ranges_of(tmp_path, 7)
        return [(part.start, part.end) for part in parts], count

    def positions(*offsets: int) -> dict[str, Any]:
        return {"T": {"b": {str(queue): offset for queue, offset in enumerate(offsets)}}}

    assert ranges({"from": positions(5, 0), "to": positions(105, 0)}) == ([(5, 105)], 100)
    assert ranges({"from": positions(5, 0), "to": positions(105, 1)}) == ([(5, 105), (0, 1)], 101)
    assert ranges({"initial": positions(5, 0)}) == ([], 0), "nothing was stored before"
