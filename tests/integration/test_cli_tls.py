"""Commands against a cluster whose addresses accept encrypted connections only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ariane.cli.main import app
from ariane.client.instance.settings import ClientSettings
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.testing import LocalCluster
from ariane.testing.server_thread import ServerThread

PUBLIC = "127.0.0.2"  # where the proxies listen; the servers listen on 127.0.0.1
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of the machine on Linux only")


@contextlib.asynccontextmanager
async def tls_proxy(context: ssl.SSLContext, target: str) -> AsyncIterator[str]:
    """Accept encrypted connections at the target's port of PUBLIC, and forward what they contain."""
    host, _, port = target.rpartition(":")
    connections: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, server_writer), copy(server_reader, writer))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    async with await asyncio.start_server(accept, PUBLIC, int(port), ssl=context):
        yield f"{PUBLIC}:{port}"
        for task in connections:
            task.cancel()


@pytest.fixture(scope="module")
def namesrv(certificate: tuple[Path, Path]) -> Iterator[str]:
    """Run a cluster behind proxies, and return the encrypted address of its name server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    thread, proxies = ServerThread(), contextlib.AsyncExitStack()
    with LocalCluster(broker_ip1=PUBLIC) as cluster:
        thread.start()
        try:
            assert cluster.broker.addr.startswith(PUBLIC)
            port = cluster.broker.addr.rpartition(":")[2]
            thread.run(proxies.enter_async_context(tls_proxy(context, f"127.0.0.1:{port}")))
            yield thread.run(proxies.enter_async_context(tls_proxy(context, cluster.namesrv)))
        finally:
            thread.run(proxies.aclose())
            thread.stop()


@pytest.fixture
def environment(namesrv: str, certificate: tuple[Path, Path]) -> dict[str, str]:
    return {
        "NAMESRV_ADDR": namesrv,
        "ARIANE_TLS": "true",
        "ARIANE_TLS_VERIFY": "ca",
        "ARIANE_TLS_CA_FILE": str(certificate[0]),
    }


def run(environment: dict[str, str], *arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", **environment})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def cat(environment: dict[str, str], *arguments: str, stdin: str = "") -> str:
    """Run `ariane cat`, which reads and writes the descriptors of its process."""
    command = [sys.executable, "-m", "ariane.cli", "cat", *arguments]
    done = subprocess.run(
        command,
        check=False,
        env={**os.environ, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_connect_with_tls(environment: dict[str, str], tmp_path: Path) -> None:
    run(environment, "topic", "create", "orders")
    run(environment, "topic", "create", "copies")
    cat(environment, "-P", "orders", stdin="created\npaid\n")
    run(environment, "message", "send", "orders", "shipped")  # by a client of an `Admin`
    assert sorted(cat(environment, "orders", "-e").split()) == ["created", "paid", "shipped"]
    run(environment, "replay", "--from-topic", "orders", "--topic", "copies", "--result", str(tmp_path / "r.jsonl"))
    assert len(cat(environment, "copies", "-e").split()) == 3
    run(environment, "doctor")
    assert "orders" in run(environment, "admin", "topicList").stdout
    assert "brokers 1" in run(environment, "collect", "--once").stdout


def test_benchmark_processes_connect_with_tls(environment: dict[str, str]) -> None:
    output = run(environment, "bench", "send", "-c", "100", "--json").stdout
    assert '"use_tls": true' in output
    assert "tls_ca_file" not in output


def test_the_exporter_connects_with_tls(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "ariane.cli", "exporter", "--port", "0"]
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        state, url = process.stdout.readline().split()
        assert state == "ready"
        with urllib.request.urlopen(url, timeout=60) as response:
            metrics = response.read().decode().splitlines()
        broker = next(line for line in metrics if line.startswith("ariane_broker_up{"))
        assert broker.endswith(" 1")
        assert f'addr="{PUBLIC}:' in broker
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_options_on_the_command_line(namesrv: str, certificate: tuple[Path, Path]) -> None:
    options = ("-n", namesrv, "--tls", "--tls-verify", "ca", "--tls-ca-file", str(certificate[0]))
    assert "broker-a" in run({}, "cluster", "status", *options).stdout
    java = ("-n", namesrv, "--useTls", "--tlsVerify", "false")
    assert "broker-a" in run({}, "admin", "clusterList", *java).stdout


def test_the_console_connects_with_tls(namesrv: str, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    client = ClientSettings(use_tls=True, tls_verify="ca", tls_ca_file=str(certificate[0]))
    settings = ConsoleSettings(namesrv=namesrv, data_dir=tmp_path, client=client)

    async def read() -> list[str]:
        async with open_services(settings) as services:
            snapshot = await services.live.snapshot(30)
            assert [server.broker for server in snapshot.brokers] == ["broker-a"]
            return [server.broker for server in await services.admin().select_brokers()]

    assert asyncio.run(read()) == ["broker-a"]
