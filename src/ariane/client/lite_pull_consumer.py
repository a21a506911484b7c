"""Lite-pull consumer: the application polls when it is ready for more messages. [DefaultLitePullConsumer]

    async with LitePullConsumer("127.0.0.1:9876", "stock", {"orders": "*"}, start="first") as consumer:
        while True:
            for message in await consumer.poll():
                …
            await consumer.commit()                  # or leave it to the next poll (`auto_commit`)

With `subscriptions` the members of the group share the queues; without them, `assign` names the queues to read. Polled messages
count as consumed with the next poll (`auto_commit`) or with `commit`; after a crash before that they are read again.
Lite-pull consumers use no retry topic: handling failed messages is up to the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from ariane.client import validation
from ariane.client.assignment_strategy import AssignmentStrategy, average
from ariane.client.client_instance import ClientInstance
from ariane.client.group_membership import GroupMembership
from ariane.client.group_options import Assignment, GroupOptions
from ariane.client.offset_store import OffsetStore
from ariane.client.polling_delivery import PollingDelivery
from ariane.client.rates import ConsumeRates
from ariane.client.settings import ClientSettings, ConsumerSettings
from ariane.client.subscriptions import Sql, subscription_data
from ariane.client.validation import StartPosition
from ariane.errors import ClientClosed, ConfigError
from ariane.filter import tags
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.protocol.requests.callbacks import ConsumeStatus
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import LITE_PULL, SUBSCRIPTION

POLL_S = 5.0


class LitePullConsumer:
    """A member of a consumer group that polls for messages.

    Args:
        namesrv: Name server addresses, `"host:port;host:port"` or a list; or an open `ClientInstance` to share.
        group: Name of the consumer group.
        subscriptions: Tag expression of each topic (`"*"`, or tags joined by `||`), or `Sql(…)`. Omit it to choose queues
            with `assign`.
        start: Where to start while the group has no stored offset of a queue: `"first"`, `"last"`, or a `datetime` with a time
            zone.
        auto_commit: Whether each poll acknowledges the messages of the previous one.
        strategy: Rule by which the members share queues; all members must use the same.
        settings: Limits and intervals of the consumer.
        client: Settings of the client instance; a shared one has its own.

    Raises:
        ConfigError: an argument cannot be used; raised before anything is connected.

    Example:
        async with LitePullConsumer("127.0.0.1:9876", "reports", {"orders": "*"}, auto_commit=False) as consumer:
            messages = await consumer.poll(max_messages=32, timeout=10)
            await consumer.commit()
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        subscriptions: Mapping[str, str | Sql] | None = None,
        *,
        start: StartPosition = "last",
        auto_commit: bool = True,
        strategy: AssignmentStrategy = average,
        settings: ConsumerSettings | None = None,
        client: ClientSettings | None = None,
    ) -> None:
        self.group = validation.group_name(group)
        self.settings = validation.optional("settings", settings, ConsumerSettings) or ConsumerSettings()
        if self.settings.message_model != "clustering":
            fix = "expected 'clustering'; to read every queue, assign all queues"
            raise ConfigError("message_model", self.settings.message_model, fix)
        # None means that queues are assigned. An empty mapping is a mistake, not a choice.
        topics = {} if subscriptions is None else validation.subscriptions(subscriptions)
        self._instance = ClientInstance.shared_or_new(namesrv, client)  # connections, routes and heartbeats
        self._owns_instance = self._instance is not namesrv  # whether to open and close the instance with this consumer
        self._auto_commit = validation.of_kind("auto_commit", auto_commit, bool)
        self._options = GroupOptions(
            group=self.group,
            settings=self.settings,
            start=validation.start(start),
            assignment=Assignment.MANUAL if subscriptions is None else Assignment.SHARED,
            strategy=validation.callback("strategy", strategy, "client_id", "members", "queues"),
            is_polled=True,
            # The request carries the expression, so it applies even before a heartbeat has reached the broker.
            pull_flags=SUBSCRIPTION | LITE_PULL,
        )
        # The latest call of `assign`, which also holds when the consumer is closed and opened again; None before the first.
        self._assigned: frozenset[MessageQueue] | None = None
        self._subscriptions = {topic: self._subscription(topic, expression) for topic, expression in topics.items()}
        # Queues whose messages `poll` does not return; they survive a rebalance.
        self._paused: set[MessageQueue] = set()
        self._delivery = PollingDelivery()  # fetched messages until the application polls
        self._membership: GroupMembership | None = None  # None unless the consumer is open
        self._open = AsyncExitStack()  # what `__aexit__` has to close, in reverse order

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            if self._owns_instance:
                await opening.enter_async_context(self._instance)
            instance, timeout_ms = self._instance, self._instance.settings.request_timeout * 1000
            membership = GroupMembership(
                instance=instance,
                options=self._options,
                subscriptions=self._subscriptions,
                offsets=OffsetStore(instance.peers, instance.routes, self.group, timeout_ms=timeout_ms),
                delivery=self._delivery,
                rates=ConsumeRates(instance.clock.monotonic),
            )
            membership.rebalancer.set_manual(self._assigned or ())
            self._membership = await opening.enter_async_context(membership)
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._membership = None
        # A waiting poll ends immediately, with ClientClosed, instead of after the last requests.
        self._delivery.available.set()
        await self._open.aclose()

    @property
    def client_id(self) -> str:
        """Id of the client instance, unique in the cluster."""
        return self._instance.client_id

    def rates(self) -> dict[str, ConsumeStatus]:
        """Return the rates of the last minute by subscribed topic; none if the consumer is not open."""
        return {} if self._membership is None else self._membership.rates()

    # --- messages ---

    async def poll(
        self, *, max_messages: int | None = None, timeout: float | timedelta = POLL_S
    ) -> list[ReceivedMessage]:
        """Return the next messages of one queue.

        A body that cannot be expanded is returned as stored, with `body_error` set.

        Args:
            max_messages: At most this many messages; `settings.pull_batch` if None.
            timeout: How long to wait for a message, in seconds or as a `timedelta`.

        Returns:
            The messages; an empty list if none arrived within `timeout`.

        Raises:
            ClientClosed: the consumer is not open, or was closed while waiting.
            ConfigError: an argument cannot be used, or no queues were assigned.
        """
        self._running()
        if max_messages is not None:
            validation.whole("max_messages", max_messages, 1, 2**31 - 1)
        wait_s = validation.seconds("timeout", timeout)
        if self._options.assignment is Assignment.MANUAL and self._assigned is None:
            fix = "no queues to read: call `assign` before `poll`, or construct the consumer with subscriptions"
            raise ConfigError("subscriptions", None, fix)
        if self._auto_commit:
            self._acknowledge()
        deadline = asyncio.get_running_loop().time() + wait_s
        while not (messages := self._delivery.take(max_messages or self.settings.pull_batch, self._paused)):
            self._delivery.available.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._delivery.available.wait()
            except TimeoutError:
                return []
            self._running()
        return messages

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit consumed offsets at the brokers.

        Failed commits are logged and repeated every `commit_interval`.

        Args:
            offsets: The offset of the next message to consume, of each queue; it may be lower than the committed one.
                None: everything polled so far.

        Raises:
            ClientClosed: the consumer is not open.
        """
        membership = self._running()
        if offsets is None:
            self._acknowledge()
        else:
            for queue, offset in offsets.items():
                membership.offsets.seek(queue, offset)
        await membership.offsets.commit(membership.rebalancer.queues if offsets is None else offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if there is none.

        Raises:
            ClientClosed: the consumer is not open.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        return await self._running().offsets.committed(queue)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset after the last polled message, and after messages that the filter skipped.

        Returns:
            The offset; None if the queue is not assigned to this member.

        Raises:
            ClientClosed: the consumer is not open.
        """
        for process_queue in self._running().rebalancer.process_queues:
            if process_queue.queue == queue:
                return self._delivery.position(process_queue)
        return None

    # --- queues and offsets ---

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues assigned to this member, sorted.

        Raises:
            ClientClosed: the consumer is not open.
        """
        return self._running().rebalancer.queues

    async def queues_of(self, topic: str) -> list[MessageQueue]:
        """Return all readable queues of a topic, sorted.

        Raises:
            ClientClosed: the consumer is not open.
            RouteNotFound: no name server has a route of the topic.
        """
        self._running()
        return sorted(await self._instance.routes.subscribe_queues(topic))

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues, from their committed offsets (else from the start position).

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: the consumer was constructed with subscriptions.
        """
        membership = self._running()
        if self._options.assignment is not Assignment.MANUAL:
            fix = "this consumer has subscriptions; construct it without them to assign queues"
            raise ConfigError("assign", self.group, fix)
        self._assigned = frozenset(queues)
        topics = sorted({queue.topic for queue in self._assigned})
        await membership.assign(
            self._assigned, [self._subscriptions.get(topic) or self._subscription(topic, tags.ALL) for topic in topics]
        )

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue an assigned queue at `offset`; messages that were fetched or polled before are discarded.

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: the queue is not assigned to this member, or has no such offset.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        first, end = await self._running().offsets.bounds(queue)
        if not first <= offset <= end:
            raise ConfigError("offset", offset, f"{queue} has offsets {first} to {end}; choose one of these")
        self._seek(queue, offset)

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the first existing offset of a queue and the offset of its next message. Raises as `committed` does."""
        return await self._running().offsets.bounds(queue)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue an assigned queue at its first message. Raises as `seek` does."""
        self._seek(queue, (await self._running().offsets.bounds(queue))[0])

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue an assigned queue after its last message. Raises as `seek` does."""
        self._seek(queue, (await self._running().offsets.bounds(queue))[1])

    async def offset_for_time(self, queue: MessageQueue, at: datetime) -> int:
        """Return the offset of the message stored nearest to `at`, a time with a time zone.

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: `at` is not a time with a time zone.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        return await self._running().offsets.offset_for_time(queue, validation.instant_ms("at", at))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Return no messages of these queues until `resume`; fetching continues until their caches are full."""
        self._paused |= set(queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Return messages of these queues again."""
        self._paused -= set(queues)
        self._delivery.available.set()

    def _acknowledge(self) -> None:
        offsets = self._running().offsets
        for queue, offset in self._delivery.acknowledge().items():
            offsets.update(queue, offset)

    def _seek(self, queue: MessageQueue, offset: int) -> None:
        if not self._running().rebalancer.seek(queue, offset):
            raise ConfigError("queue", queue, f"not assigned to this member of {self.group}; see `queues`")
        self._delivery.forget_dropped()

    def _subscription(self, topic: str, expression: str | Sql) -> SubscriptionData:
        return subscription_data(topic, expression, self._instance.clock.now_ms())

    def _running(self) -> GroupMembership:
        if self._membership is None:
            raise ClientClosed(f"consumer {self.group} is not open: use it within `async with`")
        return self._membership
