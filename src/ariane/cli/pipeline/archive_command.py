"""`ariane archive run`: stores whole messages of topics as Parquet files, for longer than brokers retain them."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.options import paths as homes
from ariane.cli.options import shared_options, spark_options
from ariane.cli.options.option_kinds import number_option, path_option, seconds_option
from ariane.cli.output.help_format import create_app
from ariane.cli.servers.process import run_server, signals
from ariane.errors import UsageError

if TYPE_CHECKING:
    from ariane.pipeline.jobs import PipelineJob
    from ariane.pipeline.run import JobProgress

app = create_app("Archive whole messages of topics as Parquet files.")


@app.callback()
def _group() -> None:
    """Keep `run` a subcommand: Typer merges a single command into its group."""


def _topics(text: object) -> str:
    """Return topic names joined by ','."""
    names = [name for part in str(text).split(",") if (name := part.strip())]
    return ",".join(map(shared_options.topic_name, names))


def _pattern(text: object) -> str:
    """Return a valid regular expression."""
    try:
        re.compile(str(text))
    except re.error as error:
        raise typer.BadParameter(f"{text!r}: expected a regular expression ({error}).") from None
    return str(text)


@dataclass(frozen=True, kw_only=True)
class ArchivedTopics:
    """Options that say which topics are archived."""

    topics: Annotated[
        str, typer.Option(parser=_topics, metavar="TOPIC,…", help="Topics to archive, separated by ','.")
    ] = ""
    pattern: Annotated[
        str,
        typer.Option(
            "--topics-pattern",
            parser=_pattern,
            metavar="REGEX",
            help="Regular expression that the whole topic name must match.",
        ),
    ] = ""
    system_topics: Annotated[bool, typer.Option(help="Include matching retry, dead-letter and system topics.")] = False

    def check(self) -> None:
        """Raise UsageError unless the topics are given in exactly one way."""
        if bool(self.topics) == bool(self.pattern):
            raise UsageError("--topics", self.topics or None, "specify exactly one of --topics and --topics-pattern")

    def job(self) -> PipelineJob:
        """Return the job that archives these topics."""
        from ariane.pipeline import archive

        names = self.topics.split(",") if self.topics else []
        return archive.archive_job(names, self.pattern, system_topics=self.system_topics)


@app.command(
    "run",
    "ariane archive run --topics orders,payments -n 10.0.0.1:9876",
    "ariane archive run --topics-pattern 'order.*' --once",
)
def run(
    *,
    spark: spark_options.SparkJobOptions,
    archived: ArchivedTopics,
    home: Annotated[
        homes.OptionalHome,
        path_option(
            parser=homes.tables_home,
            metavar="DIR|URI",
            help="Home of `ariane up`, a directory for the archive, or s3://….  [default: $ARIANE_HOME or ~/.ariane]",
        ),
    ] = None,
    once: shared_options.Once = False,
    interval: Annotated[float, seconds_option(minimum=0.1, help="Seconds between batches.")] = 30.0,
    keep_days: Annotated[
        int, number_option(minimum=1, metavar="DAYS", help="Retention of archived messages in days.")
    ] = 365,
) -> None:
    """Archive all messages of topics.

    Starts with the oldest messages that the brokers have, and runs until SIGINT or SIGTERM.
    """
    archived.check()
    settings, source = spark.settings(), spark.source()
    directory = homes.archive_dir(home)
    # After all checks of the command line: `./ariane` installs Spark only for a valid one.
    spark_options.require_spark()

    from ariane.pipeline import run as runner

    run_server.log_warnings()
    stop = signals.thread_stop_event(_print_line)
    _print_line(f"archive in {directory}; starting Spark")
    runner.run(
        archived.job(),
        source,
        directory,
        settings=runner.RunSettings(
            master=spark.master, once=once, interval_s=interval, keep_days=keep_days, spark_conf=settings
        ),
        listener=_ArchiveProgress(),
        stop=stop,
    )


def _print_line(text: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {text}")


class _ArchiveProgress:
    """Prints a line per round and fault."""

    def on_tables_published(self, progress: JobProgress) -> None:
        """Ignore tables within a round: the archive is one table."""

    def on_round(self, progress: JobProgress) -> None:
        for source in progress.sources:
            pending = "?" if source.pending is None else f"{source.pending:,}"
            waiting = "" if source.unavailable is None else f"  waiting: {source.unavailable}"
            _print_line(f"{source.source:12} pending {pending}{waiting}")

    def print_line(self, line: str) -> None:
        _print_line(line)
