"""The process that plans a stream for the optional jar speaks Spark's protocol. No socket, no JVM."""

from __future__ import annotations

import io
import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ariane.model.message import MessageQueue
from ariane.spark.read import planner_process, pull_client
from ariane.spark.read.offset_ranges import OffsetRange
from ariane.spark.read.pull_client import BlockingCluster, OffsetBounds
from ariane.spark.read.source_options import parse

OPTIONS = {"namesrv": "h:1", "topic": "T"}
A, B = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
END = {"from": {"T": {"a": {"0": 0}, "b": {"0": 0}}}, "to": {"T": {"a": {"0": 10}, "b": {"0": 30}}}}


class Servers(BlockingCluster):
    """Two queues with messages."""

    def __init__(self) -> None:
        super().__init__(parse(OPTIONS))

    def queues(self, *topics: str) -> list[MessageQueue]:
        return [A, B]

    def queue_bounds(self, queues: Any) -> dict[MessageQueue, Any]:
        return {A: OffsetBounds(0, 10, True), B: OffsetBounds(0, 30, True)}


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pull_client, "shared_cluster", lambda options: Servers())
    yield


def number(value: int) -> bytes:
    return struct.pack(">i", value)


def text(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
    return number(len(data)) + data


def served(options: dict[str, str], *calls: bytes) -> bytes:
    """Return the responses to a start with `options` and to `calls`."""
    start = [text("3.11"), text("/files"), number(1), text("added.zip"), text(options), text("{}"), number(10_000)]
    responses = io.BytesIO()
    planner_process.serve(io.BytesIO(b"".join([*start, *calls])), responses)
    return responses.getvalue()


def test_methods_have_the_numbers_of_spark() -> None:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from pyspark.sql.streaming import python_streaming_source_runner as spark

    assert (planner_process.INITIAL_OFFSET, planner_process.PARTITIONS) == (
        spark.INITIAL_OFFSET_FUNC_ID, spark.PARTITIONS_FUNC_ID,
    )  # fmt: skip
    assert (planner_process.COMMIT, planner_process.PREPARE_FOR_AVAILABLE_NOW) == (
        spark.COMMIT_FUNC_ID, spark.PREPARE_FOR_TRIGGER_AVAILABLE_NOW_FUNC_ID,
    )  # fmt: skip
    assert (planner_process.LATEST_OFFSET, planner_process.DEFAULT_READ_LIMIT) == (
        spark.LATEST_OFFSET_ADMISSION_CONTROL_FUNC_ID, spark.GET_DEFAULT_READ_LIMIT_FUNC_ID,
    )  # fmt: skip
    assert planner_process.REPORT_LATEST_OFFSET == spark.REPORT_LATEST_OFFSET_FUNC_ID
    assert planner_process.NO_ROWS == spark.PREFETCHED_RECORDS_NOT_FOUND


def test_a_query_is_planned() -> None:
    start, limit = {"initial": END["from"]}, {"_type": "ReadAllAvailable"}
    responses = served(
        OPTIONS,
        number(889), number(891), number(884), number(892),
        number(890) + text(start) + text(limit),
        number(892), number(886) + text(start) + text(END), number(887) + text(END),
    )  # fmt: skip
    ranges = [
        planner_process.PickledPartition(OffsetRange(A, 0, 10)),
        planner_process.PickledPartition(OffsetRange(B, 0, 30)),
    ]
    assert responses == b"".join(
        [
            number(0),  # started
            number(0), text(limit), text(start), number(0),
            text(END), text({"latest": END["to"]}),
            number(2), *(text(pickle.dumps(part)) for part in ranges), number(0),
            number(0),
        ]
    )  # fmt: skip


def test_tasks_get_partitions_of_spark() -> None:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from ariane.spark.read.partitions import QueuePartition

    partition = pickle.loads(pickle.dumps(planner_process.PickledPartition(OffsetRange(A, 0, 10))))
    assert isinstance(partition, QueuePartition)
    assert (partition.offset_range, partition.by_time) == (OffsetRange(A, 0, 10), False)


def test_limits_apply_unless_spark_asks_for_all() -> None:
    start = text({"initial": END["from"]})
    limited = {"_type": "ReadMaxRows", "max_rows": 4}
    responses = served({**OPTIONS, "maxOffsetsPerTrigger": "4"}, number(891), number(890) + start + text(limited))
    end = {"from": END["from"], "to": {"T": {"a": {"0": 1}, "b": {"0": 3}}}}
    assert responses == number(0) + text(limited) + text(end)


def test_an_error_of_the_user_has_no_traceback() -> None:
    responses = served({"namesrv": "h:1"})
    assert responses[:4] == number(-2)
    assert b"Traceback" not in responses
    assert b"expected exactly one of the options topic, topics, topicsPattern" in responses


def test_a_defect_has_a_traceback() -> None:
    responses = served(OPTIONS, number(893))
    assert responses[4:8] == number(-2)
    assert b"Traceback" in responses and b"unknown method 893" in responses


def test_the_process_imports_neither_spark_nor_arrow() -> None:
    """They would be most of its CPU time, for each query."""
    modules = "{'pyspark', 'pyarrow', 'numpy', 'asyncio'}"
    code = f"import sys, ariane.spark.read.planner_process; print({modules} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
