"""Power is lost at every change of a workload of delayed messages, while they are sent, cancelled and delivered.

Whichever unflushed data survives: every acknowledged message is delivered, none early, none twice unless its delivery was lost,
and none whose cancellation was acknowledged.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import ci_form
from ariane.broker.delivery.delayed_delivery import DelayLimits, DeliveryLoop, schedule
from ariane.errors import ReplyError
from ariane.model import host
from ariane.protocol.records import record
from ariane.store.delays import pending_deliveries
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData

HOST = host.pack("127.0.0.1", 10911)
START_MS = 1_700_000_000_000
SEEDS = range(1, 1 + ci_form.number("ARIANE_SEEDS", short=1, long=2))
FATES = [(SurvivingData.NONE, 0), (SurvivingData.ALL, 0), *((SurvivingData.SOME, seed) for seed in SEEDS)]
DELAYS_MS = (3, 20)


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RUN_MIN", 3), ("RUN_MAX", 4), ("BLOCK", 2), ("MERGE_THRESHOLD", 2), ("MERGE_ENTRIES_MAX", 2)):
        monkeypatch.setattr(pending_deliveries, name, value)


class World:
    """A producer's view of its messages, and the clock."""

    def __init__(self, flush: str) -> None:
        self.clock = FakeClock(START_MS)
        self.config = StoreConfig(
            root="/store", commit_log_size=2048, consume_queue_size=200, flush=flush, delays_ms=DELAYS_MS
        )  # type: ignore[arg-type]
        self.due_ms: dict[bytes, int] = {}
        self.acknowledged: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        self.asked_to_cancel: set[bytes] = set()

    def open(self, disk: FakeDisk) -> tuple[MessageStore, DeliveryLoop]:
        store = open_store(self.config, disk, now_ms=self.clock.now_ms, store_host=HOST)
        store.dispatch_pending()
        return store, DeliveryLoop(
            store=store,
            listener=SimpleNamespace(on_stored=lambda: None, on_delivered=lambda due, draft, size: None),
            clock=self.clock,
        )


def workload(world: World, store: MessageStore, deliveries: DeliveryLoop, seed: int) -> None:
    chance = random.Random(seed)
    waiting: set[bytes] = set()
    cancels: set[bytes] = set()
    numbers: list[tuple[int, int, bytes]] = []
    for step in range(26):
        world.clock.advance_ms(chance.randrange(3))
        body = b"%d.%d" % (seed, step)
        level = step % 5 == 4
        delay_ms = DELAYS_MS[step % 2] if level else chance.randrange(1, 30)
        own = {"DELAY": str(step % 2 + 1)} if level else {"TIMER_DELAY_MS": str(delay_ms)}
        floor_ms = max(store.last_ms, store.delayed.min_due_ms)
        draft = RecordDraft(topic="T", queue_id=0, body=body, born_ms=1, born_host=HOST)
        draft = schedule(draft, own, world.clock.now_ms(), DelayLimits(2, floor_ms, 10**9))
        world.due_ms[body] = world.clock.now_ms() + delay_ms
        placed = store.put(draft)
        waiting.add(body)
        if not level:
            numbers.append((placed.queue_offset, int(own["TIMER_OUT_MS"]), body))
        if step % 7 == 3:
            number, due_ms, victim = chance.choice(numbers)
            try:
                deliveries.cancel(number, due_ms, HOST)
                world.asked_to_cancel.add(victim)
                cancels.add(victim)
            except ReplyError:
                assert (
                    world.clock.now_ms() >= world.due_ms[victim] or victim in world.asked_to_cancel or victim in waiting
                )
        store.dispatch_pending()
        deliveries.deliver(5)
        if step % 2:
            flush = store.begin_flush()
            if flush is not None:
                flush.run()
                store.end_flush(flush, None)
            world.acknowledged |= waiting
            world.cancelled |= cancels
            waiting, cancels = set(), set()
            store.dispatch_pending()
        if step % 3 == 2:
            store.write_checkpoint()


def bodies(store: MessageStore) -> Iterator[record.Record]:
    store.dispatch_pending()
    for position in range(store.max_offset("T", 0)):
        data = store.read_queue_record("T", 0, position)
        if data is not None:  # else it was never flushed, and lost before one that was kept
            yield record.decode(data)


def check(world: World, disk: FakeDisk) -> None:
    """Start twice (before and after the remaining messages are due), deliver everything, and compare."""
    store, deliveries = world.open(disk)
    deliveries.deliver(100)
    store.close()
    store, deliveries = world.open(disk)
    world.clock.advance_ms(1000)
    store.flush()
    store.dispatch_pending()
    while deliveries.deliver(10):
        pass
    store.flush()
    result = Counter(item.body for item in bodies(store))
    early = [item.body for item in bodies(store) if item.store_ms < world.due_ms[item.body]]
    assert not early
    assert not {body: count for body, count in result.items() if count > 1}
    assert set(result) <= set(world.due_ms)
    assert world.acknowledged - world.asked_to_cancel <= set(result)
    assert store.delayed.next_due_ms() is None
    assert not world.cancelled & set(result)


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize(("fate", "chance_seed"), FATES)
def test_power_lost_at_every_change(flush: str, fate: SurvivingData, chance_seed: int) -> None:
    cases = 0
    for position in range(1, 10_000):
        world = World(flush)
        disk = FakeDisk()
        disk.power_off_at = position
        try:
            store, deliveries = world.open(disk)
            workload(world, store, deliveries, seed=1)
            store.close()
            break
        except PowerLost:
            cases += 1
            check(world, disk.after_power_loss(fate, random.Random(chance_seed)))
    assert cases > 100


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("seed", range(12))
def test_delayed_messages_survive_a_kill(flush: str, seed: int) -> None:
    world = World(flush)
    disk = FakeDisk()
    for part in range(3):
        store, deliveries = world.open(disk)
        workload(world, store, deliveries, seed=seed * 10 + part)
        store.flush()
        disk = disk.after_kill()
    check(world, disk)
