"""Incremental aggregation: tables computed from other tables, bucket by bucket.

    buckets whose inputs have new files → `compute` on all rows of these buckets → replace their rows in the table

A table is a pure function of all input rows of a bucket. Late, duplicate or reordered rows need no special handling: their bucket
is computed again. The progress of each input is stored in the table itself (`TableVersion.applied`), in the commit that
publishes the rows. No other state exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ariane.pipeline import table_publisher
from ariane.tables import TableSchema
from ariane.tables.table_format import BUCKET, TableVersion, read_version
from ariane.tables.time_buckets import BUCKET_MS, bucket_of_time, bucket_start_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class IncrementalTable:
    """A table and the function that computes it."""

    table: TableSchema  # where the result is stored; its name is also the key of progress
    # Tables whose changed buckets cause a computation, in the order of the arguments of `compute`.
    inputs: tuple[TableSchema, ...]
    compute: Callable[..., DataFrame]
    """Takes one DataFrame per input (its columns and `bucket`) and returns the table's columns and `bucket`. An input that was
    not published yet is empty."""
    lookback: int = 0
    """Number of preceding buckets that `compute` needs as well. The rows that it returns for these are dropped."""
    repartitioned: bool = False
    """Whether rows go to other buckets than their input rows. `compute` then takes an additional DataFrame per input, before the
    others, with only the new rows of changed buckets. Its result is appended, so rows may be duplicated."""
    freshness_inputs: tuple[TableSchema, ...] = ()
    """The inputs that define the as-of time of the table, where others may receive no rows for days; empty: all of them."""
    maintain: Callable[[SparkSession, Path, int], object] | None = None
    """Periodic work on the table after compaction; takes the session, HOME and the time in ms."""


class AggregationResult(NamedTuple):
    """Outcome of one rebuild."""

    table: TableSchema
    buckets: int
    published: TableVersion


def rebuild_changed(
    spark: SparkSession, home: Path, incremental: IncrementalTable, now_ms: int
) -> AggregationResult | None:
    """Compute the buckets whose inputs have changed and publish them; return None if there are none."""
    inputs = {table.name: version for table in incremental.inputs if (version := read_version(home, table)) is not None}
    applied = _applied_versions(home, incremental.table, inputs)
    changed_buckets = {
        file.bucket
        for name, version in inputs.items()
        for file in version.files
        if file.added_version > applied.get(name, 0)
    }
    # A bucket also changes with the preceding ones that it is computed from, provided that it has rows itself.
    filled_buckets = {file.bucket for version in inputs.values() for file in version.files}
    following = {after for bucket in changed_buckets for after in _adjacent_buckets(bucket, incremental.lookback)}
    buckets = changed_buckets | (following & filled_buckets)
    if not buckets:
        return None
    read_buckets = buckets | {
        before for bucket in buckets for before in _adjacent_buckets(bucket, -incremental.lookback)
    }
    frames = [
        table_publisher.read_table(spark, home, table, lambda file: file.bucket in read_buckets)
        for table in incremental.inputs
    ]
    if incremental.repartitioned:
        frames = [
            _rows_added_after(spark, home, table, applied.get(table.name, 0)) for table in incremental.inputs
        ] + frames
    rows = incremental.compute(*frames)
    if incremental.lookback:
        rows = rows.where(rows[BUCKET].isin(sorted(buckets)))
    change = table_publisher.TableChange(
        frame=rows,
        applied={name: version.version for name, version in inputs.items()},
        replaced=() if incremental.repartitioned else buckets,
        as_of_ms=_as_of_ms(incremental, inputs),
    )
    published = table_publisher.commit(home, incremental.table, change, now_ms)
    return AggregationResult(incremental.table, len(buckets), published)


def _applied_versions(home: Path, table: TableSchema, inputs: Mapping[str, TableVersion]) -> dict[str, int]:
    """Return the version of each input that the table contains; without those that must be applied from the beginning."""
    former = read_version(home, table)
    if former is None or former.schema != table.schema:
        return {}
    # A version newer than the input's own belongs to an input that was removed since, or replaced by a backup.
    return {
        name: version for name, version in former.applied.items() if name in inputs and version <= inputs[name].version
    }


def _as_of_ms(incremental: IncrementalTable, inputs: Mapping[str, TableVersion]) -> int | None:
    names = {table.name for table in incremental.freshness_inputs or incremental.inputs}
    times = [version.as_of_ms for name, version in inputs.items() if name in names and version.as_of_ms is not None]
    return min(times, default=None)


def _rows_added_after(spark: SparkSession, home: Path, table: TableSchema, version: int) -> DataFrame:
    return table_publisher.read_table(spark, home, table, lambda file: file.added_version > version)


def _adjacent_buckets(bucket: str, count: int) -> set[str]:
    """Return the `count` buckets after a bucket; with a negative count, those before it."""
    start_ms = bucket_start_ms(bucket)
    if start_ms is None:
        return set()
    step_ms = BUCKET_MS if count > 0 else -BUCKET_MS
    return {bucket_of_time(start_ms + step_ms * number) for number in range(1, abs(count) + 1)}
