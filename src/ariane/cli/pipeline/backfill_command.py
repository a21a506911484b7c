"""`ariane pipeline backfill`: reads a time range of the topics again and adds the rows that the tables lack."""

from __future__ import annotations

from typing import Annotated

import typer

from ariane.cli.options import command_names, paths, spark_options
from ariane.cli.options.option_kinds import flag_option, time_option
from ariane.cli.options.time_options import parse_time
from ariane.cli.pipeline.job_options import TopicOptions
from ariane.cli.servers.process import signals
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import UsageError
from ariane.tables.table_store import open_store


def backfill(
    *,
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="JOB", help="Jobs whose tables are filled: all, or some.")
    ] = None,
    spark: spark_options.SparkJobOptions,
    since: Annotated[str, time_option("--from", help="Messages stored from this time on: 1h, or 2026-01-31T10:00.")],
    until: Annotated[str, time_option("--to", help="Messages stored before this time.")],
    home: paths.TablesHome = None,
    topics: TopicOptions,
    dry_run: Annotated[bool, flag_option("--dry-run", "Only count the missing rows.")] = False,
) -> None:
    """Read the messages of a time range again and add the rows that the tables lack.

    Rows that the tables have stay as they are. Stop the pipeline that writes them meanwhile. The range must end before the time up
    to which it has read everything.
    """
    now_ms = SYSTEM_CLOCK.now_ms()
    since_ms, until_ms = parse_time(since, now_ms, "--from"), parse_time(until, now_ms, "--to")
    if since_ms >= until_ms:
        raise UsageError("--to", until, "expected a time after --from")
    job_names = command_names.parse_jobs(jobs or [command_names.ALL])
    settings, source = spark.settings(), spark.source()
    tables_dir = paths.existing_tables_dir(home)
    spark_options.require_spark()

    from ariane.pipeline import backfill as filling
    from ariane.pipeline import restarts
    from ariane.pipeline.publishing import table_publisher
    from ariane.pipeline.spark_session import open_session

    job = topics.job(job_names)
    filling.check_range(tables_dir, job, until_ms)
    stop = signals.thread_stop_event(typer.echo)
    log = open_store(tables_dir).local_dir / "backfill.log"
    with (
        table_publisher.lock_tables(tables_dir, job.tables),
        restarts.single_line_errors(log, stop),
        open_session("ariane backfill", spark.master, long_running=False, log=log, conf=settings) as session,
    ):
        read = filling.read_range(session, source, since_ms, until_ms)
        results = filling.backfill(session, tables_dir, job, read, now_ms, is_dry_run=dry_run)
    for table, rows, missing in results:
        typer.echo(f"{table.name}: {rows:,} rows in the range, {missing:,} {'missing' if dry_run else 'added'}")
