"""Rows of a table that aggregate several messages, after the rows of few messages have changed.

    rows of the bucket - rows of the changed messages before + rows of the changed messages after

Sums and histograms are subtracted and added. Greatest values and examples are known only if what replaces them is: otherwise their
groups are computed from all of their messages (`patches`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

Row = dict[str, Any]
Key = tuple[Any, ...]  # values of the columns that identify a group


class GroupChange(NamedTuple):
    """Rows with one key."""

    rows: Sequence[Row]
    """Those of the bucket."""
    before: Sequence[Row]
    """Those of the changed messages alone, before the change."""
    after: Sequence[Row]
    ids: Collection[str]
    """The changed messages."""


class Unknown(Exception):
    """Raised if the new rows depend on other messages than the changed ones."""


class Combination(NamedTuple):
    """How the rows of a table change with those of few messages."""

    key: tuple[str, ...]
    change: Callable[[GroupChange], Sequence[Row]]
    """Returns the new rows with a key; raises Unknown."""
    of_minute: Collection[Any] = ()
    """Groups whose first value is one of these depend only on messages with an input row in their `minute`, by the time column of
    the input."""


class CombinedRows(NamedTuple):
    """New rows of a bucket."""

    rows: pa.Table
    """Without those of unknown groups."""
    unknown: set[Key]
    """The changed groups whose rows depend on other messages."""


def combine(
    combination: Combination, rows: pa.Table, before: pa.Table | None, after: pa.Table | None, ids: Collection[str]
) -> CombinedRows:
    """Return the new rows of a bucket."""
    names = rows.column_names
    old, new = (_by_key(part.select(names).to_pylist() if part else (), combination.key) for part in (before, after))
    changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    keys = list(zip(*(rows[name].to_pylist() for name in combination.key), strict=True))
    is_changed = [key in changed for key in keys]
    former = _by_key(rows.filter(pa.array(is_changed, pa.bool_())).to_pylist(), combination.key)
    changed_rows: list[Row] = []
    unknown: set[Key] = set()
    for key in sorted(changed, key=repr):
        group = GroupChange(former.get(key, ()), old.get(key, ()), new.get(key, ()), ids)
        try:
            changed_rows += combination.change(group)
        except Unknown:
            unknown.add(key)
    others = rows.filter(pa.array([not value for value in is_changed], pa.bool_()))
    return CombinedRows(pa.concat_tables([others, pa.Table.from_pylist(changed_rows, schema=rows.schema)]), unknown)


def change_sums(
    group: GroupChange, count: str, sums: Sequence[str], nullable_sums: Collection[str], measures: Sequence[str]
) -> Sequence[Row]:
    """Return the row of a group of sums, histograms and their greatest values.

    Args:
        group: at most one row each.
        count: column with the number of aggregated rows, never null.
        sums: columns of sums, `count` included.
        nullable_sums: those of them that are null if all their values are, although the group has rows.
        measures: columns of histograms; `<measure>_max` is the greatest value.
    """
    row, before, after = (next(iter(rows), {}) for rows in (group.rows, group.before, group.after))
    if (row.get(count) or 0) == (before.get(count) or 0):  # all rows of the group have changed
        return group.after
    result = dict(row)
    for name in sums:
        value, less, more = row[name], before.get(name), after.get(name)
        if less == more:
            continue
        rest = None if value is None else value - (less or 0)
        if rest == 0 and less is not None and more is None and name in nullable_sums:
            raise Unknown
        result[name] = more if rest is None else rest + (more or 0)
    for name in measures:
        counts = dict(row[name] or ())
        for part, sign in ((before, -1), (after, 1)):
            for bucket, number in part.get(name) or ():
                counts[bucket] = counts.get(bucket, 0) + sign * number
        result[name] = sorted((bucket, number) for bucket, number in counts.items() if number) or None
        result[f"{name}_max"] = _greatest(group, f"{name}_max") if result[name] else None
    return (result,)


def change_examples(group: GroupChange, limit: int) -> Sequence[Row]:
    """Return the row of a group with its `count`, the greatest `worst`, and the worst `examples`.

    Examples are ordered by descending `worst`, nulls last, `at` and `message_id`.
    """
    row, before, after = (next(iter(rows), {}) for rows in (group.rows, group.before, group.after))
    count = row.get("count", 0) - before.get("count", 0) + after.get("count", 0)
    if not count:
        return ()
    examples = _highest(
        row.get("examples", ()),
        after.get("examples", ()),
        group.ids,
        (lambda row: (row["worst"] is None, -(row["worst"] or 0), row["at"], row["message_id"]), limit),
        is_complete=row.get("count", 0) <= limit,
    )
    return ({**(row or after), "count": count, "worst": examples[0]["worst"], "examples": examples},)


def change_highest(group: GroupChange, order: Callable[[Row], tuple[Any, ...]], limit: int) -> Sequence[Row]:
    """Return the first rows of a group in the order of a key, at most `limit`."""
    return _highest(group.rows, group.after, group.ids, (order, limit), is_complete=len(group.rows) < limit)


def _highest(
    rows: Sequence[Row],
    after: Sequence[Row],
    ids: Collection[str],
    ranking: tuple[Callable[[Row], tuple[Any, ...]], int],
    *,
    is_complete: bool,
) -> list[Row]:
    """Return the first rows; Unknown if they may be others than those of `rows` and `after`."""
    order, limit = ranking
    others = [row for row in rows if row["message_id"] not in ids]
    result = sorted([*others, *after], key=order)[:limit]
    # Rows that follow the last known one are unknown.
    if not is_complete and len(others) < len(rows):
        last = max(map(order, rows))
        if len(result) < limit or order(result[-1]) > last:
            raise Unknown
    return result


def _greatest(group: GroupChange, name: str) -> Any:
    row, before, after = (next(iter(rows), {}).get(name) for rows in (group.rows, group.before, group.after))
    if row is None or (after is not None and after >= row):
        return after
    if before == row:
        raise Unknown  # the second greatest value is in no row
    return row


def _by_key(rows: Iterable[Row], key: tuple[str, ...]) -> dict[Key, list[Row]]:
    result: dict[Key, list[Row]] = {}
    for row in rows:
        result.setdefault(tuple(row[name] for name in key), []).append(row)
    return result
