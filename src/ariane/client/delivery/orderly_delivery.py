"""Orderly delivery: one call of the listener per queue at a time, in the order of offsets, while this member holds the
broker's lock of the queue. [ConsumeMessageOrderlyService]

No call starts more than 30 s after its lock was last requested, and the broker holds a lock for 60 s. So a call of less than
30 s never overlaps with another member's, even if a process pauses. The lock is renewed until a longer call ends; that call
overlaps only if its process was paused or could not reach the broker until the lock expired. Messages consumed without the
lock are not committed: the new owner's offset is higher.

    failure ─ attempts left ─→ the queue pauses for `suspend_queue_time`, then the same messages again
            └ none left ─────→ to the retry topic with all attempts used up, which the broker turns into dead letters
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.listener_invoker import ListenerInvoker, ListenerOutcome
from ariane.client.delivery.rate_limiter import RateLimiter
from ariane.client.delivery.send_back import DEAD_LETTER, SendBackStrategy
from ariane.client.instance.settings import ConsumerSettings
from ariane.clock import Clock
from ariane.model.message import ReceivedMessage
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.records.received_messages import is_unreadable

log = logging.getLogger("ariane.client")

NO_LOCK_PAUSE_S = 0.1
REVOKE_WARNING_S = 30.0  # between two warnings about a listener that does not end


class OrderlyDelivery:
    """One task per queue; at most `concurrency` of them call the listener at the same time."""

    def __init__(
        self,
        invoker: ListenerInvoker,
        offsets: OffsetStore,
        send_back: SendBackStrategy,
        settings: ConsumerSettings,
        clock: Clock,
    ) -> None:
        # Broadcasting members share no queues, so they need no locks.
        self._needs_lock = settings.message_model == "clustering"
        self.invoker = invoker
        self._offsets = offsets  # receives the consumed offset after each call
        self._send_back = send_back  # what happens to messages that exceeded the retry limit
        self._settings = settings  # messages per call, pause after a failure, retry limit
        self._clock = clock
        self._tasks = BackgroundTasks("delivery")  # owns the tasks below
        # One loop per queue, so that a failing queue does not delay the others.
        self._queue_tasks: dict[ProcessQueue, asyncio.Task[None]] = {}
        # One slot per call of the listener that may run.
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._limiter = RateLimiter(settings.rate_max, clock)  # shared by all queues
        self._is_closing = False  # loops end before their next call

    def start(self) -> None:
        """Do nothing: each queue starts its own task."""

    def on_assigned(self, process_queue: ProcessQueue) -> None:
        """Start the task of the queue."""
        name = f"{process_queue.queue.topic} {process_queue.queue.broker}:{process_queue.queue.queue_id}"
        self._queue_tasks[process_queue] = self._tasks.start(self._run(process_queue), name)

    def on_messages(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Wake the task of the queue, which reads from the offset tracker."""
        process_queue.changed.set()

    async def on_revoked(self, process_queue: ProcessQueue) -> None:
        """Wait until the running call has ended, because no other member may start before; then drop the queue."""
        process_queue.revoke()
        task = self._queue_tasks.get(process_queue)
        while task is not None and not await _ended([task], REVOKE_WARNING_S):
            log.warning(
                "The listener still processes messages of %s, which was revoked; waiting until it ends",
                process_queue.queue,
            )
        self._queue_tasks.pop(process_queue, None)
        process_queue.drop()

    async def close(self, wait_s: float) -> None:
        """Start no more calls and wait at most `wait_s` seconds for the running ones; then cancel them."""
        self._is_closing = True
        for process_queue in self._queue_tasks:
            process_queue.revoke()
        if self._queue_tasks and not await _ended(list(self._queue_tasks.values()), wait_s):
            log.warning("Cancelling calls of the listener that did not end within %.1f s of closing", wait_s)
        await self._tasks.close()
        self.invoker.close()

    async def _run(self, process_queue: ProcessQueue) -> None:
        while not process_queue.is_revoked:
            messages = process_queue.tracker.first(self._settings.consume_batch_max)
            if not messages:
                await process_queue.wait_change()
            elif not self._may_consume(process_queue):
                await self._clock.sleep(NO_LOCK_PAUSE_S)
            else:
                async with self._slots:
                    await self._limiter.wait(len(messages))
                    # The lock may have expired, or the queue may have been revoked, during these waits.
                    if process_queue.is_revoked or not self._may_consume(process_queue):
                        continue
                    is_done = await self._consume(process_queue, messages)
                if not is_done and not process_queue.is_revoked:
                    await self._clock.sleep(self._settings.suspend_queue_time)

    def _may_consume(self, process_queue: ProcessQueue) -> bool:
        """Return True if this member alone may consume the queue. Broadcasting members share no queues."""
        return not self._needs_lock or process_queue.is_locked(self._clock.monotonic())

    async def _consume(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> bool:
        """Call the listener. Return True if the messages were consumed or handed to the broker for good."""
        try:
            unreadable = next((message for message in messages if is_unreadable(message)), None)
            if unreadable is None:
                process_queue.consumed_at = self._clock.monotonic()
                outcome = await self._call(process_queue, messages)
                is_done = outcome.is_success or (
                    self._may_consume(process_queue) and await self._count_failure(process_queue, messages)
                )
            else:
                messages = [unreadable]
                is_done = await self._send_back.send_back(unreadable, DEAD_LETTER)
        except Exception:
            log.exception("Consuming messages of %s failed; delivering them again", process_queue.queue)
            return False
        # Without the lock another member may have consumed further: its offset must not be overwritten.
        if is_done and not process_queue.is_dropped and self._may_consume(process_queue):
            self._offsets.update(process_queue.queue, process_queue.mark_consumed(messages))
        return is_done

    async def _call(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> ListenerOutcome:
        try:
            return await self.invoker.invoke(
                process_queue.queue, messages, may_begin=lambda: self._may_consume(process_queue)
            )
        except asyncio.CancelledError:
            # A thread continues after its call was cancelled: the lock must not be released for another member.
            process_queue.is_abandoned = self.invoker.uses_threads
            raise

    async def _count_failure(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> bool:
        """Count the failed attempt. Return True if it was the last one and the retry topic has all the messages."""
        times_max = self._settings.max_reconsume_times
        retried = [
            msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1) for message in messages
        ]
        if times_max >= 0 and all(message.reconsume_times > times_max for message in retried):
            return all([await self._send_back.send_copy(message) for message in messages])
        process_queue.tracker.replace(retried)
        return False


async def _ended(tasks: Sequence[asyncio.Task[None]], wait_s: float) -> bool:
    _, pending = await asyncio.wait(tasks, timeout=wait_s)
    return not pending
