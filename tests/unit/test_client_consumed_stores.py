"""Stores of consumed messages: each returns what was added and has not expired, and nothing else."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from ariane.client.duplicates.consumed_store import BLOCK_ROWS, ConsumedKey, ConsumedStore, MemoryStore
from ariane.client.duplicates.redis_store import RedisStore
from ariane.client.duplicates.sqlite_store import PURGE_MIN, SqliteStore
from ariane.errors import ClientClosed, ConfigError
from ariane.testing.clock import FakeClock

KINDS = ["memory", "sqlite", "redis"]


class FakePipeline:
    """Commands of a pipeline, executed as Redis documents them."""

    def __init__(self, server: FakeRedis) -> None:
        self.server = server
        self.commands: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, command: str) -> Any:
        return lambda *args, **options: self.commands.append((command, args, options))

    async def execute(self) -> list[Any]:
        await asyncio.sleep(0)
        if self.server.error is not None:
            raise self.server.error
        return [getattr(self.server, f"do_{command}")(*args, **options) for command, args, options in self.commands]


class FakeRedis:
    """The commands that the store uses, on a dictionary."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.data: dict[str, Any] = {}
        self.ends: dict[str, float] = {}  # of keys with a time to live
        self.error: Exception | None = None
        self.is_closed = False

    def pipeline(self, transaction: bool = True) -> FakePipeline:
        assert not transaction
        return FakePipeline(self)

    async def ping(self) -> bool:
        if self.error is not None:
            raise self.error
        return True

    async def aclose(self) -> None:
        self.is_closed = True

    def _expire(self, name: str) -> None:
        if self.clock.monotonic() >= self.ends.get(name, float("inf")):
            del self.data[name], self.ends[name]

    def do_exists(self, name: str) -> int:
        self._expire(name)
        return int(name in self.data)

    def do_getbit(self, name: str, offset: int) -> int:
        self._expire(name)
        return int(offset in self.data.get(name, set()))

    def do_set(self, name: str, value: str, *, px: int | None = None) -> bool:
        self.data[name] = value
        self.ends.pop(name, None)
        if px is not None:
            self.ends[name] = self.clock.monotonic() + px / 1000
        return True

    def do_setbit(self, name: str, offset: int, value: int) -> int:
        assert value == 1
        self._expire(name)
        bits = self.data.setdefault(name, set())
        before = int(offset in bits)
        bits.add(offset)
        return before

    def do_pexpire(self, name: str, time: int) -> bool:
        self.ends[name] = self.clock.monotonic() + time / 1000
        return name in self.data

    def do_persist(self, name: str) -> bool:
        return self.ends.pop(name, None) is not None


def new_store(kind: str, path: Path, clock: FakeClock) -> ConsumedStore:
    if kind == "memory":
        return MemoryStore(clock=clock)
    if kind == "sqlite":
        return SqliteStore(path / "seen.db", clock=clock)
    return RedisStore(FakeRedis(clock))


def entry(name: object) -> ConsumedKey:
    return ConsumedKey(f"g/id/T/{name}")


def row(sequence: int, partition: int = 0) -> ConsumedKey:
    block, bit = divmod(sequence, BLOCK_ROWS)
    return ConsumedKey(f"g/row/T/q/0/{partition}/{block}", bit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_store_equals_a_set_of_keys(kind: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)

    def keys() -> list[ConsumedKey]:
        return [
            entry(chance.randrange(60)) if chance.random() < 0.5 else row(chance.randrange(20_000), chance.randrange(2))
            for _ in range(chance.choice((1, 3, 40)))
        ]

    async def work() -> None:
        store, exact = new_store(kind, tmp_path, FakeClock()), set()
        await store.open()
        for _ in range(60):
            asked = [*keys(), *chance.sample(sorted(exact), min(5, len(exact)))]
            assert set(await store.seen(asked)) == set(asked) & exact
            added = keys()
            await store.add(added, chance.choice((None, 1000.0)))
            exact.update(added)
        assert set(await store.seen(sorted(exact))) == exact
        await store.close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", KINDS)
def test_no_keys_are_no_error(kind: str, tmp_path: Path) -> None:
    async def work() -> None:
        store = new_store(kind, tmp_path, FakeClock())
        await store.open()
        await store.add([], 1)
        assert set(await store.seen([])) == set()
        await store.close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_forgotten_after_their_time_and_blocks_after_their_last_addition(kind: str, tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        store = new_store(kind, tmp_path, clock)
        await store.open()

        async def seen(*keys: ConsumedKey) -> list[bool]:
            result = await store.seen(keys)
            return [key in result for key in keys]

        await store.add([entry("a"), entry("unlimited"), row(0)], 10)
        await store.add([entry("unlimited")], None)
        clock.advance(9.9)
        assert await seen(entry("a"), row(0)) == [True, True]
        await store.add([row(1)], 10)
        clock.advance(0.2)
        assert await seen(entry("a"), entry("unlimited"), row(0), row(1)) == [False, True, True, True]
        clock.advance(10)
        assert await seen(row(0), row(1), entry("unlimited")) == [False, False, True]
        await store.add([row(2), entry("a")], 10)  # starts a new block
        assert await seen(row(0), row(1), row(2), entry("a")) == [False, False, True, True]
        await store.add([row(3, partition=1)], None)
        clock.advance(10**6)
        assert await seen(row(2), row(3, partition=1)) == [False, True]
        await store.close()

    asyncio.run(work())


def test_memory_evicts_the_oldest_entries_and_blocks() -> None:
    async def work() -> None:
        store = MemoryStore(3, blocks_max=2)
        for number in range(4):
            await store.add([entry(number), row(number * BLOCK_ROWS)], None)
            await store.add([entry(0)], None)  # added again: not the oldest
        assert await store.seen([entry(number) for number in range(4)]) == {entry(0), entry(2), entry(3)}
        assert await store.seen([row(number * BLOCK_ROWS) for number in range(4)]) == {
            row(2 * BLOCK_ROWS),
            row(3 * BLOCK_ROWS),
        }

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_store_stays_bounded_by_the_time_to_live(kind: str, tmp_path: Path) -> None:
    """Each addition removes a few expired entries, so none takes long."""

    async def size(store: Any) -> int:
        return len(store) if kind == "memory" else await asyncio.to_thread(count, tmp_path / "seen.db")

    async def work() -> None:
        clock = FakeClock()
        store: Any = new_store(kind, tmp_path, clock)
        await store.open()
        await store.add([*map(entry, range(1000)), *(row(0, number) for number in range(100))], 10)
        assert await size(store) == 1100
        clock.advance(11)
        await store.add([entry("new")], 10)
        after_one = await size(store)
        assert 1100 - 2 * PURGE_MIN <= after_one < 1100
        for number in range(600):
            await store.add([entry(number)], 10)
        assert await size(store) == 601
        for number in range(2000):
            clock.advance(1)
            await store.add([entry(number), row(0, number)], 10)
        assert await size(store) <= 2 * 10 + 2
        await store.close()

    asyncio.run(work())


def count(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("entries", "blocks"))
    finally:
        connection.close()


def test_two_connections_to_one_file_add_to_one_block(tmp_path: Path) -> None:
    async def work() -> None:
        stores = [SqliteStore(tmp_path / "seen.db") for _ in range(3)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(
            *(store.add([row(number)], 60) for number in range(60) for store in stores[number % 3 : number % 3 + 1])
        )
        for store in stores:
            assert len(await store.seen([row(number) for number in range(61)])) == 60
            await store.close()

    asyncio.run(work())


def test_other_files_are_not_opened_and_not_changed(tmp_path: Path) -> None:
    async def fault(path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            await SqliteStore(path).open()
        return str(caught.value)

    other, later, text = tmp_path / "other.db", tmp_path / "later.db", tmp_path / "text.db"
    text.write_text("This is a text of more than one hundred bytes. " * 10)
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE entries (name TEXT)")
    connection.close()
    asyncio.run(SqliteStore(later).open())
    connection = sqlite3.connect(later)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    before = other.read_bytes(), text.read_bytes()
    assert "this is another program's database; choose another path" in asyncio.run(fault(other))
    assert "its format is 2, this version of Ariane reads 1" in asyncio.run(fault(later))
    assert "not a usable SQLite database: file is not a database" in asyncio.run(fault(text))
    assert "the database cannot be opened" in asyncio.run(fault(tmp_path))
    assert (other.read_bytes(), text.read_bytes()) == before


@pytest.mark.parametrize("wrong", [None, "", b"/data/seen.db", 5])
def test_a_path_is_required(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="expected the path of a database file"):
        SqliteStore(wrong)


def test_names_that_sqlite_gives_a_meaning_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def work() -> None:
        store = SqliteStore(":memory:")
        await store.open()
        await store.close()

    asyncio.run(work())
    assert (tmp_path / ":memory:").is_file()


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_closed_store_is_an_error_until_it_is_opened_again(kind: str, tmp_path: Path) -> None:
    async def work() -> None:
        store = new_store(kind, tmp_path, FakeClock())
        for _ in range(2):
            with pytest.raises(ClientClosed, match="not open"):
                await store.seen([entry(1)])
            await store.open()
            await store.open()  # two users
            await store.close()
            await store.add([entry(1)], 60)
            assert await store.seen([entry(1)]) == {entry(1)}
            await store.close()
        await store.close()

    asyncio.run(work())


def test_a_failed_addition_changes_nothing_and_the_next_succeeds(tmp_path: Path) -> None:
    async def work() -> None:
        store = SqliteStore(tmp_path / "seen.db")
        await store.open()
        with pytest.raises(UnicodeEncodeError):
            await store.add([row(1), entry(1), ConsumedKey("\ud800")], 60)
        assert await store.seen([row(1), entry(1)]) == set()
        await store.add([row(1), entry(1)], 60)
        assert await store.seen([row(1), entry(1)]) == {row(1), entry(1)}
        await store.close()

    asyncio.run(work())


def test_an_applications_redis_client_stays_open_and_is_checked() -> None:
    async def work() -> None:
        server = FakeRedis(FakeClock())
        store = RedisStore(server, prefix="shop:")
        server.error = ConnectionError("refused")
        with pytest.raises(ConnectionError):
            await store.open()
        server.error = None
        await store.open()
        await store.add([entry(1), row(3)], 60)
        assert server.data == {"shop:g/id/T/1": "1", "shop:g/row/T/q/0/0/0": {3}}
        await store.close()
        assert not server.is_closed

        server.ping = lambda: True  # type: ignore[method-assign,assignment,return-value]
        with pytest.raises(ConfigError, match=r"expected an asyncio client: redis\.asyncio\.Redis"):
            await store.open()

    asyncio.run(work())


def test_a_redis_url_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigError, match=r"a URL needs the package redis: pip install 'ariane\[redis\]'"):
        RedisStore("redis://127.0.0.1:6379/0")
    RedisStore(FakeRedis(FakeClock()))  # a client needs no package


def test_a_redis_client_of_a_url_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("redis")
    server = FakeRedis(FakeClock())
    monkeypatch.setattr("redis.asyncio.Redis.from_url", lambda url, **options: server)

    async def work() -> None:
        store = RedisStore("redis://127.0.0.1:6379/0")
        await store.open()
        await store.open()
        await store.close()
        assert not server.is_closed
        await store.close()
        assert server.is_closed

    asyncio.run(work())


@pytest.mark.parametrize("wrong", [None, 5, object()])
def test_a_redis_client_or_url_is_required(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected a client of redis\.asyncio, or a URL"):
        RedisStore(wrong)


def test_a_wrong_redis_url_is_refused_without_its_password() -> None:
    pytest.importorskip("redis")
    with pytest.raises(ConfigError, match="the URL of the Redis server is invalid") as caught:
        RedisStore("http://:secret@10.0.0.1:6379")
    assert "secret" not in str(caught.value)


def test_the_commands_exist_in_the_package() -> None:
    redis = pytest.importorskip("redis.asyncio")
    client = redis.Redis()
    pipeline = client.pipeline(False)
    pipeline.exists("a").getbit("a", 1).set("a", "1", px=5).setbit("a", 1, 1).pexpire("a", 5).persist("a")
    assert [command for (command, *_), _ in pipeline.command_stack] == [
        "EXISTS", "GETBIT", "SET", "SETBIT", "PEXPIRE", "PERSIST",
    ]  # fmt: skip
    assert pipeline.command_stack[2][0] == ("SET", "a", "1", "PX", 5)
