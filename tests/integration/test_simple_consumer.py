"""Simple consumer over real sockets: what members of a group share, what is delivered again, and what tools see."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from test_client_retries import run

from ariane import blocking
from ariane.client import (
    ClientSettings,
    ConsumerSettings,
    Credentials,
    LitePullConsumer,
    PoppedMessage,
    Producer,
    SimpleConsumer,
    Sql,
)
from ariane.cluster.admin import Admin
from ariane.errors import DeliveryExpired, ReplyError, RequestTimeout
from ariane.model.message import Message
from ariane.model.topic import TRACE_TOPIC
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.callbacks import RunningInfoRequest
from ariane.testing import AsyncLocalCluster, LocalCluster

ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: an-admin-secret, admin: true}
- accessKey: user-of-orders
  secretKey: a-user-secret
  topicPerms: [orders=PUB|SUB]
  groupPerms: [stock=SUB]
"""


def member(servers: AsyncLocalCluster, topics: object = "t", **more: object) -> SimpleConsumer:
    return SimpleConsumer(servers.namesrv, "g", topics, start="first", **more)  # type: ignore[arg-type]


async def fill(producer: Producer, topic: str, count: int, **more: str) -> None:
    for number in range(count):
        await producer.send(Message(topic=topic, body=b"%d" % number, **more))  # type: ignore[arg-type]


def test_members_share_all_queues_of_all_topics(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            await fill(producer, "t", 20)
            await fill(producer, "u", 20)
            received: Counter[tuple[str, bytes]] = Counter()

            async def consume(consumer: SimpleConsumer) -> None:
                while messages := await consumer.receive(3, timeout=0.2):
                    received.update((message.topic, message.body) for message in messages)
                    await consumer.ack(messages)

            async with member(servers, ["t", "u"]) as one, member(servers, ["t", "u"]) as two:
                await asyncio.gather(consume(one), consume(one), consume(two))
                assert await two.receive(timeout=0) == []
            assert received == Counter((topic, b"%d" % number) for topic in "tu" for number in range(20))
            async with LitePullConsumer(servers.namesrv, "g") as reader:
                queues = await reader.queues_of("t")
                committed = [await reader.committed(queue) for queue in queues]
                assert committed == [(await reader.bounds(queue))[1] for queue in queues]

    run(work())


def test_a_waiting_call_receives_a_message_that_arrives_and_one_that_is_visible_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            await fill(producer, "t", 1)
            async with member(servers) as consumer:
                await consumer.ack(await consumer.receive())
                receiving = asyncio.create_task(consumer.receive())
                await fill(producer, "t", 1)
                (message,) = await receiving
                await message.change_invisible(0.1)
                (again,) = await consumer.receive()
                assert (again.message_id, again.attempt) == (message.message_id, 2)
                while message.is_pending:  # the client's clock runs behind by the time of a response
                    await asyncio.sleep(0.01)
                with pytest.raises(DeliveryExpired):
                    await message.ack()
                await again.ack()
                assert await consumer.receive(timeout=0.3) == []

    run(work())


def test_filters_dead_letters_and_traces(tmp_path: Path) -> None:
    async def work() -> None:
        cluster = AsyncLocalCluster(tmp_path, enable_property_filter=True)
        async with cluster as servers, Producer(servers.namesrv, "p") as producer:
            await producer.send(Message(topic="t", body=b"2", tags="a", properties={"n": "2"}))
            await producer.send(Message(topic="t", body=b"7", tags="b", properties={"n": "7"}))
            once = ConsumerSettings(max_reconsume_times=0)
            async with member(servers, {"t": Sql("n > 5")}, trace=True, settings=once) as consumer:
                (message,) = await consumer.receive()
                assert message.body == b"7"
                await message.change_invisible(0)
                assert (
                    await consumer.receive(timeout=0.5) == []
                )  # delivered too often: the group has it as a dead letter
                assert consumer.rates()["t"].pull_tps > 0
            assert consumer.trace_counts.sent == 2
            async with SimpleConsumer(servers.namesrv, "dead", ["%DLQ%g", TRACE_TOPIC], start="first") as reader:
                received = [*await reader.receive(), *await reader.receive()]
                (dead,) = (item for item in received if item.topic == "%DLQ%g")
                assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"7", "t")
                assert any(item.topic == TRACE_TOPIC and b"SubAfter" in item.body for item in received), received
            async with SimpleConsumer(servers.namesrv, "tags", {"t": "a || c"}, start="first") as tagged:
                assert [item.body for item in await tagged.receive()] == [b"2"]
            with pytest.raises(ReplyError):
                async with member(servers, {"t": Sql("n >")}):
                    pass

    run(work())


def test_tools_see_the_member_and_what_it_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            await fill(producer, "t", 1)
            async with member(servers) as consumer, Admin(servers.namesrv) as admin, ConnectionPool() as peers:
                await consumer.ack(await consumer.receive())
                connections = await admin.consumer_connections("g")
                assert consumer.client_id in str(connections)
                header = RunningInfoRequest("g", consumer.client_id)
                addr = servers.broker.addr
                answer = await peers.request_ok(addr, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
                info = fastjson.read(answer.body)
                assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
                assert info["statusTable"]["t"]["consumeOKTPS"] > 0

    run(work())


def test_programs_without_asyncio_take_messages() -> None:
    with LocalCluster() as cluster, blocking.Producer(cluster.namesrv, "p") as producer:
        for number in range(3):
            producer.send("t", b"%d" % number)
        with blocking.SimpleConsumer(cluster.namesrv, "g", "t", start="first") as consumer:
            messages = consumer.receive()
            while len(messages) < 3:
                messages += consumer.receive()
            first, *others = messages
            first.change_invisible(0)
            consumer.ack(others)
            (again,) = consumer.receive()
            assert (again.attempt, again.is_pending, again.payload) == (2, True, first.body)
            again.ack()
            assert consumer.receive(timeout=0) == []


def test_a_killed_broker_delivers_what_was_not_acknowledged_and_nothing_else(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            await fill(producer, "t", 8)
            async with member(servers) as consumer:
                taken: list[PoppedMessage] = []
                while len(taken) < 8:
                    taken += await consumer.receive(invisible=60)
                await consumer.ack(taken[:5])
                receiving = asyncio.create_task(consumer.receive(timeout=30))  # parked at the broker
                await asyncio.sleep(0)
                await asyncio.to_thread(servers.broker.kill)
                await asyncio.to_thread(servers.broker.start)
                await taken[5].ack()  # with the handle of the broker that was killed
                for message in taken[6:]:
                    await message.change_invisible(0)
                again = await receiving
                while len(again) < 2:
                    again += await consumer.receive()
                assert sorted(message.body for message in again) == sorted(message.body for message in taken[6:])
                await consumer.ack(again)
                assert await consumer.receive(timeout=0.3) == []

    run(work())


def test_lost_responses_raise_and_leave_messages_pending(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            await fill(producer, "t", 1)
            async with member(servers, client=ClientSettings(request_timeout=0.5)) as consumer:
                (message,) = await consumer.receive()
                with servers.broker.lose_responses(RequestCode.ACK_MESSAGE), pytest.raises(RequestTimeout):
                    await message.ack()
                assert message.is_pending
                await message.ack()  # once more has no effect at the broker
                assert await consumer.receive(timeout=0) == []

    run(work())


def test_accounts_need_the_rights_of_consumers(tmp_path: Path) -> None:
    """Responses without permission are raised at once, not when the time is over."""

    async def work() -> None:
        (tmp_path / "conf").mkdir()
        (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
        async with AsyncLocalCluster(tmp_path, acl_enable=True, rocketmq_home=str(tmp_path)) as servers:
            signed = ClientSettings(credentials=Credentials("user-of-orders", "a-user-secret"))
            async with Producer(servers.namesrv, "p", client=signed) as producer:
                await producer.send("orders", b"1")
            async with SimpleConsumer(servers.namesrv, "stock", "orders", start="first", client=signed) as consumer:
                (message,) = await consumer.receive()
                await message.change_invisible(60)
                await message.ack()
            for settings, group in ((ClientSettings(), "stock"), (signed, "other")):
                async with SimpleConsumer(servers.namesrv, group, "orders", client=settings) as refused:
                    with pytest.raises(ReplyError, match="acl config|permission|AclException"):
                        await refused.receive(timeout=600)

    run(work())


def test_a_namespace_separates_topics_and_groups(tmp_path: Path) -> None:
    async def work() -> None:
        inside = ClientSettings(namespace="ns")
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p", client=inside) as producer:
            await fill(producer, "t", 8)
            async with member(servers, client=inside) as consumer:
                received: list[PoppedMessage] = []
                while len(received) < 8:
                    received += await consumer.receive()
                assert {message.topic for message in received} == {message.queue.topic for message in received} == {"t"}
                await received[0].change_invisible(0)
                await consumer.ack(received[1:])
                (again,) = await consumer.receive()
                await again.ack()
                assert await consumer.receive(timeout=0) == []
            async with SimpleConsumer(servers.namesrv, "ns%g", "ns%t", start="first") as outside:
                # The same group under its full name: all are acknowledged.
                assert await outside.receive(timeout=0) == []

    run(work())
