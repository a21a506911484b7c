"""Types that an application sees, checked by mypy with the examples (tests/integration/test_examples.py). Never run."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

from ariane import (
    ClientSettings,
    Consumer,
    ConsumerMessage,
    ConsumerSettings,
    Idempotent,
    LitePullConsumer,
    LocalState,
    Message,
    PayloadMessage,
    PoppedMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    SimpleConsumer,
    Sql,
    SqliteStore,
    TraceCounts,
    TraceSettings,
    TransactionProducer,
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
    PushConsumer(NAMESRV, "stock", "orders", plain)
    PushConsumer(NAMESRV, "stock", ["orders", "bills"], plain)
    PushConsumer(NAMESRV, "stock", {"orders": "paid", "bills": Sql("cents > 5")}, plain)
    PushConsumer(NAMESRV, "stock", {"orders": ["paid"]}, plain)  # type: ignore[dict-item]
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
    async with Consumer(NAMESRV, "stock", "orders") as untyped:
        async for raw in untyped:
            assert_type(raw.payload, bytes)


def blocking_iterations() -> None:
    with blocking.Consumer(NAMESRV, "stock", ORDERS, ack="manual", payload=PAYMENTS) as consumer:
        for message in consumer:
            assert_type(message, blocking.ConsumerMessage[Payment])
            assert_type(message.payload.cents, int)
        for messages in consumer.batches(10):
            assert_type(messages, list[blocking.ConsumerMessage[Payment]])
    with blocking.Consumer(NAMESRV, "stock", ["orders"]) as untyped:
        for raw in untyped:
            assert_type(raw.payload, bytes)


def check(message: ReceivedMessage) -> LocalState:
    return LocalState.COMMIT


async def any_producer(producer: Producer) -> None:
    """`Producer` means one without a codec: its payloads are bytes."""
    await producer.send("orders", payload=b"x")
    await producer.send("orders", payload="x")  # type: ignore[call-overload]


async def sends() -> None:
    async with Producer(NAMESRV, "shop", payload=PAYMENTS, trace=True) as producer:
        assert_type(producer, Producer[Payment])
        assert_type(await producer.send("bills", payload=Payment("a", 1), keys=["a"], order_key="a"), SendResult)
        assert_type(await producer.send("bills", b"x", tags="raw", queue=None), SendResult)
        assert_type(await producer.send(Message(topic="bills", body=b"x"), order_key="a"), SendResult)
        await producer.send("bills", payload="a")  # type: ignore[call-overload]
        await producer.send("bills", b"x", payload=Payment("a", 1))  # type: ignore[call-overload]
        await producer.send(Message(topic="bills", body=b"x"), keys=["a"])  # type: ignore[call-overload]
        await producer.send(Message(topic="bills", body=b"x"), payload=Payment("a", 1))  # type: ignore[call-overload]
        await producer.send("bills")  # type: ignore[call-overload]
        await producer.send("bills", b"x", key="a")  # type: ignore[call-overload]
        await producer.send_one_way("bills", payload=Payment("a", 1), tags="a")
        await producer.send_one_way("bills", payload=1)  # type: ignore[call-overload]
        assert_type(await producer.request("bills", payload=Payment("a", 1), timeout=1), ReceivedMessage)
        await producer.request("bills", timeout=1)  # type: ignore[call-overload]
    async with Producer(NAMESRV, "shop") as plain_producer:
        assert_type(plain_producer, Producer[bytes])
        await any_producer(plain_producer)
    async with TransactionProducer(NAMESRV, "shop", check=check, payload=PAYMENTS, checks_at_once=2) as payments:
        await payments.send("bills", payload=Payment("a", 1))
        async with payments.transaction("bills", payload=Payment("a", 1), immunity=5) as transaction:
            assert_type(transaction.id, str)
        payments.transaction("bills", payload=1)  # type: ignore[call-overload]
    Producer(NAMESRV, "shop", payload=Json)  # type: ignore[arg-type]
    Producer(NAMESRV, "shop", checks_at_once=2)  # type: ignore[call-arg]


def blocking_sends() -> None:
    with blocking.Producer(NAMESRV, "shop", payload=PAYMENTS, trace=True) as producer:
        assert_type(producer, blocking.Producer[Payment])
        assert_type(producer.send("bills", payload=Payment("a", 1), keys=["a"], order_key="a"), SendResult)
        assert_type(producer.send("bills", b"x", tags="raw"), SendResult)
        assert_type(producer.send(Message(topic="bills", body=b"x"), order_key="a"), SendResult)
        producer.send("bills", payload="a")  # type: ignore[call-overload]
        producer.send("bills", b"x", key="a")  # type: ignore[call-overload]
        producer.send_one_way("bills", payload=Payment("a", 1))
        producer.send_one_way("bills")  # type: ignore[call-overload]
        assert_type(producer.request("bills", payload=Payment("a", 1), timeout=1), ReceivedMessage)
    with blocking.Producer(NAMESRV, "shop") as plain_producer:
        assert_type(plain_producer, blocking.Producer[bytes])
    with blocking.TransactionProducer(NAMESRV, "shop", check=check, payload=PAYMENTS) as payments:
        with payments.transaction("bills", payload=Payment("a", 1)) as transaction:
            assert_type(transaction.id, str)
        payments.transaction("bills")  # type: ignore[call-overload]
    blocking.TransactionProducer(NAMESRV, "shop", payload=PAYMENTS)  # type: ignore[call-arg]


async def polls() -> None:
    async with LitePullConsumer(NAMESRV, "stock", ORDERS, payload=PAYMENTS, auto_commit=False) as consumer:
        assert_type(consumer, LitePullConsumer[PayloadMessage[Payment]])
        for message in await consumer.poll(timeout=1):
            assert_type(message.payload.cents, int)
    async with LitePullConsumer(NAMESRV, "stock", ["orders"]) as untyped:
        assert_type(await untyped.poll(), list[ReceivedMessage])
    async with PullConsumer(NAMESRV, payload=PAYMENTS) as puller:
        (queue, *_) = await puller.queues_of("orders")
        pulled = await puller.pull(queue, 0)
        assert_type(pulled.messages, list[PayloadMessage[Payment]])
        assert_type(pulled.unreadable, tuple[ReceivedMessage, ...])
    async with PullConsumer(NAMESRV) as raw:
        assert_type((await raw.pull(queue, 0)).messages, list[ReceivedMessage])


def blocking_polls() -> None:
    with blocking.LitePullConsumer(NAMESRV, "stock", ORDERS, payload=PAYMENTS, start="first") as consumer:
        assert_type(consumer.poll(max_messages=1)[0].payload.cents, int)
    with blocking.LitePullConsumer(NAMESRV, "stock", "orders") as untyped:
        assert_type(untyped.poll(), list[ReceivedMessage])
    with blocking.PullConsumer(NAMESRV, payload=PAYMENTS) as puller:
        (queue, *_) = puller.queues_of("orders")
        assert_type(puller.pull(queue, 0).messages[0].payload, Payment)
    with blocking.PullConsumer(NAMESRV) as raw:
        assert_type(raw.pull(queue, 0).messages, list[ReceivedMessage])
    blocking.LitePullConsumer(NAMESRV, "stock", ORDERS, orderly=True)  # type: ignore[call-overload]


async def takes() -> None:
    async with SimpleConsumer(NAMESRV, "stock", ORDERS, start="first", payload=PAYMENTS, trace=True) as consumer:
        messages = await consumer.receive(8, invisible=timedelta(minutes=1), timeout=5)
        assert_type(messages, list[PoppedMessage[Payment]])
        assert_type(messages[0].payload.cents, int)
        await messages[0].change_invisible(5)
        await consumer.ack(messages)
    async with SimpleConsumer(NAMESRV, "stock", ["orders"]) as untyped:
        assert_type((await untyped.receive())[0].payload, bytes)
    SimpleConsumer(NAMESRV, "stock", ORDERS, orderly=True)  # type: ignore[call-arg]


def blocking_takes() -> None:
    with blocking.SimpleConsumer(NAMESRV, "stock", ORDERS, start="first", payload=PAYMENTS) as consumer:
        messages = consumer.receive(8, invisible=30)
        assert_type(messages, list[blocking.PoppedMessage[Payment]])
        messages[0].change_invisible(5)
        consumer.ack(messages)
    blocking.SimpleConsumer(NAMESRV, "stock", ORDERS, orderly=True)  # type: ignore[call-arg]


def settings() -> None:
    ConsumerSettings(message_model="broadcasting", offsets_dir=HOME)
    assert_type(ClientSettings(use_tls=True, tls_ca_file=HOME / "ca.pem").tls_ca_file, str)
    traced = Producer(NAMESRV, "shop", trace=TraceSettings(when_full="spill", spill_dir=HOME / "traces"))
    assert_type(traced.trace_counts, TraceCounts)
    assert_type(blocking.Producer(NAMESRV, "shop").trace_counts.sent, int)
