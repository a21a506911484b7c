"""Renders a report as one self-contained HTML page: styles and plots are inline, nothing is loaded, no script runs.

Report ─→ Chart (coordinates of each plot) ─→ templates/report.html.jinja (autoescape) ─→ page
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ariane.cli.output import value_format
from ariane.reports.report import Line, Plot, Report, Table, charts_first

if TYPE_CHECKING:
    from jinja2 import Template

DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 4", "12 4")  # series differ without colour, too: print, colour blindness

WIDTH, HEIGHT = 900, 230  # of a plot, in units of its viewBox
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 24  # margins around the plot area, for the labels
Y_TICKS, X_TICKS = 4, 6


class TableCell(NamedTuple):
    """A formatted cell. `is_unknown` gives it a tooltip, because `?` alone may be misread as a value."""

    text: str
    is_unknown: bool


class Tick(NamedTuple):
    """A label on an axis. `anchor` is SVG's text-anchor."""

    position: float
    label: str
    anchor: str = "end"


class ChartSeries(NamedTuple):
    """A line of a chart. `polylines` are its runs without unknown points; a run of one point is a dot."""

    name: str
    color: int  # number of a CSS variable, so that dark mode has colours of its own
    dash: str  # SVG's stroke-dasharray; empty: a solid line
    polylines: list[str]
    dots: list[tuple[float, float]]


class Chart(NamedTuple):
    """Coordinates of a plot."""

    y_ticks: list[Tick]
    x_ticks: list[Tick]
    series: list[ChartSeries]


def render(report: Report, tables_dir: str = "") -> str:
    """Return the HTML page of a report. `tables_dir` is the directory that it was read from."""
    return _template().render(
        report=report,
        freshness=value_format.freshness_line(report),
        source=value_format.source_line(tables_dir) if tables_dir else "",
        sections=[
            (section, _cells(section), _alignment(section), None)
            if isinstance(section, Table)
            else (section, None, None, layout_chart(section))
            for section in charts_first(report.sections)
        ],
        legend=value_format.LEGEND,
        size={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "baseline": HEIGHT - 6},
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Autoescape: topics, keys and hosts come from clients and may contain markup.
    environment = Environment(
        loader=PackageLoader("ariane.cli"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html.jinja")


def _cells(table: Table) -> list[list[TableCell]]:
    return [
        [
            TableCell(value_format.format_value(value, column.unit), value is None)
            for value, column in zip(row, table.columns, strict=True)
        ]
        for row in table.rows
    ]


def _alignment(table: Table) -> list[str]:
    """Return the CSS class of each column: `n` for numbers."""
    return [
        "n" if value_format.is_number(row[index] for row in table.rows) else "" for index in range(len(table.columns))
    ]


def layout_chart(plot: Plot) -> Chart | None:
    """Return the coordinates of a plot; None if it has no points."""
    times = [time.timestamp() for line in plot.lines for time, _ in line.points]
    if not times:
        return None
    first, last = min(times), max(times)
    top = _round_up(max((value for line in plot.lines for _, value in line.points if value is not None), default=0))

    def x(at: float) -> float:
        # A single moment is drawn in the middle.
        return LEFT + (WIDTH - LEFT - RIGHT) * ((at - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(value, 0), top) / top)

    y_ticks = []
    for number in range(Y_TICKS + 1):
        value = top * number / Y_TICKS
        unit = f" {plot.unit}" if number == Y_TICKS and plot.unit else ""
        y_ticks.append(Tick(y(value), value_format.format_number(value, plot.unit) + unit))

    series = []
    for number, line in enumerate(plot.lines):
        runs = [[(x(at.timestamp()), y(value)) for at, value in run] for run in _known_runs(line)]
        polylines = [" ".join(f"{px:.1f},{py:.1f}" for px, py in run) for run in runs if len(run) > 1]
        color = number % len(DASHES)
        series.append(
            ChartSeries(line.name, color, DASHES[color], polylines, [run[0] for run in runs if len(run) == 1])
        )
    x_ticks = [Tick(x(at), label, anchor) for at, label, anchor in _time_labels(first, last)]
    return Chart(y_ticks, x_ticks, series)


def _time_labels(first: float, last: float) -> list[tuple[float, str, str]]:
    """Return times (seconds), labels and anchors of the x axis; with dates if it spans several days."""
    has_dates = datetime.fromtimestamp(first, UTC).date() != datetime.fromtimestamp(last, UTC).date()
    count = X_TICKS if last > first else 0
    labels = []
    for number in range(count + 1):
        time = first + (last - first) * number / max(1, count)
        # The outermost labels stay within the picture.
        anchor = "start" if count and number == 0 else "end" if count and number == count else "middle"
        labels.append((time, f"{datetime.fromtimestamp(time, UTC):{'%m-%d %H:%M' if has_dates else '%H:%M'}}", anchor))
    return labels


def _known_runs(line: Line) -> list[Sequence[tuple[datetime, float]]]:
    """Return the points in runs without an unknown value, so that no line is drawn across missing data."""
    runs: list[list[tuple[datetime, float]]] = [[]]
    for at, value in line.points:
        if value is not None:
            runs[-1].append((at, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 4, 5, 8, 10 times a power of ten: these give round ticks."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    # Floating-point noise must not lead to the next step.
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * (1 - 1e-12))
