"""Consuming: what arrives is given to a listener. [DefaultMQPushConsumer]

    async def listener(messages):
        for message in messages: …            # returning means consumed; raising means deliver again later

    async with PushConsumer("stock", "127.0.0.1:9876", {"orders": "paid || shipped"}, listener, start="first"):
        await stopped.wait()

The members of a group share the queues, or each of them reads all (`message_model="broadcasting"`). With `orderly=True`
each queue is consumed in order, one call at a time.
A message may come twice (after a crash, at a rebalance), never not at all: offsets follow only what is consumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import NamedTuple, Self

from ariane.client import admin_requests, validation
from ariane.client.assignment_strategy import AssignmentStrategy, average
from ariane.client.client_instance import ClientInstance, GroupRegistration
from ariane.client.concurrent_delivery import ConcurrentDelivery
from ariane.client.fetcher import FetchContext
from ariane.client.hooks import ConsumeHook
from ariane.client.listener_invoker import Listener, ListenerInvoker
from ariane.client.local_offsets import DropFailed, LocalOffsets, offsets_path
from ariane.client.offset_store import OffsetStore, StartPosition
from ariane.client.orderly_delivery import OrderlyDelivery
from ariane.client.process_queue import ProcessQueue
from ariane.client.queue_locks import QueueLockClient
from ariane.client.rates import ConsumeRates
from ariane.client.rebalancer import RebalanceContext, Rebalancer
from ariane.client.send_back import SendBack, SendBackStrategy
from ariane.client.sender import MessageSender
from ariane.client.settings import ClientSettings, ConsumerSettings, ProducerSettings, TraceSettings
from ariane.client.subscriptions import check_topic, tag_subscription
from ariane.client.trace_dispatcher import TraceDispatcher, trace_settings
from ariane.errors import ClientClosed, ConfigError
from ariane.filter import tags
from ariane.model.message import MessageQueue
from ariane.model.topic import retry_topic
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.requests.clients import ConsumerData, SubscriptionData
from ariane.protocol.requests.messaging import SQL92

log = logging.getLogger("ariane.client")

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"  # the group that every client sends its retries as
RECONSUME_MAX = 16  # concurrent listeners, when nothing else is set
UNLIMITED = 2**31 - 1


class Sql(NamedTuple):
    """An SQL92 expression on properties as a subscription: `Sql("price > 100 AND region IN ('north', 'south')")`.

    The broker compiles it (4.9.4 with enablePropertyFilter=true); what it does not understand raises ReplyError 23 at the
    start, or at `subscribe`.
    """

    expression: str


class PushConsumer:
    """A member of a consumer group. Give either `namesrv` or an open `instance` that is to be shared.

    `subscriptions` maps topics to tag expressions (`*`, or tags joined by `||`), or to `Sql(…)`. `start` counts only for
    queues of which the group has no stored offset: "first", "last", or a time in milliseconds since the epoch.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        subscriptions: Mapping[str, str | Sql] | None = None,
        listener: Listener | None = None,
        *,
        start: StartPosition = "last",
        orderly: bool = False,
        strategy: AssignmentStrategy = average,
        settings: ConsumerSettings | None = None,
        client: ClientSettings | None = None,
        trace: TraceSettings | bool = False,
        hooks: Sequence[ConsumeHook] = (),
        instance: ClientInstance | None = None,
    ) -> None:
        self.group = validation.group_name(group)
        self.settings = validation.optional("settings", settings, ConsumerSettings) or ConsumerSettings()
        checked: Listener = validation.callback("listener", listener, "messages")
        topics = validation.subscriptions(subscriptions)
        validation.of_kind("orderly", orderly, bool)
        self._instance = ClientInstance.shared_or_new(namesrv, client, instance)
        self._owns_instance = instance is None
        self._listener = checked
        self._start = validation.start(start)
        self._is_orderly = orderly
        self._strategy: AssignmentStrategy = validation.callback("strategy", strategy, "me", "members", "queues")
        self._trace_settings = trace_settings(trace)
        self._hooks: tuple[ConsumeHook, ...] = validation.callbacks("hooks", hooks, "event")
        self._subscriptions = {topic: self._subscription(topic, expression) for topic, expression in topics.items()}
        if self._is_broadcasting:
            self._check_name()
        else:
            retry = retry_topic(self.group)
            self._subscriptions[retry] = self._subscription(retry, tags.ALL)
        self._allocation: Rebalancer | None = None
        self._answers: dict[int, admin_requests.Answer] = {}
        self._open = AsyncExitStack()
        self.trace: TraceDispatcher | None = None
        """The trace queue and its counters (`sent`, `dropped`, `failed`), when tracing is on."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            if self._owns_instance:
                await opening.enter_async_context(self._instance)
            part = GroupRegistration(
                self._describe,
                lambda: list(self._subscriptions),
                self._wake,
                lambda changed: self._wake(),
                self._answers,
            )
            self._instance.register_consumer(self.group, part)
            opening.push_async_callback(self._instance.unregister, consumer_group=self.group)
            hooks = self._hooks
            if self._trace_settings is not None:
                tracer = TraceDispatcher.of_client(self._instance, self.group, "CONSUME", self._trace_settings)
                self.trace = await opening.enter_async_context(tracer)
                hooks = (*hooks, self.trace.on_consume)
            await self._begin(hooks, opening)
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member reads now."""
        return self._running().queues

    async def subscribe(self, topic: str, expression: str | Sql = tags.ALL) -> None:
        """Read `topic` as well, or with another expression. All members of a group must subscribe to the same."""
        self._running()
        subscription = self._subscription(topic, expression)
        if isinstance(expression, Sql):
            await self._instance.routes.refresh([topic])
            await self._instance.check_subscription(self.group, subscription)
        self._subscriptions[topic] = subscription
        await self._subscriptions_changed()

    async def unsubscribe(self, topic: str) -> None:
        """Read `topic` no longer."""
        self._running()
        self._subscriptions.pop(topic, None)
        await self._subscriptions_changed()

    # --- wiring ---

    async def _begin(self, hooks: Sequence[ConsumeHook], opening: AsyncExitStack) -> None:
        instance, settings = self._instance, self.settings
        timeout_ms = instance.settings.request_timeout_ms
        offsets = await self._offsets(timeout_ms)
        rates = ConsumeRates(instance.clock.monotonic)
        listening = self._listening(hooks, rates)
        listeners = self._listeners(listening, offsets)
        locks = None
        if self._is_orderly and not self._is_broadcasting:
            locks = QueueLockClient(instance.peers, instance.routes, self.group, instance.client_id)

        def fetching(moved: Callable[[ProcessQueue, int], None]) -> FetchContext:
            return FetchContext(
                peers=instance.peers,
                routes=instance.routes,
                offsets=offsets,
                group=self.group,
                settings=settings,
                is_orderly=self._is_orderly,
                subscription=self._subscriptions.get,
                arrived=listeners.on_messages,
                moved=moved,
                heartbeat_to=instance.heartbeat_to,
                monotonic=instance.clock.monotonic,
                sleep=instance.clock.sleep,
                broker_version=instance.broker_version,
                rates=rates,
            )

        allocation = Rebalancer(
            RebalanceContext(
                peers=instance.peers,
                routes=instance.routes,
                offsets=offsets,
                locks=locks,
                listeners=listeners,
                group=self.group,
                client_id=instance.client_id,
                strategy=self._strategy,
                start=self._start,
                topics=lambda: self._subscriptions,
                fetching=fetching,
                timeout_ms=timeout_ms,
                period_s=settings.rebalance_ms / 1000,
                monotonic=instance.clock.monotonic,
                heartbeat_to=instance.heartbeat_to,
                own_share=list if self._is_broadcasting else None,
            )
        )
        await instance.routes.refresh(self._subscriptions)
        for subscription in self._subscriptions.values():
            if subscription.expression_type == SQL92:
                await instance.check_subscription(self.group, subscription)
        await instance.heartbeat()
        commits = BackgroundTasks("offsets")

        started_ms = instance.clock.now_ms()

        async def close() -> None:
            self._allocation = None
            self._answers.clear()
            await allocation.stop()
            await listeners.close(settings.close_wait_ms / 1000)
            await commits.close()
            await allocation.leave()

        opening.push_async_callback(close)
        self._allocation = allocation
        self._answers.update(
            admin_requests.answers(
                admin_requests.AdminRequestHandler(
                    group=self.group,
                    settings=lambda: self._texts(started_ms),
                    subscriptions=self._subscriptions.values,
                    is_orderly=self._is_orderly,
                    allocation=allocation,
                    offsets=offsets,
                    listening=listening,
                    rates=rates,
                    clock=instance.clock,
                )
            )
        )
        listeners.start()
        allocation.start()
        commits.every(settings.commit_ms / 1000, lambda: offsets.commit(allocation.committable), "commit")

    @property
    def _is_broadcasting(self) -> bool:
        return self.settings.message_model == "broadcasting"

    def _check_name(self) -> None:
        name = self._instance.settings.instance_name
        if not name or "/" in name or name in (".", ".."):
            fix = (
                "a broadcasting consumer finds its offsets by this name: give one that stays the same after a restart, "
                "that no other process of this machine has, and that can name a directory"
            )
            raise ConfigError("instance_name", name, fix)

    async def _offsets(self, timeout_ms: int) -> OffsetStore:
        instance = self._instance
        if not self._is_broadcasting:
            return OffsetStore(instance.peers, instance.routes, self.group, timeout_ms=timeout_ms)
        path = offsets_path(self.settings.offsets_dir, instance.client_id, self.group)
        local = LocalOffsets(instance.peers, instance.routes, self.group, timeout_ms=timeout_ms, path=path)
        await local.load()
        return local

    def _listening(self, hooks: Sequence[ConsumeHook], rates: ConsumeRates) -> ListenerInvoker:
        return ListenerInvoker(
            self.group,
            self._listener,
            hooks,
            clock=self._instance.clock,
            make_id=self._instance.new_message_id,
            timeout_ms=self.settings.consume_timeout_ms,
            threads=self.settings.concurrency,
            rates=rates,
            waits_for_threads=self._is_orderly,
        )

    def _listeners(self, listening: ListenerInvoker, offsets: OffsetStore) -> ConcurrentDelivery | OrderlyDelivery:
        instance, settings = self._instance, self.settings
        times_max = settings.max_reconsume_times
        if times_max < 0:
            times_max = UNLIMITED if self._is_orderly else RECONSUME_MAX
        if self._is_broadcasting:
            send_back: SendBackStrategy = DropFailed(self.group)
        else:
            sender = MessageSender(instance, INNER_PRODUCER, ProducerSettings())
            send_back = SendBack(instance.peers, instance.routes, sender, self.group, times_max)
        kind = OrderlyDelivery if self._is_orderly else ConcurrentDelivery
        return kind(listening, offsets, send_back, settings, instance.clock)

    # --- what the instance asks ---

    def _texts(self, started_ms: int) -> dict[str, str]:
        """What running info says of this consumer."""
        threads, orderly = self.settings.concurrency, self._is_orderly
        return {
            **admin_requests.settings_properties(self.settings),
            **admin_requests.identity_properties(
                self._instance, self._describe(), started_ms, is_orderly=orderly, threads=threads
            ),
        }

    def _describe(self) -> ConsumerData:
        where = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}
        return ConsumerData(
            consume_from_where=where.get(str(self._start), "CONSUME_FROM_TIMESTAMP"),
            consume_type="CONSUME_PASSIVELY",
            group_name=self.group,
            message_model=self.settings.message_model.upper(),
            subscription_data_set=tuple(self._subscriptions.values()),
        )

    def _wake(self) -> None:
        if self._allocation is not None:
            self._allocation.wake()

    # --- subscriptions ---

    def _subscription(self, topic: str, expression: str | Sql) -> SubscriptionData:
        if isinstance(expression, Sql):
            check_topic(topic)
            if not expression.expression.strip():
                raise ConfigError("subscriptions", topic, 'an SQL92 expression says something, like Sql("a > 5")')
            return SubscriptionData(
                expression_type=SQL92,
                sub_string=expression.expression,
                sub_version=self._instance.clock.now_ms(),
                topic=topic,
            )
        return tag_subscription(topic, expression, self._instance.clock.now_ms())

    async def _subscriptions_changed(self) -> None:
        await self._instance.refresh_routes()
        await self._instance.heartbeat()
        self._wake()

    def _running(self) -> Rebalancer:
        if self._allocation is None:
            raise ClientClosed(f"consumer {self.group} is not open: use it within `async with`")
        return self._allocation
