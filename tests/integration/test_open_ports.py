"""A server that other machines reach without protection is refused at its start, or says what is open."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import logging
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from ariane.access import public_ports
from ariane.broker.broker import Broker
from ariane.broker.lifecycle import ports
from ariane.cli.admin import http_check
from ariane.cluster.admin import Admin
from ariane.errors import ConfigError
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.listening.server_tls import CertificateFiles
from ariane.testing.cluster_servers import broker_config
from tls_files import TestAuthority


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers on loopback behave as if other machines reached them."""
    for module in (public_ports, ports):
        monkeypatch.setattr(module, "is_loopback", lambda address: False)


def notices(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "notice", False)]


def name_server(path: Path, **settings: object) -> NameServer:
    file = str(path / "kvConfig.json")
    return NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=file, **settings))  # type: ignore[arg-type]


async def started(path: Path, **settings: object) -> None:
    async with name_server(path, **settings):
        pass
    async with Broker(broker_config(path / "store", "", **settings)):
        pass


def test_servers_on_loopback_log_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        asyncio.run(started(tmp_path))
    assert notices(caplog) == []


@pytest.mark.usefixtures("public")
def test_servers_open_to_other_machines_are_refused(tmp_path: Path) -> None:
    async def start_name_server() -> None:
        async with name_server(tmp_path):
            pass

    async def start_broker() -> None:
        async with Broker(broker_config(tmp_path / "store", "")):
            pass

    with pytest.raises(ConfigError, match="anyone can register brokers"):
        asyncio.run(start_name_server())
    with pytest.raises(ConfigError, match="aclEnable=true"):
        asyncio.run(start_broker())
    assert not (tmp_path / "store").exists()


@pytest.mark.usefixtures("public")
def test_insecure_servers_say_what_is_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        asyncio.run(started(tmp_path, insecure=True))
    names, broker = notices(caplog)
    assert "register brokers" in names and "connections are plain" in names
    assert "delete messages" in broker and "replication port" in broker
    assert "\n" not in names + broker


@pytest.mark.usefixtures("public")
def test_the_doctor_finds_insecure_servers(tmp_path: Path) -> None:
    async def findings() -> dict[str, str]:
        async with name_server(tmp_path, insecure=True) as names:
            broker = Broker(broker_config(tmp_path / "store", names.addr, insecure=True))
            async with broker, Admin(names.addr) as cluster:
                found = [one for one in await cluster.diagnose() if one.check == "open ports"]
            return {one.subject: one.problem for one in found}

    broker, names = asyncio.run(findings()).values()
    assert "delete messages" in broker and "register brokers" in names


class Scripted(http.server.BaseHTTPRequestHandler):
    """A page for anyone at /metrics, and a redirect to the log-in elsewhere."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 303)
        self.send_header("Location", "/login")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def scripted_server(files: CertificateFiles | None = None, *, demands: bool = False) -> Iterator[str]:
    """Yield the address of a server, with TLS if it has files; `demands`: certificates of clients."""
    with http.server.HTTPServer(("127.0.0.1", 0), Scripted) as server:
        if files:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.cert, files.key)
            context.load_verify_locations(files.trust)
            context.verify_mode = ssl.CERT_REQUIRED if demands else ssl.CERT_NONE
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_the_doctor_finds_open_consoles_and_exporters(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_server() as address:
        check_open_ports(f"http://{address}", monkeypatch)
        (no_tls,) = http_check.check_http(f"https://{address}")
    assert (no_tls.level, "wrong version number" in no_tls.problem.lower()) == ("error", True)
    (silent,) = http_check.check_http(f"http://{address}")
    assert (silent.level, "does not respond" in silent.problem) == ("error", True)
    for text in ("10.0.0.8:8080", "ftp://h/", "http://", "http://h:x/"):
        with pytest.raises(typer.BadParameter, match="expected http://HOST:PORT/"):
            http_check.http_url(text)


def check_open_ports(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(http_check.check_http(f"{url}/metrics")) == []
    monkeypatch.setattr(http_check, "is_loopback", lambda address: False)
    (plain,) = http_check.check_http(url)
    assert (plain.level, plain.check, plain.problem) == (
        "warning", "http", "connections are plain, and other machines reach it",
    )  # fmt: skip
    _, readable = http_check.check_http(f"{url}/metrics")
    assert "no account or certificate is needed" in readable.problem


@pytest.mark.parametrize("demands", [False, True])
@pytest.mark.parametrize(
    ("days", "level", "problem"),
    [
        (40, "", ""),
        (12, "warning", "its TLS certificate expires in 11 days"),
        (-1, "error", "its TLS certificate has expired"),
    ],
)
def test_the_doctor_finds_certificates_of_consoles_and_exporters_that_expire(
    days: int, level: str, problem: str, demands: bool, tmp_path: Path
) -> None:
    with scripted_server(TestAuthority(tmp_path).files("http", days=days), demands=demands) as address:
        findings = list(http_check.check_http(f"https://{address}/metrics"))
    assert [(one.level, one.check, one.problem) for one in findings] == (
        [(level, "certificates", problem)] if level else []
    )
