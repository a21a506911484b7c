"""Computes the rows of few minutes, for tables whose rows follow from events of a minute and the rows of the adjacent ones.

    minutes of new events, two rows before and after ─ `staged_tables` → their rows ─┐
    rows of the other minutes ──────────────────────────────────────────────────────┴→ rows of the bucket

The minute of an event is that of the time column of its table. A row is the function of its minute's events, of their messages, and
of what the events of the row before and after yield. So rows change that are one row away from new events, and these depend on
events that are two rows away.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ariane.pipeline.publishing import few_rows
from ariane.pipeline.publishing.patches import Computation
from ariane.pipeline.publishing.staged_tables import MAX_INTERPRETED_ROWS, FileRows, StagedTables
from ariane.tables import TableSchema
from ariane.tables.table_store import read_version
from ariane.tables.time_buckets import bucket_start_ms

# Of the events of a bucket. For more, computing the whole bucket costs the same.
MAX_PART = 0.5


def by_minute(
    staged: StagedTables,
    home: Path,
    computation: Computation,
    buckets: Collection[str],
    *,
    events: TableSchema,
    series: tuple[str, ...],
) -> few_rows.Rows:
    """Return the new rows of buckets, without those that must be computed from all of their events.

    Args:
        staged: frames of the session.
        home: directory of the tables.
        computation: what to compute; its inputs are `events` and tables with message ids.
        buckets: buckets whose inputs have changed.
        events: input whose rows belong to minutes.
        series: columns of the table; rows with equal ones are adjacent to each other, in the order of `minute`.
    """
    table, inputs, function, versions, _, _ = computation
    former = read_version(home, table)
    selections: dict[str, list[FileRows]] = {}
    kept: few_rows.Rows = {}
    rewritten: dict[str, set[tuple[Any, ...]]] = {}
    changed: dict[str, set[datetime]] = {}
    count = 0
    for bucket in buckets:
        rows = few_rows.rows_of(home, table, former, bucket)
        minutes = _changed_minutes(home, computation, events, bucket)
        # Rows of unknown time expire one by one.
        if rows is None or minutes is None or events.name not in versions or bucket_start_ms(bucket) is None:
            continue
        keys = _keys(rows, series)
        near, far = _adjacent(keys, minutes)
        condition = few_rows.within_minutes({*minutes, *(key[-1] for key in far)}, events.time_column)
        files = [file for file in versions[events.name].files if file.bucket == bucket]
        ids = few_rows.ids_of_rows(home, events, files, condition)
        if len(ids) > MAX_PART * sum(file.rows for file in files):
            continue
        count += len(ids)
        for input_ in inputs:
            chosen = condition if input_ == events else few_rows.of_messages({*ids})
            listed = versions[input_.name].files if input_.name in versions else ()
            selections.setdefault(input_.name, []).extend(
                FileRows(bucket, home / input_.name / file.path, chosen) for file in listed if file.bucket == bucket
            )
        changed[bucket], rewritten[bucket] = minutes, near
        kept[bucket] = rows.filter(pa.array([key not in near and key[-1] not in minutes for key in keys], pa.bool_()))
    if not kept:
        return {}
    computed = staged.compute(table, inputs, function, selections, is_interpreted=count <= MAX_INTERPRETED_ROWS)
    result = dict(kept)
    for bucket in kept.keys() & computed.keys():
        new = computed[bucket]
        is_new = [key in rewritten[bucket] or key[-1] in changed[bucket] for key in _keys(new, series)]
        parts = [kept[bucket], new.filter(pa.array(is_new, pa.bool_()))]
        result[bucket] = pa.concat_tables(parts, promote_options="permissive")
    return result


def _keys(rows: pa.Table, series: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in (*series, "minute")), strict=True))


def _adjacent(
    keys: Sequence[tuple[Any, ...]], minutes: Collection[datetime]
) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """Return the keys of rows that are one row away from some minutes in their series, and those at most two rows away."""
    by_series: dict[tuple[Any, ...], list[datetime]] = {}
    for *of_series, minute in keys:
        by_series.setdefault(tuple(of_series), []).append(minute)
    near: set[tuple[Any, ...]] = set()
    far: set[tuple[Any, ...]] = set()
    for of, times in by_series.items():
        times.sort()
        for minute in minutes:
            before, after = times[: bisect_left(times, minute)], times[bisect_right(times, minute) :]
            near |= {(*of, time) for time in (*before[-1:], *after[:1])}
            far |= {(*of, time) for time in (*before[-2:], *after[:2])}
    return near, far


def _changed_minutes(home: Path, computation: Computation, events: TableSchema, bucket: str) -> set[datetime] | None:
    """Return the minutes of new events, and of all events of messages with other new rows; None: there are too many."""
    minutes: set[datetime] = set()
    for table in computation.inputs:
        version, applied = computation.versions.get(table.name), computation.applied.get(table.name, 0)
        files = (
            [file for file in version.files if file.bucket == bucket and file.added_version > applied]
            if version
            else []
        )
        if sum(file.rows for file in files) > few_rows.MAX_MESSAGES:
            return None
        condition = None
        if table != events:
            condition = few_rows.of_messages({*few_rows.ids_of_rows(home, table, files)})
            version = computation.versions.get(events.name)
            files = [file for file in version.files if file.bucket == bucket] if files and version else []
        for file in files:
            path = home / events.name / file.path
            rows = pq.read_table(path, columns=[events.time_column], filters=condition, partitioning=None)
            minutes.update(pc.unique(pc.floor_temporal(rows[events.time_column], unit="minute")).to_pylist())
    return minutes
