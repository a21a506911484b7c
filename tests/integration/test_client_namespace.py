"""Clients with a namespace over real sockets: what the brokers store, and what the application sees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ariane import blocking
from ariane.client import (
    ClientInstance,
    ClientSettings,
    Consumer,
    ConsumerSettings,
    LitePullConsumer,
    LocalState,
    Producer,
    PullConsumer,
    PushConsumer,
    ReconsumeLater,
    TraceSettings,
    TransactionProducer,
)
from ariane.client.consuming.assignment_strategy import consistent_hash
from ariane.client.duplicates.idempotent import Idempotent
from ariane.client.duplicates.sqlite_store import SqliteStore
from ariane.client.instance.hooks import ConsumeFinished, ConsumeStarted, SendEvent, TransactionEnd
from ariane.errors import RouteNotFound
from ariane.model.message import Message, MessageQueue, ReceivedMessage
from ariane.model.topic import TRACE_TOPIC
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.callbacks import ConsumeDirectly, ConsumerStatus, ResetOffset, RunningInfoRequest
from ariane.protocol.requests.messaging import OffsetResponse, QueryConsumerOffset
from ariane.testing import AsyncLocalCluster, LocalCluster

NS = ClientSettings(namespace="ns")
QUICK = ConsumerSettings(
    commit_interval=0.05, rebalance_interval=0.2, suspend_time=0.2, close_timeout=1, max_reconsume_times=1
)
EAGER = {"transaction_time_out": 100, "transaction_check_interval": 150}


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


async def committed(cluster: AsyncLocalCluster, group: str, topic: str, queues: int = 4) -> int:
    """Return the sum of the offsets that the broker stores for a group."""
    total = 0
    async with ConnectionPool() as peers:
        for number in range(queues):
            header = QueryConsumerOffset(group, topic, number)
            response = await peers.request(cluster.broker.addr, RequestCode.QUERY_CONSUMER_OFFSET, header)
            total += decode_header(response, OffsetResponse).offset if response.code == 0 else 0
    return total


def test_sends_and_consumption(tmp_path: Path) -> None:
    events: list[SendEvent | ConsumeStarted | ConsumeFinished] = []
    got: list[ReceivedMessage] = []

    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as cluster, ClientInstance(cluster.namesrv, NS) as instance:
            async with Producer(instance, "p", hooks=[events.append], trace=True) as producer:
                sent = await producer.send("orders", b"0", keys=["K"])
                batch = await producer.send_batch([Message(topic="orders", body=b"%d" % n) for n in (1, 2)])
                chosen: list[MessageQueue] = []

                def selector(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
                    chosen.extend(queues)
                    return chosen[0]

                selected = await producer.send("orders", b"3", selector=selector)
                await producer.send("orders", b"4", queue=(await producer.queues("orders"))[1])
                wrapped = await producer.send("ns%orders", b"5")
                results = (sent, batch, selected, wrapped)
                topics = {*(result.queue.topic for result in results), *(queue.topic for queue in chosen)}
                assert topics == {"orders"}
            async with Producer(cluster.namesrv, "p") as other:
                await other.send("orders", b"not in the namespace")

            stored = await cluster.messages("ns%orders")
            assert sorted(message.body for message in stored) == [b"%d" % number for number in range(6)]
            assert {message.properties["INSTANCE_ID"] for message in stored} == {"ns"}

            async with PushConsumer(
                instance, "g", {"orders": "*"}, got.extend, start="first", settings=QUICK, hooks=[events.append],
                trace=True, strategy=consistent_hash,
            ) as consumer:  # fmt: skip
                await cluster.wait_consumed("ns%g", "ns%orders")
                while {queue.topic for queue in consumer.queues} != {"orders", "%RETRY%g"}:
                    await asyncio.sleep(0.02)
                assert set(consumer.rates()) == {"orders", "%RETRY%g"}
            assert {(message.topic, message.queue.topic) for message in got} == {("orders", "orders")}
            assert len(got) == 6
            assert (await committed(cluster, "ns%g", "ns%orders"), await committed(cluster, "g", "orders")) == (6, 0)

            groups = {event.started.group if isinstance(event, ConsumeFinished) else event.group for event in events}
            queues = {event.queue.topic for event in events if not isinstance(event, ConsumeFinished)}
            assert (groups, queues) == ({"p", "g"}, {"orders"})
            traces = [message for message in await cluster.messages(TRACE_TOPIC) if "K" in message.keys]
            text = "".join(message.body.decode() for message in traces)
            assert ("Pub" in text, "SubAfter" in text, "ns%" in text) == (True, True, False)
            assert all(sent.message_id in message.keys for message in traces)
            assert not any("INSTANCE_ID" in message.properties for message in traces)

    run(work())


def test_failed_messages_stay_in_the_namespace(tmp_path: Path) -> None:
    attempts: list[tuple[str, int]] = []

    def listener(messages: list[ReceivedMessage]) -> None:
        attempts.extend((message.topic, message.reconsume_times) for message in messages)
        raise ReconsumeLater("not today", delay_level=1)

    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as cluster, Producer(cluster.namesrv, "p", client=NS) as producer:
            await producer.send("orders", b"bad")
            async with PushConsumer(
                cluster.namesrv, "g", {"orders": "*"}, listener, start="first", settings=QUICK, client=NS
            ):
                (dead,) = await cluster.wait_messages("%DLQ%ns%g", 1)
            assert attempts == [("orders", 0), ("orders", 1)]
            assert dead.properties["RETRY_TOPIC"] == "ns%orders"
            assert len(await cluster.messages("%RETRY%ns%g")) == 1
            # Dead letters are read like any topic.
            async with Consumer(cluster.namesrv, "undertaker", {"%DLQ%g": "*"}, start="first", client=NS) as consumer:
                async for message in consumer:
                    assert (message.topic, message.queue.topic, message.body) == ("orders", "%DLQ%g", b"bad")
                    break

    run(work())


def test_a_copy_is_retried_when_the_broker_refuses_to_send_back(tmp_path: Path) -> None:
    """The client sends the copy to the retry topic itself, in the orderly case after the last attempt."""

    def listener(messages: list[ReceivedMessage]) -> None:
        raise ReconsumeLater("never")

    async def work() -> None:
        settings = ConsumerSettings(
            commit_interval=0.05,
            rebalance_interval=0.2,
            suspend_time=0.2,
            max_reconsume_times=0,
            suspend_queue_time=0.01,
        )
        async with AsyncLocalCluster(tmp_path) as cluster, Producer(cluster.namesrv, "p", client=NS) as producer:
            await producer.send("orders", b"bad")
            async with PushConsumer(
                cluster.namesrv,
                "g",
                {"orders": "*"},
                listener,
                start="first",
                orderly=True,
                settings=settings,
                client=NS,
            ):
                (dead,) = await cluster.wait_messages("%DLQ%ns%g", 1)
            assert dead.properties["RETRY_TOPIC"] == "ns%orders"

    run(work())


def test_transactions(tmp_path: Path) -> None:
    checked: list[ReceivedMessage] = []
    ends: list[TransactionEnd] = []

    def check(message: ReceivedMessage) -> LocalState:
        checked.append(message)
        return LocalState.COMMIT

    async def work() -> None:
        async with (
            AsyncLocalCluster(tmp_path, **EAGER) as cluster,
            TransactionProducer(cluster.namesrv, "p", check=check, end_hooks=[ends.append], client=NS) as producer,
        ):
            async with producer.transaction("paid", b"0"):
                pass
            async with producer.transaction("paid", b"1") as transaction:
                transaction.leave_open()
            stored = await cluster.wait_messages("ns%paid", 2)
            assert sorted(message.body for message in stored) == [b"0", b"1"]
            assert {message.properties["PGROUP"] for message in stored} == {"ns%p"}
            assert {(message.body, message.topic, message.queue.topic) for message in checked} == {
                (b"1", "paid", "paid")
            }
            assert {(end.group, end.topic) for end in ends} == {("p", "paid")}

    run(work())


def test_requests_and_replies(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            AsyncLocalCluster(tmp_path) as cluster,
            Producer(cluster.namesrv, "asker", client=NS) as asker,
            Producer(cluster.namesrv, "replier", client=NS) as replier,
        ):

            async def listener(messages: list[ReceivedMessage]) -> None:
                for message in messages:
                    await replier.reply(message, message.body.upper())

            async with PushConsumer(
                cluster.namesrv, "g", {"questions": "*"}, listener, start="first", settings=QUICK, client=NS
            ):
                reply = await asker.request("questions", b"ping", timeout=20)
            assert (reply.body, reply.topic) == (b"PING", "DefaultCluster_REPLY_TOPIC")
            assert len(await cluster.messages("DefaultCluster_REPLY_TOPIC")) == 1

    run(work())


def test_consumers_that_pull(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as cluster, ClientInstance(cluster.namesrv, NS) as instance:
            await cluster.create_topic("ns%orders", queues=1)
            await cluster.send("ns%orders", b"0")
            queue = MessageQueue("orders", cluster.broker.name, 0)
            async with PullConsumer(instance) as puller:
                assert await puller.queues_of("orders") == [queue]
                assert await puller.bounds(queue) == (0, 1)
                (message,) = (await puller.pull(queue, 0)).messages
                assert (message.topic, message.queue) == ("orders", queue)
                with pytest.raises(RouteNotFound, match="other"):
                    await puller.queues_of("other")
            async with LitePullConsumer(instance, "g") as assigned:
                await assigned.assign([queue])
                await assigned.seek(queue, 0)
                (message,) = await assigned.poll(timeout=20)
                assert message.queue == queue
                await assigned.commit()
                assert (await assigned.committed(queue), await committed(cluster, "ns%g", "ns%orders", 1)) == (1, 1)
            async with LitePullConsumer(instance, "h", {"orders": "*"}, start="first") as member:
                assert [message.body for message in await member.poll(timeout=20)] == [b"0"]

    run(work())


def test_admin_requests_name_the_group_as_brokers_do(tmp_path: Path) -> None:
    got: list[ReceivedMessage] = []

    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as cluster, ConnectionPool() as peers:
            await cluster.create_topic("ns%orders", queues=1)
            sent = await cluster.send("ns%orders", b"0")

            async def request(code: RequestCode, header: Any) -> Any:
                response = await peers.request_ok(cluster.broker.addr, code, header)
                return fastjson.read(response.body) if response.body else {}

            async with PushConsumer(
                cluster.namesrv,
                "g",
                {"orders": "*"},
                got.extend,
                start="first",
                orderly=True,
                settings=QUICK,
                client=NS,
            ) as member:
                await cluster.wait_consumed("ns%g", "ns%orders")
                info = await request(
                    RequestCode.GET_CONSUMER_RUNNING_INFO, RunningInfoRequest("ns%g", member.client_id)
                )
                assert info["properties"]["consumerGroup"] == "ns%g"
                assert {item["topic"] for item in info["subscriptionSet"]} == {"ns%orders", "%RETRY%ns%g"}
                assert set(info["statusTable"]) == {"ns%orders", "%RETRY%ns%g"}
                assert any('"topic":"ns%orders"' in queue for queue in info["mqTable"])
                status = await request(
                    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatus("ns%orders", "ns%g")
                )
                (offsets,) = status["consumerTable"].values()
                assert list(offsets.values()) == [1]
                directly = ConsumeDirectly("ns%g", member.client_id, sent.offset_message_id)
                result = await request(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly)
                assert result["consumeResult"] == "CR_SUCCESS"
                assert (got[1].topic, got[1].queue) == ("orders", got[0].queue)
                await request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset("ns%orders", "ns%g", 0, True))
                while len(got) < 3:
                    await asyncio.sleep(0.02)
                assert got[2].queue == got[0].queue

    run(work())


def test_broadcasting_stores_the_names_on_the_wire(tmp_path: Path) -> None:
    """The file is Java's, so a program can change from one client to the other."""
    got: list[ReceivedMessage] = []
    client = ClientSettings(namespace="ns", instance_name="one")
    settings = ConsumerSettings(
        message_model="broadcasting", offsets_dir=str(tmp_path / "offsets"), commit_interval=0.05, suspend_time=0.2
    )

    async def consume(cluster: AsyncLocalCluster, count: int) -> None:
        async with PushConsumer(
            cluster.namesrv, "g", {"orders": "*"}, got.extend, start="first", settings=settings, client=client
        ):
            while len(got) < count:
                await asyncio.sleep(0.02)

    async def work() -> None:
        async with AsyncLocalCluster() as cluster:
            await cluster.create_topic("ns%orders", queues=1)
            await cluster.send("ns%orders", b"0")
            await consume(cluster, 1)
            (file,) = (tmp_path / "offsets").glob("*/ns%g/offsets.json")
            assert '"topic":"ns%orders"}:1' in file.read_text()
            await cluster.send("ns%orders", b"1")
            await consume(cluster, 2)
            assert [message.body for message in got] == [b"0", b"1"]

    run(work())


def test_a_trace_topic_has_no_namespace(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as cluster:
            trace = TraceSettings(topic="my_traces")
            async with Producer(cluster.namesrv, "p", client=NS, trace=trace) as producer:
                sent = await producer.send("orders", b"0")
            (message,) = await cluster.messages("my_traces")
            assert sent.message_id in message.keys

    run(work())


def test_idempotent_listeners_of_two_namespaces_share_a_store(tmp_path: Path) -> None:
    got: list[str] = []

    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as cluster:
            for namespace in ("one", "two"):
                client = ClientSettings(namespace=namespace)
                async with Producer(cluster.namesrv, "p", client=client) as producer:
                    await producer.send("orders", b"0", message_id="ORDER-17")

                async def listener(messages: list[ReceivedMessage], namespace: str = namespace) -> None:
                    got.append(namespace)

                only_once = Idempotent(listener, store=SqliteStore(tmp_path / "seen.db"))
                async with PushConsumer(
                    cluster.namesrv, "g", {"orders": "*"}, only_once, start="first", settings=QUICK, client=client
                ):
                    await cluster.wait_consumed(f"{namespace}%g", f"{namespace}%orders")
            assert got == ["one", "two"]

    run(work())


def test_blocking_clients(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, blocking.Producer(cluster.namesrv, "p", client=NS) as producer:
        assert producer.send("orders", b"0").queue.topic == "orders"
        with blocking.Consumer(cluster.namesrv, "g", {"orders": "*"}, start="first", client=NS) as consumer:
            message = next(iter(consumer))
            assert (message.topic, message.body) == ("orders", b"0")
        assert len(cluster.messages("ns%orders")) == 1
