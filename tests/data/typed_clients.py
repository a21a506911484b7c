"""Types that an application sees, checked by mypy with the examples (tests/integration/test_examples.py). Never run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

from ariane import (
    ClientSettings,
    Consumer,
    ConsumerMessage,
    ConsumerSettings,
    Idempotent,
    PayloadMessage,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SqliteStore,
    TraceCounts,
    TraceSettings,
    blocking,
)
from ariane.payloads import Json

NAMESRV = "127.0.0.1:9876"
ORDERS = {"orders": "*"}


@dataclass
class Payment:
    order: str
    cents: int


PAYMENTS = Json(Payment)
HOME = Path("home")


def plain(messages: list[ReceivedMessage]) -> None: ...


async def on_messages(messages: list[ReceivedMessage]) -> None: ...


async def on_payments(messages: list[PayloadMessage[Payment]]) -> None: ...


def order_of(message: PayloadMessage[Payment]) -> str:
    return message.payload.order


def codecs() -> None:
    assert_type(PAYMENTS.decode(b""), Payment)
    assert_type(Json(list[Payment]).decode(b""), list[Payment])
    assert_type(Json().decode(b""), Any)


def listeners() -> None:
    PushConsumer(NAMESRV, "stock", ORDERS, plain)
    PushConsumer(NAMESRV, "stock", ORDERS, on_messages)
    PushConsumer(NAMESRV, "stock", ORDERS, on_payments, payload=PAYMENTS)
    PushConsumer(NAMESRV, "stock", ORDERS, on_payments)  # type: ignore[arg-type]
    PushConsumer(NAMESRV, "stock", ORDERS, Idempotent(on_messages, store=SqliteStore(HOME / "stock.db")))
    PushConsumer(NAMESRV, "stock", ORDERS, Idempotent(on_payments, key=order_of), payload=PAYMENTS)
    blocking.PushConsumer(NAMESRV, "stock", ORDERS, plain, start="first", orderly=True)
    blocking.PushConsumer(NAMESRV, "stock", ORDERS, on_payments, payload=PAYMENTS)
    blocking.PushConsumer(NAMESRV, "stock", ORDERS, on_payments)  # type: ignore[arg-type]
    blocking.PushConsumer(NAMESRV, "stock", ORDERS, Idempotent(on_payments), payload=PAYMENTS)


async def iterations() -> None:
    async with Consumer(NAMESRV, "stock", ORDERS, payload=PAYMENTS) as consumer:
        async for message in consumer:
            assert_type(message, ConsumerMessage[Payment])
            assert_type(message.payload.cents, int)
    async with Consumer(NAMESRV, "stock", ORDERS) as untyped:
        async for raw in untyped:
            assert_type(raw.payload, bytes)


def blocking_iterations() -> None:
    with blocking.Consumer(NAMESRV, "stock", ORDERS, ack="manual", payload=PAYMENTS) as consumer:
        for message in consumer:
            assert_type(message, blocking.ConsumerMessage[Payment])
            assert_type(message.payload.cents, int)
        for messages in consumer.batches(10):
            assert_type(messages, list[blocking.ConsumerMessage[Payment]])
    with blocking.Consumer(NAMESRV, "stock", ORDERS) as untyped:
        for raw in untyped:
            assert_type(raw.payload, bytes)


def settings() -> None:
    ConsumerSettings(message_model="broadcasting", offsets_dir=HOME)
    assert_type(ClientSettings(use_tls=True, tls_ca_file=HOME / "ca.pem").tls_ca_file, str)
    traced = Producer(NAMESRV, "shop", trace=TraceSettings(when_full="spill", spill_dir=HOME / "traces"))
    assert_type(traced.trace_counts, TraceCounts)
    assert_type(blocking.Producer(NAMESRV, "shop").trace_counts.sent, int)
