"""Asyncio clients: `Producer` sends, `TransactionProducer` in transactions, `PushConsumer` gives what arrives to a
listener, `LitePullConsumer` is polled.

    async with Producer("shop", "127.0.0.1:9876") as producer:
        await producer.send(Message(topic="orders", body=b"created", keys=["ORDER-17"]))

    async with PushConsumer("stock", "127.0.0.1:9876", {"orders": "*"}, listener, start="first"):
        await stopped.wait()

Way of a message in: fetch (one pull loop per queue) → window (what is not yet consumed) → the listener → offsets.
Way of a message out: sending (message → request, pure) → sender (attempts within one deadline).
Both tell hooks what happened, and trace makes records of it; every client has an Instance (connections, routes,
heartbeats), its own or one that it shares.
"""

from ariane.client.client_instance import ClientInstance
from ariane.client.hooks import LocalState
from ariane.client.idempotent import Idempotent
from ariane.client.listener_invoker import ReconsumeLater
from ariane.client.lite_pull_consumer import LitePullConsumer
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer, Sql
from ariane.client.send_codec import SendResult, SendStatus
from ariane.client.settings import ClientSettings, ConsumerSettings, ProducerSettings, TraceSettings
from ariane.client.transaction_producer import TransactionProducer, TransactionResult
from ariane.protocol.signing import Credentials

__all__ = [
    "ClientInstance",
    "ClientSettings",
    "ConsumerSettings",
    "Credentials",
    "Idempotent",
    "LitePullConsumer",
    "LocalState",
    "Producer",
    "ProducerSettings",
    "PushConsumer",
    "ReconsumeLater",
    "SendResult",
    "SendStatus",
    "Sql",
    "TraceSettings",
    "TransactionProducer",
    "TransactionResult",
]
