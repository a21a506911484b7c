"""Runs the jobs: topics in, tables out, until stopped.

    RocketMQ ─ SourceReader (one streaming query per source) ─→ base tables ─ rebuild_changed ─→ tables computed from them

HOME/<table>/               see `ariane.tables.table_format`
HOME/checkpoint/<source>/   progress of the streaming queries; without it they start from the beginning: remove the tables with it
HOME/checkpoint/staged/     rows that a table is being computed from; empty otherwise (`staged_tables`)
HOME/status/<source>        JSON (`SourceStatus`): progress of a source, for `ariane pipeline status` and all reports
HOME/spark.log              standard error of Spark and its workers since the start

A micro-batch is appended with its number, and a computed table is published with the versions of its inputs. A driver that crashes
at any point therefore resumes where the tables end. HOME must be a directory that all executors see: local with a local master,
shared on a cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec

from ariane.clock import SYSTEM_CLOCK
from ariane.errors import ArianeError, ConfigError
from ariane.pipeline import backlog, maintenance, restarts, round_pacing
from ariane.pipeline.jobs import PipelineJob, TopicSource
from ariane.pipeline.publishing import few_rows, incremental, staged_tables, table_publisher
from ariane.pipeline.source_reader import SourceReader, SourceStream, restart_pause_s, source_status
from ariane.pipeline.spark_session import open_session
from ariane.reports.tables.pipeline_status import SourceStatus, read_statuses, write_status
from ariane.tables import TableSchema
from ariane.tables.table_home import Home
from ariane.tables.table_store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

T = TypeVar("T")

MIN_INTERVAL_S = 0.1
MAX_PAUSE_S = 30.0  # between rounds
BATCH_POLL_S = 0.2  # between checks whether the micro-batches in flight have ended
KEEP_DAYS = 30
MAINTENANCE_INTERVAL_S = 60.0  # between rounds of compaction and expiry


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a job runs.

    Raises:
        ConfigError: a value is out of range.
    """

    master: str = "local[2]"
    once: bool = False
    """Process everything available, then exit."""
    interval_s: float = 2.0
    """Longest pause between rounds, and pause between micro-batches of a source; longer while few messages arrive
    (`round_pacing`)."""
    keep_days: int = KEEP_DAYS
    """Retention of rows."""
    spark_conf: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if self.keep_days < 1:
            raise ConfigError("keep-days", self.keep_days, "expected at least 1 day")
        if self.interval_s < MIN_INTERVAL_S:
            raise ConfigError("interval", self.interval_s, f"expected at least {MIN_INTERVAL_S} seconds")


class JobProgress(NamedTuple):
    """Outcome of a round, or of one table within a round."""

    rebuilt: tuple[incremental.AggregationResult, ...]
    sources: tuple[SourceStatus, ...]
    seconds: float


class JobListener(Protocol):
    """Receives the progress of a job, in the driver's thread."""

    def on_tables_published(self, progress: JobProgress) -> None:
        """Called for each table that is published within a round, because a round of many tables takes long."""
        ...

    def on_round(self, progress: JobProgress) -> None:
        """Called at the end of a round."""
        ...

    def print_line(self, line: str) -> None:
        """Called for each transient fault that is retried."""
        ...


class SilentListener:
    """A listener that ignores everything."""

    def on_tables_published(self, progress: JobProgress) -> None:
        pass

    def on_round(self, progress: JobProgress) -> None:
        pass

    def print_line(self, line: str) -> None:
        pass


def run(
    job: PipelineJob,
    options: Mapping[str, str],
    home: Home,
    *,
    settings: RunSettings | None = None,
    listener: JobListener | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Turn topics into tables: everything available if `settings.once`, otherwise until `stop` is set.

    A name server or broker that does not respond is waited for: without limit, or with `once` for half a minute, after which the
    other sources are processed and ArianeError names the missing server. Transient faults of Spark are reported to
    `listener.print_line` and retried (`restarts`).

    Args:
        job: what to read and compute.
        options: options of format("rocketmq") for all sources: namesrv, accessKey, …
        home: directory of the tables, or their place in an object store.
        settings: how to run; None: the defaults.
        listener: receives progress and faults; None: they are ignored.
        stop: ends the job when set; None: it runs until an error.

    Raises:
        ConfigError: Java or pyspark is missing, `home` is not writable, or `spark_conf` has a reserved setting.
        ArianeError: messages were removed before they were read, or Spark failed: one line, the traceback is in HOME/spark.log.
    """
    settings, listener, stop = settings or RunSettings(), listener or SilentListener(), stop or threading.Event()
    log = open_store(home).local_dir / "spark.log"
    # Both JIT compilers pay off for a job that runs on, and for a backlog.
    is_long = not settings.once or backlog.has_backlog(job, options, home)
    with (
        table_publisher.lock_tables(home, job.tables),
        restarts.single_line_errors(log, stop),
        open_session(
            f"ariane {job.name}", settings.master, long_running=is_long, log=log, conf=settings.spark_conf
        ) as spark,
    ):
        limits = {"minOffsetsPerTrigger": str(round_pacing.MIN_BATCH_MESSAGES)}
        read = partial(
            read_stream, options={**limits, **options}, rounds=round_pacing.round_file(open_store(home).local_dir)
        )
        streams = {
            source.name: restarts.retry_transient(source.name, partial(read, spark, source), stop, listener.print_line)
            for source in job.sources
        }
        JobRunner(spark=spark, job=job, streams=streams, home=home, settings=settings, stop=stop).run(listener)


def read_stream(
    spark: SparkSession, source: TopicSource, options: Mapping[str, str], rounds: Path | None = None
) -> SourceStream:
    """Return the messages of a source as a stream that starts at the earliest offsets.

    With `rounds` it also reads when the number in this file changes (`round_pacing`), and sizes its micro-batches.
    """
    from ariane.spark import RocketMQSource
    from ariane.spark.read.micro_batches import StreamReader
    from ariane.spark.read.source_options import parse

    class NamedSource(RocketMQSource):
        """The connector under a name of its own.

        Queries of one format share a Java map that planning modifies while tasks of another query are serialized, which
        occasionally fails with an OptionalDataException.
        """

        @classmethod
        def name(cls) -> str:
            return f"rocketmq-{source.name}"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            reader = super().streamReader(schema)
            if rounds is not None and isinstance(reader, StreamReader):
                reader.is_due = round_pacing.RoundGate(rounds).has_advanced
                reader.limit_policy = round_pacing.BatchSizer()
            return reader

    spark.dataSource.register(NamedSource)
    reader = spark.readStream.format(NamedSource.name()).schema(source.schema).option("startingOffsets", "earliest")
    messages = reader.options(**{**source.options, **source.limits, **options}).load()
    return SourceStream(messages, StreamReader(parse({**source.options, **options}), messages.columns))


class JobRunner:
    """Keeps the tables of a job up to date with its streams."""

    def __init__(
        self,
        *,
        spark: SparkSession,
        job: PipelineJob,
        streams: Mapping[str, SourceStream],
        home: Home,
        settings: RunSettings,
        stop: threading.Event,
    ) -> None:
        self._spark = spark  # session shared by all queries and aggregations of the job
        self._job = job  # sources and tables, as `ariane pipeline run` names them
        self._streams = streams  # by source name
        self._home = home  # directory of tables, checkpoints and status files
        self._settings = settings  # intervals and retention
        self._stop = stop  # set by signals; every wait of the runner ends with it
        self._readers: tuple[SourceReader, ...] = ()  # while running, one per source
        # Frames of small computations, built once; an object store has none.
        directory = open_store(home).directory
        self._staged = staged_tables.StagedTables(spark, directory) if directory else None
        self._listener: JobListener = SilentListener()  # prints progress, or nothing in tests

    def run(self, listener: JobListener) -> None:
        """Process everything available (`once`), or run until `stop` is set.

        Raises:
            ArianeError: `once` could not be completed, or a source failed permanently.
        """
        self._listener = listener
        closing = threading.Event()
        interval_s = None if self._settings.once else self._settings.interval_s
        try:
            for source in self._job.sources:
                stream = self._streams[source.name]
                reader = SourceReader(source, stream, home=self._home, interval_s=interval_s, closing=closing)
                self._readers = (*self._readers, reader)
                # One after another: several at once miss Spark's limit of 10 seconds on a busy machine.
                reader.await_start(self._stop)
            if self._settings.once:
                self._run_once()
            else:
                self._run_until_stopped()
        finally:
            closing.set()
            for reader in self._readers:
                reader.close()

    def _run_once(self) -> None:
        for reader in self._readers:
            reader.read_to_end(self._stop, self._listener.print_line)
        progress = self._round()
        self._listener.on_round(progress)
        if not self._stop.is_set():
            self._maintain()
        failures = [f"{status.source}: {status.unavailable}" for status in progress.sources if status.unavailable]
        if failures:
            raise ArianeError("; ".join(failures))
        if self._stop.is_set():
            raise ArianeError("Stopped before everything was processed; run the command again to continue")

    def _run_until_stopped(self) -> None:
        maintained_s = time.monotonic()
        rest_s, appended = self._settings.interval_s, 0
        pacer = round_pacing.RoundPacer(
            round_pacing.round_file(open_store(self._home).local_dir), self._settings.interval_s
        )
        while True:
            has_appended = partial(self._has_appended, appended)
            if not round_pacing.await_round(self._stop, rest_s, self._settings.interval_s, has_appended):
                return
            pacer.advance()
            self._await_batches()
            appended = self._appended_batches
            progress = self._round()
            if progress.rebuilt:
                pacer.record_round(progress.seconds)
            self._listener.on_round(progress)
            # Rounds take longer as more rows arrive. Pause as long as the round took, to leave time to the queries.
            rest_s = min(progress.seconds, MAX_PAUSE_S)
            self._restart_ended_queries()
            if time.monotonic() - maintained_s > MAINTENANCE_INTERVAL_S:
                self._maintain()
                maintained_s = time.monotonic()

    @property
    def _appended_batches(self) -> int:
        return sum(reader.appended_batches for reader in self._readers)

    def _has_appended(self, former: int) -> bool:
        return self._appended_batches != former

    def _await_batches(self) -> None:
        """Wait for the micro-batches in flight, at most one interval: the sources read at the same time, and tables with several
        inputs are then rebuilt once, not once for each input."""
        deadline_s = time.monotonic() + self._settings.interval_s
        while any(reader.is_reading for reader in self._readers) and time.monotonic() < deadline_s:
            if self._stop.wait(BATCH_POLL_S):
                return

    def _restart_ended_queries(self) -> None:
        ended = [reader for reader in self._readers if not reader.running.query.isActive]
        pauses_s = [
            restart_pause_s(ended_reader.running.query, ended_reader.backoff, self._listener.print_line)
            for ended_reader in ended
        ]
        if ended and not self._stop.wait(max(pauses_s)):
            for reader in ended:
                reader.start()
        for reader in self._readers:
            query = reader.running.query
            if query.isActive and query.lastProgress is not None:
                reader.backoff.reset()

    def _round(self) -> JobProgress:
        """Rebuild changed tables and record the progress of the sources. Stops between tables when `stop` is set."""
        started_s = table_started_s = time.monotonic()
        sources = self._record_statuses()
        # The queries append meanwhile. Later tables of the round would contain more than the earlier ones, which they are computed
        # from (journeys from clocks), and the next round would compute these rows again.
        pinned = incremental.current_versions(self._home, self._base_tables)
        results: list[incremental.AggregationResult] = []
        for table in self._job.incremental_tables:
            if self._stop.is_set():
                break
            result = self._retry(table.table.name, partial(self._rebuild, table, pinned))
            if result is None:
                continue
            results.append(result)
            self._listener.on_tables_published(JobProgress((result,), sources, time.monotonic() - table_started_s))
            table_started_s = time.monotonic()
            # The queries continue meanwhile, and reports take a status that is not updated for a stopped pipeline.
            sources = self._record_statuses()
        few_rows.rows_of_messages.cache_clear()  # clients may write any number of rows with one id
        return JobProgress(tuple(results), sources, time.monotonic() - started_s)

    def _rebuild(
        self, table: incremental.IncrementalTable, pinned: incremental.Versions
    ) -> incremental.AggregationResult | None:
        return incremental.rebuild_changed(self._spark, self._home, table, SYSTEM_CLOCK.now_ms(), pinned, self._staged)

    @property
    def _base_tables(self) -> list[TableSchema]:
        """The inputs that this job does not compute."""
        computed = {table.table.name for table in self._job.incremental_tables}
        return [
            source for table in self._job.incremental_tables for source in table.inputs if source.name not in computed
        ]

    def _record_statuses(self) -> tuple[SourceStatus, ...]:
        """Write the progress of all sources to HOME/status and return it."""
        previous = read_statuses(self._home)
        statuses = []
        for reader in self._readers:
            name, status = reader.source.name, source_status(reader.source, reader.running)
            status = msgspec.structs.replace(status, retries=restarts.retries_by_task.total())
            if status.caught_up_ms is None and name in previous:
                status = msgspec.structs.replace(status, caught_up_ms=previous[name].caught_up_ms)
            write_status(self._home, status)
            statuses.append(status)
        return tuple(statuses)

    def _maintain(self) -> None:
        self._retry("compaction", self._compact_and_expire)

    def _compact_and_expire(self) -> None:
        maintenance.maintain(self._spark, self._home, self._job, self._settings.keep_days, SYSTEM_CLOCK.now_ms())

    def _retry(self, name: str, work: Callable[[], T]) -> T:
        return restarts.retry_transient(name, work, self._stop, self._listener.print_line)
