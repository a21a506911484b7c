"""Where topics live: routes asked of the name servers and kept, and the rules from a route to queues and addresses.

    topic's own route ─ missing ─→ route of TBW102, its queues capped ─ missing ─→ RouteNotFound
    publish queues     order configuration, else writable brokers that have a master
    subscribe queues   readable brokers

The rules are functions of a TopicRoute; `Routes` keeps what was fetched. [MQClientInstance, TopicPublishInfo]
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from ariane.errors import ProtocolError, ReplyError, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.model.topic import PERM_READ, PERM_WRITE
from ariane.net.name_servers import NameServerClient
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import MASTER_ID, TopicRoute
from ariane.protocol.transient import NO_RESPONSE

log = logging.getLogger("ariane.client")


Addresses = Mapping[str, Mapping[int, str]]


class Peers(Protocol):
    """What clients ask others through: `net.client.Connections`, or a script in tests."""

    async def request(
        self, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b"", *, timeout_ms: float = 3000
    ) -> Command: ...

    async def request_ok(
        self, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b"", *, timeout_ms: float = 3000
    ) -> Command: ...

    async def one_way(self, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b"") -> None: ...


# --- rules -------------------------------------------------------------------------------------------------------------


def publish_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Queues of `topic` that may be written to, in the order in which they take turns."""
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
    """Queues of `topic` that may be read, sorted as every member of a group sorts them."""
    return tuple(
        sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )
    )


def cap_queues(route: TopicRoute, queue_nums: int) -> TopicRoute:
    """The route that a topic will have when the first send creates it from `route`, the default topic's."""
    queues = []
    for data in route.queue_datas:
        count = min(queue_nums, data.read_queue_nums)
        queues.append(msgspec.structs.replace(data, read_queue_nums=count, write_queue_nums=count))
    return msgspec.structs.replace(route, queue_datas=tuple(queues), order_topic_conf=None)


def addresses(routes: Iterable[TopicRoute]) -> dict[str, dict[int, str]]:
    """Broker name → broker id → address."""
    table: dict[str, dict[int, str]] = {}
    for route in routes:
        for data in route.broker_datas:
            table.setdefault(data.broker_name, {}).update(data.broker_addrs)
    return table


class BrokerAddress(NamedTuple):
    addr: str
    is_slave: bool


def read_address(table: Addresses, broker: str, wanted: int) -> BrokerAddress | None:
    """Where to pull from: the broker id that was suggested, the slave after it, or whatever the broker has."""
    ids = table.get(broker)
    if not ids:
        return None
    broker_id = wanted
    if broker_id not in ids and wanted != MASTER_ID:
        broker_id = wanted + 1
    if broker_id not in ids:
        broker_id = min(ids)
    return BrokerAddress(ids[broker_id], broker_id != MASTER_ID)


def _order_configuration(topic: str, text: str) -> list[tuple[str, int]]:
    pairs = []
    for part in filter(None, text.split(";")):
        broker, colon, count = part.rpartition(":")
        if not colon or not count.isdigit():
            raise RouteNotFound(topic, f"its order configuration {text!r} is not broker:queues;broker:queues")
        pairs.append((broker, int(count)))
    return pairs


# --- what was fetched --------------------------------------------------------------------------------------------------


class RouteCache:
    """Routes of the topics in use. `changed` topics are returned by `refresh`; nobody is called back."""

    def __init__(self, peers: Peers, name_servers: tuple[str, ...], *, timeout_ms: int, rng: Random) -> None:
        self._name_servers = NameServerClient(
            peers, name_servers, first=rng.randrange(len(name_servers)), timeout_ms=timeout_ms, is_first_final=True
        )
        self._rng = rng
        self._routes: dict[str, TopicRoute] = {}
        self._publish: dict[str, tuple[MessageQueue, ...]] = {}
        self._from_default: dict[str, tuple[str, int]] = {}
        self._fetching: dict[str, asyncio.Task[tuple[MessageQueue, ...]]] = {}
        self.addresses: dict[str, dict[int, str]] = {}

    def cached_publish_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """What `find_queues_to_send` gave, while it is known."""
        return self._publish.get(topic)

    async def publish_queues(self, topic: str, default_topic: str, queue_nums: int) -> tuple[MessageQueue, ...]:
        """Queues that `topic` may be sent to; RouteNotFound when there are none. All who ask at once wait for one
        answer."""
        task = self._fetching.get(topic)
        if task is None:
            task = asyncio.ensure_future(self._find(topic, default_topic, queue_nums))
            self._fetching[topic] = task
            task.add_done_callback(lambda done: self._fetching.pop(topic, None))
        return await asyncio.shield(task)

    async def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Queues that `topic` may be read from; RouteNotFound when no name server knows the topic."""
        route = self._routes.get(topic)
        if route is None or topic in self._from_default:
            route = await self.fetch(topic)
            self._from_default.pop(topic, None)
            self._keep(topic, route)
        return subscribe_queues(topic, route)

    async def refresh(self, topics: Iterable[str]) -> list[str]:
        """Ask for all topics in use again; those whose queues or brokers changed. What cannot be asked stays as it is."""
        changed = []
        wanted = {*topics, *self._publish}
        for number, topic in enumerate(wanted):
            before = self._routes.get(topic)
            try:
                if topic in self._publish:
                    default = self._from_default.get(topic)
                    await self._find(topic, *default) if default else self._keep(topic, await self.fetch(topic))
                else:
                    self._keep(topic, await self.fetch(topic))
            except RouteNotFound as error:
                log.debug("%s", error)
            except NO_RESPONSE as error:
                # No name server responds. The other topics would wait for the same timeouts, a thousand of them for an hour.
                count = len(wanted) - number
                log.warning("Could not refresh the routes of %d topics, keeping the cached ones: %s", count, error)
                break
            except (ReplyError, ProtocolError) as error:
                log.warning("Could not refresh the route of %s, keeping the cached one: %s", topic, error)
            if self._routes.get(topic) != before:
                changed.append(topic)
        self.addresses = addresses(self._routes.values())
        return changed

    async def fetch(self, topic: str) -> TopicRoute:
        """The route of `topic` as a name server tells it now; the next name server is asked when one is silent."""
        return await self._name_servers.fetch_route(topic)

    def master_address(self, broker: str) -> str | None:
        """Address of the master of `broker`."""
        return self.addresses.get(broker, {}).get(MASTER_ID)

    def pull_address(self, broker: str, wanted: int) -> BrokerAddress | None:
        return read_address(self.addresses, broker, wanted)

    def random_broker(self, topic: str) -> str | None:
        """Address of one broker of the topic, at random."""
        route = self._routes.get(topic)
        found = [addr for data in route.broker_datas for addr in data.broker_addrs.values()] if route else []
        return self._rng.choice(found) if found else None

    def all_addresses(self, *, masters_only: bool) -> list[str]:
        return [
            addr
            for ids in self.addresses.values()
            for number, addr in ids.items()
            if number == MASTER_ID or not masters_only
        ]

    async def _find(self, topic: str, default_topic: str, queue_nums: int) -> tuple[MessageQueue, ...]:
        try:
            route = await self.fetch(topic)
            self._from_default.pop(topic, None)
        except RouteNotFound as unknown:
            try:
                route = cap_queues(await self.fetch(default_topic), queue_nums)
            except RouteNotFound:
                raise unknown from None
            self._from_default[topic] = (default_topic, queue_nums)
        queues = publish_queues(topic, route)
        if not queues:
            raise RouteNotFound(topic, "none of its brokers has a master and writable queues")
        self._publish[topic] = queues
        self._keep(topic, route)
        return queues

    def _keep(self, topic: str, route: TopicRoute) -> None:
        self._routes[topic] = route
        if topic in self._publish:
            self._publish[topic] = publish_queues(topic, route) or self._publish[topic]
        for broker, ids in addresses([route]).items():
            self.addresses[broker] = ids
