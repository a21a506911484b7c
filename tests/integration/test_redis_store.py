"""The store of consumed messages on a real Redis server: accounts, databases, TLS, a cluster, expiry, failures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ariane.client.delivery.listener_invoker import ReconsumeLater
from ariane.client.duplicates.consumed_store import BLOCK_ROWS, ConsumedKey
from ariane.client.duplicates.idempotent import Idempotent
from ariane.client.duplicates.redis_store import RedisStore
from ariane.model import message as names
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.net.listening.fixed_ports import choose_free_port

redis = pytest.importorskip("redis", reason="the extra redis is not installed")
PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="neither redis-server nor valkey-server is on the PATH")

WAIT_S = 30.0


class RedisServer:
    """A server in a process of its own, at a port that stays the same over restarts."""

    def __init__(self, directory: Path, *options: str, scheme: str = "redis") -> None:
        self.port = choose_free_port((0, 10_000))  # a node of a cluster uses the port 10,000 above as well
        self.addr = f"127.0.0.1:{self.port}"
        self.url = f"{scheme}://{self.addr}"
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert PROGRAM is not None
        ports = (
            ("--port", str(self.port))
            if self.url.startswith("redis:")
            else ("--port", "0", "--tls-port", str(self.port))
        )
        files = ("--save", "", "--appendonly", "no", "--dir", str(self._directory), "--logfile", "redis.log")
        self._process = subprocess.Popen([PROGRAM, "--bind", "127.0.0.1", *ports, *files, *self._options])
        deadline = time.monotonic() + WAIT_S
        while True:
            assert self._process.poll() is None, (self._directory / "redis.log").read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop the process without ending it: connections stay open, and nothing is answered."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    servers: list[RedisServer] = []

    def start_server(*options: str, scheme: str = "redis") -> RedisServer:
        server = RedisServer(tmp_path, *options, scheme=scheme)
        servers.append(server)
        server.start()
        return server

    yield start_server
    for server in servers:
        server.kill()


@contextlib.asynccontextmanager
async def opened(client: Any, **arguments: Any) -> AsyncIterator[RedisStore]:
    store = RedisStore(client, **arguments)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def entry(name: object) -> ConsumedKey:
    return ConsumedKey(f"g/id/T/{name}")


def row(sequence: int, partition: int = 0) -> ConsumedKey:
    block, bit = divmod(sequence, BLOCK_ROWS)
    return ConsumedKey(f"g/row/T/q/0/{partition}/{block}", bit)


def message(unique_id: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="T", body=b"", properties={names.UNIQ_KEY: unique_id}, queue=MessageQueue("T", "broker-a", 0),
        queue_offset=0, commit_log_offset=0, message_id=unique_id, offset_message_id="", born_ms=0, born_host="", store_ms=0,
        store_host="", reconsume_times=0, flag=0, sys_flag=0, stored_size=0,
    )  # fmt: skip


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def check_equals_a_set(store: RedisStore, rng: random.Random) -> None:
    exact: set[ConsumedKey] = set()

    def keys() -> list[ConsumedKey]:
        return [
            entry(rng.randrange(60)) if rng.random() < 0.5 else row(rng.randrange(20_000), rng.randrange(2))
            for _ in range(rng.choice((0, 1, 3, 40)))
        ]

    for _ in range(60):
        requested = [*keys(), *rng.sample(sorted(exact), min(5, len(exact)))]
        assert await store.seen(requested) == set(requested) & exact
        added = keys()
        await store.add(added, rng.choice((None, 1000.0)))
        exact.update(added)
    assert await store.seen(sorted(exact)) == exact


def test_the_store_equals_a_set_of_keys(start: Callable[..., RedisServer]) -> None:
    async def work() -> None:
        async with opened(start().url) as store:
            await check_equals_a_set(store, random.Random(1))

    asyncio.run(work())


def test_the_store_equals_a_set_of_keys_in_a_cluster(start: Callable[..., RedisServer]) -> None:
    server = start("--cluster-enabled", "yes")

    async def work() -> None:
        from redis.asyncio import Redis, RedisCluster

        async with Redis.from_url(server.url) as node:
            await node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)

            async def is_ready() -> bool:
                return b"cluster_state:ok" in await node.execute_command("CLUSTER", "INFO")

            await wait_until(is_ready)
        async with RedisCluster.from_url(server.url) as client, opened(client) as store:
            await check_equals_a_set(store, random.Random(2))

    asyncio.run(work())


def test_keys_expire_and_a_block_lives_from_its_last_row(start: Callable[..., RedisServer]) -> None:
    server = start()

    async def work() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as client, opened(server.url, prefix="p:") as store:
            await store.add([entry(1), row(1)], 1000)
            await store.add([entry(2), row(0, 1)], None)
            await store.add([row(2)], 2000)
            left = {name: await client.pttl(name) for name in await client.keys("p:*")}
            assert set(left) == {b"p:g/id/T/1", b"p:g/id/T/2", b"p:g/row/T/q/0/0/0", b"p:g/row/T/q/0/1/0"}
            assert 0 < left[b"p:g/id/T/1"] <= 1_000_000 < left[b"p:g/row/T/q/0/0/0"] <= 2_000_000
            assert left[b"p:g/id/T/2"] == left[b"p:g/row/T/q/0/1/0"] == -1  # without an end
            await store.add([entry(3), row(3)], 0.001)

            async def is_forgotten() -> bool:
                return not await store.seen([entry(3), row(1), row(2), row(3)])

            await wait_until(is_forgotten)
            assert await store.seen([entry(1), entry(2)]) == {entry(1), entry(2)}

    asyncio.run(work())


def test_a_url_names_account_and_database(start: Callable[..., RedisServer]) -> None:
    server = start("--requirepass", "a-secret", "--user", "shop", "on", ">s3cret", "~ariane:*", "+@all")

    async def work() -> None:
        async with (
            opened(f"redis://:a-secret@{server.addr}/3") as third,
            opened(f"redis://:a-secret@{server.addr}/4") as fourth,
            opened(f"redis://shop:s3cret@{server.addr}/3?protocol=3&decode_responses=true") as other,
        ):
            await third.add([entry(1), row(5)], 60)
            assert await third.seen([entry(1), row(5)]) == {entry(1), row(5)}
            assert await other.seen([entry(1), row(4), row(5)]) == {entry(1), row(5)}
            assert await fourth.seen([entry(1), row(5)]) == set()
        for wrong in (":another-one@", "shop:another-one@", ""):
            with pytest.raises(redis.RedisError) as caught:
                async with opened(f"redis://{wrong}{server.addr}/3"):
                    pass
            assert "another-one" not in str(caught.value)
        async with opened(f"redis://shop:s3cret@{server.addr}", prefix="elsewhere:") as forbidden:
            with pytest.raises(redis.RedisError, match=r"(?i)no permissions"):
                await forbidden.seen([entry(1)])

    asyncio.run(work())


def test_a_url_names_tls(start: Callable[..., RedisServer], certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    files = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")
    server = start(*files, scheme="rediss")

    async def work() -> None:
        async with opened(f"{server.url}/0?ssl_ca_certs={cert}") as store:
            await store.add([entry(1)], 60)
            assert await store.seen([entry(1), entry(2)]) == {entry(1)}
        with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
            async with opened(server.url):
                pass

    asyncio.run(work())


class Listener:
    def __init__(self) -> None:
        self.ids: list[str] = []

    async def __call__(self, messages: Sequence[ReceivedMessage]) -> None:
        self.ids += [message.properties[names.UNIQ_KEY] for message in messages]


def test_members_in_other_processes_skip_what_one_consumed(start: Callable[..., RedisServer]) -> None:
    server, listener = start(), Listener()

    async def work() -> None:
        first = Idempotent(listener, store=RedisStore(server.url), scope="stock")
        second = Idempotent(listener, store=RedisStore(server.url), scope="stock")
        other_group = Idempotent(listener, store=RedisStore(server.url), scope="billing")
        async with first, second, other_group:
            await first([message("A"), message("B")])
            await second([message("B"), message("C")])
            assert (listener.ids, second.skipped) == (["A", "B", "C"], 1)
            await other_group([message("A")])
            assert listener.ids[3:] == ["A"]

    asyncio.run(work())


def test_a_server_that_is_restarted_is_used_again(start: Callable[..., RedisServer]) -> None:
    server, listener = start(), Listener()

    async def work() -> None:
        async with Idempotent(listener, store=RedisStore(server.url), scope="stock") as idempotent:
            await idempotent([message("A")])
            server.kill()
            server.start()  # without data, and with a connection of the store that it closed
            await idempotent([message("B")])
            server.kill()
            with pytest.raises(ReconsumeLater, match="cannot read the store of consumed messages"):
                await idempotent([message("C")])
            server.start()
            await idempotent([message("C"), message("B")])
            assert listener.ids == ["A", "B", "C", "B"]  # the restart lost B

    asyncio.run(work())


def test_a_server_that_hangs_fails_the_call(start: Callable[..., RedisServer]) -> None:
    server, listener = start(), Listener()

    async def work() -> None:
        store = RedisStore(f"{server.url}?socket_timeout=0.2")
        async with Idempotent(listener, store=store, scope="stock") as idempotent:
            await idempotent([message("A")])
            with server.hanging(), pytest.raises(ReconsumeLater, match=r"(?i)time"):
                await idempotent([message("A")])
            # Late answers to the commands before must not be taken for those of this call.
            await idempotent([message("A"), message("B")])
            assert listener.ids == ["A", "B"]

    asyncio.run(work())


def test_a_full_server_lets_the_process_remember(
    start: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server, listener = start(), Listener()

    async def work() -> None:
        async with (
            redis.asyncio.Redis.from_url(server.url) as client,
            Idempotent(listener, store=RedisStore(server.url), scope="stock") as idempotent,
        ):
            await client.config_set("maxmemory", "1")  # with the default policy: commands that write are refused
            await idempotent([message("A")])
            await idempotent([message("A")])
            assert (listener.ids, idempotent.skipped) == (["A"], 1)

    asyncio.run(work())
    assert "Could not record 1 consumed messages" in caplog.text
    assert "maxmemory" in caplog.text


def test_a_key_of_another_program_is_an_error(start: Callable[..., RedisServer]) -> None:
    server = start()

    async def work() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as client, opened(server.url) as store:
            await client.lpush("ariane:seen:g/row/T/q/0/0/0", "x")
            for call in (store.seen([row(1)]), store.add([row(1)], 60)):
                with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                    await call

    asyncio.run(work())
