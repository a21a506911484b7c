"""Concurrent consumption: chunks of all queues to a fixed number of workers. [ConsumeMessageConcurrentlyService]

    pulled messages → chunks of `consume_batch_max` → workers → listener ─ success ─→ window.done → offset
                          ↑                                             └ failure ─→ sent back ─→ the same
                          └───────────── after `local_retry_ms` ──────────────── kept ┘

What was pulled before a queue is given up may still be consumed, but no longer counts: its new owner gets it again.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from ariane.client.listener_invoker import ListenerInvoker
from ariane.client.offset_store import OffsetStore
from ariane.client.process_queue import ProcessQueue
from ariane.client.received_messages import is_unreadable
from ariane.client.send_back import DEAD_LETTER, SendBackStrategy
from ariane.client.settings import ConsumerSettings
from ariane.clock import Clock
from ariane.model.message import ReceivedMessage
from ariane.net.tasks import BackgroundTasks

log = logging.getLogger("ariane.client")

Chunk = tuple[ProcessQueue, list[ReceivedMessage]]


class ConcurrentDelivery:
    """The workers. What waits for them is bounded by the windows of the queues."""

    def __init__(
        self,
        invoker: ListenerInvoker,
        offsets: OffsetStore,
        send_back: SendBackStrategy,
        settings: ConsumerSettings,
        clock: Clock,
    ) -> None:
        self.invoker = invoker
        """Calls the application's listener."""
        self._offsets = offsets
        self._send_back = send_back
        self._settings = settings
        self._clock = clock
        self._tasks = BackgroundTasks("listeners")
        self._chunks: asyncio.Queue[Chunk] = asyncio.Queue()
        self._running = 0
        self._is_closing = False
        self._idle = asyncio.Event()

    def start(self) -> None:
        for number in range(self._settings.concurrency):
            self._tasks.start(self._work(), f"worker {number}")

    def on_assigned(self, process_queue: ProcessQueue) -> None:
        """A queue was allocated; its messages come by `arrived`."""

    def on_messages(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        size = self._settings.consume_batch_max
        for start in range(0, len(messages), size):
            self._chunks.put_nowait((process_queue, messages[start : start + size]))

    async def on_revoked(self, process_queue: ProcessQueue) -> None:
        """The queue is another member's: what is under way counts no more, for the other begins at the stored offset."""
        process_queue.drop()

    async def close(self, wait_s: float) -> None:
        """Begin nothing new, and wait for the calls under way."""
        self._is_closing = True
        if self._running:
            self._idle.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._idle.wait()
            except TimeoutError:
                log.warning("%d calls of the listener did not end within %.1f s; cancelled", self._running, wait_s)
        await self._tasks.close()
        self.invoker.close()

    async def _work(self) -> None:
        while True:
            process_queue, messages = await self._chunks.get()
            if self._is_closing or process_queue.is_dropped:
                continue
            self._running += 1
            try:
                await self._consume(process_queue, messages)
            except Exception:
                log.exception("consuming of %s failed; its messages are tried again", process_queue.queue)
                self._redeliver_later(process_queue, messages)
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()

    async def _consume(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        readable = [message for message in messages if not is_unreadable(message)]
        failed = [(message, DEAD_LETTER) for message in messages if is_unreadable(message)]
        if readable:
            process_queue.consumed_at = self._clock.monotonic()
            outcome = await self.invoker.invoke(process_queue.queue, readable)
            if not outcome.is_success:
                failed += [(message, outcome.delay_level) for message in readable]
        if process_queue.is_dropped:
            return
        kept = [message for message, level in failed if not await self._send_back.send_back(message, level)]
        if kept:
            kept = [msgspec.structs.replace(one, reconsume_times=one.reconsume_times + 1) for one in kept]
            process_queue.tracker.replace(kept)
            self._redeliver_later(process_queue, kept)
        staying = {message.queue_offset for message in kept}
        offset = process_queue.tracker.mark_consumed([one for one in messages if one.queue_offset not in staying])
        if not process_queue.is_dropped:
            self._offsets.update(process_queue.queue, offset)
        process_queue.changed.set()

    def _redeliver_later(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        async def wait() -> None:
            await self._clock.sleep(self._settings.local_retry_ms / 1000)
            self._chunks.put_nowait((process_queue, messages))

        self._tasks.start(wait(), "deliver again")
