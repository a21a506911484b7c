"""`ariane archive run` keeps whole messages of topics as Parquet, for longer than brokers do."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli import account, stopping
from ariane.cli import home as homes

if TYPE_CHECKING:
    from ariane.pipeline.run import Progress

app = typer.Typer(help="Whole messages of topics, kept as Parquet.", no_args_is_help=True)
ARCHIVE = "archive"  # of the home of this user


@app.callback()
def _group() -> None:
    """Keeps `run` a command of its own while it is the only one."""


@app.command("run")
def run(
    namesrv: Annotated[str, typer.Option("-n", "--namesrv", help="Name servers, host:port joined by ';'.")],
    topics: Annotated[str, typer.Option(help="Topics, joined by ','.")] = "",
    pattern: Annotated[
        str, typer.Option("--topics-pattern", help="Regular expression for whole names of topics.")
    ] = "",
    system_topics: Annotated[
        bool, typer.Option(help="The pattern takes retry, dead-letter and brokers' own topics as well.")
    ] = False,
    home: Annotated[Path | None, typer.Option(help="Directory of the archive; default: archive in ~/.ariane.")] = None,
    master: Annotated[str, typer.Option(help="Spark master: local[2], spark://host:port, …")] = "local[2]",
    once: Annotated[bool, typer.Option("--once", help="Do what there is and end.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between batches.")] = 30.0,
    keep_days: Annotated[int, typer.Option(help="Days after which messages leave the archive.")] = 365,
    access_key: account.AccessKey = "",
    secret_key: account.SecretKey = "",
    source_options: account.SourceOption = None,
) -> None:
    """Append every message of the topics, from the first that brokers still have. Runs until SIGINT or SIGTERM, or --once."""
    from ariane.pipeline import archive
    from ariane.pipeline import run as running

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    names = [name for part in topics.split(",") if (name := part.strip())]
    job = archive.job(names, pattern, system_topics=system_topics)
    stop = stopping.of_thread()
    running.run(
        job,
        account.options(namesrv, access_key, secret_key, source_options),
        home or homes.default_home() / ARCHIVE,
        master=master,
        once=once,
        interval_s=interval,
        keep_days=keep_days,
        on_progress=_say,
        stop=stop,
    )


def _say(progress: Progress) -> None:
    at = time.strftime("%H:%M:%S")
    for source in progress.sources:
        behind = "?" if source.behind is None else f"{source.behind:,}"
        waiting = "" if source.away is None else f"  waiting: {source.away}"
        typer.echo(f"{at} {source.source:12} behind {behind}{waiting}")
