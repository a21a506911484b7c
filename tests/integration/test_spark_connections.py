"""Connections of the sink over real sockets: a peer that closes, is silent, is absent or responds out of order."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ariane.broker.broker import Broker
from ariane.client import ClientInstance, ClientSettings, Credentials, Producer
from ariane.cluster.admin import Admin
from ariane.errors import ArianeError, ConnectionLost, RequestTimeout
from ariane.model.message import Message
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import command as commands
from ariane.protocol.codes import RequestCode
from ariane.protocol.frame import FrameReader
from ariane.protocol.records import record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import SUBSCRIPTION, OffsetResponse, PullMessage, PullMessageResponse, QueueRef
from ariane.spark.wire.access import tls_context
from ariane.spark.wire.pipelined_connections import PipelinedConnectionPool, PipelinedResponse
from ariane.spark.write import sink
from ariane.spark.write.sink_options import parse
from ariane.testing import AsyncLocalCluster
from ariane.testing.cluster_servers import broker_config

PATIENCE_S = 120.0

Serve = Callable[[socket.socket, list[commands.Command]], None]


@pytest.fixture
def peer() -> Iterator[Callable[[int, Serve], str]]:
    """Start a peer that collects `count` requests per connection and then runs the given action on each connection."""
    servers: list[socket.socket] = []

    def start(count: int, serve: Serve, tls: ssl.SSLContext | None = None) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                try:
                    connection = tls.wrap_socket(connection, server_side=True) if tls else connection
                except OSError:  # of a client that does not trust us
                    connection.close()
                    continue
                with connection:
                    frames, result = FrameReader(), []
                    while len(result) < count and (data := connection.recv(65536)):
                        result += [commands.decode(frame) for frame in frames.feed(data)]
                    serve(connection, result)

        threading.Thread(target=run, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server in servers:
        server.close()


def answer(connection: socket.socket, asked: commands.Command) -> None:
    pieces = commands.encode(0, opaque=asked.opaque, flag=commands.RESPONSE, body=asked.body)
    connection.sendall(b"".join(pieces))


def gather(wires: PipelinedConnectionPool, count: int) -> list[PipelinedResponse]:
    results: list[PipelinedResponse] = []
    ends = time.monotonic() + PATIENCE_S
    while len(results) < count:
        assert time.monotonic() < ends
        results += wires.poll(1.0)
    return results


def test_responses_match_their_requests_in_any_order(peer: Any) -> None:
    def backwards(connection: socket.socket, found: list[commands.Command]) -> None:
        for request in reversed(found):
            answer(connection, request)

    wires = PipelinedConnectionPool(5000)
    addr = peer(3, backwards)
    large = b"x" * 3_000_000  # more than a socket takes at once
    tokens = {wires.send(addr, 310, {}, body): body for body in (b"a", large, b"c")}
    found = gather(wires, 3)
    assert {item.token: item.command.body for item in found if item.command} == tokens
    wires.close()


def test_a_lost_connection_fails_its_requests_and_is_replaced(peer: Any) -> None:
    calls: list[int] = []

    def first_closes(connection: socket.socket, found: list[commands.Command]) -> None:
        calls.append(len(found))
        if len(calls) > 1:
            answer(connection, found[0])

    wires = PipelinedConnectionPool(5000)
    addr = peer(1, first_closes)
    wires.send(addr, 310, {})
    (lost,) = gather(wires, 1)
    assert isinstance(lost.error, ConnectionLost)
    repeated = wires.send(addr, 310, {})
    (found,) = gather(wires, 1)
    assert (found.token, found.error) == (repeated, None)
    wires.close()


def test_a_connection_closed_while_idle_is_noticed_before_use(peer: Any) -> None:
    wires = PipelinedConnectionPool(5000)
    addr = peer(1, lambda connection, found: answer(connection, found[0]))  # and closes
    wires.send(addr, 310, {})
    gather(wires, 1)
    ends = time.monotonic() + PATIENCE_S
    while wires._connections:
        assert wires.poll(0.05) == []
        assert time.monotonic() < ends
    wires.send(addr, 310, {})
    (found,) = gather(wires, 1)
    assert found.error is None
    wires.close()


def test_the_connection_to_a_silent_server_is_closed(peer: Any) -> None:
    wires = PipelinedConnectionPool(200)
    done = threading.Event()
    addr = peer(1, lambda connection, found: done.wait(10) and None)
    wires.send(addr, 310, {})
    (late,) = gather(wires, 1)
    assert isinstance(late.error, RequestTimeout)
    assert not wires._connections  # the next request opens a new connection
    done.set()
    wires.close()


def test_requests_and_responses_are_encrypted(peer: Any, certificate: tuple[Path, Path]) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate)

    def backwards(connection: socket.socket, found: list[commands.Command]) -> None:
        for request in reversed(found):
            answer(connection, request)

    sink_options = parse({"namesrv": "h:1", "topic": "T", "useTls": "true", "tlsCaFile": str(certificate[0])})
    wires = PipelinedConnectionPool(20_000, tls=tls_context(sink_options))
    addr = peer(40, backwards, server)
    large = b"x" * 3_000_000  # more than a socket takes at once, and many TLS records
    tokens = {wires.send(addr, 310, {}, body): body for body in (large, *(b"%d" % n for n in range(39)))}
    assert wires.poll(0.0) == []  # part of the first is written, and more comes behind it
    found = gather(wires, 40)
    assert {item.token: item.command.body for item in found if item.command} == tokens
    wires.close()


def test_an_untrusted_or_plain_server_is_reported(peer: Any, certificate: tuple[Path, Path]) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate)
    wires = PipelinedConnectionPool(5000, tls=tls_context(parse({"namesrv": "h:1", "topic": "T", "useTls": "true"})))
    with pytest.raises(ConnectionLost, match="TLS: .*certificate verify failed.*tlsCaFile"):
        wires.send(peer(1, lambda connection, found: None, server), 310, {})
    plain = peer(0, lambda connection, found: connection.sendall(b"no TLS here"))
    with pytest.raises(ConnectionLost, match="check useTls"):
        wires.send(plain, 310, {})
    wires.close()


def test_a_refused_connection_raises_connection_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        addr = f"127.0.0.1:{server.getsockname()[1]}"
    wires = PipelinedConnectionPool(200)
    with pytest.raises(ConnectionLost, match="refused"):
        wires.send(addr, 310, {})
    wires.close()


async def stored(broker: str, queues: int) -> list[list[int]]:
    """Return the bodies of each queue of T as numbers."""
    results: list[list[int]] = []
    async with ConnectionPool() as peers:
        for queue_id in range(queues):
            own_requests: list[int] = []
            answer = await peers.request_ok(broker, RequestCode.GET_MAX_OFFSET, QueueRef("T", queue_id))
            offset, end = 0, decode_header(answer, OffsetResponse).offset
            while offset < end:
                header = PullMessage("G", "T", queue_id, offset, 32, SUBSCRIPTION, subscription="*")
                pulled = await peers.request_ok(broker, RequestCode.PULL_MESSAGE, header)
                own_requests += [int(stored_record.body) for stored_record in record.decode_all(pulled.body)]
                offset = decode_header(pulled, PullMessageResponse).next_begin_offset
            results.append(own_requests)
    return results


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "body": pa.array([b"%d" % number for number in numbers]),
            "ordering_key": pa.array([f"k{number % 3}" for number in numbers]),
        }
    )


async def make_topic(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("T", queues=4)


def test_a_task_waits_for_a_broker_that_restarts_and_keeps_the_order_of_keys(tmp_path: Path) -> None:
    names = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
    flowing, is_down = threading.Event(), threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(0, 300)
        flowing.set()
        assert is_down.wait(30)
        yield rows(300, 300)

    async def run() -> None:
        async with NameServer(names) as name_server:
            namesrv = f"127.0.0.1:{name_server.addr.rpartition(':')[2]}"
            config = broker_config(tmp_path / "store", namesrv)
            sink_options = parse({"namesrv": namesrv, "topic": "T", "batchSize": "7", "retries": "100"})
            async with Broker(config):
                await make_topic(namesrv)
                task = asyncio.create_task(
                    asyncio.to_thread(sink.write_partition, batches(), sink_options, "run", 0, 0)
                )
                await asyncio.to_thread(flowing.wait, 30)
            is_down.set()
            await asyncio.sleep(0.5)
            assert not task.done()
            async with Broker(config) as broker:  # on another port
                written = await task
                assert written.messages == 600
                assert written.retried > 0
                result = await stored(broker.addr, 4)
        assert {item for queue in result for item in queue} == set(range(600))
        for key in range(3):
            (own_requests,) = [some for queue in result if (some := [item for item in queue if item % 3 == key])]
            assert list(dict.fromkeys(own_requests)) == list(range(key, 600, 3))

    asyncio.run(asyncio.wait_for(run(), 90))


ACCOUNTS = """
accounts:
- {accessKey: writer-account, secretKey: a-writer-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB, admin: true}
"""


def test_requests_are_signed_and_a_denial_fails_the_task_without_retries(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)

    async def run() -> None:
        async with AsyncLocalCluster(tmp_path, acl_enable=True, rocketmq_home=str(tmp_path)) as servers:
            settings = ClientSettings(credentials=Credentials("writer-account", "a-writer-secret"))
            async with (
                ClientInstance(servers.namesrv, settings) as instance,
                Producer(instance, "shop") as producer,
            ):
                await producer.send(Message(topic="T", body=b"first"))

            def write(**account: str) -> int:
                sink_options = parse({"namesrv": servers.namesrv, "topic": "T", **account})
                return sink.write_partition(iter([rows(0, 50)]), sink_options, "run", 0, 0).messages

            assert await asyncio.to_thread(write, accessKey="writer-account", secretKey="a-writer-secret") == 50
            for account in ({}, {"accessKey": "writer-account", "secretKey": "a-wrong-secret"}):
                with pytest.raises(ArianeError, match="T queue . of broker-a.*AclException") as refused:
                    await asyncio.to_thread(lambda account=account: write(**account))
                assert "secret" not in str(refused.value)

    asyncio.run(asyncio.wait_for(run(), 60))
