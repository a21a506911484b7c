"""Peers of RocketMQ 5, fetched once to ARIANE_PEERS_DIR (default ~/.cache/ariane/peers), and a process of Java's proxy."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

POM = Path(__file__).resolve().parents[1] / "benches" / "rocketmq5" / "pom.xml"
PROXY = "rocketmq-proxy-5.3.3"
JAVA_CLIENT = "rocketmq-client-java-5.2.0.jar"


def fetched(name: str, fetch: Callable[[Path], list[list[str]]]) -> Path:
    """Return the directory of a peer; the first test that needs it runs the commands that fetch it."""
    root = Path(os.environ.get("ARIANE_PEERS_DIR", Path.home() / ".cache" / "ariane" / "peers"))
    directory, done = root / name, root / name / "fetched"
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of pytest-xdist share it
        if not done.exists():
            for command in fetch(directory):
                if shutil.which(command[0]) is None:
                    pytest.skip(f"{command[0]} not found on the PATH")
                ended = subprocess.run(command, capture_output=True, text=True, check=False)
                if ended.returncode:
                    pytest.skip(f"cannot fetch {name}: {(ended.stderr or ended.stdout)[-200:]}")
            done.touch()
    return directory


def maven(pom: Path, directory: Path) -> list[str]:
    """Return the command that copies the dependencies of a project to a directory."""
    build = [f"-DoutputDirectory={directory}", f"-Dproject.build.directory={directory}/target"]
    return ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *build]


def proxy_jars() -> Path:
    """Return the directory of the jars of Java's proxy 5.3.3 and of the official client for Java."""
    if shutil.which("java") is None:
        pytest.skip("java not found on the PATH")
    return fetched(PROXY, lambda directory: [maven(POM, directory)])


class JavaProxyProcess:
    """A broker of 5.3.3 with its proxy in one process (local mode), with Java's defaults."""

    def __init__(self, home: Path, port: int, grpc_port: int, namesrv: str) -> None:
        broker = {
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "listenPort": port,
            "storePathRootDir": home / "store",
        }
        proxy = {
            "rocketMQClusterName": "DefaultCluster",
            "grpcServerPort": grpc_port,
            "remotingListenPort": grpc_port + 1,
            "enableTopicMessageTypeCheck": False,  # topics that declare no type accept all, as at our broker
        }
        (home / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in broker.items()))
        (home / "proxy.json").write_text(json.dumps(proxy))
        paths = ":".join(str(jar) for jar in sorted(proxy_jars().glob("*.jar")) if jar.name != JAVA_CLIENT)
        java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms512m", "-Xmx1g"]
        files = ["-n", namesrv, "-bc", str(home / "broker.conf"), "-pc", str(home / "proxy.json")]
        self._command = [*java, f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-cp", paths]
        self._command += ["org.apache.rocketmq.proxy.ProxyStartup", "-pm", "local", *files]
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._home / "output.log").open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output, cwd=self._home)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
