"""Concurrent delivery: chunks of all queues go to a fixed number of workers. [ConsumeMessageConcurrentlyService]

    pulled messages → chunks of `consume_batch_max` → workers → listener ─ success ─→ mark_consumed → offset
                          ↑                                             └ failure ─→ sent back ─→ the same
                          └───────────── after `local_retry_delay` ────────── not accepted ┘

Messages pulled before a queue is revoked may still be consumed, but no longer count: its new owner receives them again.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.listener_invoker import ListenerInvoker
from ariane.client.delivery.rate_limiter import RateLimiter
from ariane.client.delivery.send_back import DEAD_LETTER, SendBackStrategy
from ariane.client.instance.settings import ConsumerSettings
from ariane.clock import Clock
from ariane.model.message import ReceivedMessage
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.records.received_messages import is_unreadable

log = logging.getLogger("ariane.client")

Chunk = tuple[ProcessQueue, list[ReceivedMessage]]


class ConcurrentDelivery:
    """Workers that call the listener. The offset trackers of the queues bound the number of pending chunks."""

    def __init__(
        self,
        invoker: ListenerInvoker,
        offsets: OffsetStore,
        send_back: SendBackStrategy,
        settings: ConsumerSettings,
        clock: Clock,
    ) -> None:
        self.invoker = invoker
        self._offsets = offsets  # receives the consumed offset of a queue after each chunk
        self._send_back = send_back  # what happens to messages of a failed call
        self._settings = settings  # number of workers, messages per call, delay of local retries
        self._clock = clock
        # Shared by the workers; None: no limit.
        self._limiter = RateLimiter(settings.rate_max, clock) if settings.rate_max else None
        self._tasks = BackgroundTasks("delivery")  # the workers
        # Messages that wait for a worker.
        self._chunks: asyncio.Queue[Chunk] = asyncio.Queue()
        self._running = 0  # calls of the listener
        self._idle = asyncio.Event()  # set while no call of the listener runs; closing waits for it
        # Set when closing starts: workers discard further chunks.
        self._is_closing = False

    def start(self) -> None:
        """Start the workers."""
        for number in range(self._settings.concurrency):
            self._tasks.start(self._work(), f"worker {number}")

    def on_assigned(self, process_queue: ProcessQueue) -> None:
        """Do nothing: the workers serve all queues."""

    def on_messages(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Split messages into chunks of `consume_batch_max`."""
        size = self._settings.consume_batch_max
        for start in range(0, len(messages), size):
            self._chunks.put_nowait((process_queue, messages[start : start + size]))

    async def on_revoked(self, process_queue: ProcessQueue) -> None:
        """Drop the queue. Running calls no longer count, because the new owner starts at the committed offset."""
        process_queue.drop()

    async def close(self, wait_s: float) -> None:
        """Start no more calls and wait at most `wait_s` seconds for the running ones; then cancel them."""
        self._is_closing = True
        if self._running:
            self._idle.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._idle.wait()
            except TimeoutError:
                log.warning(
                    "Cancelled %d calls of the listener that did not end within %.1f s of closing",
                    self._running,
                    wait_s,
                )
        await self._tasks.close()
        self.invoker.close()

    async def _work(self) -> None:
        while True:
            process_queue, messages = await self._chunks.get()
            if self._limiter is not None:
                await self._limiter.wait(len(messages))
            if not self._is_closing and not process_queue.is_dropped:
                self._running += 1
                try:
                    await self._consume(process_queue, messages)
                except Exception:
                    log.exception("Consuming messages of %s failed; delivering them again", process_queue.queue)
                    self._redeliver_later(process_queue, messages)
                finally:
                    self._running -= 1
                    if not self._running:
                        self._idle.set()
            # An idle worker retains no message: there may be thousands of workers, and bodies of megabytes.
            del process_queue, messages

    async def _consume(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        failed = [(message, DEAD_LETTER) for message in messages if is_unreadable(message)]
        readable = [message for message in messages if not is_unreadable(message)] if failed else messages
        if readable:
            process_queue.consumed_at = self._clock.monotonic()
            outcome = await self.invoker.invoke(process_queue.queue, readable)
            if not outcome.is_success:
                failed += [(message, outcome.delay_level) for message in readable]
        # The queue was revoked during the call: its new owner receives the messages, so they must not be sent back, too.
        if process_queue.is_dropped:
            return
        if failed:
            messages = await self._settle_failed(process_queue, messages, failed)
        offset = process_queue.mark_consumed(messages)
        if not process_queue.is_dropped:
            self._offsets.update(process_queue.queue, offset)

    async def _settle_failed(
        self, process_queue: ProcessQueue, messages: list[ReceivedMessage], failed: list[tuple[ReceivedMessage, int]]
    ) -> list[ReceivedMessage]:
        """Send failed messages back. Return those of `messages` that count as consumed.

        Messages that no broker accepted stay in the tracker, so that no committed offset passes them.
        """
        local = [message for message, level in failed if not await self._send_back.send_back(message, level)]
        if local:
            local = [msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1) for message in local]
            process_queue.tracker.replace(local)
            self._redeliver_later(process_queue, local)
        local_offsets = {message.queue_offset for message in local}
        return [message for message in messages if message.queue_offset not in local_offsets]

    def _redeliver_later(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        async def wait() -> None:
            await self._clock.sleep(self._settings.local_retry_delay)
            self._chunks.put_nowait((process_queue, messages))

        self._tasks.start(wait(), "deliver again")
