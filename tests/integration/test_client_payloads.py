"""Payloads from producers to consumers that poll and pull, asyncio and blocking; those that cannot be decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from ariane import (
    LitePullConsumer,
    LocalState,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    blocking,
)
from ariane.payloads import Json
from ariane.testing import AsyncLocalCluster, LocalCluster


@dataclass
class Order:
    id: int


ORDERS = Json(Order)


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def check(message: ReceivedMessage) -> LocalState:
    return LocalState.COMMIT


def test_every_kind_of_send_encodes_payloads(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            AsyncLocalCluster(tmp_path) as cluster,
            Producer(cluster.namesrv, "p", payload=ORDERS) as producer,
            TransactionProducer(cluster.namesrv, "q", check=check, payload=ORDERS) as payments,
        ):
            await producer.send("orders", payload=Order(0), keys=["K"], order_key="K")
            await producer.send_one_way("orders", payload=Order(1))
            async with payments.transaction("orders", payload=Order(2)):
                pass

            async def listener(messages: list[ReceivedMessage]) -> None:
                for message in messages:
                    await producer.reply(message, message.body)

            async with PushConsumer(cluster.namesrv, "g", {"questions": "*"}, listener, start="first"):
                reply = await producer.request("questions", payload=Order(3), timeout=30)
            assert ORDERS.decode(reply.body) == Order(3)

            got: list[Order] = []
            async with LitePullConsumer(
                cluster.namesrv, "h", {"orders": "*"}, start="first", payload=ORDERS
            ) as consumer:
                while len(got) < 3:
                    got += [message.payload for message in await consumer.poll()]
            assert sorted(order.id for order in got) == [0, 1, 2]

    run(work())


def test_what_cannot_be_decoded_does_not_block_a_queue(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as cluster, Producer(cluster.namesrv, "p", payload=ORDERS) as producer:
            await cluster.create_topic("orders", queues=1)
            queue = MessageQueue("orders", cluster.broker.name, 0)
            await producer.send("orders", b"poison")
            await producer.send("orders", payload=Order(1))
            await producer.send("orders", b"poison, too")

            async with LitePullConsumer(
                cluster.namesrv, "g", {"orders": "*"}, start="first", payload=ORDERS
            ) as consumer:
                (message,) = await consumer.poll(timeout=30)
                assert message.payload == Order(1)
                dead = await cluster.wait_messages("%DLQ%g", 2)
                assert sorted(letter.body for letter in dead) == [b"poison", b"poison, too"]
                while await consumer.committed(queue) != 3:
                    await consumer.commit()

            async with LitePullConsumer(cluster.namesrv, "assigned", payload=ORDERS, start="first") as assigned:
                await assigned.assign([queue])
                (message,) = await assigned.poll(timeout=30)
                assert len(await cluster.wait_messages("%DLQ%assigned", 2)) == 2

            async with PullConsumer(cluster.namesrv, payload=ORDERS) as puller:
                result = await puller.pull(queue, 0)
                assert [message.payload for message in result.messages] == [Order(1)]
                assert [message.body for message in result.unreadable] == [b"poison", b"poison, too"]
                assert all("the payload cannot be decoded" in message.body_error for message in result.unreadable)
                assert result.next_offset == 3
            async with PullConsumer(cluster.namesrv) as plain:
                raw = await plain.pull(queue, 0)
                assert (len(raw.messages), raw.unreadable) == (3, ())

    run(work())


def test_blocking_clients_have_payloads(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path) as cluster,
        blocking.Producer(cluster.namesrv, "p", payload=ORDERS) as producer,
        blocking.TransactionProducer(cluster.namesrv, "q", check=check, payload=ORDERS) as payments,
    ):
        cluster.create_topic("orders", queues=1)
        sent = producer.send("orders", payload=Order(0))
        producer.send_one_way("orders", payload=Order(1))
        with payments.transaction("orders", payload=Order(2)):
            pass
        cluster.wait_messages("orders", 3)
        with blocking.PullConsumer(cluster.namesrv, payload=ORDERS) as puller:
            assert sorted(message.payload.id for message in puller.pull(sent.queue, 0).messages) == [0, 1, 2]
        got: list[int] = []
        with blocking.LitePullConsumer(
            cluster.namesrv, "g", {"orders": "*"}, start="first", payload=ORDERS
        ) as consumer:
            while len(got) < 3:
                got += [message.payload.id for message in consumer.poll()]
        assert sorted(got) == [0, 1, 2]
