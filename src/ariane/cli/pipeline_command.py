"""`ariane pipeline run JOB…` keeps Spark jobs going in the foreground; `ariane pipeline status` tells how far they are."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from datetime import UTC, datetime
from typing import Annotated

import typer

from ariane.cli import auth_options, command_names, shared_options, signals, spark_options
from ariane.cli import paths as homes
from ariane.errors import StoreError, UsageError
from ariane.model.topic import SAMPLES_TOPIC, TRACE_TOPIC

app = typer.Typer(help="Spark jobs over traces, messages and statistics.", no_args_is_help=True)


@app.command("run")
def run(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB", help="all, trace, traffic, lag, health, delay or transactions.", show_default=False
        ),
    ] = None,
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    home: shared_options.TablesHome = None,
    master: shared_options.Master = "local[2]",
    conf: spark_options.ConfOption = None,
    once: shared_options.Once = False,
    interval: Annotated[
        float, typer.Option(parser=shared_options.seconds(0.1), metavar="SECONDS", help="Pause between rounds.")
    ] = 2.0,
    keep_days: Annotated[
        int,
        typer.Option(parser=shared_options.whole_number(1), metavar="DAYS", help="Remove older rows from the tables."),
    ] = 30,
    topic: Annotated[
        str, typer.Option(parser=shared_options.topic_name, metavar="TOPIC", help="Topic that clients trace to.")
    ] = TRACE_TOPIC,
    samples_topic: Annotated[
        str, typer.Option(parser=shared_options.topic_name, metavar="TOPIC", help="Topic of `ariane collect`.")
    ] = SAMPLES_TOPIC,
    delay_levels: Annotated[
        str, typer.Option(metavar="LEVELS", help="The brokers' messageDelayLevel, if changed.")
    ] = "",
    collect: Annotated[
        bool, typer.Option(help="Sample the brokers if a job reads samples, unless `ariane collect` does it.")
    ] = True,
    access_key: auth_options.AccessKey = "",
    secret_key: auth_options.SecretKey = "",
    source_options: auth_options.SourceOption = None,
    until_stdin_closes: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Compute tables from topics, until SIGINT or SIGTERM."""
    job_names = command_names.parse_jobs(jobs)
    delays_ms = _delays_ms(delay_levels) if delay_levels else None
    settings = spark_options.parse_conf(conf)
    source = auth_options.source_options(namesrv, access_key, secret_key, source_options)
    client = auth_options.client_settings(access_key, secret_key)
    tables = homes.tables_dir(home)
    spark_options.require_spark()

    from ariane.cli import collector_thread, progress
    from ariane.pipeline import jobs as known
    from ariane.pipeline import run as running

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what fails in a batch is raised by its query, and told once
    job = known.with_topics(known.joined(job_names), topic, samples_topic)
    if delays_ms is not None:
        job = known.with_delay_levels(job, delays_ms)
    with progress.progress_reporter(once=once) as screen, contextlib.ExitStack() as beside:
        stop = signals.thread_stop_event(screen.print_line)
        if until_stdin_closes:
            threading.Thread(target=_stop_at_end_of_stdin, args=(stop,), daemon=True).start()
        screen.print_line(f"tables in {tables}; starting Spark")
        if collect and known.SAMPLES.name in {source.name for source in job.sources}:
            said = progress.CollectorProgress(screen.print_line)
            if once:
                collector_thread.poll_once(
                    namesrv, samples_topic, client, on_fault=said.on_fault, on_round=said.on_round
                )
            else:
                rounds = collector_thread.poll_in_background(
                    namesrv, samples_topic, client, on_fault=said.on_fault, on_round=said.on_round
                )
                beside.enter_context(rounds)
        running.run(
            job,
            source,
            tables,
            master=master,
            conf=settings,
            once=once,
            interval_s=interval,
            keep_days=keep_days,
            on_progress=screen.on_round,
            on_step=screen.on_tables_published,
            on_fault=screen.print_line,
            stop=stop,
        )


@app.command("status")
def status(
    home: shared_options.TablesHome = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per table.")] = False,
) -> None:
    """Print how fresh each table is. Exits with status 1 if one is not complete."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from ariane import tables
    from ariane.clock import SYSTEM_CLOCK
    from ariane.reports.pipeline_status import freshness
    from ariane.tables import published

    place = homes.existing_tables_dir(home)
    now_ms = SYSTEM_CLOCK.now_ms()
    lines = []
    for table in tables.ALL:
        if (now := published.current(place, table)) is None:
            continue
        fresh = freshness(place, table, now_ms)
        size = sum(file.bytes for file in now.files)
        lines.append((table.name, now.rows, len(now.files), size, fresh))
    if not lines:
        raise StoreError(f"no tables in {place}: run `ariane pipeline run all --home {place}`")
    if as_json:
        for name, count, files, size, fresh in lines:
            row = {"table": name, "home": str(place), "rows": count, "files": files, "bytes": size}
            row |= {"as_of_ms": fresh.as_of_ms}
            typer.echo(json.dumps(row | {"complete": fresh.is_complete, "gaps": fresh.warnings}))
    else:
        drawn = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("table", "rows", "files", "MB", "as of (UTC)", "age", "complete"):
            drawn.add_column(name, justify="right" if name in ("rows", "files", "MB", "age") else "left", no_wrap=True)
        for name, count, files, size, fresh in lines:
            as_of = age = "unknown"
            if fresh.as_of_ms is not None:
                as_of = f"{datetime.fromtimestamp(fresh.as_of_ms / 1000, UTC):%m-%d %H:%M:%S}"
                age = _age(now_ms - fresh.as_of_ms)
            whole = "yes" if fresh.is_complete else "no"
            drawn.add_row(name, f"{count:,}", f"{files:,}", f"{size / 1e6:,.1f}", as_of, age, whole)
        console = Console()
        console.print(f"tables in {place}", markup=False, highlight=False, soft_wrap=True)
        console.print(drawn)
        if why := list(dict.fromkeys(warning for *_, fresh in lines for warning in fresh.warnings)):
            console.print("\nNot complete:")
            for gap in why:
                console.print(Padding(Text(gap), (0, 0, 0, 2)))
    raise typer.Exit(0 if all(fresh.is_complete for *_, fresh in lines) else 1)


@app.command("tables")
def show_tables(
    name: Annotated[str | None, typer.Argument(metavar="TABLE", help="One of them; default: all.")] = None,
) -> None:
    """Print the tables' columns as Markdown."""
    from ariane import tables

    chosen = [table for table in tables.ALL if name in (None, table.name)]
    if not chosen:
        raise UsageError("TABLE", name, f"no such table; there are {', '.join(table.name for table in tables.ALL)}")
    typer.echo("\n".join(map(tables.page, chosen)), nl=False)


def _delays_ms(text: str) -> tuple[int, ...]:
    """messageDelayLevel, as it is written in broker.conf."""
    from ariane.broker.config import parse_delay_levels
    from ariane.errors import ProtocolError

    try:
        return parse_delay_levels(text)
    except ProtocolError as error:
        raise UsageError("--delay-levels", text, str(error)) from error


def _age(ms: int) -> str:
    """A span in the unit that fits it."""
    for unit, span_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if abs(ms) >= 2 * span_ms:
            return f"{ms // span_ms:,} {unit}"
    return f"{ms / 1000:,.0f} s"


def _stop_at_end_of_stdin(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        continue
    stop.set()
