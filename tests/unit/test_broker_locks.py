"""Queue locks of a whole broker across restarts and a full disk; in virtual time."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ariane.client.membership.queue_locks import QueueLockClient
from ariane.client.producer import Producer
from ariane.model.message import MessageQueue
from ariane.testing.virtual.virtual_cluster import VirtualCluster, virtual_cluster

QUEUE = MessageQueue("T", "broker-a", 0)


class Clients:
    """Members of one group, each a client id."""

    def __init__(self, world: VirtualCluster) -> None:
        self._world = world
        self._process = world.process("clients")

    async def lock(self, name: str) -> set[MessageQueue]:
        return await self._process.start(self._with_locks(name, lambda locks: locks.lock([QUEUE])))

    async def unlock(self, name: str) -> None:
        await self._process.start(self._with_locks(name, lambda locks: locks.unlock([QUEUE])))

    async def _with_locks(self, name, act):
        async with self._world.instance(self._process, name) as instance, Producer(instance, name) as producer:
            await producer.queues("TBW102")
            locked = await act(QueueLockClient(instance.peers, instance.routes, "g", name))
            return locked and locked.held


async def stopped(broker):
    await broker.stop()


async def killed(broker):
    broker.kill()


async def lost_power(broker):
    broker.lose_power()


@pytest.mark.parametrize(
    ("how", "flush"),
    [(stopped, "ASYNC_FLUSH"), (killed, "ASYNC_FLUSH"), (killed, "SYNC_FLUSH"), (lost_power, "SYNC_FLUSH")],
)
def test_a_restarted_broker_restores_lock_owners(how, flush):
    async def scenario(world):
        await world.start()
        clients = Clients(world)
        assert await clients.lock("one") == {QUEUE}
        await how(world.broker)
        await asyncio.sleep(1)
        await world.broker.start()
        await asyncio.sleep(40)
        assert await clients.lock("two") == set()
        assert await clients.lock("one") == {QUEUE}
        await asyncio.sleep(61)
        assert await clients.lock("two") == {QUEUE}

    with virtual_cluster(flush_disk_type=flush) as world:
        world.run(scenario(world))


@pytest.mark.parametrize("how", [stopped, killed, lost_power])
def test_a_queue_unlocked_seconds_before_a_restart_is_free_afterwards(how):
    async def scenario(world):
        await world.start()
        clients = Clients(world)
        assert await clients.lock("one") == {QUEUE}
        await clients.unlock("one")
        await asyncio.sleep(6)  # flushConsumerOffsetInterval
        await how(world.broker)
        await asyncio.sleep(1)
        await world.broker.start()
        assert await clients.lock("two") == {QUEUE}

    with virtual_cluster() as world:
        world.run(scenario(world))


def test_a_full_disk_does_not_prevent_orderly_consumption(caplog):
    def full(kind: str, path: str) -> None:
        if "/config/changes." in path or "queueLocks.json" in path:
            raise OSError(errno.ENOSPC, "no space left on device", path)

    async def scenario(world):
        await world.start()
        clients = Clients(world)
        world.disk.fail = full
        assert await clients.lock("one") == {QUEUE}
        assert "lost if this broker restarts" in caplog.text
        assert await clients.lock("two") == set()
        world.disk.fail = lambda kind, path: None
        await asyncio.sleep(6)  # saved with the rest, once there is room
        world.broker.kill()
        await world.broker.start()
        assert await clients.lock("two") == set()

    with virtual_cluster() as world:
        world.run(scenario(world))
