"""Data model of a report: tables and plots, the as-of time, and warnings about missing data.

Pure values: `ariane.cli` renders them as text, JSON or HTML. Titles, names of columns, notes and warnings of the reports are
texts that the console translates (`ariane.reports.texts`; names of columns may be plain).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, overload

Value = str | int | float | bool | datetime | None
"""A cell. None means unknown, which is never shown as zero."""


class Column(NamedTuple):
    """A column of a table. `unit`: ms, /s, %, B, or empty for counts and texts."""

    name: str
    unit: str = ""


class Table(NamedTuple):
    """Rows under a title. `note` explains how to read them; `omitted_rows` is the number of further rows."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    omitted_rows: int = 0


class Line(NamedTuple):
    """A series over time; None where the value is unknown."""

    name: str
    points: tuple[tuple[datetime, float | None], ...]


class Plot(NamedTuple):
    """Series over time. `unit` is the unit of the y axis."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    note: str = ""


class Report(NamedTuple):
    """A complete report."""

    title: str
    as_of: datetime | None
    """Time up to which data is complete (or incomplete for the reasons in `warnings`), by the broker's clock; None without data."""
    warnings: tuple[str, ...]
    """Reasons why data before `as_of` may be missing; empty if it is complete."""
    sections: tuple[Table | Plot, ...]
    """Tables and plots, in reading order."""


def first_rows(
    title: str, columns: tuple[Column, ...], rows: Sequence[tuple[Value, ...]], note: str, rows_max: int
) -> Table:
    """Return a table of the first `rows_max` rows, and the number of the others."""
    return Table(title, columns, tuple(rows[:rows_max]), note, max(0, len(rows) - rows_max))


def table_of(
    title: str,
    columns: Mapping[str, Column],
    rows: Sequence[Mapping[str, Value]],
    note: str,
    rows_max: int | None = None,
) -> Table:
    """Return a table of query results: `columns` by the name of their value in a row. None: all rows."""
    values = [tuple(row[name] for name in columns) for row in rows]
    return first_rows(title, tuple(columns.values()), values, note, len(rows) if rows_max is None else rows_max)


def charts_first(sections: Sequence[Table | Plot]) -> list[Table | Plot]:
    """Return the sections of a report in the order of a page: plots, then tables."""
    return sorted(sections, key=lambda section: isinstance(section, Table))


@overload
def utc_time(ms: int) -> datetime: ...
@overload
def utc_time(ms: None) -> None: ...
def utc_time(ms: int | None) -> datetime | None:
    """Return the cell for a time in ms since the epoch."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
