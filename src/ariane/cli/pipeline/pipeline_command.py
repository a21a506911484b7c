"""`ariane pipeline`: runs Spark jobs in the foreground; prints how fresh their tables are, and the tables' schemas."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ariane.cli.options import command_names, shared_options, spark_options
from ariane.cli.options import paths as homes
from ariane.cli.options.metrics_options import MetricsOptions
from ariane.cli.options.option_kinds import json_option, number_option, seconds_option, text_option
from ariane.cli.output.help_format import create_app
from ariane.cli.pipeline import backfill_command, explain_command, maintain_command
from ariane.cli.pipeline.job_options import TopicOptions
from ariane.cli.servers.process import run_server, signals
from ariane.errors import ArianeError, StoreError, UsageError
from ariane.tables.table_home import Home

if TYPE_CHECKING:
    from ariane.cli.pipeline.progress import ProgressReporter
    from ariane.otel.journey_exporter import JourneyExporter
    from ariane.pipeline.run import JobProgress
    from ariane.reports.tables.pipeline_status import Freshness
    from ariane.tables.table_format import TableVersion

app = create_app("Run Spark jobs over traces, messages and statistics.")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `ariane pipeline run` that no other command has."""

    once: shared_options.Once = False
    interval: Annotated[float, seconds_option(minimum=0.1, help="Seconds between rounds.")] = 2.0
    keep_days: Annotated[int, number_option(minimum=1, metavar="DAYS", help="Retention of table rows in days.")] = 30
    delay_levels: Annotated[
        str,
        typer.Option(metavar="LEVELS", help="messageDelayLevel of the brokers, if it differs from RocketMQ's default."),
    ] = ""
    collect: Annotated[
        bool,
        typer.Option(help="Poll the brokers if a job reads samples; --no-collect if `ariane collect` runs elsewhere."),
    ] = True
    otlp_endpoint: Annotated[
        str | None,
        text_option(
            metavar="URL",
            envvar="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            help="Collector of the job otel, OTLP over HTTP.  [default: http://localhost:4318/v1/traces]",
        ),
    ] = None

    def delays_ms(self) -> tuple[int, ...] | None:
        """Return the delays of messageDelayLevel as broker.conf writes it, in ms; None: RocketMQ's."""
        from ariane.broker.config.broker_config import parse_delay_levels
        from ariane.errors import ProtocolError

        if not self.delay_levels:
            return None
        try:
            return parse_delay_levels(self.delay_levels)
        except ProtocolError as error:
            raise UsageError("--delay-levels", self.delay_levels, str(error)) from error

    def journey_exporter(self, tables: Home) -> JourneyExporter:
        """Return the exporter of the job otel.

        Raises:
            UsageError: the extra `otel` is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            from ariane.otel.journey_exporter import JourneyExporter
        except ModuleNotFoundError as error:
            fix = f"the job otel needs OpenTelemetry: pip install 'ariane[otel]' ({error})"
            raise UsageError("JOB", "otel", fix) from None
        return JourneyExporter(tables, OTLPSpanExporter(self.otlp_endpoint))


@app.command(
    "run",
    "ariane pipeline run all -n 10.0.0.1:9876",
    "ariane pipeline run trace traffic --once",
    "ariane pipeline run lag --master spark://10.0.0.7:7077 --no-collect",
    "ariane pipeline run otel --otlp-endpoint http://127.0.0.1:4318/v1/traces",
)
def run(
    *,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB", help="Jobs: trace, traffic, lag, health, delay, transactions, all of them, or otel."
        ),
    ] = None,
    spark: spark_options.SparkJobOptions,
    home: homes.TablesHome = None,
    topics: TopicOptions,
    options: RunOptions,
    metrics: MetricsOptions,
    until_stdin_closes: shared_options.UntilStdinCloses = False,
) -> None:
    """Run jobs that compute tables from topics.

    Runs until SIGINT or SIGTERM. A restarted job resumes where it stopped.
    """
    from ariane.cli.servers.process import public_http

    job_names = command_names.parse_jobs(jobs)
    delays_ms = options.delays_ms()
    settings, source = spark.settings(), spark.source()
    client = spark.access.client_settings()
    tables, http = homes.tables_dir(home), public_http.metrics_port("pipeline", metrics)
    spark_options.require_spark()
    exporter = options.journey_exporter(tables) if "otel" in job_names else None

    from ariane.cli.pipeline import progress
    from ariane.cli.servers.process import collector_thread
    from ariane.metrics.serving.endpoint import serve_in_thread
    from ariane.pipeline import jobs as catalog
    from ariane.pipeline import run as runner
    from ariane.pipeline.pipeline_metrics import PipelineSource

    run_server.log_warnings()
    once = options.once
    job = topics.job(job_names)
    if delays_ms is not None:
        job = catalog.with_delay_levels(job, delays_ms)
    with progress.progress_reporter(once=once) as reporter, contextlib.ExitStack() as background:
        stop = signals.thread_stop_event(reporter.print_line)
        # A thread, because Spark blocks this one.
        if until_stdin_closes:
            threading.Thread(target=_stop_at_end_of_stdin, args=(stop,), daemon=True).start()
        reporter.print_line(f"tables in {tables}; starting Spark")
        if http:
            background.enter_context(serve_in_thread(public_http.serve_metrics(http, PipelineSource(tables))))
        # The lag job needs samples: without a collector its topic stays empty.
        if options.collect and catalog.SAMPLES.name in {source.name for source in job.sources}:
            collector = progress.CollectorProgress(reporter.print_line)
            polls = collector_thread.poll_in_background(
                spark.namesrv,
                topics.samples_topic,
                client,
                on_fault=collector.on_fault,
                on_round=collector.on_round,
                once=once,
            )
            background.enter_context(polls)
        runner.run(
            job,
            source,
            tables,
            settings=runner.RunSettings(
                master=spark.master,
                once=once,
                interval_s=options.interval,
                keep_days=options.keep_days,
                spark_conf=settings,
            ),
            listener=reporter if exporter is None else _ExportingListener(reporter, exporter, is_final=once),
            stop=stop,
        )


class _ExportingListener:
    """Exports new journeys after each round, and passes all progress on to a reporter.

    After a failed export, the next round repeats it; in the only round (`is_final`), the failure ends the command.
    """

    def __init__(self, reporter: ProgressReporter, exporter: JourneyExporter, *, is_final: bool) -> None:
        self._reporter = reporter
        self._exporter = exporter
        self._is_final = is_final

    def on_tables_published(self, progress: JobProgress) -> None:
        self._reporter.on_tables_published(progress)

    def on_round(self, progress: JobProgress) -> None:
        self._reporter.on_round(progress)
        try:
            exported = self._exporter.export_new()
        except ArianeError as error:
            if self._is_final:
                raise
            self._reporter.print_line(f"otel: {error}")
            return
        if exported:
            self._reporter.print_line(f"otel: exported {exported:,} spans")

    def print_line(self, line: str) -> None:
        self._reporter.print_line(line)


@app.command("status", "ariane pipeline status --home ~/.ariane")
def status(
    home: homes.TablesHome = None,
    as_json: Annotated[bool, json_option("Print one JSON object per table.")] = False,
) -> None:
    """Print the freshness of each table.

    Exits with status 1 if a table is incomplete.
    """
    from ariane.clock import SYSTEM_CLOCK
    from ariane.reports.tables.pipeline_status import table_statuses
    from ariane.reports.tables.table_contents import PIPELINE_NEEDS

    tables_dir = homes.existing_tables_dir(home)
    now_ms = SYSTEM_CLOCK.now_ms()
    # A table without a version was never published: its job has not run, which is not a fault.
    states = [
        _TableState(table.name, version, fresh)
        for table, version, fresh in table_statuses(tables_dir, now_ms)
        if version is not None
    ]
    if not states:
        command = f"ariane pipeline run all --home {tables_dir}"
        raise StoreError(f"no tables in {tables_dir}: run `{command}` ({PIPELINE_NEEDS})")
    if as_json:
        for state in states:
            typer.echo(json.dumps(state.as_dict(tables_dir)))
    else:
        _print_status(states, tables_dir, now_ms)
    # For scripts and health checks.
    raise typer.Exit(0 if all(state.fresh.is_complete for state in states) else 1)


class _TableState(NamedTuple):
    name: str
    version: TableVersion
    fresh: Freshness

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.bytes for file in self.version.files)

    def as_dict(self, tables_dir: Home) -> dict[str, Any]:
        return {
            "table": self.name,
            "home": str(tables_dir),
            "rows": self.version.rows,
            "files": len(self.version.files),
            "bytes": self.size,
            "as_of_ms": self.fresh.as_of_ms,
            "complete": self.fresh.is_complete,
            "warnings": self.fresh.warnings,
        }


def _print_status(states: Sequence[_TableState], tables_dir: Home, now_ms: int) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from ariane.cli.output.terminal import create_console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("TABLE", "ROWS", "FILES", "MB", "AS OF (UTC)", "AGE", "COMPLETE"):
        table.add_column(name, justify="right" if name in ("ROWS", "FILES", "MB", "AGE") else "left", no_wrap=True)
    for state in states:
        as_of = age = "unknown"
        if state.fresh.as_of_ms is not None:
            as_of = f"{datetime.fromtimestamp(state.fresh.as_of_ms / 1000, UTC):%m-%d %H:%M:%S}"
            age = _format_age(now_ms - state.fresh.as_of_ms)
        complete = "yes" if state.fresh.is_complete else "no"
        files, size = f"{len(state.version.files):,}", f"{state.size / 1e6:,.1f}"
        table.add_row(state.name, f"{state.version.rows:,}", files, size, as_of, age, complete)
    console = create_console()
    console.print(f"tables: {tables_dir}", soft_wrap=True)
    console.print(table)
    # One reason usually affects many tables: print it once.
    if warnings := list(dict.fromkeys(warning for state in states for warning in state.fresh.warnings)):
        console.print("\nIncomplete because:")
        for warning in warnings:
            console.print(Padding(Text(warning), (0, 0, 0, 2)))


@app.command("tables", "ariane pipeline tables journeys")
def show_tables(
    name: Annotated[str | None, typer.Argument(metavar="TABLE", help="Only this table.")] = None,
) -> None:
    """Print the schemas of the tables as Markdown."""
    from ariane import tables

    selected = [table for table in tables.ALL_TABLES if name in (None, table.name)]
    if not selected:
        raise UsageError("TABLE", name, "unknown table; list them with `ariane pipeline tables`")
    typer.echo("\n".join(map(tables.markdown_page, selected)), nl=False)


app.command(
    "explain",
    "ariane pipeline explain journeys",
    "ariane pipeline explain clocks --json",
    "ariane pipeline explain traffic --openlineage",
)(explain_command.explain)
app.command(
    "maintain",
    "ariane pipeline maintain --keep-days 14",
    "ariane pipeline maintain trace traffic --every 3600",
)(maintain_command.maintain)
app.command(
    "backfill",
    "ariane pipeline backfill --from 2026-01-31T10:00 --to 2026-01-31T12:00",
    "ariane pipeline backfill trace --from 6h --to 5h --dry-run",
)(backfill_command.backfill)


def _format_age(ms: int) -> str:
    """Return a duration in a readable unit."""
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if abs(ms) >= 2 * unit_ms:
            return f"{ms // unit_ms:,} {unit}"
    return f"{ms / 1000:,.0f} s"


def _stop_at_end_of_stdin(stop: threading.Event) -> None:
    # Only the end of the pipe counts: the parent writes nothing.
    while os.read(sys.stdin.fileno(), 4096):
        continue
    stop.set()
