"""The rules from a route to queues and addresses, for all clients (asyncio and Spark). Pure. [TopicPublishInfo]

publish queues     order configuration, else writable brokers that have a master
subscribe queues   readable brokers
pull address       the suggested server of a broker, else its lowest id: the master, or the first slave
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from ariane.errors import RouteNotFound
from ariane.model.message import MessageQueue
from ariane.model.topic import PERM_READ, PERM_WRITE
from ariane.protocol.requests.routing import MASTER_ID, TopicRoute

# Broker name → broker id → address.
Addresses = Mapping[str, Mapping[int, str]]


def publish_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Return the writable queues of `topic`, in the order in which they take turns."""
    if route.order_topic_conf:
        return tuple(
            MessageQueue(topic, broker, queue_id)
            for broker, count in _order_configuration(topic, route.order_topic_conf)
            for queue_id in range(count)
        )
    masters = {data.broker_name for data in route.broker_datas if data.master}
    return tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERM_WRITE and data.broker_name in masters
        for queue_id in range(data.write_queue_nums)
    )


def subscribe_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Return the readable queues of `topic`, sorted as every member of a group sorts them."""
    return tuple(
        sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )
    )


def cap_queues(route: TopicRoute, queue_nums: int) -> TopicRoute:
    """Return the route that a topic gets when the first send creates it from `route`, the default topic's."""
    queues = []
    for data in route.queue_datas:
        count = min(queue_nums, data.read_queue_nums)
        queues.append(msgspec.structs.replace(data, read_queue_nums=count, write_queue_nums=count))
    return msgspec.structs.replace(route, queue_datas=tuple(queues), order_topic_conf=None)


def addresses(routes: Iterable[TopicRoute]) -> dict[str, dict[int, str]]:
    """Return a table from broker name to broker id to address."""
    table: dict[str, dict[int, str]] = {}
    for route in routes:
        for data in route.broker_datas:
            table.setdefault(data.broker_name, {}).update(data.broker_addrs)
    return table


def preferred_server(servers: Mapping[int, str], avoided: Collection[str] = ()) -> int:
    """Return the broker id of the master, or of the slave with the lowest id while no master is registered.

    Args:
        servers: Addresses of one broker by broker id; at least one.
        avoided: Addresses that are chosen only if all are avoided.
    """
    reachable = [broker_id for broker_id, addr in servers.items() if addr not in avoided] if avoided else None
    return min(reachable or servers)


class BrokerAddress(NamedTuple):
    """Address of a server, and whether it is a slave."""

    addr: str
    is_slave: bool


def select_pull_address(table: Addresses, broker: str, suggested: int) -> BrokerAddress | None:
    """Return where to pull from: the suggested broker id, the slave after it, or the preferred server of the broker."""
    ids = table.get(broker)
    if not ids:
        return None
    broker_id = suggested
    if broker_id not in ids and suggested != MASTER_ID:
        broker_id = suggested + 1
    if broker_id not in ids:
        broker_id = preferred_server(ids)
    return BrokerAddress(ids[broker_id], broker_id != MASTER_ID)


def _order_configuration(topic: str, text: str) -> list[tuple[str, int]]:
    pairs = []
    for part in filter(None, text.split(";")):
        broker, colon, count = part.rpartition(":")
        if not colon or not count.isdigit():
            raise RouteNotFound(topic, f"invalid order configuration {text!r}: expected broker:queues;broker:queues")
        pairs.append((broker, int(count)))
    return pairs
