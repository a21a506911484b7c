"""The Spark sink's tasks against a Java 4.9.4 broker: a Java client reads the rows, and duplicates are recognised."""

from __future__ import annotations

import asyncio
import base64
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

import pyarrow as pa
from interop_servers import RELEASES, mqadmin, pull_all

from ariane.client import PushConsumer
from ariane.client.duplicates.idempotent import Idempotent
from ariane.cluster.admin import Admin
from ariane.errors import ArianeError, ConnectionLost
from ariane.model import dedup
from ariane.model.message import ReceivedMessage
from ariane.spark.write import sink
from ariane.spark.write.sink_options import parse
from ariane.testing import java

PATIENCE_S = 60.0


def make_topic(namesrv: str, topic: str) -> None:
    async def work() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, queues=4)

    asyncio.run(work())


def write(namesrv: str, topic: str, rows: pa.RecordBatch, **options: str) -> sink.TaskCommit:
    sink_options = parse({"namesrv": namesrv, "topic": topic, **options})
    return sink.write_partition(iter([rows]), sink_options, "run-1", 0, 0)


def frame(count: int) -> pa.RecordBatch:
    numbers = range(count)
    return pa.record_batch(
        {
            "body": pa.array([b"large " * 2000 if number == 7 else b"%d" % number for number in numbers]),
            "keys": pa.array([f"ORDER-{number}" for number in numbers]),
            "tags": pa.array(["a" if number % 2 else None for number in numbers]),
            "ordering_key": pa.array([f"k{number % 5}" for number in numbers]),
            "properties": pa.array([[("n", str(number))] for number in numbers], pa.map_(pa.string(), pa.string())),
        }
    )


@pytest.mark.long(
    "tests/spark/test_sink.py::test_a_written_batch_is_read_back_with_all_columns",
    "tests/interop/test_client_against_java.py::test_java_reads_what_we_compress_and_send_over_tls",
)
def test_rows_written_to_a_java_broker_are_read_by_a_java_client(tmp_path: Path) -> None:
    with (
        java.name_server(tmp_path / "ns") as name_server,
        java.broker(tmp_path / "b", name_server.addr),
    ):
        make_topic(name_server.addr, "Rows")
        make_topic(name_server.addr, "Late")
        sent = write(name_server.addr, "Rows", frame(200), batchSize="9")
        assert (sent.messages, sent.retried) == (200, 0)
        result = pull_all(name_server.addr, "Rows")
        _same(result)
        _java_finds_by_unique_id(name_server.addr, result[3])
        _copies_are_left_out(name_server.addr)
        _a_time_is_not_known_to_4_9_4(name_server.addr)


@pytest.mark.long(
    "tests/spark/test_sink.py::test_a_written_batch_is_read_back_with_all_columns",
    "tests/interop/test_spark_on_java.py::test_permissive_servers_are_read_over_tls",
)
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_rows_are_written_over_tls(tmp_path: Path, release: java.JavaRelease) -> None:
    """Start servers with Java's default: plain and TLS on one port, with a generated certificate."""
    if reason := release.available():
        pytest.skip(f"Java peers: {reason}")
    with_tls = release.quick_start()
    with (
        release.name_server(tmp_path / "ns", jvm_args=with_tls) as name_server,
        release.broker(tmp_path / "b", name_server.addr, jvm_args=with_tls),
    ):
        make_topic(name_server.addr, "Rows")
        encrypted = {"useTls": "true", "tlsVerify": "false"}
        assert write(name_server.addr, "Rows", frame(200), batchSize="9", **encrypted).messages == 200
        _same(pull_all(name_server.addr, "Rows"))
        with pytest.raises(ConnectionLost, match="certificate verify failed.*tlsVerify"):
            write(name_server.addr, "Rows", frame(2), useTls="true", retries="0")


def _same(found: list[dict[str, Any]]) -> None:
    by_number = {item["properties"]["n"]: item for item in found}
    assert len(found) == len(by_number) == 200
    queues: dict[str, set[int]] = {}
    for number, (body, tag) in enumerate(
        zip(frame(200)["body"].to_pylist(), frame(200)["tags"].to_pylist(), strict=True)
    ):
        item = by_number[str(number)]
        properties = item["properties"]
        assert base64.b64decode(item["body"]) == body
        assert (properties.get("TAGS"), properties["KEYS"]) == (tag, f"ORDER-{number}")
        assert dedup.parse(properties["ARIANE_DEDUP"]) == dedup.Row("run-1", 0, 0, number)
        assert item["msgId"] == properties["UNIQ_KEY"]
        queues.setdefault(f"k{number % 5}", set()).add(item["queueId"])
    assert all(len(some) == 1 for some in queues.values())


def _java_finds_by_unique_id(namesrv: str, one: dict[str, Any]) -> None:
    """mqadmin searches from the time encoded in the id."""
    (shown,) = mqadmin(namesrv, f"queryMsgByUniqueKey -t Rows -i {one['msgId']}")
    assert f"ARIANE_DEDUP={one['properties']['ARIANE_DEDUP']}" in shown
    assert f"[{one['key']}]" in shown


def _copies_are_left_out(namesrv: str) -> None:
    """The task runs twice; the consumer receives each row once."""
    write(namesrv, "Rows", frame(200), batchSize="50")
    given: list[str] = []

    async def listener(messages: list[ReceivedMessage]) -> None:
        given.extend(message.properties["n"] for message in messages)

    async def work() -> None:
        once = Idempotent(listener)
        async with PushConsumer(namesrv, "G", {"Rows": "*"}, once, start="first"), asyncio.timeout(PATIENCE_S):
            while len(given) + once.skipped < 400:
                await asyncio.sleep(0.05)

    asyncio.run(work())
    assert sorted(map(int, given)) == list(range(200))


def _a_time_is_not_known_to_4_9_4(namesrv: str) -> None:
    """A Java 4.9.4 broker would deliver immediately, and stores the property."""
    due = datetime.now(UTC) + timedelta(hours=1)
    rows = pa.record_batch({"body": pa.array([b"x"]), "deliver_at": pa.array([due], pa.timestamp("us", "UTC"))})
    with pytest.raises(ArianeError, match="would deliver it immediately"):
        write(namesrv, "Late", rows)
    write(namesrv, "Late", rows, checkTimers="false")
    (item,) = pull_all(namesrv, "Late")
    assert item["properties"]["__STARTDELIVERTIME"] == str(int(due.timestamp() * 1000))
    assert item["storeTimestamp"] < time.time() * 1000
