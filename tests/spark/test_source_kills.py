"""Exactly once by the checkpoint alone: a Python worker and its driver are killed, and the result equals the input.

ARIANE_KILLS=300 ARIANE_SEED=1 pytest -s tests/spark/test_source_kills.py       the long form: at random moments, about half an hour
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ci_form
from ariane.client import Producer
from ariane.model.message import Message
from ariane.protocol.records import record
from ariane.testing import LocalCluster

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from ariane.spark.read import pull_client, queue_bounds
from ariane.spark.read.source_options import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = ci_form.number("ARIANE_KILLS", short=2, long=20)
WORKER_THEN_DRIVER = (
    10  # a seed: first a worker of a query that goes on, then its driver, both in the middle of a batch
)
SEED = int(os.environ.get("ARIANE_SEED", "0")) or (WORKER_THEN_DRIVER if KILLS == 2 else time.time_ns() % 1_000_000)
ROWS = 1000 + 300 * KILLS  # more than is read between the kills
BATCH_S = 90  # until a batch is done, with the start of a driver
REST_S = 240 + 2 * KILLS
MASTER = "local[2,4]"  # tasks are tried again, so that the loss of a worker alone ends no query

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300 + 20 * KILLS)]


def send(servers: LocalCluster) -> None:
    async def work() -> None:
        async with Producer(servers.namesrv, "P") as producer:
            for first in range(0, ROWS, 50):
                numbers = range(first, min(first + 50, ROWS))
                await asyncio.gather(*(producer.send(Message(topic="T", body=b"%d" % number)) for number in numbers))

    asyncio.run(work())


def stored(servers: LocalCluster) -> list[tuple[int, int, bytes]]:
    """Return queue, offset and body of each message stored by the broker."""
    cluster = pull_client.BlockingCluster(parse({"namesrv": servers.namesrv, "topic": "T"}))
    results = []
    for queue, end in queue_bounds.fetch_bounds(cluster, cluster.queues("T")).end.items():
        position = 0
        while position < end:
            for stored_record in record.decode_all(cluster.pull(queue, [position])[0].body):
                results.append((queue.queue_id, stored_record.queue_offset, stored_record.body))
                position = stored_record.queue_offset + 1
    cluster.close()
    assert len(results) >= ROWS
    return sorted(results)


def descendants(pid: int) -> dict[int, str]:
    """Return the descendants of `pid` with their command lines."""
    parents, commands = {}, {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(directory.name)] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(directory.name)] = (directory / "cmdline").read_text().replace("\0", " ")
    results: dict[int, str] = {}
    layer = {pid}
    while layer:
        layer = {child for child, parent in parents.items() if parent in layer}
        results |= {child: commands.get(child, "") for child in layer}
    return results


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def committed(home: Path) -> int:
    """Return the number of completed micro-batches."""
    return len(list((home / "checkpoint" / "commits").glob("[0-9]*")))


class Driver:
    """A driver process in its own session."""

    def __init__(self, servers: LocalCluster, home: Path, until: str) -> None:
        script = str(Path(__file__).with_name("killed_driver.py"))
        command = [sys.executable, script, servers.namesrv, str(home), MASTER, until]
        self._log = (home / "driver.log").open("ab")
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)
        self._home = home

    def goes_on(self) -> bool:
        """Wait for the next committed batch. Return False if the driver has exited, as it may without a worker."""
        before, ends_s = committed(self._home), time.monotonic() + BATCH_S
        while committed(self._home) == before and self.process.poll() is None:
            assert time.monotonic() < ends_s, self.told()
            time.sleep(0.02)
        return self.process.poll() is None

    def told(self) -> str:
        return (self._home / "driver.log").read_text(errors="replace")[-3000:]

    def workers(self) -> list[int]:
        return sorted(
            pid
            for pid, command in descendants(self.process.pid).items()
            if "pyspark" in command and "java" not in command
        )

    def kill(self) -> None:
        kill(self.process.pid, *descendants(self.process.pid))
        self.process.wait(30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._log.close()


@contextlib.contextmanager
def driver(servers: LocalCluster, home: Path, until: str = "on") -> Iterator[Driver]:
    started = Driver(servers, home, until)
    try:
        yield started
    finally:
        started.close()


@pytest.mark.long("tests/spark/test_source.py::test_an_uncommitted_batch_is_replayed_with_the_same_rows")
def test_rows_equal_the_input_after_kills(spark: SparkSession, tmp_path: Path) -> None:
    print(f"seed {SEED}, {KILLS} kills, {ROWS} rows")
    chance = random.Random(SEED)
    killed: Counter[str] = Counter()
    with LocalCluster(tmp_path / "servers") as servers:
        send(servers)
        given = stored(servers)
        while killed.total() < KILLS:
            with driver(servers, tmp_path) as item:
                if chance.random() < 0.25:  # while it starts
                    time.sleep(chance.uniform(0, 10))
                else:
                    # A worker is taken from a query that goes on, as a task is tried again; then its driver, too.
                    while item.goes_on() and killed.total() < KILLS - 1 and chance.random() < 0.5:
                        time.sleep(chance.uniform(0, 1.5))
                        workers = item.workers()
                        if workers:
                            kill(chance.choice(workers))
                            killed["worker"] += 1
                    time.sleep(chance.uniform(0, 1.5))
                item.kill()
                killed["driver"] += 1
        before = committed(tmp_path)
        with driver(servers, tmp_path, "rest") as item:
            assert item.process.wait(REST_S) == 0, item.told()
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    print(f"killed {dict(killed)}; {before} batches were committed on the way")
    assert before >= max(1, KILLS // 3)
    assert sorted((row.queue_id, row.queue_offset, bytes(row.body)) for row in rows) == given
