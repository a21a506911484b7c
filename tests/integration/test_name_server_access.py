"""Each request code of a name server with access control × each kind of sender. The expected verdicts are in docs/access.md."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from test_access_table import REPLAYED, any_certificate, frame, responses

from ariane.broker.broker import Broker
from ariane.errors import ArianeError
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.request_permissions import REQUEST_NEEDS
from ariane.nameserver.server import NameServer
from ariane.net.connection import Connection
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import signing
from ariane.protocol.codes import RequestCode, code_name
from ariane.protocol.signing import Credentials
from ariane.testing.cluster_servers import broker_config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "access.md"
FILE = """
accounts:
- {accessKey: admin-account, secretKey: admin-secret, admin: true}
- {accessKey: broker-account, secretKey: broker-secret, brokers: [broker-a]}
- {accessKey: other-account, secretKey: other-secret, brokers: [broker-b], defaultTopicPerm: PUB|SUB}
"""
BROKER = Credentials("broker-account", "broker-secret")
Connect = Callable[[Credentials | None], Awaitable[Connection]]
SENDERS: dict[str, Credentials | None] = {
    "anonymous": None,
    "wrong signature": Credentials("admin-account", "another-secret"),
    "broker-a": BROKER,
    "broker-b": Credentials("other-account", "other-secret"),
    "admin": Credentials("admin-account", "admin-secret"),
}
COLUMNS = ("anonymous", "wrong signature", REPLAYED, *list(SENDERS)[2:])
HEADER = "| code | request | needs | " + " | ".join(COLUMNS) + " |"
FIELDS = {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:1", "clusterName": "C", "brokerId": "0", "topic": "orders"}
DENIED = "org.apache.rocketmq.acl.common.AclException: "


def config(home: Path, **settings: object) -> NameServerConfig:
    (home / "conf").mkdir(exist_ok=True)
    (home / "conf" / "plain_acl.yml").write_text(FILE)
    paths = {"kv_config_path": str(home / "kv.json"), "rocketmq_home": str(home)}
    return NameServerConfig(listen_port=0, acl_enable=True, **paths, **settings)  # type: ignore[arg-type]


def frames_of(sender: Credentials | None) -> list[bytes]:
    return [frame(sender, code, FIELDS, b"", code) for code in REQUEST_NEEDS]


async def served(server: NameServer, tls: ssl.SSLContext | None, frames: list[bytes]) -> set[int]:
    """Return the codes of the requests that a name server serves."""
    received = await responses(server.port, tls, frames)
    return {code for code, response in received.items() if not (response.remark or "").startswith(DENIED)}


def verdicts(home: Path, tls: ssl.SSLContext | None = None, **settings: object) -> dict[str, set[int]]:
    async def work() -> dict[str, set[int]]:
        async with NameServer(config(home, **settings)) as server:
            by_sender = {name: await served(server, tls, frames_of(sender)) for name, sender in SENDERS.items()}
            # Served above as the admin's: the same bytes.
            return by_sender | {REPLAYED: await served(server, tls, frames_of(SENDERS["admin"]))}

    return asyncio.run(work())


@pytest.mark.parametrize("tls", [None, any_certificate()], ids=["port", "TLS"])
def test_each_request_is_served_and_denied_as_the_page_says(tls: ssl.SSLContext | None, tmp_path: Path) -> None:
    by_sender = verdicts(tmp_path, tls)
    lines = [
        f"| {code} | {code_name(code)} | {REQUEST_NEEDS[code].text} | "
        + " | ".join("yes" if code in by_sender[name] else "" for name in COLUMNS)
        + " |"
        for code in sorted(REQUEST_NEEDS)
    ]
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert HEADER in page, f"print {HEADER} and the lines into {PAGE.name}"
    start = page.index(HEADER) + 2
    assert page[start : start + len(lines)] == lines, "print these lines, if they are right:\n" + "\n".join(lines)


def test_reads_need_an_account_by_choice(tmp_path: Path) -> None:
    by_sender = verdicts(tmp_path, acl_read_enable=True)
    assert by_sender["anonymous"] == by_sender["wrong signature"] == set()
    assert RequestCode.GET_ROUTEINFO_BY_TOPIC in by_sender["broker-b"]
    assert by_sender["admin"] == set(REQUEST_NEEDS)


@pytest.mark.parametrize(("name", "is_registered"), [("broker-a", True), ("broker-c", False)])
def test_a_broker_signs_its_registrations(
    name: str, is_registered: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "secret").write_text("broker-secret\n")

    async def work() -> bool:
        async with NameServer(config(tmp_path)) as server:
            account = {"access_key": BROKER.access_key, "secret_key_file": str(tmp_path / "secret")}
            settings = broker_config(tmp_path / name, server.addr, broker_name=name, **account)
            async with Broker(settings):
                was_registered = name in server.routes.clusters().broker_addr_table
            assert server.routes.clusters().broker_addr_table == {}
            return was_registered

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(work()) is is_registered
    assert ("broker:broker-c" in caplog.text) is not is_registered
    assert "broker-secret" not in caplog.text


def test_an_unsigned_broker_is_not_registered(tmp_path: Path) -> None:
    async def work() -> None:
        async with NameServer(config(tmp_path)) as server, Broker(broker_config(tmp_path / "store", server.addr)):
            assert server.routes.clusters().broker_addr_table == {}

    asyncio.run(work())


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"access_key": "broker-account"}, "needs one of"),
        ({"secret_key": "broker-secret"}, "accessKey"),
        (
            {"access_key": "broker-account", "secret_key": "broker-secret", "secret_key_file": "f"},
            "expected one of them",
        ),
        ({"access_key": "broker-account", "secret_key_variable": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE"),
    ],
)
def test_an_account_needs_one_secret_key(settings: dict[str, str], word: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with Broker(broker_config(tmp_path / "store", "", **settings)):
            pass

    with pytest.raises(ArianeError, match=word) as caught:
        asyncio.run(work())
    assert "broker-secret" not in str(caught.value)


# --- limits per account ---


def with_limits(home: Path, limits: dict[str, int], work: Callable[[NameServer, Connect], Awaitable[None]]) -> None:
    """Run a name server; `Connect` opens a connection of a sender."""

    async def run() -> None:
        async with NameServer(config(home, **limits)) as server, contextlib.AsyncExitStack() as stack:

            async def connect(sender: Credentials | None) -> Connection:
                sign = functools.partial(signing.sign, sender) if sender else None
                return await (await stack.enter_async_context(ConnectionPool(sign=sign))).connect(server.addr)

            await work(server, connect)

    asyncio.run(run())


async def read(connection: Connection) -> tuple[int, str]:
    """Return code and remark of a read that everybody may make."""
    response = await connection.request(RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=30_000)
    return response.code, response.remark or ""


OTHER = SENDERS["broker-b"]
FORGED = Credentials("broker-account", "another-secret")
OVER_CONNECTIONS = (2, "[QUOTA]accountConnectionsMax: account broker-account has 1 connections, 1 are allowed")


def test_connections_of_an_account_are_limited_in_reads_and_other_requests(tmp_path: Path) -> None:
    async def work(server: NameServer, connect: Connect) -> None:
        first, second = await connect(BROKER), await connect(BROKER)
        assert (await read(first))[0] == 0
        assert await read(second) == OVER_CONNECTIONS
        response = await second.request(RequestCode.GET_NAMESRV_CONFIG, timeout_ms=30_000)
        assert (response.code, response.remark) == OVER_CONNECTIONS
        for sender in (None, FORGED, OTHER):
            assert (await read(await connect(sender)))[0] == 0
        assert server.connections.limits.quotas.exceeded["accountConnectionsMax"] == 2
        server.connections.limits.quotas.set_limits({"accountConnectionsMax": 2})
        assert (await read(second))[0] == 0

    with_limits(tmp_path, {"account_connections_max": 1}, work)


@pytest.mark.usefixtures("untimed_ticks")
def test_requests_of_an_account_are_limited_on_all_its_connections(tmp_path: Path) -> None:
    async def work(server: NameServer, connect: Connect) -> None:
        first, second = await connect(BROKER), await connect(BROKER)
        burst = [first.request_nowait(RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=30_000) for _ in range(100)]
        assert {(await answer).code for answer in burst} == {0, 2}
        assert (await read(second))[0] == 0  # its account is not known before
        code, remark = await read(second)
        assert code == 2
        assert remark.startswith("[QUOTA]accountRequestsPerSecond: account broker-account has ")
        assert (await read(await connect(OTHER)))[0] == 0

    with_limits(tmp_path, {"account_requests_per_second": 1}, work)


def test_an_account_is_charged_only_for_requests_that_it_has_signed(tmp_path: Path) -> None:
    async def work(server: NameServer, connect: Connect) -> None:
        forged, anonymous = await connect(FORGED), await connect(None)
        for connection in (forged, anonymous):
            for _ in range(3):
                await read(connection)
                await connection.request(RequestCode.GET_NAMESRV_CONFIG, timeout_ms=30_000)
        assert (await read(await connect(BROKER)))[0] == 0

    with_limits(tmp_path, {"account_connections_max": 1, "account_requests_per_second": 2}, work)
