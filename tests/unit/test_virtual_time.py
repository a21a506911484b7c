"""The virtual event loop, its processes and its network: guarantees for tests that use them."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from ariane.client.instance.settings import ConsumerSettings
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.errors import ConnectionLost
from ariane.model.message import Message
from ariane.net.connection import Reply
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.server import RemotingServer
from ariane.testing.clock import EPOCH_MS
from ariane.testing.virtual import virtual_time
from ariane.testing.virtual.virtual_cluster import virtual_cluster
from ariane.testing.virtual.virtual_network import VirtualNetwork
from ariane.testing.virtual.virtual_time import ProcessKilled, VirtualClock, VirtualLoop

SERVER = "10.0.0.9"


def play(act):
    loop = VirtualLoop()
    loop.network = VirtualNetwork(loop, Random(1))
    try:
        return loop.run_until_complete(act(loop))
    finally:
        loop.close()


def test_the_clock_jumps_to_the_next_timer():
    async def act(loop):
        clock = VirtualClock(loop, wall_offset_ms=5)
        before = clock.now_ms()
        await clock.sleep(3600)
        assert clock.monotonic() == 3600
        assert clock.now_ms() - before == 3_600_000
        assert before == EPOCH_MS + 5
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.sleep(11)
        assert loop.time() == 3610

    play(act)


def test_callbacks_due_at_the_same_time_run_in_the_order_of_scheduling():
    async def act(loop):
        seen = []
        for number in range(5):
            loop.call_at(7.0, seen.append, number)
        await asyncio.sleep(8)
        assert seen == [0, 1, 2, 3, 4]
        assert await asyncio.to_thread(loop.time) == 8

    play(act)


def test_waiting_for_an_event_that_never_occurs_is_an_error():
    async def act(loop):
        await loop.create_future()

    with pytest.raises(RuntimeError, match="Deadlock: every task waits"):
        play(act)


def test_a_loop_that_never_waits_is_an_error(monkeypatch):
    monkeypatch.setattr(virtual_time, "SAME_INSTANT_MAX", 1_000)

    async def act(loop):
        while True:
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="without waiting"):
        play(act)


def test_a_paused_process_does_not_run_while_time_passes():
    async def act(loop):
        ticks = []

        async def tick():
            while True:
                await asyncio.sleep(1)
                ticks.append(loop.time())

        process = loop.process("clockwork")
        process.start(tick())
        await asyncio.sleep(2.5)
        process.pause()
        await asyncio.sleep(10)
        assert ticks == [1, 2]
        process.resume()
        await asyncio.sleep(2)
        assert ticks == [1, 2, 12.5, 13.5]
        process.kill()

    play(act)


def test_a_killed_process_stops_and_its_waiters_are_notified():
    async def act(loop):
        seen = []

        async def work():
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(5))
                    await asyncio.sleep(10)
                seen.append("done")
            finally:
                await asyncio.sleep(1)
                seen.append("said goodbye")

        process = loop.process("worker")
        outcome = process.start(work())
        await asyncio.sleep(1)
        process.kill()
        with pytest.raises(ProcessKilled, match="worker"):
            await outcome
        with pytest.raises(ProcessKilled, match="start another"):
            process.start(work())
        await asyncio.sleep(100)
        assert seen == []

    play(act)


def test_the_result_or_error_of_a_process_is_passed_to_its_waiters():
    async def act(loop):
        async def fail():
            raise ValueError("no")

        assert await loop.process("a").start(asyncio.sleep(1, "yes")) == "yes"
        with pytest.raises(ValueError, match="no"):
            await loop.process("b").start(fail())

    play(act)


def serving(loop, answer=lambda command, peer: Reply(body=command.body)):
    """A server of code 1 in a process of its own."""
    process = loop.process("server", SERVER)

    async def serve():
        async with RemotingServer({1: answer}, SERVER, 1000):
            await asyncio.sleep(1e6)

    process.start(serve())
    return process


async def asking(body=b"hello", timeout_ms=3000) -> bytes:
    async with ConnectionPool() as peers:
        return (await peers.request(f"{SERVER}:1000", 1, body=body, timeout_ms=timeout_ms)).body


def test_programs_communicate_over_the_network():
    async def act(loop):
        server, client = serving(loop), loop.process("client", "10.0.0.8")
        await asyncio.sleep(1)
        large = bytes(5_000_000)
        assert await client.start(asking(large)) == large
        assert 1 < loop.time() < 1.1
        with pytest.raises(RuntimeError, match="belong to processes"):
            await asking()
        server.kill()

    play(act)


def test_connections_fail_without_a_listener_after_a_kill_and_after_a_machine_loss():
    async def act(loop):
        client = loop.process("client", "10.0.0.8")
        with pytest.raises(ConnectionLost, match="refused"):
            await client.start(asking())

        async def wait(command, peer):
            await asyncio.sleep(1e6)

        server = serving(loop, wait)
        await asyncio.sleep(1)
        request = client.start(asking(timeout_ms=60_000))
        await asyncio.sleep(1)
        server.kill()
        with pytest.raises(ConnectionLost, match="reset"):
            await request
        assert loop.time() < 3

        server = serving(loop, wait)
        await asyncio.sleep(1)
        request = client.start(asking(timeout_ms=60_000))
        await asyncio.sleep(1)
        began = loop.time()
        loop.network.vanish(server)
        with pytest.raises(Exception, match="60000 ms"):
            await request
        assert loop.time() - began > 58
        with pytest.raises(ConnectionLost, match="within 3000 ms"):
            await client.start(asking())
        serving(loop)
        await asyncio.sleep(1)
        assert await client.start(asking()) == b"hello"

    play(act)


def test_frames_can_be_lost_or_delayed():
    async def act(loop):
        client = loop.process("client", "10.0.0.8")
        serving(loop)
        await asyncio.sleep(1)
        loop.network.delay_s = lambda source, target: 0.25 if target == SERVER else 0.5
        assert await client.start(asking()) == b"hello"
        assert loop.time() == pytest.approx(2.0)  # to connect, to ask, to answer
        loop.network.is_lost = lambda frame: b"hello" in frame
        with pytest.raises(Exception, match="3000 ms"):
            await client.start(asking())

    play(act)


def test_a_peer_that_does_not_read_blocks_the_writer():
    async def act(loop):
        server, client = serving(loop), loop.process("client", "10.0.0.8")
        await asyncio.sleep(1)

        async def flood():
            async with ConnectionPool() as peers:
                connection = await peers.connect(f"{SERVER}:1000")
                loop.call_later(5, server.pause)
                await asyncio.sleep(6)
                requests = [connection.request_nowait(1, body=bytes(1_000_000), timeout_ms=90_000) for _ in range(6)]
                await asyncio.sleep(1)
                is_full = not connection.is_writable
                loop.call_later(1, server.resume)
                await asyncio.gather(*requests)
                return is_full, connection.is_writable

        assert await client.start(flood()) == (True, True)

    play(act)


# --- the whole cluster ---


async def consumed_over_a_broker_restart(world, how):
    await world.start()
    seen = []

    async def listener(messages):
        seen.extend(message.body for message in messages)

    async def sell():
        async with world.instance(shop) as instance, Producer(instance, "shop") as producer:
            for number in range(4):
                await producer.send(Message(topic="T", body=b"%d" % number), order_key="one")

    async def buy():
        settings = ConsumerSettings(suspend_time=1, pull_timeout=6)
        async with (
            world.instance(buyer) as instance,
            PushConsumer(instance, "g", subscriptions={"T": "*"}, listener=listener, start="first", settings=settings),
        ):
            await asyncio.sleep(1e6)

    shop, buyer = world.process("shop"), world.process("buyer")
    await shop.start(sell())
    await how(world.broker)
    await asyncio.sleep(5)
    await world.broker.start()
    buyer.start(buy())
    await asyncio.sleep(60)
    assert seen == [b"0", b"1", b"2", b"3"]


async def stopped(broker):
    await broker.stop()


async def killed(broker):
    broker.kill()


async def lost_power(broker):
    broker.lose_power()


@pytest.mark.parametrize("how", [stopped, killed, lost_power])
def test_a_broker_restarts_on_its_disk(how):
    runs = []
    for _ in range(2):
        with virtual_cluster(seed=3, flush_disk_type="SYNC_FLUSH") as world:
            world.run(consumed_over_a_broker_restart(world, how))
            runs.append(world.loop.callbacks)
    assert runs[0] == runs[1], "the same seed gave another run"
