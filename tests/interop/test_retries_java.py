"""Retries, dead letters, request-reply and admin requests to consumers: unmodified Java 4.9.4 peers with ours, both ways."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from interop_servers import consume, produce, pull_all

from ariane.client import ClientSettings, ConsumerSettings, LitePullConsumer, Producer, PushConsumer
from ariane.model.message import Message, ReceivedMessage
from ariane.testing import AsyncLocalCluster, LocalCluster, java

START_S = 60.0


def admin(namesrv: str, *args: str) -> str:
    return "\n".join(java.run(java.ADMIN, [*args, "-n", namesrv]))


def status(namesrv: str, *client_id: str) -> list[dict[str, Any]]:
    return java.events(java.run("ariane.peers.Status", [namesrv, "T", "G", *client_id]))


async def admin_soon(namesrv: str, *args: str) -> str:
    return await asyncio.to_thread(admin, namesrv, *args)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(200):
            await work()

    asyncio.run(bounded())


def body(one: dict[str, object]) -> bytes:
    return base64.b64decode(str(one["body"]))


def test_messages_failed_by_a_java_consumer_become_dead_letters(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        sent = {item["msgId"]: item for item in produce(namesrv, 3, "tags=A")}
        consume(namesrv, "G", "*", 3, "fail", "level=-1")
        dead = pull_all(namesrv, "%DLQ%G")
        assert {item["msgId"] for item in dead} == sent.keys()
        for item in dead:
            properties = item["properties"]
            assert (item["reconsumeTimes"], item["tags"], properties["RETRY_TOPIC"]) == (1, "A", "T")
            assert properties["ORIGIN_MESSAGE_ID"] == sent[item["msgId"]]["offsetMsgId"]


def test_a_java_consumer_receives_retries_until_the_dead_letter(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        (sent,) = produce(namesrv, 1)
        result = consume(namesrv, "G", "*", 3, "fail", "level=1", "most=2")
        assert [item["reconsumeTimes"] for item in result] == [0, 1, 2]
        assert {(item["topic"], item["msgId"]) for item in result} == {("T", sent["msgId"])}
        (dead,) = pull_all(namesrv, "%DLQ%G")
        assert (dead["reconsumeTimes"], dead["properties"]["ORIGIN_MESSAGE_ID"]) == (3, sent["offsetMsgId"])


def test_an_orderly_java_consumer_sends_failed_messages_to_the_retry_topic(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        (sent,) = produce(namesrv, 1)
        consume(namesrv, "G", "*", 2, "orderly", "fail", "most=1")
        (dead,) = pull_all(namesrv, "%DLQ%G")
        assert dead["properties"]["ORIGIN_MESSAGE_ID"] == sent["msgId"]
        assert dead["properties"]["RETRY_TOPIC"] == "T"


def test_java_request_and_reply_through_our_broker(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        produce(namesrv, 1)  # makes the topic
        with java.start("ariane.peers.Reply", [namesrv, "T", "G"]) as replier:
            next(replier.events(time.monotonic() + START_S))
            replies = java.events(java.run("ariane.peers.Request", [namesrv, "T", "P", "3"]))
        assert [body(reply) for reply in replies] == [b"REQUEST 0", b"REQUEST 1", b"REQUEST 2"]
        assert len({reply["correlationId"] for reply in replies}) == 3


def test_our_consumer_replies_to_a_java_request(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "ours") as producer:

            async def listener(messages: list[ReceivedMessage]) -> None:
                for message in messages:
                    await producer.reply(message, message.body.upper())

            async with PushConsumer(servers.namesrv, "G", {"T": "*"}, listener, start="first"):
                lines = await asyncio.to_thread(java.run, "ariane.peers.Request", [servers.namesrv, "T", "P", "2"])
        assert [body(event) for event in java.events(lines)] == [b"REQUEST 0", b"REQUEST 1"]

    run(work)


def test_a_java_consumer_replies_to_our_request(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "ours") as producer:
            await asyncio.to_thread(produce, servers.namesrv, 1)
            with java.start("ariane.peers.Reply", [servers.namesrv, "T", "G"]) as replier:
                await asyncio.to_thread(next, replier.events(time.monotonic() + START_S))
                result = await producer.request(Message(topic="T", body=b"ask"), timeout=60)
        assert (result.body, result.properties["MSG_TYPE"]) == (b"ASK", "reply")

    run(work)


def test_mqadmin_consumes_messages(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        produce(namesrv, 4)
        shown = admin(namesrv, "consumeMessage", "-t", "T", "-g", "Tool")
        assert sorted(re.findall(r"message \d", shown)) == [f"message {number}" for number in range(4)], shown


@pytest.mark.long(
    "tests/interop/test_retries_java.py::test_mqadmin_sends_requests_to_our_consumer",
    "tests/interop/test_retries_java.py::test_mqadmin_consumes_messages",
)
def test_mqadmin_sends_requests_to_a_java_consumer(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        (sent, *_) = produce(namesrv, 8)
        with java.start("ariane.peers.Consume", [namesrv, "T", "G", "*", "0", "120"]) as consumer:
            events = consumer.events(time.monotonic() + 100)
            first = [next(events) for _ in range(8)]
            shown = admin(namesrv, "consumerStatus", "-g", "G", "-s")
            client_id = re.search(r"\S+@\S+", shown)
            assert client_id is not None, shown
            info = admin(namesrv, "consumerStatus", "-g", "G", "-i", client_id.group())
            assert "PROP_CONSUME_TYPE" in info
            assert "#Consumer Subscription#" in info
            known = status(namesrv)
            assert ({item["clientId"] for item in known}, sum(item["offset"] for item in known)) == (
                {client_id.group()},
                8,
            )
            direct = admin(namesrv, "queryMsgById", "-i", str(sent["offsetMsgId"]), "-g", "G", "-d", client_id.group())
            assert "CR_SUCCESS" in direct, direct
            assert next(events)["offsetMsgId"] == sent["offsetMsgId"]  # Java shows no unique id of what comes this way
            deadline = time.monotonic() + 60
            # A Java consumer stores its offsets for the first time after 10 s.
            while "broker-a" not in (reset := admin(namesrv, "resetOffsetByTime", "-g", "G", "-t", "T", "-s", "0")):
                assert time.monotonic() < deadline, reset
                time.sleep(1)
            repeated = [next(events) for _ in range(8)]
            assert {item["msgId"] for item in repeated} == {item["msgId"] for item in first}


def test_a_java_broadcasting_consumer_receives_all_messages(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        sent = {item["msgId"] for item in produce(namesrv, 8)}
        args = [namesrv, "T", "G", "*", "8", "60", "broadcast"]
        for number in range(2):  # each with the offsets of its home
            lines = java.run("ariane.peers.Consume", args, home=tmp_path / f"home{number}")
            assert {item["msgId"] for item in java.events(lines)} == sent


def test_mqadmin_sends_requests_to_our_consumer(tmp_path: Path) -> None:
    async def work() -> None:
        received: list[ReceivedMessage] = []

        async def listener(messages: list[ReceivedMessage]) -> None:
            received.extend(messages)

        async def until(count: int) -> None:
            while len(received) < count:
                await asyncio.sleep(0.05)

        settings = ConsumerSettings(commit_interval=0.1)
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "ours") as producer:
            namesrv = servers.namesrv
            sent = [await producer.send(Message(topic="T", body=b"%d" % number)) for number in range(8)]
            async with PushConsumer(namesrv, "G", {"T": "*"}, listener, start="first", settings=settings) as consumer:
                await until(8)
                client_id = consumer._instance.client_id
                shown = await admin_soon(namesrv, "consumerStatus", "-g", "G", "-s")
                assert client_id in shown
                known = await asyncio.to_thread(status, namesrv, client_id)
                assert ({message["clientId"] for message in known}, sum(message["offset"] for message in known)) == (
                    {client_id},
                    8,
                )
                info = await admin_soon(namesrv, "consumerStatus", "-g", "G", "-i", client_id, "-s")
                for wanted in (
                    "PROP_CONSUME_TYPE",
                    "#Consumer MQ Detail#",
                    "#Consumer RT&TPS#",
                    "rebalance",
                    "%RETRY%G",
                ):
                    assert wanted in info
                direct = await admin_soon(
                    namesrv, "queryMsgById", "-i", sent[3].offset_message_id, "-g", "G", "-d", client_id
                )
                assert "CR_SUCCESS" in direct, direct
                assert received[-1].body == b"3"
                reset = await admin_soon(namesrv, "resetOffsetByTime", "-g", "G", "-t", "T", "-s", "0")
                assert "broker-a" in reset, reset
                await until(17)
                assert sorted(int(message.body) for message in received[9:]) == list(range(8))

    run(work)


def test_java_and_our_broadcasting_consumers_share_an_offsets_file(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def by_java(namesrv: str, count: int) -> list[bytes]:
        args = [namesrv, "T", "G", "*", str(count), "60", "broadcast"]
        with java.start("ariane.peers.Consume", args, home=home) as program:
            return [body(event) for event in program.events(time.monotonic() + START_S)]

    async def work() -> None:
        received: list[bytes] = []

        async def listener(messages: list[ReceivedMessage]) -> None:
            received.extend(message.body for message in messages)

        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "ours") as producer:
            for number in range(8):
                await producer.send(Message(topic="T", body=b"%d" % number))
            assert len(await asyncio.to_thread(by_java, servers.namesrv, 8)) == 8
            (file,) = (home / ".rocketmq_offsets").rglob("offsets.json")
            ip, _, name = file.parent.parent.name.partition("@")
            for number in range(8, 12):
                await producer.send(Message(topic="T", body=b"%d" % number))
            settings = ConsumerSettings(message_model="broadcasting", offsets_dir=str(home / ".rocketmq_offsets"))
            client = ClientSettings(client_ip=ip, instance_name=name)
            async with PushConsumer(
                servers.namesrv, "G", {"T": "*"}, listener, start="first", settings=settings, client=client
            ):
                while len(received) < 4:
                    await asyncio.sleep(0.05)
            assert sorted(map(int, received)) == [8, 9, 10, 11]
            await producer.send(Message(topic="T", body=b"12"))
            assert await asyncio.to_thread(by_java, servers.namesrv, 1) == [b"12"]

    run(work)


# --- a Java broker between them ---


@pytest.mark.long(
    "tests/interop/test_retries_java.py::test_mqadmin_sends_requests_to_our_consumer",
)
def test_a_java_broker_forwards_requests_to_our_clients(tmp_path: Path) -> None:
    async def work(namesrv: str) -> None:
        received: list[ReceivedMessage] = []

        async def listener(messages: list[ReceivedMessage]) -> None:
            received.extend(messages)
            for message in messages:
                if "CORRELATION_ID" in message.properties and len(received) == 9:
                    await producer.reply(message, message.body.upper())

        async def until(count: int) -> None:
            while len(received) < count:
                await asyncio.sleep(0.05)

        settings = ConsumerSettings(commit_interval=0.1, rebalance_interval=1)
        async with Producer(namesrv, "ours") as producer:
            sent = [await producer.send(Message(topic="T", body=b"%d" % number)) for number in range(8)]
            async with PushConsumer(namesrv, "G", {"T": "*"}, listener, start="first", settings=settings) as consumer:
                await until(8)
                reply = await producer.request(Message(topic="T", body=b"ask"), timeout=30)
                assert reply.body == b"ASK"
                client_id = consumer._instance.client_id
                await asyncio.sleep(0.5)  # until the offsets of all queues are stored
                info = await admin_soon(namesrv, "consumerStatus", "-g", "G", "-i", client_id)
                assert "PROP_CONSUME_TYPE" in info
                direct = await admin_soon(
                    namesrv, "queryMsgById", "-i", sent[3].offset_message_id, "-g", "G", "-d", client_id
                )
                assert "CR_SUCCESS" in direct, direct
                assert received[-1].body == b"3"
                reset = await admin_soon(namesrv, "resetOffsetByTime", "-g", "G", "-t", "T", "-s", "0")
                assert "broker-a" in reset, reset
                await until(19)
                assert sorted(sent_message.body for sent_message in received[10:]) == sorted(
                    [*(b"%d" % n for n in range(8)), b"ask"]
                )

            async with LitePullConsumer(namesrv, "L", {"T": "*"}, start="first", settings=settings) as lite:
                polled: list[ReceivedMessage] = []
                while len(polled) < 9:
                    polled += await lite.poll()
                await lite.commit()
                queue = polled[0].queue
                assert await lite.committed(queue) == sum(sent_message.queue == queue for sent_message in polled)
                await lite.seek_to_begin(queue)
                assert (await lite.poll(max_messages=1))[0].queue_offset == 0

    with java.name_server(tmp_path / "ns") as ns, java.broker(tmp_path / "b", ns.addr):
        run(lambda: work(ns.addr))
