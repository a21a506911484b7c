"""Finds the few rows of a change, and replaces the rows that depend on them.

    new rows of the inputs ─→ changed messages ─ `staged_tables` ─→ their rows ─┐
    file of the bucket, without these messages ─────────────────────────────────┴→ new file of the bucket

This is for tables whose rows are functions of all input rows with the same `message_id`. The result is that of computing the whole
bucket: tests/spark/test_pipeline_few_rows.py compares both for rows in random order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache, reduce
from itertools import chain, pairwise
from operator import or_
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ariane.tables import TableSchema
from ariane.tables.table_format import BUCKET, DataFile, TableVersion, bucket_of_directory
from ariane.tables.table_store import read_version

MAX_ROWS = 5_000  # new ones of a bucket
MAX_MESSAGES = 500  # changed ones of a table; more are computed with their whole buckets
READ_FILES = 256  # `rows_of_messages` retains the rows of so many
ID = "message_id"
MINUTE = timedelta(minutes=1)
COMPRESSION = "zstd"
# Metadata of a file with the rows of a whole bucket: JSON, the path of the file it was made from, and the messages that differ.
CHANGED = b"ariane.changed"

Rows = dict[str, pa.Table]  # by bucket


class TimedInput(NamedTuple):
    """An input that is joined to the rows of a message by the hour or minute of a time."""

    table: TableSchema
    """Its time column is named as the unit, `hour` or `minute`."""
    unused: tuple[str, ...]
    """Columns that the result does not depend on."""
    message_input: TableSchema
    time_column: str
    """Column of `message_input` that is truncated to the unit and joined."""


class Link(NamedTuple):
    """How a bucket depends on the messages of preceding ones: by common keys of their rows in an input."""

    table: TableSchema
    columns: tuple[str, ...]
    keys: Callable[[pa.Table], pa.ChunkedArray]
    """Takes rows with `columns` and returns the key of each row; null or empty: none."""


def changed_messages(
    home: Path,
    inputs: Mapping[str, TableVersion],
    applied: Mapping[str, int],
    timed: TimedInput | None,
    rewritten: Collection[str] = (),
) -> dict[str, set[str]]:
    """Return the ids of the messages whose rows may have changed, by bucket, of buckets with few of them.

    Args:
        inputs: versions of the inputs.
        applied: last version of each input that the table contains.
        timed: input without message ids.
        rewritten: names of inputs whose buckets are replaced.
    """
    changed: dict[str, set[str]] = {}
    too_many: set[str] = set()
    for name, version in inputs.items():
        if timed is not None and name == timed.table.name:
            continue
        for bucket, files in _new_files(version, applied.get(name, 0)).items():
            if name in rewritten:
                since = _changes_since(home / name, version, bucket, applied.get(name, 0))
                if since is None:
                    too_many.add(bucket)
                else:
                    changed.setdefault(bucket, set()).update(since[0])
                continue
            if sum(file.rows for file in files) > MAX_ROWS:
                too_many.add(bucket)
                continue
            for file in files:
                changed.setdefault(bucket, set()).update(_column(home / name / file.path, ID).to_pylist())
    if timed is not None and timed.table.name in inputs:
        for bucket, ids in _messages_of_times(home, inputs, applied, timed).items():
            if ids is None:
                too_many.add(bucket)
            else:
                changed.setdefault(bucket, set()).update(ids)
    few: dict[str, set[str]] = {}
    for bucket, ids in sorted(changed.items(), key=lambda entry: len(entry[1])):
        if bucket not in too_many and len(ids) + sum(map(len, few.values())) <= MAX_MESSAGES:
            few[bucket] = ids
    return few


def changed_buckets(inputs: Mapping[str, TableVersion], applied: Mapping[str, int]) -> set[str]:
    """Return the buckets whose inputs have new files."""
    return {bucket for name, version in inputs.items() for bucket in _new_files(version, applied.get(name, 0))}


def is_linked(home: Path, version: TableVersion, link: Link, change: tuple[str, set[str]], bucket: str) -> bool:
    """Return whether messages of `bucket` have a key in common with the messages of a change (their bucket, their ids)."""
    changed, ids = change
    keys = keys_of_messages(keys_of(home, version, link, changed), ids)
    return bool(messages_with_keys(keys_of(home, version, link, bucket), keys))


def keys_of(home: Path, version: TableVersion, link: Link, bucket: str) -> pa.Table:
    """Return the message id and the `key` of each record of a bucket."""
    parts = [pa.table({ID: pa.array([], pa.string()), "key": pa.array([], pa.string())})]
    for file in version.files:
        if file.bucket == bucket:
            rows = _columns(home / link.table.name / file.path, (ID, *link.columns))
            parts.append(pa.table({ID: rows[ID], "key": link.keys(rows)}))
    return pa.concat_tables(parts)


def keys_of_messages(keyed: pa.Table, ids: Collection[str]) -> set[str]:
    """Return the keys of messages in the rows of `keys_of`."""
    rows = keyed.filter(pc.is_in(keyed[ID], pa.array(ids, pa.string())))
    return set(pc.unique(rows["key"]).to_pylist()) - {None, ""}


def messages_with_keys(keyed: pa.Table, keys: Collection[str]) -> set[str]:
    """Return the ids of the messages with one of the keys."""
    return set(keyed.filter(pc.is_in(keyed["key"], pa.array(keys, pa.string())))[ID].to_pylist())


def of_messages(ids: Collection[str]) -> pc.Expression:
    """Return the condition that a row belongs to one of the messages."""
    return pc.field(ID).isin(pa.array(sorted(ids), pa.string()))  # typed, also without ids


@lru_cache(maxsize=READ_FILES)
def rows_of_messages(path: Path, ids: frozenset[str]) -> pa.Table:
    """Return the rows of few messages in a data file. Files never change, and several tables of a round need the same rows."""
    return pq.read_table(path, filters=of_messages(ids), partitioning=None)


def ids_of_rows(
    home: Path, table: TableSchema, files: Collection[DataFile], condition: pc.Expression | None = None
) -> list[str]:
    """Return the message id of each row."""
    return [
        message_id
        for file in files
        for message_id in pq.read_table(
            home / table.name / file.path, columns=[ID], filters=condition, partitioning=None
        )[ID].to_pylist()
    ]


def within_minutes(minutes: Collection[datetime], column: str) -> pc.Expression:
    """Return the condition that a time is within one of the minutes."""
    time = pc.field(column)
    return reduce(
        or_, ((time >= pa.scalar(at)) & (time < pa.scalar(at + MINUTE)) for at in sorted(minutes)), pc.scalar(False)
    )


def rows_of(home: Path, table: TableSchema, version: TableVersion | None, bucket: str) -> pa.Table | None:
    """Return the rows of a bucket; None if it has no file."""
    files = [file for file in version.files if file.bucket == bucket] if version else []
    parts = [pq.ParquetFile(home / table.name / file.path).read(columns=table.column_names) for file in files]
    return pa.concat_tables(parts, promote_options="permissive") if parts else None


def paths_of(
    directory: Path, version: TableVersion, bucket: str, applied: int | None, *, is_rewritten: bool
) -> list[str] | None:
    """Return the paths of a bucket's files, or of those of an earlier version; None if these are not known.

    Args:
        directory: directory of the table.
        version: version of the table.
        bucket: bucket of the files.
        applied: number of the earlier version; None: those of `version`.
        is_rewritten: whether the table's buckets are replaced, otherwise rows are added.
    """
    files = [file for file in version.files if file.bucket == bucket]
    if applied is None or all(file.added_version <= applied for file in files):
        return [file.path for file in files]
    if is_rewritten:
        since = _changes_since(directory, version, bucket, applied)
        return None if since is None else since[1]
    # A file that was merged from others may have rows of both.
    if any(file.added_version > applied and _number(file.path) != file.added_version for file in files):
        return None
    return [file.path for file in files if file.added_version <= applied]


def merge(home: Path, table: TableSchema, changed: Mapping[str, set[str]], computed: Mapping[str, pa.Table]) -> Rows:
    """Return the rows of the buckets in `changed`: those of the table without the changed messages, and the computed ones."""
    former = read_version(home, table)
    files = _by_bucket(former.files if former else (), lambda file: file.bucket in changed)
    merged: Rows = {}
    for bucket, ids in changed.items():
        parts = [computed[bucket]] if bucket in computed else []
        paths = [file.path for file in files.get(bucket, ())]
        for path in paths:
            rows = pq.ParquetFile(home / table.name / path).read()
            is_unchanged = pc.invert(pc.is_in(rows[ID], pa.array(ids, pa.string())))
            parts.append(_take(rows, pc.indices_nonzero(is_unchanged)))
        rows = pa.concat_tables(parts, promote_options="permissive") if parts else None
        if rows is not None and rows.num_rows:
            rows = rows.select(table.column_names).replace_schema_metadata()
            if len(paths) <= 1:
                change = json.dumps([paths[0] if paths else None, sorted(ids)])
                rows = rows.replace_schema_metadata({CHANGED: change})
            merged[bucket] = rows
    return merged


def write(directory: Path, table: TableSchema, rows: Rows) -> None:
    """Write a file per bucket below the directory of a version, sorted by the table's sort columns."""
    order = [(name, "ascending") for name in table.sort_columns]
    for bucket, part in rows.items():
        if not part.num_rows:
            continue
        target = directory / f"{BUCKET}={bucket}"
        target.mkdir(parents=True, exist_ok=True)
        ordered = _take(part, pc.sort_indices(part, sort_keys=order))
        pq.write_table(
            ordered,
            target / "part-00000.zstd.parquet",
            compression=COMPRESSION,
            compression_level=3,
            use_dictionary=False,  # 67,000 journeys take 1.8 MB, with dictionaries 3.4 MB
            row_group_size=max(1, table.row_group_bytes * ordered.num_rows // max(1, ordered.nbytes)),
            write_page_index=True,
        )


def _take(rows: pa.Table, numbers: pa.UInt64Array) -> pa.Table:
    """Return rows by their numbers, as slices without copies if they are few runs of successive numbers."""
    signed = numbers.cast(pa.int64())
    breaks = pc.indices_nonzero(pc.not_equal(pc.subtract(signed[1:], signed[:-1]), 1))
    if len(breaks) > 2 * MAX_MESSAGES:
        return rows.take(numbers)
    bounds = [0, *(number + 1 for number in breaks.to_pylist()), len(signed)]
    runs = [(signed[first].as_py(), last - first) for first, last in pairwise(bounds) if last > first]
    return pa.concat_tables([rows.slice(first, count) for first, count in runs]) if runs else rows.slice(0, 0)


def _messages_of_times(
    home: Path, inputs: Mapping[str, TableVersion], applied: Mapping[str, int], timed: TimedInput
) -> dict[str, set[str] | None]:
    """Return the ids of the messages with a row at a time for which the timed input has changed; None: unknown."""
    name, unit = timed.table.name, timed.table.time_column
    names = (unit, *(name for name in timed.table.column_names if name not in (unit, *timed.unused)))
    directory, version = home / name, inputs[name]
    result: dict[str, set[str] | None] = {}
    for bucket, files in _new_files(version, applied.get(name, 0)).items():
        before = _path_at(version, bucket, applied.get(name, 0))
        if before is None or not (directory / before).exists():
            result[bucket] = None
            continue
        old, new = (
            {tuple(row.values()) for path in paths for row in _columns(directory / path, names).to_pylist()}
            for paths in ([before], [file.path for file in files])
        )
        times = {row[0] for row in old ^ new}
        events = inputs.get(timed.message_input.name)
        ids: set[str] = set()
        for file in events.files if events is not None and times else ():
            if file.bucket == bucket:
                rows = _columns(home / timed.message_input.name / file.path, (ID, timed.time_column))
                at = pc.floor_temporal(rows[timed.time_column], unit=unit)
                ids.update(rows.filter(pc.is_in(at, pa.array(times, at.type)))[ID].to_pylist())
        result[bucket] = ids
    return result


def _changes_since(
    directory: Path, version: TableVersion, bucket: str, applied: int
) -> tuple[set[str], list[str]] | None:
    """Return the messages that differ from an earlier version, and its path, if any; None if they are not known."""
    (path, *others) = (file.path for file in version.files if file.bucket == bucket)
    if others:
        return None
    changed: set[str] = set()
    while _number(path) > applied:
        try:
            change = (pq.read_metadata(directory / path).metadata or {}).get(CHANGED)
        except FileNotFoundError:  # removed after its retention
            return None
        if change is None:
            return None
        former, ids = json.loads(change)
        changed.update(ids)
        if former is None:
            return changed, []
        path = former
    return (changed, [path]) if (directory / path).exists() else None


def _path_at(version: TableVersion, bucket: str, number: int) -> str | None:
    """Return the path of a bucket's file in an earlier version; None if there was none, or it is no longer listed."""
    retired = (file.path for file in version.retired if bucket_of_directory(file.path.split("/")[1]) == bucket)
    paths = chain((file.path for file in version.files if file.bucket == bucket), retired)
    return max((path for path in paths if _number(path) <= number), key=_number, default=None)


def _number(path: str) -> int:
    match = re.match(r"v=(\d+)/", path)
    assert match is not None
    return int(match[1])


def _new_files(version: TableVersion, applied: int) -> dict[str, list[DataFile]]:
    return _by_bucket(version.files, lambda file: file.added_version > applied)


def _by_bucket(files: Iterable[DataFile], predicate: Callable[[DataFile], bool]) -> dict[str, list[DataFile]]:
    result: dict[str, list[DataFile]] = {}
    for file in filter(predicate, files):
        result.setdefault(file.bucket, []).append(file)
    return result


def _columns(path: Path, names: tuple[str, ...]) -> pa.Table:
    return pq.ParquetFile(path).read(columns=list(names))


def _column(path: Path, name: str) -> Any:
    return _columns(path, (name,))[name]
