"""All jobs and both connectors on a Spark cluster: a master and two workers without this package, which the driver ships.

The long form runs all jobs, with tables in an object store and in a directory.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import mixed_traffic

from ariane.cluster.admin import Admin
from ariane.pipeline.spark_session import java_fault
from ariane.reports import trace_lookup
from ariane.reports.tables import table_views
from ariane.tables import DELAYS, TRANSACTIONS
from ariane.tables.table_home import Home, object_home
from ariane.testing import LocalCluster
from ariane.testing.java import free_port

DRIVER_S = 400  # on a machine that is busy otherwise; alone it takes some forty

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(2 * DRIVER_S + 200),
    pytest.mark.skipif(java_fault() is not None, reason=f"Spark: {java_fault()}"),
]
# Master, workers and executors do little but start here.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def shared_classes() -> str:
    """Return the option for the class archive of all drivers (tests/spark_classes.py), if there is one."""
    options = os.environ.get("SPARK_SUBMIT_OPTS", "").split()
    return next((option for option in options if option.startswith("-XX:SharedArchiveFile=")), "")


@contextmanager
def spark_cluster(home: Path, workers: int) -> Iterator[str]:
    """Start a standalone cluster on 127.0.0.1 from the pip package. Yield the address of its master."""
    import pyspark

    # The driver sends credentials of the store to its tasks.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("AWS_")}
    env |= {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",  # also of the web pages, which otherwise listen on all addresses
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "JDK_JAVA_OPTIONS": f"{QUICK_JAVA} {shared_classes()}",
    }
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
            deadline = time.monotonic() + DRIVER_S
            while (home / "spark.log").read_text().count("Successfully registered with master") < workers:
                assert time.monotonic() < deadline, (home / "spark.log").read_text()[-2000:]
                time.sleep(0.2)
            yield master
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(30)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """Yield a directory, a name server with traffic and a Spark master."""
    home = tmp_path_factory.mktemp("cluster")
    with LocalCluster(home / "servers", **mixed_traffic.QUICK) as servers, spark_cluster(home, 2) as master:
        mixed_traffic.send(servers.namesrv, "A", plain=20)
        asyncio.run(made(servers.namesrv, "COPY"))
        yield home, servers.namesrv, master


async def made(namesrv: str, topic: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=4)


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=DRIVER_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(params=["store", "directory"])
def tables(request: pytest.FixtureRequest, place: tuple[Path, str, str], tmp_path: Path) -> Iterator[Home]:
    """Yield a place for tables."""
    if request.param == "directory":
        yield place[0] / "tables"
        return
    if importlib.util.find_spec("moto") is None:
        pytest.skip("needs moto: pip install 'moto[server]'")
    import object_store

    with object_store.object_store(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARIANE_HOME", str(tmp_path))  # of checkpoints
        yield object_home(f"s3://{object_store.BUCKET}/tables", tmp_path)


@pytest.mark.long(
    "tests/spark/test_source_operations.py::test_the_zip_for_executors_is_all_that_the_connector_imports",
    "tests/spark/test_object_store.py::test_a_job_writes_tables_that_commands_read",
)
def test_all_jobs_run_on_a_cluster(place: tuple[Path, str, str], tables: Home) -> None:
    _, namesrv, master = place
    where = ["--namesrv", namesrv, "--home", str(tables), "--master", master, "--once"]
    output = run("-m", "ariane.cli", "pipeline", "run", "all", *where)
    counts = {name: int(count) for name, count in re.findall(r"^(\w+) +rows (\d+) ", output, re.MULTILINE)}
    assert (counts["journeys"], counts["delays"], counts["transactions"]) == (22, 1, 1), output
    assert counts["consumption"] >= 1, output
    (row,) = trace_lookup.find_journeys(tables, key="A-plain-7").rows
    assert (row["consumer_group"], row["producer_group"], row["result"]) == ("G", "P", "success")
    with table_views.open_views(tables, table_views.whole_table(DELAYS), table_views.whole_table(TRANSACTIONS)) as sql:
        assert table_views.query(sql, "SELECT keys, state FROM delays") == [
            {"keys": "A-delayed-0", "state": "delivered"}
        ]
        (half,) = table_views.query(sql, "SELECT keys, decision, half_count FROM transactions")
    assert half == {"keys": "A-half-0", "decision": "commit", "half_count": 1}


@pytest.mark.long(
    "tests/spark/test_source_operations.py::test_the_zip_for_executors_is_all_that_the_connector_imports",
    "tests/spark/test_source.py::test_a_batch_reads_all_messages_with_all_columns",
)
def test_the_connector_reads_and_writes_and_reads_stores_on_executors(place: tuple[Path, str, str]) -> None:
    home, namesrv, master = place
    driver = Path(__file__).with_name("cluster_driver.py")
    result = json.loads(run(str(driver), master, namesrv, str(home / "servers" / "store")).splitlines()[-1])
    keys = sorted([*(f"A-plain-{number}" for number in range(20)), "A-delayed-0", "A-half-0"])
    assert result["read"] == result["copied"] == result["stored"] == keys
    assert result["damaged"] == 0
