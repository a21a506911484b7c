"""Routes of topics, cached from the name servers. [MQClientInstance]

    topic's own route ─ missing ─→ route of TBW102, its queues capped ─ missing ─→ RouteNotFound

`protocol.client_rules` derives queues and addresses from a route.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from random import Random

from ariane.client.instance.namespace import Namespace
from ariane.errors import ProtocolError, ReplyError, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.name_servers import NameServerClient
from ariane.protocol.client_rules.route_rules import (
    BrokerAddress,
    addresses,
    cap_queues,
    publish_queues,
    select_pull_address,
    subscribe_queues,
)
from ariane.protocol.client_rules.transient import NO_RESPONSE
from ariane.protocol.requests.routing import MASTER_ID, TopicRoute

log = logging.getLogger("ariane.client")


class RouteCache:
    """Routes of the topics in use. `refresh` returns the topics that changed; nothing is called back."""

    def __init__(
        self,
        peers: ConnectionPool,
        name_servers: tuple[str, ...],
        *,
        timeout_ms: float,
        rng: Random,
        namespace: Namespace | None = None,
    ) -> None:
        # Starts at a random one, so that clients spread over them.
        self._name_servers = NameServerClient(
            peers, name_servers, first=rng.randrange(len(name_servers)), timeout_ms=timeout_ms, is_first_final=True
        )
        self._namespace = namespace or Namespace("")  # of the topics at the brokers, for errors
        self._rng = rng  # spreads requests that any broker of a topic can answer
        self._routes: dict[str, TopicRoute] = {}
        # Writable queues of each topic that was sent to.
        self._publish: dict[str, tuple[MessageQueue, ...]] = {}
        # Topics that do not exist yet: the default topic and the queue count that their routes were derived from.
        self._from_default: dict[str, tuple[str, int]] = {}
        # Look-ups in flight, by topic: concurrent sends of a new topic share one.
        self._fetching: dict[str, asyncio.Task[tuple[MessageQueue, ...]]] = {}
        self.addresses: dict[str, dict[int, str]] = {}
        """Addresses of the brokers in the cached routes, by broker name and broker id."""

    def cached_publish_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return the cached result of `publish_queues`; None if there is none."""
        return self._publish.get(topic)

    async def publish_queues(self, topic: str, default_topic: str, queue_nums: int) -> tuple[MessageQueue, ...]:
        """Return the writable queues of `topic`, of its own route or of the default topic's. Concurrent calls share one request.

        Raises:
            RouteNotFound: no broker accepts messages of the topic.
        """
        task = self._fetching.get(topic)
        if task is None:
            task = asyncio.ensure_future(self._fetch_publish_queues(topic, default_topic, queue_nums))
            self._fetching[topic] = task
            task.add_done_callback(lambda done: self._fetching.pop(topic, None))
        return await asyncio.shield(task)

    async def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of `topic`.

        Raises:
            RouteNotFound: no name server has a route of the topic.
        """
        route = self._routes.get(topic)
        if route is None or topic in self._from_default:
            route = await self.fetch(topic)
            self._from_default.pop(topic, None)
            self._store(topic, route)
        return subscribe_queues(topic, route)

    def cached_subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues in the cached route of `topic`; none without a route of its own."""
        route = None if topic in self._from_default else self._routes.get(topic)
        return subscribe_queues(topic, route) if route else ()

    async def refresh(self, topics: Iterable[str]) -> list[str]:
        """Fetch the routes of `topics` and of all topics that were sent to. Routes that cannot be fetched stay cached.

        Returns:
            The topics whose queues or brokers changed.
        """
        changed = []
        all_topics = {*topics, *self._publish}
        for number, topic in enumerate(all_topics):
            before = self._routes.get(topic)
            try:
                if topic in self._publish:
                    default = self._from_default.get(topic)
                    await self._fetch_publish_queues(topic, *default) if default else self._store(
                        topic, await self.fetch(topic)
                    )
                else:
                    self._store(topic, await self.fetch(topic))
            except RouteNotFound as error:
                log.debug("%s", error)
            except NO_RESPONSE as error:
                # No name server responds. Every further topic would wait for the same timeouts: an hour for a thousand topics.
                count = len(all_topics) - number
                log.warning("Could not refresh the routes of %d topics, keeping the cached ones: %s", count, error)
                break
            except (ReplyError, ProtocolError) as error:
                log.warning("Could not refresh the route of %s, keeping the cached one: %s", topic, error)
            if self._routes.get(topic) != before:
                changed.append(topic)
        self.addresses = addresses(self._routes.values())
        return changed

    async def fetch(self, topic: str) -> TopicRoute:
        """Fetch the route of `topic` from a name server; if one does not respond, from the next."""
        return await self._name_servers.fetch_route(topic)

    def master_address(self, broker: str) -> str | None:
        """Return the address of the broker's master; None if it has none."""
        return self.addresses.get(broker, {}).get(MASTER_ID)

    def masters(self) -> dict[str, str]:
        """Return the addresses of all masters by broker name."""
        return {broker: ids[MASTER_ID] for broker, ids in self.addresses.items() if MASTER_ID in ids}

    def is_replaced(self, broker: str, addr: str) -> bool:
        """Return whether another broker is the master now, and `addr` is not one of its slaves."""
        ids = self.addresses.get(broker, {})
        return MASTER_ID in ids and addr not in ids.values()

    def has_slaves(self, broker: str) -> bool:
        """Return whether a slave of the broker is known, which may become the master."""
        return any(number != MASTER_ID for number in self.addresses.get(broker, ()))

    def pull_address(self, broker: str, broker_id: int) -> BrokerAddress | None:
        """Return where to pull from, preferably from the server `broker_id`; None if the broker has no address."""
        return select_pull_address(self.addresses, broker, broker_id)

    def random_broker(self, topic: str) -> str | None:
        """Return the address of a random broker of the topic; None if the topic has no cached route."""
        route = self._routes.get(topic)
        addrs = [addr for data in route.broker_datas for addr in data.broker_addrs.values()] if route else []
        return self._rng.choice(addrs) if addrs else None

    def all_addresses(self, *, masters_only: bool) -> list[str]:
        """Return the addresses of all brokers in the cached routes."""
        return [
            addr
            for ids in self.addresses.values()
            for number, addr in ids.items()
            if number == MASTER_ID or not masters_only
        ]

    async def _fetch_publish_queues(self, topic: str, default_topic: str, queue_nums: int) -> tuple[MessageQueue, ...]:
        try:
            route = await self.fetch(topic)
            self._from_default.pop(topic, None)
        except RouteNotFound as not_found:
            # The broker creates the topic with the first send, by the default topic's permissions and queue count.
            try:
                route = cap_queues(await self.fetch(default_topic), queue_nums)
            except RouteNotFound:
                if topic == default_topic:
                    raise
                name = self._namespace.wrap(topic)
                fix = f"no broker that creates topics is registered; create it: ariane topic create {name}"
                raise RouteNotFound(topic, f"{not_found.reason}, and {fix}") from None
            self._from_default[topic] = (default_topic, queue_nums)
        queues = publish_queues(topic, route)
        if not queues:
            raise RouteNotFound(topic, "none of its brokers has a master and writable queues")
        self._publish[topic] = queues
        self._store(topic, route)
        return queues

    def _store(self, topic: str, route: TopicRoute) -> None:
        self._routes[topic] = route
        if topic in self._publish:
            # A route without writable queues is usually a restart of the master: the former queues are retried.
            self._publish[topic] = publish_queues(topic, route) or self._publish[topic]
        for broker, ids in addresses([route]).items():
            self.addresses[broker] = ids
