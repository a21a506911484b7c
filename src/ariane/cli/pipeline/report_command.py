"""`ariane report`: prints a report of `ariane.reports` as text or JSON, or writes it as an HTML page.

command line ─→ reports.REPORTS[name] (SQL over the tables) ─→ Report ─→ terminal | as_dict (JSON) | html
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class ReportFilters:
    """Options that select the time range and the rows of a report."""

    since: Annotated[
        str,
        time_option(
            help="Start: a duration before now (30s, 15m, 1h, 2d) or a UTC time (2026-01-31T10:00).",
            panel=shared_options.FILTERS,
        ),
    ] = "1h"
    until: Annotated[
        str | None, time_option(help="End, in the same forms.  [default: now]", panel=shared_options.FILTERS)
    ] = None
    topic: shared_options.Topic = None
    group: Annotated[
        str | None, group_option(help="Only this producer or consumer group.", panel=shared_options.FILTERS)
    ] = None

    def times(self) -> tuple[int, int, int]:
        """Return since, until and now in ms.

        Raises:
            UsageError: a time is malformed, or the range is empty.
        """
        from ariane.clock import SYSTEM_CLOCK

        now_ms = SYSTEM_CLOCK.now_ms()
        since_ms = parse_time(self.since, now_ms, "--since")
        until_ms = now_ms if self.until is None else parse_time(self.until, now_ms, "--until")
        if since_ms >= until_ms:
            end = "now" if self.until is None else f"--until {self.until}"
            raise UsageError("--since", self.since, f"not before {end}; specify an earlier time")
        return since_ms, until_ms, now_ms


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options that choose the form of a report."""

    as_json: shared_options.AsJson = False
    html: Annotated[
        Path | None,
        path_option(metavar="FILE", help="Write a self-contained HTML page to this file.", panel=shared_options.OUTPUT),
    ] = None
    watch: Annotated[
        float | None,
        seconds_option(
            minimum=WATCH_MIN_S, help="Seconds between refreshes; runs until Ctrl-C.", panel=shared_options.OUTPUT
        ),
    ] = None

    def check(self) -> None:
        """Raise UsageError if options contradict each other."""
        # Both are files or streams for programs, which a refresh would append to or overwrite.
        if self.watch is not None and (self.as_json or self.html):
            raise UsageError("--watch", None, "cannot be combined with --json or --html")
        if self.as_json and self.html:
            raise UsageError("--html", str(self.html), "cannot be combined with --json")

    def write(self, report: Report, tables_dir: Home) -> None:
        """Print a report, or write it to a file."""
        if self.as_json:
            typer.echo(json.dumps(as_dict(report, tables_dir), ensure_ascii=False))
        elif self.html:
            _write(self.html, report, tables_dir)
        else:
            from ariane.cli.output import terminal

            terminal.print_report(terminal.create_console(), report, str(tables_dir))


def report(
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Report: tps, latency, lag, health, delay or transactions.")
    ] = None,
    filters: ReportFilters,
    home: homes.TablesHome = None,
    output: OutputOptions,
) -> None:
    """Print a report from the pipeline's tables.

    Exits with status 1 if no data is available yet. The pipeline needs Spark and Java 17; this command needs neither,
    and no running broker.
    """
    from ariane.reports import REPORTS

    function = REPORTS[command_names.parse_report(name)]
    output.check()
    filters.times()
    # After the options are checked: a mistyped option is the more useful error on a machine without tables.
    tables_dir = homes.existing_tables_dir(home)

    # Times are parsed again for each refresh: `--since 1h` means the last hour, not that before the start.
    def create_report() -> Report:
        since_ms, until_ms, now_ms = filters.times()
        period = {"since_ms": since_ms, "until_ms": until_ms, "now_ms": now_ms}
        return function(tables_dir, **period, topic=filters.topic, group=filters.group)

    if output.watch is not None:
        with contextlib.suppress(KeyboardInterrupt):
            for _ in rounds(output.watch):
                result = create_report()
                clear_screen()
                output.write(result, tables_dir)
        return
    result = create_report()
    output.write(result, tables_dir)
    # For scripts: an empty report is not an answer.
    raise typer.Exit(1 if result.as_of is None else 0)


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
