"""Stores of tables for tests, on 127.0.0.1: moto's S3 (`object_store`), and HDFS of Hadoop's minicluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import object_store
from ariane.testing.java import free_port

STORES = [
    "s3",
    pytest.param(
        "hdfs",
        marks=pytest.mark.long(
            "tests/spark/test_object_store.py::test_a_job_writes_tables_that_commands_read",
            "tests/crash/test_table_kills.py::test_each_row_is_there_once_after_kills",
        ),
    ),
]
MINICLUSTER = "org.apache.hadoop:hadoop-client-minicluster"
START_S = 120


@contextlib.contextmanager
def table_store(kind: str, directory: Path) -> Iterator[str]:
    """Run a store of `STORES`. Yield the URI of its root."""
    if kind == "hdfs":
        with hdfs(directory) as uri:
            yield uri
        return
    pytest.importorskip("moto", reason="needs moto: pip install 'moto[server]'")
    with object_store.object_store():
        yield f"s3://{object_store.BUCKET}"


@contextlib.contextmanager
def hdfs(directory: Path) -> Iterator[str]:
    """Run a NameNode and a DataNode in a process of their own, with their files in a directory."""
    port = free_port()
    directory.mkdir(exist_ok=True)
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath()]
    command += ["org.apache.hadoop.mapreduce.MiniHadoopClusterManager", "-format", "-nomr", "-nnport", str(port)]
    # With the directory of the nodes none of its classes need JUnit.
    command += [f"-Dhdfs.minidfs.basedir={directory / 'nodes'}", "-writeConfig", str(directory / "started.xml")]
    with (directory / "hdfs.log").open("wb") as log:
        cluster = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not (directory / "started.xml").exists():  # written when the nodes are up
            assert cluster.poll() is None, (directory / "hdfs.log").read_text()[-2000:]
            assert time.monotonic() < deadline, (directory / "hdfs.log").read_text()[-2000:]
            time.sleep(0.1)
        yield f"hdfs://127.0.0.1:{port}"
    finally:
        cluster.kill()
        cluster.wait()


def classpath() -> str:
    """Return Spark's jars, which contain Hadoop's client, and its minicluster, fetched once; skip the test without Maven."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    (client,) = jars.glob("hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    cache = Path(os.environ.get("ARIANE_PEERS_DIR", Path.home() / ".cache" / "ariane" / "peers")) / f"hadoop-{version}"
    if not list(cache.glob("*.jar")):
        if shutil.which("mvn") is None:
            pytest.skip(f"needs Maven, which fetches {MINICLUSTER}: apt-get install maven")
        maven = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={MINICLUSTER}:{version}"]
        fetched = subprocess.run([*maven, f"-DoutputDirectory={cache}"], capture_output=True, text=True, check=False)
        if fetched.returncode:
            pytest.skip(f"Maven cannot fetch {MINICLUSTER}:{version}: {fetched.stdout.partition(chr(10))[0]}")
    return f"{jars}/*:{cache}/*"
