"""Client instance: connections, routes, heartbeats and the client id that the clients of a process share. [MQClientInstance]

A producer or consumer creates its own instance unless it is given one:

    async with ClientInstance("127.0.0.1:9876") as instance:
        async with Producer(instance, "a") as producer, PushConsumer(instance, "b", …): …

Each consumer group registers as a `GroupRegistration`, which describes itself for heartbeats and is notified of changes.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Protocol, Self

from ariane.client.instance import validation
from ariane.client.instance.namespace import Namespace, endpoint_namespace
from ariane.client.instance.namespaced_pool import NamespacedPool
from ariane.client.instance.pending_replies import PendingReplies
from ariane.client.instance.route_cache import RouteCache
from ariane.client.instance.settings import ClientSettings
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ArianeError, ClientClosed, ConfigError, ConnectionLost, ReplyError, RequestTimeout
from ariane.model.backoff import Backoff
from ariane.model.ids import unique_ids
from ariane.model.message import PGROUP
from ariane.net.connection import Handler, HandlerResult, Peer, Reply
from ariane.net.interfaces import local_ip
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.fail_fast_pool import FailFastPool
from ariane.net.pools.server_health import ServerHealth
from ariane.net.tasks import BackgroundTasks
from ariane.net.tls import tls_context
from ariane.protocol import fastjson, signing
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.callbacks import OfGroup
from ariane.protocol.requests.clients import (
    CheckClient,
    ConsumerData,
    GroupRef,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    UnregisterClient,
)

log = logging.getLogger("ariane.client")

TransactionCheckHandler = Callable[[Command, Peer], None]

UNREGISTER_TIMEOUT_S = 1.0
REFRESH_BACKOFF = Backoff(first_s=0.5, longest_s=2.0)
"""Between refreshes after failed requests, while the routes stay the same: soon enough for a new master, rare for name servers."""

_numbers = itertools.count(1)

# Requests that name a consumer group and are handled by it.
ADMIN_REQUESTS = (
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)


class GroupRegistration(Protocol):
    """A consumer group of this client, as its instance sees it: implemented by `GroupMembership`."""

    def describe(self) -> ConsumerData:
        """Return the group's entry in heartbeats."""
        ...

    def topics(self) -> Iterable[str]:
        """Return the topics whose routes have to be current."""
        ...

    def on_members_changed(self) -> None:
        """Rebalance: a member joined or left."""
        ...

    def on_routes_changed(self, topics: list[str]) -> None:
        """Rebalance: queues or brokers of `topics` changed."""
        ...

    def handle_admin_request(self, command: Command) -> HandlerResult | None:
        """Handle one of ADMIN_REQUESTS; None if it is not supported or the consumer is not running."""
        ...


class ClientInstance:
    """Connections, routes and heartbeats, shared by any number of producers and consumers.

    Use it within `async with`, and close its producers and consumers first.

    Args:
        namesrv: Name server addresses, `"host:port;host:port"` or a list.
        settings: Settings of the instance.
        health: Which servers are silent, for programs that end with their task: they wait for a silent server once, and report it
            themselves. None: each request has its own time limit, and a warning is logged for each that failed.
        clock: Source of time; tests replace it.
        rng: Random numbers that spread load over servers; tests replace it.

    Raises:
        ConfigError: an argument cannot be used.

    Example:
        async with ClientInstance("127.0.0.1:9876") as instance:
            async with Producer(instance, "shop") as producer:
                await producer.send(Message(topic="orders", body=b"created"))
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        settings: ClientSettings | None = None,
        *,
        health: ServerHealth | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rng: Random | None = None,
    ) -> None:
        self._health = health  # None: a client that runs for long, see the arguments
        self.settings = validation.optional("client", settings, ClientSettings) or ClientSettings()
        self._tls = tls_context(self.settings)  # None: connections are not encrypted
        self.clock = clock
        self.rng = rng or Random()  # noqa: S311 - spreads load, protects nothing
        ip = self.settings.client_ip or local_ip()
        name = self.settings.instance_name or f"{os.getpid()}#{time.time_ns()}{next(_numbers)}"
        self.client_id = f"{ip}@{name}"  # `ip@name`: identifies this member in heartbeats and in assignments
        self.new_message_id = unique_ids(clock.now_ms, ip=ip)
        self.name_servers = validation.name_servers(namesrv)  # validated; a look-up tries one after another
        # Names of topics and groups on the wire.
        self.namespace = Namespace(self.settings.namespace or endpoint_namespace(self.name_servers))
        # Producer groups, and consumer groups with what describes and wakes them.
        self._producers: set[str] = set()
        self._consumers: dict[str, GroupRegistration] = {}  # by group
        # Handlers of transaction checks, by producer group.
        self._checks: dict[str, TransactionCheckHandler] = {}
        self._tasks = BackgroundTasks("client")  # heartbeats and route refreshes
        # Brokers that received a heartbeat; `unregister` reports to these.
        self._registered_brokers: set[str] = set()
        # Version in the latest heartbeat response of each broker.
        self._versions: dict[str, int] = {}
        # Id of the connection on which each broker received an initial heartbeat.
        self._greeted_connections: dict[str, int] = {}
        self.replies = PendingReplies(clock)  # requests of `Producer.request` that wait for a reply message
        # Connections to brokers and name servers; None until the instance is open.
        self._peers: ConnectionPool | None = None
        self._routes: RouteCache | None = None  # None until the instance is open
        self._refreshing: asyncio.Task[None] | None = None  # the refresh after the last failed request
        self._refreshed_at = -math.inf  # monotonic time of its end
        self._vain_refreshes = 0  # of these in a row, those that found no other routes

    @classmethod
    def shared_or_new(
        cls, namesrv: str | Sequence[str] | ClientInstance, client: ClientSettings | None
    ) -> ClientInstance:
        """Return `namesrv` if it is an instance, otherwise a new instance for these name servers.

        Raises:
            ConfigError: the addresses or the settings cannot be used.
        """
        if not isinstance(namesrv, ClientInstance):
            return cls(namesrv, client)
        if client is not None:
            raise ConfigError("client", client, "omit it: the shared instance has settings of its own")
        return namesrv

    async def __aenter__(self) -> Self:
        credentials = self.settings.credentials
        handlers: dict[int, Handler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._on_members_changed,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.replies.on_reply,
            RequestCode.CHECK_TRANSACTION_STATE: self._on_transaction_check,
            **dict.fromkeys(ADMIN_REQUESTS, self._handle_group_request),
        }
        sign = functools.partial(signing.sign, credentials) if credentials else None
        if self.namespace:
            self._peers = NamespacedPool(self.namespace, handlers, sign=sign, tls=self._tls)
        elif self._health is not None:
            self._peers = FailFastPool(
                self.name_servers, handlers, health=self._health, sign=sign, tls=self._tls, clock=self.clock
            )
        else:
            self._peers = ConnectionPool(handlers, sign=sign, tls=self._tls)
        self._routes = RouteCache(
            self._peers,
            self.name_servers,
            timeout_ms=self.settings.request_timeout * 1000,
            rng=self.rng,
            namespace=self.namespace,
        )
        self._tasks.repeat(self.settings.route_refresh_interval, self.refresh_routes, "refresh routes")
        self._tasks.repeat(self.settings.heartbeat_interval, self.heartbeat, "heartbeat")
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._tasks.close()
        peers, self._peers, self._routes = self._peers, None, None
        if peers is not None:
            await peers.__aexit__(*exception)

    @property
    def peers(self) -> ConnectionPool:
        """Connections to brokers and name servers. Raises ClientClosed if the instance is not open."""
        if self._peers is None:
            raise ClientClosed("the client instance is not open: use it within `async with`")
        return self._peers

    @property
    def routes(self) -> RouteCache:
        """Cached routes. Raises ClientClosed if the instance is not open."""
        if self._routes is None:
            raise ClientClosed("the client instance is not open: use it within `async with`")
        return self._routes

    # --- groups ---

    def register_producer(self, group: str) -> None:
        """Add a producer group to the heartbeats.

        Raises:
            ConfigError: the group is registered already.
        """
        if group in self._producers:
            raise ConfigError("group", group, "this instance has a producer of the group already; share that producer")
        self._producers.add(group)
        # The brokers have to learn of the new group on the connections that are open already.
        self._greeted_connections.clear()

    def register_transaction_check(self, group: str, response: TransactionCheckHandler | None) -> None:
        """Set the handler of the brokers' transaction checks for `group`; None removes it.

        Raises:
            ConfigError: the group has a handler already.
        """
        if response is None:
            self._checks.pop(group, None)
            return
        if group in self._checks:
            raise ConfigError("group", group, "this instance has a producer of the group already; share that producer")
        self._checks[group] = response

    def register_consumer(self, group: str, registration: GroupRegistration) -> None:
        """Add a consumer group to the heartbeats and pass its notifications and admin requests on.

        Raises:
            ConfigError: the group is registered already.
        """
        if group in self._consumers:
            raise ConfigError("group", group, "this instance has a consumer of the group already; use another instance")
        self._consumers[group] = registration

    async def unregister(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Remove a group and report it to the brokers, so that they do not wait for its next heartbeat.

        A program that ends waits for UNREGISTER_TIMEOUT_S only: a broker removes the group when the connection closes, too.
        """
        if producer_group is not None:
            self._producers.discard(producer_group)
        if consumer_group is not None:
            self._consumers.pop(consumer_group, None)
        request = UnregisterClient(self.client_id, producer_group, consumer_group)
        timeout_s = None if self._health is None else UNREGISTER_TIMEOUT_S
        code, brokers = RequestCode.UNREGISTER_CLIENT, sorted(self._registered_brokers)
        await self._request_all(brokers, code, request, timeout_s=timeout_s)

    async def check_subscription(self, group: str, subscription: SubscriptionData) -> None:
        """Ask one broker of the topic whether it accepts the subscription, as Java clients do.

        A broker that does not respond does not prevent the consumer from starting.

        Raises:
            ReplyError: the broker rejects the subscription.
        """
        addr = self.routes.random_broker(subscription.topic)
        if addr is None:
            return
        body = fastjson.write(self.namespace.to_wire(CheckClient(self.client_id, group, subscription)))
        try:
            await self.peers.request_ok(
                addr, RequestCode.CHECK_CLIENT_CONFIG, body=body, timeout_ms=self.settings.request_timeout * 1000
            )
        except (ConnectionLost, RequestTimeout) as error:
            log.warning(
                "Could not check the subscription of %s for group %s, starting without the check: %s",
                subscription.topic,
                group,
                error,
            )

    def broker_version(self, addr: str) -> int | None:
        """Return the version in the broker's heartbeat responses; None before the first."""
        return self._versions.get(addr)

    # --- heartbeats and routes ---

    async def heartbeat(self) -> None:
        """Send a heartbeat to every broker; to masters only while this client has no consumers."""
        targets = self.routes.all_addresses(masters_only=not self._consumers)
        if targets and (self._producers or self._consumers):
            await self._request_all(targets, RequestCode.HEART_BEAT, body=self._heartbeat_body())
            self._registered_brokers.update(targets)

    async def heartbeat_to(self, addr: str) -> None:
        """Send a heartbeat to one broker, which does not list this client."""
        await self._request_all([addr], RequestCode.HEART_BEAT, body=self._heartbeat_body())
        self._registered_brokers.add(addr)

    async def refresh_routes(self) -> bool:
        """Fetch the routes of all topics in use and notify the consumer groups of changes. Return whether there are any.

        Requests in flight to a master that another broker has replaced fail at once: a master that was cut off never answers them.
        """
        topics = {topic for registration in self._consumers.values() for topic in registration.topics()}
        masters = self.routes.masters()
        changed = await self.routes.refresh(topics)
        for broker, addr in masters.items():
            if self.routes.is_replaced(broker, addr):
                self.peers.abort(addr)
        if changed:
            for registration in list(self._consumers.values()):
                registration.on_routes_changed(changed)
        self.register_with_new_brokers()
        return bool(changed)

    def refresh_routes_soon(self) -> asyncio.Task[None]:
        """Fetch the routes again, because a broker did not serve a request: another one may have replaced it.

        Concurrent callers share one refresh. The first one begins at once, the next ones after REFRESH_BACKOFF.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._tasks.start(self._refresh_again(), "refresh routes after a failed request")
        return self._refreshing

    async def _refresh_again(self) -> None:
        if self._vain_refreshes:
            # Clients that lost the same broker do not load the name servers at the same instants.
            pause_s = REFRESH_BACKOFF.delay_s(self._vain_refreshes) * self.rng.uniform(0.75, 1)
            await self.clock.sleep(max(0.0, self._refreshed_at + pause_s - self.clock.monotonic()))
        has_changed = False
        try:
            has_changed = await self.refresh_routes()
        finally:
            self._refreshed_at = self.clock.monotonic()
            self._vain_refreshes = 0 if has_changed else self._vain_refreshes + 1

    def register_with_new_brokers(self) -> None:
        """Send a heartbeat to brokers that a route revealed, without waiting for their responses."""
        new = set(self.routes.all_addresses(masters_only=not self._consumers)) - self._registered_brokers
        if new and (self._producers or self._consumers):
            self._registered_brokers |= new
            body = self._heartbeat_body()
            self._tasks.start(
                self._request_all(sorted(new), RequestCode.HEART_BEAT, body=body), "register with new brokers"
            )

    async def send_initial_heartbeat(self, addr: str) -> None:
        """Send a heartbeat to a broker unless the open connection carried one already.

        Brokers bind a client id to a connection; they push replies only to connections that sent a heartbeat.

        Raises:
            ArianeError: the broker did not respond.
        """
        connection = await self.peers.connect(addr)
        if self._greeted_connections.get(addr) != connection.peer.id:
            timeout_ms = self.settings.request_timeout * 1000
            await self.peers.request_ok(
                addr, RequestCode.HEART_BEAT, body=self._heartbeat_body(), timeout_ms=timeout_ms
            )
            self._greeted_connections[addr] = connection.peer.id
            self._registered_brokers.add(addr)

    def _heartbeat_body(self) -> bytes:
        consumers = tuple(registration.describe() for registration in self._consumers.values())
        producers = tuple(ProducerData(group) for group in sorted(self._producers))
        return fastjson.write(self.namespace.to_wire(HeartbeatData(self.client_id, consumers, producers)))

    async def _request_all(
        self,
        targets: Iterable[str],
        code: RequestCode,
        header: UnregisterClient | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> None:
        timeout_ms = (timeout_s or self.settings.request_timeout) * 1000

        async def send(addr: str) -> None:
            try:
                response = await self.peers.request_ok(addr, code, header, body, timeout_ms=timeout_ms)
                self._versions[addr] = response.version
            except ArianeError as error:
                log.log(logging.WARNING if self._health is None else logging.INFO, "%s failed: %s", code.name, error)

        await asyncio.gather(*map(send, targets))

    def _on_transaction_check(self, command: Command, peer: Peer) -> Reply | None:
        """Handle CHECK_TRANSACTION_STATE, which has no response. The half message in the body names the group."""
        group = self.namespace.unwrap(record.decode(command.body).property_map().get(PGROUP, ""))
        response = self._checks.get(group)
        if response is None:
            log.info(
                "Ignoring a transaction check from %s: group %s has no transaction producer at this client",
                peer.addr,
                group,
            )
        else:
            response(command, peer)
        return None

    def _on_members_changed(self, command: Command, peer: Peer) -> Reply | None:
        registration = self._consumers.get(decode_header(command, GroupRef).consumer_group)
        if registration is not None:
            registration.on_members_changed()
        return None

    def _handle_group_request(self, command: Command, peer: Peer) -> HandlerResult:
        request = decode_header(command, OfGroup)
        group = request.consumer_group or request.group or ""
        registration = self._consumers.get(group)
        response = registration.handle_admin_request(command) if registration is not None else None
        if response is None:
            # Java's wording, which tools show as it is.
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer")
        return response
