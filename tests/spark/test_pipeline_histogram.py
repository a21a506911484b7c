"""Spark, DuckDB and Python map durations to the same buckets and compute equal histograms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import duckdb
import pyarrow as pa
import trace_frames as frames
from pyspark.sql import functions as F

from ariane.pipeline.tables.histogram_columns import aggregated, bucket_of, histogram
from ariane.reports.tables import histogram_sql as in_sql
from ariane.tables.histogram import bucket_index, histogram_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# Every ms that a quick client sees, and a few up to years.
DURATIONS = [*range(3000), *(int(1.37**number) for number in range(1, 120))]


def test_python_spark_and_duckdb_compute_the_same_buckets(spark: SparkSession) -> None:
    table = pa.table({"ms": pa.array([None, -1, *DURATIONS], pa.int64())})
    expected = {None: None, -1: None} | {ms: bucket_index(ms) for ms in DURATIONS}
    rows = frames.rows(spark.createDataFrame(table).withColumn("b", bucket_of(F.col("ms"))))
    assert {row["ms"]: row["b"] for row in rows} == expected
    with duckdb.connect() as sql:
        sql.register("t", table)
        assert dict(sql.execute(f"SELECT ms, {in_sql.bucket_expression('ms')} FROM t").fetchall()) == expected


def test_histograms_by_group(spark: SparkSession) -> None:
    rows = [{"name": "ab"[ms % 2], "ms": ms % 40, "other": None if ms % 3 else -ms} for ms in range(500)]
    rows.append({"name": "c", "ms": None, "other": None})
    frame = spark.createDataFrame(rows, "name STRING, ms BIGINT, other BIGINT")
    one_by_one = frame.groupBy("name").agg(histogram(F.col("ms")).alias("h"))
    together = aggregated(frame, ["name"], {"h": "ms", "o": "other"}, {"rows": F.count("*")})
    expected = {name: histogram_of([ms % 40 for ms in range(500) if "ab"[ms % 2] == name]) for name in "ab"}
    assert {row["name"]: dict(row["h"]) for row in frames.rows(one_by_one)} == expected | {"c": {}}
    result = {row["name"]: row for row in frames.rows(together)}
    assert {name: row["h"] and dict(row["h"]) for name, row in result.items()} == expected | {"c": None}
    assert {name: (row["h_max"], row["rows"]) for name, row in result.items()} == {
        "a": (38, 250), "b": (39, 250), "c": (None, 1),
    }  # fmt: skip
    # Only 0 is not the negative of another value.
    assert {name: (row["o"] and len(row["o"]), row["o_max"]) for name, row in result.items()} == {
        "a": (1, 0), "b": (None, None), "c": (None, None),
    }  # fmt: skip
