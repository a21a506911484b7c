"""POP under kills: consumers of a concurrent and of an ordered group, at a broker that is killed, or loses its power, again and
again, over a slow network. Real name server and broker, in virtual time. Whatever happens:

    no send is lost               a message whose send was acknowledged is consumed by both groups in the end
    no consumption comes back     a message is not delivered after its acknowledgement was answered before it was visible again
    none is delivered twice       a delivered message is invisible to others until its time has come (also over a power loss)
    none overtakes (ordered)      all messages before a delivered one were acknowledged

`ARIANE_SEEDS=10 POP_KILLS=1000` in the environment make it longer; `POP_SEED=7` runs one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

import ci_form
from ariane.broker.handlers.reading.pop import PopHandler
from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.state.pop_queue import PopQueue
from ariane.broker.state.saved.change_records import MessageHidden, MessagesAcknowledged, MessagesTaken
from ariane.errors import ArianeError
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import OffsetResponse, QueryConsumerOffset, QueueRef, SendMessage
from ariane.protocol.requests.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
)
from ariane.testing.disk import SurvivingData
from ariane.testing.virtual.virtual_cluster import VirtualCluster, virtual_cluster

SEEDS = ci_form.number("ARIANE_SEEDS", short=1, long=10)
KILLS = int(os.environ.get("POP_KILLS") or (100 if ci_form.IS_LONG else 25))
CHOSEN = [int(os.environ["POP_SEED"])] if "POP_SEED" in os.environ else list(range(SEEDS))

BROKER, TOPIC, QUEUES = "10.0.0.2:10911", "Jobs", 3
CONCURRENT, ORDERED = "workers", "sellers"
MEMBERS = 3  # of each group
INVISIBLE_MS = 8_000
TIMEOUT_MS = 3_000
SETTLE_S = 600.0


class Place(NamedTuple):
    queue_id: int
    offset: int


class Delivery(NamedTuple):
    """A message that a member has received, with the parts of its handle."""

    place: Place
    start: int
    taken_ms: int
    invisible_ms: int
    revive_queue: int

    @property
    def visible_ms(self) -> int:
        return self.taken_ms + self.invisible_ms

    @property
    def handle(self) -> str:
        numbers = f"{self.start} {self.taken_ms} {self.invisible_ms} {self.revive_queue} 0"
        return f"{numbers} broker-a {self.place.queue_id} {self.place.offset}"


@dataclass
class Ledger:
    """What a group was given, what it has acknowledged, and the violations found."""

    group: str
    last: dict[Place, Delivery] = field(default_factory=dict)
    acknowledged: dict[Place, int] = field(default_factory=dict)  # by the broker, at this time
    asked: set[Place] = field(default_factory=set)  # an acknowledgement was sent
    bodies: dict[Place, bytes] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def receive(self, deliveries: list[Delivery], *, is_repeated: bool) -> None:
        for delivery in deliveries:
            place, taken_ms = delivery.place, delivery.taken_ms
            self.counts["deliveries"] += 1
            if place in self.acknowledged and taken_ms > self.acknowledged[place]:
                self.faults.append(f"{place} is delivered at {taken_ms}, acknowledged at {self.acknowledged[place]}")
            former = self.last.get(place)
            if former is not None and former.taken_ms < taken_ms:
                self.counts["redeliveries"] += 1
                if taken_ms < former.visible_ms and not is_repeated:
                    self.faults.append(f"{place} is delivered at {taken_ms}, invisible until {former.visible_ms}")
            if former is None or former.taken_ms < taken_ms:
                self.last[place] = delivery
        if self.group == ORDERED:
            for place in {delivery.place.queue_id: delivery.place for delivery in reversed(deliveries)}.values():
                before = {Place(place.queue_id, offset) for offset in range(place.offset)}
                if missing := before - self.asked:
                    self.faults.append(f"{place} is delivered before {min(missing)}")


class Member:
    """A consumer in a process of its own: takes messages, and acknowledges, refuses or forgets them."""

    def __init__(self, world: VirtualCluster, ledger: Ledger, number: int) -> None:
        self.world, self.ledger = world, ledger
        self.rng = world.rng
        self.attempt, self.attempts = "", 0
        self.is_careful = False  # acknowledges everything
        self.process = world.process(f"{ledger.group}-{number}")
        self.process.start(self.run())

    async def run(self) -> None:
        while True:
            # A connection to a machine that lost its power stays silent: another one follows each failure.
            with contextlib.suppress(ArianeError, OSError):
                async with ConnectionPool() as self.peers:
                    while True:
                        await self.take()
            await asyncio.sleep(self.rng.uniform(0.05, 1.0))

    async def call(self, code: int, header: Any) -> Command:
        return await self.peers.request(BROKER, code, header, timeout_ms=TIMEOUT_MS)

    async def take(self) -> None:
        is_ordered, is_repeated = self.ledger.group == ORDERED, bool(self.attempt)
        if not is_repeated:
            self.attempts += 1
            self.attempt = f"{self.process.name}-{self.attempts}"
        elif self.rng.random() < 0.3:  # another process in its place
            self.attempt = ""
            return
        queue_id = self.rng.randrange(QUEUES) if is_ordered else -1
        header = PopMessage(
            self.ledger.group,
            TOPIC,
            queue_id,
            self.rng.randint(1, 6),
            INVISIBLE_MS,
            self.rng.choice((0, 500, 2_000)),
            order=is_ordered,
            attempt_id=self.attempt if is_ordered else None,
        )
        answer = await self.call(RequestCode.POP_MESSAGE, header)
        self.attempt = ""
        if answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.TOPIC_NOT_EXIST):
            await asyncio.sleep(self.rng.uniform(0.01, 0.3))
            return
        assert answer.code == 0, answer.remark
        deliveries = self.deliveries(answer)
        self.ledger.receive(deliveries, is_repeated=is_repeated)
        for delivery in deliveries:
            await self.handle(delivery)

    def deliveries(self, answer: Command) -> list[Delivery]:
        header = decode_header(answer, PopMessageResponse)
        starts = {int(words[1]): int(words[2]) for words in map(str.split, str(header.start_offset_info).split(";"))}
        deliveries = []
        for item in record.decode_all(answer.body):
            place = Place(item.queue_id, item.queue_offset)
            self.ledger.bodies[place] = item.body
            deliveries.append(
                Delivery(place, starts[item.queue_id], header.pop_time, header.invisible_time, header.revive_qid)
            )
        return deliveries

    async def handle(self, delivery: Delivery) -> None:
        chance = 1.0 if self.is_careful else self.rng.random()
        await asyncio.sleep(self.rng.uniform(0, 0.05 if chance > 0.05 else 10.0))
        if chance < 0.1:
            return  # forgotten
        place = delivery.place
        header = (self.ledger.group, TOPIC, place.queue_id, delivery.handle, place.offset)
        if chance < 0.3:  # it fails, or needs more time
            wait_ms = self.rng.choice((10, 1_000, 15_000))
            if self.ledger.last[place].taken_ms == delivery.taken_ms:
                soonest_ms = self.world.clock.now_ms() + wait_ms - delivery.taken_ms
                if soonest_ms < delivery.invisible_ms:
                    self.ledger.last[place] = delivery._replace(invisible_ms=soonest_ms)
            answer = await self.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTime(*header, wait_ms))
            assert answer.code == 0, answer.remark
            if wait_ms == 15_000 and self.world.clock.now_ms() < delivery.visible_ms:
                changed = decode_header(answer, ChangeInvisibleTimeResponse)
                renewed = delivery._replace(taken_ms=changed.pop_time, invisible_ms=changed.invisible_time)
                self.ledger.last[place] = renewed
                await asyncio.sleep(0 if self.is_careful else self.rng.uniform(0, 8))
                await self.acknowledge(renewed)
        else:
            await self.acknowledge(delivery)

    async def acknowledge(self, delivery: Delivery) -> None:
        place = delivery.place
        self.ledger.asked.add(place)
        header = AckMessage(self.ledger.group, TOPIC, place.queue_id, delivery.handle, place.offset)
        answer = await self.call(RequestCode.ACK_MESSAGE, header)
        assert answer.code == 0, answer.remark
        now_ms = self.world.clock.now_ms()
        if now_ms < delivery.visible_ms:
            self.ledger.acknowledged.setdefault(place, now_ms)


@dataclass
class Run:
    """A run: its groups, and the sends that were acknowledged."""

    world: VirtualCluster
    flush: str
    ledgers: tuple[Ledger, Ledger] = field(default_factory=lambda: (Ledger(CONCURRENT), Ledger(ORDERED)))
    sent: set[bytes] = field(default_factory=set)
    members: list[Member] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    is_sending: bool = True
    lag: dict[str, int] = field(default_factory=dict)  # of the groups in the end

    async def send(self) -> None:
        rng, number = self.world.rng, 0
        while self.is_sending:
            with contextlib.suppress(ArianeError, OSError):
                async with ConnectionPool() as peers:
                    while self.is_sending:
                        number += 1
                        body = b"%d" % number
                        header = SendMessage("P", TOPIC, "TBW102", QUEUES, rng.randrange(QUEUES), 0, 1, 0, None)
                        code = RequestCode.SEND_MESSAGE_V2
                        answer = await peers.request(BROKER, code, header, body, timeout_ms=TIMEOUT_MS)
                        if answer.code == 0:
                            self.sent.add(body)
                        await asyncio.sleep(rng.uniform(0.05, 0.4))
            await asyncio.sleep(0.1)

    async def play(self, kills: int) -> None:
        rng = self.world.rng
        await self.world.start()
        sender = self.world.process("sender").start(self.send())
        self.members = [Member(self.world, ledger, number) for ledger in self.ledgers for number in range(MEMBERS)]
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(1, 12))
            self.kill_member()
            kind = rng.choice(("kill", "kill", "stop", "power" if self.flush == "SYNC_FLUSH" else "kill"))
            self.counts[kind] += 1
            match kind:
                case "kill":
                    self.world.broker.kill()
                case "stop":
                    await self.world.broker.stop()
                case _:
                    self.world.broker.lose_power(rng.choice(list(SurvivingData)))
            await asyncio.sleep(rng.uniform(0, 3))
            await self.world.broker.start()
        self.is_sending = False
        await sender
        for member in self.members:
            member.is_careful = True
        end = self.world.loop.time() + SETTLE_S
        tool = self.world.process("tool")
        while self.world.loop.time() < end:
            await asyncio.sleep(5)
            self.lag = await tool.start(self.fetch_lag())
            if not any(self.lag.values()):
                break

    async def fetch_lag(self) -> dict[str, int]:
        """Return how many messages each group has not acknowledged."""
        lag = dict.fromkeys((CONCURRENT, ORDERED), 0)
        async with ConnectionPool() as peers:

            async def fetch(code: int, header: Any) -> int:
                answer = await peers.request(BROKER, code, header, timeout_ms=TIMEOUT_MS)
                return decode_header(answer, OffsetResponse).offset if answer.code == 0 else 0

            for group in lag:
                for queue_id in range(QUEUES):
                    end = await fetch(RequestCode.GET_MAX_OFFSET, QueueRef(TOPIC, queue_id))
                    header = QueryConsumerOffset(group, TOPIC, queue_id)
                    lag[group] += end - await fetch(RequestCode.QUERY_CONSUMER_OFFSET, header)
        return lag

    def kill_member(self) -> None:
        rng = self.world.rng
        if rng.random() < 0.3:
            index = rng.randrange(len(self.members))
            former = self.members[index]
            former.process.kill()
            self.members[index] = Member(self.world, former.ledger, 100 + self.counts["members killed"])
            self.counts["members killed"] += 1

    def lost(self) -> list[str]:
        """Return the acknowledged sends that no member of a group acknowledged, and what groups never consumed."""
        bodies = {ledger.group: {ledger.bodies[place] for place in ledger.asked} for ledger in self.ledgers}
        lost = [f"{group} has not consumed {missing}" for group in bodies if (missing := self.sent - bodies[group])]
        return lost + [f"{group} has a lag of {lag}" for group, lag in self.lag.items() if lag]


def play(seed: int, kills: int = KILLS) -> Run:
    flush = "SYNC_FLUSH" if seed % 2 else "ASYNC_FLUSH"
    with virtual_cluster(seed, flush_disk_type=flush, auto_create_topic_enable=True) as world:
        run = Run(world, flush)
        world.run(run.play(kills))
    return run


def faults(run: Run) -> list[str]:
    found = [f"{ledger.group}: {fault}" for ledger in run.ledgers for fault in ledger.faults]
    return found + run.lost()


@pytest.mark.parametrize("seed", CHOSEN)
def test_kills_lose_no_message_and_bring_no_consumed_one_back(seed: int) -> None:
    run = play(seed)
    assert faults(run) == []
    assert len(run.sent) > 5 * KILLS
    for ledger in run.ledgers:
        assert ledger.counts["redeliveries"] > 0, "nothing failed: the test is too mild"
    assert run.counts["kill"] + run.counts["power"] > KILLS / 3


def unwritten(kind: type) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a fault: changes of this kind are made, but not stored."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        plain = PersistentState.record_pop

        def record(self: PersistentState, *changes: Any) -> None:
            for change in changes:
                if isinstance(change, kind):
                    self.pop.apply(change)
                else:
                    plain(self, change)

        monkeypatch.setattr(PersistentState, "record_pop", record)

    return plant


def not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PopHandler, "_when_durable", lambda self, reply: reply)


def not_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PopQueue, "is_blocked", lambda self, now_ms, attempt_id: False)


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], int]] = {  # and the seed that finds it
    "an acknowledgement is not written": (unwritten(MessagesAcknowledged), 0),
    "a delivery is not written": (unwritten(MessagesTaken), 0),
    "a change of the time is not written": (unwritten(MessageHidden), 0),
    "responses do not wait for the disk": (not_awaited, 1),
    "an ordered queue is not blocked": (not_blocked, 0),
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_fault_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, seed = PLANTED[name]
    plant(monkeypatch)
    assert faults(play(seed))
