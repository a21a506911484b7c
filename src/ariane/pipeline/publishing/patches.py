"""Computes what few changed messages contribute to a table, before and after their change, in place of whole buckets.

    input rows of the messages, as of `applied`  ─┐
    input rows of the messages, as they are      ─┴ `staged_tables` → before, after ─ `combining` → rows of the bucket
    input rows of all messages of a minute         ─ `staged_tables` → groups of this minute that do not follow from these ─┘

If the rows as of `applied` are no longer on disk, too many messages have changed, or groups that do not follow from them depend on
more than their minute, the bucket is computed from all of its messages. The result is the same:
tests/spark/test_pipeline_few_rows.py compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ariane.pipeline.publishing import combining, few_rows
from ariane.pipeline.publishing.staged_tables import MAX_INTERPRETED_ROWS, MAX_ROWS, FileRows, StagedTables
from ariane.tables import TableSchema
from ariane.tables.table_format import TableVersion
from ariane.tables.table_store import read_version
from ariane.tables.time_buckets import BUCKET_MS, bucket_of_time, bucket_start_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of the input rows of a bucket. For more, computing the whole bucket costs the same.
MAX_PART = 0.5


class Computation(NamedTuple):
    """A table that is computed, its inputs, and how far it contains them."""

    table: TableSchema
    inputs: tuple[TableSchema, ...]
    function: Callable[..., DataFrame]
    versions: Mapping[str, TableVersion]
    applied: Mapping[str, int]
    link: few_rows.Link | None
    """How messages of a bucket depend on each other, and on those of the preceding one; None: they do not."""


def by_message(
    staged: StagedTables,
    home: Path,
    computation: Computation,
    buckets: Collection[str],
    *,
    combination: combining.Combination,
    rewritten: Collection[str] = (),
) -> few_rows.Rows:
    """Return the new rows of buckets, without those that must be computed from all of their messages.

    Args:
        staged: frames of the session.
        home: directory of the tables.
        computation: what to compute.
        buckets: buckets whose inputs have changed.
        combination: how the rows of a bucket change with those of few messages.
        rewritten: names of inputs whose buckets are replaced; rows are added to the others.
    """
    table, inputs, function, versions, applied, link = computation
    changed = few_rows.changed_messages(home, versions, applied, None, rewritten)
    written = few_rows.changed_buckets(versions, applied)
    scopes: dict[str, dict[str, set[str]]] = {}
    for bucket in sorted(buckets):
        sources = [bucket, *([before] if link and (before := _preceding(bucket)) else ())]
        # Rows of unknown time expire one by one.
        if bucket_start_ms(bucket) is not None and all(
            source in changed or source not in written for source in sources
        ):
            scope = _scope(home, versions, link, sources, changed)
            if sum(map(len, scope.values())) <= few_rows.MAX_MESSAGES:
                scopes[bucket] = scope
    selections: dict[str, list[FileRows]] = {}
    labels: dict[str, tuple[str, str]] = {}
    for bucket, scope in scopes.items():
        states = [_selections(home, computation, rewritten, scope, is_before=is_before) for is_before in (True, False)]
        if None in states:
            continue
        # Each state is computed in a bucket of its own, the one after that of its preceding messages.
        labels[bucket] = _label(2 * len(labels)), _label(2 * len(labels) + 1)
        for label, state in zip(labels[bucket], states, strict=True):
            for name, source, path, part in state or ():
                selections.setdefault(name, []).append(
                    FileRows(label if source == bucket else _preceding(label) or "", path, part)
                )
    if not labels:
        return {}
    computed = staged.compute(table, inputs, function, selections, is_interpreted=True)
    former = read_version(home, table)
    combined: dict[str, combining.CombinedRows] = {}
    for bucket, (before, after) in labels.items():
        rows = few_rows.rows_of(home, table, former, bucket)
        if rows is not None:
            ids = scopes[bucket][bucket]
            combined[bucket] = combining.combine(combination, rows, computed.get(before), computed.get(after), ids)
    incomplete = {bucket: part for bucket, part in combined.items() if part.unknown}
    result = {bucket: part.rows for bucket, part in combined.items() if not part.unknown}
    return result | _completed(staged, home, computation, combination, incomplete)


def _completed(
    staged: StagedTables,
    home: Path,
    computation: Computation,
    combination: combining.Combination,
    incomplete: Mapping[str, combining.CombinedRows],
) -> few_rows.Rows:
    """Return the rows of buckets whose unknown groups can be computed from all messages of their minutes."""
    table, inputs, function, versions, _, _ = computation
    selections: dict[str, list[FileRows]] = {}
    buckets: list[str] = []
    count = 0
    for bucket, part in incomplete.items():
        if not all(key[0] in combination.of_minute for key in part.unknown):
            continue
        minutes = {key[combination.key.index("minute")] for key in part.unknown}
        files = [
            (input_, file)
            for input_ in inputs
            for file in (versions[input_.name].files if input_.name in versions else ())
            if file.bucket == bucket
        ]
        ids = [
            message_id
            for input_, file in files
            for message_id in few_rows.ids_of_rows(
                home, input_, [file], few_rows.within_minutes(minutes, input_.time_column)
            )
        ]
        if len(ids) > min(MAX_PART * sum(file.rows for _, file in files), MAX_ROWS):
            continue
        condition = few_rows.of_messages({*ids})
        for input_, file in files:
            path = home / input_.name / file.path
            selections.setdefault(input_.name, []).append(FileRows(bucket, path, condition))
        buckets.append(bucket)
        count += len(ids)
    if not buckets:
        return {}
    computed = staged.compute(table, inputs, function, selections, is_interpreted=count <= MAX_INTERPRETED_ROWS)
    result: few_rows.Rows = {}
    for bucket in buckets:
        rows, unknown = incomplete[bucket]
        parts = [rows]
        if (new := computed.get(bucket)) is not None:
            keys = zip(*(new[name].to_pylist() for name in combination.key), strict=True)
            parts.append(new.filter(pa.array([key in unknown for key in keys], pa.bool_())))
        result[bucket] = pa.concat_tables(parts, promote_options="permissive")
    return result


def _scope(
    home: Path,
    versions: Mapping[str, TableVersion],
    link: few_rows.Link | None,
    sources: list[str],
    changed: Mapping[str, set[str]],
) -> dict[str, set[str]]:
    """Return the messages by bucket whose rows depend on changed ones, or on which these depend."""
    bucket = sources[0]
    ids = {bucket: set(changed.get(bucket, ()))}
    if link is None or link.table.name not in versions:
        return ids
    keyed = {source: few_rows.keys_of(home, versions[link.table.name], link, source) for source in sources}
    keys = {key for source in sources for key in few_rows.keys_of_messages(keyed[source], changed.get(source, set()))}
    # Messages with several records may have several keys.
    count = -1
    while count != len(ids[bucket]) + len(keys) and len(ids[bucket]) <= few_rows.MAX_MESSAGES:
        count = len(ids[bucket]) + len(keys)
        ids[bucket] |= few_rows.messages_with_keys(keyed[bucket], keys)
        keys |= few_rows.keys_of_messages(keyed[bucket], ids[bucket])
    return ids | {source: few_rows.messages_with_keys(keyed[source], keys) for source in sources[1:]}


def _selections(
    home: Path,
    computation: Computation,
    rewritten: Collection[str],
    scope: Mapping[str, set[str]],
    *,
    is_before: bool,
) -> list[tuple[str, str, Path, frozenset[str]]] | None:
    """Return the rows of messages, by input and bucket; None if those before the change are not known."""
    result = []
    for table in computation.inputs:
        version = computation.versions.get(table.name)
        if version is None:
            continue
        for bucket, ids in scope.items():
            if not ids:
                continue
            applied = computation.applied.get(table.name, 0) if is_before else None
            paths = few_rows.paths_of(home / table.name, version, bucket, applied, is_rewritten=table.name in rewritten)
            if paths is None:
                return None
            result += [(table.name, bucket, home / table.name / path, frozenset(ids)) for path in paths]
    return result


def _label(number: int) -> str:
    return bucket_of_time(3 * BUCKET_MS * (number + 1))


def _preceding(bucket: str) -> str | None:
    start_ms = bucket_start_ms(bucket)
    return None if start_ms is None else bucket_of_time(start_ms - BUCKET_MS)
