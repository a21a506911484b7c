"""What the clients of one process share: connections, routes, heartbeats, one client id. [MQClientInstance]

A producer or consumer makes one of its own unless it is given one:

    async with Instance("127.0.0.1:9876") as instance:
        async with Producer("a", instance=instance) as producer, PushConsumer("b", instance=instance, …): …

Each group joins as a Part: what to say about it in heartbeats, and whom to wake when its members changed.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from random import Random
from types import TracebackType
from typing import Protocol, Self

from ariane.client import validation
from ariane.client.request_reply import PendingReplies
from ariane.client.route_cache import RouteCache
from ariane.client.settings import ClientSettings
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ArianeError, ClientClosed, ConfigError, ConnectionLost, ReplyError, RequestTimeout
from ariane.model.ids import unique_ids
from ariane.model.message import PGROUP
from ariane.net.connection import Handler, HandlerResult, Peer, Reply
from ariane.net.connection_pool import ConnectionPool
from ariane.net.interfaces import local_ip
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import fastjson, record, signing
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import typed
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
    """`async with Instance(namesrv)`: leaving it closes the connections; close producers and consumers before."""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        settings: ClientSettings | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: Random | None = None,
    ) -> None:
        self.settings = validation.optional("client", settings, ClientSettings) or ClientSettings()
        self.clock = clock
        self.rng = rng or Random()  # noqa: S311 - spreads load, guards nothing
        ip = self.settings.client_ip or local_ip()
        name = self.settings.instance_name or f"{os.getpid()}#{time.time_ns()}{next(_numbers)}"
        self.client_id = f"{ip}@{name}"
        self.new_message_id = unique_ids(clock.now_ms, ip=ip)
        self.name_servers = validation.name_servers(namesrv)
        self._producers: set[str] = set()
        self._consumers: dict[str, GroupRegistration] = {}
        self._checks: dict[str, TransactionCheckHandler] = {}
        self._tasks = BackgroundTasks("client")
        self._registered_brokers: set[str] = set()
        self._versions: dict[str, int] = {}
        self._greeted_connections: dict[str, int] = {}
        self.replies = PendingReplies(clock)
        self._peers: ConnectionPool | None = None
        self._routes: RouteCache | None = None

    @classmethod
    def shared_or_new(
        cls, namesrv: str | Sequence[str] | None, client: ClientSettings | None, instance: ClientInstance | None
    ) -> ClientInstance:
        """Return `instance`, or a new instance for the name servers: a client is given one or the other."""
        if instance is None:
            if namesrv is None:
                fix = "give either the name servers' addresses or an instance to share"
                raise ConfigError("namesrv", namesrv, fix)
            return cls(namesrv, client)
        if namesrv is not None:
            raise ConfigError("namesrv", namesrv, "leave it out: the instance to share has name servers of its own")
        if client is not None:
            raise ConfigError("client", client, "leave it out: the instance to share has settings of its own")
        return validation.of_kind("instance", instance, cls)

    async def __aenter__(self) -> Self:
        credentials = self.settings.credentials
        handlers: dict[int, Handler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._on_members_changed,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.replies.on_reply,
            RequestCode.CHECK_TRANSACTION_STATE: self._on_transaction_check,
            **dict.fromkeys(ADMIN_REQUESTS, self._handle_group_request),
        }
        self._peers = ConnectionPool(
            handlers, sign=functools.partial(signing.sign, credentials) if credentials else None
        )
        self._routes = RouteCache(
            self._peers, self.name_servers, timeout_ms=self.settings.request_timeout_ms, rng=self.rng
        )
        self._tasks.repeat(self.settings.route_refresh_ms / 1000, self.refresh_routes, "refresh routes")
        self._tasks.repeat(self.settings.heartbeat_ms / 1000, self.heartbeat, "heartbeat")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()
        peers, self._peers, self._routes = self._peers, None, None
        if peers is not None:
            await peers.__aexit__(kind, error, trace)

    @property
    def peers(self) -> ConnectionPool:
        if self._peers is None:
            raise ClientClosed("the client instance is not open: use it within `async with`")
        return self._peers

    @property
    def routes(self) -> RouteCache:
        if self._routes is None:
            raise ClientClosed("the client instance is not open: use it within `async with`")
        return self._routes

    # --- groups ---

    def register_producer(self, group: str) -> None:
        if group in self._producers:
            raise ConfigError("group", group, "this instance has a producer of the group already: share that one")
        self._producers.add(group)
        self._greeted_connections.clear()

    def register_transaction_check(self, group: str, answer: TransactionCheckHandler | None) -> None:
        """Give `answer` what brokers ask about transactions of `group`; None: nobody answers any longer."""
        if answer is None:
            self._checks.pop(group, None)
            return
        if group in self._checks:
            raise ConfigError("group", group, "this instance has a producer of the group already: share that one")
        self._checks[group] = answer

    def register_consumer(self, group: str, registration: GroupRegistration) -> None:
        if group in self._consumers:
            raise ConfigError("group", group, "this instance has a consumer of the group already: use another instance")
        self._consumers[group] = registration

    async def unregister(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """A group is no longer here: tell the brokers, so that they need not wait for a heartbeat that does not come."""
        if producer_group is not None:
            self._producers.discard(producer_group)
        if consumer_group is not None:
            self._consumers.pop(consumer_group, None)
        request = UnregisterClient(self.client_id, producer_group, consumer_group)
        await self._request_all(sorted(self._registered_brokers), RequestCode.UNREGISTER_CLIENT, request)

    async def check_subscription(self, group: str, subscription: SubscriptionData) -> None:
        """Ask one broker of the topic whether it can filter so: ReplyError when it cannot, as Java clients do.

        A broker that does not answer does not keep the consumer from starting.
        """
        addr = self.routes.random_broker(subscription.topic)
        if addr is None:
            return
        body = fastjson.write(CheckClient(self.client_id, group, subscription))
        try:
            await self.peers.request_ok(
                addr, RequestCode.CHECK_CLIENT_CONFIG, body=body, timeout_ms=self.settings.request_timeout_ms
            )
        except (ConnectionLost, RequestTimeout) as error:
            log.warning("whether %s is filtered as group %s wants is not known: %s", subscription.topic, group, error)

    def broker_version(self, addr: str) -> int | None:
        """The version that the broker's answers to heartbeats carry; None before the first."""
        return self._versions.get(addr)

    # --- heartbeats and routes ---

    async def heartbeat(self) -> None:
        """Tell every broker what groups are here; masters only while there is no consumer."""
        targets = self.routes.all_addresses(masters_only=not self._consumers)
        if targets and (self._producers or self._consumers):
            await self._request_all(targets, RequestCode.HEART_BEAT, body=self._heartbeat_body())
            self._registered_brokers.update(targets)

    async def heartbeat_to(self, addr: str) -> None:
        """Tell one broker, which does not seem to know."""
        await self._request_all([addr], RequestCode.HEART_BEAT, body=self._heartbeat_body())
        self._registered_brokers.add(addr)

    async def refresh_routes(self) -> None:
        topics = {topic for registration in self._consumers.values() for topic in registration.topics()}
        changed = await self.routes.refresh(topics)
        if changed:
            for registration in list(self._consumers.values()):
                registration.on_routes_changed(changed)
        self.register_with_new_brokers()

    def register_with_new_brokers(self) -> None:
        """Tell the brokers that a route brought to light what groups are here; nobody waits for their answers."""
        found = set(self.routes.all_addresses(masters_only=not self._consumers)) - self._registered_brokers
        if found and (self._producers or self._consumers):
            self._registered_brokers |= found
            body = self._heartbeat_body()
            self._tasks.start(self._request_all(sorted(found), RequestCode.HEART_BEAT, body=body), "meet new brokers")

    async def send_initial_heartbeat(self, addr: str) -> None:
        """Be sure that a broker knows this client on the connection that is open now; ArianeError when it cannot be told."""
        connection = await self.peers.connect(addr)
        if self._greeted_connections.get(addr) != connection.peer.id:
            timeout_ms = self.settings.request_timeout_ms
            await self.peers.request_ok(
                addr, RequestCode.HEART_BEAT, body=self._heartbeat_body(), timeout_ms=timeout_ms
            )
            self._greeted_connections[addr] = connection.peer.id
            self._registered_brokers.add(addr)

    def _heartbeat_body(self) -> bytes:
        consumers = tuple(registration.describe() for registration in self._consumers.values())
        producers = tuple(ProducerData(group) for group in sorted(self._producers))
        return fastjson.write(HeartbeatData(self.client_id, consumers, producers))

    async def _request_all(
        self, targets: Iterable[str], code: RequestCode, header: UnregisterClient | None = None, body: bytes = b""
    ) -> None:
        async def tell(addr: str) -> None:
            try:
                answer = await self.peers.request_ok(
                    addr, code, header, body, timeout_ms=self.settings.request_timeout_ms
                )
                self._versions[addr] = answer.version
            except ArianeError as error:
                log.warning("%s: %s", code.name, error)

        await asyncio.gather(*map(tell, targets))

    def _on_transaction_check(self, command: Command, peer: Peer) -> Reply | None:
        """CHECK_TRANSACTION_STATE: the half message in the body names the group; nothing is answered here."""
        group = record.decode(command.body).property_map().get(PGROUP, "")
        answer = self._checks.get(group)
        if answer is None:
            log.info("%s asks about a transaction of group %s, which is not here", peer.addr, group)
        else:
            answer(command, peer)
        return None

    def _on_members_changed(self, command: Command, peer: Peer) -> Reply | None:
        registration = self._consumers.get(typed(command, GroupRef).consumer_group)
        if registration is not None:
            registration.on_members_changed()
        return None

    def _handle_group_request(self, command: Command, peer: Peer) -> HandlerResult:
        request = typed(command, OfGroup)
        group = request.consumer_group or request.group or ""
        registration = self._consumers.get(group)
        answer = registration.handle_admin_request(command) if registration is not None else None
        if answer is None:
            # Java's wording, which tools show as it is.
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer")
        return answer
