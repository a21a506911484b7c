"""`ariane archive run` keeps whole messages of topics as Parquet, for longer than brokers do."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli import auth_options, shared_options, signals, spark_options
from ariane.cli import paths as homes
from ariane.errors import UsageError

if TYPE_CHECKING:
    from ariane.pipeline.run import JobProgress

app = typer.Typer(help="Whole messages of topics, as Parquet.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `run` a command of its own while it is the only one."""


def _topics(text: object) -> str:
    """Names of topics, joined by ','."""
    names = [name for part in str(text).split(",") if (name := part.strip())]
    return ",".join(map(shared_options.topic_name, names))


def _pattern(text: object) -> str:
    """A regular expression."""
    try:
        re.compile(str(text))
    except re.error as error:
        raise typer.BadParameter(f"{text!r} is no regular expression: {error}.") from None
    return str(text)


@app.command("run")
def run(
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    topics: Annotated[str, typer.Option(parser=_topics, metavar="TOPIC,…", help="Topics to archive.")] = "",
    pattern: Annotated[
        str,
        typer.Option("--topics-pattern", parser=_pattern, metavar="REGEX", help="The same by whole names of topics."),
    ] = "",
    system_topics: Annotated[
        bool, typer.Option(help="Include retry, dead-letter and brokers' own topics that the pattern matches.")
    ] = False,
    home: Annotated[
        Path | None,
        typer.Option(
            parser=shared_options.local_path,
            metavar="DIR",
            help="Home of `ariane up`, or a directory for the archive. Default: $ARIANE_HOME or ~/.ariane.",
        ),
    ] = None,
    master: shared_options.Master = "local[2]",
    conf: spark_options.ConfOption = None,
    once: shared_options.Once = False,
    interval: Annotated[
        float, typer.Option(parser=shared_options.seconds(0.1), metavar="SECONDS", help="Pause between batches.")
    ] = 30.0,
    keep_days: Annotated[
        int, typer.Option(parser=shared_options.whole_number(1), metavar="DAYS", help="Remove older messages.")
    ] = 365,
    access_key: auth_options.AccessKey = "",
    secret_key: auth_options.SecretKey = "",
    source_options: auth_options.SourceOption = None,
) -> None:
    """Archive every message of topics. Starts at the first that brokers still have, runs until SIGINT or SIGTERM."""
    if bool(topics) == bool(pattern):
        raise UsageError("--topics", topics or None, "give either --topics or --topics-pattern")
    settings = spark_options.parse_conf(conf)
    source = auth_options.source_options(namesrv, access_key, secret_key, source_options)
    place = homes.archive_dir(home)
    spark_options.require_spark()

    from ariane.pipeline import archive
    from ariane.pipeline import run as running

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what fails in a batch is raised by its query, and told once
    job = archive.job(topics.split(",") if topics else [], pattern, system_topics=system_topics)
    stop = signals.thread_stop_event(_line)
    _line(f"archive in {place}; starting Spark")
    running.run(
        job,
        source,
        place,
        master=master,
        conf=settings,
        once=once,
        interval_s=interval,
        keep_days=keep_days,
        on_progress=_say,
        on_fault=_line,
        stop=stop,
    )


def _line(text: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {text}")


def _say(progress: JobProgress) -> None:
    for source in progress.sources:
        behind = "?" if source.pending is None else f"{source.pending:,}"
        waiting = "" if source.unavailable is None else f"  waiting: {source.unavailable}"
        _line(f"{source.source:12} behind {behind}{waiting}")
