"""Orderly consumption: one call of the listener per queue at a time, in the order of offsets, while the broker's lock of
the queue is ours. [ConsumeMessageOrderlyService]

No call begins more than 30 s after its lock was last asked for, and the broker keeps that for 60 s: a call of less than 30 s
is never overlapped by another member's, whatever stands still meanwhile; a longer one only when its process was paused, or
could not reach the broker, until the lock ran out, for it is renewed until the call ends. What was consumed without the lock
is not committed: the new owner is further.

    failure ─ attempts left ─→ the queue waits `suspend_queue_ms`, then the same messages again
            └ none left ─────→ to the retry topic with all attempts used up, where the broker makes dead letters of them
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from ariane.client.listener_invoker import ListenerInvoker, ListenerOutcome
from ariane.client.offset_store import OffsetStore
from ariane.client.process_queue import ProcessQueue
from ariane.client.received_messages import is_unreadable
from ariane.client.send_back import DEAD_LETTER, SendBackStrategy
from ariane.client.settings import ConsumerSettings
from ariane.clock import Clock
from ariane.model.message import ReceivedMessage
from ariane.net.tasks import BackgroundTasks

log = logging.getLogger("ariane.client")

NO_LOCK_PAUSE_S = 0.1
REVOKE_WARNING_S = 30.0  # between two warnings
IDLE_S = 1.0  # an empty queue is looked at this often, besides each time messages came


class OrderlyDelivery:
    """One task per queue; `concurrency` of them call the listener at once."""

    def __init__(
        self,
        invoker: ListenerInvoker,
        offsets: OffsetStore,
        send_back: SendBackStrategy,
        settings: ConsumerSettings,
        clock: Clock,
    ) -> None:
        self._needs_lock = settings.message_model == "clustering"
        self.invoker = invoker
        """Calls the application's listener."""
        self._offsets = offsets
        self._send_back = send_back
        self._settings = settings
        self._clock = clock
        self._tasks = BackgroundTasks("listeners")
        self._of_queue: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(settings.concurrency)
        self._is_closing = False

    def start(self) -> None:
        """Nothing runs before the first queue."""

    def on_assigned(self, process_queue: ProcessQueue) -> None:
        name = f"{process_queue.queue.topic} {process_queue.queue.broker}:{process_queue.queue.queue_id}"
        self._of_queue[process_queue] = self._tasks.start(self._run(process_queue), name)

    def on_messages(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        process_queue.changed.set()

    async def on_revoked(self, process_queue: ProcessQueue) -> None:
        """Wait until the call under way is over: nobody else may begin with the queue before."""
        process_queue.revoke()
        task = self._of_queue.get(process_queue)
        while task is not None and not await _ended([task], REVOKE_WARNING_S):
            log.warning("the listener still works on %s, which others wait for", process_queue.queue)
        self._of_queue.pop(process_queue, None)
        process_queue.drop()

    async def close(self, wait_s: float) -> None:
        self._is_closing = True
        for process_queue in self._of_queue:
            process_queue.revoke()
        if self._of_queue and not await _ended(list(self._of_queue.values()), wait_s):
            log.warning("calls of the listener did not end within %.1f s; they are cancelled", wait_s)
        await self._tasks.close()
        self.invoker.close()

    async def _run(self, process_queue: ProcessQueue) -> None:
        while not process_queue.is_revoked:
            messages = process_queue.tracker.first(self._settings.consume_batch_max)
            if not messages:
                await process_queue.wait_change(IDLE_S)
            elif not self._may_consume(process_queue):
                await self._clock.sleep(NO_LOCK_PAUSE_S)
            else:
                async with self._room:
                    if process_queue.is_revoked or not self._may_consume(process_queue):
                        continue
                    is_done = await self._consume(process_queue, messages)
                if not is_done and not process_queue.is_revoked:
                    await self._clock.sleep(self._settings.suspend_queue_ms / 1000)

    def _may_consume(self, process_queue: ProcessQueue) -> bool:
        """Whether the queue is ours alone; a broadcasting member shares none."""
        return not self._needs_lock or process_queue.is_locked(self._clock.monotonic())

    async def _consume(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> bool:
        """Whether the messages are done with, one way or the other."""
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
            log.exception("consuming of %s failed; its messages are tried again", process_queue.queue)
            return False
        if is_done and not process_queue.is_dropped and self._may_consume(process_queue):
            self._offsets.update(process_queue.queue, process_queue.tracker.mark_consumed(messages))
            process_queue.changed.set()
        return is_done

    async def _call(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> ListenerOutcome:
        try:
            return await self.invoker.invoke(
                process_queue.queue, messages, may_begin=lambda: self._may_consume(process_queue)
            )
        except asyncio.CancelledError:
            process_queue.is_abandoned = self.invoker.uses_threads
            raise

    async def _count_failure(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> bool:
        """Count the attempt; True when the messages had their last one and went to the retry topic, all of them."""
        times_max = self._settings.max_reconsume_times
        again = [msgspec.structs.replace(one, reconsume_times=one.reconsume_times + 1) for one in messages]
        if times_max >= 0 and all(one.reconsume_times > times_max for one in again):
            return all([await self._send_back.send_copy(one) for one in messages])
        process_queue.tracker.replace(again)
        return False


async def _ended(tasks: Sequence[asyncio.Task[None]], wait_s: float) -> bool:
    _, pending = await asyncio.wait(tasks, timeout=wait_s)
    return not pending
