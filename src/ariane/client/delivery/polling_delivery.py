"""Delivery by polling: fetched messages wait until the application takes them. [DefaultLitePullConsumerImpl]

    fetched ─ take() ─→ polled ─ acknowledge() ─→ offsets that may be committed

Fetched and polled messages stay in the offset trackers of their queues, so no committed offset passes them, and the trackers'
limits bound them.
"""

from __future__ import annotations

import contextvars
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ariane.client.consuming.fetched_messages import FetchedMessages
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.consume_events import Consumption
from ariane.client.delivery.delivery_strategy import DeliveryServices
from ariane.client.delivery.send_back import DEAD_LETTER
from ariane.client.instance.hooks import ConsumeReturn
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.records.received_messages import is_unreadable


@dataclass(eq=False)
class PolledBatch:
    """Messages of one poll, until they are acknowledged."""

    process_queue: ProcessQueue
    """Their queue; once it is dropped, acknowledging them has no effect."""
    messages: list[ReceivedMessage]
    """Those that are not acknowledged yet."""
    count: int
    """Number of messages that were polled."""
    polled_at: float
    """Monotonic time of the poll."""
    consumption: Consumption | None
    """The event that announced the messages; None without hooks."""
    span: AbstractContextManager[None]
    """Open until the messages are acknowledged."""
    context: contextvars.Context
    """Context of the span: polls and acknowledgements may come from different tasks."""


class PollingDelivery:
    """Messages of one lite-pull consumer between the fetch loops and the application."""

    invoker = None

    def __init__(self, services: DeliveryServices) -> None:
        self.fetched = FetchedMessages()
        """Messages that were not polled yet."""
        self._services = services  # events, spans and counters
        self._polled: list[PolledBatch] = []  # not acknowledged yet
        self._tasks = BackgroundTasks("delivery")  # send messages whose payloads cannot be decoded to the dead letters

    def start(self) -> None:
        """Do nothing: the application drives the delivery."""

    def on_assigned(self, process_queue: ProcessQueue) -> None:
        """Do nothing: a queue appears with its first messages."""

    def on_messages(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Append fetched messages. With a codec, those that it cannot decode become dead letters."""
        if self._services.options.payload is not None and any(map(is_unreadable, messages)):
            for message in filter(is_unreadable, messages):
                self._tasks.start(self._reject(process_queue, message), "reject an unreadable message")
            messages = [message for message in messages if not is_unreadable(message)]
        if messages:
            self.fetched.add(process_queue, messages)

    async def on_revoked(self, process_queue: ProcessQueue) -> None:
        """Drop the queue and its messages."""
        process_queue.drop()
        self.fetched.forget_dropped()
        await self.acknowledge({})  # ends the polled batches of dropped queues, and acknowledges no message

    async def close(self, wait_s: float) -> None:
        """Wake a waiting poll. Polled messages that were not acknowledged are delivered again to the next owner."""
        self.fetched.available.set()
        await self._tasks.close()
        batches, self._polled = self._polled, []
        for batch in batches:
            await self._finish(batch, ConsumeReturn.FAILED)

    async def take(self, count: int, paused: Collection[MessageQueue]) -> list[ReceivedMessage]:
        """Return at most `count` messages of the next queue that has any and is not paused."""
        taken = self.fetched.take(count, lambda process_queue: process_queue.queue not in paused)
        if taken is None:
            return []
        process_queue, messages = taken
        services, clock = self._services, self._services.instance.clock
        try:
            consumption = await services.events.start(process_queue.queue, messages)
        except BaseException:  # cancelled by the application, which has not received the messages
            self.fetched.put_back(process_queue, messages)
            raise
        if process_queue.is_dropped:
            await services.events.finish(consumption, ConsumeReturn.FAILED)
            return []
        span, context = services.telemetry.processing(services.options.group, messages), contextvars.copy_context()
        context.run(span.__enter__)
        process_queue.consumed_at = clock.monotonic()
        self._polled.append(
            PolledBatch(
                process_queue, list(messages), len(messages), process_queue.consumed_at, consumption, span, context
            )
        )
        return messages

    async def acknowledge(self, below: Mapping[MessageQueue, int] | None = None) -> None:
        """Mark polled messages as consumed: all of them, or those below the given offsets."""
        remaining: list[PolledBatch] = []
        done: list[tuple[PolledBatch, ConsumeReturn]] = []
        for batch in self._polled:
            process_queue = batch.process_queue
            if process_queue.is_dropped:
                done.append((batch, ConsumeReturn.FAILED))
                continue
            end = None if below is None else below.get(process_queue.queue, -1)
            consumed = [message for message in batch.messages if end is None or message.queue_offset < end]
            if consumed:
                self._services.offsets.update(process_queue.queue, process_queue.mark_consumed(consumed))
            batch.messages = batch.messages[len(consumed) :]
            if batch.messages:
                remaining.append(batch)
            else:
                done.append((batch, ConsumeReturn.SUCCESS))
        self._polled = remaining
        for batch, outcome in done:
            await self._finish(batch, outcome)

    async def _reject(self, process_queue: ProcessQueue, message: ReceivedMessage) -> None:
        """Make a message a dead letter. Until a broker has it, no committed offset passes it."""
        services = self._services
        while not process_queue.is_dropped:
            if await services.send_back.send_back(message, DEAD_LETTER):
                if not process_queue.is_dropped:
                    services.offsets.update(process_queue.queue, process_queue.mark_consumed([message]))
                return
            await services.instance.clock.sleep(services.options.settings.local_retry_delay)

    async def _finish(self, batch: PolledBatch, outcome: ConsumeReturn) -> None:
        services, is_ok = self._services, outcome is ConsumeReturn.SUCCESS
        took_s = services.instance.clock.monotonic() - batch.polled_at
        services.rates.record_consume(batch.process_queue.queue.topic, batch.count, took_s, ok=is_ok)
        batch.context.run(batch.span.__exit__, None, None, None)
        await services.events.finish(batch.consumption, outcome)
