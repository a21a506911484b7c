"""Transactions on a failing disk and across restarts: a half message is committed once and checked only while it is open."""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ci_form
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.transactions import transaction_check
from ariane.broker.transactions.producer_selection import BUSY
from ariane.broker.transactions.transaction_check import TransactionChecker
from ariane.broker.transactions.transaction_service import TransactionService
from ariane.errors import MessageRefused, ReplyError, StoreError
from ariane.model import host
from ariane.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from ariane.protocol.records import properties, record
from ariane.protocol.records.record import Record
from ariane.protocol.requests.admin import ConsumerOffsetTable
from ariane.protocol.requests.messaging import COMMIT, ROLLBACK, CheckTransactionState, EndTransactionHeader
from ariane.protocol.requests.routing import TopicTable
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData

HOST = host.pack("127.0.0.1", 10911)
CONFIG = StoreConfig(root="/store", commit_log_size=8192, consume_queue_size=400, flush="async", max_message_size=4096)
CHECKS_MAX = 3
SEEDS = range(ci_form.number("ARIANE_SEEDS", short=1, long=3))
FATES = [(SurvivingData.NONE, 0), (SurvivingData.ALL, 0), *((SurvivingData.SOME, seed) for seed in SEEDS)]


class Asked:
    """Producers that record the checks they receive."""

    def __init__(self) -> None:
        self.questions: list[CheckTransactionState] = []
        self.peer: int | None = 1

    def pick(self, group: str) -> int | None:
        return self.peer

    def send_check(self, peer_id: int, header: CheckTransactionState, body: bytes) -> None:
        decoded = record.decode(body)
        assert (decoded.topic, decoded.offset, decoded.queue_offset) == (
            "T", header.commit_log_offset, header.tran_state_table_offset,
        )  # fmt: skip
        self.questions.append(header)

    def take(self) -> list[str]:
        names = [question.msg_id or "" for question in self.questions]
        self.questions.clear()
        return names


class Broker:
    """Store, transactions and check rounds without sockets, opened on the surviving data of a disk. `saved`: the contents of
    consumerOffset.json."""

    def __init__(self, disk: FakeDisk, saved: ConsumerOffsetTable | None = None, config: StoreConfig = CONFIG) -> None:
        self.disk, self.clock, self.producers = disk, FakeClock(tick_ms=1), Asked()
        self.meanwhile: Callable[[], object] = lambda: None
        self.store: MessageStore = open_store(config, disk, now_ms=self.clock.now_ms, store_host=HOST)
        self.offsets = ConsumerOffsets(saved)
        topics = TopicRegistry(TopicTable(), BrokerConfig(broker_name="a"), self.clock.now_ms)
        self.transactions = TransactionService(
            store=self.store,
            topics=topics,
            offsets=self.offsets,
            store_host=HOST,
            flusher=self,
            listener=self,
            clock=self.clock,
        )
        self.checks = TransactionChecker(
            self.transactions,
            self.producers,  # type: ignore[arg-type]
            timeout_ms=1000,
            checks_max=CHECKS_MAX,
            durability=SimpleNamespace(wait_flushed=lambda end_offset: None),
            clock=SimpleNamespace(now_ms=self.clock.now_ms, sleep=self._sleep),  # type: ignore[arg-type]
        )

    async def _sleep(self, seconds: float) -> None:
        self.meanwhile()
        await asyncio.sleep(0)

    async def flush_once(self) -> None:
        self.store.flush()

    def on_stored(self) -> None:
        self.store.dispatch_pending()

    async def ready(self) -> Broker:
        await self.transactions.rebuild()
        return self

    def half(self, name: str, **own: str) -> CheckTransactionState:
        """Store a half message. Return its reference as a check request would contain it."""
        table = {"UNIQ_KEY": name, "TRAN_MSG": "true", "PGROUP": "P", **own}
        draft = RecordDraft(topic="T", queue_id=0, body=name.encode(), born_ms=1, born_host=HOST, sys_flag=4)
        placed = self.store.put(self.transactions.redirect(draft, table))
        self.transactions.on_half_stored(placed.queue_offset)
        self.store.dispatch_pending()
        return CheckTransactionState(placed.queue_offset, placed.offset, name)

    def end(self, half: CheckTransactionState, decision: int) -> int | None:
        return self.transactions.end(
            EndTransactionHeader("P", half.tran_state_table_offset, half.commit_log_offset, decision)
        )

    async def round(self, after_ms: int = 2000) -> list[str]:
        """Run a round of checks some time later. Return the checked transactions."""
        self.clock.advance_ms(after_ms)
        await self.checks.check_all()
        return self.producers.take()

    def read(self, topic: str) -> list[Record]:
        results: list[Record] = []
        while result := self.store.get(topic, 0, len(results), 32).records:
            results += [record.decode(data) for data in result]
        return results

    def names(self, topic: str) -> list[str]:
        return [message.body.decode() for message in self.read(topic)]

    def intact(self, topic: str) -> list[str]:
        """Exclude a last record torn within its properties, which no checksum of the format covers."""
        return [message.body.decode() for message in self.read(topic) if "\0" not in message.properties]

    def saved(self) -> ConsumerOffsetTable:
        return self.offsets.table()

    def stop(self) -> ConsumerOffsetTable:
        self.transactions.close()
        self.store.close()
        return self.saved()


def play(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


# --- any order of events, with restarts, against a model ---

STEPS = st.lists(
    st.tuples(st.sampled_from(["half", "immune", "commit", "rollback", "round", "late", "stop", "kill"]), st.integers(0, 99)),
    max_size=40,
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_any_order_of_half_messages_ends_checks_and_restarts_matches_the_model(steps: list[tuple[str, int]]) -> None:
    """States are: open (with the number of checks), committed, rolled back or discarded; all copies of a half message stay
    usable."""

    async def work() -> None:
        disk = FakeDisk()
        broker = await Broker(disk).ready()
        copies: dict[str, list[CheckTransactionState]] = {}
        is_open: dict[str, int] = {}
        committed: list[str] = []
        aside: list[str] = []
        immune: set[str] = set()
        number = 0
        for what, which in steps:
            name = sorted(copies)[which % len(copies)] if copies else ""
            if what in ("half", "immune"):
                number += 1
                name = f"U{number}"
                own = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "100000"} if what == "immune" else {}
                copies[name] = [broker.half(name, **own)]
                is_open[name] = 0
                if own:
                    immune.add(name)
            elif what in ("commit", "rollback", "late") and name:
                copy = copies[name][-1 if what != "late" else which % len(copies[name])]
                ended = broker.end(copy, ROLLBACK if what == "rollback" else COMMIT)
                assert (ended is not None) == (name in is_open)
                if is_open.pop(name, None) is not None and what != "rollback":
                    committed.append(name)
            elif what == "round":
                due = {item for item, asked in is_open.items() if item not in immune}
                over = {item for item in due if is_open[item] >= CHECKS_MAX}
                broker.clock.advance_ms(2000)
                await broker.checks.check_all()
                questions = list(broker.producers.questions)
                assert Counter(broker.producers.take()) == Counter(due - over)
                for question in questions:
                    copies[question.msg_id or ""].append(question)
                    is_open[question.msg_id or ""] += 1
                for item in over:
                    del is_open[item]
                    aside.append(item)
            elif what in ("stop", "kill"):
                now_ms = broker.clock.time_ms
                saved = broker.stop() if what == "stop" else broker.saved()
                broker.disk = broker.disk if what == "stop" else broker.disk.after_kill()
                broker = Broker(broker.disk, saved)
                broker.clock.set_ms(now_ms)
                await broker.ready()
            assert broker.transactions.halves.count == len(is_open)
        assert broker.names("T") == committed
        assert sorted(broker.names(CHECK_MAX_TIME_TOPIC)) == sorted(aside)
        broker.stop()

    play(work)


# --- power ---


async def workload(
    broker: Broker,
    halves: dict[str, CheckTransactionState],
    told: dict[str, int],
    saved: list[ConsumerOffsetTable | None],
) -> None:
    """Run half messages, ends, flushes and a round of checks. `told`: flushed, thus acknowledged decisions; `saved`: each
    progress, as a file that is durable immediately."""
    decided: dict[str, int] = {}
    for number in range(12):
        name = f"U{number}"
        halves[name] = broker.half(name)
        if number % 3:
            broker.end(halves[name], COMMIT if number % 3 == 1 else ROLLBACK)
            decided[name] = COMMIT if number % 3 == 1 else ROLLBACK
        if number % 4 == 3:
            broker.store.flush()
            told.update(decided)
        if number == 6:
            assert await broker.round() == ["U0", "U3", "U6"]
            saved.append(broker.saved())
        if number == 9:
            broker.end(halves["U0"], ROLLBACK)
            decided["U0"] = ROLLBACK
        if number == 10:
            await broker.transactions.save_progress()
            saved.append(broker.saved())
        if number % 5 == 4:
            broker.store.write_checkpoint()


async def changes_of_workload() -> int:
    broker = await Broker(FakeDisk()).ready()
    await workload(broker, {}, {}, [])
    broker.stop()
    return broker.disk.changes


@pytest.mark.parametrize(("kept", "seed"), FATES)
@pytest.mark.parametrize("torn_at", [None, 150, 300])
def test_power_loss_at_any_change_commits_nothing_twice_and_loses_nothing(
    kept: SurvivingData, seed: int, torn_at: int | None
) -> None:
    """Then every remaining half message is checked until it is committed; finally each is committed exactly once."""

    async def work() -> None:
        for cut in range(1, await changes_of_workload() + 1):
            disk, halves, reported = FakeDisk(), {}, {}
            disk.power_off_at, disk.torn_at = cut, torn_at
            saved: list[ConsumerOffsetTable | None] = [None]
            try:
                broker = await Broker(disk).ready()
                await workload(broker, halves, reported, saved)
                saved.append(broker.stop())
            except PowerLost:
                pass
            broker = await Broker(disk.after_power_loss(kept, random.Random(seed * 1000 + cut)), saved[-1]).ready()
            before = Counter(broker.intact("T"))
            rolled_back = {name for name, decision in reported.items() if decision == ROLLBACK}
            assert all(before[name] == 1 for name, decision in reported.items() if decision == COMMIT)
            assert not rolled_back & set(before)
            broker.clock.advance_ms(1_000_000)
            await broker.checks.check_all()
            questions = list(broker.producers.questions)
            names = broker.producers.take()
            assert not set(names) & (set(before) | rolled_back)
            for question in questions:
                assert broker.end(question, COMMIT) is not None
            remaining = set(broker.intact(HALF_TOPIC))
            assert Counter(broker.intact("T")) == Counter(before.keys() | set(names))
            assert before.keys() | set(names) >= remaining - {
                name for name in halves if int(name[1:]) % 3 == 2 or name == "U0"
            }
            assert await broker.round() == []
            broker.stop()

    play(work)


def test_a_commit_without_its_op_message_is_recognised_after_a_power_loss() -> None:
    async def work() -> None:
        disk = FakeDisk()
        broker = await Broker(disk).ready()
        half = broker.half("U1")
        broker.store.flush()
        (stored,) = broker.read(HALF_TOPIC)
        disk.power_off_at = disk.changes + 1
        disk.torn_at = stored.size + 20  # all of the committed message, and the first bytes of the op message
        with pytest.raises(PowerLost):
            broker.end(half, COMMIT)
        broker = await Broker(disk.after_power_loss(SurvivingData.ALL, random.Random(1))).ready()
        assert broker.names("T") == ["U1"]
        assert broker.names(OP_HALF_TOPIC) == ["0"]
        assert broker.transactions.halves.count == 0
        assert await broker.round() == []
        assert broker.end(half, COMMIT) is None
        assert broker.names("T") == ["U1"]

    play(work)


# --- one bad half ---


def test_an_unreadable_half_message_does_not_affect_others_and_is_discarded() -> None:
    async def work() -> None:
        broker = await Broker(FakeDisk()).ready()
        halves = [broker.half(f"U{number}") for number in range(4)]
        path = next(item for item in broker.disk.paths() if "commitlog" in item)
        offset = halves[1].commit_log_offset
        broker.disk.pwrite(broker.disk.open(path), b"\xff\xff\xff\xff", offset + 4)  # its magic
        for _ in range(CHECKS_MAX):
            assert sorted(await broker.round()) == ["U0", "U2", "U3"]
        assert await broker.round() == []
        assert sorted(broker.names(CHECK_MAX_TIME_TOPIC)) == ["U0", "U2", "U3"]
        assert broker.transactions.halves.count == 0
        assert broker.transactions.halves.trim()[0] == broker.store.max_offset(HALF_TOPIC, 0)

    play(work)


def test_a_half_message_whose_copy_cannot_be_stored_does_not_affect_others() -> None:
    async def work() -> None:
        broker = await Broker(FakeDisk()).ready()
        broker.half("U0")
        broker.half("U2")
        failing = iter([True, False, False])

        def fail(kind: str, path: str) -> None:
            if kind == "write" and "commitlog" in path and next(failing, False):
                raise OSError(errno.EIO, "Input/output error", path)

        broker.disk.fail = fail
        try:
            checked = await broker.round()
        except StoreError as error:
            raise AssertionError(f"the round ended with {error}") from error
        assert checked == ["U2"]
        assert sorted(await broker.round()) == ["U0", "U2"]

    play(work)


def test_a_half_message_without_room_for_its_count_is_checked_without_a_copy() -> None:
    async def work() -> None:
        config = StoreConfig(root="/store", commit_log_size=1 << 20, consume_queue_size=400)
        broker = await Broker(FakeDisk(), config=config).ready()
        table = {"UNIQ_KEY": "U1", "TRAN_MSG": "true", "PGROUP": "P", "LONG": "", "REAL_TOPIC": "T", "REAL_QID": "0"}
        half = broker.half("U1", LONG="x" * (32767 - len(properties.join(table)) - 10))
        broker.half("U2")
        for _ in range(CHECKS_MAX):
            assert sorted(await broker.round()) == ["U1", "U2"]
        assert broker.names(HALF_TOPIC).count("U1") == 1
        assert await broker.round() == []
        assert sorted(broker.names(CHECK_MAX_TIME_TOPIC)) == ["U1", "U2"]
        assert broker.end(half, COMMIT) is None

    play(work)


def test_a_half_message_stored_during_a_round_is_not_deferred_with_its_batch() -> None:
    async def work() -> None:
        broker = await Broker(FakeDisk()).ready()
        broker.half("immune", CHECK_IMMUNITY_TIME_IN_SECONDS="100000")
        broker.meanwhile = lambda: broker.names(HALF_TOPIC) == ["immune"] and broker.half("new")
        assert await broker.round() == []
        assert await broker.round() == ["new"]

    play(work)


def test_an_old_immune_half_message_is_copied_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(transaction_check, "BEHIND_MAX", 3)
        broker = await Broker(FakeDisk()).ready()
        half = broker.half("immune", CHECK_IMMUNITY_TIME_IN_SECONDS="20")
        for number in range(4):
            broker.end(broker.half(f"U{number}"), ROLLBACK)
        assert await broker.round() == []
        assert broker.names(HALF_TOPIC)[5:] == ["immune"]
        assert broker.transactions.halves.trim() == (5, 4)
        assert await broker.round(17_000) == []  # its age is still that of its first copy
        saved, now_ms = broker.stop(), broker.clock.time_ms
        broker = Broker(broker.disk, saved)
        broker.clock.set_ms(now_ms)
        await broker.ready()
        assert await broker.round(2000) == ["immune"]
        assert broker.end(half, COMMIT) is not None
        assert broker.names("T") == ["immune"]

    play(work)


def test_an_old_deferred_half_message_is_copied_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(transaction_check, "BEHIND_MAX", 600)
        broker = await Broker(FakeDisk()).ready()
        broker.half("immune", CHECK_IMMUNITY_TIME_IN_SECONDS="100000")
        for stored in (550, 100):
            for number in range(stored):
                broker.end(broker.half(f"U{number}"), ROLLBACK)
            assert await broker.round() == []
        assert broker.store.max_offset(HALF_TOPIC, 0) == 652
        assert broker.transactions.halves.trim() == (651, 650)

    play(work)


def test_a_half_message_completed_during_the_flush_of_its_copy_is_not_checked() -> None:
    async def work() -> None:
        broker = await Broker(FakeDisk()).ready()
        half = broker.half("U1")

        async def wait_flushed(end_offset: int) -> bool:
            assert broker.end(half, COMMIT) is not None
            return True

        broker.checks._durability = SimpleNamespace(wait_flushed=wait_flushed)
        assert await broker.round() == []
        assert broker.names("T") == ["U1"]

    play(work)


def test_a_producer_that_does_not_read_is_not_checked() -> None:
    async def work() -> None:
        broker = await Broker(FakeDisk()).ready()
        broker.half("U1")
        broker.producers.peer = BUSY
        for _ in range(CHECKS_MAX + 1):
            assert await broker.round() == []
        broker.producers.peer = None
        assert await broker.round() == []
        broker.producers.peer = 1
        assert await broker.round() == ["U1"]
        assert [
            stored_record.property_map()["TRANSACTION_CHECK_TIMES"] for stored_record in broker.read(HALF_TOPIC)[1:]
        ] == ["1", "2"]

    play(work)


def test_ends_wait_until_the_open_transactions_are_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        broker = Broker(FakeDisk())
        assert not broker.transactions.is_ready
        waiting = asyncio.ensure_future(broker.transactions.ready())
        await asyncio.sleep(0)
        assert not waiting.done()
        await broker.ready()
        await waiting

        def fails(*args: object) -> None:
            raise MessageRefused("no")

        broken = Broker(FakeDisk())
        monkeypatch.setattr(broken.transactions, "_complete_torn_commits", fails)
        with pytest.raises(MessageRefused):
            await broken.transactions.rebuild()
        with pytest.raises(ReplyError, match="cannot be read"):
            await broken.transactions.ready()

    play(work)
