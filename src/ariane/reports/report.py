"""What a report is, whoever shows it: sheets of rows and plots of lines, as of when, and what may be missing.

Values only: the terminal, JSON and HTML are made of them by `ariane.cli.report_command`, the console draws them its way.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple, overload

Value = str | int | float | bool | datetime | None
"""A cell. None is what is not known, and is shown as such, never as zero."""


class Column(NamedTuple):
    """A column of a sheet. `unit`: ms, /s, %, B, or empty for counts and texts."""

    name: str
    unit: str = ""


class Table(NamedTuple):
    """Rows under a title. `note` says what a reader must know to read them right; `left_out` how many rows more there are."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    omitted_rows: int = 0


class Line(NamedTuple):
    """A series over time; None where nothing is known."""

    name: str
    points: tuple[tuple[datetime, float | None], ...]


class Plot(NamedTuple):
    """Lines over time. `unit` is that of y."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    note: str = ""


class Report(NamedTuple):
    """An answer."""

    title: str
    as_of: datetime | None
    """Broker's time of the newest that is in it; None when nothing came yet."""
    warnings: tuple[str, ...]
    """Why it may lack something until then; none: it is complete."""
    sections: tuple[Table | Plot, ...]
    """In the order in which they are to be read."""


@overload
def utc_time(ms: int) -> datetime: ...
@overload
def utc_time(ms: None) -> None: ...
def utc_time(ms: int | None) -> datetime | None:
    """An instant, in ms since the epoch, as a cell."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
