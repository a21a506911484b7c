"""The jobs, wired: topics in, tables out, until told to stop.

HOME/<table>/               files and their list (`publish`)
HOME/checkpoint/<source>/   what the queries have read; without it they begin anew, so it goes with the tables
HOME/status/<source>        JSON (`Status`): how far the source is, for `ariane pipeline status` and every answer

A micro-batch is appended with its number, a fold is published with the versions that it folded (`publish`, `folds`): a driver
that dies anywhere goes on where the tables say. HOME has to be a directory that every executor sees: a local one with a local
master, a shared one with a cluster.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ariane.admin.status import Status, write
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import ArianeError, ConfigError
from ariane.pipeline import folds, publish
from ariane.pipeline.jobs import Job, Source
from ariane.pipeline.session import running
from ariane.spark import progress as lag
from ariane.tables.slots import of_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("ariane.pipeline")

# Our own errors in what a query ended with: Spark hands on the text of a Python error only.
FAULT = re.compile(r"^ariane\.[a-z_.]+\.((\w+): [^\n]*)", re.MULTILINE)
AWAY = frozenset({"ConnectionLost", "RequestTimeout", "RouteNotFound"})  # those of servers that stay away
LOOK_S = 1  # between looks whether to stop, while a query does what there is
AWAY_PAUSE_S = 5.0  # before a query that ended so is started again; the source itself had waited before
KEEP_DAYS = 30
DAY_MS = 86_400_000
TEND_S = 60.0  # between rounds of merging small files and leaving old ones


class Progress(NamedTuple):
    """What a round did."""

    folded: tuple[folds.Folded, ...]
    sources: tuple[Status, ...]
    seconds: float


def run(
    job: Job,
    options: Mapping[str, str],
    home: Path,
    *,
    master: str = "local[2]",
    once: bool = False,
    interval_s: float = 2.0,
    keep_days: int = KEEP_DAYS,
    on_progress: Callable[[Progress], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> None:
    """Turn topics into tables: `once` does what there is and ends, else every `interval_s` until `stop` is set.

    `options` are those of format("rocketmq") that all sources share: namesrv, accessKey, … A name server or broker that is
    away is waited for: half a minute with `once`, then the other sources are done and ArianeError says which; else as long as it
    takes. ConfigError when there is no Java, no pyspark, or `home` cannot be written to; ArianeError when messages that were to
    be read are gone; what else goes wrong in Spark is raised as Spark raises it.
    """
    home = home.resolve()
    if keep_days < 1:
        raise ConfigError("keep-days", keep_days, "rows have to be kept for one day at least")
    with publish.claimed(home, job.tables), running(f"ariane {job.name}", master, lasting=not once) as spark:
        streams = {source.name: stream(spark, source, options) for source in job.sources}
        keeping(
            spark,
            job,
            streams,
            home,
            interval_s=None if once else interval_s,
            keep_days=keep_days,
            on_progress=on_progress,
            stop=stop or threading.Event(),
        )


def stream(spark: SparkSession, source: Source, options: Mapping[str, str]) -> DataFrame:
    """The messages of a source, from their beginning."""
    from ariane.spark.source import RocketMQSource

    spark.dataSource.register(RocketMQSource)
    reader = spark.readStream.format("rocketmq").schema(source.schema).option("startingOffsets", "earliest")
    return reader.options(**{**source.options, **options}).load()


def keeping(
    spark: SparkSession,
    job: Job,
    streams: Mapping[str, DataFrame],
    home: Path,
    *,
    interval_s: float | None,
    keep_days: int = KEEP_DAYS,
    on_progress: Callable[[Progress], None],
    stop: threading.Event,
) -> None:
    """Keep the job's tables up to its streams (by the sources' names): what there is (`interval_s` None), or until `stop`
    is set."""
    queries = {source.name: _start(source, streams[source.name], home, interval_s) for source in job.sources}
    tended_s = time.monotonic()
    try:
        if interval_s is None:
            for query in queries.values():
                _wait(query, stop)
            progress = _round(spark, job, queries, home, stop)
            on_progress(progress)
            if not stop.is_set():
                _tend(spark, job, home, keep_days)
            if away := [f"{status.source}: {status.away}" for status in progress.sources if status.away]:
                raise ArianeError("; ".join(away))
            if stop.is_set():
                raise ArianeError("stopped before all was read or folded; run it again, and it goes on from there")
            return
        pause_s = interval_s
        while not stop.wait(pause_s):
            progress = _round(spark, job, queries, home, stop)
            on_progress(progress)
            # A fold takes longer as there is more news: half of the time is left to the queries.
            pause_s = max(interval_s, progress.seconds)
            ended = [source for source in job.sources if not queries[source.name].isActive]
            if ended and not stop.wait(AWAY_PAUSE_S):
                queries |= {one.name: _start(one, streams[one.name], home, interval_s) for one in ended}
            if time.monotonic() - tended_s > TEND_S:
                _tend(spark, job, home, keep_days)
                tended_s = time.monotonic()
    finally:
        for query in queries.values():
            query.stop()


def _start(source: Source, messages: DataFrame, home: Path, interval_s: float | None) -> StreamingQuery:
    checkpoint = home / "checkpoint" / source.name

    def add(batch: DataFrame, number: int) -> None:
        # A new checkpoint counts its batches anew, under a new id.
        query = f"{source.name} {json.loads((checkpoint / 'metadata').read_text())['id']}"
        prepared = source.prepare(batch).persist()
        try:
            for one in source.appended:
                publish.append(one.rows(prepared), home, one.table, query, number, SYSTEM_CLOCK.now_ms())
        finally:
            prepared.unpersist()

    writer = messages.writeStream.queryName(source.name).option("checkpointLocation", str(checkpoint)).foreachBatch(add)
    if interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval_s} seconds").start()


def _round(
    spark: SparkSession, job: Job, queries: Mapping[str, StreamingQuery], home: Path, stop: threading.Event
) -> Progress:
    """Fold what is new, and tell how far the sources are. Between folds it may be told to stop: the others come next time."""
    began_s = time.monotonic()
    sources = tuple(_status(source, queries[source.name], home) for source in job.sources)
    for status in sources:
        write(home, status)
    done = [folds.refold(spark, home, fold, SYSTEM_CLOCK.now_ms()) for fold in job.folds if not stop.is_set()]
    return Progress(tuple(one for one in done if one is not None), sources, time.monotonic() - began_s)


def _status(source: Source, query: StreamingQuery, home: Path) -> Status:
    """How far a source is. What ended its query is raised, but for a server's absence."""
    now_ms = SYSTEM_CLOCK.now_ms()
    away = _why_away(query)
    # A query that was to do what there is, and has ended, has done it.
    is_done = not query.isActive and away is None
    progress = query.lastProgress
    if progress is None:
        return Status(source.name, now_ms, None, None, 0 if is_done else None, away)
    known = lag.lags(progress.json)
    behind = 0 if is_done else lag.total(known) if known else None
    took_ms = progress.durationMs.get("triggerExecution")
    return Status(source.name, now_ms, progress.batchId, took_ms, behind, away, len(known))


def _wait(query: StreamingQuery, stop: threading.Event) -> None:
    """Wait until the query has done what there is, or has failed (`_why_away` looks at how), or `stop` is set."""
    from pyspark.errors import StreamingQueryException

    with suppress(StreamingQueryException):
        while not stop.is_set() and not query.awaitTermination(LOOK_S):
            continue


def _why_away(query: StreamingQuery) -> str | None:
    """Which server's absence ended the query; None while it runs, or when it did what there was."""
    error = query.exception()
    if query.isActive or error is None:
        return None
    said = FAULT.search(str(error))
    if said is None:
        raise error
    if said[2] not in AWAY:
        raise ArianeError(f"{query.name}: {said[1]}") from error
    return said[1]


def _tend(spark: SparkSession, job: Job, home: Path, keep_days: int) -> None:
    """Merge small files, leave old ones."""
    now_ms = SYSTEM_CLOCK.now_ms()
    for table in job.tables:
        publish.merge_small(spark, home, table, now_ms)
        publish.expire(home, table, of_time(now_ms - keep_days * DAY_MS), now_ms)
    for fold in job.folds:
        if fold.tend is not None:
            fold.tend(spark, home, now_ms)
