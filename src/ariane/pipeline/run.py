"""The jobs, wired: a topic in, tables out, until told to stop.

HOME/trace_events/      appended by a streaming query, exactly once (Spark's file sink keeps the list of good files)
HOME/trace_rejects/     the same, records that cannot be read
HOME/journeys/          folded from all events and published whole (`publish`)
HOME/checkpoint/        what the queries have read; without it they begin anew, so it goes with the tables
HOME/checkpoint/folded  JSON: the last batch of trace_events that is in journeys, and how many events there were

HOME has to be a directory that every executor sees: a local one with a local master, a shared one with a cluster.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ariane.admin import published
from ariane.admin.published import Version
from ariane.errors import ConfigError
from ariane.model.topic import TRACE_TOPIC
from ariane.pipeline import publish
from ariane.pipeline.session import running
from ariane.tables import JOURNEYS, TRACE_EVENTS, TRACE_REJECTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NEEDED = "body BINARY, broker STRING, queue_id INT, queue_offset BIGINT, store_timestamp TIMESTAMP, born_host STRING"

SINK_LOG = "_spark_metadata"  # the file sink's list of good files: one file per batch, some of them "<batch>.compact"

# The source's word for servers that stay away, in what a query ended with: Spark hands on the text of a Python error only.
AWAY = re.compile(r"ariane\.errors\.((?:ConnectionLost|RequestTimeout|RouteNotFound): [^\n]*)")
AWAY_PAUSE_S = 5.0  # before a query that ended so is started again; the source itself had waited before


class Progress(NamedTuple):
    """What a round did: `events` in all so far, the version of journeys that was published (None: nothing new)."""

    events: int
    journeys: Version | None
    seconds: float
    away: str | None = None
    """Which server does not answer; the job waits for it."""


def run_trace(
    namesrv: str,
    home: Path,
    *,
    master: str = "local[2]",
    trace_topic: str = TRACE_TOPIC,
    once: bool = False,
    interval_s: float = 2.0,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Turn traces into tables: `once` does what there is and ends, else every `interval_s` until `stop` is set.

    A name server or broker that is away is waited for: half a minute with `once`, else as long as it takes. ConfigError
    when there is no Java, no pyspark, or `home` cannot be written to; what else goes wrong in Spark is raised as Spark
    raises it.
    """
    home = home.resolve()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("home", str(home), f"cannot be made: {error.strerror}") from error
    with running("ariane trace", master) as spark:
        messages = trace_messages(spark, namesrv, trace_topic)
        appending(
            spark,
            messages,
            home,
            None if once else interval_s,
            on_progress or (lambda _: None),
            stop or threading.Event(),
        )


def trace_messages(spark: SparkSession, namesrv: str, topic: str) -> DataFrame:
    """The stream of the trace topic, from its beginning."""
    from ariane.spark.source import RocketMQSource

    spark.dataSource.register(RocketMQSource)
    return (
        spark.readStream.format("rocketmq")
        .schema(NEEDED)
        .option("namesrv", namesrv)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .load()
    )


def appending(
    spark: SparkSession,
    messages: DataFrame,
    home: Path,
    interval_s: float | None,
    on_progress: Callable[[Progress], None],
    stop: threading.Event,
) -> None:
    """Append the records of `messages` to the event tables and fold them: what there is (`interval_s` None), or until
    `stop` is set."""
    from ariane.pipeline import decode

    rows = decode.records(messages)
    tables = {TRACE_EVENTS.name: decode.trace_events(rows), TRACE_REJECTS.name: decode.trace_rejects(rows)}
    queries = {name: _append(frame, home, name, interval_s) for name, frame in tables.items()}
    try:
        if interval_s is None:
            for query in queries.values():
                query.awaitTermination()
            on_progress(fold(spark, home))
            return
        pause_s = interval_s
        while not stop.wait(pause_s):
            progress = fold(spark, home)
            ended = [name for name, query in queries.items() if not query.isActive]
            for name in ended:
                progress = progress._replace(away=_why_away(queries[name]))
            on_progress(progress)
            # A fold takes longer as the table grows: half of the time is left to the queries.
            pause_s = max(interval_s, progress.seconds)
            if ended and not stop.wait(AWAY_PAUSE_S):
                queries |= {name: _append(tables[name], home, name, interval_s) for name in ended}
    finally:
        for query in queries.values():
            query.stop()


def _append(frame: DataFrame, home: Path, name: str, interval_s: float | None) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").outputMode("append").queryName(name)
    if name == TRACE_EVENTS.name:
        writer = writer.partitionBy("trace_date")
    writer = writer.option("path", str(home / name)).option("checkpointLocation", str(home / "checkpoint" / name))
    if interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval_s} seconds").start()


def _why_away(query: StreamingQuery) -> str:
    """Which server's absence ended the query; anything else that ended it is raised."""
    error = query.exception()
    said = AWAY.search(str(error)) if error is not None else None
    if said is None:
        query.awaitTermination()  # raises what ended it
        raise AssertionError(f"the query {query.name} ended by itself")
    return said[1]


def fold(spark: SparkSession, home: Path) -> Progress:
    """Fold all events into journeys and publish them, when there are new ones."""
    from pyspark.sql import functions as F

    from ariane.pipeline import journeys

    began = time.monotonic()
    # Read before the events: what is appended meanwhile is folded now, and once more by the next round.
    batch = _last_batch(home / TRACE_EVENTS.name)
    note = home / "checkpoint" / "folded"
    directory = home / JOURNEYS.name
    if batch is None:
        return Progress(0, None, 0.0)
    if published.current(directory) is not None and note.exists():
        folded = json.loads(note.read_text())
        if folded["batch"] == batch:
            return Progress(folded["events"], None, time.monotonic() - began)
    events = spark.read.schema(TRACE_EVENTS.ddl).parquet(str(home / TRACE_EVENTS.name))
    newest = events.agg(F.count("*"), F.unix_millis(F.max("trace_stored_at"))).first()
    assert newest is not None
    count, as_of_ms = newest
    version = publish.publish(journeys.journeys(events), directory, as_of_ms)
    publish.replace(note, json.dumps({"batch": batch, "events": count}))
    return Progress(count, version, time.monotonic() - began)


def _last_batch(table: Path) -> int | None:
    """The last batch that the file sink has committed; None before the first."""
    names = [file.name.removesuffix(".compact") for file in (table / SINK_LOG).glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=None)
