"""A micro-batch of few messages yields the rows of a large one, computed by the same functions in one job."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import record_frames
import sample_frames
import trace_frames
from pyspark.sql.types import StructType
from trace_frames import after, before, pub

from ariane.metrics_collector.sample import encode_messages
from ariane.pipeline import jobs
from ariane.pipeline.publishing import small_batches, staged_tables
from ariane.tables import RECORD_POSITIONS, SAMPLES_QUEUES, TRACE_EVENTS, TRACE_REJECTS

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


def test_the_offsets_of_a_query_state_how_many_messages_a_micro_batch_has(tmp_path: Path) -> None:
    def is_small(offset: dict[str, Any]) -> bool:
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / "7").write_text("v1\n{}\n" + json.dumps(offset))
        return small_batches.is_small(tmp_path, 7)

    def positions(*offsets: int) -> dict[str, Any]:
        return {"T": {"b": {str(queue): offset for queue, offset in enumerate(offsets)}}}

    assert is_small({"from": positions(5, 0), "to": positions(105, 0)})
    assert not is_small({"from": positions(5, 0), "to": positions(105, 1)})
    assert is_small({"initial": positions(5, 0)}), "nothing was stored before"
    assert not is_small({"logOffset": 1}), "files of any size"
