"""SimpleConsumer and Java: a group shared with a POP consumer of 5.3.3, retries at its broker, and a broker without POP."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from interop_servers import JavaServersOf, mqadmin

from ariane.client import ConsumerSettings, Producer, SimpleConsumer, Sql
from ariane.cluster.admin import Admin
from ariane.errors import PopUnsupported
from ariane.model.message import Message
from ariane.testing import LocalCluster, java

pytestmark = pytest.mark.interop

PATIENCE_S = 90.0
QUEUES = 4
MESSAGES = 200

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def our_name_server() -> Iterator[str]:
    with LocalCluster(enable_property_filter=True) as cluster:
        yield cluster.namesrv


AT_JAVA = pytest.mark.long(
    "tests/integration/test_simple_consumer.py::test_filters_dead_letters_and_traces",
    "tests/interop/test_cluster_proxy_with_java.py::test_python_sends_receives_and_recalls_each_kind_of_message",
)


@pytest.fixture(params=["Ariane", pytest.param("5.3.3", marks=AT_JAVA)])
def name_server(request: pytest.FixtureRequest, java_servers: JavaServersOf) -> str:
    if reason := java.V5.available():
        pytest.skip(f"Java peers: {reason}")
    if request.param == "Ariane":
        return str(request.getfixturevalue("our_name_server"))
    return java_servers(java.V5, False).name_server


async def create_topic(namesrv: str) -> str:
    topic = f"Simple{next(_numbers)}"
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=QUEUES)
    return topic


def test_a_group_shared_with_a_java_consumer_receives_each_message_once(name_server: str) -> None:
    ours: list[str] = []
    theirs: list[str] = []

    def read(events: Iterator[dict[str, object]]) -> None:
        theirs.extend(str(event["msgId"]) for event in events)

    async def consume(consumer: SimpleConsumer) -> None:
        while True:
            messages = await consumer.receive(4, timeout=1)
            ours.extend(message.message_id for message in messages)
            await consumer.ack(messages)

    async def play(topic: str, group: str) -> set[str]:
        async with (
            Producer(name_server, "P") as producer,
            SimpleConsumer(name_server, group, topic, start="first") as consumer,
        ):
            consuming = asyncio.create_task(consume(consumer))
            sent: set[str] = set()
            async with asyncio.timeout(PATIENCE_S):
                # Until both have consumed, and for as long as none is missing.
                while len(sent) < MESSAGES or not theirs or not sent <= {*ours, *theirs}:
                    if len(sent) < MESSAGES or not theirs:
                        sent.add((await producer.send(topic, b"x")).message_id)
                    await asyncio.sleep(0.01)
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
            return sent

    topic = asyncio.run(create_topic(name_server))
    group = f"{topic}-g"
    (printed,) = mqadmin(
        name_server, f"setConsumeMode -c DefaultCluster -t {topic} -g {group} -m POP -q 0", release=java.V5
    )
    assert "success" in printed, printed
    with java.V5.start("ariane.peers.Consume", [name_server, topic, group, "*", "0", "120", "pop"]) as program:
        threading.Thread(target=read, args=(program.events(time.monotonic() + 2 * PATIENCE_S),), daemon=True).start()
        sent = asyncio.run(play(topic, group))
    assert ours, "our member consumed nothing"
    counts = Counter([*ours, *theirs])
    assert set(counts) == sent
    assert {message: count for message, count in counts.items() if count > 1} == {}


def test_filters_retries_and_dead_letters(name_server: str) -> None:
    async def play() -> None:
        topic = await create_topic(name_server)
        group = f"{topic}-g"
        async with Producer(name_server, "P") as producer:
            for number in range(8):
                properties = {"n": str(number)}
                await producer.send(
                    Message(topic=topic, body=b"%d" % number, tags="ab"[number % 2], properties=properties)
                )
        once = ConsumerSettings(max_reconsume_times=1)
        async with SimpleConsumer(name_server, group, {topic: "b"}, start="first", settings=once) as consumer:
            taken = []
            while len(taken) < 4:
                taken += await consumer.receive(invisible=60)
            assert sorted(message.body for message in taken) == [b"1", b"3", b"5", b"7"]
            for message in taken[:2]:
                await message.change_invisible(1)
            await consumer.ack(taken[2:])
            again = []
            while len(again) < 2:
                again += await consumer.receive(invisible=60)
            assert sorted(message.message_id for message in again) == sorted(
                message.message_id for message in taken[:2]
            )
            assert [(message.attempt, message.topic) for message in again] == [(2, topic)] * 2
            await again[0].ack()
            await again[1].change_invisible(1)
            dead = SimpleConsumer(name_server, f"{group}-dead", f"%DLQ%{group}", start="first")
            assert await consumer.receive(timeout=15) == []
            async with dead:
                (buried,) = await dead.receive()
                assert buried.body == again[1].body
                await buried.ack()
        async with SimpleConsumer(name_server, f"{group}-sql", {topic: Sql("n > 5")}, start="first") as selecting:
            selected = []
            while len(selected) < 2:
                selected += await selecting.receive()
            assert sorted(message.body for message in selected) == [b"6", b"7"]
            await selecting.ack(selected)

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await play()

    asyncio.run(bounded())


def test_a_broker_without_pop_is_named(java_servers: JavaServersOf) -> None:
    namesrv = java_servers(java.V4, False).name_server

    async def play() -> None:
        topic = await create_topic(namesrv)
        async with SimpleConsumer(namesrv, f"{topic}-g", topic) as consumer:
            with pytest.raises(PopUnsupported, match="use Consumer, PushConsumer or LitePullConsumer"):
                await consumer.receive()

    asyncio.run(play())
