"""The route table: which broker has which topic. Pure; the caller passes the time. [RouteInfoManager]

    broker name → topic → queues            broker name → cluster, id → address
    address → last registration: time, DataVersion, connection

The cost of a look-up grows with the number of brokers; removing a broker with all of its topics is one step. Operations that visit
every topic of a broker return iterators over slices of TOPICS_PER_SLICE topics, between which the caller serves other requests.

With failover the master with the latest epoch wins, whatever the order in which registrations arrive.

A broker is removed when it is silent for BROKER_LIVE_MS, when its connection closes, or when it unregisters. The broker name is
removed with its last address, and its queues with the name. `now_ms` is monotonic time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from ariane.errors import ServerUnavailable
from ariane.model.topic import PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from ariane.protocol.requests.routing import (
    MASTER_ID,
    BrokerData,
    BrokerRef,
    ClusterInfo,
    QueueData,
    RegisterBroker,
    RegisterBrokerBody,
    RegisterBrokerResponse,
    TopicRoute,
)

BROKER_LIVE_MS = 120_000  # four times the default registration interval
UNIT = 1  # bits of topicSysFlag
UNIT_SUB = 2
TOPICS_PER_SLICE = 2_000


class _Live(NamedTuple):
    """The last registration of an address."""

    name: str  # broker name
    seen_ms: float
    version: DataVersion
    peer_id: int  # number of the connection
    ha_addr: str  # replication address


class _Broker(NamedTuple):
    """The brokers of one name: a master and its slaves."""

    cluster: str
    addrs: dict[int, str]  # address by broker id; 0 is the master


class RouteTable:
    """The table. Results are values that the caller may keep."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, QueueData]] = {}  # by broker name, by topic
        self._brokers: dict[str, _Broker] = {}
        self._live: dict[str, _Live] = {}  # by address
        self._filters: dict[str, tuple[str, ...]] = {}  # filter servers by address
        self._epochs: dict[str, int] = {}  # of the last master by broker name, with failover

    # --- brokers ---

    def register(
        self, header: RegisterBroker, body: RegisterBrokerBody, peer_id: int, now_ms: float
    ) -> RegisterBrokerResponse:
        """Apply a registration. Topics are applied only from a master, and only if its DataVersion changed.

        Raises:
            ServerUnavailable: another master of the broker set has registered with a later epoch. A registration of a former
                master may arrive late.
        """
        name, addr = header.broker_name, header.broker_addr
        if header.broker_id == MASTER_ID and header.epoch is not None:
            if header.epoch < (latest := self._epochs.get(name, 0)):
                raise ServerUnavailable(
                    f"{addr} was the master of {name} in epoch {header.epoch}, the last one is {latest}"
                )
            self._epochs[name] = header.epoch
        broker = self._brokers.get(name)
        is_new = broker is None or header.broker_id not in broker.addrs
        addrs = (
            {} if broker is None else {broker_id: other for broker_id, other in broker.addrs.items() if other != addr}
        )
        # An address has one id: a slave that was promoted is not found under its former id any more.
        addrs[header.broker_id] = addr
        self._brokers[name] = broker = _Broker(header.cluster_name, addrs)
        table = body.topic_config_serialize_wrapper
        previous = self._live.get(addr)
        queues = self._queues.setdefault(name, {})
        if header.broker_id == MASTER_ID and (is_new or previous is None or previous.version != table.data_version):
            for topic, config in table.topic_config_table.items():
                queues[topic] = _queue_data(name, config)
        self._live[addr] = _Live(name, now_ms, table.data_version, peer_id, header.ha_server_addr)
        if body.filter_server_list:
            self._filters[addr] = body.filter_server_list
        else:
            self._filters.pop(addr, None)
        master = broker.addrs.get(MASTER_ID)
        if header.broker_id == MASTER_ID or master is None or master not in self._live:
            return RegisterBrokerResponse()
        return RegisterBrokerResponse(self._live[master].ha_addr, master)

    def is_current(self, header: RegisterBroker, version: DataVersion) -> bool:
        """Return whether the topics of a registration with this version are already in the table."""
        broker, live = self._brokers.get(header.broker_name), self._live.get(header.broker_addr)
        has_id = broker is not None and header.broker_id in broker.addrs
        return header.broker_id != MASTER_ID or (has_id and live is not None and live.version == version)

    def unregister(self, header: BrokerRef) -> None:
        """Remove a broker that stops."""
        self._live.pop(header.broker_addr, None)
        self._filters.pop(header.broker_addr, None)
        broker = self._brokers.get(header.broker_name)
        if broker is not None and broker.addrs.get(header.broker_id) == header.broker_addr:
            self._drop(header.broker_name, header.broker_addr)

    def remove_peer(self, peer_id: int) -> list[str]:
        """Remove the brokers that registered on a closed connection. Return their addresses."""
        return self._forget([addr for addr, live in self._live.items() if live.peer_id == peer_id])

    def expire(self, now_ms: float, live_ms: float = BROKER_LIVE_MS) -> list[str]:
        """Remove brokers that did not register for `live_ms`. Return their addresses."""
        return self._forget([addr for addr, live in self._live.items() if now_ms - live.seen_ms > live_ms])

    def refresh_version(self, header: BrokerRef, version: DataVersion, now_ms: float) -> DataVersion | None:
        """Return the version of a broker's last registration, None if there is none. The same version renews the registration."""
        live = self._live.get(header.broker_addr)
        if live is None:
            return None
        if live.version == version:
            self._live[header.broker_addr] = live._replace(seen_ms=now_ms)
        return live.version

    def has_address(self, addr: str) -> bool:
        """Return whether a broker is registered at this address."""
        return addr in self._live

    def is_registered_by(self, addr: str, peer_id: int) -> bool:
        """Return whether the last registration of an address came over this connection."""
        live = self._live.get(addr)
        return live is not None and live.peer_id == peer_id

    def last_registration_ms(self, addr: str) -> float | None:
        """Return the time of the last registration of an address, None if it is not registered."""
        live = self._live.get(addr)
        return None if live is None else live.seen_ms

    def address_count(self) -> int:
        """Return the number of registered brokers, masters and slaves."""
        return len(self._live)

    def topic_count(self, broker_name: str) -> int:
        return len(self._queues.get(broker_name, ()))

    # --- routes ---

    def find_route(self, topic: str) -> TopicRoute | None:
        """Return queues and addresses of a topic, None if no registered broker has it."""
        queues_by_broker = {
            name: data for name, queues in self._queues.items() if (data := queues.get(topic)) is not None
        }
        if not queues_by_broker:
            return None
        brokers = tuple(map(self._broker_data, queues_by_broker))
        addrs = [addr for broker in brokers for addr in broker.broker_addrs.values()]
        filters = {addr: self._filters[addr] for addr in addrs if addr in self._filters}
        return TopicRoute(brokers, filters, None, tuple(queues_by_broker.values()))

    def clusters(self) -> ClusterInfo:
        """Return all clusters with their brokers."""
        names = sorted(self._brokers)
        clusters: dict[str, tuple[str, ...]] = {}
        for name in names:
            cluster = self._brokers[name].cluster
            clusters[cluster] = (*clusters.get(cluster, ()), name)
        return ClusterInfo({name: self._broker_data(name) for name in names}, clusters)

    def topics(self) -> Iterator[list[str]]:
        """Yield the names of all topics in slices."""
        return self._distinct(list(self._queues.values()), lambda data: True)

    def topics_of_cluster(self, cluster: str) -> Iterator[list[str]]:
        """Yield the topics of a cluster's brokers in slices."""
        names = [name for name, broker in self._brokers.items() if broker.cluster == cluster]
        return self._distinct([self._queues[name] for name in names], lambda data: True)

    def topics_by_unit(self, required: int, excluded: int = 0) -> Iterator[list[str]]:
        """Yield in slices the topics whose topicSysFlag has all bits of `required` and none of `excluded`.

        The flag of the first broker with the topic decides, as in 4.9.4.
        """
        mask = required | excluded
        return self._distinct(list(self._queues.values()), lambda data: data.topic_sys_flag & mask == required)

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of clusters and brokers, which are also topics, and the address of one broker."""
        clusters = {broker.cluster for broker in self._brokers.values()}
        addr = next((addr for broker in self._brokers.values() for addr in broker.addrs.values()), None)
        return sorted(clusters | self._brokers.keys()), addr

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, or its queues on the brokers of one cluster."""
        for name, queues in self._queues.items():
            if cluster is None or self._brokers[name].cluster == cluster:
                queues.pop(topic, None)

    def wipe_write_perm(self, broker_name: str) -> Iterator[int]:
        """Clear the write bit of all queues of a broker until it registers them again; yield the number of topics per slice."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> Iterator[int]:
        """Make all queues of a broker readable and writable; yield the number of topics per slice."""
        return self._change_perm(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    # --- details ---

    @staticmethod
    def _distinct(tables: list[dict[str, QueueData]], matches: Callable[[QueueData], bool]) -> Iterator[list[str]]:
        """Yield each topic once, if it matches in the first table that has it."""
        seen: set[str] = set()
        for queues in tables:
            for topics in _slices(queues):
                new = [(topic, data) for topic in topics if topic not in seen and (data := queues.get(topic))]
                seen.update(topic for topic, _ in new)
                yield [topic for topic, data in new if matches(data)]

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> Iterator[int]:
        queues = self._queues.get(broker_name, {})
        for topics in _slices(queues):
            count = 0
            for topic in topics:
                data = queues.get(topic)
                if data is not None:
                    queues[topic] = msgspec.structs.replace(data, perm=change(data.perm))
                    count += 1
            yield count

    def _forget(self, addrs: list[str]) -> list[str]:
        for addr in addrs:
            name = self._live.pop(addr).name
            self._filters.pop(addr, None)
            self._drop(name, addr)
        return addrs

    def _drop(self, name: str, addr: str) -> None:
        """Remove an address of a broker name; with the last address, remove the name and its queues."""
        broker = self._brokers.get(name)
        if broker is None:
            return
        addrs = {broker_id: other for broker_id, other in broker.addrs.items() if other != addr}
        if addrs:
            self._brokers[name] = broker._replace(addrs=addrs)
            return
        del self._brokers[name]
        del self._queues[name]
        self._epochs.pop(name, None)

    def _broker_data(self, name: str) -> BrokerData:
        broker = self._brokers[name]
        return BrokerData(dict(sorted(broker.addrs.items())), name, broker.cluster)


def _queue_data(name: str, config: TopicConfig) -> QueueData:
    return QueueData(name, config.perm, config.read_queue_nums, config.topic_sys_flag, config.write_queue_nums)


def _slices(queues: dict[str, QueueData]) -> Iterator[list[str]]:
    """Yield the current topics, TOPICS_PER_SLICE at a time."""
    topics = list(queues)
    return (topics[start : start + TOPICS_PER_SLICE] for start in range(0, len(topics), TOPICS_PER_SLICE))
