"""What all consumers share: the client instance, traces, hooks, telemetry, and look-ups of queues and offsets.

ConsumingClient ─┬─→ PullConsumer                        reads queues without a group
                 └─→ GroupMember ─┬─→ PushConsumer       calls a listener
                                  └─→ SeekableMember ─┬─→ Consumer            is iterated over
                                                      └─→ LitePullConsumer    is polled
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Self

from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.delivery.consume_events import ConsumeEvents
from ariane.client.instance import validation
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import ConsumeHook
from ariane.client.instance.settings import ClientSettings, ConsumerSettings, TraceSettings
from ariane.client.instance.telemetry import NO_TELEMETRY, ClientTelemetry
from ariane.client.tracing.trace_dispatcher import TraceCounts, TraceDispatcher, trace_settings
from ariane.errors import ClientClosed
from ariane.model.clock_offset import ClockOffset
from ariane.model.message import MessageQueue


class ConsumingClient(ABC):
    """A consumer within `async with`: opens and closes its instance and its trace queue, and checks the arguments for them."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        *,
        settings: ConsumerSettings | None,
        client: ClientSettings | None,
        trace: TraceSettings | bool,
        hooks: Sequence[ConsumeHook],
        telemetry: ClientTelemetry = NO_TELEMETRY,
    ) -> None:
        self.group = validation.group_name(group)  # offsets are stored, and events and traces recorded, under this name
        # Limits and intervals; each kind of consumer uses some of them.
        self.settings = validation.optional("settings", settings, ConsumerSettings) or ConsumerSettings()
        self._instance = ClientInstance.shared_or_new(namesrv, client)  # connections, routes and heartbeats
        self._owns_instance = self._instance is not namesrv  # whether to open and close the instance with this consumer
        self.group = self._instance.namespace.check_group(self.group)
        self._trace_settings = trace_settings(trace)  # None: consumption is not traced
        self._hooks: tuple[ConsumeHook, ...] = validation.callbacks("hooks", hooks, "event")  # the application's own
        self._telemetry = telemetry  # opens a span around the processing of messages
        self._offsets: OffsetStore | None = None  # offsets of the group; None unless the consumer is open
        self._open = AsyncExitStack()  # what `__aexit__` has to close, in reverse order
        self.trace: TraceDispatcher | None = None
        """Trace queue; None unless `trace` is set and the client was opened. `trace_counts` is for applications."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            if self._owns_instance:
                await opening.enter_async_context(self._instance)
            hooks = self._hooks
            if self._trace_settings is not None:
                tracer = TraceDispatcher.of_client(self._instance, self.group, "CONSUME", self._trace_settings)
                self.trace = await opening.enter_async_context(tracer)
                hooks = (*hooks, self.trace.on_consume)
            offsets = self._new_offsets()
            await self._join(opening, offsets, ConsumeEvents(self.group, hooks, self._instance))
            self._offsets = offsets
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._offsets = None
        await self._open.aclose()

    @property
    def trace_counts(self) -> TraceCounts:
        """How many trace records were sent, dropped and lost; also after closing."""
        return TraceCounts.of(self.trace)

    @property
    def clock_offsets(self) -> dict[str, ClockOffset]:
        """Offsets of the brokers' clocks from this machine's, by address, as far as they were measured; empty without `trace`."""
        return {} if self.trace is None else self.trace.clock_offsets

    @property
    def client_id(self) -> str:
        """Id of the client instance, unique in the cluster."""
        return self._instance.client_id

    async def queues_of(self, topic: str) -> list[MessageQueue]:
        """Return all readable queues of a topic, sorted.

        Raises:
            ClientClosed: the consumer is not open.
            RouteNotFound: no name server has a route of the topic.
        """
        self._running_offsets()
        return sorted(await self._instance.routes.subscribe_queues(self._instance.namespace.unwrap(topic)))

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the first existing offset of a queue and the offset of its next message.

        Raises:
            ClientClosed: the consumer is not open.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        offsets = self._running_offsets()
        await self._instance.routes.subscribe_queues(queue.topic)  # fetches the route
        return await offsets.bounds(queue)

    async def offset_for_time(self, queue: MessageQueue, at: datetime) -> int:
        """Return the offset of the message stored nearest to `at`, a time with a time zone.

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: `at` is not a time with a time zone.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        offsets, at_ms = self._running_offsets(), validation.instant_ms("at", at)
        await self._instance.routes.subscribe_queues(queue.topic)  # fetches the route
        return await offsets.offset_for_time(queue, at_ms)

    @abstractmethod
    async def _join(self, opening: AsyncExitStack, offsets: OffsetStore, events: ConsumeEvents) -> None:
        """Open the rest, in the open instance; `opening` closes it."""

    def _new_offsets(self) -> OffsetStore:
        instance = self._instance
        return OffsetStore(
            instance.peers, instance.routes, self.group, timeout_ms=instance.settings.request_timeout * 1000
        )

    def _running_offsets(self) -> OffsetStore:
        if self._offsets is None:
            raise self._closed()
        return self._offsets

    def _closed(self) -> ClientClosed:
        return ClientClosed(f"consumer {self.group} is not open: use it within `async with`")
