"""Loops over a `Consumer` against the real broker, in virtual time: retries, dead letters, deadlines, rebalances, shut-downs and
kills. Whatever happens, every message is consumed at least once, and an acknowledged one is not delivered again after its offset
was committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from ariane.client.consumer import Consumer
from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.settings import ConsumerSettings
from ariane.client.lite_pull_consumer import LitePullConsumer
from ariane.client.producer import Producer
from ariane.errors import ArianeError, ConfigError
from ariane.model.message import Message
from ariane.testing.virtual.virtual_cluster import VirtualCluster, virtual_cluster
from ariane.testing.virtual.virtual_time import VirtualProcess

TOPIC, GROUP = "Orders", "sellers"


@pytest.fixture(autouse=True)
def quiet():
    logger = logging.getLogger("ariane")
    level = logger.level
    logger.setLevel("CRITICAL")
    yield
    logger.setLevel(level)


def simulated(messages: int) -> Callable[[Callable[[ClientInstance], Awaitable[None]]], Callable[[], None]]:
    """Decorate a test: it runs in virtual time, with a client instance and so many messages in the topic."""

    def decorate(scenario: Callable[[ClientInstance], Awaitable[None]]) -> Callable[[], None]:
        async def run(world: VirtualCluster) -> None:
            await world.start()
            process = world.process("shop")
            await process.start(shop(world, process))

        async def shop(world: VirtualCluster, process: VirtualProcess) -> None:
            async with world.instance(process) as instance:
                await fill(instance, messages)
                await scenario(instance)

        def test() -> None:
            with virtual_cluster(1) as world:
                world.run(run(world))

        # Not functools.wraps: pytest would look for the fixture `instance`.
        test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
        return test

    return decorate


async def fill(instance: ClientInstance, count: int) -> None:
    async with Producer(instance, "shop") as producer:
        for number in range(count):
            await producer.send(Message(topic=TOPIC, body=b"%d" % number))


def consumer(instance, **more) -> Consumer:
    return Consumer(instance, GROUP, {TOPIC: "*"}, start="first", **more)


async def remaining(instance) -> list[bytes]:
    """Return what the group has not committed."""
    bodies = []
    async with LitePullConsumer(instance, GROUP, {TOPIC: "*"}, start="first", auto_commit=False) as reader:
        while messages := await reader.poll(timeout=60):
            bodies += [item.body for item in messages]
    return bodies


@simulated(10)
async def test_acknowledged_messages_are_committed_when_the_consumer_closes(instance):
    seen = []
    async with consumer(instance) as members:
        async for item in members:
            seen.append(item.body)
            if len(seen) == 10:
                members.stop()
    assert len(set(seen)) == 10
    assert await remaining(instance) == []


@simulated(10)
async def test_break_leaves_its_message_and_those_that_were_only_fetched(instance):
    async with consumer(instance) as members:
        seen = []
        async for item in members:
            seen.append(item.body)
            if len(seen) == 4:
                break
    assert sorted(await remaining(instance)) == sorted({b"%d" % number for number in range(10)} - set(seen[:3]))


@simulated(1)
async def test_retries_come_back_and_end_as_dead_letters(instance):
    attempts = []
    settings = ConsumerSettings(max_reconsume_times=2)
    async with consumer(instance, ack="manual", settings=settings) as members:
        with suppress(TimeoutError):
            async with asyncio.timeout(3_600):
                async for item in members:
                    attempts.append((item.attempt, item.topic))
                    await item.retry(delay_level=2)
    assert attempts == [(1, TOPIC), (2, TOPIC), (3, TOPIC)]
    assert await dead_letters(instance) == [b"0"]


@simulated(1)
async def test_an_exception_that_closes_the_consumer_counts_as_an_attempt(instance):
    attempts = []
    settings = ConsumerSettings(max_reconsume_times=2)
    while len(attempts) < 3:  # a program that is started again
        with suppress(ValueError):
            async with consumer(instance, settings=settings) as members:
                async for item in members:
                    attempts.append(item.attempt)
                    raise ValueError
    assert attempts == [1, 2, 3]
    assert await dead_letters(instance) == [b"0"]


@simulated(1)
async def test_a_rejected_message_is_a_dead_letter(instance):
    async with consumer(instance, ack="manual") as members:
        async for item in members:
            await item.reject()
            members.stop()
    assert await dead_letters(instance) == [b"0"]
    assert await remaining(instance) == []


async def dead_letters(instance) -> list[bytes]:
    async with LitePullConsumer(instance, "operator", {f"%DLQ%{GROUP}": "*"}, start="first") as reader:
        return [item.body for item in await reader.poll(timeout=300)]


@simulated(1)
async def test_a_message_that_is_never_acknowledged_is_delivered_again(instance):
    attempts = []
    settings = ConsumerSettings(consume_timeout=60)
    async with consumer(instance, ack="manual", settings=settings) as members:
        async for item in members:
            attempts.append(item.attempt)
            if item.attempt == 2:
                await item.ack()
                members.stop()
    assert attempts == [1, 2]
    assert await remaining(instance) == []


@simulated(12)
async def test_assigned_queues_are_read_paused_and_sought(instance):
    settings = ConsumerSettings(local_retry_delay=7)
    async with Consumer(instance, GROUP, start="first", ack="manual", settings=settings) as members:
        with pytest.raises(ConfigError, match="call `assign` before iterating"):
            aiter(members)
        queues = await members.queues_of(TOPIC)
        await members.assign(queues[:1])
        loop = aiter(members)
        first, second, third = [await anext(loop) for _ in range(3)]
        assert {item.queue for item in (first, second, third)} == {queues[0]}
        assert members.position(queues[0]) == 3
        await members.seek(queues[0], 1)
        await first.ack()  # does not count: the queue is read from another offset
        again = await anext(loop)
        assert (again.queue_offset, again.attempt) == (1, 1)
        assert (await anext(loop)).queue_offset == 2
        await again.retry()  # by this consumer: it does not read the retry topic
        repeated = await anext(loop)
        assert (repeated.queue_offset, repeated.attempt, repeated.message_id) == (1, 2, again.message_id)
        members.pause(queues[:1])
        await members.seek_to_begin(queues[0])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await anext(loop)
        members.resume(queues[:1])
        assert (await anext(loop)).queue_offset == 0


@simulated(8)
async def test_an_orderly_consumer_delivers_at_once_after_a_seek(instance):
    async with consumer(instance, orderly=True, ack="manual") as members:
        loop = aiter(members)
        first = await anext(loop)
        await first.ack()
        sought_at = asyncio.get_running_loop().time()
        for queue in members.queues:
            await members.seek_to_begin(queue)
        assert (await anext(loop)).queue_offset == 0
        assert (
            asyncio.get_running_loop().time() - sought_at < 5
        )  # a queue without its lock would wait for the next renewal


@pytest.mark.parametrize("seed", range(4))
def test_every_message_is_consumed_at_least_once_while_members_come_and_go(seed: int):
    come_and_go(seed)


def test_an_offset_that_passes_delivered_messages_is_detected(monkeypatch):
    plain = OffsetStore.update
    monkeypatch.setattr(OffsetStore, "update", lambda self, queue, offset: plain(self, queue, offset + 3))
    with pytest.raises(AssertionError, match="lost"):
        for seed in range(4):
            come_and_go(seed)


def come_and_go(seed: int) -> None:
    """Run members that stop, are killed and cancelled; loops in two modes, batches; a broker that restarts."""
    consumed: Counter[bytes] = Counter()
    total = 400

    async def member(world, process, told, auto):
        settings = ConsumerSettings(consume_timeout=90, commit_interval=2)
        async with (
            world.instance(process) as instance,
            consumer(instance, ack="auto" if auto else "manual", settings=settings) as members,
        ):

            async def iterate():
                if auto:
                    async for batch in members.batches(5, timeout=0.2):
                        await asyncio.sleep(world.rng.uniform(0, 1))
                        consumed.update(item.body for item in batch)
                    return
                async for item in members:
                    await asyncio.sleep(world.rng.uniform(0, 0.5))
                    lot = world.rng.random()
                    if lot < 0.03:
                        await item.retry(delay_level=1)
                    elif lot > 0.05:  # between: forgotten, and delivered again at its deadline
                        consumed[item.body] += 1
                        await item.ack()

            loops = [asyncio.ensure_future(iterate()) for _ in range(3)]
            await told.wait()
            if world.rng.random() < 0.5:
                loops[0].cancel()
            members.stop()
            await asyncio.wait(loops)

    async def run(world: VirtualCluster) -> None:
        await world.start()
        shop = world.process("shop")
        ended = []
        sending = shop.start(send(world, shop))
        members = []
        for number in range(14):
            told = asyncio.Event()
            process = world.process(f"member-{number}")
            ended.append(process.start(member(world, process, told, number % 2 == 0)))
            members.append((process, told))
            await asyncio.sleep(world.rng.uniform(1, 20))
            if len(members) > 3:
                process, told = members.pop(world.rng.randrange(len(members)))
                if world.rng.random() < 0.4:
                    process.kill()
                else:
                    told.set()
            if number == 7:
                await world.broker.stop()
                await world.broker.start()
        await sending
        for _ in range(2_000):
            await asyncio.sleep(1)
            if len(consumed) == total:
                break
        assert len(consumed) == total, "messages were lost"
        for _, told in members:
            told.set()
        for outcome in ended[-3:]:
            with suppress(Exception):
                await outcome

    async def send(world, process):
        async with world.instance(process) as instance, Producer(instance, "shop") as producer:
            for number in range(total):
                while True:
                    try:
                        await producer.send(Message(topic=TOPIC, body=b"%d" % number))
                        break
                    except ArianeError:  # the broker restarts
                        await asyncio.sleep(1)
                await asyncio.sleep(0.2)

    with virtual_cluster(seed) as world:
        world.run(run(world))
    assert sum(consumed.values()) < 2 * total, "most messages were repeated"
