"""Delivery of a `SimpleConsumer`: messages that were taken by POP, until they are settled or visible again.

    taken ─ deliver() ─→ invisible ─┬─ acknowledged, rejected ─→ finished
                                    ├─ changed ───────────────→ invisible for another time
                                    └─ its time is over ──────→ delivered again by the broker

Messages that the application must not receive are settled without it: those with other tags are acknowledged, and those that
cannot be read or were delivered too often become dead letters.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from ariane.client.consuming.payload_messages import with_payload
from ariane.client.consuming.pop_deliveries import Delivery
from ariane.client.consuming.pop_requests import PopRequests, PopSource
from ariane.client.delivery.delivery_strategy import DeliveryServices
from ariane.client.delivery.popped_message import PoppedMessage, PoppedReceipt, PoppedState, popped_message
from ariane.client.delivery.send_back import DEAD_LETTER
from ariane.client.instance import validation
from ariane.client.instance.hooks import ConsumeReturn
from ariane.client.instance.message_texts import identity
from ariane.errors import ArianeError, DeliveryExpired, ReplyError, ServerUnavailable
from ariane.model.message import ReceivedMessage
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records.received_messages import is_unreadable
from ariane.protocol.requests.clients import SubscriptionData

log = logging.getLogger("ariane.client")

INVISIBLE_MAX_S = 12 * 3_600.0  # as for clients of RocketMQ 5 with gRPC

OUTCOMES = {
    PoppedState.ACKNOWLEDGED: ConsumeReturn.SUCCESS,
    PoppedState.REJECTED: ConsumeReturn.FAILED,
    PoppedState.EXPIRED: ConsumeReturn.TIME_OUT,
    PoppedState.ABANDONED: ConsumeReturn.FAILED,
}


class SimpleDelivery:
    """Messages of one `SimpleConsumer` between the brokers and the application."""

    def __init__(self, services: DeliveryServices, requests: PopRequests, times_max: int) -> None:
        self._services = services  # events, spans, counters, dead letters
        self._requests = requests
        self._times_max = times_max  # redeliveries before a message becomes a dead letter
        self._clock = services.instance.clock
        self._pending: set[PoppedReceipt] = set()  # invisible messages that are not settled
        # Messages that the application does not receive, and events after a time is over.
        self._tasks = BackgroundTasks("delivery")

    async def close(self) -> None:
        """Leave what is not settled to the broker, which delivers it again."""
        await self._tasks.close()
        for receipt in list(self._pending):
            await self._end(receipt, PoppedState.ABANDONED)

    # --- deliver ---

    async def deliver(
        self,
        source: PopSource,
        subscription: SubscriptionData,
        taken: Sequence[tuple[ReceivedMessage, Delivery]],
        invisible_s: float,
    ) -> list[PoppedMessage[Any]]:
        """Return those of the taken messages that the application is to receive, and announce them to the hooks."""
        taken_at, receipts, others = self._clock.monotonic(), [], []
        for message, delivery in taken:
            # The broker compares only hashes of tags.
            if subscription.tags_set and message.tags not in subscription.tags_set:
                others.append(delivery)
                continue
            decoded = with_payload(message, self._services.options.payload)
            receipt = PoppedReceipt(self, decoded, delivery, taken_at)
            self._hold(receipt, invisible_s)
            if is_unreadable(decoded) or decoded.reconsume_times > self._times_max:
                self._start(self.reject(receipt), f"Making message {identity(decoded)} a dead letter")
            else:
                receipts.append(receipt)
        if others:
            self._start(self._requests.acknowledge(source, others), "Acknowledging messages with other tags")
        try:
            for receipt in receipts:
                await self._announce(receipt)
        except BaseException:  # cancelled: the application has not received the messages
            self.give_back(receipts)
            raise
        return [popped_message(receipt) for receipt in receipts]

    def give_back(self, receipts: Iterable[PoppedReceipt]) -> None:
        """Make messages visible at once that the application has not received."""
        for receipt in receipts:
            self._start(self.change_invisible(receipt, 0), f"Returning message {identity(receipt.message)}")

    async def _announce(self, receipt: PoppedReceipt) -> None:
        services, message = self._services, receipt.message
        receipt.consumption = await services.events.start(message.queue, [message])
        span = services.telemetry.processing(services.options.group, [message])
        receipt.context = contextvars.copy_context()
        receipt.context.run(span.__enter__)
        receipt.span = span

    # --- settle ---

    async def acknowledge(self, receipts: list[PoppedReceipt]) -> None:
        """Acknowledge messages, those of a topic at a broker in one request. Failures do not stop the other requests."""
        groups: dict[PopSource, list[PoppedReceipt]] = defaultdict(list)
        for receipt in receipts:
            # That of an expired delivery still counts if no other member has the message.
            if receipt.state is PoppedState.EXPIRED or self._is_pending(receipt, "acknowledged"):
                groups[_source(receipt)].append(receipt)
        expired = [receipt for same in groups.values() for receipt in same if receipt.state is PoppedState.EXPIRED]
        results = await asyncio.gather(
            *(self._acknowledge(source, same) for source, same in groups.items()), return_exceptions=True
        )
        for error in results:
            if error is not None:
                raise error
        if expired:
            more = f" ({len(expired)} messages in all)" if len(expired) > 1 else ""
            raise DeliveryExpired(
                expired[0].message.message_id,
                f"it was acknowledged after its invisible time{more}, and may be delivered again; take it for longer, or call"
                " change_invisible in time",
            )

    async def _acknowledge(self, source: PopSource, receipts: list[PoppedReceipt]) -> None:
        try:
            await self._requests.acknowledge(source, [receipt.delivery for receipt in receipts])
        except ReplyError as error:
            if error.code != ResponseCode.NO_MESSAGE:
                raise
            for receipt in receipts:
                await self._end(receipt, PoppedState.EXPIRED)
            raise _removed(receipts[0]) from error
        for receipt in receipts:
            await self._end(receipt, PoppedState.ACKNOWLEDGED)

    async def change_invisible(self, receipt: PoppedReceipt, invisible: float | timedelta) -> None:
        """Change when a message is visible again."""
        invisible_s = validation.seconds("invisible", invisible, 0, INVISIBLE_MAX_S)
        if not self._is_in_time(receipt, "made invisible for another time"):
            return
        changed = await self._requests.change_invisible(_source(receipt), receipt.delivery, round(invisible_s * 1000))
        if changed is None:
            await self._end(receipt, PoppedState.EXPIRED)
            raise _removed(receipt)
        receipt.delivery = changed
        if receipt.state is PoppedState.PENDING:
            self._hold(receipt, invisible_s)

    async def reject(self, receipt: PoppedReceipt) -> None:
        """Make a message a dead letter, and acknowledge it."""
        if not self._is_in_time(receipt, "rejected"):
            return
        message = receipt.message
        if not await self._services.send_back.send_back(message, DEAD_LETTER):
            raise ServerUnavailable(f"no broker stored message {identity(message)} as a dead letter; it stays pending")
        await self._requests.acknowledge(_source(receipt), [receipt.delivery])
        await self._end(receipt, PoppedState.REJECTED)

    # --- inside ---

    def _is_pending(self, receipt: PoppedReceipt, action: str) -> bool:
        if receipt.state is PoppedState.PENDING:
            return True
        log.warning("Ignoring that message %s is %s: it was %s before", identity(receipt.message), action, receipt)
        return False

    def _is_in_time(self, receipt: PoppedReceipt, action: str) -> bool:
        """Return whether a message may be settled. Raise DeliveryExpired if it is visible to other members already."""
        if receipt.state is PoppedState.EXPIRED:
            reason = f"it cannot be {action}, because its invisible time is over"
            raise DeliveryExpired(receipt.message.message_id, reason)
        return self._is_pending(receipt, action)

    def _hold(self, receipt: PoppedReceipt, invisible_s: float) -> None:
        """Watch the time until a message is visible again."""
        if receipt.timer is not None:
            receipt.timer.cancel()
        self._pending.add(receipt)
        receipt.timer = self._clock.call_later(invisible_s, self._on_visible, receipt)

    def _on_visible(self, receipt: PoppedReceipt) -> None:
        if receipt.state is PoppedState.PENDING:
            log.info("Message %s is visible again: it was not settled in time", identity(receipt.message))
            self._tasks.start(self._end(receipt, PoppedState.EXPIRED), "expired message")

    async def _end(self, receipt: PoppedReceipt, state: PoppedState) -> None:
        """Record what became of a message; its hooks are notified once."""
        was_pending, receipt.state = receipt.state is PoppedState.PENDING, state
        self._pending.discard(receipt)
        if receipt.timer is not None:
            receipt.timer.cancel()
        # Messages that the application does not receive are not announced either.
        if not was_pending or receipt.span is None or receipt.context is None:
            return
        services, is_ok = self._services, state is PoppedState.ACKNOWLEDGED
        took_s = self._clock.monotonic() - receipt.taken_at
        services.rates.record_consume(receipt.message.topic, 1, took_s, ok=is_ok)
        receipt.context.run(receipt.span.__exit__, None, None, None)
        await services.events.finish(receipt.consumption, OUTCOMES[state])

    def _start(self, work: Awaitable[None], action: str) -> None:
        async def run() -> None:
            try:
                await work
            except ArianeError as error:
                log.warning("%s failed; the broker delivers it again: %s", action, error)

        self._tasks.start(run(), action)


def _source(receipt: PoppedReceipt) -> PopSource:
    return PopSource(receipt.message.topic, receipt.message.queue.broker)


def _removed(receipt: PoppedReceipt) -> DeliveryExpired:
    reason = "the broker no longer has it: the invisible time is over, or the message was removed"
    return DeliveryExpired(receipt.message.message_id, reason)
