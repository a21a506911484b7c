"""Namespaces: applications with the same topic and group names in one cluster, with Java's clients and ours in one namespace."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from interop_servers import consume, produce, pull_all

from ariane.client import (
    ClientSettings,
    Consumer,
    ConsumerSettings,
    LocalState,
    Producer,
    PushConsumer,
    ReconsumeLater,
    TransactionProducer,
)
from ariane.model.message import Message, ReceivedMessage
from ariane.model.topic import TRACE_TOPIC
from ariane.protocol import trace_codec
from ariane.testing import AsyncLocalCluster, LocalCluster, java

ONE = ClientSettings(namespace="one")
FAST = ConsumerSettings(commit_interval=0.1, rebalance_interval=0.2, suspend_time=0.2, close_timeout=5)
START_S = 60.0


def bodies(found: list[dict[str, object]]) -> list[object]:
    return sorted(item["body"] for item in found)  # type: ignore[type-var]


def decoded(found: list[dict[str, object]]) -> list[bytes]:
    return sorted(base64.b64decode(str(item["body"])) for item in found)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(200):
            await work()

    asyncio.run(bounded())


def test_namespaces_isolate_applications(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        produce(servers.namesrv, 3, "namespace=one", "size=20")
        produce(servers.namesrv, 5, "namespace=two", "size=30")
        first = consume(servers.namesrv, "G", "*", 3, "namespace=one")
        second = consume(servers.namesrv, "G", "*", 5, "namespace=two")
        assert bodies(first) == bodies(pull_all(servers.namesrv, "one%T"))
        assert bodies(second) == bodies(pull_all(servers.namesrv, "two%T"))
        assert {item["topic"] for item in (*first, *second)} == {"T"}  # shown without it
        assert (len(first), len(second)) == (3, 5)


def test_dead_letters_stay_in_their_namespace(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        produce(servers.namesrv, 1, "namespace=one")
        consume(servers.namesrv, "G", "*", 1, "namespace=one", "fail", "level=-1")
        assert len(pull_all(servers.namesrv, "%DLQ%one%G")) == 1


def test_java_and_ours_share_a_namespace(tmp_path: Path) -> None:
    """Ours reads what Java sent and fails on one message; a Java member of the same group goes on from there."""
    failed: list[ReceivedMessage] = []

    def listener(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            if message.body == b"message 1":
                failed.append(message)
                raise ReconsumeLater("for the Java consumer", delay_level=2)

    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers:
            await asyncio.to_thread(produce, servers.namesrv, 3, "namespace=one", "batch=3", "trace")
            async with PushConsumer(
                servers.namesrv, "G", {"T": "*"}, listener, start="first", settings=FAST, client=ONE, trace=True
            ):
                await servers.wait_consumed("one%G", "one%T")
            (first,) = failed
            async with Producer(servers.namesrv, "P", client=ONE, trace=True) as producer:
                sent = await producer.send("T", b"ours", keys=["OURS"])
                await producer.send_batch([Message(topic="T", body=b"ours %d" % number) for number in range(2)])
            options = ("namespace=one", "trace")
            result = await asyncio.to_thread(consume, servers.namesrv, "G", "*", 4, *options)
            stored = await servers.messages("one%T")
            traces = await servers.messages(TRACE_TOPIC)
        assert (first.topic, first.properties["INSTANCE_ID"]) == ("T", "one")
        assert decoded(result) == [b"message 1", b"ours", b"ours 0", b"ours 1"]
        assert {(item["topic"], item["properties"]["INSTANCE_ID"]) for item in result} == {("T", "one")}  # type: ignore[index]
        assert {item["body"]: item["reconsumeTimes"] for item in result}[base64.b64encode(b"message 1").decode()] == 1
        # Both kinds of client set the same property on messages, and write the same names into traces.
        assert {message.properties["INSTANCE_ID"] for message in stored} == {"one"}
        assert not any("INSTANCE_ID" in message.properties for message in traces)
        events = [event for message in traces for event in trace_codec.decode(message.body)[0]]
        published = [event for event in events if isinstance(event, trace_codec.PublishEvent)]
        assert {(event.group, event.topic) for event in published} == {("P", "T")}
        assert {sent.message_id, first.message_id} <= {
            name for event in published for name in event.message_id.split(",")
        }
        consumed = [event for event in events if isinstance(event, trace_codec.ConsumeEndEvent)]
        assert {event.group for event in consumed} == {"G"}
        assert {sent.message_id, first.message_id} <= {event.message_id for event in consumed}

    run(work)


def test_a_java_consumer_sends_back_to_ours(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers:
            async with Producer(servers.namesrv, "P", client=ONE) as producer:
                await producer.send("T", b"ours")
            options = ("namespace=one", "fail", "level=1")
            await asyncio.to_thread(consume, servers.namesrv, "G", "*", 1, *options)
            async with Consumer(
                servers.namesrv, "G", {"T": "*"}, start="first", settings=FAST, client=ONE, ack="manual"
            ) as consumer:
                message = await anext(aiter(consumer))
                await message.reject()
            (dead,) = await servers.wait_messages("%DLQ%one%G", 1)
        assert (message.topic, message.queue.topic) == ("T", "%RETRY%G")
        assert message.attempt >= 2  # the Java consumer may have failed on the first redelivery, too
        assert dead.properties["RETRY_TOPIC"] == "one%T"

    run(work)


@pytest.mark.long(
    "tests/interop/test_namespace_with_java.py::test_java_and_ours_share_a_namespace",
)
def test_either_client_answers_checks_of_the_others_transactions(tmp_path: Path) -> None:
    checked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> LocalState:
        checked.append(message)
        return LocalState.COMMIT

    async def work() -> None:
        # A Java client registers its group a second after its start; a check before that is repeated.
        eager = {"transaction_time_out": 500, "transaction_check_interval": 500}
        async with AsyncLocalCluster(tmp_path, **eager) as servers:

            def transact(*options: str) -> None:
                java.run("ariane.peers.Transact", [servers.namesrv, "T", "P", *options, "namespace=one"])

            await asyncio.to_thread(transact, "1", "0", "first=unknown", "check=unknown")
            async with TransactionProducer(servers.namesrv, "P", check=check, client=ONE) as producer:
                await servers.wait_messages("one%T", 1, timeout=60)
                transaction = producer.transaction("T", b"ours", keys=["OURS-0"], immunity=5)
                async with transaction as opened:
                    opened.leave_open()
            args = [servers.namesrv, "T", "P", "0", "60", "check=commit", "namespace=one"]
            with java.start("ariane.peers.Transact", args) as program:
                event = await asyncio.to_thread(next, program.events(time.monotonic() + START_S))
                stored = await servers.wait_messages("one%T", 2, timeout=60)
        assert {(message.topic, message.queue.topic) for message in checked} == {("T", "T")}
        assert (event["topic"], event["key"]) == ("T", "OURS-0")
        assert {message.properties["PGROUP"] for message in stored} == {"one%P"}

    run(work)


@pytest.mark.long(
    "tests/interop/test_client_features_at_java.py::test_requests_and_replies_both_ways",
    "tests/interop/test_namespace_with_java.py::test_java_and_ours_share_a_namespace",
)
def test_requests_and_replies(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            AsyncLocalCluster(tmp_path) as servers,
            Producer(servers.namesrv, "ours", client=ONE) as producer,
        ):

            async def listener(messages: list[ReceivedMessage]) -> None:
                for message in messages:
                    await producer.reply(message, message.body.upper())

            async with PushConsumer(
                servers.namesrv, "G", {"T": "*"}, listener, start="first", settings=FAST, client=ONE
            ):
                request = [servers.namesrv, "T", "P", "1", "namespace=one"]
                lines = await asyncio.to_thread(java.run, "ariane.peers.Request", request)
            with java.start("ariane.peers.Reply", [servers.namesrv, "U", "H", "namespace=one"]) as replier:
                await asyncio.to_thread(next, replier.events(time.monotonic() + START_S))
                reply = await producer.request("U", b"ask", timeout=60)
        assert decoded(java.events(lines)) == [b"REQUEST 0"]
        assert reply.body == b"ASK"

    run(work)
