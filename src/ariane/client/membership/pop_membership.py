"""Membership of a `SimpleConsumer`: heartbeats, and the sources that it takes messages from in turn.

    receive ─→ each source once, without waiting ─ none ─→ the last of them is asked to wait ─ none ─→ again, from the next source
                   │                                          └ SLICE_S, or longer if it is the only one
                   └ error ─→ the source is suspended for a while; the others are served

A source is a topic at one broker. The broker chooses among its queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Self, TypeVar

from ariane.client.consuming.group_options import GroupOptions
from ariane.client.consuming.pop_requests import PopRequests, PopSource
from ariane.client.delivery.delivery_strategy import DeliveryServices
from ariane.client.delivery.popped_message import PoppedMessage, receipt_of
from ariane.client.delivery.simple_delivery import SimpleDelivery
from ariane.client.membership.admin_requests import identity_properties, settings_properties, task_stacks
from ariane.client.membership.fetcher import NOT_REGISTERED_CODES
from ariane.errors import ArianeError, ClientClosed, ReplyError, RouteNotFound
from ariane.model.backoff import Backoff
from ariane.net.connection import HandlerResult, Reply
from ariane.protocol import fastjson
from ariane.protocol.client_rules.transient import TRANSIENT_CODES, is_transient
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.callbacks import ConsumeStatus, RunningInfo, RunningInfoRequest
from ariane.protocol.requests.clients import ConsumerData, SubscriptionData
from ariane.protocol.requests.messaging import SQL92

log = logging.getLogger("ariane.client")

T = TypeVar("T")

SLICE_S = 1.0  # how long one of several sources may wait, while messages may arrive at the others
POLL_S = 5.0  # how long the only source may: Apache does not wake a parked request for a retry
EMPTY_PAUSE_S = 0.1  # after a source that was asked to wait and did not
SUSPENSION = Backoff(first_s=0.5, longest_s=10.0)
"""How long a source is suspended after an error: a broker that does not respond delays each call by its time limit."""
TRANSIENT = TRANSIENT_CODES | NOT_REGISTERED_CODES | {ResponseCode.POLLING_FULL}


class SourceFailure(NamedTuple):
    """A suspended source."""

    error: ArianeError
    times: int  # in a row
    until: float  # monotonic time


class PopMembership:
    """One consumer group at one client. Use it within `async with`, in an open `ClientInstance`."""

    def __init__(
        self,
        services: DeliveryServices,
        subscriptions: dict[str, SubscriptionData],
        requests: PopRequests,
        delivery: SimpleDelivery,
    ) -> None:
        self._instance = services.instance  # connections, routes and heartbeats
        self._options: GroupOptions = services.options
        self._rates = services.rates
        self._subscriptions = subscriptions  # by topic; the consumer changes them
        self._requests = requests
        self._delivery = delivery
        self._turn = self._instance.rng.randrange(1 << 16)  # members of a group begin at different sources
        self._failures: dict[PopSource, SourceFailure] = {}
        self._takes: set[asyncio.Task[Any]] = set()  # calls of `receive` that wait for a broker
        self._closing = asyncio.Event()
        self._started_ms = self._instance.clock.now_ms()
        self._open = AsyncExitStack()  # what `__aexit__` has to close, in reverse order

    async def __aenter__(self) -> Self:
        instance = self._instance
        async with AsyncExitStack() as opening:
            instance.register_consumer(self._options.group, self)
            opening.push_async_callback(instance.unregister, consumer_group=self._options.group)
            await instance.routes.refresh(self._subscriptions)
            for subscription in self._subscriptions.values():
                await self.check(subscription)
            await instance.heartbeat()
            opening.push_async_callback(self._close)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._open.aclose()

    async def check(self, subscription: SubscriptionData) -> None:
        """Let a broker compile an SQL92 expression. Raise ReplyError if it does not accept it."""
        if subscription.expression_type == SQL92:
            await self._instance.check_subscription(self._options.group, subscription)

    async def announce(self) -> None:
        """Fetch the routes of new topics and send the subscriptions to the brokers."""
        await self._instance.refresh_routes()
        await self._instance.heartbeat()

    def rates(self) -> dict[str, ConsumeStatus]:
        """Return the rates of the last minute by subscribed topic."""
        return {topic: self._rates.status(topic) for topic in list(self._subscriptions)}

    # --- receive ---

    async def receive(self, count: int, invisible_s: float, wait_s: float) -> list[PoppedMessage[Any]]:
        """Return messages of the next source that has any; none if there are none within `wait_s` seconds.

        Raises:
            ClientClosed: the consumer closes.
            ArianeError: the error is permanent, or there was no source without one until the time was over.
        """
        clock = self._instance.clock
        deadline = clock.monotonic() + wait_s
        while True:
            sources = self._sources()
            ready = [source for source in sources if self._suspended_s(source) <= 0]
            for source in ready:
                left_s = min(max(0.0, deadline - clock.monotonic()), POLL_S if len(sources) == 1 else SLICE_S)
                poll_s, asked_at = left_s if source is ready[-1] else 0.0, clock.monotonic()
                if messages := await self._take_or_suspend(source, count, invisible_s, poll_s):
                    return messages
                if source not in self._failures and clock.monotonic() - asked_at < poll_s / 2:
                    await self._until_closing(clock.sleep(EMPTY_PAUSE_S))
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                break
            if not sources:
                self._instance.refresh_routes_soon()  # the topic may have been created
            if not ready:
                pause_s = min((self._suspended_s(source) for source in sources), default=SLICE_S)
                await self._until_closing(clock.sleep(min(left_s, pause_s)))
        if not sources:
            topics = ", ".join(sorted(self._subscriptions))
            raise RouteNotFound(
                topics, "no broker with readable queues is in the routes; create the topic or start its brokers"
            )
        if all(source in self._failures for source in sources):
            raise self._failures[sources[0]].error
        return []

    async def _take_or_suspend(
        self, source: PopSource, count: int, invisible_s: float, poll_s: float
    ) -> list[PoppedMessage[Any]]:
        """Return messages of a source. After a transient error it is suspended for a while."""
        try:
            messages = await self._until_closing(self._take(source, count, invisible_s, poll_s))
        except ClientClosed:
            raise
        except ArianeError as error:
            if not self._is_transient(error, source):
                raise
            await self._suspend(source, error)
            return []
        if self._failures.pop(source, None) is not None:
            log.info("Group %s takes messages of %s from %s again", self._options.group, *source)
        return messages

    async def _take(self, source: PopSource, count: int, invisible_s: float, poll_s: float) -> list[PoppedMessage[Any]]:
        subscription, clock = self._subscriptions[source.topic], self._instance.clock
        asked_at, poll_ms = clock.monotonic(), round(poll_s * 1000)
        taken = await self._requests.take(source, subscription, count, round(invisible_s * 1000), poll_ms)
        if not taken:
            return []
        self._rates.record_pull(source.topic, len(taken), clock.monotonic() - asked_at)
        return await self._delivery.deliver(source, subscription, taken, invisible_s)

    def _sources(self) -> list[PopSource]:
        """Return all sources, each time from the next one on."""
        routes = self._instance.routes
        sources = sorted(
            {
                PopSource(topic, queue.broker)
                for topic in self._subscriptions
                for queue in routes.cached_subscribe_queues(topic)
            }
        )
        self._turn += 1
        first = self._turn % len(sources) if sources else 0
        return [*sources[first:], *sources[:first]]

    def _suspended_s(self, source: PopSource) -> float:
        failure = self._failures.get(source)
        return 0.0 if failure is None else failure.until - self._instance.clock.monotonic()

    async def _suspend(self, source: PopSource, error: ArianeError) -> None:
        before = self._failures.get(source)
        count = 1 if before is None else before.times + 1
        pause_s = SUSPENSION.delay_s(count)
        self._failures[source] = SourceFailure(error, count, self._instance.clock.monotonic() + pause_s)
        log.log(
            logging.WARNING if before is None else logging.INFO,
            "Group %s takes no messages of %s from %s for %g s: %s",
            self._options.group,
            *source,
            pause_s,
            error,
        )
        if isinstance(error, ReplyError) and error.code in NOT_REGISTERED_CODES:
            await self._instance.heartbeat_to(error.addr)

    def _is_transient(self, error: ArianeError, source: PopSource) -> bool:
        # A former master refuses with this code, until the routes name its successor.
        is_refused = isinstance(error, ReplyError) and error.code == ResponseCode.NO_PERMISSION
        return is_transient(error, TRANSIENT) or (is_refused and self._instance.routes.has_slaves(source.broker))

    async def _until_closing(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; messages that it takes after the caller was cancelled are given back.

        Raises:
            ClientClosed: the consumer closes.
        """
        task, closing = asyncio.ensure_future(work), asyncio.ensure_future(self._closing.wait())
        self._takes.add(task)
        task.add_done_callback(self._takes.discard)
        try:
            await asyncio.wait({task, closing}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.add_done_callback(self._on_abandoned)
            raise
        finally:
            closing.cancel()
        if not task.done() or task.cancelled():
            raise ClientClosed(f"consumer {self._options.group} was closed while it waited for messages")
        return task.result()

    def _on_abandoned(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            return
        if not self._closing.is_set():
            self._delivery.give_back(receipt_of(message) for message in task.result() or ())

    async def _close(self) -> None:
        self._closing.set()
        takes = list(self._takes)
        for task in takes:
            task.cancel()
        await asyncio.gather(*takes, return_exceptions=True)
        await self._delivery.close()

    # --- what the client instance calls (GroupRegistration) ---

    def describe(self) -> ConsumerData:
        """Return the group's entry in heartbeats."""
        return self._options.describe(self._subscriptions.values())

    def topics(self) -> list[str]:
        """Return the topics whose routes have to be current."""
        return list(self._subscriptions)

    def on_members_changed(self) -> None:
        """Do nothing: members share all queues."""

    def on_routes_changed(self, topics: list[str]) -> None:
        """Ask suspended sources of these topics again: another broker may serve them."""
        for source in [source for source in self._failures if source.topic in topics]:
            del self._failures[source]

    def handle_admin_request(self, command: Command) -> HandlerResult | None:
        """Return what this consumer does (307); None for requests about queues and listeners: it has none."""
        if command.code != RequestCode.GET_CONSUMER_RUNNING_INFO or self._closing.is_set():
            return None
        stacks = task_stacks() if decode_header(command, RunningInfoRequest).jstack_enable else None
        instance, options = self._instance, self._options
        described = instance.namespace.to_wire(self.describe())
        identity = identity_properties(instance, described, self._started_ms, is_orderly=False)
        info = RunningInfo(
            jstack=stacks,
            properties={**settings_properties(options.settings), **identity},
            status_table={instance.namespace.wrap(topic): status for topic, status in self.rates().items()},
            subscription_set=described.subscription_data_set,
        )
        return Reply(body=fastjson.write(info))
