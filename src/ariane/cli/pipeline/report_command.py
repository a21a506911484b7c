"""`ariane report`: prints a report of `ariane.reports` as text or JSON, or writes it as an HTML page.

command line ─→ reports.REPORTS[name] (SQL over the tables) ─→ Report ─→ terminal | as_dict (JSON) | html
"""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli.options import command_names, shared_options
from ariane.cli.options import paths as homes
from ariane.cli.options.option_kinds import group_option, path_option, seconds_option, time_option
from ariane.cli.options.time_options import parse_time
from ariane.cli.output.repetition import clear_screen, rounds
from ariane.errors import ConfigError, UsageError
from ariane.tables.table_home import Home

if TYPE_CHECKING:
    from ariane.reports.report import Plot, Report, Table

WATCH_MIN_S = 1.0  # shorter periods would only repeat the same query


def report(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Report: tps, latency, lag, health, delay or transactions.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str,
        time_option(
            help="Start: a duration before now (30s, 15m, 1h, 2d) or a UTC time (2026-01-31T10:00).",
            panel=shared_options.FILTERS,
        ),
    ] = "1h",
    until: Annotated[
        str | None, time_option(help="End, in the same forms.  [default: now]", panel=shared_options.FILTERS)
    ] = None,
    topic: shared_options.Topic = None,
    group: Annotated[
        str | None, group_option(help="Only this producer or consumer group.", panel=shared_options.FILTERS)
    ] = None,
    home: homes.TablesHome = None,
    as_json: shared_options.AsJson = False,
    html: Annotated[
        Path | None,
        path_option(metavar="FILE", help="Write a self-contained HTML page to this file.", panel=shared_options.OUTPUT),
    ] = None,
    watch: Annotated[
        float | None,
        seconds_option(
            minimum=WATCH_MIN_S, help="Seconds between refreshes; runs until Ctrl-C.", panel=shared_options.OUTPUT
        ),
    ] = None,
) -> None:
    """Print a report from the pipeline's tables.

    Exits with status 1 if no data is available yet. The pipeline needs Spark and Java 17; this command needs neither,
    and no running broker.
    """
    from ariane.reports import REPORTS

    name = command_names.parse_report(name)
    kind = REPORTS[name]
    filters = {"topic": topic, "group": group}
    for option, value in filters.items():
        if value is not None and option not in kind.filters:
            raise UsageError(f"--{option}", value, f"not supported by report {name}; remove it")
    # Both are files or streams for programs, which a refresh would append to or overwrite.
    if watch is not None and (as_json or html):
        raise UsageError("--watch", None, "cannot be combined with --json or --html")
    if as_json and html:
        raise UsageError("--html", str(html), "cannot be combined with --json")
    _times(since, until)
    # After the options are checked: a mistyped option is the more useful error on a machine without tables.
    tables_dir = homes.existing_tables_dir(home)
    selected = {option: value for option, value in filters.items() if option in kind.filters}

    # Times are parsed again for each refresh: `--since 1h` means the last hour, not that before the start.
    def create_report() -> Report:
        since_ms, until_ms, now_ms = _times(since, until)
        return kind.function(tables_dir, since_ms=since_ms, until_ms=until_ms, now_ms=now_ms, **selected)

    if watch is not None:
        with contextlib.suppress(KeyboardInterrupt):
            for _ in rounds(watch):
                result = create_report()
                clear_screen()
                _print(result, tables_dir)
        return
    result = create_report()
    if as_json:
        typer.echo(json.dumps(as_dict(result, tables_dir), ensure_ascii=False))
    elif html:
        _write(html, result, tables_dir)
    else:
        _print(result, tables_dir)
    # For scripts: an empty report is not an answer.
    raise typer.Exit(1 if result.as_of is None else 0)


def _times(since: str, until: str | None) -> tuple[int, int, int]:
    """Return since, until and now in ms.

    Raises:
        UsageError: a time is malformed, or the range is empty.
    """
    from ariane.clock import SYSTEM_CLOCK

    now_ms = SYSTEM_CLOCK.now_ms()
    since_ms = parse_time(since, now_ms, "--since")
    until_ms = now_ms if until is None else parse_time(until, now_ms, "--until")
    if since_ms >= until_ms:
        raise UsageError(
            "--since", since, f"not before {'now' if until is None else f'--until {until}'}; specify an earlier time"
        )
    return since_ms, until_ms, now_ms


def as_dict(report: Report, tables_dir: Home) -> dict[str, Any]:
    """Return a report as JSON values. Times are ISO 8601, unknown values null."""
    from ariane.reports.report import Plot, Table

    return {
        "title": report.title,
        "home": str(tables_dir),
        "as_of": _iso(report.as_of),
        # Unknown is not complete: without an as-of time the tables have no data.
        "complete": report.as_of is not None and not report.warnings,
        "warnings": list(report.warnings),
        "tables": [_table_dict(section) for section in report.sections if isinstance(section, Table)],
        "plots": [_plot_dict(section) for section in report.sections if isinstance(section, Plot)],
    }


def _table_dict(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "note": table.note,
        "omitted_rows": table.omitted_rows,
        "columns": [column._asdict() for column in table.columns],
        "rows": [[_iso(cell) for cell in row] for row in table.rows],
    }


def _plot_dict(plot: Plot) -> dict[str, Any]:
    lines = [
        {"name": line.name, "points": [[_iso(moment), value] for moment, value in line.points]} for line in plot.lines
    ]
    return {"title": plot.title, "note": plot.note, "unit": plot.unit, "lines": lines}


def _iso(value: object) -> object:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _write(path: Path, result: Report, tables_dir: Home) -> None:
    from ariane.cli.output import html

    try:
        path.write_text(html.render(result, str(tables_dir)), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--html", str(path), f"not writable: {error.strerror}") from error
    typer.echo(f"{path}: {result.title} (tables in {tables_dir})", err=True)


def _print(result: Report, tables_dir: Home) -> None:
    from ariane.cli.output import terminal

    terminal.print_report(terminal.create_console(), result, str(tables_dir))
