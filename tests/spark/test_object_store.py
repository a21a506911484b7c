"""Tables in an object store, moto's S3, and in HDFS: a job writes them; reports, traces and other engines read them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
pytest.importorskip("deltalake", reason="needs deltalake: pip install 'ariane[objectstore]'")
pytest.importorskip("pandas", reason="needs pandas: pip install 'ariane[objectstore]'")

import deltalake
import trace_frames as frames
from trace_frames import after, before, pub

import table_stores
from ariane.cli.__main__ import run as run_command
from ariane.clock import ms_of
from ariane.errors import StoreError
from ariane.pipeline import jobs, run, source_reader
from ariane.pipeline.publishing import table_publisher
from ariane.pipeline.publishing.table_publisher import TableChange
from ariane.reports.tables import pipeline_status, table_views
from ariane.tables import JOURNEYS, TRAFFIC, TableSchema, table_store
from ariane.tables.object_tables import ObjectTables, file_path
from ariane.tables.table_format import DataFile, TableVersion
from ariane.tables.table_home import ObjectHome, object_home
from ariane.tables.time_buckets import bucket_of_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
T0 = datetime(2026, 11, 21, 10, 20, tzinfo=UTC)
NOW_MS = ms_of(T0) + 3_600_000
WRITERS = 4


@pytest.fixture(scope="module", params=table_stores.STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with table_stores.table_store(request.param, tmp_path_factory.mktemp("store")) as uri:
        yield uri


@pytest.fixture
def home(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> ObjectHome:
    return object_home(f"{store}/{request.node.originalname}-{tmp_path.name}", tmp_path)


def minutes(spark: SparkSession, topic: str, *values: int, bucket: str | None = None) -> DataFrame:
    """Return rows of `traffic`: minutes after T0, in buckets of ten minutes."""
    same = dict.fromkeys(TRAFFIC.column_names) | {"topic": topic, "messages": 1, "queueing_ms": {5: 1}}
    times = [T0 + timedelta(minutes=value) for value in values]
    rows: list[dict[str, Any]] = [{**same, "minute": at, "bucket": bucket or bucket_of_time(ms_of(at))} for at in times]
    return spark.createDataFrame(rows, f"{TRAFFIC.ddl}, bucket STRING")


def topics(home: ObjectHome) -> dict[str, int]:
    with table_views.open_views(home, table_views.whole_table(TRAFFIC)) as sql:
        rows = table_views.query(
            sql, "SELECT topic, count(*) AS rows FROM traffic WHERE queueing_ms[5] = 1 GROUP BY ALL"
        )
    return {row["topic"]: row["rows"] for row in rows}


@pytest.mark.long(
    "tests/spark/test_object_store.py::test_a_job_writes_tables_that_commands_read",
    "tests/crash/test_table_kills.py::test_each_row_is_there_once_after_kills",
)
def test_versions_are_committed_once_and_read_by_all(spark: SparkSession, home: ObjectHome) -> None:
    odd = "2026-11-21.%RETRY%a b"
    with table_publisher.lock_tables(home, [TRAFFIC]):
        assert table_store.read_version(home, TRAFFIC) is None
        for _ in range(2):
            table_publisher.append_batch(minutes(spark, "a", -60, 0, 1, 10, 11), home, TRAFFIC, "q 1", 0, NOW_MS)
        table_publisher.append_batch(minutes(spark, "b", 3, 4, 20), home, TRAFFIC, "q 1", 1, NOW_MS)
        replaced = [bucket_of_time(ms_of(T0) + 600_000)]
        change = TableChange(frame=minutes(spark, "c", 10), applied={"q 1": 1}, replaced=replaced)
        table_publisher.commit(home, TRAFFIC, change, NOW_MS)
        change = TableChange(frame=minutes(spark, "d", 5, bucket=odd), applied={"q 1": 1})
        table_publisher.commit(home, TRAFFIC, change, NOW_MS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table_publisher, "MAX_SMALL_FILES", 1)
            table_publisher.compact(spark, home, TRAFFIC, NOW_MS)
        table_publisher.expire(home, TRAFFIC, bucket_of_time(ms_of(T0)), NOW_MS)
        assert topics(home) == {"a": 2, "b": 3, "c": 1, "d": 1}
        version = table_store.read_version(home, TRAFFIC)
        assert version is not None
        assert (version.rows, version.applied, version.as_of_ms) == (7, {"q 1": 1}, ms_of(T0) + 1_200_000)
        assert {file.bucket: file.rows for file in version.files}[odd] == 1
        rows = table_publisher.read_table(spark, home, TRAFFIC, lambda file: file.bucket == odd).collect()
        assert [(row["topic"], row["minute"], row["queueing_ms"], row["bucket"]) for row in rows] == [
            ("d", (T0 + timedelta(minutes=5)).replace(tzinfo=None), {5: 1}, odd)
        ]
        table_publisher.remove_retired(home, TRAFFIC, NOW_MS)
        assert topics(home) == {"a": 2, "b": 3, "c": 1, "d": 1}, "removed files stay for readers of the version before"
    delta = deltalake.DeltaTable(f"{home.uri}/traffic")
    assert delta.to_pyarrow_dataset().count_rows() == 7
    polars = pytest.importorskip("polars", reason="needs polars: pip install polars")
    is_hdfs = home.uri.startswith("hdfs://")  # which polars itself does not read
    scanned = polars.scan_pyarrow_dataset(delta.to_pyarrow_dataset()) if is_hdfs else polars.scan_delta(delta)
    assert scanned.filter(polars.col("bucket") == odd).collect()["topic"].to_list() == ["d"]


@pytest.mark.long(
    "tests/crash/test_table_kills.py::test_each_row_is_there_once_after_kills",
    "tests/spark/test_object_store.py::test_writers_that_would_lose_or_repeat_rows_are_refused",
)
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_batch_is_there_once_if_its_commit_fails(
    spark: SparkSession, home: ObjectHome, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """The driver ends before its commit, or does not get the response to it."""
    publish = ObjectTables.publish

    def fail(*of: Any) -> None:
        if is_committed:
            publish(*of)
        raise StoreError("the connection was closed")

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="connection was closed"):
        patch.setattr(ObjectTables, "publish", fail)
        table_publisher.append_batch(minutes(spark, "a", 0, 10), home, TRAFFIC, "q 1", 0, NOW_MS)
    assert topics(home) == ({"a": 2} if is_committed else {})
    table_publisher.append_batch(minutes(spark, "a", 0, 10), home, TRAFFIC, "q 1", 0, NOW_MS)
    assert topics(home) == {"a": 2}


def test_writers_that_would_lose_or_repeat_rows_are_refused(spark: SparkSession, home: ObjectHome) -> None:
    first = table_publisher.append_batch(minutes(spark, "a", 0), home, TRAFFIC, "q 1", 0, NOW_MS)
    table_publisher.append_batch(minutes(spark, "a", 1), home, TRAFFIC, "q 1", 1, NOW_MS)
    with pytest.raises(StoreError, match=rf"another pipeline is writing {home}/traffic"):
        ObjectTables(home).publish(TRAFFIC, first, first.replace(removed=lambda _: True, now_ms=NOW_MS), NOW_MS)
    with pytest.raises(StoreError, match=r"q that another checkpoint has read; .*copy it to .*checkpoint/q"):
        table_publisher.append_batch(minutes(spark, "a", 1), home, TRAFFIC, "q 2", 0, NOW_MS)
    with pytest.raises(StoreError, match="lacks batches 2 to 3 of q"):
        table_publisher.append_batch(minutes(spark, "a", 1), home, TRAFFIC, "q 1", 4, NOW_MS)
    deltalake.DeltaTable(f"{home.uri}/traffic").delete("bucket = 'x'")
    assert topics(home) == {"a": 2}, "a deletion without rows is no commit"
    deltalake.DeltaTable(f"{home.uri}/traffic").delete()
    with pytest.raises(StoreError, match="was changed by another program: .*DELETE in version"):
        table_store.read_version(home, TRAFFIC)


def test_one_of_the_writers_that_commit_at_once_succeeds(home: ObjectHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have seen the version before: the store alone decides."""
    first = TableVersion.initial(TRAFFIC, NOW_MS).replace(removed=lambda _: False, now_ms=NOW_MS)
    ObjectTables(home).publish(TRAFFIC, TableVersion.initial(TRAFFIC, NOW_MS), first, NOW_MS)
    opened, open_table = threading.Barrier(WRITERS), ObjectTables._open

    def open_together(tables: ObjectTables, table: TableSchema) -> Any:
        result = open_table(tables, table)
        opened.wait(60)
        return result

    def write(rows: int) -> str | None:
        number = first.version + 1
        file = DataFile(file_path(number, "b", number, 1, 1), "b", rows, 9, number, 1, 1)
        version = first.replace(removed=lambda _: False, added=[file], now_ms=NOW_MS)
        try:
            ObjectTables(home).publish(TRAFFIC, first, version, NOW_MS)
        except StoreError as error:
            return str(error)
        return None

    with monkeypatch.context() as patch, ThreadPoolExecutor(WRITERS) as threads:
        patch.setattr(ObjectTables, "_open", open_together)
        errors = list(threads.map(write, range(WRITERS)))
    refusal = f"another pipeline is writing {home}/traffic; stop that one, run both jobs as one, or use another home"
    assert sorted(errors, key=str) == [None, *[refusal] * (WRITERS - 1)]
    version = table_store.read_version(home, TRAFFIC)
    assert version is not None
    assert (version.version, version.rows) == (first.version + 1, errors.index(None))


def test_a_job_writes_tables_that_commands_read(
    spark: SparkSession,
    home: ObjectHome,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies = [
        frames.body([pub(name), before(name, f"R-{name}", 10), after(name, f"R-{name}", 17)]) for name in ("M0", "M1")
    ]
    inbox = str(tmp_path / "inbox")
    rows = frames.messages([frames.message(body, offset) for offset, body in enumerate(bodies)])
    spark.createDataFrame(rows).write.parquet(inbox)
    trace = jobs.JOBS["trace"]
    trace = trace._replace(
        incremental_tables=tuple(fold for fold in trace.incremental_tables if fold.table == JOURNEYS)
    )
    for _ in range(2):
        messages = spark.readStream.schema(jobs.TRACES.schema).parquet(inbox)
        with table_publisher.lock_tables(home, trace.tables):
            settings = run.RunSettings(once=True, keep_days=36_500)
            stop = threading.Event()
            runner = run.JobRunner(
                spark=spark,
                job=trace,
                streams={"traces": source_reader.SourceStream(messages)},
                home=home,
                settings=settings,
                stop=stop,
            )
            runner.run(run.SilentListener())
    version = table_store.read_version(home, JOURNEYS)
    assert version is not None
    assert version.rows == 2
    assert list(pipeline_status.read_statuses(home)) == ["traces"]
    monkeypatch.setenv("ARIANE_HOME", str(tmp_path))
    for arguments in (["trace", "--id", "M1"], ["pipeline", "status"]):
        monkeypatch.setattr("sys.argv", ["ariane", *arguments, "--home", home.uri, "--json"])
        with pytest.raises(SystemExit) as ended:
            run_command()
        assert ended.value.code in (0, None), capsys.readouterr()
    output = capsys.readouterr().out
    assert '"M1"' in output
    assert json.dumps(home.uri) in output
