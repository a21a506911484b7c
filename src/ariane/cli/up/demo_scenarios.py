"""Traffic of the endless demo apart from orders: retries, dead letters, delays, transactions, and a consumer with lag.

notifications ─→ mailer           every 8th message fails once, every 40th always: it becomes a dead letter
reminders     ─→ reminder-sender  delivered after 10 s, every 5th in an hour
payments      ─→ ledger           transactions: most commit, some roll back, some stay open
orders        ─→ archive          consumes in bursts, so its lag rises and falls

Nothing of this is verified. `demo_traffic` sends the orders.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec

from ariane.client.delivery.listener_invoker import ReconsumeLater
from ariane.client.instance.hooks import LocalState
from ariane.client.instance.settings import ClientSettings, ConsumerSettings
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.client.transaction_producer import TransactionProducer
from ariane.clock import SYSTEM_CLOCK
from ariane.cluster.admin import Admin
from ariane.errors import ArianeError
from ariane.model.message import Message, ReceivedMessage

ORDERS, NOTIFICATIONS, REMINDERS, PAYMENTS = "orders", "notifications", "reminders", "payments"
QUEUES = 4
INTERVAL_S = 1.0  # between two messages of a topic
LEVEL_1_S, LEVEL_10_S = 1, 3  # delay levels
HOUR_MS = 3_600_000
BURST, PAUSE_S = 200, 30.0  # of the group archive: messages between two pauses

log = logging.getLogger(__name__)


async def run_scenarios(namesrv: str, client: ClientSettings) -> None:
    """Send and consume until cancelled."""
    async with AsyncExitStack() as clients:
        async with Admin(namesrv, client=client) as admin:
            for topic in (NOTIFICATIONS, REMINDERS, PAYMENTS):
                await admin.create_topic(topic, queues=QUEUES)
        producer = await clients.enter_async_context(Producer(namesrv, "shop-services", client=client, trace=True))
        payments = await clients.enter_async_context(
            TransactionProducer(namesrv, "cashier", check=_decide_payment, client=client, trace=True)
        )
        for consumer in _consumers(namesrv, client):
            await clients.enter_async_context(consumer)
        for number in itertools.count(1):
            try:
                await _send_round(producer, payments, number)
            except ArianeError as error:  # the broker may be killed to watch what happens
                log.warning("Could not send message %d of the scenarios: %s", number, error)
            await asyncio.sleep(INTERVAL_S)


async def _send_round(producer: Producer, payments: TransactionProducer, number: int) -> None:
    """Send one message to each topic."""
    key = f"ORDER-{number}"
    tag = "sms" if number % 3 == 0 else "mail"
    properties = {"number": str(number), "language": "中文" if number % 2 else "English"}
    text = f'{{"order": "{key}", "text": "Your order is on its way."}}'.encode()
    await producer.send(Message(topic=NOTIFICATIONS, body=text, tags=tag, keys=[key], properties=properties))
    reminder = Message(topic=REMINDERS, body=b"Please rate your order.", keys=[key], delay_level=LEVEL_10_S)
    if number % 5 == 0:
        reminder = msgspec.structs.replace(reminder, delay_level=0, deliver_at_ms=SYSTEM_CLOCK.now_ms() + HOUR_MS)
    await producer.send(reminder)
    payment = Message(topic=PAYMENTS, body=key.encode(), keys=[key])
    await payments.send_in_transaction(payment, lambda sent: _state(number))


def _state(number: int) -> LocalState:
    """Return the state of a payment: every 7th rolls back, every 20th is not decided."""
    if number % 20 == 0:
        return LocalState.UNKNOWN
    return LocalState.ROLLBACK if number % 7 == 0 else LocalState.COMMIT


def _decide_payment(message: ReceivedMessage) -> LocalState:
    """Answer a transaction check. Every 20th payment stays open, and the broker checks it again."""
    return _state(int(message.keys[0].removeprefix("ORDER-")))


def _consumers(namesrv: str, client: ClientSettings) -> list[PushConsumer]:
    consumed = itertools.count(1)

    async def mail(messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            number = int(message.properties["number"])
            if number % 40 == 0 or (number % 8 == 0 and message.reconsume_times == 0):
                raise ReconsumeLater("the mail server is busy", delay_level=LEVEL_1_S)

    async def accept(messages: Sequence[ReceivedMessage]) -> None:
        return None

    async def archive(messages: Sequence[ReceivedMessage]) -> None:
        if next(consumed) % BURST == 0:
            await asyncio.sleep(PAUSE_S)

    few_retries = ConsumerSettings(max_reconsume_times=2)
    one_by_one = ConsumerSettings(concurrency=1)
    open_consumer = functools.partial(PushConsumer, namesrv, start="first", client=client)
    return [
        open_consumer("mailer", {NOTIFICATIONS: "*"}, mail, settings=few_retries, trace=True),
        open_consumer("reminder-sender", {REMINDERS: "*"}, accept, trace=True),
        open_consumer("ledger", {PAYMENTS: "*"}, accept, trace=True),
        open_consumer("archive", {ORDERS: "*"}, archive, settings=one_by_one),
    ]
