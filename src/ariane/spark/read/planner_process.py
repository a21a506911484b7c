"""The process that plans a stream of Spark with the optional jar: `python -m ariane.spark.read.planner_process`.

Spark's own program for this imports pyspark, pyarrow and the source, most of its CPU time, and runs for each query. This one speaks
the same protocol: the JVM (PythonStreamingSourceRunner) sends the number of a method and its arguments, and gets its result or an
error. The command that Spark sends first, a pickled source there, is the options as JSON here (`pruning/ColumnarReading.java`).
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

from ariane.errors import ArianeError
from ariane.spark.read import planning
from ariane.spark.read.micro_batch_planner import MicroBatchPlanner
from ariane.spark.read.offset_ranges import OffsetRange
from ariane.spark.read.source_options import parse

# Numbers of methods and results, as in `pyspark.sql.streaming.python_streaming_source_runner`.
INITIAL_OFFSET = 884
PARTITIONS = 886
COMMIT = 887
PREPARE_FOR_AVAILABLE_NOW = 889
LATEST_OFFSET = 890
DEFAULT_READ_LIMIT = 891
REPORT_LATEST_OFFSET = 892
DONE = NO_VALUE = NO_ROWS = 0
ERROR = -2
_INT = struct.Struct(">i")


class PickledPartition(NamedTuple):
    """A range that a task gets as a partition of Spark, whose class imports pyspark."""

    offset_range: OffsetRange

    def __reduce__(self) -> tuple[Callable[[OffsetRange], object], tuple[OffsetRange]]:
        return planning.queue_partition, (self.offset_range,)


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    """Serve the requests of a query until Spark closes the connection, or a method fails."""
    try:
        _receive(requests)  # the version of Python
        _receive(requests)  # the directory of added files, which are in the path already
        for _ in range(_receive_int(requests)):
            _receive(requests)
        options = _receive_json(requests)
        _receive(requests)  # the schema
        _receive_int(requests)  # the size of a batch
        planner = MicroBatchPlanner(parse(options))
        responses.write(_INT.pack(DONE))
        responses.flush()
        while number := requests.read(_INT.size):
            (method,) = _INT.unpack(number)
            responses.write(_call(planner, method, requests))
            responses.flush()
    except Exception as error:  # noqa: BLE001  # Spark reports it
        is_expected = isinstance(error, ArianeError)  # its message says what is wrong, and what to do
        lines = traceback.format_exception_only(error) if is_expected else traceback.format_exception(error)
        responses.write(_INT.pack(ERROR) + _with_size("".join(lines).encode()))
        responses.flush()


def _call(planner: MicroBatchPlanner, method: int, requests: BinaryIO) -> bytes:
    """Call a method with the arguments that follow, and return its encoded result."""
    if method == INITIAL_OFFSET:
        return _json(planner.initial_offset())
    if method == LATEST_OFFSET:
        start, limit = _receive_json(requests), _receive_json(requests)
        return _json(planner.latest_offset(start, is_limited=limit["_type"] != "ReadAllAvailable"))
    if method == DEFAULT_READ_LIMIT:
        return _json(planner.read_limit())
    if method == REPORT_LATEST_OFFSET:
        report = planner.report_latest_offset()
        return _INT.pack(NO_VALUE) if report is None else _json(report)
    if method == PREPARE_FOR_AVAILABLE_NOW:
        planner.prepare_for_available_now()
        return _INT.pack(DONE)
    if method == PARTITIONS:
        _receive(requests)  # the start, which the end contains
        ranges = planner.ranges(_receive_json(requests))
        partitions = [_with_size(pickle.dumps(PickledPartition(offset_range))) for offset_range in ranges]
        return b"".join([_INT.pack(len(partitions)), *partitions, _INT.pack(NO_ROWS)])
    if method == COMMIT:
        _receive(requests)  # Spark's checkpoint has the offset, and the planner commits those of the group earlier
        return _INT.pack(DONE)
    raise NotImplementedError(f"unknown method {method}: the jar does not support this version of Spark")


def _receive(requests: BinaryIO) -> bytes:
    return requests.read(_receive_int(requests))


def _receive_int(requests: BinaryIO) -> int:
    number: int = _INT.unpack(requests.read(_INT.size))[0]
    return number


def _receive_json(requests: BinaryIO) -> Any:
    return json.loads(_receive(requests))


def _json(value: Any) -> bytes:
    return _with_size(json.dumps(value).encode())


def _with_size(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _connect(path: str | None) -> socket.socket:
    """Connect to Spark at a Unix socket or, without one, at a port of this machine."""
    timeout_s = int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "15"))
    if path is None:
        host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "").lower() == "true" else "127.0.0.1"
        return socket.create_connection((host, int(os.environ["PYTHON_WORKER_FACTORY_PORT"])), timeout_s)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    connection.connect(path)
    return connection


def main() -> None:
    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    with (
        _connect(path) as connection,
        connection.makefile("rb") as requests,
        connection.makefile("wb") as responses,
    ):
        if path is None:  # others can connect to the port
            responses.write(_with_size(os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()))
            responses.flush()
            if (reply := _receive(requests)) != b"ok":
                raise ConnectionRefusedError(f"Spark answered {reply!r} instead of ok")
        connection.settimeout(None)
        responses.write(_INT.pack(os.getpid()))
        responses.flush()
        serve(requests, responses)


if __name__ == "__main__":
    main()
