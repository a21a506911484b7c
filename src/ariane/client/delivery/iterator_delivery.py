"""Delivery to loops over a consumer: messages wait until a loop takes them, and then until they are settled.

    fetched ─ receive() ─→ delivered ─ settle() ─┬─ acknowledged ────────────────→ mark_consumed → offset
       ↑                                         ├─ retried, rejected, timed out → sent back ──→ the same
       └──────── after a pause: no broker accepted it, or the queue is orderly ──┘

An orderly queue has one delivered message at a time, and only while this member holds the broker's lock; like `OrderlyDelivery`
it pauses after a failure. A message of another queue is sent back while the following ones are delivered.

Nothing is committed that is not settled: offset trackers hold fetched and delivered messages until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from ariane.client.consuming.fetched_messages import FetchedMessages
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.consumer_message import ConsumerMessage, Receipt, Settlement, consumer_message
from ariane.client.delivery.delivery_strategy import DeliveryServices
from ariane.client.delivery.rate_limiter import RateLimiter
from ariane.client.delivery.send_back import DEAD_LETTER
from ariane.client.instance.hooks import ConsumeReturn
from ariane.client.instance.message_texts import identity
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.records.received_messages import is_unreadable

log = logging.getLogger("ariane.client")

LOCK_CHECK_S = 0.1  # how often a loop looks for the lock of an orderly queue
REVOKE_WARNING_S = 30.0  # between two warnings about a message of a revoked orderly queue

OUTCOMES = {
    Settlement.ACKNOWLEDGED: ConsumeReturn.SUCCESS,
    Settlement.RETRIED: ConsumeReturn.FAILED,
    Settlement.REJECTED: ConsumeReturn.FAILED,
    Settlement.EXPIRED: ConsumeReturn.TIME_OUT,
    Settlement.ABANDONED: ConsumeReturn.FAILED,
}


class IteratorDelivery:
    """Messages of one `Consumer` between the fetch loops and the application."""

    invoker = None

    def __init__(self, services: DeliveryServices, is_paused: Callable[[MessageQueue], bool]) -> None:
        self.fetched = FetchedMessages()
        """Messages that no loop has taken."""
        self.is_stopped = False
        """True when loops must end instead of receiving more messages."""
        self._services = services  # offsets, send-back, events and counters
        self._options = services.options  # group, settings, and whether queues are orderly
        self._clock = services.instance.clock
        self._is_paused = is_paused  # whether the application paused a queue
        self._limiter = RateLimiter(self._options.settings.rate_max, self._clock)  # shared by all loops
        self._tasks = BackgroundTasks("delivery")  # deadlines, redeliveries, messages that no loop receives
        # Delivered messages that are not settled, in the order of their deadlines. A dict as an ordered set.
        self._receipts: dict[Receipt, None] = {}
        # Messages per queue that were taken from `fetched` and are not settled, those included that no loop has received.
        self._taken: Counter[MessageQueue] = Counter()
        self._settled = asyncio.Event()  # set when the last taken message was settled; closing waits for it
        # Monotonic time at which an orderly queue continues after a failure.
        self._suspended_until: dict[MessageQueue, float] = {}
        self._is_closed = False  # nothing is delivered again, and no task starts
        self._gives_up = False  # whether messages of ended loops are left to the next owner instead of being sent back

    def start(self) -> None:
        """Watch the deadlines of delivered messages."""
        self._tasks.start(self._expire(), "deadlines")

    def on_assigned(self, process_queue: ProcessQueue) -> None:
        """Do nothing: a queue appears with its first messages."""

    def on_messages(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Append fetched messages."""
        self.fetched.add(process_queue, messages)

    async def on_revoked(self, process_queue: ProcessQueue) -> None:
        """Drop the queue; an orderly one when its delivered message is settled, because no other member may start before."""
        process_queue.revoke()
        warned_at = self._clock.monotonic()
        while self._options.is_orderly and self._taken[process_queue.queue]:
            await process_queue.wait_change(REVOKE_WARNING_S)
            if self._clock.monotonic() - warned_at >= REVOKE_WARNING_S:
                warned_at = self._clock.monotonic()
                log.warning("A message of %s, which was revoked, is still not settled; waiting", process_queue.queue)
        process_queue.drop()
        self.fetched.forget_dropped()

    def stop(self, *, gives_up: bool = False) -> None:
        """End all loops when they ask for their next message.

        Args:
            gives_up: Leave the messages of ended loops to the next owner of their queue instead of sending them back.
        """
        self.is_stopped = True
        self._gives_up = gives_up
        self.fetched.available.set()

    async def close(self, wait_s: float) -> None:
        """Wait at most `wait_s` seconds for delivered messages to be settled; the next owner gets the others again."""
        self.stop(gives_up=self._gives_up)
        if self._taken:
            self._settled.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._settled.wait()
            except TimeoutError:
                log.warning(
                    "%d messages of group %s were not acknowledged within %.1f s of closing; they are delivered again",
                    self._taken.total(),
                    self._options.group,
                    wait_s,
                )
        self._is_closed = True
        await self._tasks.close()
        for receipt in list(self._receipts):
            if receipt.settlement is None:
                await self.settle(receipt, Settlement.ABANDONED)

    # --- receive ---

    async def receive(self, count: int, linger_s: float) -> list[ConsumerMessage[Any]]:
        """Return the next messages: as soon as there are `count`, or `linger_s` seconds after the first one.

        Returns:
            At least one message; an empty list if the consumer closes.
        """
        while not self.is_stopped:
            receipts: list[Receipt] = []
            try:
                await self._collect(receipts, count, linger_s)
                await self._limiter.wait(len(receipts))
                delivered = [receipt for receipt in receipts if await self._deliver(receipt)]
            except BaseException:  # cancelled by the application, which has not received the messages
                for receipt in reversed(receipts):
                    self._return(receipt)
                raise
            if delivered:
                return [consumer_message(receipt) for receipt in delivered]
        return []

    async def _collect(self, receipts: list[Receipt], count: int, linger_s: float) -> None:
        """Take fetched messages. `receipts` has those taken so far at any time."""
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while not self.is_stopped:
            while len(receipts) < count and (taken := self._take(count - len(receipts))) is not None:
                receipts += taken
            if receipts and deadline is None:
                deadline = loop.time() + linger_s
            if len(receipts) >= count or (deadline is not None and loop.time() >= deadline):
                return
            # Locks arrive without an event.
            wakes = [deadline] if deadline is not None else []
            if self._options.needs_locks and len(self.fetched):
                wakes.append(loop.time() + LOCK_CHECK_S)
            self.fetched.available.clear()
            try:
                async with asyncio.timeout_at(min(wakes, default=None)):
                    await self.fetched.available.wait()
            except TimeoutError:
                continue

    def _take(self, count: int) -> list[Receipt] | None:
        """Take messages of one queue; None if there are none. Those that cannot be read become dead letters."""
        taken = self.fetched.take(1 if self._options.is_orderly else count, self._is_ready)
        if taken is None:
            return None
        process_queue, messages = taken
        receipts = [Receipt(self, process_queue, message) for message in messages]
        self._taken[process_queue.queue] += len(receipts)
        for receipt in receipts:
            if is_unreadable(receipt.message):
                self._start(self.settle(receipt, Settlement.REJECTED), "reject an unreadable message")
        return [receipt for receipt in receipts if not is_unreadable(receipt.message)]

    def _is_ready(self, process_queue: ProcessQueue) -> bool:
        queue = process_queue.queue
        if self._is_paused(queue) or process_queue.is_revoked:
            return False
        if not self._options.is_orderly:
            return True
        is_suspended = self._clock.monotonic() < self._suspended_until.get(queue, 0.0)
        return not (is_suspended or self._taken[queue]) and self._may_consume(process_queue)

    def _may_consume(self, process_queue: ProcessQueue) -> bool:
        """Return True if this member alone may consume the queue."""
        return not self._options.needs_locks or process_queue.is_locked(self._clock.monotonic())

    async def _deliver(self, receipt: Receipt) -> bool:
        """Announce a message to the hooks. Return False if it must not be delivered any more: the hooks may take time."""
        process_queue, events = receipt.process_queue, self._services.events
        if self._may_deliver(process_queue):
            receipt.consumption = await events.start(process_queue.queue, [receipt.message])
        if not self._may_deliver(process_queue):
            self._return(receipt)
            return False
        receipt.delivered_at = process_queue.consumed_at = self._clock.monotonic()
        receipt.deadline = receipt.delivered_at + self._options.settings.consume_timeout
        self._receipts[receipt] = None
        return True

    def _may_deliver(self, process_queue: ProcessQueue) -> bool:
        return not self.is_stopped and not process_queue.is_revoked and self._may_consume(process_queue)

    def _return(self, receipt: Receipt) -> None:
        """Put a message back that was taken and not received."""
        if receipt.settlement is not None:
            return
        receipt.settlement = Settlement.ABANDONED
        self.fetched.put_back(receipt.process_queue, [receipt.message])
        self._forget(receipt)
        if receipt.consumption is not None:
            self._start(self._services.events.finish(receipt.consumption, ConsumeReturn.FAILED), "hooks")

    # --- settle ---

    async def settle(self, receipt: Receipt, settlement: Settlement, delay_level: int = 0) -> None:
        """Settle a delivered message, unless it is settled already."""
        message = receipt.message
        if receipt.settlement is not None:
            log.warning(
                "Ignoring that message %s is %s: it was %s before",
                identity(message),
                settlement.value,
                receipt.settlement.value,
            )
            return
        receipt.settlement = settlement
        try:
            await self._apply(receipt, delay_level)
        finally:
            self._forget(receipt)
        # An unreadable message was never delivered.
        if receipt.deadline:
            took_s, is_ok = self._clock.monotonic() - receipt.delivered_at, settlement is Settlement.ACKNOWLEDGED
            self._services.rates.record_consume(receipt.process_queue.queue.topic, 1, took_s, ok=is_ok)
            await self._services.events.finish(receipt.consumption, OUTCOMES[settlement])

    def abandon(self, messages: Iterable[ConsumerMessage[Any]]) -> None:
        """Settle messages of a loop that ended without asking for its next message: only that acknowledges them."""
        settlement = Settlement.ABANDONED if self._gives_up else Settlement.RETRIED
        for message in messages:
            if message.is_pending:
                log.info("A loop ended without acknowledging message %s", identity(message))
                self._start(message.settle(settlement), "message of an ended loop")

    async def _apply(self, receipt: Receipt, delay_level: int) -> None:
        process_queue, message, settlement = receipt.process_queue, receipt.message, receipt.settlement
        if settlement is Settlement.ABANDONED:
            return
        if process_queue.is_dropped:
            log.warning(
                "Message %s is %s, which does not count: its queue was revoked or is read from another offset",
                identity(message),
                receipt,
            )
            return
        is_done = self._may_consume(process_queue)
        if not is_done:  # another member may have consumed further
            log.warning(
                "Message %s is %s, which does not count without the lock of its queue", identity(message), receipt
            )
        try:
            if settlement is not Settlement.ACKNOWLEDGED and is_done:
                is_done = await self._send_back(receipt, delay_level)
        except Exception:
            log.exception("Sending message %s back failed; delivering it again", identity(message))
            is_done = False
        except BaseException:  # the application was cancelled: whether a broker has the message is unknown
            self._redeliver(receipt)
            raise
        if not is_done:
            self._redeliver(receipt)
        elif not process_queue.is_dropped:
            self._services.offsets.update(process_queue.queue, process_queue.mark_consumed([message]))

    async def _send_back(self, receipt: Receipt, delay_level: int) -> bool:
        """Hand a failed message to the broker. Return False if it has to be delivered again by this member."""
        message, send_back = receipt.message, self._services.send_back
        if receipt.settlement is Settlement.REJECTED:
            return await send_back.send_back(message, DEAD_LETTER)
        if not self._options.is_orderly:
            return await send_back.send_back(message, delay_level)
        times_max = self._options.settings.max_reconsume_times
        return 0 <= times_max <= message.reconsume_times and await send_back.send_copy(message)

    def _redeliver(self, receipt: Receipt) -> None:
        """Deliver a message again after a pause, as the next attempt."""
        process_queue = receipt.process_queue
        message = msgspec.structs.replace(receipt.message, reconsume_times=receipt.message.reconsume_times + 1)
        process_queue.tracker.replace([message])
        settings = self._options.settings
        if self._options.is_orderly:
            # The messages after it have to wait, too.
            pause_s = settings.suspend_queue_time
            self._suspended_until[process_queue.queue] = self._clock.monotonic() + pause_s
            self.fetched.put_back(process_queue, [message])
        else:
            pause_s = settings.local_retry_delay

        async def wait() -> None:
            await self._clock.sleep(pause_s)
            if self._options.is_orderly:
                self.fetched.available.set()
            else:
                self.fetched.put_back(process_queue, [message])

        self._start(wait(), "deliver again")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if self._is_closed:
            work.close()
        else:
            self._tasks.start(work, name)

    def _forget(self, receipt: Receipt) -> None:
        """Remove a message that is settled or returned."""
        self._receipts.pop(receipt, None)
        queue = receipt.process_queue.queue
        self._taken[queue] -= 1
        if not self._taken[queue]:
            del self._taken[queue]
        if not self._taken:
            self._settled.set()
        receipt.process_queue.changed.set()
        if self._options.is_orderly:
            self.fetched.available.set()  # the next message of the queue may follow

    async def _expire(self) -> None:
        """Settle messages whose deadline has passed. Deadlines are in the order of deliveries."""
        while True:
            receipt, now = next(iter(self._receipts), None), self._clock.monotonic()
            if receipt is None or receipt.deadline > now:
                deadline = now + self._options.settings.consume_timeout if receipt is None else receipt.deadline
                await self._clock.sleep(deadline - now)
                continue
            log.warning(
                "Message %s was not acknowledged within %g s; it is delivered again",
                identity(receipt.message),
                self._options.settings.consume_timeout,
            )
            del self._receipts[receipt]
            self._start(self.settle(receipt, Settlement.EXPIRED), "expired message")
