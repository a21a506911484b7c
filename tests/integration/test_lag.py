"""Lag as shown by the tools, against a broker with prepared responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerUnavailable
from ariane.cluster.groups.group_lag import GroupLagOperations
from ariane.cluster.servers.broker_runtime import BrokerRates
from ariane.cluster.topics.topic_queries import TopicQueueBounds
from ariane.errors import ProtocolError, ServerUnavailable
from ariane.net.connection import Handler, Peer, Reply
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.server import RemotingServer
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.messaging import OffsetResponse, QueryConsumerOffset
from ariane.protocol.requests.routing import BrokerData, ClusterInfo, KvTableBody
from ariane.protocol.requests.stats import ConsumeStats, GetConsumeStats, GroupOffset, TopicStats

COMMITTED, NEVER, EMPTY, FROM_START = range(4)
RUNTIME = {
    "brokerVersionDesc": "V5_3_3",
    "bootTimestamp": "5",
    "msgPutTotalTodayNow": "30",
    "msgPutTotalTodayMorning": "10",
    "msgGetTotalTodayNow": "8",
    "msgGetTotalTodayMorning": "8",
    "putTps": "1.5 2.0E-4 ",
    "getTransferedTps": " ",
    "commitLogDiskRatio": "-1.0",
}


def against(handlers: dict[int, Handler], work: Callable[[ConnectionPool, str], Awaitable[None]]) -> None:
    """Run `work` against one server that is both the name server and its only broker."""

    async def run() -> None:
        async with RemotingServer(handlers, "127.0.0.1", 0) as server, ConnectionPool() as peers:
            addr = f"127.0.0.1:{server.port}"
            brokers = {"a": BrokerData({0: addr}, "a", "C")} if handlers else {}

            def cluster(command: Command, peer: Peer) -> Reply:
                return Reply(body=fastjson.write(ClusterInfo(brokers, {})))

            handlers[RequestCode.GET_BROKER_CLUSTER_INFO] = cluster
            await work(peers, addr)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_lag_is_unknown_for_a_group_without_committed_offsets() -> None:
    reported = {
        WireQueue("a", COMMITTED, "T"): GroupOffset(9, 4, 77),
        WireQueue("a", NEVER, "T"): GroupOffset(5, 0, 0),
        WireQueue("a", EMPTY, "T"): GroupOffset(0, 0, 0),
        WireQueue("a", FROM_START, "T"): GroupOffset(3, 0, 0),
    }
    requests: list[int] = []

    def offset(command: Command, peer: Peer) -> Reply:
        queue_id = decode_header(command, QueryConsumerOffset).queue_id
        requests.append(queue_id)
        if queue_id == NEVER:
            return Reply(ResponseCode.QUERY_NOT_FOUND, {}, "none")
        return Reply(fields=encode_header(OffsetResponse(0)))

    async def work(peers: ConnectionPool, addr: str) -> None:
        result = await GroupLagOperations(addr, peers=peers).group_lag("G")
        assert [(queue.queue_id, queue.lag, queue.consumed_ms) for queue in result.queues] == [
            (COMMITTED, 5, 77),
            (NEVER, None, None),
            (EMPTY, 0, None),
            (FROM_START, 3, None),
        ]
        assert (result.total, result.consume_tps) == (None, 2.5)
        assert sorted(requests) == [NEVER, FROM_START]

    def consume_stats(command: Command, peer: Peer) -> Reply:
        topic = decode_header(command, GetConsumeStats).topic
        return Reply(body=fastjson.write(ConsumeStats(2.5, reported) if topic is None else ConsumeStats()))

    against(
        {
            RequestCode.GET_CONSUME_STATS: consume_stats,
            RequestCode.QUERY_CONSUMER_OFFSET: offset,
        },
        work,
    )


def test_a_broker_that_rejects_the_request_is_named() -> None:
    async def work(peers: ConnectionPool, addr: str) -> None:
        result = await GroupLagOperations(addr, peers=peers).group_lag("G")
        assert (result.total, result.consume_tps) == (None, None)
        assert result.unavailable == (BrokerUnavailable("a", addr, f"{addr} answered code 1: not now"),)
        ends = await Admin(addr, peers=peers).fetch_bounds("T")
        assert (ends.messages, [item.broker for item in ends.unavailable]) == (None, ["a"])

    def refuse(command: Command, peer: Peer) -> Reply:
        return Reply(ResponseCode.SYSTEM_ERROR, remark="not now")

    against({RequestCode.GET_CONSUME_STATS: refuse, RequestCode.GET_TOPIC_STATS_INFO: refuse}, work)


def test_lag_without_a_registered_broker_is_an_error() -> None:
    async def work(peers: ConnectionPool, addr: str) -> None:
        with pytest.raises(ServerUnavailable, match="no broker is registered"):
            await GroupLagOperations(addr, peers=peers).group_lag("G")

    against({}, work)


def test_missing_runtime_values_are_unknown() -> None:
    async def work(peers: ConnectionPool, addr: str) -> None:
        reported = await Admin(addr, peers=peers).fetch_runtime(addr)
        assert (reported.put_today, reported.got_today, reported.boot_ms) == (20, 0, 5)
        assert reported.put_tps == BrokerRates(1.5, 2.0e-4, None)
        assert reported.get_tps == BrokerRates(None, None, None)
        assert (reported.put_latency_99_ms, reported.put_times, reported.disk_ratio, reported.earliest_ms) == (
            None,
        ) * 4

    table = fastjson.write(KvTableBody(RUNTIME))
    against({RequestCode.GET_BROKER_RUNTIME_INFO: lambda command, peer: Reply(body=table)}, work)


def test_runtime_info_without_required_keys_is_rejected_by_key_name() -> None:
    async def work(peers: ConnectionPool, addr: str) -> None:
        with pytest.raises(ProtocolError, match="bootTimestamp"):
            await Admin(addr, peers=peers).fetch_runtime(addr)

    against({RequestCode.GET_BROKER_RUNTIME_INFO: lambda command, peer: Reply(body=b'{"table":{}}')}, work)


def test_tables_by_queue_are_decoded_in_both_formats() -> None:
    bare = b'{"offsetTable":{{"brokerName":"a","queueId":1,"topic":"T"}:{"maxOffset":5}}}'
    quoted = rb'{"offsetTable":{"{\"brokerName\":\"a\",\"queueId\":1,\"topic\":\"T\"}":{"maxOffset":5}}}'

    async def work(peers: ConnectionPool, addr: str) -> None:
        assert (await Admin(addr, peers=peers).fetch_bounds("T")).queues == (TopicQueueBounds("a", 1, 0, 5, None),)

    for body in (bare, quoted):
        assert fastjson.decode(body, TopicStats).offset_table
        against({RequestCode.GET_TOPIC_STATS_INFO: lambda command, peer, body=body: Reply(body=body)}, work)
