"""Lite-pull consumer over real sockets."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from test_client_retries import QUICK, run

from ariane.client import ConsumerSettings, LitePullConsumer, Producer
from ariane.errors import ClientClosed, ConfigError
from ariane.model.message import Message, MessageQueue, ReceivedMessage
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.callbacks import ConsumeDirectly, RunningInfoRequest
from ariane.testing import AsyncLocalCluster

SETTINGS = ConsumerSettings(**QUICK)


def member(servers: AsyncLocalCluster, topics: dict[str, str] | None = None, **more: object) -> LitePullConsumer:
    return LitePullConsumer(servers.namesrv, "g", topics, start="first", settings=SETTINGS, **more)  # type: ignore[arg-type]


async def polled(consumer: LitePullConsumer, count: int) -> list[ReceivedMessage]:
    received: list[ReceivedMessage] = []
    while len(received) < count:
        received += await consumer.poll(timeout=10)
    return received


async def fill(producer: Producer, count: int, **more: str) -> list[MessageQueue]:
    return [(await producer.send(Message(topic="t", body=b"%d" % number, **more))).queue for number in range(count)]  # type: ignore[arg-type]


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return sorted(int(message.body) for message in messages)


def test_members_share_the_queues_and_continue_at_the_committed_offsets(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            await fill(producer, 8)
            async with member(servers, {"t": "*"}) as item, member(servers, {"t": "*"}) as two:
                while len(item.queues) != 2 or len(two.queues) != 2:
                    await asyncio.sleep(0.05)
                assert not set(item.queues) & set(two.queues)
                received: set[int] = set()
                while len(received) < 8:  # what one had polled before the other came may come to that one again
                    received |= set(numbers(await item.poll(timeout=0.2))) | set(numbers(await two.poll(timeout=0.2)))
                await item.commit()
                await two.commit()
            async with member(servers, {"t": "*"}) as repeated:
                await producer.send(Message(topic="t", body=b"8"))
                assert numbers(await polled(repeated, 1)) == [8]

    run(work())


def test_polled_messages_count_as_consumed_with_the_next_poll_or_commit(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            await producer.send(Message(topic="t", body=b"0"))
            for auto_commit in (True, False):
                async with member(servers, {"t": "*"}, auto_commit=auto_commit) as consumer:
                    assert numbers(await polled(consumer, 1)) == [0]  # and it ends before it says that it is done
            async with member(servers, {"t": "*"}, auto_commit=False) as consumer:
                (message,) = await polled(consumer, 1)
                assert await consumer.poll(timeout=0.3) == []
                assert await consumer.committed(message.queue) in (None, 0)
                await consumer.commit()
                assert await consumer.committed(message.queue) == 1
            async with member(servers, {"t": "*"}) as consumer:
                assert await consumer.poll(timeout=0.5) == []
                await consumer.commit({message.queue: 0})
                assert await consumer.committed(message.queue) == 0
            async with member(servers, {"t": "*"}) as consumer:
                assert numbers(await polled(consumer, 1)) == [0]
                assert await consumer.poll(timeout=0.3) == []  # counts now
            async with member(servers, {"t": "*"}) as consumer:
                assert await consumer.poll(timeout=0.5) == []

    run(work())


def test_assigned_queues_seek_and_pause(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            queues = await fill(producer, 12)
            async with member(servers) as consumer:
                assert await consumer.queues_of("t") == sorted(set(queues))
                target, other = sorted(set(queues))[:2]
                indexes = [number for number, queue in enumerate(queues) if queue == target]
                await consumer.assign([target])
                assert numbers(await polled(consumer, 3)) == indexes
                assert consumer.queues == [target]

                await consumer.seek(target, 1)
                assert numbers(await polled(consumer, 2)) == indexes[1:]
                await consumer.seek_to_end(target)
                assert await consumer.poll(timeout=0.3) == []
                await consumer.seek_to_begin(target)
                assert numbers(await consumer.poll(max_messages=2)) == indexes[:2]
                assert numbers(await consumer.poll(max_messages=2)) == indexes[2:]
                assert await consumer.offset_for_time(target, datetime.fromtimestamp(0, UTC)) == 0
                with pytest.raises(ConfigError, match="has offsets 0 to 3"):
                    await consumer.seek(target, 4)
                with pytest.raises(ConfigError, match="not assigned to this member"):
                    await consumer.seek(other, 0)

                consumer.pause([target])
                await producer.send(Message(topic="t", body=b"12"), queue=target)
                assert await consumer.poll(timeout=0.5) == []
                consumer.resume([target])
                assert numbers(await polled(consumer, 1)) == [12]

                await consumer.assign([other])
                assert numbers(await polled(consumer, 3)) == [n for n, queue in enumerate(queues) if queue == other]
                await consumer.assign([])
                while consumer.queues:
                    await asyncio.sleep(0.02)

    run(work())


def test_tags_and_admin_requests(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            AsyncLocalCluster(tmp_path) as servers,
            Producer(servers.namesrv, "p") as producer,
            ConnectionPool() as peers,
        ):
            await fill(producer, 4, tags="a")
            queues = await fill(producer, 4, tags="b")
            async with member(servers, {"t": "b || c"}) as consumer:
                result = await polled(consumer, 4)
                assert {message.tags for message in result} == {"b"}
                client_id = consumer._instance.client_id
                request = RunningInfoRequest("g", client_id)
                answer = await peers.request(servers.broker.addr, RequestCode.GET_CONSUMER_RUNNING_INFO, request)
                info = fastjson.read(answer.body)
                assert (info["properties"]["PROP_CONSUME_TYPE"], len(info["mqTable"])) == ("CONSUME_ACTIVELY", 4)
                direct = ConsumeDirectly("g", client_id, result[0].offset_message_id)
                answer = await peers.request(servers.broker.addr, RequestCode.CONSUME_MESSAGE_DIRECTLY, direct)
                assert (answer.code, "no listener" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
                with pytest.raises(ConfigError, match="has subscriptions"):
                    await consumer.assign(queues)
                with pytest.raises(ConfigError, match="max_messages = 0"):
                    await consumer.poll(max_messages=0)
                waiting = asyncio.ensure_future(consumer.poll(timeout=30))
                await asyncio.sleep(0)
            with pytest.raises(ClientClosed):
                await waiting
            with pytest.raises(ClientClosed):
                await consumer.poll()

    run(work())


def test_polling_before_assign_is_an_error() -> None:
    async def work() -> None:
        async with AsyncLocalCluster() as servers, member(servers) as consumer:
            with pytest.raises(ConfigError, match="call `assign` before `poll`"):
                await consumer.poll()
            await consumer.assign([])
            assert await consumer.poll(timeout=0) == []
            with pytest.raises(ConfigError, match="timeout"):
                await consumer.poll(timeout=-1)
            with pytest.raises(ConfigError, match="expected a datetime"):
                await consumer.offset_for_time(MessageQueue("t", "b", 0), 1_700_000_000)

    run(work())


@pytest.mark.parametrize(
    "more", [{"start": "middle"}, {"settings": ConsumerSettings(message_model="broadcasting")}, {"namesrv": None}]
)
def test_invalid_poll_arguments_are_rejected(more: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        LitePullConsumer(**{"namesrv": "127.0.0.1:1", "group": "g", **more})  # type: ignore[arg-type]
