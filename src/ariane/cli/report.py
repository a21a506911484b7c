"""`ariane report NAME`: throughput, latency, … in the terminal, as JSON, or as one page of HTML.

The reports themselves are in `ariane.admin.reports`; here any of them is shown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli import home as homes
from ariane.cli.times import instant
from ariane.errors import ConfigError

if TYPE_CHECKING:
    from ariane.admin.report import Plot, Report, Sheet
    from ariane.admin.reports import Kind

WATCH_MIN_S = 1.0


def report(
    name: Annotated[str, typer.Argument(help="tps, latency, …; a name that is none lists them.")],
    since: Annotated[
        str, typer.Option(help="How long ago (30s, 15m, 1h, 2d), or a time in UTC (2026-01-31T10:00).")
    ] = "1h",
    until: Annotated[str | None, typer.Option(help="The same; default: now.")] = None,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    group: Annotated[str | None, typer.Option(help="Only this producer or consumer group.")] = None,
    home: Annotated[
        Path | None, typer.Option(help="Directory of the tables; default: the newest of this user.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write it to this file, as a page that needs nothing else.")] = None,
    watch: Annotated[float | None, typer.Option(help="Show it anew every so many seconds, until Ctrl-C.")] = None,
) -> None:
    """What the tables tell. Exit status 1 when they tell nothing yet."""
    kind = _kind(name)
    filters = {"topic": topic, "group": group}
    for option, value in filters.items():
        if value is not None and option not in kind.filters:
            raise ConfigError(f"--{option}", value, f"report {name} cannot be narrowed by it")
    if watch is not None and (as_json or html or watch < WATCH_MIN_S):
        raise ConfigError("--watch", watch, f"takes {WATCH_MIN_S:g} seconds or more, and neither --json nor --html")
    if as_json and html:
        raise ConfigError("--html", str(html), "give either --json or --html")
    place = home or homes.newest_tables()
    if not place.is_dir():
        raise ConfigError("--home", str(place), "is no directory: run `ariane pipeline run all`, or name another")
    own = {option: value for option, value in filters.items() if option in kind.filters}

    def ask() -> Report:
        from ariane.clock import SYSTEM_CLOCK

        now_ms = SYSTEM_CLOCK.now_ms()
        since_ms = instant(since, now_ms, "--since")
        until_ms = now_ms if until is None else instant(until, now_ms, "--until")
        if since_ms >= until_ms:
            raise ConfigError("--since", since, f"is not before {'now' if until is None else f'--until {until}'}")
        return kind.function(place, since_ms=since_ms, until_ms=until_ms, now_ms=now_ms, **own)

    if watch is not None:
        _watch(ask, watch)
        return
    answer = ask()
    if as_json:
        typer.echo(json.dumps(as_dict(answer), ensure_ascii=False))
    elif html:
        _write(html, answer)
    else:
        _print(answer)
    raise typer.Exit(1 if answer.as_of is None else 0)


def as_dict(report: Report) -> dict[str, Any]:
    """The report as JSON's values. Times are ISO 8601; null is what is not known."""
    from ariane.admin.report import Plot, Sheet

    return {
        "title": report.title,
        "as_of": _iso(report.as_of),
        "complete": report.as_of is not None and not report.gaps,
        "gaps": list(report.gaps),
        "sheets": [_sheet_dict(part) for part in report.parts if isinstance(part, Sheet)],
        "plots": [_plot_dict(part) for part in report.parts if isinstance(part, Plot)],
    }


def _sheet_dict(sheet: Sheet) -> dict[str, Any]:
    return {
        "title": sheet.title,
        "note": sheet.note,
        "left_out": sheet.left_out,
        "fields": [field._asdict() for field in sheet.fields],
        "rows": [[_iso(cell) for cell in row] for row in sheet.rows],
    }


def _plot_dict(plot: Plot) -> dict[str, Any]:
    lines = [{"name": line.name, "points": [[_iso(at), value] for at, value in line.points]} for line in plot.lines]
    return {"title": plot.title, "note": plot.note, "unit": plot.unit, "lines": lines}


def _iso(value: object) -> object:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _kind(name: str) -> Kind:
    from ariane.admin.reports import REPORTS

    if name not in REPORTS:
        there = "".join(f"\n  {one:14} {kind.meaning}" for one, kind in REPORTS.items())
        raise ConfigError("NAME", name, f"no such report; there are{there}")
    return REPORTS[name]


def _write(path: Path, answer: Report) -> None:
    from ariane.cli import page

    try:
        path.write_text(page.page(answer), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--html", str(path), f"cannot be written: {error.strerror}") from error
    typer.echo(f"{path}: {answer.title}", err=True)


def _print(answer: Report, *, clear: bool = False) -> None:
    from rich.console import Console

    from ariane.cli import drawing

    console = Console()
    if clear:
        console.clear()  # does nothing where there is no terminal
    for line in drawing.drawn(answer, console.width):
        console.print(line, soft_wrap=True)


def _watch(ask: Callable[[], Report], every_s: float) -> None:
    try:
        while True:
            answer = ask()
            _print(answer, clear=True)
            time.sleep(every_s)
    except KeyboardInterrupt:
        return
