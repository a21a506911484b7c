"""Incremental aggregation: tables computed from other tables, bucket by bucket.

    buckets whose inputs have new files → `compute` on all rows of these buckets → replace their rows in the table

A table is a pure function of all input rows of a bucket. Late, duplicate or reordered rows need no special handling: their bucket
is computed again. The progress of each input is stored in the table itself (`TableVersion.applied`), in the commit that
publishes the rows. No other state exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ariane.pipeline.publishing import few_rows, patches, staged_tables, table_publisher
from ariane.tables import TableSchema
from ariane.tables.table_format import BUCKET, DataFile, TableVersion
from ariane.tables.table_home import Home
from ariane.tables.table_store import open_store, read_version
from ariane.tables.time_buckets import BUCKET_MS, bucket_of_time, bucket_start_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Versions = Mapping[str, TableVersion | None]


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
    link: few_rows.Link | None = None
    """How a bucket depends on the messages of the preceding ones; None: on all of them."""
    patch: Callable[[staged_tables.StagedTables, Path, patches.Computation, set[str]], few_rows.Rows] | None = None
    """Returns the rows of buckets with few changes, where a row depends on several messages; None: buckets are computed from all
    their messages."""
    repartitioned: bool = False
    """Whether rows go to other buckets than their input rows. `compute` then takes an additional DataFrame per input, before the
    others, with only the new rows of changed buckets. Its result is appended, so rows may be duplicated."""
    freshness_inputs: tuple[TableSchema, ...] = ()
    """The inputs that define the as-of time of the table, where others may receive no rows for days; empty: all of them."""
    is_by_message: bool = False
    """Whether each row depends only on the input rows with its `message_id`, and on `timed`."""
    timed: few_rows.TimedInput | None = None
    """An input without message ids, for tables by message."""
    maintain: Callable[[SparkSession, Home, int], object] | None = None
    """Periodic work on the table after compaction; takes the session, HOME and the time in ms."""


class AggregationResult(NamedTuple):
    """Outcome of one rebuild."""

    table: TableSchema
    buckets: int
    published: TableVersion


def current_versions(home: Home, tables: Iterable[TableSchema]) -> Versions:
    """Return the versions of tables by name; None for those that were not published yet."""
    return {table.name: read_version(home, table) for table in tables}


def rebuild_changed(
    spark: SparkSession,
    home: Home,
    incremental: IncrementalTable,
    now_ms: int,
    pinned: Versions | None = None,
    staged: staged_tables.StagedTables | None = None,
) -> AggregationResult | None:
    """Compute the buckets whose inputs have changed and publish them; return None if there are none.

    Args:
        spark: session of the job.
        home: directory of the tables, or their place in an object store.
        incremental: what to compute.
        now_ms: time of the commit.
        pinned: versions to read of inputs that queries append to meanwhile. Tables that are computed one after another from
            the same versions agree with each other; otherwise the next computation of the first one changes the others again.
        staged: frames of earlier calls for this session and HOME; None: they are built again.
    """
    newest = current_versions(home, (table for table in incremental.inputs if table.name not in (pinned or {})))
    versions = {**newest, **(pinned or {})}
    inputs = {table.name: version for table in incremental.inputs if (version := versions[table.name]) is not None}
    applied = _applied_versions(home, incremental.table, inputs)
    changed_buckets = few_rows.changed_buckets(inputs, applied)
    # A bucket also changes with the preceding ones that it is computed from, provided that it has rows itself.
    filled_buckets = {file.bucket for version in inputs.values() for file in version.files}
    following = _following_buckets(home, incremental, inputs, applied, changed_buckets)
    buckets = changed_buckets | (following & filled_buckets)
    if not buckets:
        return None
    rest = buckets
    rows: Iterable[few_rows.Rows] = ()
    # Files of an object store are read by tasks only.
    if (directory := open_store(home).directory) is not None and not incremental.repartitioned:
        staged = staged or staged_tables.StagedTables(spark, directory)
        few = _compute_few(staged, directory, incremental, (inputs, applied), buckets)
        groups = _groups(incremental, inputs, buckets - few.keys())
        rows = chain((few,), _compute_groups(staged, directory, incremental, inputs, groups))
        rest = buckets.difference(few, *groups)
    change = table_publisher.TableChange(
        frame=_compute(spark, home, incremental, (inputs, applied), rest),
        rows=rows,
        applied={name: version.version for name, version in inputs.items()},
        replaced=() if incremental.repartitioned else buckets,
        as_of_ms=_as_of_ms(incremental, inputs),
    )
    published = table_publisher.commit(home, incremental.table, change, now_ms)
    return AggregationResult(incremental.table, len(buckets), published)


def _following_buckets(
    home: Home,
    incremental: IncrementalTable,
    inputs: Mapping[str, TableVersion],
    applied: Mapping[str, int],
    changed_buckets: set[str],
) -> set[str]:
    """Return the buckets that may change with the preceding ones."""
    link, directory = incremental.link, open_store(home).directory
    if link is None or directory is None:
        return {after for bucket in changed_buckets for after in _adjacent_buckets(bucket, incremental.lookback)}
    changed = few_rows.changed_messages(directory, inputs, applied, None)
    version = inputs.get(link.table.name)
    return {
        after
        for bucket in changed_buckets
        for after in _adjacent_buckets(bucket, incremental.lookback)
        if bucket not in changed
        or (version is not None and few_rows.is_linked(directory, version, link, (bucket, changed[bucket]), after))
    }


NO_ROWS = pa.table({})
Inputs = tuple[Mapping[str, TableVersion], Mapping[str, int]]  # their versions, and those that the table contains


def _compute(
    spark: SparkSession, home: Home, incremental: IncrementalTable, inputs: Inputs, buckets: set[str]
) -> DataFrame | None:
    """Return the rows of buckets, computed in as many tasks as Spark chooses; None without buckets."""
    if not buckets:
        return None
    versions, applied = inputs
    if incremental.repartitioned:
        new = _rows_of(spark, home, incremental, versions, lambda name, file: file.added_version > applied.get(name, 0))
        changed_rows = _rows_of(spark, home, incremental, versions, lambda _, file: file.bucket in buckets)
        return incremental.compute(*new, *changed_rows)
    read_buckets = _with_lookback(incremental, buckets)
    frame = incremental.compute(
        *_rows_of(spark, home, incremental, versions, lambda _, file: file.bucket in read_buckets)
    )
    return frame.where(frame[BUCKET].isin(sorted(buckets))) if incremental.lookback else frame


def _compute_few(
    staged: staged_tables.StagedTables, home: Path, incremental: IncrementalTable, inputs: Inputs, buckets: set[str]
) -> few_rows.Rows:
    """Return the rows of buckets with few changed messages. Those of other buckets are missing."""
    versions, applied = inputs
    former = read_version(home, incremental.table)
    # The rows of an input that was removed or replaced by a backup are in all rows of their buckets.
    if not applied or former is None or former.applied.keys() != applied.keys():
        return {}
    if incremental.is_by_message:
        changed = few_rows.changed_messages(home, versions, applied, incremental.timed)
        if not changed:
            return {}
        computed = _compute_staged(staged, home, incremental, versions, changed)
        return dict.fromkeys(changed, NO_ROWS) | few_rows.merge(home, incremental.table, changed, computed)
    if incremental.patch is None:
        return {}
    computation = patches.Computation(
        incremental.table, incremental.inputs, incremental.compute, versions, applied, incremental.link
    )
    return incremental.patch(staged, home, computation, buckets)


def _groups(
    incremental: IncrementalTable, inputs: Mapping[str, TableVersion], buckets: Collection[str]
) -> list[set[str]]:
    """Distribute buckets to groups that one task can compute, in the order of time. Larger buckets are missing."""
    counts: Counter[str] = Counter()
    for version in inputs.values():
        for file in version.files:
            counts[file.bucket] += file.rows

    def is_small(group: set[str]) -> bool:
        return sum(counts[bucket] for bucket in _with_lookback(incremental, group)) <= staged_tables.MAX_ROWS

    groups: list[set[str]] = []
    for bucket in sorted(buckets):
        if groups and is_small({*groups[-1], bucket}):
            groups[-1].add(bucket)
        elif is_small({bucket}):
            groups.append({bucket})
    return groups


def _compute_groups(
    staged: staged_tables.StagedTables,
    home: Path,
    incremental: IncrementalTable,
    inputs: Mapping[str, TableVersion],
    groups: Iterable[set[str]],
) -> Iterator[few_rows.Rows]:
    """Yield the rows of each group of buckets, computed in one task."""
    for group in groups:
        read_buckets = _with_lookback(incremental, group)
        computed = _compute_staged(staged, home, incremental, inputs, dict.fromkeys(read_buckets))
        yield {bucket: rows for bucket, rows in computed.items() if bucket in group}


def _with_lookback(incremental: IncrementalTable, buckets: set[str]) -> set[str]:
    return buckets | {before for bucket in buckets for before in _adjacent_buckets(bucket, -incremental.lookback)}


def _rows_of(
    spark: SparkSession,
    home: Home,
    incremental: IncrementalTable,
    inputs: Mapping[str, TableVersion],
    predicate: Callable[[str, DataFile], bool],
) -> list[DataFrame]:
    """Return the rows of each input in files that match `predicate(table name, file)`, without files newer than its version."""

    def read(table: TableSchema) -> DataFrame:
        last = inputs[table.name].version if table.name in inputs else 0
        return table_publisher.read_table(
            spark, home, table, lambda file: file.added_version <= last and predicate(table.name, file)
        )

    return [read(table) for table in incremental.inputs]


def _compute_staged(
    staged: staged_tables.StagedTables,
    home: Path,
    incremental: IncrementalTable,
    inputs: Mapping[str, TableVersion],
    buckets: Mapping[str, set[str] | None],
) -> few_rows.Rows:
    """Compute the rows of buckets, or only those of some messages, in one task."""
    selections: dict[str, list[staged_tables.FileRows]] = {}
    for table in incremental.inputs:
        for file in inputs[table.name].files if table.name in inputs else ():
            if file.bucket in buckets:
                ids = buckets[file.bucket]
                rows = frozenset(ids) if ids is not None and few_rows.ID in table.column_names else None
                selection = staged_tables.FileRows(file.bucket, home / table.name / file.path, rows)
                selections.setdefault(table.name, []).append(selection)
    is_interpreted = _count_rows(inputs, buckets) <= staged_tables.MAX_INTERPRETED_ROWS or None not in buckets.values()
    return staged.compute(
        incremental.table, incremental.inputs, incremental.compute, selections, is_interpreted=is_interpreted
    )


def _count_rows(inputs: Mapping[str, TableVersion], buckets: Collection[str]) -> int:
    return sum(file.rows for version in inputs.values() for file in version.files if file.bucket in buckets)


def _applied_versions(home: Home, table: TableSchema, inputs: Mapping[str, TableVersion]) -> dict[str, int]:
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


def _adjacent_buckets(bucket: str, count: int) -> set[str]:
    """Return the `count` buckets after a bucket; with a negative count, those before it."""
    start_ms = bucket_start_ms(bucket)
    if start_ms is None:
        return set()
    step_ms = BUCKET_MS if count > 0 else -BUCKET_MS
    return {bucket_of_time(start_ms + step_ms * number) for number in range(1, abs(count) + 1)}
