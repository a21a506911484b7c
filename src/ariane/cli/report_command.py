"""`ariane report NAME`: throughput, latency, … in the terminal, as JSON, or as one page of HTML.

The reports themselves are in `ariane.reports`; here any of them is shown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli import command_names, shared_options
from ariane.cli import paths as homes
from ariane.cli.time_options import parse_time
from ariane.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from ariane.reports import ReportKind
    from ariane.reports.report import Plot, Report, Table

WATCH_MIN_S = 1.0


def report(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="tps, latency, lag, health, delay or transactions.", show_default=False),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="How long ago (30s, 15m, 1h, 2d), or a time in UTC (2026-01-31T10:00).")
    ] = "1h",
    until: Annotated[str | None, typer.Option(metavar="TIME", help="The same; default: now.")] = None,
    topic: shared_options.Topic = None,
    group: Annotated[
        str | None,
        typer.Option(parser=shared_options.group_name, metavar="GROUP", help="Only this producer or consumer group."),
    ] = None,
    home: shared_options.TablesHome = None,
    as_json: shared_options.AsJson = False,
    html: Annotated[
        Path | None,
        typer.Option(
            parser=shared_options.local_path, metavar="FILE", help="Write a self-contained HTML page to this file."
        ),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(parser=shared_options.seconds(WATCH_MIN_S), metavar="SECONDS", help="Refresh until Ctrl-C."),
    ] = None,
) -> None:
    """Print a report from the pipeline's tables. Exits with status 1 if no data is available yet."""
    name = command_names.parse_report(name)
    kind = _kind(name)
    filters = {"topic": topic, "group": group}
    for option, value in filters.items():
        if value is not None and option not in kind.filters:
            raise UsageError(f"--{option}", value, f"report {name} cannot be narrowed by it")
    if watch is not None and (as_json or html):
        raise UsageError("--watch", None, "give it without --json and --html")
    if as_json and html:
        raise UsageError("--html", str(html), "give either --json or --html")
    _times(since, until)
    place = homes.existing_tables_dir(home)
    own = {option: value for option, value in filters.items() if option in kind.filters}

    def ask() -> Report:
        since_ms, until_ms, now_ms = _times(since, until)
        return kind.function(place, since_ms=since_ms, until_ms=until_ms, now_ms=now_ms, **own)

    if watch is not None:
        _watch(ask, watch, place)
        return
    answer = ask()
    if as_json:
        typer.echo(json.dumps(as_dict(answer, place), ensure_ascii=False))
    elif html:
        _write(html, answer, place)
    else:
        _print(answer, place)
    raise typer.Exit(1 if answer.as_of is None else 0)


def _times(since: str, until: str | None) -> tuple[int, int, int]:
    """Return since, until and now, in ms."""
    from ariane.clock import SYSTEM_CLOCK

    now_ms = SYSTEM_CLOCK.now_ms()
    since_ms = parse_time(since, now_ms, "--since")
    until_ms = now_ms if until is None else parse_time(until, now_ms, "--until")
    if since_ms >= until_ms:
        raise UsageError("--since", since, f"is not before {'now' if until is None else f'--until {until}'}")
    return since_ms, until_ms, now_ms


def as_dict(report: Report, home: Path) -> dict[str, Any]:
    """Return the report as values of JSON. Times are ISO 8601; null is what is not known; `home` is where its tables are."""
    from ariane.reports.report import Plot, Table

    return {
        "title": report.title,
        "home": str(home),
        "as_of": _iso(report.as_of),
        "complete": report.as_of is not None and not report.warnings,
        "gaps": list(report.warnings),
        "sheets": [_sheet_dict(part) for part in report.sections if isinstance(part, Table)],
        "plots": [_plot_dict(part) for part in report.sections if isinstance(part, Plot)],
    }


def _sheet_dict(sheet: Table) -> dict[str, Any]:
    return {
        "title": sheet.title,
        "note": sheet.note,
        "left_out": sheet.omitted_rows,
        "fields": [field._asdict() for field in sheet.columns],
        "rows": [[_iso(cell) for cell in row] for row in sheet.rows],
    }


def _plot_dict(plot: Plot) -> dict[str, Any]:
    lines = [{"name": line.name, "points": [[_iso(at), value] for at, value in line.points]} for line in plot.lines]
    return {"title": plot.title, "note": plot.note, "unit": plot.unit, "lines": lines}


def _iso(value: object) -> object:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _kind(name: str) -> ReportKind:
    from ariane.reports import REPORTS

    return REPORTS[name]


def _write(path: Path, answer: Report, home: Path) -> None:
    from ariane.cli import html

    try:
        path.write_text(html.render(answer, str(home)), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--html", str(path), f"cannot be written: {error.strerror}") from error
    typer.echo(f"{path}: {answer.title} (tables in {home})", err=True)


def _print(answer: Report, home: Path, *, clear: bool = False) -> None:
    from rich.console import Console

    from ariane.cli import terminal

    console = Console()
    if clear:
        console.clear()  # does nothing where there is no terminal
    for line in terminal.render(answer, console.width, str(home)):
        console.print(line, soft_wrap=True)


def _watch(ask: Callable[[], Report], every_s: float, home: Path) -> None:
    try:
        while True:
            answer = ask()
            _print(answer, home, clear=True)
            time.sleep(every_s)
    except KeyboardInterrupt:
        return
