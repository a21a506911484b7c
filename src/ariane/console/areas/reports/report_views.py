"""Reports over the pipeline's tables as values for pages and API.

    ReportQuery ─→ ariane.reports.REPORTS[name] (DuckDB, in a thread) ─→ Report ─→ ReportView: tables and charts

Few reports run at a time, each for a limited time (`table_queries`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from ariane.clock import ms_of
from ariane.console.areas.reports.table_queries import run_query
from ariane.console.limits.access import current_access
from ariane.console.limits.limited_tables import row_selection
from ariane.console.services import ConsoleServices
from ariane.console.texts import preferences
from ariane.console.texts.translation import report_text
from ariane.console.web.form_fields import parse_time_range
from ariane.console.web.view_model import View
from ariane.errors import NotFound, UsageError
from ariane.reports import REPORTS
from ariane.reports.report import Plot, Report, Table, Value, charts_first
from ariane.reports.tables.table_views import with_rows
from ariane.reports.texts import Text
from ariane.tables.table_store import open_store

CHART_UNITS = {"/s": "rate", "ms": "ms", "B": "bytes", "B/s": "bytes", "%": "percent"}

FILTERS = ("topic", "group")
CLOSED = ("health",)  # to accounts with limits: security/permissions.py has the reason

Cell = str | int | float | bool | None


class ReportQuery(View):
    """Time range and filters of a report."""

    since: str = "1h"
    """Start: a duration before now (`2h`), a date and time (UTC unless it has an offset), or ms since the epoch."""
    until: str = ""
    """End, in the same forms; empty: now."""
    topic: str = Field("", max_length=255)
    """Only this topic."""
    group: str = Field("", max_length=255)
    """Only this producer or consumer group."""


class ReportColumn(View):
    """A column of a table."""

    name: str
    """Its title."""
    unit: str
    """ms, /s, %, B, B/s, or empty for counts and texts."""
    kind: Literal["text", "number", "time", "flag"]
    """Form of its cells; times are milliseconds since the epoch."""


class ReportTableView(View):
    """A table of a report."""

    kind: Literal["table"] = "table"
    """Kind of the section."""
    title: str
    note: str
    """How to read it."""
    columns: list[ReportColumn]
    rows: list[list[Cell]]
    """Its rows; null: unknown."""
    omitted_rows: int
    """Number of further rows."""


class ReportSeries(View):
    """A series of a chart."""

    name: str
    points: list[tuple[int, float | None]]
    """Time in milliseconds since the epoch, and value; null: unknown."""


class ReportChart(View):
    """A chart of a report."""

    kind: Literal["chart"] = "chart"
    """Kind of the section."""
    title: str
    note: str
    """How to read it."""
    unit: str
    """Unit of the values, as those of columns."""
    series: list[ReportSeries]

    @property
    def options(self) -> dict[str, Any]:
        """The chart as the page draws it."""
        # The page's percentages are fractions of one.
        scale = 0.01 if self.unit == "%" else 1
        return {
            "unit": CHART_UNITS.get(self.unit, "number"),
            "series": [
                {
                    "name": series.name,
                    "points": [[ms, None if value is None else value * scale] for ms, value in series.points],
                }
                for series in self.series
            ],
        }


class ReportView(View):
    """A report."""

    name: str
    title: str
    """Its title, with the filters and the time range."""
    as_of_ms: int | None
    """Time up to which the data is complete, or incomplete for the reasons in `warnings`; null without data."""
    is_complete: bool
    """Whether there is data, and none is missing up to `asOfMs`."""
    is_limited: bool
    """Whether only topics and groups that the account sees have rows."""
    warnings: list[str]
    """Reasons why data may be missing."""
    filters: list[str]
    """Filters that the report supports."""
    sections: list[Annotated[ReportTableView | ReportChart, Field(discriminator="kind")]]
    """Charts, then tables."""


class ReportListView(View):
    """Reports of the console."""

    names: list[str]
    is_available: bool
    """Whether there are tables to read: the pipeline writes them."""
    tables_dir: str | None
    """Directory of the tables; null if the console was started without one."""


def report_list(services: ConsoleServices) -> ReportListView:
    """Return the names of the reports, and whether there is data for them."""
    tables_dir, is_limited = services.settings.tables_dir, current_access().is_limited
    return ReportListView(
        names=[name for name in REPORTS if not (is_limited and name in CLOSED)],
        is_available=tables_dir is not None and open_store(tables_dir).exists(),
        tables_dir=None if tables_dir is None else str(tables_dir),
    )


async def run_report(services: ConsoleServices, name: str, query: ReportQuery) -> ReportView:
    """Run a report.

    Raises:
        NotFound: no such report, or the pipeline has written no tables.
        UsageError: a time is invalid, or the range is empty.
        ServerUnavailable: other reports are running, or it took too long.
    """
    function = REPORTS.get(name)
    if function is None:
        raise NotFound("report", name, sorted(REPORTS))
    tables_dir, selection = services.settings.tables_dir, row_selection(current_access())
    if tables_dir is None or not open_store(tables_dir).exists():
        place = "any directory: start the console with a home" if tables_dir is None else str(tables_dir)
        raise NotFound("table of the pipeline in", f"{place}; run `ariane pipeline run`")
    now_ms = services.clock.now_ms()
    zone = preferences.current().zone
    since_ms, until_ms = parse_time_range(query.since, query.until.strip() or str(now_ms), now_ms, zone=zone)
    if since_ms is None:
        raise UsageError("since", query.since, "expected the begin of the time range, for example 1h")
    filters = {option: getattr(query, option).strip() or None for option in FILTERS}

    def create_report() -> Report:
        with with_rows(selection):
            return function(tables_dir, since_ms=since_ms, until_ms=until_ms, now_ms=now_ms, **filters)

    report = await run_query(create_report, f"report {name}")
    return report_view(name, report)


def report_view(name: str, report: Report) -> ReportView:
    """Return a report as a view, with its texts in the language and the time zone of the current request."""
    return ReportView(
        name=name,
        title=report_text(report.title),
        as_of_ms=None if report.as_of is None else ms_of(report.as_of),
        is_complete=report.as_of is not None and not report.warnings,
        is_limited=current_access().is_limited,
        warnings=[report_text(warning) for warning in report.warnings],
        filters=list(FILTERS),
        sections=[_table(part) if isinstance(part, Table) else _chart(part) for part in charts_first(report.sections)],
    )


def _table(table: Table) -> ReportTableView:
    columns = [
        ReportColumn(name=report_text(column.name), unit=column.unit, kind=_kind([row[number] for row in table.rows]))
        for number, column in enumerate(table.columns)
    ]
    return ReportTableView(
        title=report_text(table.title),
        note=report_text(table.note),
        columns=columns,
        rows=[[_cell(value) for value in row] for row in table.rows],
        omitted_rows=table.omitted_rows,
    )


def _cell(value: Value) -> Cell:
    if isinstance(value, datetime):
        return ms_of(value)
    # Plain texts are names, which no language changes.
    return report_text(value) if isinstance(value, Text) else value


def _kind(cells: Sequence[Value]) -> Literal["text", "number", "time", "flag"]:
    first = next((cell for cell in cells if cell is not None), None)
    if isinstance(first, bool):
        return "flag"
    if isinstance(first, datetime):
        return "time"
    return "number" if isinstance(first, int | float) else "text"


def _chart(plot: Plot) -> ReportChart:
    series = [
        ReportSeries(
            name=report_text(line.name) if isinstance(line.name, Text) else line.name,
            points=[(ms_of(moment), value) for moment, value in line.points],
        )
        for line in plot.lines
    ]
    return ReportChart(title=report_text(plot.title), note=report_text(plot.note), unit=plot.unit, series=series)
