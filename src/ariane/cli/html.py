"""A report as one page of HTML: styles and plots are in it, nothing is loaded and nothing runs.

Dark or light as the reader's system is; printed, it is light. Every text of the report is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape

from ariane.cli import value_format
from ariane.reports.report import Line, Plot, Report, Table

# Nothing may be loaded, whatever a value should contain.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --ink: #1a1f26; --paper: #fdfdfc; --faint: #6b7280; --rule: #d9dce1; --band: #f3f4f6;
  --bad: #a33b00; --l0: #0067a5; --l1: #c2500a; --l2: #007a5a; --l3: #a8407f; --l4: #7a6200; --l5: #4b5fc4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #14171b; --faint: #9aa3ad; --rule: #343a42;
  --band: #1d2126; --bad: #ff9a5c; --l0: #63b3ed; --l1: #f59a56; --l2: #4fd1a5; --l3: #ec8fc7; --l4: #d8bd4a; --l5: #a3b1ff; } }
body { color: var(--ink); background: var(--paper); font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1.5rem;
  max-width: 64rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
.state { margin: .2rem 0; color: var(--faint); } .gaps { color: var(--bad); margin: .4rem 0; padding-left: 1.2rem; }
.note { color: var(--faint); margin: .4rem 0; max-width: 48rem; } .more { font-weight: 600; }
.wide, .plot { overflow-x: auto; } .plot > svg { min-width: 36rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .7rem .22rem 0; text-align: left; vertical-align: top; white-space: nowrap; }
th { border-bottom: 1px solid var(--rule); font-weight: 600; vertical-align: bottom; }
th small { display: block; font-weight: 400; color: var(--faint); }
td { border-bottom: 1px solid var(--band); } .n { text-align: right; } .unknown { color: var(--faint); }
svg { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--faint); } .grid { stroke: var(--rule); stroke-width: .7; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; margin: .3rem 0; padding: 0; list-style: none; }
.legend svg { display: inline-block; width: 34px; height: 10px; margin-right: .4rem; vertical-align: middle; }
footer { margin-top: 2.5rem; color: var(--faint); font-size: .85rem; }
@media print { :root { --ink: #000; --paper: #fff; --faint: #444; --rule: #bbb; --band: #eee; --bad: #a33b00; --l0: #0067a5;
  --l1: #c2500a; --l2: #007a5a; --l3: #a8407f; --l4: #7a6200; --l5: #4b5fc4; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  .wide, .plot { overflow: visible; } .plot > svg { min-width: 0; }
  td, th { white-space: normal; overflow-wrap: anywhere; }
  tr, .plot { break-inside: avoid; } }
"""
DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 4", "12 4")  # lines are told apart without colour too

WIDTH, HEIGHT = 900, 230
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 24
TICKS_Y, TICKS_X = 4, 6


def render(report: Report, home: str = "") -> str:
    """Return the whole page. `home` is the directory of the tables that it is made of."""
    title = escape(f"{report.title} · Ariane")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{''.join(_body(report, home))}</body>\n</html>\n"
    )


def _body(report: Report, home: str) -> Iterator[str]:
    yield f'<h1>{escape(report.title)}</h1>\n<p class="state">{escape(value_format.freshness_line(report))}</p>\n'
    if home:
        yield f'<p class="state">{escape(value_format.source_line(home))}</p>\n'
    if report.warnings:
        yield '<ul class="gaps">' + "".join(f"<li>{escape(gap)}</li>" for gap in report.warnings) + "</ul>\n"
    for part in report.sections:
        yield f"<h2>{escape(part.title)}</h2>\n"
        yield from _sheet(part) if isinstance(part, Table) else _plot(part)
        if part.note:
            yield f'<p class="note">{escape(part.note)}</p>\n'
    yield f"<footer>{escape(value_format.LEGEND)}. Times are UTC.</footer>\n"


def _sheet(sheet: Table) -> Iterator[str]:
    if not sheet.rows:
        yield "<p>nothing</p>\n"
        return
    right = [value_format.is_number(row[place] for row in sheet.rows) for place in range(len(sheet.columns))]
    has_units = any(field.unit for field in sheet.columns)
    yield '<div class="wide"><table>\n<thead><tr>'
    for field, is_right in zip(sheet.columns, right, strict=True):
        unit = f"<small>{escape(field.unit) or '&nbsp;'}</small>" if has_units else ""
        yield f'<th scope="col"{_class(is_right)}>{escape(field.name)}{unit}</th>'
    yield "</tr></thead>\n<tbody>\n"
    for row in sheet.rows:
        yield "<tr>"
        for value, field, is_right in zip(row, sheet.columns, right, strict=True):
            text = escape(value_format.format_value(value, field.unit))
            if value is None:
                text = f'<span class="unknown" title="not known">{text}</span>'
            yield f"<td{_class(is_right)}>{text}</td>"
        yield "</tr>\n"
    yield "</tbody></table></div>\n"
    if sheet.omitted_rows:
        yield f'<p class="more">{sheet.omitted_rows:,} more are left out: narrow the question.</p>\n'


def _class(is_right: bool) -> str:
    return ' class="n"' if is_right else ""


def _plot(plot: Plot) -> Iterator[str]:
    times = [at.timestamp() for line in plot.lines for at, _ in line.points]
    known = [value for line in plot.lines for _, value in line.points if value is not None]
    if not times:
        yield "<p>nothing</p>\n"
        return
    least, most = min(times), max(times)
    top = _round_up(max(known, default=0))

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((at - least) / (most - least) if most > least else 0.5)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(value, 0), top) / top)

    yield f'<div class="plot"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.title)}">\n'
    for tick in range(TICKS_Y + 1):
        value = top * tick / TICKS_Y
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        text = value_format.format_number(value, plot.unit) + (f" {plot.unit}" if tick == TICKS_Y and plot.unit else "")
        yield f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(text)}</text>\n'
    yield from _hours(least, most, x)
    for number, line in enumerate(plot.lines):
        yield from _line(line, number, plot.unit, x, y)
    yield '</svg>\n<ul class="legend">'
    for number, line in enumerate(plot.lines):
        sample = (
            f'<svg viewBox="0 0 34 10" aria-hidden="true"><line x1="0" x2="34" y1="5" y2="5" {_stroke(number)}/></svg>'
        )
        yield f"<li>{sample}{escape(line.name)}</li>"
    yield "</ul></div>\n"


def _hours(least: float, most: float, x: Callable[[float], float]) -> Iterator[str]:
    """Times along the axis, with the day where there are several."""
    days = len({datetime.fromtimestamp(at, UTC).date() for at in (least, most)})
    count = TICKS_X if most > least else 0
    for tick in range(count + 1):
        at = least + (most - least) * tick / max(1, count)
        anchor = "start" if count and tick == 0 else "end" if count and tick == count else "middle"
        text = f"{datetime.fromtimestamp(at, UTC):{'%m-%d %H:%M' if days > 1 else '%H:%M'}}"
        yield f'<text x="{x(at):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{text}</text>\n'


def _line(
    line: Line, number: int, unit: str, x: Callable[[float], float], y: Callable[[float], float]
) -> Iterator[str]:
    """A line, broken where nothing is known; a point that stands alone is a dot."""
    yield f"<g><title>{escape(line.name)}</title>"
    for part in _unbroken(line.points):
        places = [(x(at.timestamp()), y(value)) for at, value in part]
        if len(places) == 1:
            yield f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="2.2" style="fill: var(--l{number % len(DASHES)})"/>'
        else:
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
            yield f'<polyline class="line" points="{path}" {_stroke(number)}/>'
    yield "</g>\n"


def _unbroken(points: Sequence[tuple[datetime, float | None]]) -> list[list[tuple[datetime, float]]]:
    """The points in runs without a gap."""
    runs: list[list[tuple[datetime, float]]] = [[]]
    for at, value in points:
        if value is not None:
            runs[-1].append((at, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _stroke(number: int) -> str:
    dash = DASHES[number % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'style="stroke: var(--l{number % len(DASHES)}); stroke-width: 1.6; fill: none"{dashed}'


def _round_up(most: float) -> float:
    """The least of 1, 2, 4, 5, 8, 10 times a power of ten that is no less: so the ticks are round too."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= most * (1 - 1e-12))
