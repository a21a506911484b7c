"""Each limit of a broker and a name server, in total, per address and per account: set, exceeded, answered and counted."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BROKER_SETTINGS
from ariane.cli.servers.process import metrics_endpoint
from ariane.errors import ConnectionLost
from ariane.metrics.serving.endpoint import MetricsSource
from ariane.nameserver.config import NAME_SERVER_SETTINGS, NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.connection import Connection
from ariane.net.limits.quotas import LIMIT_KEYS, QUOTA, Quotas, ResourceName, Scope
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import command as commands
from ariane.protocol import fastjson, signing
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.frame import FRAME_MAX
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from ariane.protocol.requests.messaging import SUBSCRIPTION, PullMessage, SendMessage
from ariane.protocol.requests.routing import KvNamespace, PutKv
from ariane.protocol.signing import Credentials
from ariane.settings.schema import SettingsSchema
from ariane.testing.cluster_servers import broker_config

pytestmark = pytest.mark.usefixtures("untimed_ticks")

OPERATOR = Credentials("the-operator", "operator-secret")
CLIENT = Credentials("the-client", "client-secret")
FILE = """
accounts:
- {accessKey: the-operator, secretKey: operator-secret, admin: true}
- {accessKey: the-client, secretKey: client-secret, admin: true}
"""
LARGE = 700_000  # bytes of a large response at least
NUMBERS = itertools.count()  # of topics and groups, which are created once


class Server(NamedTuple):
    """A server whose limits a test exceeds."""

    addr: str
    quotas: Quotas
    settings: SettingsSchema[Any]
    change: int
    """Code of the request that changes settings."""
    small: tuple[int, Mapping[str, str]]
    large: tuple[int, Mapping[str, str]]
    """A request whose response has LARGE bytes."""
    source: MetricsSource
    operator: Connection

    async def set(self, key: str, value: int) -> None:
        response = await self.operator.request(self.change, None, f"{key}={value}".encode(), timeout_ms=30_000)
        assert response.code == 0, response.remark


@contextlib.asynccontextmanager
async def broker(home: Path) -> AsyncIterator[Server]:
    settings = broker_config(
        home / "store", "", acl_enable=True, rocketmq_home=str(home), mapped_file_size_commit_log=8 << 20
    )
    async with Broker(settings) as started, connection(started.addr, OPERATOR) as operator:
        send = encode_header(SendMessage("P", "T", "TBW102", 1, 0, 0, 1, 0))
        assert (await operator.request(RequestCode.SEND_MESSAGE_V2, send, bytes(LARGE), timeout_ms=30_000)).code == 0
        pull = encode_header(PullMessage("G", "T", 0, 0, 1, SUBSCRIPTION, subscription="*"))
        yield Server(
            started.addr, started.services.server.limits.quotas, BROKER_SETTINGS, RequestCode.UPDATE_BROKER_CONFIG,
            (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}), (RequestCode.PULL_MESSAGE, pull),
            metrics_endpoint.broker_source(started), operator,
        )  # fmt: skip


@contextlib.asynccontextmanager
async def name_server(home: Path) -> AsyncIterator[Server]:
    paths = {"kv_config_path": str(home / "kv.json"), "rocketmq_home": str(home)}
    config = NameServerConfig(listen_port=0, acl_enable=True, **paths)  # type: ignore[arg-type]
    async with NameServer(config) as started, connection(started.addr, OPERATOR) as operator:
        for number in range(15):
            put = encode_header(PutKv("N", f"K{number}", "v" * (LARGE // 14)))
            assert (await operator.request(RequestCode.PUT_KV_CONFIG, put, timeout_ms=30_000)).code == 0
        yield Server(
            started.addr, started.connections.limits.quotas, NAME_SERVER_SETTINGS, RequestCode.UPDATE_NAMESRV_CONFIG,
            (RequestCode.GET_BROKER_CLUSTER_INFO, {}),
            (RequestCode.GET_KVLIST_BY_NAMESPACE, encode_header(KvNamespace("N"))),
            metrics_endpoint.name_server_source(started), operator,
        )  # fmt: skip


@contextlib.asynccontextmanager
async def connection(addr: str, account: Credentials = CLIENT) -> AsyncIterator[Connection]:
    async with ConnectionPool(sign=functools.partial(signing.sign, account)) as pool:
        yield await pool.connect(addr)


# --- how each limit is exceeded; the responses that may be refusals ---


async def connect_twice(server: Server, limit: int) -> list[Command]:
    with contextlib.suppress(ConnectionLost):  # in total and per address
        async with connection(server.addr) as first, connection(server.addr) as second:
            return [await each.request(*server.small, timeout_ms=30_000) for each in (first, second)]
    return []


async def request_often(server: Server, limit: int) -> list[Command]:
    async with connection(server.addr) as client:
        await client.request(*server.small, timeout_ms=30_000)  # identifies the account
        requests = [client.request_nowait(*server.small, timeout_ms=30_000) for _ in range(10 * limit)]
        return await asyncio.gather(*requests)


async def send_much(server: Server, limit: int) -> list[Command]:
    """Send a second more than the limit: a busy machine receives it slowly, and the rate allows for that."""
    async with connection(server.addr) as client:
        await client.request(*server.small, timeout_ms=30_000)
        return [await client.request(*server.small, bytes(2 * limit), timeout_ms=30_000)]


async def receive_much(server: Server, limit: int) -> list[Command]:
    async with connection(server.addr) as client:
        response = await client.request(*server.large, timeout_ms=30_000)
        assert len(response.body) > limit
        return [response]


async def create_topics(server: Server, limit: int) -> list[Command]:
    headers = [encode_header(CreateTopic(f"T{next(NUMBERS)}", "TBW102", 1, 1, 6)) for _ in range(limit + 1)]
    async with connection(server.addr) as client:
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        return [await client.request(code, header, timeout_ms=30_000) for header in headers]


async def create_groups(server: Server, limit: int) -> list[Command]:
    bodies = [b'{"groupName":"G%d"}' % next(NUMBERS) for _ in range(limit + 1)]
    async with connection(server.addr) as client:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return [await client.request(code, None, body, timeout_ms=30_000) for body in bodies]


async def subscribe(server: Server, limit: int) -> list[Command]:
    topics = tuple(SubscriptionData(topic=f"S{number}") for number in range(limit + 1))
    heartbeat = HeartbeatData("C", (ConsumerData(group_name="G", subscription_data_set=topics),))
    async with connection(server.addr) as client:
        return [await client.request(RequestCode.HEART_BEAT, None, fastjson.write(heartbeat), timeout_ms=30_000)]


async def withhold_frames(server: Server, limit: int) -> list[Command]:
    """Leave two frames unfinished: the connection of the older one is reset."""
    async with stream(server) as (oldest, first), stream(server) as (_, second):
        for writer in (first, second):
            writer.write(request(*server.small, bytes(limit * 6 // 10))[:-1])
            await writer.drain()
        with pytest.raises(ConnectionResetError):
            await oldest.read()
    return []


async def leave_unread(server: Server, limit: int) -> list[Command]:
    """Request more than the buffers of the system hold, and read nothing."""
    exceeded = sum(server.quotas.exceeded.values())
    async with stream(server) as (_, writer):
        writer.write(request(*server.large) * 40)
        while sum(server.quotas.exceeded.values()) == exceeded:
            await asyncio.sleep(0.01)
    return []


@contextlib.asynccontextmanager
async def stream(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect, and make one request, which identifies the account."""
    reader, writer = await asyncio.open_connection(*server.addr.split(":"))
    try:
        writer.write(request(*server.small))
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        yield reader, writer
    finally:
        writer.transport.abort()


def request(code: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    return b"".join(commands.encode(code, opaque=1, flag=0, fields=signing.sign(CLIENT, fields, body), body=body))


class Case(NamedTuple):
    """A resource, and what exceeds its limits."""

    limit: int
    exceed: Callable[[Server, int], Awaitable[list[Command]]]
    code: int = 0
    """Of refusals; 0: without an answer."""
    is_traffic: bool = True
    """Whether name servers have these limits, too."""


CASES: dict[ResourceName, Case] = {
    "connections": Case(1, connect_twice, ResponseCode.SYSTEM_BUSY),
    "requests": Case(100, request_often, ResponseCode.SYSTEM_BUSY),
    "bytes_in": Case(1_000_000, send_much),
    "bytes_out": Case(500_000, receive_much),
    "topics": Case(1, create_topics, ResponseCode.SYSTEM_ERROR, is_traffic=False),
    "groups": Case(1, create_groups, ResponseCode.SYSTEM_ERROR, is_traffic=False),
    "queues": Case(1, create_topics, ResponseCode.SYSTEM_ERROR, is_traffic=False),
    "subscriptions": Case(1, subscribe, ResponseCode.SYSTEM_ERROR, is_traffic=False),
    "unfinished": Case(100_000, withhold_frames),
    "unread": Case(20_000, leave_unread),
}


@pytest.mark.parametrize("run_server", [broker, name_server])
def test_each_limit_is_changed_exceeded_answered_and_counted(
    run_server: Callable[[Path], contextlib.AbstractAsyncContextManager[Server]], tmp_path: Path
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(FILE)

    async def work() -> None:
        async with run_server(tmp_path) as server:
            for (scope, resource), key in LIMIT_KEYS.items():
                if run_server is broker or CASES[resource].is_traffic:
                    await exceed(server, scope, resource, key)
                else:
                    assert key not in server.settings.settings

    asyncio.run(asyncio.wait_for(work(), 120))


async def exceed(server: Server, scope: Scope, resource: ResourceName, key: str) -> None:
    case, default = CASES[resource], int(server.settings.settings[key].default_text)
    limit = FRAME_MAX if key == "serverUnfinishedMax" else case.limit  # one frame has to fit
    await server.set(key, limit)
    refusals = [response for response in await case.exceed(server, limit) if response.code]
    # A connection in total or of an address is reset before it can be answered.
    is_answered = case.code and (resource, scope) not in {("connections", "server"), ("connections", "address")}
    assert bool(refusals) == bool(is_answered), key
    for refusal in refusals:
        assert refusal.code == case.code
        assert (refusal.remark or "").startswith(f"{QUOTA}{key}: "), refusal.remark
    assert [name for name, times in server.quotas.exceeded.items() if times] == [key]
    samples = {
        metric.name.partition("_limit")[2]: value
        for metric, family in await server.source.families(None)
        if "_limit" in metric.name
        for labels, value in family
        if labels[-1] == key
    }
    assert samples.keys() == {"", "_used", "_exceeded_total"}, key
    assert (samples[""], samples["_exceeded_total"]) == (limit, server.quotas.exceeded[key])
    await server.set(key, default)
    server.quotas.exceeded[key] = 0
