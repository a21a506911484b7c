"""Monitoring of a query: its lag, its group's offsets, no exposed secrets, and the format without a register call."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ariane.client import ClientInstance, ClientSettings, Credentials, Producer
from ariane.cluster.admin import Admin
from ariane.cluster.groups.group_lag import GroupLag
from ariane.model.message import Message
from ariane.testing import LocalCluster
from planted_secrets import files_below, leaks, planted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    from ariane.spark import RocketMQSource

    spark.dataSource.register(RocketMQSource)


def test_python_processes_of_a_local_session_import_compiled_modules(spark: SparkSession) -> None:
    def imported_from(_: int) -> str:
        import pyspark.worker

        return str(pyspark.worker.__file__)

    assert ".zip" not in spark.sparkContext.parallelize([0], 1).map(imported_from).first()


def send(servers: LocalCluster, count: int, settings: ClientSettings | None = None) -> None:
    async def work() -> None:
        instance = ClientInstance(servers.namesrv, settings or ClientSettings())
        async with instance, Producer(instance, "P") as producer:
            for number in range(count):
                await producer.send(Message(topic="T", body=b"%d" % number))

    asyncio.run(work())


def make(servers: LocalCluster, queues: int) -> None:
    async def work() -> None:
        async with Admin(servers.namesrv) as admin:
            await admin.create_topic("T", queues=queues)

    asyncio.run(work())


def group_offsets(servers: LocalCluster, group: str) -> dict[int, int | None]:
    async def work() -> GroupLag:
        async with Admin(servers.namesrv) as admin:
            return await admin.group_lag(group, "T")

    return {queue.queue_id: queue.consumer_offset for queue in asyncio.run(work()).queues}


def start(spark: SparkSession, servers: LocalCluster, home: Path, **options: Any) -> StreamingQuery:
    frame = spark.readStream.format("rocketmq").options(namesrv=servers.namesrv, topic="T", **options).load()
    to_noop = frame.writeStream.format("noop").option("checkpointLocation", str(home / "checkpoint"))
    return to_noop.trigger(availableNow=True).queryName("tested").start()


def until(condition: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.05)


def test_the_lag_is_in_the_progress_and_passed_to_a_listener(
    spark: SparkSession, servers: LocalCluster, tmp_path: Path
) -> None:
    from ariane.spark.read import progress

    make(servers, 1)
    send(servers, 50)
    reported: list[progress.LagTree] = []
    listener = progress.LagListener(reported.append, query="tested")
    spark.streams.addListener(listener)
    try:
        query = start(spark, servers, tmp_path, maxOffsetsPerTrigger=20)
        query.awaitTermination(60)
        until(lambda: len(reported) >= 3)
    finally:
        spark.streams.removeListener(listener)
    assert [progress.total_lag(item) for item in reported[:3]] == [30, 10, 0]
    assert progress.lags(query.recentProgress[0].json) == {"T": {"broker-a": {"0": 30}}}


def test_offsets_are_committed_to_the_group_including_the_last_batch(
    spark: SparkSession, servers: LocalCluster, tmp_path: Path
) -> None:
    make(servers, 2)
    send(servers, 50)
    query = start(spark, servers, tmp_path, maxOffsetsPerTrigger=20, commitOffsets="true", groupId="shown")
    query.awaitTermination(60)
    assert group_offsets(servers, "shown") == {0: 25, 1: 25}


def test_a_listener_commits_each_batch(spark: SparkSession, servers: LocalCluster, tmp_path: Path) -> None:
    from ariane.spark import OffsetCommitter

    make(servers, 2)
    send(servers, 50)
    listener = OffsetCommitter({"namesrv": servers.namesrv, "groupId": "listened"}, query="tested")
    spark.streams.addListener(listener)
    try:
        start(spark, servers, tmp_path, maxOffsetsPerTrigger=20).awaitTermination(60)
        until(lambda: group_offsets(servers, "listened") == {0: 25, 1: 25})
    finally:
        spark.streams.removeListener(listener)


SECRET, TOKEN, WRONG = map(planted, ("spark", "token", "wrong"))
ACL = f"""
accounts:
- {{accessKey: the-account, secretKey: '{SECRET}', defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}}
"""


def test_secrets_appear_in_no_plan_progress_or_error(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACL)
    account = {"accessKey": "the-account", "secretKey": SECRET, "securityToken": TOKEN}
    with LocalCluster(tmp_path / "c", acl_enable=True, rocketmq_home=str(tmp_path)) as servers:
        send(servers, 5, ClientSettings(credentials=Credentials("the-account", SECRET)))
        source = spark.read.format("rocketmq").options(namesrv=servers.namesrv, topic="T", **account)
        frame = source.load()
        assert frame.count() == 5
        frame.explain(True)
        frame.groupBy("tags").count().explain("formatted")
        query = start(spark, servers, tmp_path, **account)
        query.awaitTermination(60)
        query.explain(True)
        reported = "".join(item.json for item in query.recentProgress)
        assert query.exception() is None
        assert '"numInputRows": 5' in reported
        with pytest.raises(Exception, match="AclException") as denied:
            source.option("secretKey", WRONG).option("retries", "0").load().collect()
        with pytest.raises(Exception, match="startingofset") as refused:
            source.option("startingOfset", "x").load().collect()
    out, err = capfd.readouterr()
    assert "Scan" in out or "Relation" in out
    outputs = {"out": out, "err": err, "progress": reported, "refused": str(refused.value), "denied": str(denied.value)}
    texts = {name: text.encode() for name, text in outputs.items()}
    assert leaks(texts | files_below(tmp_path / "checkpoint"), (SECRET, TOKEN, WRONG)) == []


ALONE = """
import sys
from ariane.pipeline.spark_session import get_or_create_session
spark = get_or_create_session("alone", "local[1]")
rows = spark.read.format("rocketmq").options(namesrv=sys.argv[1], topic="T").load().count()
print("rows", rows)
spark.stop()
"""


@pytest.mark.long("tests/spark/test_source_operations.py::test_discovery_packages_load_their_source_lazily")
def test_the_format_is_found_without_a_register_call(servers: LocalCluster) -> None:
    send(servers, 7)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, servers.namesrv], capture_output=True, text=True, timeout=120, check=False
    )
    assert "rows 7" in done.stdout, done.stderr[-3000:]


def test_discovery_packages_load_their_source_lazily() -> None:
    looked = (
        "import sys, pyspark_rocketmq, pyspark_rocketmq_store; assert 'ariane.spark.source' not in sys.modules; "
        "assert pyspark_rocketmq.DefaultSource.name() == 'rocketmq'; "
        "assert not hasattr(pyspark_rocketmq, 'other') and not hasattr(pyspark_rocketmq_store, 'other')"
    )
    done = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_zip_for_executors_is_all_that_the_connector_imports() -> None:
    """As on an executor, which has pyarrow and numpy, but not this package."""
    from ariane.pipeline.spark_session import package_zip

    program = """
import importlib, sys, zipfile
sys.path.insert(0, sys.argv[1])
names = [name.removesuffix(".py").replace("/", ".") for name in zipfile.ZipFile(sys.argv[1]).namelist()]
connector = ("ariane.spark.", "ariane.pipeline.publishing.object_files", "pyspark_rocketmq.", "pyspark_rocketmq_store.")
for name in names:
    if name.startswith(connector):
        importlib.import_module(name.removesuffix(".__init__"))
files = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "ariane"]
assert len(files) > 40
assert [file for file in files if not file.startswith(sys.argv[1])] == []
"""
    command = [sys.executable, "-c", program, str(package_zip())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_zip_for_executors_contains_the_connector() -> None:
    import zipfile

    from ariane.pipeline.spark_session import package_zip

    names = set(zipfile.ZipFile(package_zip()).namelist())
    assert names >= {"ariane/spark/source.py", "pyspark_rocketmq/__init__.py", "pyspark_rocketmq_store/__init__.py"}
    assert json.dumps(sorted(name for name in names if not name.endswith(".py"))) == "[]"
