"""Consumer over real sockets: what its members share, what traces and spans record, and that nothing is left running."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from test_client_retries import QUICK, run

from ariane.client import (
    ClientSettings,
    Consumer,
    ConsumerSettings,
    Idempotent,
    LitePullConsumer,
    PayloadMessage,
    Producer,
    PullConsumer,
    PushConsumer,
)
from ariane.model.message import Message, ReceivedMessage
from ariane.model.topic import TRACE_TOPIC
from ariane.payloads import Json
from ariane.testing import AsyncLocalCluster

SETTINGS = ConsumerSettings(**QUICK)
CLIENT_TASKS = {"client", "delivery", "offsets", "rebalance", "trace"}  # owners of a consumer's tasks


def member(servers: AsyncLocalCluster, group: str = "g", **more: object) -> Consumer[bytes]:
    return Consumer(servers.namesrv, group, {"t": "*"}, start="first", settings=SETTINGS, **more)  # type: ignore[arg-type]


async def fill(servers: AsyncLocalCluster, count: int) -> None:
    async with Producer(servers.namesrv, "p") as producer:
        for number in range(count):
            await producer.send(Message(topic="t", body=b"%d" % number, keys=[f"k{number}"]))


def test_a_push_consumer_and_a_consumer_share_a_group(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers:
            await fill(servers, 1)
            seen: Counter[bytes] = Counter()
            arrived = asyncio.Event()

            async def listener(messages: list[ReceivedMessage]) -> None:
                count(messages[0])

            def count(message: ReceivedMessage) -> None:
                seen[message.body] += 1
                if len(seen) == 40:
                    arrived.set()

            async def iterate(consumer: Consumer[bytes]) -> None:
                async for message in consumer:
                    count(message)

            push = PushConsumer(servers.namesrv, "g", {"t": "*"}, listener, start="first", settings=SETTINGS)
            async with member(servers) as consumer, push:
                loops = [asyncio.create_task(iterate(consumer)) for _ in range(2)]
                while len(consumer.queues) == 0 or len(push.queues) == 0 or set(consumer.queues) & set(push.queues):
                    await asyncio.sleep(0.02)
                await fill(servers, 40)
                await arrived.wait()
                consumer.stop()
                await asyncio.gather(*loops)
            async with LitePullConsumer(servers.namesrv, "g", {"t": "*"}, start="first") as rest:
                assert await rest.poll(timeout=1) == []

    run(work())


def test_all_kinds_of_consumers_record_traces(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers:
            await fill(servers, 1)
            async with member(servers, "iterated", trace=True, ack="manual") as consumer:
                async for message in consumer:
                    await message.ack()
                    break
            assert consumer.trace is not None
            async with LitePullConsumer(servers.namesrv, "polled", {"t": "*"}, start="first", trace=True) as polled:
                while not await polled.poll():
                    continue
            async with PullConsumer(servers.namesrv, "pulled", trace=True) as pulled:
                await pulled.pull(message.queue, message.queue_offset)
            assert [client.trace.sent for client in (consumer, polled, pulled) if client.trace] == [2, 2, 2]
            texts: list[str] = []
            async with PullConsumer(servers.namesrv) as reader:
                for queue in await reader.queues_of(TRACE_TOPIC):
                    offset, end = await reader.bounds(queue)
                    while offset < end:
                        result = await reader.pull(queue, offset)
                        texts += [item.body.decode() for item in result.messages]
                        offset = result.next_offset
            records = [record.split("\x01") for text in texts for record in text.split("\x02") if record]
            before = {record[3]: record for record in records if record[0] == "SubBefore"}
            after = [record for record in records if record[0] == "SubAfter"]
            assert {record[5] for record in before.values()} == {message.message_id}
            # Polled messages are acknowledged by the next poll or a commit, which this one never made.
            assert sorted((record[8], record[4]) for record in after) == [
                ("iterated", "true"),
                ("polled", "false"),
                ("pulled", "true"),
            ], (before, after)

    run(work())


@dataclass
class Order:
    id: int


def test_typed_payloads_reach_loops_and_listeners_and_others_become_dead_letters(tmp_path: Path) -> None:
    orders = Json(Order)

    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            for number in range(3):
                await producer.send("t", b"poison")
                await producer.send("t", orders.encode(Order(number)))
            iterated: set[int] = set()
            listened: set[int] = set()

            async def iterate(consumer: Consumer[Order]) -> None:
                async for message in consumer:
                    iterated.add(message.payload.id)

            async def listener(messages: list[PayloadMessage[Order]]) -> None:
                listened.update(message.payload.id for message in messages)

            async with (
                Consumer(servers.namesrv, "g", {"t": "*"}, start="first", payload=orders) as consumer,
                PushConsumer(servers.namesrv, "h", {"t": "*"}, Idempotent(listener), start="first", payload=orders),
            ):
                loop = asyncio.create_task(iterate(consumer))
                for group in ("g", "h"):
                    dead: list[bytes] = []
                    async with LitePullConsumer(servers.namesrv, "x", {f"%DLQ%{group}": "*"}, start="first") as letters:
                        while len(dead) < 3:
                            dead += [item.body for item in await letters.poll()]
                    assert dead == [b"poison"] * 3
                while not iterated == listened == {0, 1, 2}:
                    await asyncio.sleep(0.02)
                consumer.stop()
                await loop

    run(work())


def test_broadcasting_members_read_every_message_and_remember_where_they_were(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path / "servers") as servers:
            await fill(servers, 4)
            limits = ConsumerSettings(**QUICK, message_model="broadcasting", offsets_dir=tmp_path)
            assert len(await read(servers, limits, "one", 4)) == 4
            assert len(await read(servers, limits, "two", 4)) == 4
            await fill(servers, 1)
            assert await read(servers, limits, "one", 1) == [b"0"]

    async def read(servers: AsyncLocalCluster, limits: ConsumerSettings, name: str, count: int) -> list[bytes]:
        bodies: list[bytes] = []
        client = ClientSettings(instance_name=name)
        async with Consumer(
            servers.namesrv, "g", {"t": "*"}, start="first", settings=limits, client=client
        ) as consumer:
            async for message in consumer:
                bodies.append(message.body)
                if len(bodies) == count:
                    consumer.stop()
        return bodies

    run(work())


def test_a_program_that_is_cancelled_leaves_no_task(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers:
            await fill(servers, 5)
            before = asyncio.all_tasks()
            has_begun = asyncio.Event()

            async def program() -> None:
                async with member(servers, trace=True) as consumer:
                    async for _ in consumer:
                        has_begun.set()
                        await asyncio.sleep(3_600)

            for is_early in (True, False):  # cancelled while it opens, and in the body of its loop
                task = asyncio.create_task(program())
                await (asyncio.sleep(0) if is_early else has_begun.wait())
                task.cancel()
                await asyncio.wait([task])
                # The servers have tasks in this loop, too.
                names = [item.get_name() for item in asyncio.all_tasks() - before]
                assert [name for name in names if name.split(":")[0] in CLIENT_TASKS] == []

    run(work())
