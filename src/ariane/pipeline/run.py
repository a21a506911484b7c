"""The jobs, wired: topics in, tables out, until told to stop.

HOME/<table>/               files and their list (`publish`)
HOME/checkpoint/<source>/   what the queries have read; without it they begin anew, so it goes with the tables
HOME/status/<source>        JSON (`Status`): how far the source is, for `ariane pipeline status` and every answer
HOME/spark.log              what Spark and its workers have said on standard error since the start

A micro-batch is appended with its number, a fold is published with the versions that it folded (`publish`, `folds`): a driver
that dies anywhere goes on where the tables say. HOME has to be a directory that every executor sees: a local one with a local
master, a shared one with a cluster.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ariane.clock import SYSTEM_CLOCK, ms_of
from ariane.errors import ArianeError, ConfigError
from ariane.pipeline import incremental, restarts, table_publisher
from ariane.pipeline.jobs import PipelineJob, TopicSource
from ariane.pipeline.spark_session import open_session
from ariane.protocol.transient import UNAVAILABLE
from ariane.reports.pipeline_status import SourceStatus, read_statuses, write_status
from ariane.spark.read import progress as lag
from ariane.tables.time_buckets import bucket_of_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Our own errors in what a query ended with: Spark passes on the text of a Python error only, at the start of a line after a
# traceback, or within Spark's own line where the connector hides the traceback.
FAULT = re.compile(r"(?:^|: )ariane\.[a-z_.]+\.((\w+): [^\n]*)", re.MULTILINE)
UNAVAILABLE_NAMES = frozenset(
    error.__name__ for error in UNAVAILABLE
)  # the JVM passes on only the names of Python errors
LOOK_S = 1  # between looks whether to stop, while a query does what there is
BATCH_S = 15.0  # for a batch that is under way when the jobs are told to stop; a busy machine takes some seconds
INTERVAL_MIN_S = 0.1
PAUSE_S = 30.0  # at most, between rounds of folds
AWAY_PAUSE_S = 5.0  # before a query that ended so is started again; the source itself had waited before
KEEP_DAYS = 30
DAY_MS = 86_400_000
TEND_S = 60.0  # between rounds of merging small files and leaving old ones


class CommitGate(NamedTuple):
    """Batches of a query end before it is stopped: one that is cut off in Python makes Spark cry out."""

    closing: threading.Event
    batch: threading.Lock


class RunningQuery(NamedTuple):
    """A query of a source. `until_ms`: it reads what was there then, and ends; None: it goes on."""

    query: StreamingQuery
    until_ms: int | None


class JobStopped(ArianeError):
    """Told to a query that begins a batch when it is to end; the batch is done on the next start."""


class JobProgress(NamedTuple):
    """What a round did."""

    rebuilt: tuple[incremental.AggregationResult, ...]
    sources: tuple[SourceStatus, ...]
    seconds: float


def run(
    job: PipelineJob,
    options: Mapping[str, str],
    home: Path,
    *,
    master: str = "local[2]",
    once: bool = False,
    interval_s: float = 2.0,
    keep_days: int = KEEP_DAYS,
    on_progress: Callable[[JobProgress], None] = lambda _: None,
    on_step: Callable[[JobProgress], None] = lambda _: None,
    on_fault: Callable[[str], None] = lambda _: None,
    conf: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Turn topics into tables: `once` does what there is and ends, else every `interval_s` until `stop` is set.

    `options` are those of format("rocketmq") that all sources share: namesrv, accessKey, … A name server or broker that is
    away is waited for: half a minute with `once`, then the other sources are done and ArianeError says which; else as long as it
    takes. Transient faults of Spark are reported to `on_fault`, a line each, and what failed is started again (`restarts`).
    `conf` are settings of Spark.

    Raises:
        ConfigError: there is no Java or no pyspark, `home` cannot be written to, or `conf` has a setting that is not the user's.
        ArianeError: messages that were to be read are gone, or Spark failed: one line, its traceback is in HOME/spark.log.
    """
    home = home.resolve()
    stop = stop or threading.Event()
    log = home / "spark.log"
    if keep_days < 1:
        raise ConfigError("keep-days", keep_days, "rows have to be kept for one day at least")
    if interval_s < INTERVAL_MIN_S:
        raise ConfigError("interval", interval_s, f"give {INTERVAL_MIN_S} seconds or more")
    with (
        table_publisher.lock_tables(home, job.tables),
        restarts.single_line_errors(log, stop),
        open_session(f"ariane {job.name}", master, long_running=not once, log=log, conf=conf) as spark,
    ):
        streams = {
            source.name: restarts.retry_transient(source.name, partial(stream, spark, source, options), stop, on_fault)
            for source in job.sources
        }
        keeping(
            spark,
            job,
            streams,
            home,
            interval_s=None if once else interval_s,
            keep_days=keep_days,
            on_progress=on_progress,
            on_step=on_step,
            on_fault=on_fault,
            stop=stop,
        )


def stream(spark: SparkSession, source: TopicSource, options: Mapping[str, str]) -> DataFrame:
    """The messages of a source, from their beginning."""
    from ariane.spark import RocketMQSource

    class OfSource(RocketMQSource):
        """The format under a name of its own. Queries of one format share a Java map, which the planning of one changes while the
        tasks of another are serialized: now and then these could not be read then (OptionalDataException)."""

        @classmethod
        def name(cls) -> str:
            return f"rocketmq-{source.name}"

    spark.dataSource.register(OfSource)
    reader = spark.readStream.format(OfSource.name()).schema(source.schema).option("startingOffsets", "earliest")
    return reader.options(**{**source.options, **options}).load()


def keeping(
    spark: SparkSession,
    job: PipelineJob,
    streams: Mapping[str, DataFrame],
    home: Path,
    *,
    interval_s: float | None,
    keep_days: int = KEEP_DAYS,
    on_progress: Callable[[JobProgress], None],
    on_step: Callable[[JobProgress], None] = lambda _: None,
    on_fault: Callable[[str], None] = lambda _: None,
    stop: threading.Event,
) -> None:
    """Keep the job's tables up to its streams (by the sources' names): what there is (`interval_s` None), or until `stop`
    is set. A round of many folds takes long: `on_step` is called with each table as it is published, `on_fault` with each
    transient fault."""
    closing = threading.Event()
    gates = {source.name: CommitGate(closing, threading.Lock()) for source in job.sources}

    def start(source: TopicSource) -> RunningQuery:
        until_ms = SYSTEM_CLOCK.now_ms() if interval_s is None else None
        return RunningQuery(_start(source, streams[source.name], home, interval_s, gates[source.name]), until_ms)

    def tend() -> None:
        restarts.retry_transient("merging of files", partial(_tend, spark, job, home, keep_days), stop, on_fault)

    readings = {source.name: start(source) for source in job.sources}
    backoffs = {source.name: restarts.RestartBackoff(source.name) for source in job.sources}
    tended_s = time.monotonic()
    try:
        if interval_s is None:
            for source in job.sources:
                begin = partial(start, source)
                readings[source.name] = _finish(readings[source.name], begin, backoffs[source.name], stop, on_fault)
            progress = _round(spark, job, readings, home, on_step, on_fault, stop)
            on_progress(progress)
            if not stop.is_set():
                tend()
            if away := [f"{status.source}: {status.unavailable}" for status in progress.sources if status.unavailable]:
                raise ArianeError("; ".join(away))
            if stop.is_set():
                raise ArianeError("stopped before all was read or folded; run it again, and it goes on from there")
            return
        pause_s = interval_s
        while not stop.wait(pause_s):
            progress = _round(spark, job, readings, home, on_step, on_fault, stop)
            on_progress(progress)
            # A fold takes longer as there is more news: some time is left to the queries.
            pause_s = max(interval_s, min(progress.seconds, PAUSE_S))
            ended = [source for source in job.sources if not readings[source.name].query.isActive]
            again_s = [_pause_s(readings[one.name].query, backoffs[one.name], on_fault) for one in ended]
            if ended and not stop.wait(max(again_s)):
                readings |= {one.name: start(one) for one in ended}
            for name, reading in readings.items():
                if reading.query.isActive and reading.query.lastProgress is not None:
                    backoffs[name].reset()
            if time.monotonic() - tended_s > TEND_S:
                tend()
                tended_s = time.monotonic()
    finally:
        closing.set()
        for name, (query, _) in readings.items():
            if gates[name].batch.acquire(timeout=BATCH_S):
                gates[name].batch.release()
            query.stop()


def _start(
    source: TopicSource, messages: DataFrame, home: Path, interval_s: float | None, gate: CommitGate
) -> StreamingQuery:
    checkpoint = home / "checkpoint" / source.name

    def add(batch: DataFrame, number: int) -> None:
        with gate.batch:
            if gate.closing.is_set():
                raise JobStopped(f"{source.name}: told to stop before batch {number}")
            append(batch, number)

    def append(batch: DataFrame, number: int) -> None:
        # A new checkpoint counts its batches anew, under a new id.
        query = f"{source.name} {json.loads((checkpoint / 'metadata').read_text())['id']}"
        prepared = source.prepare(batch).persist()
        try:
            for one in source.append_tables:
                table_publisher.append_batch(
                    one.select(prepared), home, one.table, query, number, SYSTEM_CLOCK.now_ms()
                )
        finally:
            prepared.unpersist()

    writer = messages.writeStream.queryName(source.name).option("checkpointLocation", str(checkpoint)).foreachBatch(add)
    if interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval_s} seconds").start()


def _round(
    spark: SparkSession,
    job: PipelineJob,
    readings: Mapping[str, RunningQuery],
    home: Path,
    on_step: Callable[[JobProgress], None],
    on_fault: Callable[[str], None],
    stop: threading.Event,
) -> JobProgress:
    """Fold what is new, and tell how far the sources are. Between folds it may be told to stop: the others come next time."""
    began_s = step_s = time.monotonic()
    sources = _looked(job, readings, home)
    done = []
    for fold in job.incremental_tables:
        if stop.is_set():
            break
        work = partial(_refold, spark, home, fold)
        one = restarts.retry_transient(fold.table.name, work, stop, on_fault)
        if one is None:
            continue
        done.append(one)
        on_step(JobProgress((one,), sources, time.monotonic() - step_s))
        step_s = time.monotonic()
        # The queries go on meanwhile, and who asks the tables has to know that this runs.
        sources = _looked(job, readings, home)
    return JobProgress(tuple(done), sources, time.monotonic() - began_s)


def _refold(
    spark: SparkSession, home: Path, fold: incremental.IncrementalTable
) -> incremental.AggregationResult | None:
    return incremental.rebuild_changed(spark, home, fold, SYSTEM_CLOCK.now_ms())


def _looked(job: PipelineJob, readings: Mapping[str, RunningQuery], home: Path) -> tuple[SourceStatus, ...]:
    """How far the sources are, put down for who asks the tables."""
    before = read_statuses(home)
    sources = []
    for source in job.sources:
        status = _status(source, readings[source.name])
        if status.caught_up_ms is None and source.name in before:
            status = msgspec.structs.replace(status, caught_up_ms=before[source.name].caught_up_ms)
        write_status(home, status)
        sources.append(status)
    return tuple(sources)


def _status(source: TopicSource, reading: RunningQuery) -> SourceStatus:
    """How far a source is. What ended its query is raised, but for a server's absence."""
    now_ms = SYSTEM_CLOCK.now_ms()
    query, until_ms = reading
    away = _why_away(query)
    # A query that was to do what there is, and has ended, has done it.
    is_done = not query.isActive and away is None
    progress = query.lastProgress
    if progress is None:
        return SourceStatus(
            source.name, now_ms, None, None, 0 if is_done else None, away, caught_up_ms=until_ms if is_done else None
        )
    known = lag.lags(progress.json)
    away = away or _absent(lag.unavailable_servers(progress.json))
    behind = lag.total_lag(known) if known else 0 if is_done else None
    # A batch asks what there is when it begins.
    asked_ms = until_ms if is_done else ms_of(datetime.fromisoformat(progress.timestamp))
    is_all = behind == 0 and away is None
    took_ms = progress.durationMs.get("triggerExecution")
    return SourceStatus(
        source.name, now_ms, progress.batchId, took_ms, behind, away, len(known), asked_ms if is_all else None
    )


def _absent(away: Mapping[str, str]) -> str | None:
    """What did not answer a query that goes on without it: one by name."""
    if not away:
        return None
    name, why = min(away.items())
    return f"{name} is away{f', and {len(away) - 1} more' if len(away) > 1 else ''}: {why}"


def _wait(query: StreamingQuery, stop: threading.Event) -> None:
    """Wait until the query has done what there is, or has failed (`_why_away` looks at how), or `stop` is set."""
    from pyspark.errors import StreamingQueryException

    with suppress(StreamingQueryException):
        while not stop.is_set() and not query.awaitTermination(LOOK_S):
            continue


def _finish(
    reading: RunningQuery,
    start: Callable[[], RunningQuery],
    backoff: restarts.RestartBackoff,
    stop: threading.Event,
    on_fault: Callable[[str], None],
) -> RunningQuery:
    """Wait until a query has done what there is; start it again when a transient fault of Spark ended it."""
    while True:
        _wait(reading.query, stop)
        fault = None if stop.is_set() else restarts.transient_fault(reading.query.exception())
        if fault is None or stop.wait(_pause_s(reading.query, backoff, on_fault)):
            return reading
        reading = start()


def _pause_s(query: StreamingQuery, backoff: restarts.RestartBackoff, on_fault: Callable[[str], None]) -> float:
    """Seconds until a query that ended is started again; a transient fault of Spark is reported."""
    fault = restarts.transient_fault(query.exception())
    if fault is None:
        return AWAY_PAUSE_S
    pause_s = backoff.record_failure(fault)
    on_fault(restarts.retry_line(query.name, fault, pause_s))
    return pause_s


def _why_away(query: StreamingQuery) -> str | None:
    """Which server's absence, or transient fault of Spark, ended the query; None while it runs, or when it did what there was."""
    error = query.exception()
    if query.isActive or error is None:
        return None
    if fault := restarts.transient_fault(error):
        return fault
    said = FAULT.search(str(error))
    if said is None:
        raise error
    if said[2] not in UNAVAILABLE_NAMES:
        raise ArianeError(f"{query.name}: {said[1]}") from error
    return said[1]


def _tend(spark: SparkSession, job: PipelineJob, home: Path, keep_days: int) -> None:
    """Merge small files, leave old ones."""
    now_ms = SYSTEM_CLOCK.now_ms()
    for table in job.tables:
        table_publisher.compact(spark, home, table, now_ms)
        table_publisher.expire(home, table, bucket_of_time(now_ms - keep_days * DAY_MS), now_ms)
    for fold in job.incremental_tables:
        if fold.maintain is not None:
            fold.maintain(spark, home, now_ms)
