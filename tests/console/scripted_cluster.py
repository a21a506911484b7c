"""A name server and two brokers in memory, for areas of topics: they apply the changes that they receive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ariane.console.live.live_snapshot import LiveSnapshot
from ariane.console.services import ConsoleServices
from ariane.console.settings import ConsoleSettings
from ariane.errors import ConnectionLost
from ariane.model.topic import TopicConfig
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.requester import ServerRequest
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.admin import CreateTopic, TopicRef
from ariane.protocol.requests.brokers import GroupList, ProducerInfo, ProducerTable
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.routing import (
    BrokerData,
    ClusterInfo,
    DeleteTopicRoute,
    KvKey,
    KvValue,
    PutKv,
    QueueData,
    TopicRoute,
    TopicTable,
)
from ariane.protocol.requests.stats import BrokerStatsData, BrokerStatsItem, ConsumeStats, TopicOffset, TopicStats
from ariane.testing.clock import EPOCH_MS, FakeClock

NAMESRV, FIRST, SECOND = "ns:1", "a:1", "b:1"
NAMES = {FIRST: "broker-a", SECOND: "broker-b"}
NOW_MS = EPOCH_MS


class ScriptedCluster(ConnectionPool):
    """Responds to requests about topics.

    Attributes:
        topics: Address of a broker to its topics.
        orders: Order configurations in the KV table.
        groups: Address of a broker to the groups of every topic.
        producers: Address of a broker to its producers by group; None: it does not support the request.
        down: Addresses that refuse connections.
        changes: Codes and headers of all requests that changed something.
    """

    def __init__(self, *, first: dict[str, TopicConfig], second: dict[str, TopicConfig] | None = None) -> None:
        super().__init__()
        self.topics = {FIRST: dict(first), SECOND: dict(second or {})}
        self.orders: dict[str, str] = {}
        self.groups: dict[str, tuple[str, ...]] = {FIRST: (), SECOND: ()}
        self.producers: dict[str, dict[str, tuple[ProducerInfo, ...]] | None] = {FIRST: {}, SECOND: {}}
        self.down: set[str] = set()
        self.changes: list[tuple[str, RequestCode, Any]] = []

    async def exchange(self, request: ServerRequest) -> Command:
        addr, code, header, *_ = request
        if addr in self.down:
            raise ConnectionLost(addr, "refused")
        return self._name_server(code, header) if addr == NAMESRV else self._broker(addr, code, header)

    def _name_server(self, code: int, header: Any) -> Command:
        data = {name: BrokerData({0: addr}, name, "C") for addr, name in NAMES.items()}
        match code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                return _answer(ClusterInfo(data, {"C": tuple(data)}))
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                configs = {
                    NAMES[addr]: table[header.topic] for addr, table in self.topics.items() if header.topic in table
                }
                if not configs:
                    return Command(ResponseCode.TOPIC_NOT_EXIST, 0, 1, "no route")
                queues = tuple(
                    QueueData(name, config.perm, config.read_queue_nums, 0, config.write_queue_nums)
                    for name, config in configs.items()
                )
                return _answer(
                    TopicRoute(tuple(data[name] for name in configs), {}, self.orders.get(header.topic), queues)
                )
            case RequestCode.GET_KV_CONFIG:
                assert isinstance(header, KvKey)
                if header.key not in self.orders:
                    return Command(ResponseCode.QUERY_NOT_FOUND, 0, 1, "no value")
                return Command(0, 0, 1, None, encode_header(KvValue(self.orders[header.key])))
            case RequestCode.PUT_KV_CONFIG:
                assert isinstance(header, PutKv)
                self.orders[header.key] = header.value
            case RequestCode.DELETE_KV_CONFIG:
                assert isinstance(header, KvKey)
                self.orders.pop(header.key, None)
            case RequestCode.DELETE_TOPIC_IN_NAMESRV:
                assert isinstance(header, DeleteTopicRoute)
            case _:
                raise AssertionError(f"unexpected request {code} to the name server")
        self.changes.append((NAMESRV, RequestCode(code), header))
        return Command(0, 0, 1)

    def _broker(self, addr: str, code: int, header: Any) -> Command:
        table = self.topics[addr]
        match code:
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                return _answer(TopicTable(topic_config_table=table))
            case RequestCode.GET_TOPIC_STATS_INFO:
                return _answer(self._bounds(addr, header.topic))
            case RequestCode.QUERY_TOPIC_CONSUME_BY_WHO:
                return _answer(GroupList(self.groups[addr]))
            case RequestCode.VIEW_BROKER_STATS_DATA:
                item = BrokerStatsItem(sum=90, tps=1.5)
                return _answer(BrokerStatsData(item, item, item))
            case RequestCode.GET_CONSUME_STATS:
                return _answer(ConsumeStats(2.5, {}))
            case RequestCode.GET_CONSUMER_CONNECTION_LIST:
                return Command(ResponseCode.CONSUMER_NOT_ONLINE, 0, 1, "not online")
            case RequestCode.GET_ALL_PRODUCER_INFO:
                producers = self.producers[addr]
                if producers is None:
                    return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 0, 1, "not supported")
                return _answer(ProducerTable(producers))
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                assert isinstance(header, CreateTopic)
                table[header.topic] = TopicConfig(
                    topic_name=header.topic,
                    read_queue_nums=header.read_queue_nums,
                    write_queue_nums=header.write_queue_nums,
                    perm=header.perm,
                )
            case RequestCode.DELETE_TOPIC_IN_BROKER:
                assert isinstance(header, TopicRef)
                table.pop(header.topic, None)
            case _:
                raise AssertionError(f"unexpected request {code} to {addr}")
        self.changes.append((addr, RequestCode(code), header))
        return Command(0, 0, 1)

    def _bounds(self, addr: str, topic: str) -> TopicStats:
        """Every queue has ten messages per number of the queue."""
        config = self.topics[addr].get(topic)
        count = config.write_queue_nums if config else 0
        return TopicStats(
            {
                fastjson.write(WireQueue(NAMES[addr], number, topic)).decode(): TopicOffset(
                    NOW_MS * bool(number), number * 10, 0
                )
                for number in range(count)
            }
        )


def _answer(body: msgspec.Struct) -> Command:
    return Command(0, 0, 1, None, None, fastjson.write(body))


class FixedLive:
    """Returns one snapshot."""

    def __init__(self, snapshot: LiveSnapshot) -> None:
        self._snapshot = snapshot

    async def snapshot(self, wait_s: float = 0) -> LiveSnapshot:
        return self._snapshot


def services(cluster: ScriptedCluster, snapshot: LiveSnapshot, data_dir: Path) -> ConsoleServices:
    """Return the services of a console of this cluster."""
    settings = ConsoleSettings(namesrv=NAMESRV, data_dir=data_dir)
    return ConsoleServices(settings=settings, peers=cluster, live=FixedLive(snapshot), clock=FakeClock())
