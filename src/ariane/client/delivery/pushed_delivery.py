"""Push on top of POP: messages that are taken when a call of the listener can begin, and settled by its outcome.

    free calls ─→ receive ─→ listener ─ success ─→ acknowledged
                                 │    └ failure ─→ visible again after its delay, or a dead letter
                                 └ while it works: the messages stay invisible

A call that ends with its process leaves its messages to the broker, which delivers them again after their invisible time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ariane.client.consuming.pop_requests import COUNT_MAX
from ariane.client.delivery.consume_events import ConsumeEvents
from ariane.client.delivery.delivery_strategy import DeliveryServices
from ariane.client.delivery.listener_invoker import Listener, ListenerInvoker, ListenerOutcome
from ariane.client.delivery.popped_message import PoppedMessage, PoppedReceipt, receipt_of
from ariane.client.delivery.send_back import DEAD_LETTER
from ariane.client.delivery.simple_delivery import SimpleDelivery
from ariane.client.instance.message_texts import identities
from ariane.errors import ArianeError, ClientClosed, RouteNotFound
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.client_rules.transient import is_transient

log = logging.getLogger("ariane.client")

# Seconds until a failed message is delivered again, by delay level, as by default at brokers. Without a level, that of its attempt.
DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
FIRST_LEVEL = 3

Receive = Callable[[int], Awaitable[list[PoppedMessage[Any]]]]


class PushedDelivery:
    """Calls of a listener with messages that a `SimpleConsumer` takes.

    Args:
        receive: Returns up to that many messages; none if there were none for a while.
        invisible_s: For which they are taken, and renewed while the listener works.
    """

    def __init__(
        self,
        services: DeliveryServices,
        delivery: SimpleDelivery,
        listener: Listener,
        receive: Receive,
        invisible_s: float,
    ) -> None:
        instance, options = services.instance, services.options
        self._delivery = delivery  # settles the messages
        self._receive = receive
        self._invisible_s = invisible_s
        self._clock = instance.clock
        self._settings = options.settings
        self._free = asyncio.Semaphore(self._settings.concurrency)  # calls that may begin
        self._tasks = BackgroundTasks("push")  # the calls
        # Hooks, spans and rates are those of the delivery, until a message is settled.
        self._invoker = ListenerInvoker(
            listener,
            options=options,
            clock=self._clock,
            events=ConsumeEvents(options.group, (), instance),
            scope=instance.namespace.wrap(options.group),
        )

    async def run(self) -> None:
        """Deliver messages until the consumer is closed, or this is cancelled; then wait for the calls that have begun.

        Raises:
            ArianeError: the broker refuses to deliver, for good.
        """
        try:
            while True:
                await self._deliver_next()
        except ClientClosed:
            return
        finally:
            await self._close()

    async def _deliver_next(self) -> None:
        """Take as many messages as calls can begin with."""
        batch, calls = self._settings.consume_batch_max, 1
        await self._free.acquire()
        try:
            while calls * batch < COUNT_MAX and not self._free.locked():
                await self._free.acquire()
                calls += 1
            messages = await self._take(min(COUNT_MAX, calls * batch))
            for start in range(0, len(messages), batch):
                self._tasks.start(self._call(messages[start : start + batch]), "call the listener")
                calls -= 1
        finally:
            for _ in range(calls):
                self._free.release()

    async def _take(self, count: int) -> list[PoppedMessage[Any]]:
        try:
            return await self._receive(count)
        except ArianeError as error:
            if isinstance(error, RouteNotFound) or is_transient(error):
                return []  # logged; the brokers are asked again
            raise

    async def _call(self, messages: list[PoppedMessage[Any]]) -> None:
        receipts, changing = [receipt_of(message) for message in messages], asyncio.Lock()
        renewing = asyncio.ensure_future(self._renew(receipts, changing))
        try:
            outcome = await self._invoker.invoke_once(list(messages))
            async with changing:  # an acknowledgement needs the handle of the last renewal
                renewing.cancel()
            await self._settle(receipts, outcome)
        except ArianeError as error:
            log.warning("Messages %s may be delivered again: %s", identities(messages), error)
        finally:
            renewing.cancel()
            self._free.release()

    async def _settle(self, receipts: list[PoppedReceipt], outcome: ListenerOutcome) -> None:
        if outcome.is_success:
            await self._delivery.acknowledge(receipts)
            return
        for receipt in receipts:
            if outcome.delay_level == DEAD_LETTER:
                await self._delivery.reject(receipt)
            else:
                level = outcome.delay_level or FIRST_LEVEL + receipt.message.reconsume_times
                await self._delivery.change_invisible(receipt, DELAYS_S[min(level, len(DELAYS_S)) - 1])

    async def _renew(self, receipts: list[PoppedReceipt], changing: asyncio.Lock) -> None:
        while True:
            await self._clock.sleep(self._invisible_s / 2)
            async with changing:
                for receipt in receipts:
                    try:
                        await self._delivery.change_invisible(receipt, self._invisible_s)
                    except ArianeError as error:
                        log.warning("Message %s may be delivered again: %s", identities([receipt.message]), error)

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(self._settings.close_timeout):
                for _ in range(self._settings.concurrency):
                    await self._free.acquire()
        except TimeoutError:
            log.warning("Cancelled calls of the listener that did not end in time")
        await self._tasks.close()
        self._invoker.close()
