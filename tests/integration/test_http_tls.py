"""TLS of HTTP ports: console, /metrics and exporter; SIGHUP."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs fastapi: pip install 'ariane[console]'")

from ariane.cli.servers.process import signals
from ariane.console.server.http_server import ConsoleServer
from ariane.console.settings import ConsoleSettings
from ariane.errors import ConfigError, UsageError
from ariane.metrics.families import Family
from ariane.metrics.serving.endpoint import MetricsEndpoint
from ariane.nameserver.config import NAME_SERVER_SETTINGS
from ariane.nameserver.server import NameServer
from ariane.net.listening.server_tls import ServerTls, ServerTlsOptions, TlsMode
from ariane.settings.http_tls import http_tls
from tls_files import TestAuthority, write_pair

GET_METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("authority"))


def trusting(authority: TestAuthority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.path))


def options(authority: TestAuthority, name: str, mode: TlsMode = "enforcing") -> ServerTlsOptions:
    return ServerTlsOptions(mode=mode, is_test=False, files=authority.files(name))


async def answer(port: int, request: bytes, tls: ssl.SSLContext | None) -> bytes:
    """Return the response; empty if the server closes the connection."""
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def common_name(port: int, tls: ssl.SSLContext) -> str:
    """Return the name in the certificate that a new connection presents."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="localhost")
    certificate = writer.get_extra_info("peercert")
    writer.close()
    return str(dict(pair for group in certificate["subject"] for pair in group)["commonName"])


def test_a_console_with_a_certificate_serves_https_only(authority: TestAuthority, tmp_path: Path) -> None:
    async def run() -> None:
        settings = ConsoleSettings(
            namesrv="127.0.0.1:1", data_dir=tmp_path, port=0, tls=options(authority, "console", "enforcing")
        )
        async with ConsoleServer(settings) as server:
            assert server.url.startswith("https://127.0.0.1:")
            port = int(server.url.rpartition(":")[2])
            get = b"GET /preferences?theme=dark HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n"
            page = await answer(port, get % b"localhost", trusting(authority))
            assert page.startswith(b"HTTP/1.1 303")
            assert b"; Secure" in page
            # Another program of this machine may serve plain HTTP at the same name.
            assert b"strict-transport-security" not in page
            public = await answer(port, get % b"console.example", trusting(authority))
            assert b"strict-transport-security: max-age=" in public
            assert await answer(port, get % b"localhost", None) == b""
            assert await common_name(port, trusting(authority)) == "console"
            pair = authority.issue("renewed")
            assert settings.tls
            write_pair(pair, Path(settings.tls.files.cert), Path(settings.tls.files.key))
            await server.reload()
            assert await common_name(port, trusting(authority)) == "renewed"

    asyncio.run(run())


def test_a_plain_console_has_no_secure_cookies(tmp_path: Path) -> None:
    async def run() -> None:
        async with ConsoleServer(ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path, port=0)) as server:
            get = b"GET /preferences?theme=dark HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            page = await answer(int(server.url.rpartition(":")[2]), get, None)
            assert page.startswith(b"HTTP/1.1 303")
            assert b"Secure" not in page and b"strict-transport" not in page

    asyncio.run(run())


class NoFamilies:
    async def families(self, timeout_s: float | None) -> Iterable[Family]:
        return ()


@pytest.mark.parametrize(("mode", "serves_plain"), [("permissive", True), ("enforcing", False)])
def test_the_mode_decides_what_metrics_ports_accept(
    authority: TestAuthority, mode: TlsMode, serves_plain: bool
) -> None:
    async def run() -> None:
        tls = ServerTls(options(authority, "metrics", mode))
        tls.load()
        async with MetricsEndpoint(NoFamilies(), "127.0.0.1", 0, tls=tls) as endpoint:
            assert endpoint.url.startswith("http://" if serves_plain else "https://")
            assert (await answer(endpoint.port, GET_METRICS, trusting(authority))).startswith(b"HTTP/1.1 200")
            assert (await answer(endpoint.port, GET_METRICS, None)).startswith(b"HTTP/1.1 200") is serves_plain

    asyncio.run(run())


def test_keys_of_servers_declare_the_tls_of_http_ports(authority: TestAuthority, tmp_path: Path) -> None:
    files = authority.files("declared")
    keys = {"tls.server.certPath": files.cert, "tls.server.keyPath": files.key}
    declared = http_tls(keys)
    assert declared and (declared.mode, declared.is_test, declared.files.cert) == ("enforcing", False, files.cert)
    assert http_tls({}) is None
    assert http_tls({**keys, "tls.server.mode": "disabled"}) is None
    permissive = http_tls({**keys, "tls.server.mode": "permissive"})
    assert permissive and permissive.mode == "permissive"
    test_mode = http_tls({"tls.test.mode.enable": "true"})
    assert test_mode and (test_mode.mode, test_mode.is_test) == ("enforcing", True)
    path = tmp_path / "tls.properties"
    path.write_text(f"tls.server.certPath={files.cert}\ntls.server.keyPath={files.key}\ntls.client.authServer=true\n")
    from_file = http_tls({"tls.config.file": str(path)})
    assert from_file and from_file.files.key == files.key
    for key in ("metricsPort", "tls.client.authServer", "tls.server.cert"):
        with pytest.raises(UsageError, match="expected one of tls.server.mode"):
            http_tls({key: "1"})
    with pytest.raises(ConfigError, match=r"tls\.server\.mode"):
        http_tls({"tls.server.mode": "on"})


def test_sighup_reloads_at_once(authority: TestAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = authority.files("namesrv")
    keys = {"tls.server.certPath": files.cert, "tls.server.keyPath": files.key, "bindAddress": "127.0.0.1"}
    config, _ = NAME_SERVER_SETTINGS.load(None, {**keys, "listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json")})
    stops: list[bool] = []
    reloads = 0

    async def run() -> None:
        async with NameServer(config) as server:
            read = server.tls._read

            def count(**arguments: bool) -> None:
                nonlocal reloads
                read(**arguments)
                reloads += 1

            monkeypatch.setattr(server.tls, "_read", count)
            async with signals.reload_on_hang_up(server.reload, lambda: stops.append(True)):
                os.kill(os.getpid(), signal.SIGHUP)
                while not reloads:  # the periodic check reads the files only if they have changed
                    await asyncio.sleep(0.01)
            with monkeypatch.context() as closed_terminal:
                closed_terminal.setattr(signals, "_has_terminal", iter((True, False)).__next__)
                async with signals.reload_on_hang_up(server.reload, lambda: stops.append(True)):
                    os.kill(os.getpid(), signal.SIGHUP)
                    while not stops:
                        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert (reloads, stops) == (1, [True])


def test_console_and_exporter_refuse_other_keys() -> None:
    from typer.testing import CliRunner

    from ariane.cli.main import app

    for command in ("console", "exporter"):
        with pytest.raises(UsageError, match="metricsPort"):
            CliRunner().invoke(app, [command, "-DmetricsPort=1"], catch_exceptions=False)
