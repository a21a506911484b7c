"""Asyncio clients of a cluster. `Producer` and `TransactionProducer` send, `Consumer` is iterated over, `PushConsumer` calls
a listener, `LitePullConsumer` is polled, `PullConsumer` reads queues without a group, `SimpleConsumer` takes messages by POP.

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

The names below are imported on first use: a program loads only the clients that it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# Type checkers and editors see the names without importing anything at run time.
if TYPE_CHECKING:
    from ariane.client.consumer import Consumer
    from ariane.client.consuming.payload_messages import PayloadMessage
    from ariane.client.consuming.subscriptions import Sql
    from ariane.client.delivery.consumer_message import ConsumerMessage
    from ariane.client.delivery.listener_invoker import ReconsumeLater
    from ariane.client.delivery.popped_message import PoppedMessage
    from ariane.client.duplicates.consumed_store import ConsumedKey, ConsumedStore, MemoryStore
    from ariane.client.duplicates.idempotent import Idempotent
    from ariane.client.duplicates.redis_store import RedisStore
    from ariane.client.duplicates.sqlite_store import SqliteStore
    from ariane.client.instance.client_instance import ClientInstance
    from ariane.client.instance.hooks import ConsumeFinished, ConsumeStarted, LocalState, SendEvent, TransactionEnd
    from ariane.client.instance.send_types import SendResult, SendStatus
    from ariane.client.instance.settings import ClientSettings, ConsumerSettings, ProducerSettings, TraceSettings
    from ariane.client.lite_pull_consumer import LitePullConsumer
    from ariane.client.membership.fetcher import PullResult
    from ariane.client.producer import Producer
    from ariane.client.pull_consumer import PullConsumer
    from ariane.client.push_consumer import PushConsumer
    from ariane.client.simple_consumer import SimpleConsumer
    from ariane.client.tracing.trace_dispatcher import TraceCounts
    from ariane.client.transaction_producer import Transaction, TransactionProducer, TransactionResult
    from ariane.protocol.signing import Credentials

# Module → its public names.
_NAMES = {
    "ariane.client.consumer": ("Consumer",),
    "ariane.client.consuming.payload_messages": ("PayloadMessage",),
    "ariane.client.consuming.subscriptions": ("Sql",),
    "ariane.client.delivery.consumer_message": ("ConsumerMessage",),
    "ariane.client.delivery.listener_invoker": ("ReconsumeLater",),
    "ariane.client.delivery.popped_message": ("PoppedMessage",),
    "ariane.client.duplicates.consumed_store": ("ConsumedKey", "ConsumedStore", "MemoryStore"),
    "ariane.client.duplicates.idempotent": ("Idempotent",),
    "ariane.client.duplicates.redis_store": ("RedisStore",),
    "ariane.client.duplicates.sqlite_store": ("SqliteStore",),
    "ariane.client.instance.client_instance": ("ClientInstance",),
    "ariane.client.instance.hooks": ("ConsumeFinished", "ConsumeStarted", "LocalState", "SendEvent", "TransactionEnd"),
    "ariane.client.instance.send_types": ("SendResult", "SendStatus"),
    "ariane.client.instance.settings": ("ClientSettings", "ConsumerSettings", "ProducerSettings", "TraceSettings"),
    "ariane.client.lite_pull_consumer": ("LitePullConsumer",),
    "ariane.client.membership.fetcher": ("PullResult",),
    "ariane.client.producer": ("Producer",),
    "ariane.client.pull_consumer": ("PullConsumer",),
    "ariane.client.push_consumer": ("PushConsumer",),
    "ariane.client.simple_consumer": ("SimpleConsumer",),
    "ariane.client.tracing.trace_dispatcher": ("TraceCounts",),
    "ariane.client.transaction_producer": ("Transaction", "TransactionProducer", "TransactionResult"),
    "ariane.protocol.signing": ("Credentials",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

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
    "PoppedMessage",
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
    "SimpleConsumer",
    "Sql",
    "SqliteStore",
    "TraceCounts",
    "TraceSettings",
    "Transaction",
    "TransactionEnd",
    "TransactionProducer",
    "TransactionResult",
]

# Hidden from type checkers: with it, they would accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
