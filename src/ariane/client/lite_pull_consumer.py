"""Consuming by asking: the application polls when it is ready for more. [DefaultLitePullConsumer]

    async with LitePullConsumer("stock", "127.0.0.1:9876", {"orders": "*"}, start="first") as consumer:
        while True:
            for message in await consumer.poll():
                …
            await consumer.commit()                  # or leave it to the next poll (`auto_commit`)

With `subscriptions` the members of the group share the queues; without, `assign` names the queues to read. What was polled
counts as consumed with the next poll (`auto_commit`) or with `commit`; a consumer that ends before gets it again.
There is no retry topic here: what the application fails on is its own to deal with.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from ariane.client import admin_requests, validation
from ariane.client.assignment_strategy import AssignmentStrategy, average
from ariane.client.client_instance import ClientInstance, GroupRegistration
from ariane.client.fetcher import FetchContext
from ariane.client.offset_store import OffsetStore, StartPosition
from ariane.client.process_queue import ProcessQueue
from ariane.client.rates import ConsumeRates
from ariane.client.rebalancer import RebalanceContext, Rebalancer
from ariane.client.settings import ClientSettings, ConsumerSettings
from ariane.client.subscriptions import tag_subscription
from ariane.errors import ClientClosed, ConfigError
from ariane.filter import tags
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.requests.clients import ConsumerData, SubscriptionData
from ariane.protocol.requests.messaging import LITE_PULL, SUBSCRIPTION

POLL_S = 5.0


class LitePullConsumer:
    """A member of a consumer group that polls. Give either `namesrv` or an open `instance` that is to be shared."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        subscriptions: Mapping[str, str] | None = None,
        *,
        start: StartPosition = "last",
        auto_commit: bool = True,
        strategy: AssignmentStrategy = average,
        settings: ConsumerSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        self.group = validation.group_name(group)
        self.settings = validation.optional("settings", settings, ConsumerSettings) or ConsumerSettings()
        if self.settings.message_model != "clustering":
            raise ConfigError("message_model", self.settings.message_model, "to read everything, assign all queues")
        # None: queues are assigned. A mapping without topics is a mistake, not a choice.
        topics = {} if subscriptions is None else validation.subscriptions(subscriptions)
        self._instance = ClientInstance.shared_or_new(namesrv, client, instance)
        self._owns_instance = instance is None
        self._start = validation.start(start)
        self._auto_commit = validation.of_kind("auto_commit", auto_commit, bool)
        self._strategy: AssignmentStrategy = validation.callback("strategy", strategy, "me", "members", "queues")
        self._is_assigned = subscriptions is None
        self._assigned: frozenset[MessageQueue] | None = None
        self._subscriptions = {topic: self._subscription(topic, expression) for topic, expression in topics.items()}
        self._paused: set[MessageQueue] = set()
        self._polled = PollingDelivery()
        self._offsets: OffsetStore | None = None
        self._allocation: Rebalancer | None = None
        self._answers: dict[int, admin_requests.Answer] = {}
        self._open = AsyncExitStack()

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
            await self._begin(opening)
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    # --- reading ---

    async def poll(self, *, max_messages: int | None = None, timeout_s: float = POLL_S) -> list[ReceivedMessage]:
        """Messages of one queue, at most `max_messages` (`pull_batch` unless given); none when none came in time. A body
        that cannot be expanded comes as it is stored; `body_error` of the message says why."""
        self._running()
        if max_messages is not None:
            validation.whole("max_messages", max_messages, 1, 2**31 - 1)
        validation.seconds("timeout_s", timeout_s)
        if self._is_assigned and self._assigned is None:
            fix = "no queues to read: call `assign` before `poll`, or construct the consumer with subscriptions"
            raise ConfigError("subscriptions", None, fix)
        if self._auto_commit:
            self._acknowledge()
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not (messages := self._polled.take(max_messages or self.settings.pull_batch, self._paused)):
            self._polled.available.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._polled.available.wait()
            except TimeoutError:
                return []
            self._running()
        return messages

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store at the brokers that everything polled so far is consumed; or that everything below `offsets` is, up or down.
        What a broker does not take is logged and stays due."""
        allocation, known = self._running(), self._known_offsets()
        if offsets is None:
            self._acknowledge()
        else:
            for queue, offset in offsets.items():
                known.seek(queue, offset)
        await known.commit(allocation.queues if offsets is None else offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The stored offset of the group; None when there is none."""
        return await self._known_offsets().committed(queue)

    # --- where to read ---

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return self._running().queues

    async def queues_of(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that can be read."""
        self._running()
        return sorted(await self._instance.routes.subscribe_queues(topic))

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues and no others, from their stored offsets on (else the start position)."""
        allocation = self._running()
        if not self._is_assigned:
            raise ConfigError(
                "assign", self.group, "this consumer subscribes; leave `subscriptions` out to assign queues"
            )
        self._assigned = frozenset(queues)
        topics = {queue.topic for queue in self._assigned}
        for topic in self._subscriptions.keys() - topics:
            del self._subscriptions[topic]
        for topic in sorted(topics - self._subscriptions.keys()):
            self._subscriptions[topic] = self._subscription(topic, tags.ALL)
        await self._instance.refresh_routes()
        await self._instance.heartbeat()
        allocation.wake()

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset` of a queue that is read now; what was polled or fetched of it before no longer counts."""
        first, end = await self._known_offsets().bounds(queue)
        if not first <= offset <= end:
            raise ConfigError("offset", offset, f"{queue} holds {first} to {end}; choose one of these")
        self._seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        self._seek(queue, (await self._known_offsets().bounds(queue))[0])

    async def seek_to_end(self, queue: MessageQueue) -> None:
        self._seek(queue, (await self._known_offsets().bounds(queue))[1])

    async def offset_for_time(self, queue: MessageQueue, ms: int) -> int:
        """The offset of the message stored nearest to `ms` since the epoch."""
        return await self._known_offsets().offset_for_time(queue, validation.time_ms("ms", ms))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Give nothing of these queues until `resume`; they are fetched until their windows are full."""
        self._paused |= set(queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        self._paused -= set(queues)
        self._polled.available.set()

    # --- wiring ---

    async def _begin(self, opening: AsyncExitStack) -> None:
        instance, settings = self._instance, self.settings
        timeout_ms = instance.settings.request_timeout_ms
        offsets = OffsetStore(instance.peers, instance.routes, self.group, timeout_ms=timeout_ms)
        rates = ConsumeRates(instance.clock.monotonic)

        def fetching(moved: Callable[[ProcessQueue, int], None]) -> FetchContext:
            return FetchContext(
                peers=instance.peers,
                routes=instance.routes,
                offsets=offsets,
                group=self.group,
                settings=settings,
                is_orderly=False,
                subscription=self._subscriptions.get,
                arrived=self._polled.on_messages,
                moved=moved,
                heartbeat_to=instance.heartbeat_to,
                monotonic=instance.clock.monotonic,
                sleep=instance.clock.sleep,
                rates=rates,
                sys_flags=SUBSCRIPTION | LITE_PULL,
            )

        allocation = Rebalancer(
            RebalanceContext(
                peers=instance.peers,
                routes=instance.routes,
                offsets=offsets,
                locks=None,
                listeners=self._polled,
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
                own_share=self._share if self._is_assigned else None,
            )
        )
        await instance.routes.refresh(self._subscriptions)
        await instance.heartbeat()
        commits = BackgroundTasks("offsets")
        started_ms = instance.clock.now_ms()

        async def close() -> None:
            self._allocation = None
            self._answers.clear()
            self._polled.available.set()
            await allocation.stop()
            await commits.close()
            await allocation.leave()

        opening.push_async_callback(close)
        self._allocation, self._offsets = allocation, offsets
        self._answers.update(
            admin_requests.answers(
                admin_requests.AdminRequestHandler(
                    group=self.group,
                    settings=lambda: self._texts(started_ms),
                    subscriptions=self._subscriptions.values,
                    is_orderly=False,
                    allocation=allocation,
                    offsets=offsets,
                    listening=None,
                    rates=rates,
                    clock=instance.clock,
                )
            )
        )
        allocation.start()
        commits.every(settings.commit_ms / 1000, lambda: offsets.commit(allocation.queues), "commit")

    def _share(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return [queue for queue in queues if queue in (self._assigned or ())]

    def _acknowledge(self) -> None:
        offsets = self._known_offsets()
        for queue, offset in self._polled.acknowledge().items():
            offsets.update(queue, offset)

    def _seek(self, queue: MessageQueue, offset: int) -> None:
        if not self._running().seek(queue, offset):
            raise ConfigError("queue", queue, f"{self.group} does not read it now: see `queues`")
        self._polled.forget_dropped()

    def _texts(self, started_ms: int) -> dict[str, str]:
        return {
            **admin_requests.settings_properties(self.settings),
            **admin_requests.identity_properties(self._instance, self._describe(), started_ms, is_orderly=False),
        }

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            consume_type="CONSUME_ACTIVELY",
            group_name=self.group,
            message_model="CLUSTERING",
            subscription_data_set=tuple(self._subscriptions.values()),
        )

    def _subscription(self, topic: str, expression: str) -> SubscriptionData:
        return tag_subscription(topic, expression, self._instance.clock.now_ms())

    def _wake(self) -> None:
        if self._allocation is not None:
            self._allocation.wake()

    def _running(self) -> Rebalancer:
        if self._allocation is None:
            raise ClientClosed(f"consumer {self.group} is not open: use it within `async with`")
        return self._allocation

    def _known_offsets(self) -> OffsetStore:
        self._running()
        assert self._offsets is not None
        return self._offsets


class PollingDelivery:
    """What was fetched and not yet polled, and what was polled and not yet acknowledged. Both stay in the windows of their
    queues, so that no offset passes them and the windows bound them."""

    def __init__(self) -> None:
        self.available = asyncio.Event()
        self._fetched: dict[ProcessQueue, deque[ReceivedMessage]] = {}
        self._polled: dict[ProcessQueue, list[ReceivedMessage]] = {}

    def on_assigned(self, process_queue: ProcessQueue) -> None:
        """A queue was allocated; its messages come by `arrived`."""

    def on_messages(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        self._fetched.setdefault(process_queue, deque()).extend(messages)
        self.available.set()

    async def on_revoked(self, process_queue: ProcessQueue) -> None:
        process_queue.drop()
        self.forget_dropped()

    def forget_dropped(self) -> None:
        """What came of queues that are given up, or are read from elsewhere now, is no longer given."""
        self._fetched = {one: messages for one, messages in self._fetched.items() if not one.is_dropped}
        self._polled = {one: messages for one, messages in self._polled.items() if not one.is_dropped}

    def take(self, count: int, paused: Collection[MessageQueue]) -> list[ReceivedMessage]:
        """Messages of the queue whose turn it is."""
        for process_queue in list(self._fetched):
            if process_queue.is_dropped or process_queue.queue in paused:
                continue
            waiting = self._fetched.pop(process_queue)
            messages = [waiting.popleft() for _ in range(min(count, len(waiting)))]
            if waiting:
                self._fetched[process_queue] = waiting  # behind the others
            self._polled.setdefault(process_queue, []).extend(messages)
            return messages
        return []

    def acknowledge(self) -> dict[MessageQueue, int]:
        """All that was given is consumed: the offsets that may be stored."""
        offsets = {}
        for process_queue, messages in self._polled.items():
            if not process_queue.is_dropped:
                offsets[process_queue.queue] = process_queue.tracker.mark_consumed(messages)
                process_queue.changed.set()
        self._polled.clear()
        return offsets
