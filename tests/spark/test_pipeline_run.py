"""The complete jobs over a stream of files instead of a broker: restarts, publishing, unavailable servers. And over a broker."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_frames as frames
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType
from trace_frames import after, before, pub

from ariane.client.producer import Producer
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import ArianeError, ConfigError, ConnectionLost
from ariane.model.message import Message
from ariane.pipeline import backfill, jobs, run, source_reader
from ariane.pipeline.publishing import incremental, table_publisher
from ariane.reports import trace_lookup
from ariane.reports.tables import pipeline_status, table_views
from ariane.spark.read import source_options
from ariane.tables import (
    CLOCKS,
    JOURNEYS,
    TRACE_EVENTS,
    TRACE_REJECTS,
    TableSchema,
    table_format,
    table_store,
    time_buckets,
)
from ariane.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def plain_journeys(events: DataFrame, *_others: DataFrame) -> DataFrame:
    """Return journeys with an id, a time and a result. Planning the others takes most of the time of a round, and these tests
    are about rounds: test_pipeline_journeys.py has the columns, test_from_a_broker_to_the_timeline the whole job.
    """
    is_ended, is_begun = (F.bool_or(F.col("type") == name) for name in ("SubAfter", "SubBefore"))
    known = {
        "stored_at": F.min(F.when(F.col("type") == "Pub", F.col("event_time"))),
        "result": F.when(is_ended, "success").when(is_begun, "unknown"),
    }
    by_message = events.groupBy("bucket", "message_id").agg(*(value.alias(name) for name, value in known.items()))
    return by_message.select(
        *(
            (F.col(column.name) if column.name in {"message_id", *known} else F.lit(None))
            .cast(column.type)
            .alias(column.name)
            for column in JOURNEYS.columns
        ),
        "bucket",
    )


(WHOLE_JOURNEYS,) = (one for one in jobs.JOBS["trace"].incremental_tables if one.table is JOURNEYS)
TRACE = jobs.JOBS["trace"]._replace(
    incremental_tables=(dataclasses.replace(WHOLE_JOURNEYS, compute=plain_journeys, timed=None),)
)
FOREVER = 36_500  # days: the tests' messages are of 2023


def unique_id(hours: int, minutes: int = 0) -> str:
    """Return a unique id created this long after the month began."""
    return f"7F0000010001AABBCCDD{(hours * 60 + minutes) * 60_000:08X}0001"


def files(fed: Fed, table: TableSchema) -> tuple[table_format.DataFile, ...]:
    now = table_store.read_version(fed.home, table)
    assert now is not None
    return now.files


class Rounds(run.SilentListener):
    """Listener that records the progress of each round, or forwards it."""

    def __init__(self, on_round: Callable[[run.JobProgress], None] | None = None) -> None:
        self.seen: list[run.JobProgress] = []
        self._on_round = on_round or self.seen.append

    def on_round(self, progress: run.JobProgress) -> None:
        self._on_round(progress)


def run_job(
    spark: SparkSession,
    job: jobs.PipelineJob,
    streams: dict[str, source_reader.SourceStream],
    home: Path,
    listener: run.JobListener,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
) -> None:
    """Run a job whose rows never expire."""
    settings = run.RunSettings(once=once, interval_s=0.2, keep_days=FOREVER)
    stop = stop or threading.Event()
    run.JobRunner(spark=spark, job=job, streams=streams, home=home, settings=settings, stop=stop).run(listener)


class Fed:
    """A stream of trace messages stored as files."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.spark = spark
        self.home = place / "tables"
        self.home.mkdir()
        self._inbox = place / "inbox"
        self._inbox.mkdir()
        self._sent = 0

    def send(self, *bodies: bytes) -> None:
        rows = [frames.message(body, self._sent + number) for number, body in enumerate(bodies)]
        self.spark.createDataFrame(frames.messages(rows)).coalesce(1).write.mode("append").parquet(str(self._inbox))
        self._sent += len(bodies)

    def messages(self) -> source_reader.SourceStream:
        files = self.spark.readStream.schema(jobs.TRACES.schema).option("maxFilesPerTrigger", 1)
        return source_reader.SourceStream(files.parquet(str(self._inbox)))

    def run_once(self) -> run.JobProgress:
        rounds = Rounds()
        run_job(self.spark, TRACE, {"traces": self.messages()}, self.home, rounds, once=True)
        (progress,) = rounds.seen
        return progress

    def events(self) -> list[tuple[str, str]]:
        """Return type and message id of every row of trace_events."""
        rows = table_publisher.read_table(self.spark, self.home, TRACE_EVENTS).select("type", "message_id").collect()
        return sorted((row["type"], row["message_id"]) for row in rows)

    def journeys(self) -> list[tuple[str, str | None]]:
        """Return message id and result of every published journey."""
        with table_views.open_views(self.home, table_views.whole_table(JOURNEYS)) as sql:
            rows = table_views.query(sql, "SELECT message_id, result FROM journeys ORDER BY ALL")
        return [(row["message_id"], row["result"]) for row in rows]


@pytest.fixture
def fed(spark: SparkSession, tmp_path: Path) -> Fed:
    return Fed(spark, tmp_path)


def folded(progress: run.JobProgress) -> list[tuple[str, int, int]]:
    """Return table, rebuilt buckets and row count."""
    return [(item.table.name, item.buckets, item.published.rows) for item in progress.rebuilt]


def test_new_events_are_aggregated_and_a_round_without_updates_publishes_nothing(fed: Fed) -> None:
    begun_ms = SYSTEM_CLOCK.now_ms()
    fed.send(frames.body([pub("A"), before("A", "R", 10)]), b"nonsense")
    assert folded(fed.run_once()) == [("journeys", 1, 1)]
    assert fed.journeys() == [("A", "unknown")]

    assert folded(fed.run_once()) == []

    fed.send(frames.body([after("A", "R", 17), pub("B")]))
    assert folded(fed.run_once()) == [("journeys", 2, 2)]
    assert fed.journeys() == [("A", "success"), ("B", None)]
    rejects = table_publisher.read_table(fed.spark, fed.home, TRACE_REJECTS).collect()
    assert [(row["record"], row["trace_queue_offset"]) for row in rejects] == [("nonsense", 1)]
    now_ms = SYSTEM_CLOCK.now_ms()
    fresh = pipeline_status.freshness(fed.home, JOURNEYS, now_ms)
    assert fresh.warnings == ()
    assert fresh.as_of_ms is not None
    assert begun_ms <= fresh.as_of_ms <= now_ms, "when all was read; the newest message is old"
    journeys = table_store.read_version(fed.home, JOURNEYS)
    assert journeys is not None
    assert journeys.as_of_ms == frames.T0_MS + 60_000


@pytest.mark.long(
    "tests/spark/test_pipeline_run.py::test_new_events_are_aggregated_and_a_round_without_updates_publishes_nothing",
)
def test_all_tables_of_a_round_contain_the_rows_of_its_start(fed: Fed) -> None:
    """Clocks are computed first: journeys with rows that clocks lack would all be computed again in the next round."""
    computed = (CLOCKS, JOURNEYS)
    job = TRACE._replace(
        incremental_tables=tuple(one for one in jobs.JOBS["trace"].incremental_tables if one.table in computed)
    )

    class AppendingListener(run.SilentListener):
        def on_tables_published(self, progress: run.JobProgress) -> None:
            if progress.rebuilt[0].table is CLOCKS:
                rows = frames.events_of_messages(fed.spark, [frames.message(frames.body([pub("B")]), 99)])
                now_ms = SYSTEM_CLOCK.now_ms()
                table_publisher.append_batch(rows, fed.home, TRACE_EVENTS, "later 1", 0, now_ms)

    fed.send(frames.body([pub("A")]))
    run_job(fed.spark, job, {"traces": fed.messages()}, fed.home, AppendingListener(), once=True)
    clocks, journeys = (table_store.read_version(fed.home, table) for table in computed)
    assert clocks is not None
    assert journeys is not None
    assert journeys.applied["trace_events"] == clocks.applied["trace_events"]
    assert [row[0] for row in fed.journeys()] == ["A"]
    run_job(fed.spark, job, {"traces": fed.messages()}, fed.home, run.SilentListener(), once=True)
    assert [row[0] for row in fed.journeys()] == ["A", "B"]


def test_only_changed_buckets_are_rebuilt(fed: Fed) -> None:
    early, late = unique_id(hours=1), unique_id(hours=9)
    fed.send(frames.body([pub(early), pub(late)]))
    fed.run_once()
    first = {file.bucket: file for file in files(fed, JOURNEYS)}
    assert sorted(first) == ["2023-11-01T0100", "2023-11-01T0900"]
    fed.send(frames.body([before(late, "R", 10), after(late, "R", 17)]))
    assert folded(fed.run_once()) == [("journeys", 1, 2)]
    second = {file.bucket: file for file in files(fed, JOURNEYS)}
    assert second["2023-11-01T0100"] == first["2023-11-01T0100"]
    assert fed.journeys() == [(early, None), (late, "success")]


def test_a_batch_repeated_after_a_crash_is_stored_once(fed: Fed) -> None:
    """The driver died after the batch was stored in the tables and before it was recorded in the checkpoint."""
    for name in "AB":
        fed.send(frames.body([pub(name)]))
    fed.run_once()
    expected = fed.events()
    commits = fed.home / "checkpoint" / "traces" / "commits"
    last = max((file for file in commits.glob("[0-9]*")), key=lambda file: int(file.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)

    fed.send(frames.body([pub("C")]))
    fed.run_once()

    assert last.exists(), "the batch was not done again: the test proves nothing"
    assert fed.events() == [*expected, ("Pub", "C")]
    assert fed.journeys() == [("A", None), ("B", None), ("C", None)]


def test_a_new_checkpoint_rereads_the_source_and_journeys_stay_correct(fed: Fed) -> None:
    fed.send(frames.body([pub("A"), before("A", "R", 10), after("A", "R", 17)]))
    fed.run_once()
    shutil.rmtree(fed.home / "checkpoint")
    fed.run_once()
    assert len(fed.events()) == 6
    assert fed.journeys() == [("A", "success")]


@pytest.mark.long("tests/unit/test_table_publisher.py::test_a_removed_base_table_is_not_a_silent_gap")
def test_a_manually_removed_base_table_stops_the_job_with_instructions(fed: Fed) -> None:
    fed.send(frames.body([pub("A")]))
    fed.run_once()
    shutil.rmtree(fed.home / TRACE_EVENTS.name)
    fed.send(frames.body([pub("B")]))
    with pytest.raises(
        ArianeError, match=r"traces: StoreError: .*trace_events lacks batches 0 to 0 of traces: .*remove"
    ):
        fed.run_once()
    for name in ("checkpoint", TRACE_REJECTS.name):
        shutil.rmtree(fed.home / name)
    fed.run_once()
    assert fed.journeys() == [("A", None), ("B", None)]


@pytest.mark.long("tests/unit/test_table_publisher.py::test_unreferenced_version_directories_are_removed")
def test_files_of_a_dead_writer_are_ignored_and_deleted(fed: Fed) -> None:
    fed.send(frames.body([pub("A")]))
    fed.run_once()
    (part,) = (fed.home / TRACE_EVENTS.name).glob("v=*/bucket=*/part-*.parquet")
    dead = fed.home / TRACE_EVENTS.name / "v=00000099" / part.parent.name / part.name
    dead.parent.mkdir(parents=True)
    dead.write_bytes(part.read_bytes()[:40])
    fed.send(frames.body([pub("B")]))
    fed.run_once()
    assert fed.events() == [("Pub", "A"), ("Pub", "B")]
    with table_publisher.lock_tables(fed.home, [TRACE_EVENTS]):
        assert not dead.exists()
        assert part.exists()


def test_micro_batches_of_a_backlog_are_limited() -> None:
    job = jobs.with_topics(jobs.combine_jobs(("trace", "health")), "MY_TRACES", "MY_SAMPLES")
    limits = {}
    for source in job.sources:
        options = source_options.parse({"namesrv": "127.0.0.1:9876", **source.options, **source.limits})
        limits[source.name] = (options.max_bytes_per_trigger, options.max_offsets_per_trigger)
    assert limits == {"traces": (64 * 1024 * 1024, None), "messages": (None, 400_000)}


def test_a_second_pipeline_is_rejected(fed: Fed) -> None:
    with (
        table_publisher.lock_tables(fed.home, [TRACE_EVENTS]),
        pytest.raises(ConfigError, match="another pipeline is writing trace_events"),
        table_publisher.lock_tables(fed.home, [TRACE_EVENTS]),
    ):
        pass


@pytest.mark.long(
    "tests/spark/test_pipeline_maintenance.py::test_old_rows_expire_small_files_are_merged_and_replaced_files_deleted",
    "tests/spark/test_table_engines.py::test_every_engine_reads_each_row_once",
)
def test_small_files_of_a_bucket_are_merged_and_old_files_are_retained_for_readers(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_publisher, "MAX_SMALL_FILES", 2)
    for number in range(3):
        fed.send(frames.body([pub("A", ms=number)]))
    fed.run_once()
    (merged,) = files(fed, TRACE_EVENTS)
    assert merged.rows == 3
    assert folded(fed.run_once()) == [], "merging brings no news"
    old = sorted((fed.home / TRACE_EVENTS.name).glob("v=*/bucket=*/*.parquet"))
    assert len(old) == 4
    now = table_store.read_version(fed.home, TRACE_EVENTS)
    assert now is not None
    frame = table_publisher.read_table(fed.spark, fed.home, TRACE_EVENTS).limit(0)
    later = max(item.retired_ms for item in now.retired) + table_format.RETIRED_RETENTION_MS
    change = table_publisher.TableChange(frame=frame, applied=now.applied)
    table_publisher.commit(fed.home, TRACE_EVENTS, change, later)
    assert list((fed.home / TRACE_EVENTS.name).glob("v=*/bucket=*/*.parquet")) == [
        fed.home / TRACE_EVENTS.name / merged.path
    ]
    assert len(fed.events()) == 3


@pytest.mark.long(
    "tests/unit/test_table_publisher.py::test_rows_expire_by_their_time_not_by_an_id_from_a_clock_that_is_ahead",
)
def test_expired_buckets_are_removed_from_the_tables(fed: Fed) -> None:
    since_t0 = {
        hours: int((datetime(2023, 11, 1, hours, tzinfo=UTC) - frames.T0).total_seconds() * 1000) for hours in (1, 9)
    }
    fed.send(frames.body([*(pub(unique_id(hours=hours), ms) for hours, ms in since_t0.items()), pub("A")]))
    fed.run_once()
    table_publisher.expire(fed.home, JOURNEYS, "2023-11-01T0900", 0)
    assert fed.journeys() == [(unique_id(hours=9), None), ("A", None)]
    table_publisher.expire(fed.home, JOURNEYS, time_buckets.bucket_of_time(frames.T0_MS + 600_000), 0)
    assert fed.journeys() == []


def test_a_failed_aggregation_leaves_the_table_unchanged(fed: Fed) -> None:
    fed.send(frames.body([pub("A")]))
    fed.run_once()
    former = table_store.read_version(fed.home, JOURNEYS)
    good = table_publisher.read_table(fed.spark, fed.home, JOURNEYS)
    failing = good.withColumn("topic", F.raise_error(F.lit("the disk is on fire")).cast("string"))
    change = table_publisher.TableChange(frame=failing, applied={})
    with pytest.raises(Exception, match="the disk is on fire"):
        table_publisher.commit(fed.home, JOURNEYS, change, 0)
    assert table_store.read_version(fed.home, JOURNEYS) == former
    assert fed.journeys() == [("A", None)]


def test_a_schema_change_rebuilds_the_table_and_old_files_stay_readable(fed: Fed) -> None:
    fed.send(frames.body([pub("A")]))
    fed.run_once()
    wider = JOURNEYS._replace(definitions={**JOURNEYS.definitions, "mood STRING": "of the message"}, schema=99)
    assert [row["mood"] for row in table_publisher.read_table(fed.spark, fed.home, wider).collect()] == [None]
    with table_views.open_views(fed.home, table_views.whole_table(wider)) as sql:
        assert table_views.query(sql, "SELECT message_id, mood FROM journeys") == [{"message_id": "A", "mood": None}]

    def happy(*frames_of: DataFrame) -> DataFrame:
        return TRACE.incremental_tables[0].compute(*frames_of).withColumn("mood", F.lit("happy"))

    fold = dataclasses.replace(TRACE.incremental_tables[0], table=wider, compute=happy)
    assert incremental.rebuild_changed(fed.spark, fed.home, fold, 0) is not None
    assert [row["mood"] for row in table_publisher.read_table(fed.spark, fed.home, wider).collect()] == ["happy"]


def test_an_aggregation_with_lookback_reads_the_previous_bucket_but_writes_only_its_own(fed: Fed) -> None:
    ids = [unique_id(hours=1, minutes=minutes) for minutes in (0, 10, 20)]
    counted = TableSchema(
        "counted",
        "",
        {"message_id STRING": "", "seen BIGINT": "", "at TIMESTAMP": ""},
        "at",
        ("message_id",),
    )

    def count(events: DataFrame) -> DataFrame:
        seen = events.select(F.count("*").alias("seen"))
        return events.crossJoin(seen).select("message_id", "seen", F.col("event_time").alias("at"), "bucket")

    fold = incremental.IncrementalTable(counted, (TRACE_EVENTS,), count, lookback=1)
    for message_id, touched in zip((ids[0], ids[2], ids[1]), (1, 1, 2), strict=True):
        fed.send(frames.body([pub(message_id)]))
        fed.run_once()
        done = incremental.rebuild_changed(fed.spark, fed.home, fold, 0)
        assert done is not None
        assert done.buckets == touched
    rows = table_publisher.read_table(fed.spark, fed.home, counted).orderBy("message_id").collect()
    assert [(row["message_id"], row["seen"]) for row in rows] == [(ids[0], 1), (ids[1], 3), (ids[2], 3)]


def watching(work: Callable[[Callable[[run.JobProgress], None], threading.Event], None]) -> Iterator[run.JobProgress]:
    """Yield the progress of a job in a thread. The job is stopped when the block ends; its exception is raised."""
    progress: list[run.JobProgress | BaseException | None] = []
    news = threading.Semaphore(0)
    stop = threading.Event()

    def tell(one: run.JobProgress | BaseException | None) -> None:
        progress.append(one)
        news.release()

    def body() -> None:
        try:
            work(tell, stop)
            tell(None)
        except BaseException as error:
            tell(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        while True:
            assert news.acquire(timeout=90), "the job says nothing"
            one = progress.pop(0)
            if isinstance(one, BaseException):
                raise one
            if one is None:
                return
            yield one
    finally:
        stop.set()
        thread.join(90)
        assert not thread.is_alive()


def test_an_unavailable_server_is_reported_and_retried(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_reader, "UNAVAILABLE_PAUSE_S", 0.1)
    fault = tmp_path / "fault"
    row = (frames.body([pub("A")]), "broker-a", 0, 0, frames.STORED, "10.0.0.9:5000", {})

    class Reader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, Any]:
            if fault.exists():
                kind = ConnectionLost if fault.read_text() == "away" else ValueError
                raise kind("10.0.0.1:9876", "refused")
            return {"at": 0}

        def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
            return iter([row] if start["at"] == 0 else []), {"at": 1}

        def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
            return iter([row] if start["at"] == 0 < end["at"] else [])

    class Flaky(DataSource):
        @classmethod
        def name(cls) -> str:
            return "flaky"

        def schema(self) -> str:
            return jobs.TRACES.schema

        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            return Reader()

    spark.dataSource.register(Flaky)

    def job(tell: Callable[[run.JobProgress], None], stop: threading.Event) -> None:
        home = tmp_path / "tables"
        home.mkdir(exist_ok=True)
        streams = {"traces": source_reader.SourceStream(spark.readStream.format("flaky").load())}
        run_job(spark, TRACE, streams, home, Rounds(tell), stop=stop)

    fault.write_text("away")
    progress = watching(job)
    away = next(source.unavailable for item in progress for source in item.sources if source.unavailable)
    assert away == "ConnectionLost: connection to 10.0.0.1:9876: refused"
    fault.unlink()
    assert folded(next(item for item in progress if item.rebuilt)) == [("journeys", 1, 1)]
    progress.close()  # type: ignore[attr-defined]


@pytest.mark.long(
    "tests/spark/test_pipeline_run.py::test_an_unavailable_server_is_reported_and_retried",
)
def test_a_failing_source_does_not_block_the_others(spark: SparkSession, tmp_path: Path) -> None:
    """With `once`: no name server responds to one source, and the other source's messages are read and aggregated."""
    fed = Fed(spark, tmp_path)
    fed.send(frames.body([pub("A")]))
    lost = jobs.TopicSource("lost", {"topic": "T"}, "body BINARY", (), lambda _: {})
    both = TRACE._replace(sources=(lost, *TRACE.sources))
    options = {"namesrv": "127.0.0.1:1", "retries": "0"}
    streams = {"traces": fed.messages(), "lost": run.read_stream(spark, lost, options)}
    with pytest.raises(ArianeError, match=r"^lost: .*127\.0\.0\.1:1"):
        run_job(spark, both, streams, fed.home, run.SilentListener(), once=True)
    assert fed.journeys() == [("A", None)]


def test_a_permanent_error_stops_the_job(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "part-0.parquet").write_bytes(b"this is no parquet file")
    messages = source_reader.SourceStream(spark.readStream.schema(jobs.TRACES.schema).parquet(str(inbox)))

    def job(tell: Callable[[run.JobProgress], None], stop: threading.Event) -> None:
        home = tmp_path / "tables"
        home.mkdir(exist_ok=True)
        run_job(spark, TRACE, {"traces": messages}, home, Rounds(tell), stop=stop)

    with pytest.raises(Exception, match=r"part-0\.parquet"):
        for _ in watching(job):
            continue


@pytest.mark.long(
    "tests/spark/test_pipeline_records.py::test_from_a_broker_to_the_reports",
    "tests/spark/test_pipeline_run.py::test_new_events_are_aggregated_and_a_round_without_updates_publishes_nothing",
)
def test_from_a_broker_to_the_timeline(spark: SparkSession, tmp_path: Path) -> None:
    async def produce(namesrv: str) -> None:
        async with Producer(namesrv, "orders", trace=True) as producer:
            for number in range(3):
                await producer.send(Message(topic="T", body=b"order", keys=(f"order-{number}",), tags="new"))

    rounds = Rounds()
    home, began_ms = tmp_path / "tables", SYSTEM_CLOCK.now_ms()
    with LocalCluster(tmp_path / "servers", trace_topic_enable=True) as servers:
        asyncio.run(produce(servers.namesrv))
        for _ in range(2):
            run.run(
                jobs.JOBS["trace"],
                {"namesrv": servers.namesrv},
                home,
                settings=run.RunSettings(once=True),
                listener=rounds,
            )
        backfill.check_range(home, jobs.JOBS["trace"], began_ms)
        read = backfill.read_range(spark, {"namesrv": servers.namesrv}, began_ms, SYSTEM_CLOCK.now_ms())
        filled = backfill.backfill(spark, home, jobs.JOBS["trace"], read, SYSTEM_CLOCK.now_ms())
    assert [(one.table.name, one.rows, one.missing) for one in filled] == [
        ("trace_events", 3, 0),
        ("trace_rejects", 0, 0),
    ]
    rows = [{name: count for name, _, count in folded(item)} for item in rounds.seen]
    assert (rows[0]["journeys"], rows[0]["message_keys"], rows[1]) == (3, 6, {})
    result = trace_lookup.find_journeys(home, key="order-1")
    assert [(row["topic"], row["producer_group"], row["consumer_group"]) for row in result.rows] == [
        ("T", "orders", None)
    ]
    assert [moment.event for moment in trace_lookup.timeline(result.rows)] == ["sent", "stored"]
    assert spark.range(1).count() == 1, "a session that ran before goes on"


def test_an_unwritable_home_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written to"):
        run.run(TRACE, {"namesrv": "127.0.0.1:1"}, tmp_path / "file" / "tables")
