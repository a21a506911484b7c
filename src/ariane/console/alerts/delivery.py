"""Delivers notifications to one channel, in order, with retries. Bounded: what exceeds the queue is counted, not stored."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque

import msgspec

from ariane.clock import Clock
from ariane.console.alerts.channels import AlertChannel, DeliveryFailed, Notification, WebHookTarget
from ariane.console.alerts.mail import send_mail
from ariane.console.alerts.web_hook import send_web_hook

log = logging.getLogger("ariane.console.alerts")

QUEUE_MAX = 100  # notifications of one channel that wait for an earlier one
RETRY_DELAYS_S = (5, 30, 120, 600)


class ChannelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries and failures of a channel.

    Attributes:
        sent: Number of delivered notifications.
        failed: Number of notifications that all attempts failed to deliver.
        dropped: Number of notifications that did not fit into the queue.
        sent_ms: Time of the last delivery.
        failed_ms: Time of the last failed attempt.
        error: Its reason.
        waiting: Number of notifications that wait.
    """

    sent: int = 0
    failed: int = 0
    dropped: int = 0
    sent_ms: int | None = None
    failed_ms: int | None = None
    error: str = ""
    waiting: int = 0


class Notifier:
    """Sends a notification to a target. Replaced by tests."""

    async def send(self, channel: AlertChannel, notification: Notification) -> None:
        """Send a notification once.

        Raises:
            DeliveryFailed: it was not accepted.
        """
        if isinstance(channel.target, WebHookTarget):
            await send_web_hook(channel.target, notification)
        else:
            await send_mail(channel.target, notification)


class ChannelDelivery:
    """The queue and the task of one channel.

    Args:
        channel: Its settings; replaced when they change, so that waiting notifications use the new ones.
    """

    def __init__(self, channel: AlertChannel, *, notifier: Notifier, clock: Clock) -> None:
        self.channel = channel
        self._notifier = notifier
        self._clock = clock
        self._queue: deque[Notification] = deque()  # the first is being delivered
        self._status = ChannelStatus()  # without `waiting`, which is the queue's length
        self._task: asyncio.Task[None] | None = None  # runs while the queue is not empty

    @property
    def status(self) -> ChannelStatus:
        """Deliveries and failures so far."""
        return msgspec.structs.replace(self._status, waiting=len(self._queue))

    def enqueue(self, notification: Notification) -> None:
        """Deliver a notification after those that wait."""
        if len(self._queue) >= QUEUE_MAX:
            self._update(dropped=self._status.dropped + 1)
            log.warning("Dropping a notification for %s: %d wait already", self.channel.name, QUEUE_MAX)
            return
        self._queue.append(notification)
        if self._task is None or self._task.done():
            # In an empty context: the language of the request that caused the notification is not that of its readers.
            self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    async def close(self) -> None:
        """Stop. Notifications that wait are not delivered."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._queue:
            await self._deliver(self._queue[0])
            self._queue.popleft()

    async def _deliver(self, notification: Notification) -> None:
        for delay_s in (*RETRY_DELAYS_S, None):
            try:
                await self._notifier.send(self.channel, notification)
                self._update(sent=self._status.sent + 1, sent_ms=self._clock.now_ms())
                return
            except DeliveryFailed as error:
                failure = error
            except Exception as error:
                # The task must not end with it: the channel would never send anything again.
                log.exception("Notifying %s failed", self.channel.name)
                reason = f"unexpected {type(error).__name__}; the console's log has the details"
                failure = DeliveryFailed(reason, is_transient=False)
            self._update(failed_ms=self._clock.now_ms(), error=str(failure))
            if delay_s is None or not failure.is_transient:
                self._update(failed=self._status.failed + 1)
                log.error("Cannot notify %s: %s", self.channel.name, failure)
                return
            log.warning("Cannot notify %s, next attempt in %d s: %s", self.channel.name, delay_s, failure)
            await self._clock.sleep(delay_s)

    def _update(self, **changes: int | str) -> None:
        self._status = msgspec.structs.replace(self._status, **changes)
