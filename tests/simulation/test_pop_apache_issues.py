"""Faults of POP that users of Apache RocketMQ 5 reported, each as a test of this broker: real broker, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from test_pop_kills import BROKER, Delivery, Place

from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.admin import TopicRef
from ariane.protocol.requests.messaging import OffsetResponse, QueryConsumerOffset, QueueRef, SendMessage
from ariane.protocol.requests.pop import (
    ORDERED_QUEUE,
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
)
from ariane.store.disk.files import read_whole
from ariane.testing.virtual.virtual_cluster import STORE, VirtualCluster, virtual_cluster

GROUP, TOPIC, QUEUE = "G", "T", 0
MINUTE_MS = 60_000


class Consumer:
    """A consumer of one queue, whose connections do not survive a request."""

    def __init__(self, world: VirtualCluster) -> None:
        self.world = world

    async def call(self, code: int, header: Any, body: bytes = b"") -> Command:
        async with ConnectionPool() as peers:
            return await peers.request(BROKER, code, header, body, timeout_ms=120_000)

    async def send(self, *bodies: bytes) -> None:
        for body in bodies:
            header = SendMessage("P", TOPIC, "TBW102", 1, QUEUE, 0, 1, 0, None)
            assert (await self.call(RequestCode.SEND_MESSAGE_V2, header, body)).code == 0

    async def take(self, count: int = 32, invisible_ms: int = MINUTE_MS, poll_ms: int = 0) -> dict[Delivery, bytes]:
        header = PopMessage(GROUP, TOPIC, QUEUE, count, invisible_ms, poll_ms)
        answer = await self.call(RequestCode.POP_MESSAGE, header)
        if answer.code == ResponseCode.POLLING_TIMEOUT:
            return {}
        assert answer.code == 0, answer.remark
        popped = decode_header(answer, PopMessageResponse)
        return {
            Delivery(
                Place(QUEUE, item.queue_offset), item.queue_offset, popped.pop_time, invisible_ms, popped.revive_qid
            ): item.body
            for item in record.decode_all(answer.body)
        }

    async def acknowledge(self, delivery: Delivery) -> int:
        header = AckMessage(GROUP, TOPIC, QUEUE, delivery.handle, delivery.place.offset)
        return (await self.call(RequestCode.ACK_MESSAGE, header)).code

    async def change(self, delivery: Delivery, invisible_ms: int) -> Delivery:
        header = ChangeInvisibleTime(GROUP, TOPIC, QUEUE, delivery.handle, delivery.place.offset, invisible_ms)
        answer = await self.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        assert answer.code == 0, answer.remark
        changed = decode_header(answer, ChangeInvisibleTimeResponse)
        return delivery._replace(taken_ms=changed.pop_time, invisible_ms=changed.invisible_time)

    async def lag(self) -> int:
        end = decode_header(await self.call(RequestCode.GET_MAX_OFFSET, QueueRef(TOPIC, QUEUE)), OffsetResponse)
        header = QueryConsumerOffset(GROUP, TOPIC, QUEUE)
        return (
            end.offset
            - decode_header(await self.call(RequestCode.QUERY_CONSUMER_OFFSET, header), OffsetResponse).offset
        )

    async def kill_broker(self) -> None:
        self.world.broker.kill()
        await self.world.broker.start()


def play(work: Callable[[Consumer], Awaitable[None]], **settings: Any) -> None:
    with virtual_cluster(1, **settings) as world:

        async def run() -> None:
            await world.start()
            await world.process("consumer").start(work(Consumer(world)))

        world.run(run())


def bodies(taken: dict[Delivery, bytes]) -> list[bytes]:
    return list(taken.values())


def test_10278_a_renewed_delivery_is_acknowledged_by_its_first_handle_after_a_crash() -> None:
    """Apache: the proxy renews deliveries, and keeps the renewed handles in memory. When it crashes, the handle of the client has
    expired, and the message is consumed twice. Here a renewal may retain the handle, and the renewed time is stored."""

    async def work(consumer: Consumer) -> None:
        await consumer.send(b"0")
        (first,) = await consumer.take()
        renewal = first._replace(revive_queue=ORDERED_QUEUE)  # as the gRPC port renews
        await asyncio.sleep(50)
        await consumer.change(renewal, 10 * MINUTE_MS)
        await consumer.kill_broker()
        await asyncio.sleep(100)
        assert await consumer.take() == {}, "the renewal survives"
        assert await consumer.acknowledge(first) == 0
        await asyncio.sleep(1_000)
        assert (await consumer.take(), await consumer.lag()) == ({}, 0)

    play(work)


def test_3787_messages_of_a_slow_consumer_are_not_delivered_again() -> None:
    """Apache: acknowledgements that came more than 8.5 s after the delivery were joined with its check point too late, so that
    consumed messages were delivered again."""

    async def work(consumer: Consumer) -> None:
        await consumer.send(*(b"%d" % number for number in range(32)))
        taken = await consumer.take()
        assert len(taken) == 32
        for delivery in taken:
            await asyncio.sleep(1.5)
            assert await consumer.acknowledge(delivery) == 0
        await asyncio.sleep(300)
        assert (await consumer.take(), await consumer.lag()) == ({}, 0)

    play(work)


def test_9956_many_messages_that_are_visible_at_the_same_time_do_not_delay_others() -> None:
    """Apache: the reviver does not proceed if the invisible times of many messages end together."""

    async def work(consumer: Consumer) -> None:
        await consumer.send(*(b"%d" % number for number in range(640)))
        taken: dict[Delivery, bytes] = {}
        while more := await consumer.take():
            taken |= more
        due_ms = consumer.world.clock.now_ms() + 30_000
        for delivery in taken:
            await consumer.change(delivery, due_ms - consumer.world.clock.now_ms())
        assert await consumer.take() == {}
        await consumer.send(b"new")
        assert bodies(await consumer.take(poll_ms=1_000)) == [b"new"]
        again: list[bytes] = []
        while len(again) < 640:
            again += bodies(await consumer.take(poll_ms=60_000))
        assert sorted(again) == sorted(taken.values())
        assert consumer.world.clock.now_ms() < due_ms + 10_000

    play(work)


def test_7724_messages_that_retention_removed_do_not_bring_others_back() -> None:
    """Apache: to deliver a removed message again, the reviver read the first one after it, which was acknowledged already."""

    async def work(consumer: Consumer) -> None:
        await consumer.send(*(bytes(400) for _ in range(30)))
        removed, *others = await consumer.take(invisible_ms=5 * MINUTE_MS)
        for delivery in others:
            assert await consumer.acknowledge(delivery) == 0
        await consumer.send(b"last")
        assert (await consumer.call(RequestCode.DELETE_EXPIRED_COMMITLOG, None)).code == 0
        await asyncio.sleep(60)
        first = decode_header(await consumer.call(RequestCode.GET_MIN_OFFSET, QueueRef(TOPIC, QUEUE)), OffsetResponse)
        assert first.offset > removed.place.offset, "the message was not removed"
        (last,) = await consumer.take()
        assert await consumer.acknowledge(last) == 0
        await asyncio.sleep(600)
        assert (await consumer.take(), await consumer.lag()) == ({}, 0)

    play(work, file_reserved_time=1, mapped_file_size_commit_log=4_096, delete_commit_log_files_interval=0)


def test_8479_deliveries_of_a_deleted_topic_do_not_count_for_the_next_one_of_its_name() -> None:
    """Apache: the reviver repeated reads at offsets that the new topic did not have, endlessly, or delivered wrong messages."""

    async def work(consumer: Consumer) -> None:
        await consumer.send(*(b"old %d" % number for number in range(5)))
        old = await consumer.take()
        assert len(old) == 5
        assert (await consumer.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef(TOPIC))).code == 0
        await consumer.send(b"new 0", b"new 1")
        new = await consumer.take()
        assert bodies(new) == [b"new 0", b"new 1"]
        assert [await consumer.acknowledge(delivery) for delivery in old] == [0, 0] + [ResponseCode.NO_MESSAGE] * 3
        assert await consumer.lag() == 2, "an old handle acknowledges no new message"
        await asyncio.sleep(300)
        again = await consumer.take()
        assert bodies(again) == [b"new 0", b"new 1"]
        assert [await consumer.acknowledge(delivery) for delivery in again] == [0, 0]
        await asyncio.sleep(300)
        assert (await consumer.take(), await consumer.lag()) == ({}, 0)

    play(work)


def test_7412_a_delivery_that_is_stored_again_and_again_ends() -> None:
    """Apache: a check point that the reviver stored once more lacked the name of its broker, so its message was never delivered
    again. Here each change of a delivery, and each start, stores it once more."""

    async def work(consumer: Consumer) -> None:
        await consumer.send(b"0")
        (delivery,) = await consumer.take()
        for _ in range(5):
            delivery = await consumer.change(delivery, MINUTE_MS)
            await consumer.world.broker.stop()
            await consumer.world.broker.start()
            await consumer.kill_broker()
            assert await consumer.take() == {}
        (again,) = await consumer.take(poll_ms=100_000)
        assert again.place == delivery.place
        assert await consumer.acknowledge(again) == 0
        assert await consumer.lag() == 0

    play(work)


def change_log(world: VirtualCluster) -> list[bytes | None]:
    directory = f"{STORE}/config"
    names = sorted(name for name in world.disk.listdir(directory) if name.startswith("changes."))
    return [read_whole(world.disk, f"{directory}/{name}") for name in names]


def test_5408_repeated_acknowledgements_leave_nothing_behind() -> None:
    """Apache: the offset of the revive group did not reach its end if there were more acknowledgements than check points."""

    async def work(consumer: Consumer) -> None:
        await consumer.send(*(b"%d" % number for number in range(8)))
        taken = await consumer.take()
        for _ in range(3):
            assert {await consumer.acknowledge(delivery) for delivery in taken} == {0}
        assert await consumer.lag() == 0
        before = change_log(consumer.world)
        assert before
        for delivery in taken:
            assert await consumer.acknowledge(delivery) == 0
        assert change_log(consumer.world) == before, "an acknowledgement without effect is not stored"
        await asyncio.sleep(300)
        assert (await consumer.take(), await consumer.lag()) == ({}, 0)

    play(work)
