"""Folds: tables that follow from others, slot by slot.

    slots whose inputs have new files → `work` on all rows of these slots → their rows in the table are replaced

A fold is a function of all rows of a slot, so news may come late, twice or in any order: the slot is folded again. How far
each input is folded stands in the table itself (`Published.done`), in the same file as its rows: nothing else is remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ariane.pipeline import table_publisher
from ariane.tables import TableSchema
from ariane.tables.published import TableVersion, current
from ariane.tables.time_buckets import SPAN_MS, begins_ms, of_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class IncrementalTable(NamedTuple):
    """`work` is given one DataFrame per input, with the input's columns and `slot`, and returns the table's columns and
    `slot`. An input that nobody has published has no rows."""

    table: TableSchema
    inputs: tuple[TableSchema, ...]
    work: Callable[..., DataFrame]
    before: int = 0
    """How many slots before a slot `work` has to see too; the rows that it returns for those are left out."""
    routed: bool = False
    """Whether its rows lie in other slots than what they follow from. Then `work` is given one DataFrame more per input, in
    front of the others: of the slots with news only what is new. Its rows are added, and may come to be there twice."""
    timed_by: tuple[TableSchema, ...] = ()
    """The inputs that tell as of when the table is, where others may have nothing for days; none: all of them."""
    tend: Callable[[SparkSession, Path, int], object] | None = None
    """Called now and then, with HOME and the time in ms, beside the merging of small files."""


class AggregationResult(NamedTuple):
    """What a fold did."""

    table: TableSchema
    slots: int
    published: TableVersion


def refold(spark: SparkSession, home: Path, fold: IncrementalTable, now_ms: int) -> AggregationResult | None:
    """Fold the slots that have news and publish them; None when there are none."""
    inputs = {table.name: now for table in fold.inputs if (now := current(home, table)) is not None}
    former = current(home, fold.table)
    folded = former.done if former is not None and former.schema == fold.table.schema else {}
    # What has a later version than there is was folded of a table that is no more.
    known = {name: version for name, version in folded.items() if name in inputs and version <= inputs[name].version}
    news = {file.slot for name, now in inputs.items() for file in now.files if file.added > known.get(name, 0)}
    there = {file.slot for now in inputs.values() for file in now.files}
    slots = news | ({after for slot in news for after in _after(slot, fold.before)} & there)
    if not slots:
        return None
    seen = slots | {earlier for slot in slots for earlier in _after(slot, -fold.before)}
    frames = [table_publisher.read(spark, home, table, lambda file: file.slot in seen) for table in fold.inputs]
    if fold.routed:
        frames = [_news(spark, home, table, known.get(table.name, 0)) for table in fold.inputs] + frames
    rows = fold.work(*frames)
    if fold.before:
        rows = rows.where(rows[table_publisher.SLOT].isin(sorted(slots)))
    timed = {table.name for table in fold.timed_by or fold.inputs}
    times = [now.as_of_ms for name, now in inputs.items() if name in timed and now.as_of_ms is not None]
    published = table_publisher.change(
        rows,
        home,
        fold.table,
        done={name: now.version for name, now in inputs.items()},
        replaced=() if fold.routed else slots,
        as_of_ms=min(times, default=None),
        now_ms=now_ms,
    )
    return AggregationResult(fold.table, len(slots), published)


def _news(spark: SparkSession, home: Path, table: TableSchema, known: int) -> DataFrame:
    """The rows that came after a version of a table."""
    return table_publisher.read(spark, home, table, lambda file: file.added > known)


def _after(slot: str, count: int) -> set[str]:
    """The `count` slots after a slot; with a negative count, those before it."""
    begin = begins_ms(slot)
    if begin is None:
        return set()
    step = SPAN_MS if count > 0 else -SPAN_MS
    return {of_time(begin + step * number) for number in range(1, abs(count) + 1)}
