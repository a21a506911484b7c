"""Renewal of deliveries to push consumers: a message stays invisible to others while its client is connected and working on it.

    received ─▶ open delivery ─ every SCAN_S, if less than RENEW_BEFORE_MS are left ─▶ CHANGE_MESSAGE_INVISIBLETIME, same handle
                     ├ acknowledged, returned, dead letter ─▶ closed
                     └ its client ends ─▶ visible after RELEASE_MS

At brokers of ours, a renewed delivery retains its handle, so it is acknowledged by the handle of its receive call, also after a
restart of the server. Those of Apache give it another one, which is retained here by that of the receive call (`current`).
A restart ends renewals only: messages that are worked on for longer than 60 s after it are delivered again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ariane.errors import ArianeError
from ariane.protocol.requests.pop import ChangeInvisibleTime, PopMessage
from ariane.proxy.client_sessions import ClientSession
from ariane.proxy.conversion.receipt_handles import DeliveryKey, ReceiptHandle
from ariane.proxy.message_service import Caller, MessageService
from ariane.proxy.traces.message_traces import MessageTraces

log = logging.getLogger("ariane.proxy")

SCAN_S = 5.0
RENEW_BEFORE_MS = 10_000
RENEWAL_MIN = (1, 3, 5, 10, 30, 60)  # minutes of each renewal; the last one repeats
RENEWED_MS_MAX = 3 * 3_600_000  # after the delivery, the message is left to the next consumer
FAILURES_MAX = 3
RELEASE_MS = 1_000
OPEN_MAX = 100_000  # deliveries; beyond, they are not renewed


@dataclass
class _OpenDelivery:
    """A message that a push consumer works on."""

    caller: Caller
    session: ClientSession
    group: str
    topic: str
    handle: ReceiptHandle  # the current one
    retains_handle: bool
    taken_ms: int  # of the first handle, which the client has
    visible_ms: int
    renewals: int = 0
    failures: int = 0


class HandleRenewal:
    """Renews open deliveries.

    Args:
        service: Changes their time.
        traces: Of the messages.
        is_connected: Returns whether a client is connected, by its number.
        now_ms: The clock of the broker.
    """

    def __init__(
        self,
        *,
        service: MessageService,
        traces: MessageTraces,
        is_connected: Callable[[int], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._service = service
        self._traces = traces
        self._is_connected = is_connected
        self._now_ms = now_ms
        self._open: dict[DeliveryKey, _OpenDelivery] = {}

    @property
    def count(self) -> int:
        """Return how many deliveries are open."""
        return len(self._open)

    def add(
        self,
        caller: Caller,
        session: ClientSession,
        popped: PopMessage,
        handle: ReceiptHandle,
        *,
        retains_handle: bool = True,
    ) -> None:
        """Renew a delivery until it is closed."""
        if len(self._open) < OPEN_MAX:
            group, topic = popped.consumer_group, popped.topic
            visible_ms = handle.taken_ms + handle.invisible_ms
            self._open[handle.key(group, topic)] = _OpenDelivery(
                caller, session, group, topic, handle, retains_handle, handle.taken_ms, visible_ms
            )

    def current(self, group: str, topic: str, handle: ReceiptHandle) -> ReceiptHandle:
        """Return the handle by which a delivery is acknowledged now."""
        delivery = self._delivery(handle.key(group, topic), handle.taken_ms)
        return handle if delivery is None else delivery.handle

    def close(self, key: DeliveryKey, taken_ms: int) -> None:
        """End the renewals of a delivery. A later one of the same message is renewed further."""
        if self._delivery(key, taken_ms) is not None:
            del self._open[key]

    def _delivery(self, key: DeliveryKey, taken_ms: int) -> _OpenDelivery | None:
        delivery = self._open.get(key)
        is_same = delivery is not None and taken_ms in (delivery.taken_ms, delivery.handle.taken_ms)
        return delivery if is_same else None

    async def renew_due(self) -> None:
        """Renew the deliveries that end soon, and release those of ended clients."""
        now_ms = self._now_ms()
        for key, delivery in list(self._open.items()):
            is_connected = self._is_connected(delivery.session.peer.id)
            if is_connected and delivery.visible_ms - now_ms >= RENEW_BEFORE_MS:
                continue
            is_over = now_ms - delivery.taken_ms >= RENEWED_MS_MAX
            if not is_connected or is_over or delivery.visible_ms <= now_ms:
                if self._open.get(key) is delivery:
                    del self._open[key]
                if not is_connected and delivery.visible_ms > now_ms:
                    await self._change(delivery, RELEASE_MS)
                continue
            minutes = RENEWAL_MIN[min(delivery.renewals, len(RENEWAL_MIN) - 1)]
            if await self._change(delivery, minutes * 60_000):
                delivery.renewals, delivery.failures = delivery.renewals + 1, 0
            else:
                delivery.failures += 1
                if delivery.failures >= FAILURES_MAX and self._open.get(key) is delivery:
                    del self._open[key]

    async def _change(self, delivery: _OpenDelivery, invisible_ms: int) -> bool:
        """Change when a message is visible again; its handle stays valid. Return False if that failed."""
        handle = delivery.handle
        topic = handle.stored_topic(delivery.group, delivery.topic)
        info = handle.renewal_info if delivery.retains_handle else handle.extra_info
        request = ChangeInvisibleTime(delivery.group, topic, handle.queue_id, info, handle.offset, invisible_ms)
        try:
            changed = await self._service.change_invisible_time(delivery.caller, handle.broker, request)
        except ArianeError as error:
            text = "Could not renew message %d of %s-%d for group %s: %s"
            log.warning(text, handle.offset, delivery.topic, handle.queue_id, delivery.group, error)
            return False
        if not delivery.retains_handle:
            delivery.handle = handle.changed(changed)
        delivery.visible_ms = self._now_ms() + invisible_ms
        key = handle.key(delivery.group, delivery.topic)
        self._traces.hidden(key, delivery.taken_ms, delivery.taken_ms, delivery.visible_ms)
        return True
