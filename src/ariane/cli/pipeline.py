"""`ariane pipeline run JOB…` keeps Spark jobs going in the foreground; `ariane pipeline status` tells how far they are."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ariane.cli import account, stopping
from ariane.cli import home as homes
from ariane.errors import ConfigError
from ariane.model.topic import SAMPLES_TOPIC, TRACE_TOPIC

app = typer.Typer(help="Spark jobs over traces, messages and statistics.", no_args_is_help=True)
ALL = "all"


@app.command("run")
def run(
    jobs: Annotated[list[str], typer.Argument(help="all, or names of jobs; a name that is none lists them.")],
    namesrv: Annotated[str, typer.Option("-n", "--namesrv", help="Name servers, host:port joined by ';'.")],
    home: Annotated[Path | None, typer.Option(help="Directory of the tables; default: tables in ~/.ariane.")] = None,
    master: Annotated[str, typer.Option(help="Spark master: local[2], spark://host:port, …")] = "local[2]",
    once: Annotated[bool, typer.Option("--once", help="Do what there is and end.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between rounds.")] = 2.0,
    keep_days: Annotated[int, typer.Option(help="Days after which rows leave the tables.")] = 30,
    topic: Annotated[str, typer.Option(help="Topic that clients trace to.")] = TRACE_TOPIC,
    samples_topic: Annotated[str, typer.Option(help="Topic that `ariane collect` sends to.")] = SAMPLES_TOPIC,
    delay_levels: Annotated[str, typer.Option(help="The brokers' messageDelayLevel, if it was changed.")] = "",
    collect: Annotated[
        bool, typer.Option(help="Sample the brokers beside the jobs, when one reads samples; if nobody else does.")
    ] = True,
    access_key: account.AccessKey = "",
    secret_key: account.SecretKey = "",
    source_options: account.SourceOption = None,
    until_stdin_closes: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Turn topics into tables. Runs until SIGINT or SIGTERM, or --once."""
    from ariane.cli import collector, progress
    from ariane.pipeline import jobs as known
    from ariane.pipeline import run as running

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what fails in a batch is raised by its query, and told once
    names = tuple(known.JOBS) if ALL in jobs else tuple(dict.fromkeys(jobs))
    if strange := [name for name in names if name not in known.JOBS]:
        there = "".join(f"\n  {job.name:14} {job.meaning}" for job in known.JOBS.values())
        raise ConfigError("JOB", strange[0], f"no such job; there are{there}\n  {ALL:14} all of them")
    job = known.with_topics(known.joined(names), topic, samples_topic)
    if delay_levels:
        job = known.with_delay_levels(job, _delays_ms(delay_levels))
    stop = stopping.of_thread()
    if until_stdin_closes:
        threading.Thread(target=_stop_at_end_of_stdin, args=(stop,), daemon=True).start()
    options = account.options(namesrv, access_key, secret_key, source_options)
    client = account.client(access_key, secret_key)
    with progress.screen(once=once) as screen, contextlib.ExitStack() as beside:
        if collect and known.SAMPLES.name in {source.name for source in job.sources}:
            said = progress.Collected(screen.say)
            if once:
                collector.once(namesrv, samples_topic, client, on_fault=said.fault, on_round=said.round)
            else:
                rounds = collector.beside(namesrv, samples_topic, client, on_fault=said.fault, on_round=said.round)
                beside.enter_context(rounds)
        running.run(
            job,
            options,
            home or homes.default_home() / homes.TABLES,
            master=master,
            once=once,
            interval_s=interval,
            keep_days=keep_days,
            on_progress=screen.show,
            on_step=screen.step,
            stop=stop,
        )


@app.command("status")
def status(
    home: Annotated[
        Path | None, typer.Option(help="Directory of the tables; default: the newest of this user.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for every table.")] = False,
) -> None:
    """How fresh each table is, and what is missing in it. Exit status 1 when one is not complete."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from ariane import tables
    from ariane.admin import published
    from ariane.admin.status import freshness
    from ariane.clock import SYSTEM_CLOCK

    place = home or homes.newest_tables()
    now_ms = SYSTEM_CLOCK.now_ms()
    lines = []
    for table in tables.ALL:
        if (now := published.current(place, table)) is None:
            continue
        fresh = freshness(place, table, now_ms)
        size = sum(file.bytes for file in now.files)
        lines.append((table.name, now.rows, len(now.files), size, fresh))
    if not lines:
        raise ConfigError("--home", str(place), "no table was published there yet: run `ariane pipeline run all`")
    if as_json:
        for name, count, files, size, fresh in lines:
            row = {"table": name, "rows": count, "files": files, "bytes": size, "as_of_ms": fresh.as_of_ms}
            typer.echo(json.dumps(row | {"complete": fresh.is_complete, "gaps": fresh.gaps}))
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
        console.print(drawn)
        if why := list(dict.fromkeys(gap for *_, fresh in lines for gap in fresh.gaps)):
            console.print("\nNot complete:")
            for gap in why:
                console.print(Padding(Text(gap), (0, 0, 0, 2)))
    raise typer.Exit(0 if all(fresh.is_complete for *_, fresh in lines) else 1)


@app.command("tables")
def show_tables(
    name: Annotated[str | None, typer.Argument(help="One of them; default: all.")] = None,
) -> None:
    """What is in the tables: every column, its type and what it means, as Markdown."""
    from ariane import tables

    chosen = [table for table in tables.ALL if name in (None, table.name)]
    if not chosen:
        raise ConfigError("NAME", name, f"no such table; there are {', '.join(table.name for table in tables.ALL)}")
    typer.echo("\n".join(map(tables.page, chosen)), nl=False)


def _delays_ms(text: str) -> tuple[int, ...]:
    """messageDelayLevel, as it is written in broker.conf."""
    from ariane.broker.config import delays_ms
    from ariane.errors import ProtocolError

    try:
        return delays_ms(text)
    except ProtocolError as error:
        raise ConfigError("--delay-levels", text, str(error)) from error


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
