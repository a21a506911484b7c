"""`ariane pipeline run trace`: the trace job in the foreground."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from ariane.cli import home as homes
from ariane.model.topic import TRACE_TOPIC

app = typer.Typer(help="Spark jobs over traces.", no_args_is_help=True)
run_app = typer.Typer(help="Run a job.", no_args_is_help=True)
app.add_typer(run_app, name="run")


@run_app.command("trace")
def trace(
    namesrv: Annotated[str, typer.Option("-n", "--namesrv", help="Name servers, host:port joined by ';'.")],
    home: Annotated[Path | None, typer.Option(help="Directory of the tables; default: tables in ~/.ariane.")] = None,
    master: Annotated[str, typer.Option(help="Spark master: local[2], spark://host:port, …")] = "local[2]",
    topic: Annotated[str, typer.Option(help="Topic that clients trace to.")] = TRACE_TOPIC,
    once: Annotated[bool, typer.Option("--once", help="Do what there is and end.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between rounds.")] = 2.0,
    until_stdin_closes: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Turn message traces into the tables trace_events and journeys. Runs until SIGINT or SIGTERM, or --once."""
    from ariane.pipeline.run import Progress, run_trace

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if until_stdin_closes:
        threading.Thread(target=_stop_at_end_of_stdin, args=(stop,), daemon=True).start()

    def say(progress: Progress) -> None:
        if progress.away is not None:
            typer.echo(f"{time.strftime('%H:%M:%S')} waiting: {progress.away}")
        if progress.journeys is not None or once:
            rows = "unchanged" if progress.journeys is None else f"{progress.journeys.rows:,}"
            at = time.strftime("%H:%M:%S")
            typer.echo(f"{at} trace events {progress.events:,}  journeys {rows}  fold {progress.seconds:.1f} s")

    run_trace(
        namesrv,
        home or homes.default_home() / homes.TABLES,
        master=master,
        trace_topic=topic,
        once=once,
        interval_s=interval,
        on_progress=say,
        stop=stop,
    )


def _stop_at_end_of_stdin(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        continue
    stop.set()
