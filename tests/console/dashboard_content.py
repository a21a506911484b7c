"""A cluster with known content, on which the answers of rocketmq-dashboard were recorded and on which tests replay them.

name server, master broker-a and its slave
orders   2 queues, 10 messages with keys; group `stock` is online and has consumed all, group `audit` is offline at 6 of 10
bills    1 queue, 2 messages; group `billing` is online and rejects them: both are dead letters
paid     1 queue, 1 transactional message that was committed
empty    4 queues without messages; group `unused` exists and was never connected
producers `shop` and `payer` are online and, like `stock`, record traces
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ariane import (
    Admin,
    ClientSettings,
    ConsumerSettings,
    LocalState,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    TransactionProducer,
)
from ariane.errors import ArianeError
from ariane.model.topic import SubscriptionGroupConfig
from ariane.protocol import trace_codec
from ariane.testing import AsyncLocalCluster

DEADLINE_S = 30.0
MESSAGES = 10
BEFORE_AUDIT_LEFT = 6  # messages that the offline group has consumed
BODIES = ["created 订单 17", *(f'{{"order": {17 + number}}}' for number in range(1, MESSAGES))]
TRACES_OF_ORDER = 3  # sent, consume started, consume finished
TRACES_OF_TRANSACTION = 2  # half message sent, transaction ended
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"

Names = dict[str, str]


class Content(NamedTuple):
    """A running cluster and the values that requests need.

    Attributes:
        servers: Addresses of the cluster.
        names: What differs from run to run: addresses, ids and times, by the placeholder that stands for each in requests.
    """

    servers: AsyncLocalCluster
    names: Names


@contextlib.asynccontextmanager
async def dashboard_content(home: Path) -> AsyncIterator[Content]:
    """Run the cluster in the current event loop until the end of the block."""
    async with (
        AsyncLocalCluster(
            home,
            slaves=1,
            auto_create_topic_enable=False,
            trace_topic_enable=True,
            wait_time_mills_in_send_queue=200,  # Java's default: the settings are compared
        ) as servers,
        Admin(servers.namesrv) as admin,
        contextlib.AsyncExitStack() as clients,
    ):
        await _create_topics_and_groups(admin)
        names = await _fill(servers.namesrv, clients)
        await _wait_until_complete(admin, names)
        names |= {"namesrv": servers.namesrv, "broker": servers.broker.addr, "slave": servers.slaves[0].addr}
        yield Content(servers, names)


async def _create_topics_and_groups(admin: Admin) -> None:
    for topic, queues in {"orders": 2, "bills": 1, "paid": 1, "empty": 4}.items():
        await admin.create_topic(topic, queues=queues)
    for group in ("stock", "audit", "billing", "unused"):
        await admin.save_group(SubscriptionGroupConfig(group_name=group))


async def _fill(namesrv: str, clients: contextlib.AsyncExitStack) -> Names:
    """Send the messages, consume them, and leave the clients connected."""

    def client(name: str) -> ClientSettings:
        return ClientSettings(client_ip="127.0.0.1", instance_name=name)

    async def accept(messages: Sequence[ReceivedMessage]) -> None:
        received.update(message.message_id for message in messages)

    async def reject(messages: Sequence[ReceivedMessage]) -> None:
        raise ValueError("no such customer")

    async def is_committed(message: ReceivedMessage) -> LocalState:
        return LocalState.COMMIT

    async def pay(sent: SendResult) -> LocalState:
        return LocalState.COMMIT

    received: set[str] = set()
    shop = await clients.enter_async_context(Producer(namesrv, "shop", client=client("shop"), trace=True))
    queues = await shop.queues("orders")
    results = [await _send_order(shop, number, queues) for number in range(BEFORE_AUDIT_LEFT)]
    async with PushConsumer(namesrv, "audit", {"orders": "*"}, accept, start="first", client=client("audit")):
        await wait_for("the first messages at audit", lambda: len(received) == BEFORE_AUDIT_LEFT)
    results += [await _send_order(shop, number, queues) for number in range(BEFORE_AUDIT_LEFT, MESSAGES)]
    received.clear()
    stock = PushConsumer(namesrv, "stock", {"orders": "*"}, accept, start="first", client=client("stock"), trace=True)
    await clients.enter_async_context(stock)
    await wait_for("all messages at stock", lambda: len(received) == MESSAGES)

    # Without redeliveries a rejected message becomes a dead letter at once.
    no_retries = ConsumerSettings(max_reconsume_times=0)
    billing = PushConsumer(
        namesrv, "billing", {"bills": "*"}, reject, start="first", client=client("billing"), settings=no_retries
    )
    await clients.enter_async_context(billing)
    bills = [await shop.send(Message(topic="bills", body=b"=1+1", keys=[f"BILL-{number}"])) for number in range(2)]

    payer = TransactionProducer(namesrv, "payer", client=client("payer"), check=is_committed, trace=True)
    await clients.enter_async_context(payer)
    paid = await payer.send_in_transaction(Message(topic="paid", body=b"paid", keys=["PAID-17"]), pay)

    first = results[0]
    return {
        "order_id": first.message_id,
        "order_offset_id": first.offset_message_id,
        "dead_letter_id": bills[0].message_id,  # a dead letter has the id of the message that was rejected
        "paid_id": paid.sent.message_id,
        "stock_client": stock.client_id,
        "billing_client": billing.client_id,
    }


async def _send_order(producer: Producer, number: int, queues: Sequence[MessageQueue]) -> SendResult:
    message = Message(
        topic="orders",
        body=BODIES[number].encode(),
        tags="paid" if number % 2 else "created",
        keys=[f"ORDER-{number}", "ANY"],
        properties={"region": "north"},
    )
    return await producer.send(message, queue=queues[number % len(queues)])


async def _wait_until_complete(admin: Admin, names: Names) -> None:
    """Wait until offsets are committed, and dead letters, the transaction and all traces are stored."""

    async def lag(group: str, topic: str) -> int | None:
        return (await admin.group_lag(group, topic)).total

    async def count(topic: str) -> int:
        return sum(queue.max_offset - queue.min_offset for queue in (await admin.fetch_bounds(topic)).queues)

    async def traces(message: str) -> int:
        carriers = (await admin.query_by_key(TRACE_TOPIC, names[message])).messages
        events = [event for carrier in carriers for event in trace_codec.decode(carrier.body)[0]]
        return sum(event.message_id == names[message] for event in events)

    async def is_true(check: Coroutine[Any, Any, bool]) -> bool:
        try:
            return await check
        except ArianeError:  # the topic or the offset does not exist yet
            return False

    async def all_of(*checks: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        for check in checks:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    while not await is_true(check()):
                        await asyncio.sleep(0.05)
            except TimeoutError:
                raise AssertionError(f"not true within {DEADLINE_S:.0f} s: {check.__name__}") from None

    async def stock_committed() -> bool:
        # Its retry topic has an offset from the first commit on, which comes after some seconds.
        topics = {queue.topic for queue in (await admin.group_lag("stock")).queues}
        return await lag("stock", "orders") == 0 and "%RETRY%stock" in topics

    async def audit_committed() -> bool:
        return await lag("audit", "orders") == MESSAGES - BEFORE_AUDIT_LEFT

    async def billing_committed() -> bool:
        return await lag("billing", "bills") == 0

    async def dead_letters() -> bool:
        return await count("%DLQ%billing") == 2

    async def transaction() -> bool:
        return await count("paid") == 1

    async def order_traced() -> bool:
        return await traces("order_id") == TRACES_OF_ORDER

    async def transaction_traced() -> bool:
        return await traces("paid_id") == TRACES_OF_TRANSACTION

    await all_of(
        dead_letters, transaction, order_traced, transaction_traced, stock_committed, audit_committed, billing_committed
    )


async def wait_for(event: str, condition: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"did not happen within {DEADLINE_S:.0f} s: {event}") from None
