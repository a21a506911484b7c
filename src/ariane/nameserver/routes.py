"""Which broker has which topic: the table a name server exists for. Pure; every call is given the time. [RouteInfoManager]

    topic → broker name → queues            broker name → cluster, id → address
    address → when it last registered, with which DataVersion, over which connection

A broker is forgotten when it was silent for LIVE_MS, when its connection closes, or when it says so; its last address takes
the name, and the name its queues, along. `now_ms` is monotonic time in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from ariane.model.topic import PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from ariane.protocol.requests.routing import (
    BrokerData,
    BrokerRef,
    ClusterInfo,
    QueueData,
    RegisterBroker,
    RegisterBrokerAnswer,
    RegisterBrokerBody,
    TopicRoute,
)

LIVE_MS = 120_000
MASTER = 0
UNIT = 1
UNIT_SUB = 2


class _Live(NamedTuple):
    name: str
    seen_ms: float
    version: DataVersion
    peer_id: int
    ha_addr: str


class _Broker(NamedTuple):
    cluster: str
    addrs: dict[int, str]


class Routes:
    """The table. Answers are values; the caller may keep them."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, _Broker] = {}
        self._live: dict[str, _Live] = {}
        self._filters: dict[str, tuple[str, ...]] = {}

    # --- brokers ---

    def register(
        self, header: RegisterBroker, body: RegisterBrokerBody, peer_id: int, now_ms: float
    ) -> RegisterBrokerAnswer:
        """Take over a registration. Topics count only from a master, and only when its DataVersion is another."""
        name, addr = header.broker_name, header.broker_addr
        broker = self._brokers.get(name)
        is_new = broker is None or header.broker_id not in broker.addrs
        addrs = {} if broker is None else {i: one for i, one in broker.addrs.items() if one != addr}
        addrs[header.broker_id] = addr
        self._brokers[name] = broker = _Broker(header.cluster_name, addrs)
        table = body.topic_config_serialize_wrapper
        known = self._live.get(addr)
        if header.broker_id == MASTER and (is_new or known is None or known.version != table.data_version):
            for topic, config in table.topic_config_table.items():
                self._queues.setdefault(topic, {})[name] = _queue_data(name, config)
        self._live[addr] = _Live(name, now_ms, table.data_version, peer_id, header.ha_server_addr)
        if body.filter_server_list:
            self._filters[addr] = body.filter_server_list
        else:
            self._filters.pop(addr, None)
        master = broker.addrs.get(MASTER)
        if header.broker_id == MASTER or master is None or master not in self._live:
            return RegisterBrokerAnswer()
        return RegisterBrokerAnswer(self._live[master].ha_addr, master)

    def unregister(self, header: BrokerRef) -> None:
        self._live.pop(header.broker_addr, None)
        self._filters.pop(header.broker_addr, None)
        broker = self._brokers.get(header.broker_name)
        if broker is not None and broker.addrs.get(header.broker_id) == header.broker_addr:
            self._drop(header.broker_name, header.broker_addr)

    def lost(self, peer_id: int) -> list[str]:
        """A connection ended: the addresses of the brokers that registered over it, which are forgotten."""
        return self._forget([addr for addr, live in self._live.items() if live.peer_id == peer_id])

    def expire(self, now_ms: float, live_ms: float = LIVE_MS) -> list[str]:
        """Forget brokers that were silent for too long; their addresses."""
        return self._forget([addr for addr, live in self._live.items() if now_ms - live.seen_ms > live_ms])

    def seen_version(self, header: BrokerRef, version: DataVersion, now_ms: float) -> DataVersion | None:
        """The version that `header`'s broker registered last; the same one counts as a sign of life."""
        live = self._live.get(header.broker_addr)
        if live is None:
            return None
        if live.version == version:
            self._live[header.broker_addr] = live._replace(seen_ms=now_ms)
        return live.version

    def knows(self, broker_name: str) -> bool:
        return broker_name in self._brokers

    def broker_count(self) -> int:
        return len(self._brokers)

    # --- routes ---

    def route(self, topic: str) -> TopicRoute | None:
        """Queues and addresses of a topic; None when nobody has it, or none of those who have it is there."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        brokers = tuple(self._broker_data(name) for name in queues if name in self._brokers)
        if not brokers:
            return None
        addrs = [addr for broker in brokers for addr in broker.broker_addrs.values()]
        filters = {addr: self._filters[addr] for addr in addrs if addr in self._filters}
        return TopicRoute(brokers, filters, None, tuple(queues.values()))

    def clusters(self) -> ClusterInfo:
        names = sorted(self._brokers)
        clusters: dict[str, tuple[str, ...]] = {}
        for name in names:
            cluster = self._brokers[name].cluster
            clusters[cluster] = (*clusters.get(cluster, ()), name)
        return ClusterInfo({name: self._broker_data(name) for name in names}, clusters)

    def topics(self) -> list[str]:
        return sorted(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = {name for name, broker in self._brokers.items() if broker.cluster == cluster}
        return sorted(topic for topic, queues in self._queues.items() if names & queues.keys())

    def topics_by_unit(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Topics whose topicSysFlag has all bits of `wanted` and none of `unwanted`."""

        def matches(queues: Iterable[QueueData]) -> bool:
            first = next(iter(queues), None)
            return first is not None and first.topic_sys_flag & (wanted | unwanted) == wanted

        return sorted(topic for topic, queues in self._queues.items() if matches(queues.values()))

    def system_topics(self) -> tuple[list[str], str | None]:
        """Names of clusters and brokers, which are topics too, and some broker's address."""
        clusters = {broker.cluster for broker in self._brokers.values()}
        addr = next((addr for broker in self._brokers.values() for addr in broker.addrs.values()), None)
        return sorted(clusters | self._brokers.keys()), addr

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, or its queues on the brokers of one cluster."""
        queues = self._queues.get(topic)
        if queues is None:
            return
        for name in list(queues):
            broker = self._brokers.get(name)
            if cluster is None or (broker is not None and broker.cluster == cluster):
                del queues[name]
        if not queues:
            del self._queues[topic]

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write bit from all queues of a broker until it registers something new; how many topics it has."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        return self._change_perm(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    # --- details ---

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._queues.values():
            data = queues.get(broker_name)
            if data is not None:
                queues[broker_name] = msgspec.structs.replace(data, perm=change(data.perm))
                count += 1
        return count

    def _forget(self, addrs: list[str]) -> list[str]:
        for addr in addrs:
            name = self._live.pop(addr).name
            self._filters.pop(addr, None)
            self._drop(name, addr)
        return addrs

    def _drop(self, name: str, addr: str) -> None:
        """Take an address from a broker name, and the name's queues with its last address."""
        broker = self._brokers.get(name)
        if broker is None:
            return
        addrs = {i: one for i, one in broker.addrs.items() if one != addr}
        if addrs:
            self._brokers[name] = broker._replace(addrs=addrs)
            return
        del self._brokers[name]
        for topic in list(self._queues):
            self._queues[topic].pop(name, None)
            if not self._queues[topic]:
                del self._queues[topic]

    def _broker_data(self, name: str) -> BrokerData:
        broker = self._brokers[name]
        return BrokerData(dict(sorted(broker.addrs.items())), name, broker.cluster)


def _queue_data(name: str, config: TopicConfig) -> QueueData:
    return QueueData(name, config.perm, config.read_queue_nums, config.topic_sys_flag, config.write_queue_nums)
