"""Three members of a real etcd on 127.0.0.1, for tests: frozen, killed and started again."""

from __future__ import annotations

import http.client
import shutil
import signal
import ssl
import subprocess
import time
from pathlib import Path

from ariane.net.listening.fixed_ports import choose_free_port

PROGRAM = shutil.which("etcd")
REASON = "etcd is not installed (Debian: etcd-server)"
WAIT_S = 60.0


def free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(choose_free_port())
    return list(ports)


class EtcdMember:
    """A process of etcd."""

    def __init__(self, command: list[str], url: str, output: Path) -> None:
        self.url = url
        self.tls: ssl.SSLContext | None = None  # of its health check
        self._command = command
        self._output = output
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def is_healthy(self) -> bool:
        addr = self.url.partition("//")[2]
        connection = (
            http.client.HTTPSConnection(addr, timeout=2, context=self.tls)
            if self.tls
            else http.client.HTTPConnection(addr, timeout=2)
        )
        try:
            connection.request("GET", "/health")
            return connection.getresponse().read() == b'{"health":"true"}'
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class EtcdCluster:
    """The members, and their URLs."""

    def __init__(self, directory: Path, members: int = 3, *options: str, scheme: str = "http") -> None:
        assert PROGRAM is not None
        ports = free_ports(2 * members)
        peers = [f"http://127.0.0.1:{port}" for port in ports[:members]]
        self.urls = [f"{scheme}://127.0.0.1:{port}" for port in ports[members:]]
        cluster = ",".join(f"m{index}={peer}" for index, peer in enumerate(peers))
        self.members = []
        for index, (peer, url) in enumerate(zip(peers, self.urls, strict=True)):
            flags = {
                "name": f"m{index}",
                "data-dir": str(directory / f"m{index}"),
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "listen-client-urls": url,
                "advertise-client-urls": url,
                "initial-cluster": cluster,
            }
            command = [PROGRAM, *(f"--{name}={value}" for name, value in flags.items()), *options]
            self.members.append(EtcdMember(command, url, directory / f"m{index}.log"))

    def start(self) -> None:
        for member in self.members:
            member.start()
        self.wait_healthy()

    def wait_healthy(self) -> None:
        deadline = time.monotonic() + WAIT_S
        for member in self.members:
            while not member.is_healthy():
                assert time.monotonic() < deadline, f"{member.url} is not healthy"
                time.sleep(0.05)

    def stop(self) -> None:
        for member in self.members:
            member.kill()
