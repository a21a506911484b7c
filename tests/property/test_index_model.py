"""The key index against a list: after any puts and any kind of stop, each query returns the result of the list."""

from __future__ import annotations

import random
from struct import Struct
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ariane.kernels.scanned_record import parse_record
from ariane.model import host
from ariane.model.message import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from ariane.protocol.records import properties as properties_text
from ariane.store.index import index_builder
from ariane.store.index.key_query import KeyQuery
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, SurvivingData

HOST = host.pack("127.0.0.1", 10911)
T0 = 1_700_000_000_000
CONFIG = StoreConfig(
    root="/store", commit_log_size=2048, consume_queue_size=200, index=True, index_slots=3, index_entries=7
)
# "Aa" and "BB", and so "AaBB" and "BBAa", have the same hash.
WORDS = ["Aa", "BB", "AaBB", "BBAa", "x", "é"]
TOPICS = ["T", "U"]
OWN_OFFSET = Struct(">q")  # of a record, at byte 28: one whose properties were torn may be no text


class Stored(NamedTuple):
    topic: str
    keys: set[str]
    ms: int


class IndexMachine(RuleBasedStateMachine):
    """`model` contains all puts by offset; flushed ones survive the power loss, others as far as the log still has them."""

    disk: FakeDisk
    store: MessageStore

    @initialize()
    def start(self) -> None:
        self.clock = FakeClock(T0)
        self.disk = FakeDisk()
        self.model: dict[int, Stored] = {}
        self.seen: set[int] = set()
        self.open()

    def open(self) -> None:
        self.store = open_store(CONFIG, self.disk, now_ms=self.clock.now_ms, store_host=HOST)

    @rule(
        topic=st.sampled_from(TOPICS),
        unique=st.sampled_from(["", "ID01", "ID02", "0123456789ABCDEF0123456789ABCDEF"]),
        words=st.lists(st.sampled_from(WORDS), max_size=9),
        later_ms=st.sampled_from([0, 0, 1, 400, 999, 1000, 60_000]),
    )
    def put(self, topic: str, unique: str, words: list[str], later_ms: int) -> None:
        self.clock.advance_ms(later_ms)
        pairs = {"UNIQ_KEY": unique, "KEYS": " ".join(words)}
        properties = "\x02".join(f"{name}\x01{value}" for name, value in pairs.items() if value)
        draft = RecordDraft(topic=topic, queue_id=0, body=b"", born_ms=1, born_host=HOST, properties=properties)
        placed = self.store.put(draft)
        self.model[placed.offset] = Stored(topic, {unique, *words} - {""}, self.clock.now_ms())

    @rule()
    def step(self) -> None:
        self.store.dispatch_pending()
        self.seen = set(self.model)

    @rule()
    def flush_derived(self) -> None:
        self.store.write_checkpoint()

    @rule()
    def flush(self) -> None:
        self.store.flush()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.open()
        self.seen = set(self.model)
        assert self.store.recovery_report.notes == ()

    @rule(kill=st.booleans(), kept=st.sampled_from(SurvivingData), seed=st.integers(0, 99))
    def crash(self, kill: bool, kept: SurvivingData, seed: int) -> None:
        sure = self.store.commit_log_max if kill else self.store.flushed
        self.disk = self.disk.after_kill() if kill else self.disk.after_power_loss(kept, random.Random(seed))
        self.open()
        remaining = {offset: stored for offset in self.model if (stored := self.stored_at(offset)) is not None}
        for offset, stored in self.model.items():
            assert offset >= sure or remaining[offset] == stored
        self.model = remaining
        self.seen = set(self.model)
        self.clock.set_ms(max([self.clock.time_ms, *(stored.ms for stored in self.model.values())]))

    def stored_at(self, offset: int) -> Stored | None:
        """Return the record in the log at this offset: a write torn in its properties can leave some or other keys."""
        data = self.store.read_record(offset)
        result = None if data is None else parse_record(data, 0, offset, CONFIG.commit_log_size, check_crc=False)
        if result is None or result.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return None  # nothing, or what closes a hole
        pairs = properties_text.decode(result.properties.decode("utf-8", "replace"))
        keys = {pairs.get("UNIQ_KEY", ""), *pairs.get("KEYS", "").split(" ")} - {""}
        return Stored(result.topic.decode("utf-8", "replace"), keys, result.store_ms)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def lose_index_files(self, data: Any) -> None:
        self.store.close()
        files = [path for path in self.disk.paths() if "/index/" in path]
        for path in data.draw(st.sets(st.sampled_from(files)) if files else st.just(set())):
            self.disk.remove(path)
        self.open()
        self.seen = set(self.model)

    @rule(
        topic=st.sampled_from(TOPICS),
        key=st.sampled_from([*WORDS, "ID01", "none"]),
        max_count=st.integers(1, 5),
        window=st.tuples(st.integers(-1, 200_000), st.integers(-1, 200_000)) | st.none(),
    )
    def query(self, topic: str, key: str, max_count: int, window: tuple[int, int] | None) -> None:
        begin_ms, end_ms = (T0 + window[0], T0 + window[1]) if window else (0, 1 << 62)
        expected = self.expected(topic, key, begin_ms, end_ms)
        query = KeyQuery(topic, key, max_count, begin_ms, end_ms)
        collected: list[int] = []
        while True:
            result = self.store.index.query(query)
            page = [offset for data in result.records for (offset,) in [OWN_OFFSET.unpack_from(data, 28)]]
            assert 0 < len(page) <= max_count or result.position is None
            collected = page + collected
            if result.position is None:
                break
            query = query._replace(position=result.position)
        assert collected == expected

    def expected(self, topic: str, key: str, begin_ms: int, end_ms: int) -> list[int]:
        return sorted(
            offset
            for offset in self.seen
            if (stored := self.model[offset]).topic == topic and key in stored.keys and begin_ms <= stored.ms <= end_ms
        )

    @invariant()
    def nothing_is_found_that_is_not_there(self) -> None:
        if hasattr(self, "store"):
            assert self.store.index.query(KeyQuery("T", "none", 1)).records == []


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_builder, "BATCH_RECORDS", 3)


class TestIndex(IndexMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(
        max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
