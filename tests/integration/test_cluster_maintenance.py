"""Moves of queues and rolling restarts of a real cluster, while clients send and consume."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

import pytest

from ariane import Admin, ClientSettings, ConsumerSettings, Producer, PushConsumer
from ariane.cluster.queue_moves import PlannedMove, QueueMoveOperations
from ariane.cluster.rolling_restart import RestartStep
from ariane.errors import NotFound, ServerUnavailable, UsageError
from ariane.model.message import ReceivedMessage
from ariane.testing import AsyncLocalCluster

KEYS = 8
REFRESH_S = 0.2
CLIENT = ClientSettings(route_refresh_interval=REFRESH_S)
QUICK = ConsumerSettings(rebalance_interval=0.2, commit_interval=0.1)


def in_event_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def ignore(step: str) -> None:
    del step


class KeyedTraffic:
    """Sends a growing number to each key, and records in which order a group gets them first."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self._namesrv, self._topic = namesrv, topic
        self.sent: dict[str, int] = defaultdict(int)  # by key: numbers below it are acknowledged
        self.consumed: dict[str, list[int]] = defaultdict(list)  # each number once
        self.brokers: set[str] = set()  # of consumed messages
        self.failed = 0
        self.gate = asyncio.Event()  # while it is not set, nothing of broker-a is consumed
        self.gate.set()

    @contextlib.asynccontextmanager
    async def running(self, *, start: str = "last") -> AsyncIterator[None]:
        consumer = PushConsumer(
            self._namesrv, "stock", {self._topic: "*"}, self._listen, start=start, orderly=True,  # type: ignore[arg-type]
            client=CLIENT, settings=QUICK,
        )  # fmt: skip
        async with Producer(self._namesrv, "shop", client=CLIENT) as producer, consumer:
            tasks = [asyncio.create_task(self._send(producer, f"K{key}")) for key in range(KEYS)]
            try:
                await self.consumed_more()
                yield
                await self.consumed_more()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            async with asyncio.timeout(30):
                while any(len(self.consumed[key]) < count for key, count in self.sent.items()):
                    await asyncio.sleep(0.01)

    async def consumed_more(self) -> None:
        """Wait until each key was consumed once more."""
        counts = {f"K{key}": len(self.consumed[f"K{key}"]) for key in range(KEYS)}
        async with asyncio.timeout(30):
            while any(len(self.consumed[key]) <= count for key, count in counts.items()):
                await asyncio.sleep(0.01)

    async def _send(self, producer: Producer, key: str) -> None:
        while True:
            try:
                await producer.send(self._topic, str(self.sent[key]).encode(), keys=[key], order_key=key)
                self.sent[key] += 1
            except Exception:
                self.failed += 1
            await asyncio.sleep(0.002)

    async def _listen(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            if message.queue.broker == "broker-a":
                await self.gate.wait()
            self.brokers.add(message.queue.broker)
            key, number = message.keys[0], int(message.body)
            if number not in self.consumed[key][-1000:]:
                self.consumed[key].append(number)

    def check(self) -> None:
        assert self.failed == 0
        for key, numbers in self.consumed.items():
            assert numbers == list(range(len(numbers))), key
            assert len(numbers) >= self.sent[key]


async def brokers_of(admin: Admin, topic: str) -> dict[str, int]:
    return {data.broker_name: data.perm for data in (await admin.fetch_route(topic)).queue_datas}


async def has_messages(admin: Admin) -> bool:
    """Return whether the new queues have messages."""
    queues = (await admin.fetch_bounds("orders")).queues
    return any(queue.max_offset for queue in queues if queue.broker != "broker-a")


@in_event_loop
async def test_a_moved_topic_keeps_the_order_of_each_key_and_loses_nothing():
    async with AsyncLocalCluster(brokers=3) as cluster, Admin(cluster.namesrv) as admin:
        (first,) = await admin.select_brokers(broker="broker-a")
        await admin.create_topic("orders", queues=3, servers=[first])
        traffic = KeyedTraffic(cluster.namesrv, "orders")
        async with traffic.running(start="first"):
            steps: list[str] = []
            traffic.gate.clear()  # the former queues have messages that are not consumed when the new ones get some
            move = await admin.plan_move("orders", ["broker-b", "broker-c"], queues=2)
            moving = asyncio.create_task(admin.move_queues(move, steps.append, route_refresh_s=REFRESH_S))
            async with asyncio.timeout(30):
                while not (steps and steps[-1].startswith("wait: stock on broker-a") and await has_messages(admin)):
                    await asyncio.sleep(0.01)
            assert await brokers_of(admin, "orders") == {"broker-a": 4, "broker-b": 2, "broker-c": 2}, (
                "consumers see no new queue"
            )
            traffic.gate.set()
            await moving
            assert await brokers_of(admin, "orders") == {"broker-a": 4, "broker-b": 6, "broker-c": 6}
            before = {queue.broker: queue.max_offset for queue in (await admin.fetch_bounds("orders")).queues}
            await traffic.consumed_more()
        traffic.check()
        after = {queue.broker: queue.max_offset for queue in (await admin.fetch_bounds("orders")).queues}
        assert after["broker-a"] == before["broker-a"]
        assert steps[0] == "send messages of orders to 2 queues on broker-b, broker-c instead of broker-a"
        assert steps[-1] == "let consumers read orders on broker-b, broker-c"
        assert (await admin.plan_move("orders", ["broker-b", "broker-c"])).is_done


async def skip_wait(*_: object) -> None:
    """Do not wait for the former queues."""


def test_new_queues_that_are_readable_too_early_are_found_by_the_order_of_keys(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(QueueMoveOperations, "_wait_consumed", skip_wait)

    @in_event_loop
    async def move() -> None:
        async with AsyncLocalCluster(brokers=2) as cluster, Admin(cluster.namesrv) as admin:
            (first,) = await admin.select_brokers(broker="broker-a")
            await admin.create_topic("orders", queues=3, servers=[first])
            traffic = KeyedTraffic(cluster.namesrv, "orders")
            async with traffic.running(start="first"):
                traffic.gate.clear()
                await admin.move_queues(
                    await admin.plan_move("orders", ["broker-b"]), ignore, route_refresh_s=REFRESH_S
                )
                async with asyncio.timeout(30):
                    while "broker-b" not in traffic.brokers:
                        await asyncio.sleep(0.01)
                traffic.gate.set()
            with pytest.raises(AssertionError, match="K"):
                traffic.check()

    move()


@in_event_loop
async def test_an_interrupted_move_continues():
    async with AsyncLocalCluster(brokers=2) as cluster, Admin(cluster.namesrv) as admin:
        (first,) = await admin.select_brokers(broker="broker-a")
        await admin.create_topic("orders", queues=2, servers=[first])
        traffic = KeyedTraffic(cluster.namesrv, "orders")
        async with traffic.running(start="first"):

            def stop_while_waiting(step: str) -> None:
                if step.startswith("wait until all groups"):
                    raise InterruptedError

            with pytest.raises(InterruptedError):
                move = await admin.plan_move("orders", ["broker-b"])
                await admin.move_queues(move, stop_while_waiting, route_refresh_s=REFRESH_S)
            assert await brokers_of(admin, "orders") == {"broker-a": 4, "broker-b": 2}
            move = await admin.plan_move("orders", ["broker-b"])
            assert (move.writable, [server.broker for server in move.hidden]) == ((), ["broker-b"])
            await admin.move_queues(move, ignore, route_refresh_s=REFRESH_S)
        traffic.check()


@in_event_loop
async def test_a_move_that_would_mix_keys_or_move_nothing_is_refused():
    async with AsyncLocalCluster(brokers=2) as cluster, Admin(cluster.namesrv) as admin:
        await admin.create_topic("orders")
        with pytest.raises(UsageError, match="has queues of orders that consumers read"):
            await admin.plan_move("orders", ["broker-b"])
        with pytest.raises(UsageError, match="has all queues"):
            await admin.plan_move("orders", ["broker-a", "broker-b"])
        with pytest.raises(NotFound, match="broker-x"):
            await admin.plan_move("orders", ["broker-x"])


@in_event_loop
async def test_a_dry_run_of_a_move_names_its_steps_and_changes_nothing():
    async with AsyncLocalCluster(brokers=2) as cluster:
        async with Admin(cluster.namesrv) as admin:
            (first,) = await admin.select_brokers(broker="broker-a")
            await admin.create_topic("orders", queues=2, servers=[first])
        async with Admin(cluster.namesrv, is_dry_run=True) as admin:
            steps: list[str] = []
            move: PlannedMove = await admin.plan_move("orders", ["broker-b"])
            await admin.move_queues(move, steps.append)
            assert len(steps) == 4
            assert await brokers_of(admin, "orders") == {"broker-a": 6}


@in_event_loop
async def test_a_rolling_restart_fails_no_send():
    async with AsyncLocalCluster(brokers=2, slaves=1) as cluster, Admin(cluster.namesrv) as admin:
        await admin.create_topic("orders", queues=2)
        traffic = KeyedTraffic(cluster.namesrv, "orders")
        servers = {broker.addr: broker for broker in (*cluster.brokers, *cluster.slaves)}
        restarted: list[str] = []

        async def restart(step: RestartStep) -> None:
            restarted.append(f"{step.server.broker}:{step.server.broker_id}")
            await asyncio.to_thread(servers[step.server.addr].stop)
            await asyncio.to_thread(servers[step.server.addr].start)

        plan = await admin.plan_restart()
        assert plan.only_there == {}
        async with traffic.running(start="first"):
            await admin.execute_restart(plan.steps, restart, ignore, route_refresh_s=REFRESH_S)
        assert restarted == ["broker-a:1", "broker-a:0", "broker-b:1", "broker-b:0"]
        assert traffic.failed == 0
        assert await brokers_of(admin, "orders") == {"broker-a": 6, "broker-b": 6}


@in_event_loop
async def test_a_plan_names_topics_without_another_broker_and_servers_that_do_not_respond():
    async with AsyncLocalCluster(brokers=2, slaves=1) as cluster, Admin(cluster.namesrv) as admin:
        (first,) = await admin.select_brokers(broker="broker-a")
        await admin.create_topic("orders", servers=[first])
        plan = await admin.plan_restart(brokers=["broker-a"])
        assert plan.only_there == {"broker-a": ("orders",)}
        assert [step.action for step in plan.steps] == ["drain", "restart", "restart", "restore"]
        cluster.slaves[1].lose_requests()
        async with Admin(cluster.namesrv, timeout_ms=100) as impatient:
            with pytest.raises(ServerUnavailable, match="Broker broker-b .* did not respond"):
                await impatient.plan_restart()
