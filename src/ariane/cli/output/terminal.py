"""Renders a report in a terminal or a pipe, readable without colour.

    Messages sent per second                  plot: each series has its own scale, so that small ones remain visible
    orders · shop  0.2 to 12.4 /s
    12.4 ┤  ▂▅█▆▃      ▁▃▅▂                   ▁ to █: a value; _ is zero, · is unknown
       0 ┤▃▆█████▇▅__··████▆
          10:00           10:59

In a terminal, a table that is too wide has its longest texts on a second line under each row; no value is ever cut.
In a pipe each row is one line, whatever its length, so that `grep` and `awk` find whole rows (unless COLUMNS is set).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from ariane.cli.output import value_format
from ariane.reports.report import Line, Plot, Report, Table

BLOCKS = "▁▂▃▄▅▆▇█"
ZERO, UNKNOWN = "_", "·"
GAP, NARROW_GAP = 2, 1  # columns between cells; the narrow gap is used where the other one makes a table too wide
# One screen; --json and --html contain all rows.
ROWS_MAX = 60
SINGLE_HEIGHT, SHARED_HEIGHT = 6, 3  # rows of the only series of a plot, and of each of several
COLUMNS_MAX = 120  # of a plot: wider ones show no more detail
DETAIL_INDENT = "    "


def create_console() -> Console:
    """Return a console for standard output. Colours are off in a pipe and if NO_COLOR is set."""
    return Console(highlight=False, markup=False)


def is_width_bound(console: Console) -> bool:
    """Return whether output must fit the width of the console: in a terminal, or if COLUMNS is set."""
    return console.is_terminal or "COLUMNS" in os.environ


def print_report(console: Console, report: Report, tables_dir: str = "") -> None:
    """Print a report. `tables_dir` is the directory that it was read from."""
    for part in render(report, tables_dir):
        # In a pipe, rich would wrap the lines of tables at 80 columns.
        is_table = isinstance(part, ReportTable | ReportPlot)
        console.print(part, soft_wrap=is_table)


def render(report: Report, tables_dir: str = "") -> Iterator[RenderableType]:
    """Yield the parts of a report for `Console.print`."""
    yield Text(report.title, style="bold")
    yield Text(value_format.freshness_line(report))
    if tables_dir:
        yield Text(value_format.source_line(tables_dir), overflow="fold")
    for warning in report.warnings:
        yield Text(f"! {warning}", style="bold yellow")
    for section in report.sections:
        unit = f" ({section.unit})" if isinstance(section, Plot) and section.unit else ""
        yield Text(f"\n{section.title}{unit}", style="bold underline")
        yield ReportTable(section) if isinstance(section, Table) else ReportPlot(section)
        if section.note:
            yield Text(section.note, style="italic")


class ReportTable:
    """A table of a report within the width of the console. After `max_rows` rows, a line says how many were omitted."""

    def __init__(self, table: Table, max_rows: int | None = ROWS_MAX) -> None:
        self._table = table
        self._rows = table.rows[:max_rows]
        # Cells by column, because widths and alignment are decided per column.
        self._cells = [
            [value_format.format_value(row[index], column.unit) for row in self._rows]
            for index, column in enumerate(table.columns)
        ]
        # Such columns are aligned to the right, and never move to a second line.
        self._is_number = [
            value_format.is_number(row[index] for row in table.rows) for index in range(len(self._cells))
        ]
        # Of the widest cell or heading.
        self._widths = [
            max(cell_len(column.name), cell_len(column.unit), *map(cell_len, cells), 0)
            for column, cells in zip(table.columns, self._cells, strict=True)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if not self._rows:
            yield Text("no rows")
            return
        width = options.max_width if is_width_bound(console) else None
        details = [] if width is None else self._detail_columns(width)
        shown = [index for index in range(len(self._cells)) if index not in details]
        lines = self._render_lines(console, options, shown, width)
        header_lines = len(lines) - len(self._rows)
        yield from lines[:header_lines]
        for number, line in enumerate(lines[header_lines:]):
            yield line
            texts = [f"{self._table.columns[index].name}: {self._cells[index][number]}" for index in details]
            yield from (Text(DETAIL_INDENT + text) for text in _pack(texts, (width or 0) - len(DETAIL_INDENT)))
        if any(value_format.UNKNOWN in cells for cells in self._cells):
            yield Text(value_format.LEGEND, style="dim")
        if hidden := len(self._table.rows) - len(self._rows):
            yield Text(f"{hidden:,} more rows: use --json or --html", style="bold")
        if self._table.omitted_rows:
            yield Text(f"{self._table.omitted_rows:,} rows omitted: narrow by --topic or --group", style="bold")

    def _render_lines(
        self, console: Console, options: ConsoleOptions, shown: Sequence[int], width: int | None
    ) -> list[Text]:
        """Return the header (with a line of units, if any) and one line per row, without trailing blanks."""
        gap = GAP if width is None or self._total_width(shown, GAP) <= width else NARROW_GAP
        grid = RichTable(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="")
        has_units = any(column.unit for column in self._table.columns)
        for index in shown:
            column = self._table.columns[index]
            header = Text(column.name, style="bold")
            if has_units:
                # The unit has a line of its own: short names keep columns narrow.
                header.append(f"\n{column.unit}", style="not bold dim")
            grid.add_column(header, justify="right" if self._is_number[index] else "left", no_wrap=True)
        for number in range(len(self._rows)):
            grid.add_row(*(Text(self._cells[index][number]) for index in shown))
        # The grid gets all the width it needs, because rich would otherwise cut or wrap cells.
        wide = options.update(width=max(self._total_width(shown, gap) + gap, 1))
        return [_to_text(line) for line in console.render_lines(grid, wide, pad=False)]

    def _detail_columns(self, width: int) -> list[int]:
        """Return the columns that move to a second line: the longest texts, until the others fit."""
        # Numbers and times stay in their columns: they are compared from row to row.
        texts = [
            index
            for index in range(len(self._cells))
            if not self._is_number[index] and not value_format.is_time(row[index] for row in self._table.rows)
        ]
        shown = list(range(len(self._cells)))
        for index in sorted(texts, key=lambda index: (-self._widths[index], -index)):
            if self._total_width(shown, NARROW_GAP) <= width:
                break
            shown.remove(index)
        return [index for index in range(len(self._cells)) if index not in shown]

    def _total_width(self, shown: Sequence[int], gap: int) -> int:
        return sum(self._widths[index] for index in shown) + gap * (len(shown) - 1)


class ReportPlot:
    """The plot of a report as block characters, one chart per series."""

    def __init__(self, plot: Plot) -> None:
        self._plot = plot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        plot = self._plot
        if not plot.lines:
            yield Text("no data")
            return
        tops = [
            value_format.format_number(top, plot.unit) for line in plot.lines if (top := max(_present(line), default=0))
        ]
        margin = max(map(len, (*tops, "0")))
        width = min(COLUMNS_MAX, options.max_width - margin - 3)
        height = SINGLE_HEIGHT if len(plot.lines) == 1 else SHARED_HEIGHT
        for line in plot.lines:
            yield from (Text(text) for text in _pack([line.name, _value_range(line, plot.unit)], options.max_width))
            yield from (Text(row) for row in _chart_rows(line, plot.unit, width, height, margin))
        points = plot.lines[0].points
        if points:
            start, end = (f"{time.astimezone(UTC):%m-%d %H:%M}" for time in (points[0][0], points[-1][0]))
            drawn_width = len(_fit_columns(line, width))
            yield Text(f"{'':{margin + 2}}{start}{end:>{max(len(end) + 1, drawn_width - len(start))}}", style="dim")
        yield from (Text(text, style="dim") for text in _pack(self._legend(width), options.max_width))

    def _legend(self, width: int) -> list[str]:
        """Return the remarks that a reader of this plot needs."""
        remarks = []
        points_per_column = -(-len(self._plot.lines[0].points) // width)
        if points_per_column > 1:
            remarks.append(f"each column is the maximum of {points_per_column} points")
        if len(self._plot.lines) > 1:
            remarks.append("each series has its own scale")
        marks = {mark for line in self._plot.lines for mark in _special_marks(line)}
        remarks += [
            text for mark, text in ((ZERO, f"{ZERO} is zero"), (UNKNOWN, f"{UNKNOWN} is unknown")) if mark in marks
        ]
        return [f"{remark};" for remark in remarks[:-1]] + remarks[-1:]


def _chart_rows(line: Line, unit: str, width: int, height: int, margin: int) -> Iterator[str]:
    """Yield the rows of a chart, from the top."""
    values = _fit_columns(line, width)
    top = max((value for value in values if value is not None), default=0) or 1
    for row in reversed(range(height)):
        label = ""
        if row == height - 1 and _present(line):
            label = value_format.format_number(top, unit)
        elif row == 0:
            label = "0"
        yield f"{label:>{margin}} ┤{''.join(_mark(value, top, height, row) for value in values)}".rstrip()


def _mark(value: float | None, top: float, height: int, row: int) -> str:
    """Return the character of a value in a row (0: the lowest)."""
    if value is None or value <= 0:
        return " " if row else UNKNOWN if value is None else ZERO
    # At least one eighth: a small value must not look like zero.
    eighths = max(1, round(value / top * height * len(BLOCKS))) - row * len(BLOCKS)
    return " " if eighths <= 0 else BLOCKS[min(eighths, len(BLOCKS)) - 1]


def _fit_columns(line: Line, width: int) -> list[float | None]:
    """Return one value per column: the maximum of several points, or a point repeated over several columns."""
    values = [value for _, value in line.points]
    if len(values) <= width:
        return [value for value in values for _ in range(max(1, width // max(1, len(values))))]
    # The maximum of several points, because a mean would hide the peaks that people look for.
    size = -(-len(values) // width)
    parts = (values[start : start + size] for start in range(0, len(values), size))
    return [max((value for value in part if value is not None), default=None) for part in parts]


def _present(line: Line) -> list[float]:
    return [value for _, value in line.points if value is not None]


def _special_marks(line: Line) -> set[str]:
    return {UNKNOWN if value is None else ZERO for _, value in line.points if value is None or value <= 0}


def _value_range(line: Line, unit: str) -> str:
    values = _present(line)
    if not values:
        return "unknown"
    low, high = (value_format.format_number(value, unit) for value in (min(values), max(values)))
    return f"{low} to {high} {unit}".rstrip()


def _pack(texts: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines with as many of the texts as fit. A text is never broken: ids stay searchable."""
    line = ""
    for text in texts:
        if line and cell_len(line) + GAP + cell_len(text) > width:
            yield line
            line = text
        else:
            line = f"{line}{' ' * GAP}{text}" if line else text
    if line:
        yield line


def _to_text(segments: Sequence[Segment]) -> Text:
    text = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
    text.rstrip()
    return text
