"""A Kafka broker (KRaft, one node) on a fresh directory, and the jars of Spark's Kafka source; fetched from Maven Central once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ariane.testing import java
from servers import HERE

POM = HERE / "kafka" / "pom.xml"
HEAP = ("-Xms1g", "-Xmx1g")  # as in kafka-server-start.sh
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
CONNECTOR_JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
START_S = 60.0


class KafkaBroker(NamedTuple):
    """A running broker."""

    addr: str
    pid: int


def fetch_jars() -> Path:
    """Return the directory of the jars."""
    root = Path(os.environ.get("ARIANE_PEERS_DIR", Path.home() / ".cache" / "ariane" / "peers"))
    jars = root / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}"
    if not (jars / "complete").exists():
        maven = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        subprocess.run([*maven, f"-Dproject.build.directory={jars / 'target'}"], check=True)
        (jars / "complete").touch()
    return jars


def connector_jars(jars: Path) -> list[Path]:
    """Return the jars that Spark needs in addition to its own."""
    return [path for path in sorted(jars.glob("*.jar")) if path.name.startswith(CONNECTOR_JARS)]


def versions(jars: Path) -> dict[str, str]:
    """Return the versions of broker and source."""
    names = [path.stem for path in jars.glob("*.jar")]
    prefixes = {"kafka": "kafka_2.13-", "spark-sql-kafka": "spark-sql-kafka-0-10_2.13-"}
    return {
        name: stem.removeprefix(prefix)
        for name, prefix in prefixes.items()
        for stem in names
        if stem.startswith(prefix)
    }


@contextlib.contextmanager
def started(jars: Path, place: Path, partitions: int) -> Iterator[KafkaBroker]:
    """Run a broker whose new topics have `partitions` partitions."""
    port, controller_port = java.free_port(), java.free_port()
    place.mkdir()
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "log.dirs": place / "logs",
        "num.partitions": partitions,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    config = place / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    command = ["java", *HEAP, "-cp", f"{jars}/*"]
    with (place / "output.log").open("w") as log:
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(config)]
        subprocess.run([*command, "kafka.tools.StorageTool", *arguments], check=True, stdout=log, stderr=log)
        process = subprocess.Popen([*command, "kafka.Kafka", str(config)], stdout=log, stderr=log)
    try:
        _wait_until_open(port, process)
        yield KafkaBroker(f"127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        process.wait(60)


def _wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise SystemExit(f"Kafka does not accept connections on port {port} after {START_S:.0f} s")
