"""`ariane pipeline maintain`: retention, compaction and removal of replaced files, once or on a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.options import command_names, paths, spark_options
from ariane.cli.options.option_kinds import number_option, seconds_option, text_option
from ariane.cli.servers.process import signals
from ariane.clock import SYSTEM_CLOCK
from ariane.tables.table_home import Home
from ariane.tables.table_store import open_store

if TYPE_CHECKING:
    from ariane.pipeline.maintenance import Maintained


def maintain(
    *,
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="JOB", help="Jobs whose tables are maintained: all, or some.")
    ] = None,
    home: paths.TablesHome = None,
    keep_days: Annotated[int, number_option(minimum=1, metavar="DAYS", help="Retention of table rows in days.")] = 30,
    every: Annotated[
        float | None,
        seconds_option(minimum=1, help="Repeat at this interval in seconds until stopped; otherwise once."),
    ] = None,
    master: Annotated[
        str, text_option(metavar="URL", help="Spark master that merges files.", panel=spark_options.SPARK)
    ] = "local[2]",
) -> None:
    """Remove expired rows, merge small files, and delete replaced files.

    A running pipeline does this once a minute for its own tables: this command is for tables without one.
    """
    job_names = command_names.parse_jobs(jobs or [command_names.ALL])
    tables_dir = paths.existing_tables_dir(home)
    spark_options.require_spark()

    from ariane.pipeline import jobs as catalog
    from ariane.pipeline import maintenance, restarts
    from ariane.pipeline.publishing import table_publisher
    from ariane.pipeline.spark_session import open_session

    job = catalog.combine_jobs(job_names)
    stop = signals.thread_stop_event(typer.echo)
    log = open_store(tables_dir).local_dir / "maintain.log"
    with (
        table_publisher.lock_tables(tables_dir, job.tables),
        restarts.single_line_errors(log, stop),
        open_session("ariane maintain", master, long_running=every is not None, log=log, conf={}) as spark,
    ):
        while True:
            results = maintenance.maintain(spark, tables_dir, job, keep_days, SYSTEM_CLOCK.now_ms())
            _print_results(results, tables_dir)
            if every is None or stop.wait(every):
                return


def _print_results(results: list[Maintained], tables_dir: Home) -> None:
    changed = [result for result in results if result.before != result.after]
    for table, before, after in changed:
        typer.echo(
            f"{table.name}: {before.rows:,} → {after.rows:,} rows, {before.files:,} → {after.files:,} files "
            f"({before.bytes / 1e6:,.1f} → {after.bytes / 1e6:,.1f} MB), {after.retired_files:,} replaced files on disk"
        )
    if not changed:
        typer.echo(f"tables in {tables_dir}: nothing to do")
