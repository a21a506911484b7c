"""A report in a terminal, within its width and readable without colour.

    Messages sent per second                  a plot: each line has a scale of its own, so that small ones are seen
    orders · shop          0.2 to 12.4 /s
    12.4 ┤  ▂▅█▆▃      ▁▃▅▂                   ▁ to █: a value; _ is zero, · is not known
       0 ┤▃▆█████▇▅__··████▆
          10:00           10:59

A sheet that is wider than the terminal has its longest texts on a second line under each row; no value is ever cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING

from ariane.cli import value_format
from ariane.reports.report import Line, Plot, Report, Table

if TYPE_CHECKING:
    from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
ZERO, NOT_KNOWN = "_", "·"
GAP, NARROW_GAP = "  ", " "  # between columns: the narrow one where the other makes a sheet too wide
# A page of a terminal; how many more rows there are is said, and where to find them.
ROWS_MAX = 60
ALONE_HEIGHT, BESIDE_HEIGHT = 6, 3  # rows of a plot's only line, and of each of several
COLUMNS_MAX = 120  # of a plot: wider ones tell no more


def render(report: Report, width: int, home: str = "") -> Iterator[Text]:
    """Return the lines of the report. `home` is the directory of the tables that it is made of."""
    from rich.text import Text

    yield from _wrapped(report.title, width, "bold")
    yield from _wrapped(value_format.freshness_line(report), width, "")
    if home:
        yield from _wrapped(value_format.source_line(home), width, "")
    for gap in report.warnings:
        yield from _wrapped(f"! {gap}", width, "bold yellow")
    for part in report.sections:
        yield Text()
        yield Text(f"{part.title}{_unit(part)}", style="bold underline")
        yield from _sheet(part, width) if isinstance(part, Table) else _plot(part, width)
        if part.note:
            yield from _wrapped(part.note, width, "italic")


def _unit(part: Table | Plot) -> str:
    return f" ({part.unit})" if isinstance(part, Plot) and part.unit else ""


def _sheet(sheet: Table, width: int) -> Iterator[Text]:
    from rich.text import Text

    if not sheet.rows:
        yield Text("nothing")
        return
    rows = sheet.rows[:ROWS_MAX]
    columns = [
        [value_format.format_value(row[place], field.unit) for row in sheet.rows[:ROWS_MAX]]
        for place, field in enumerate(sheet.columns)
    ]
    right = [value_format.is_number(row[place] for row in sheet.rows) for place in range(len(columns))]
    # The unit stands under the name: short names keep columns narrow.
    has_units = any(field.unit for field in sheet.columns)
    wide = [
        max(_long(field.name), _long(field.unit), *map(_long, column))
        for field, column in zip(sheet.columns, columns, strict=True)
    ]
    gap = GAP if _width(wide, GAP) <= width else NARROW_GAP
    below = _below(
        wide,
        [kind or value_format.is_time(row[place] for row in sheet.rows) for place, kind in enumerate(right)],
        width,
    )
    line = [place for place in range(len(columns)) if place not in below]

    def laid(texts: Sequence[str]) -> str:
        return gap.join(_set(texts[place], wide[place], right[place]) for place in line).rstrip()

    yield Text(laid([field.name for field in sheet.columns]), style="bold")
    if has_units:
        yield Text(laid([field.unit for field in sheet.columns]), style="dim")
    for number in range(len(rows)):
        yield Text(laid([column[number] for column in columns]))
        named = [f"{sheet.columns[place].name}: {columns[place][number]}" for place in below]
        yield from _filled(named, width, "    ")
    if any(value_format.UNKNOWN in column for column in columns):
        yield Text(value_format.LEGEND, style="dim")
    if more := len(sheet.rows) - len(rows):
        yield Text(f"{more:,} more rows: --json and --html show them", style="bold")
    if sheet.omitted_rows:
        yield Text(f"{sheet.omitted_rows:,} more are left out: narrow the question (--topic, --group)", style="bold")


def _below(wide: Sequence[int], stays: Sequence[bool], width: int) -> list[int]:
    """The columns that have to stand on a second line: texts, the longest first, until the others fit."""
    below: list[int] = []
    texts = sorted((place for place in range(len(wide)) if not stays[place]), key=lambda place: (-wide[place], -place))
    for place in texts:
        left = [size for number, size in enumerate(wide) if number not in below]
        if _width(left, NARROW_GAP) <= width:
            break
        below.append(place)
    return sorted(below)


def _width(columns: Sequence[int], gap: str) -> int:
    return sum(columns) + len(gap) * (len(columns) - 1)


def _plot(plot: Plot, width: int) -> Iterator[Text]:
    from rich.text import Text

    if not plot.lines:
        yield Text("nothing")
        return
    labels = [
        value_format.format_number(most, plot.unit) for line in plot.lines if (most := max(_known(line), default=0))
    ]
    margin = max(map(len, (*labels, "0")))
    room = min(COLUMNS_MAX, width - margin - 3)
    height = ALONE_HEIGHT if len(plot.lines) == 1 else BESIDE_HEIGHT
    for line in plot.lines:
        yield from _filled([line.name, _range(line, plot.unit)], width, "")
        yield from (Text(row) for row in _line(line, plot.unit, room, height, margin))
    first = plot.lines[0].points
    if first:
        begin, end = (f"{time.astimezone(UTC):%m-%d %H:%M}" for time in (first[0][0], first[-1][0]))
        used = len(_columns(line, room))
        yield Text(f"{'':{margin + 2}}{begin}{end:>{max(len(end) + 1, used - len(begin))}}", style="dim")
    many = -(-len(first) // room)
    told = [f"each column is the greatest of {many} points"] if many > 1 else []
    if len(plot.lines) > 1:
        told.append("each line has a scale of its own")
    marks = {mark for line in plot.lines for mark in _marks(line)}
    told += [
        text for mark, text in ((ZERO, f"{ZERO} is zero"), (NOT_KNOWN, f"{NOT_KNOWN} is not known")) if mark in marks
    ]
    if told:
        yield from _wrapped("; ".join(told), width, "dim")


def _line(line: Line, unit: str, room: int, height: int, margin: int) -> Iterator[str]:
    """The rows of a line, from the top."""
    values = _columns(line, room)
    most = max((value for value in values if value is not None), default=0) or 1
    for row in reversed(range(height)):
        label = (
            value_format.format_number(most, unit) if row == height - 1 and _known(line) else "0" if row == 0 else ""
        )
        yield f"{label:>{margin}} ┤{''.join(_mark(value, most, height, row) for value in values)}".rstrip()


def _mark(value: float | None, most: float, height: int, row: int) -> str:
    """What stands in a row (0: the lowest) of a column."""
    if value is None or value <= 0:
        return " " if row else NOT_KNOWN if value is None else ZERO
    eighths = max(1, round(value / most * height * len(BLOCKS))) - row * len(BLOCKS)
    return " " if eighths <= 0 else BLOCKS[min(eighths, len(BLOCKS)) - 1]


def _columns(line: Line, room: int) -> list[float | None]:
    """A value per column: of several points the greatest that is known; a point may take several columns."""
    values = [value for _, value in line.points]
    if len(values) <= room:
        return [value for value in values for _ in range(max(1, room // max(1, len(values))))]
    many = -(-len(values) // room)
    parts = (values[place : place + many] for place in range(0, len(values), many))
    return [max((value for value in part if value is not None), default=None) for part in parts]


def _known(line: Line) -> list[float]:
    return [value for _, value in line.points if value is not None]


def _marks(line: Line) -> set[str]:
    return {NOT_KNOWN if value is None else ZERO for _, value in line.points if value is None or value <= 0}


def _range(line: Line, unit: str) -> str:
    known = _known(line)
    if not known:
        return "not known"
    return f"{value_format.format_number(min(known), unit)} to {value_format.format_number(max(known), unit)} {unit}".rstrip()


def _filled(texts: Sequence[str], width: int, indent: str) -> Iterator[Text]:
    """Texts side by side, as many as go on a line."""
    from rich.text import Text

    text = ""
    for one in texts:
        if text and _long(indent) + _long(text) + len(GAP) + _long(one) > width:
            yield Text(indent + text)
            text = one
        else:
            text = f"{text}{GAP}{one}" if text else one
    if text:
        yield Text(indent + text)


def _wrapped(text: str, width: int, style: str) -> Iterator[Text]:
    from rich.text import Text

    for line in _filled_words(text, width):
        yield Text(line, style=style)


def _filled_words(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and _long(line) + 1 + _long(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def _set(text: str, size: int, right: bool) -> str:
    fill = " " * (size - _long(text))
    return fill + text if right else text + fill


def _long(text: str) -> int:
    """Columns that a text takes."""
    from rich.cells import cell_len

    return cell_len(text)
