"""The blocking client against real sockets, without Spark: fail-over, lost connections, slaves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from ariane.errors import ArianeError, ConnectionLost, ReplyError, RequestTimeout
from ariane.model.message import MessageQueue
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.net.server import RemotingServer
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.messaging import PullMessage
from ariane.protocol.requests.routing import BrokerData, QueueData, TopicRoute
from ariane.spark.read.pull_client import BlockingCluster, OffsetBounds
from ariane.spark.read.source_options import parse

QUEUE = MessageQueue("T", "broker-a", 0)
EMPTY = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}


class Fake:
    """A name server and broker at one address that records requests. `answers` replaces replies by code."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[tuple[int, dict[str, str]]] = []
        self.connections: set[int] = set()
        self.answers: dict[int, HandlerResult] = {}
        self.broker_id = 0

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self.port}"

    def handler(self, command: Command, peer: Peer) -> HandlerResult:
        self.asked.append((command.code, command.field_map()))
        self.connections.add(peer.id)
        if command.code in self.answers:
            return self.answers[command.code]
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = TopicRoute(
                broker_datas=(BrokerData({self.broker_id: self.addr}, "broker-a"),),
                queue_datas=(QueueData("broker-a", 6, 2, 0, 2), QueueData("broker-w", 2, 4, 0, 4)),
            )
            return Reply(ResponseCode.SUCCESS, {}, None, fastjson.write(route))
        if command.code == RequestCode.PULL_MESSAGE:
            return Reply(ResponseCode.PULL_RETRY_IMMEDIATELY, EMPTY, "MESSAGE_WAS_REMOVING")
        return Reply(ResponseCode.SUCCESS, {"offset": str(command.code)})


@contextlib.contextmanager
def serving(fake: Fake, idle_s: float = 120.0) -> Iterator[Fake]:
    """Serve `fake` on a free port (or its previous one) in a separate thread and event loop."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        reported = asyncio.Event()
        codes = (
            RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.PULL_MESSAGE, RequestCode.GET_MIN_OFFSET,
            RequestCode.GET_MAX_OFFSET,
        )  # fmt: skip
        async with RemotingServer(dict.fromkeys(codes, fake.handler), "127.0.0.1", fake.port, idle_s=idle_s) as server:
            fake.port = server.port
            started.set_result((asyncio.get_running_loop(), reported))
            await reported.wait()

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    loop, reported = started.result(10)
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(reported.set)
        thread.join(10)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving(Fake()) as running:
        yield running


def cluster_at(*addrs: str, waits: list[float] | None = None, **options: str) -> BlockingCluster:
    slept = waits if waits is not None else []
    return BlockingCluster(parse({"namesrv": ";".join(addrs), "topic": "T", **options}), sleep=slept.append)


def asked(cluster: BlockingCluster) -> OffsetBounds:
    (item,) = cluster.queue_bounds([QUEUE]).values()
    if isinstance(item, ArianeError):
        raise item
    return item


def end_of(cluster: BlockingCluster) -> int:
    return asked(cluster).end


def refused() -> str:
    """Return an address without a listening server."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_queues_bounds_and_pulls_share_one_connection(fake: Fake) -> None:
    with contextlib.closing(cluster_at(fake.addr, groupId="g", pullBatchSize="16")) as cluster:
        assert cluster.queues("T") == [QUEUE, MessageQueue("T", "broker-a", 1)]
        assert cluster.queue_bounds([QUEUE]) == {QUEUE: OffsetBounds(31, 30, from_master=True)}
        assert cluster.pull(QUEUE, [7], "a || b")[0].removed
    code, fields = fake.asked[-1]
    request: Any = PullMessage("g", "T", 0, 7, 16, 4)
    assert code == RequestCode.PULL_MESSAGE
    assert (fields["consumerGroup"], fields["queueId"], fields["queueOffset"]) == ("g", "0", "7")
    assert (fields["maxMsgNums"], fields["sysFlag"]) == ("16", str(request.sys_flag))  # no suspend, no commit
    assert (fields["subscription"], fields["expressionType"]) == ("a || b", "TAG")
    assert len(fake.connections) == 1


def test_the_next_name_server_is_tried_if_one_fails_or_lacks_the_topic(fake: Fake) -> None:
    with contextlib.closing(cluster_at(refused(), fake.addr)) as cluster:
        assert len(cluster.queues("T")) == 2
    for code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_BUSY):
        with serving(Fake()) as other:
            other.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = Reply(code, {}, "not here")
            with contextlib.closing(cluster_at(other.addr, fake.addr)) as cluster:
                assert len(cluster.queues("T")) == 2


def test_an_unknown_topic_has_no_queues_and_a_timeout_is_an_error(fake: Fake) -> None:
    fake.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = Reply(ResponseCode.TOPIC_NOT_EXIST, {}, "no")
    with contextlib.closing(cluster_at(refused(), fake.addr)) as cluster:
        assert cluster.queues("T") == []
    with contextlib.closing(cluster_at(refused())) as cluster, pytest.raises(ConnectionLost):
        cluster.queues("T")
    fake.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = Reply(ResponseCode.SYSTEM_BUSY, {}, "busy")
    with contextlib.closing(cluster_at(fake.addr)) as cluster, pytest.raises(ReplyError, match="busy"):
        cluster.queues("T")


def test_a_connection_closed_while_idle_is_replaced_immediately() -> None:
    with serving(Fake(), idle_s=0.05) as fake:
        waits: list[float] = []
        with contextlib.closing(cluster_at(fake.addr, waits=waits)) as cluster:
            end_of(cluster)
            closed = cluster._connections._connections[fake.addr].socket
            closed.settimeout(10)
            assert closed.recv(1, socket.MSG_PEEK) == b""  # the server has hung up
            assert end_of(cluster) == 30
        assert waits == []
        assert len(fake.connections) == 2


def test_a_restarted_server_is_used_again_and_an_unavailable_one_is_named() -> None:
    fake = Fake()
    with serving(fake):
        cluster = cluster_at(fake.addr, retries="2")
        assert end_of(cluster) == 30
    with pytest.raises(ArianeError, match=rf"end of Q: connection to {fake.addr}: .*tried 3 times"):
        cluster.retry("end of Q", end_of, cluster)
    with serving(fake):
        assert cluster.retry("end of Q", end_of, cluster) == 30
        cluster.close()


def test_a_missing_response_ends_with_a_timeout(fake: Fake) -> None:
    async def never() -> Reply:
        await asyncio.sleep(60)
        raise AssertionError

    fake.answers[RequestCode.GET_MAX_OFFSET] = never()
    with contextlib.closing(cluster_at(fake.addr, pullTimeoutMs="100")) as cluster:
        with pytest.raises(RequestTimeout, match="100 ms"):
            end_of(cluster)
        del fake.answers[RequestCode.GET_MAX_OFFSET]
        assert end_of(cluster) == 30  # on a new connection: a late response to the first request has no reader


def test_results_name_whether_the_master_responded(fake: Fake) -> None:
    fake.broker_id = 1
    with contextlib.closing(cluster_at(fake.addr)) as cluster:
        assert not asked(cluster).from_master
        assert not cluster.pull(QUEUE, [0])[0].from_master
        fake.broker_id = 0
        cluster.queues("T")
        assert asked(cluster).from_master
