"""The jobs, wired: a topic in, tables out, until told to stop.

HOME/trace_events/      appended by a streaming query, exactly once (Spark's file sink keeps the list of good files)
HOME/trace_rejects/     the same, records that cannot be read
HOME/journeys/          folded from all events and published whole (`publish`)
HOME/checkpoint/        what the queries have read; without it they begin anew, so it goes with the tables
"""

from __future__ import annotations

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
from ariane.pipeline.session import session
from ariane.tables import JOURNEYS, TRACE_EVENTS, TRACE_REJECTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NEEDED = "body BINARY, broker STRING, queue_id INT, queue_offset BIGINT, store_timestamp TIMESTAMP, born_host STRING"

SINK_LOG = "_spark_metadata"  # the file sink's list of good files; there from its first batch on


class Progress(NamedTuple):
    """What a round did: `events` in all so far, the version of journeys that was published (None: nothing new)."""

    events: int
    journeys: Version | None
    seconds: float


def run_trace(
    namesrv: str,
    home: Path,
    *,
    master: str = "local[2]",
    trace_topic: str = TRACE_TOPIC,
    once: bool = False,
    interval_s: float = 2.0,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    stop: threading.Event | None = None,
) -> None:
    """Turn traces into tables: `once` does what there is and ends, else every `interval_s` until `stop` is set.

    A name server or broker that is away is waited for. ConfigError when there is no Java, no pyspark, or `home` cannot be
    written to; what else goes wrong in Spark is raised as Spark raises it.
    """
    home = home.resolve()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("home", str(home), f"cannot be made: {error.strerror}") from error
    stop = stop or threading.Event()
    spark = session("ariane trace", master)
    try:
        queries = _start(spark, namesrv, trace_topic, home, None if once else interval_s)
        if once:
            for query in queries:
                query.awaitTermination()
            on_progress(_fold(spark, home))
            return
        while not stop.wait(interval_s):
            for query in queries:
                if not query.isActive:
                    query.awaitTermination()  # raises what ended it
            on_progress(_fold(spark, home))
        for query in queries:
            query.stop()
    finally:
        spark.stop()


def _start(spark: SparkSession, namesrv: str, topic: str, home: Path, interval_s: float | None) -> list[StreamingQuery]:
    """Append the topic's records to trace_events and trace_rejects: what there is now, or (an interval) from now on."""
    from ariane.pipeline import decode
    from ariane.spark.source import RocketMQSource

    spark.dataSource.register(RocketMQSource)
    messages = (
        spark.readStream.format("rocketmq")
        .schema(NEEDED)
        .option("namesrv", namesrv)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = decode.records(messages)
    tables = {TRACE_EVENTS.name: decode.trace_events(rows), TRACE_REJECTS.name: decode.trace_rejects(rows)}
    queries = []
    for name, frame in tables.items():
        writer = frame.writeStream.format("parquet").outputMode("append").queryName(name)
        if name == TRACE_EVENTS.name:
            writer = writer.partitionBy("trace_date")
        writer = writer.option("path", str(home / name)).option("checkpointLocation", str(home / "checkpoint" / name))
        paced = (
            writer.trigger(availableNow=True)
            if interval_s is None
            else writer.trigger(processingTime=f"{interval_s} seconds")
        )
        queries.append(paced.start())
    return queries


def _fold(spark: SparkSession, home: Path) -> Progress:
    """Fold all events into journeys when there are new ones."""
    from pyspark.sql import functions as F

    from ariane.pipeline import journeys

    began = time.monotonic()
    table = home / TRACE_EVENTS.name
    if not (table / SINK_LOG).is_dir():
        return Progress(0, None, 0.0)
    events = spark.read.schema(TRACE_EVENTS.ddl).parquet(str(table))
    newest = events.agg(F.count("*"), F.unix_millis(F.max("trace_stored_at"))).first()
    assert newest is not None
    count, as_of_ms = newest
    directory = home / JOURNEYS.name
    directory.mkdir(exist_ok=True)
    folded = home / "checkpoint" / "folded"
    if published.current(directory) is not None and folded.exists() and folded.read_text() == str(count):
        return Progress(count, None, time.monotonic() - began)
    version = publish.publish(journeys.journeys(events), directory, as_of_ms)
    folded.write_text(str(count))
    return Progress(count, version, time.monotonic() - began)
