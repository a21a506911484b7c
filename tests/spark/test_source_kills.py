"""Exactly once by the checkpoint alone: drivers and Python workers killed at random moments, and in the end the input's rows.

ARIANE_KILLS=300 ARIANE_SEED=1 pytest -s tests/spark/test_source_kills.py       the long form, about half an hour
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ariane.client import Producer
from ariane.model.message import Message
from ariane.testing.cluster import Servers, cluster_in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("ARIANE_KILLS", "6"))
SEED = int(os.environ.get("ARIANE_SEED", "0")) or time.time_ns() % 1_000_000
ROWS = 4000 + 800 * KILLS  # more than is read between the kills
MASTER = "local[2,4]"  # tasks are tried again, so that the loss of a worker alone ends no query

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300 + 20 * KILLS)]


def send(servers: Servers) -> None:
    async def work() -> None:
        async with Producer("P", servers.namesrv) as producer:
            for first in range(0, ROWS, 200):
                numbers = range(first, min(first + 200, ROWS))
                await asyncio.gather(*(producer.send(Message(topic="T", body=b"%d" % one)) for one in numbers))

    asyncio.run(work())


def descendants(pid: int) -> dict[int, str]:
    """Processes below `pid` and what each was started with."""
    parents, commands = {}, {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(directory.name)] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(directory.name)] = (directory / "cmdline").read_text().replace("\0", " ")
    found: dict[int, str] = {}
    layer = {pid}
    while layer:
        layer = {child for child, parent in parents.items() if parent in layer}
        found |= {child: commands.get(child, "") for child in layer}
    return found


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Driver:
    """A driver process in a session of its own."""

    def __init__(self, servers: Servers, home: Path, until: str) -> None:
        script = str(Path(__file__).with_name("killed_driver.py"))
        command = [sys.executable, script, servers.namesrv, str(home), MASTER, until]
        self._log = (home / "driver.log").open("ab")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True)
        self.started = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == b"started":
                self.started.set()

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
        self._reader.join(30)
        self._log.close()


@contextlib.contextmanager
def driver(servers: Servers, home: Path, until: str = "on") -> Iterator[Driver]:
    started = Driver(servers, home, until)
    try:
        yield started
    finally:
        started.close()


def test_rows_are_exactly_the_inputs_after_kills(spark: SparkSession, tmp_path: Path) -> None:
    print(f"seed {SEED}, {KILLS} kills, {ROWS} rows")
    chance = random.Random(SEED)
    killed: Counter[str] = Counter()
    with cluster_in_thread(tmp_path / "servers") as servers:
        send(servers)
        while killed.total() < KILLS:
            with driver(servers, tmp_path) as one:
                if chance.random() < 0.15:  # while it starts
                    time.sleep(chance.uniform(0, 5))
                else:
                    assert one.started.wait(90), (tmp_path / "driver.log").read_text()[-3000:]
                    # A worker is taken from a query that goes on, as a task is tried again; then its driver, too.
                    while killed.total() < KILLS - 1 and one.process.poll() is None and chance.random() < 0.5:
                        time.sleep(chance.uniform(0.2, 2.5))
                        workers = one.workers()
                        if workers:
                            kill(chance.choice(workers))
                            killed["worker"] += 1
                    time.sleep(chance.uniform(0.2, 2.5))
                one.kill()
                killed["driver"] += 1
        before = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
        with driver(servers, tmp_path, "rest") as one:
            assert one.process.wait(200) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    print(f"killed {dict(killed)}; {before} batches were committed on the way")
    assert before > 0
    assert Counter(int(row.body) for row in rows) == Counter(range(ROWS))
    assert len({(row.queue_id, row.queue_offset) for row in rows}) == ROWS
