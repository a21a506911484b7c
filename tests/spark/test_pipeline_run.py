"""The wired jobs over a stream of files in place of a broker: restarts, publishing, servers that are away. And over a broker."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
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

from ariane.admin import published, traces
from ariane.client.producer import Producer
from ariane.errors import ConfigError, ConnectionLost, StoreError
from ariane.model.message import Message
from ariane.pipeline import jobs, publish, run
from ariane.tables import JOURNEYS, TRACE_EVENTS
from ariane.testing.cluster import cluster_in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
TRACE = jobs.JOBS["trace"]


class Fed:
    """A stream of trace messages that come as files."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.spark = spark
        self.home = place / "tables"
        self.home.mkdir()
        self._inbox = place / "inbox"
        self._inbox.mkdir()
        self._sent = 0

    def send(self, *bodies: bytes) -> None:
        rows = [frames.message(body, self._sent + number) for number, body in enumerate(bodies)]
        frames.messages(self.spark, rows).coalesce(1).write.mode("append").parquet(str(self._inbox))
        self._sent += len(bodies)

    def messages(self) -> DataFrame:
        return (
            self.spark.readStream.schema(jobs.TRACES.schema).option("maxFilesPerTrigger", 1).parquet(str(self._inbox))
        )

    def run_once(self) -> run.Progress:
        said: list[run.Progress] = []
        run.keeping(
            self.spark, TRACE, {"traces": self.messages()}, self.home,
            interval_s=None, on_progress=said.append, stop=threading.Event(),
        )  # fmt: skip
        (progress,) = said
        return progress

    def events(self) -> list[tuple[str, str]]:
        """Type and message id of every row of trace_events."""
        frame = self.spark.read.schema(TRACE_EVENTS.ddl).parquet(str(self.home / TRACE_EVENTS.name))
        return sorted((row["type"], row["message_id"]) for row in frame.select("type", "message_id").collect())

    def journeys(self) -> list[tuple[str, str | None]]:
        """Message id and result of every published journey."""
        ids = {message_id for _, message_id in self.events()}
        rows = [row for one in ids for row in traces.find(self.home, message_id=one).rows]
        return sorted((row["message_id"], row["result"]) for row in rows)


@pytest.fixture
def fed(spark: SparkSession, tmp_path: Path) -> Fed:
    return Fed(spark, tmp_path)


def test_what_comes_is_folded_and_a_round_without_news_publishes_nothing(fed: Fed) -> None:
    with pytest.raises(StoreError, match=r"no journeys in .* yet: run"):
        traces.find(fed.home, message_id="A")
    fed.send(frames.body([pub("A"), before("A", "R", 10)]), b"nonsense")
    first = fed.run_once()
    assert (first.events, first.journeys) == (2, published.Version(1, frames.T0_MS + 60_000, 1))
    assert fed.journeys() == [("A", "unknown")]

    assert fed.run_once()._replace(seconds=0) == run.Progress(2, None, 0)

    fed.send(frames.body([after("A", "R", 17), pub("B")]))
    second = fed.run_once()
    assert second.events == 4
    assert second.journeys is not None
    assert second.journeys.version == 2
    assert fed.journeys() == [("A", "success"), ("B", None)]
    rejects = fed.spark.read.parquet(str(fed.home / "trace_rejects")).collect()
    assert [(row["record"], row["trace_queue_offset"]) for row in rejects] == [("nonsense", 1)]


def test_a_batch_that_is_done_again_after_a_crash_is_there_once(fed: Fed) -> None:
    """The driver died after the sink had its files, before the checkpoint said so; then before the fold."""
    for name in "AB":
        fed.send(frames.body([pub(name)]))
    fed.run_once()
    expected = fed.events()
    commits = fed.home / "checkpoint" / TRACE_EVENTS.name / "commits"
    last = max((file for file in commits.glob("[0-9]*")), key=lambda file: int(file.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    (fed.home / "checkpoint" / "folded").unlink()

    fed.send(frames.body([pub("C")]))
    again = fed.run_once()

    assert last.exists(), "the batch was not done again: the test proves nothing"
    assert fed.events() == [*expected, ("Pub", "C")]
    assert again.events == 3
    assert fed.journeys() == [("A", None), ("B", None), ("C", None)]


def test_files_that_a_dead_task_left_are_in_no_table(fed: Fed) -> None:
    fed.send(frames.body([pub("A")]))
    fed.run_once()
    (part,) = (fed.home / TRACE_EVENTS.name).glob("trace_date=*/part-*.parquet")
    part.with_name("part-of-a-dead-task.parquet").write_bytes(part.read_bytes()[:40])
    fed.send(frames.body([pub("B")]))
    assert fed.run_once().events == 2


def test_readers_keep_the_former_version_while_one_is_written_and_when_that_fails(fed: Fed) -> None:
    fed.send(frames.body([pub("A")]))
    fed.run_once()
    directory = fed.home / JOURNEYS.name
    good = fed.spark.read.parquet(str(directory / "v=00000001"))
    seen: list[list[dict[str, Any]]] = []

    class Watched:
        """Looks at the published table after the files are written and before the pointer is moved."""

        def __init__(self, frame: DataFrame) -> None:
            self.write = frame.write
            self._frame = frame

        @property
        def sparkSession(self) -> SparkSession:
            seen.append(traces.find(fed.home, message_id="A").rows)
            return self._frame.sparkSession

    failing = good.withColumn("topic", F.raise_error(F.lit("the disk is on fire")).cast("string"))
    with pytest.raises(Exception, match="the disk is on fire"):
        publish.publish(failing, directory, 1)
    assert published.current(directory) == published.Version(1, frames.T0_MS + 60_000, 1)
    assert len(traces.find(fed.home, message_id="A").rows) == 1

    changed = good.withColumn("topic", F.lit("U"))
    assert publish.publish(Watched(changed), directory, 2) == published.Version(2, 2, 1)  # type: ignore[arg-type]
    assert [[row["topic"] for row in rows] for rows in seen] == [["T"]]
    assert [row["topic"] for row in traces.find(fed.home, message_id="A").rows] == ["U"]


def test_two_versions_are_kept(fed: Fed) -> None:
    directory = fed.home / JOURNEYS.name
    frame = fed.spark.range(3).toDF("message_id")
    for number in range(1, 5):
        assert publish.publish(frame, directory, None) == published.Version(number, None, 3)
    assert sorted(path.name for path in directory.iterdir()) == ["CURRENT", "v=00000003", "v=00000004"]


def watching(work: Callable[[Callable[[run.Progress], None], threading.Event], None]) -> Iterator[run.Progress]:
    """The progress of a job in a thread. When the caller has seen enough, the job is stopped; what it raises is raised."""
    said: list[run.Progress | BaseException | None] = []
    news = threading.Semaphore(0)
    stop = threading.Event()

    def tell(one: run.Progress | BaseException | None) -> None:
        said.append(one)
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
            one = said.pop(0)
            if isinstance(one, BaseException):
                raise one
            if one is None:
                return
            yield one
    finally:
        stop.set()
        thread.join(90)
        assert not thread.is_alive()


def test_a_server_that_is_away_is_said_and_waited_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "AWAY_PAUSE_S", 0.1)
    fault = tmp_path / "fault"
    row = (frames.body([pub("A")]), "broker-a", 0, 0, frames.STORED, "10.0.0.9:5000")

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

    def job(tell: Callable[[run.Progress], None], stop: threading.Event) -> None:
        home = tmp_path / "tables"
        home.mkdir(exist_ok=True)
        run.appending(spark, spark.readStream.format("flaky").load(), home, 0.2, tell, stop)

    fault.write_text("away")
    progress = watching(job)
    away = next(one.away for one in progress if one.away)
    assert away == "ConnectionLost: connection to 10.0.0.1:9876: refused"
    fault.unlink()
    assert next(one for one in progress if one.journeys).events == 1
    progress.close()  # type: ignore[attr-defined]


def test_any_other_fault_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "part-0.parquet").write_bytes(b"this is no parquet file")
    messages = spark.readStream.schema(jobs.TRACES.schema).parquet(str(inbox))
    with pytest.raises(Exception, match=r"part-0\.parquet"):
        for _ in watching(lambda tell, stop: run.appending(spark, messages, tmp_path / "tables", 0.2, tell, stop)):
            continue


def test_from_a_broker_to_the_timeline(spark: SparkSession, tmp_path: Path) -> None:
    async def produce(namesrv: str) -> None:
        async with Producer("orders", namesrv, trace=True) as producer:
            for number in range(3):
                await producer.send(Message(topic="T", body=b"order", keys=(f"order-{number}",), tags="new"))

    said: list[run.Progress] = []
    home = tmp_path / "tables"
    with cluster_in_thread(tmp_path / "servers", trace_topic_enable=True) as servers:
        asyncio.run(produce(servers.namesrv))
        run.run_trace(servers.namesrv, home, once=True, on_progress=said.append)
        run.run_trace(servers.namesrv, home, once=True, on_progress=said.append)
    assert [one.events for one in said] == [3, 3]
    assert said[1].journeys is None
    found = traces.find(home, key="order-1")
    assert [(row["topic"], row["producer_group"], row["consumer_group"]) for row in found.rows] == [
        ("T", "orders", None)
    ]
    assert [moment.what for moment in traces.timeline(found.rows)] == ["sent", "stored"]
    assert spark.range(1).count() == 1, "a session that ran before goes on"
    assert json.loads((home / "checkpoint" / "folded").read_text())["events"] == 3


def test_a_home_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        run.run_trace("127.0.0.1:1", tmp_path / "file" / "tables")
