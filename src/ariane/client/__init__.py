"""Asyncio clients: `Producer` and `TransactionProducer` send, `Consumer` is iterated over, `PushConsumer` calls a listener,
`LitePullConsumer` is polled, `PullConsumer` reads queues without a group.

    async with Producer("127.0.0.1:9876", "shop") as producer:
        await producer.send(Message(topic="orders", body=b"created", keys=["ORDER-17"]))

    async with Consumer("127.0.0.1:9876", "billing", {"orders": "*"}, start="first") as consumer:
        async for message in consumer:
            print(message.body)

    async with PushConsumer("127.0.0.1:9876", "stock", {"orders": "*"}, listener, start="first"):
        await stopped.wait()

Incoming messages: fetcher (one pull loop per queue) → offset tracker (pending messages) → delivery → application → offsets.
Outgoing messages: send codec (message → request, pure) → sender (attempts within one deadline).
Both notify hooks, from whose events the trace dispatcher builds trace records. Every client has a `ClientInstance` (connections,
routes, heartbeats), its own or a shared one; consumers join their group with a `GroupMembership`.
"""

from ariane.client.client_instance import ClientInstance
from ariane.client.consumed_store import ConsumedKey, ConsumedStore, MemoryStore
from ariane.client.consumer import Consumer
from ariane.client.consumer_message import ConsumerMessage
from ariane.client.fetcher import PullResult
from ariane.client.hooks import ConsumeFinished, ConsumeStarted, LocalState, SendEvent, TransactionEnd
from ariane.client.idempotent import Idempotent
from ariane.client.listener_invoker import ReconsumeLater
from ariane.client.lite_pull_consumer import LitePullConsumer
from ariane.client.payload_messages import PayloadMessage
from ariane.client.producer import Producer
from ariane.client.pull_consumer import PullConsumer
from ariane.client.push_consumer import PushConsumer
from ariane.client.redis_store import RedisStore
from ariane.client.send_codec import SendResult, SendStatus
from ariane.client.settings import ClientSettings, ConsumerSettings, ProducerSettings, TraceSettings
from ariane.client.sqlite_store import SqliteStore
from ariane.client.subscriptions import Sql
from ariane.client.trace_dispatcher import TraceCounts
from ariane.client.transaction_producer import Transaction, TransactionProducer, TransactionResult
from ariane.protocol.signing import Credentials

__all__ = [
    "ClientInstance",
    "ClientSettings",
    "ConsumeFinished",
    "ConsumeStarted",
    "ConsumedKey",
    "ConsumedStore",
    "Consumer",
    "ConsumerMessage",
    "ConsumerSettings",
    "Credentials",
    "Idempotent",
    "LitePullConsumer",
    "LocalState",
    "MemoryStore",
    "PayloadMessage",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullResult",
    "PushConsumer",
    "ReconsumeLater",
    "RedisStore",
    "SendEvent",
    "SendResult",
    "SendStatus",
    "Sql",
    "SqliteStore",
    "TraceCounts",
    "TraceSettings",
    "Transaction",
    "TransactionEnd",
    "TransactionProducer",
    "TransactionResult",
]
