"""`ariane pipeline run JOB…` keeps Spark jobs going in the foreground; `ariane pipeline status` tells how far they are."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli import home as homes
from ariane.errors import ConfigError
from ariane.model.topic import SAMPLES_TOPIC, TRACE_TOPIC

if TYPE_CHECKING:
    from ariane.pipeline.run import Progress

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
    until_stdin_closes: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Turn topics into tables. Runs until SIGINT or SIGTERM, or --once."""
    from ariane.pipeline import jobs as known
    from ariane.pipeline import run as running

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    names = tuple(known.JOBS) if ALL in jobs else tuple(dict.fromkeys(jobs))
    if strange := [name for name in names if name not in known.JOBS]:
        there = "".join(f"\n  {job.name:14} {job.meaning}" for job in known.JOBS.values())
        raise ConfigError("JOB", strange[0], f"no such job; there are{there}\n  {ALL:14} all of them")
    job = known.joined(names)
    if topic != TRACE_TOPIC:
        job = known.with_trace_topic(job, topic)
    if samples_topic != SAMPLES_TOPIC:
        job = known.with_samples_topic(job, samples_topic)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if until_stdin_closes:
        threading.Thread(target=_stop_at_end_of_stdin, args=(stop,), daemon=True).start()
    running.run(
        job,
        {"namesrv": namesrv},
        home or homes.default_home() / homes.TABLES,
        master=master,
        once=once,
        interval_s=interval,
        keep_days=keep_days,
        on_progress=lambda progress: _say(progress, once),
        stop=stop,
    )


def _say(progress: Progress, always: bool) -> None:
    """A line for every source that waits, and one for every table that changed."""
    at = time.strftime("%H:%M:%S")
    for source in progress.sources:
        behind = "?" if source.behind is None else f"{source.behind:,}"
        if source.away is not None:
            typer.echo(f"{at} {source.source:12} waiting: {source.away}")
        elif always or progress.folded:
            took = "" if source.batch_ms is None else f"  batch {source.batch} {source.batch_ms:,} ms"
            typer.echo(f"{at} {source.source:12} behind {behind}{took}")
    for one in progress.folded:
        typer.echo(f"{at} {one.table.name:12} rows {one.published.rows:,}  slots {one.slots}")
    if progress.folded:
        typer.echo(f"{at} folded in {progress.seconds:.1f} s")


def _stop_at_end_of_stdin(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        continue
    stop.set()
