"""The trace job on a Spark cluster: a master and two workers that know nothing of this package get it from the driver."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ariane.admin import traces
from ariane.client import Producer, PushConsumer
from ariane.model.message import Message
from ariane.testing.cluster import cluster_in_thread
from ariane.testing.java import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ariane.model.message import ReceivedMessage

pytestmark = pytest.mark.spark


@contextmanager
def spark_cluster(home: Path, workers: int) -> Iterator[str]:
    """A standalone cluster on 127.0.0.1 from the pip package; its master's address."""
    import pyspark

    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}
    start = [str(Path(pyspark.__file__).parent / "bin" / "spark-class")]
    master = f"spark://127.0.0.1:{free_port()}"
    processes: list[subprocess.Popen[bytes]] = []
    with (home / "spark.log").open("wb") as log:

        def run(program: str, *args: str) -> None:
            command = [
                *start,
                f"org.apache.spark.deploy.{program}",
                "--host",
                "127.0.0.1",
                "--webui-port",
                str(free_port()),
            ]
            processes.append(subprocess.Popen([*command, *args], env=env, stdout=log, stderr=log, cwd=home))

        try:
            run("master.Master", "--port", master.rpartition(":")[2])
            for _ in range(workers):
                run("worker.Worker", "-c", "1", "-m", "1g", "--work-dir", str(home / "work"), master)
            deadline = time.monotonic() + 60
            while (home / "spark.log").read_text().count("Successfully registered with master") < workers:
                assert time.monotonic() < deadline, (home / "spark.log").read_text()[-2000:]
                time.sleep(0.2)
            yield master
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(30)


def test_traces_become_journeys_on_a_cluster(spark: SparkSession, tmp_path: Path) -> None:
    """`spark` only says whether Spark can run here: the job has a process of its own."""
    tables = tmp_path / "tables"
    with cluster_in_thread(tmp_path / "servers") as servers, spark_cluster(tmp_path, 2) as master:

        async def traffic() -> None:
            got: list[ReceivedMessage] = []

            async def listener(messages: Sequence[ReceivedMessage]) -> None:
                got.extend(messages)

            consumer = PushConsumer("G", servers.namesrv, {"T": "*"}, listener, start="first", trace=True)
            async with Producer("P", servers.namesrv, trace=True) as producer, consumer:
                for number in range(30):
                    await producer.send(Message(topic="T", body=b"x", keys=[f"K-{number}"]))
                while len(got) < 30:
                    await asyncio.sleep(0.05)

        asyncio.run(asyncio.wait_for(traffic(), 60))
        command = [sys.executable, "-m", "ariane.cli", "pipeline", "run", "trace", "--once", "--master", master]
        where = ["--namesrv", servers.namesrv, "--home", str(tables)]
        done = subprocess.run([*command, *where], capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stderr
        assert "rows 30 " in done.stdout
    (row,) = traces.find(tables, key="K-7").rows
    assert (row["consumer_group"], row["producer_group"], row["result"]) == ("G", "P", "success")
