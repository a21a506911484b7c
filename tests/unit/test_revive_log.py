"""A store that a broker of 5.x has served by POP: what was in flight and in retry topics is delivered; in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from ariane.client import SimpleConsumer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import OffsetResponse, QueryConsumerOffset, SendMessage
from ariane.testing.clock import EPOCH_MS
from ariane.testing.virtual.virtual_cluster import STORE, VirtualCluster, virtual_cluster

TOPIC, GROUP, RETRY, REVIVE = "T", "G", "%RETRY%G_T", "rmq_sys_REVIVE_LOG_DefaultCluster"
TAKEN_MS, INVISIBLE_MS = EPOCH_MS + 60_000, 60_000  # of the deliveries
BROKER = "10.0.0.2:10911"
OFFSETS = f"{STORE}/config/consumerOffset.json"


def check_point(start: int, differences: list[int], acked_bits: int = 0) -> dict[str, Any]:
    times = {"pt": TAKEN_MS, "it": INVISIBLE_MS, "bn": "broker-a"}
    place = {"c": GROUP, "t": TOPIC, "q": 0, "so": start}
    return {**times, **place, "d": differences, "n": len(differences), "bm": acked_bits, "ro": 0, "rp": 0}


def ack(offset: int) -> dict[str, Any]:
    return {"c": GROUP, "t": TOPIC, "q": 0, "so": 0, "ao": offset, "pt": TAKEN_MS, "bn": "broker-a"}


async def request(code: int, header: Any, body: bytes = b"") -> Command:
    async with ConnectionPool() as peers:
        return await peers.request_ok(BROKER, code, header, body)


async def send(topic: str, body: bytes, **table: str) -> None:
    header = SendMessage("P", topic, "TBW102", 1, 0, 0, 1, 0, properties.encode(table))
    await request(RequestCode.SEND_MESSAGE_V2, header, body)


async def serve_by_5x() -> None:
    """Store what a broker of 5.x leaves after a group has taken six messages: 0 and 2 are acknowledged, 1 is a retry."""
    for number in range(8):
        await send(TOPIC, b"%d" % number)
    await send(RETRY, b"1")
    for tag, entry, pending in (
        ("ck", check_point(1, [0]), False),  # settled: below the offset of the revive group
        ("ck", check_point(0, [0, 2, 3, 4], acked_bits=1), False),
        ("ck", check_point(5, [0]), True),  # a timer until the invisible time is over
        ("ack", ack(2), True),
    ):
        await send(REVIVE, json.dumps(entry).encode(), TAGS=tag, **({"TIMER_DELAY_SEC": "600"} if pending else {}))
    await send(REVIVE, b"damaged", TAGS="ck")
    await send(REVIVE, json.dumps({**check_point(0, []), "n": 128}).encode(), TAGS="ck")  # 5.x has at most 127


def write_offsets(world: VirtualCluster) -> None:
    table = {f"{TOPIC}@{GROUP}": {0: 6}, f"{RETRY}@{GROUP}": {0: 0}, f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": {0: 1}}
    world.disk.put_file(OFFSETS, json.dumps({"offsetTable": table}).encode())


async def committed() -> int:
    answer = await request(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset(GROUP, TOPIC, 0))
    return decode_header(answer, OffsetResponse).offset


def at_broker_after_5x(work: Callable[[VirtualCluster, SimpleConsumer], Awaitable[None]]) -> None:
    """Run a consumer at a broker that has taken over the store."""

    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        shop = world.process("shop")

        async def consume() -> None:
            async with (
                world.instance(shop) as instance,
                SimpleConsumer(instance, GROUP, TOPIC, start="first") as consumer,
            ):
                await work(world, consumer)

        await shop.start(serve_by_5x())
        await world.broker.stop()
        write_offsets(world)
        await world.broker.start()
        await shop.start(consume())

    with virtual_cluster() as world:
        world.run(scenario(world))


def test_messages_in_flight_and_retries_of_a_broker_of_5x_are_delivered() -> None:
    async def work(world: VirtualCluster, consumer: SimpleConsumer) -> None:
        assert await committed() == 3
        taken = await consumer.receive(8)
        assert sorted((message.body, message.reconsume_times) for message in taken) == [
            (b"1", 0), (b"6", 0), (b"7", 0),
        ]  # fmt: skip
        await consumer.ack(taken)
        assert await consumer.receive(8, timeout=1) == []
        await asyncio.sleep((TAKEN_MS + INVISIBLE_MS - world.clock.now_ms()) / 1000 + 1)
        again = await consumer.receive(8)
        assert sorted((message.body, message.reconsume_times) for message in again) == [
            (b"3", 1), (b"4", 1), (b"5", 1),
        ]  # fmt: skip
        await consumer.ack(again)
        assert await committed() == 8

    at_broker_after_5x(work)


def test_a_parked_request_is_woken_by_a_retry_of_5x_that_is_visible_again() -> None:
    async def work(world: VirtualCluster, consumer: SimpleConsumer) -> None:
        (retry,) = [message for message in await consumer.receive(8) if message.body == b"1"]
        parked = asyncio.ensure_future(consumer.receive(8, timeout=20))
        await asyncio.sleep(1)
        changed_ms = world.clock.now_ms()
        await retry.change_invisible(2)
        (again,) = await parked
        assert again.body == b"1"
        assert 2_000 <= world.clock.now_ms() - changed_ms < 3_000

    at_broker_after_5x(work)
