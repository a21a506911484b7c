"""Traffic with input for every job: traced sends and consumption, delayed messages, transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ariane.client import LocalState, Producer, PushConsumer, TransactionProducer
from ariane.cluster.admin import Admin
from ariane.errors import ConnectionLost, ReplyError, RequestTimeout, ServerUnavailable
from ariane.model.message import Message, ReceivedMessage

TOPIC, GROUP = "T", "G"
QUICK = {"transaction_time_out": 500, "transaction_check_interval": 500}  # settings of a broker


async def traffic(namesrv: str, prefix: str, plain: int, delayed: int, transactions: int) -> None:
    """Send the messages and wait until all committed ones are consumed and all traces are stored."""
    await _served(namesrv)
    received: list[ReceivedMessage] = []

    async def listener(messages: Sequence[ReceivedMessage]) -> None:
        received.extend(messages)

    def message(kind: str, number: int, delay_level: int = 0) -> Message:
        return Message(topic=TOPIC, body=b"x", keys=[f"{prefix}-{kind}-{number}"], delay_level=delay_level)

    consumer = PushConsumer(namesrv, GROUP, {TOPIC: "*"}, listener, start="first", trace=True)
    producer = Producer(namesrv, "P", trace=True)
    shop = TransactionProducer(namesrv, "TP", check=lambda _: LocalState.COMMIT, trace=True)
    async with producer, shop, consumer:
        for number in range(plain):
            await producer.send(message("plain", number))
        for number in range(delayed):
            await producer.send(message("delayed", number, delay_level=1))
        for number in range(transactions):
            await shop.send_in_transaction(message("half", number), lambda _: LocalState.COMMIT)
        total = plain + delayed + transactions
        while (
            len({sent_message.message_id for sent_message in received if sent_message.keys[0].startswith(prefix)})
            < total
        ):
            await asyncio.sleep(0.05)


async def _served(namesrv: str) -> None:
    """Wait until a broker is registered and has the topic."""
    async with Admin(namesrv) as admin:
        while True:
            try:
                await admin.create_topic(TOPIC, queues=4)
                return
            except (ConnectionLost, RequestTimeout, ServerUnavailable, ReplyError):
                await asyncio.sleep(0.1)


def send(namesrv: str, prefix: str, *, plain: int, delayed: int = 1, transactions: int = 1) -> None:
    """Run `traffic` with a timeout of two minutes."""
    asyncio.run(asyncio.wait_for(traffic(namesrv, prefix, plain, delayed, transactions), 120))
