"""Collects the rows of a micro-batch, so that the driver writes them in place of tasks.

    cached rows ─┬ within the bounds ─→ Arrow ─→ a file per bucket (`few_rows.write`)
                 └ more ──────────────→ shuffled by bucket, sorted and written by tasks (`directory_files`)

Copying rows to the driver costs less than Spark's shuffle, sort and Parquet writer (docs/decisions/0053).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ariane.pipeline.publishing import staged_tables
from ariane.pipeline.publishing.few_rows import Rows
from ariane.tables import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_ROWS = 1_000_000  # the driver sorts them in seconds, and other tables wait
MAX_BYTES = 256 << 20  # the driver holds them twice: as collected, and in the order of the file
# Of spark.driver.maxResultSize. A table can have larger rows than the prepared messages, by columns that it repeats.
MAX_RESULT_SHARE = 0.5


def are_collectible(prepared: DataFrame) -> bool:
    """Fill the cache of prepared messages (`persist`), and return whether the driver can collect their rows."""
    if prepared.count() > MAX_ROWS:
        return False
    statistics = prepared.select("*")._jdf.queryExecution().optimizedPlan().stats()
    settings = prepared.sparkSession.sparkContext._jsc.sc().conf()
    max_result_bytes = settings.getSizeAsBytes("spark.driver.maxResultSize", "1g")  # 0: any size
    max_bytes = min(MAX_BYTES, MAX_RESULT_SHARE * max_result_bytes) if max_result_bytes else MAX_BYTES
    return bool(statistics.sizeInBytes() <= max_bytes)


def collect(rows: DataFrame, table: TableSchema) -> Rows:
    """Return the rows of a table by bucket."""
    return staged_tables.by_bucket(rows.toArrow(), table)
