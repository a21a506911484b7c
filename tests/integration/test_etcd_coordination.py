"""The coordination service on a real etcd of three members: leases, compares, unknown outcomes, users, and both forms of errors."""

from __future__ import annotations

import asyncio
import functools
import itertools
import signal
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ariane.errors import ConfigError, CoordinationUnavailable, InvalidLeaderRecord
from ariane.failover.coordination import RecordSnapshot, WriteOutcome, WriteResult
from ariane.failover.etcd import EtcdCoordination, EtcdCredentials
from ariane.failover.json_http import JsonEndpoint
from ariane.failover.leader_record import InSyncMember, LeaderRecord
from etcd_cluster import PROGRAM, REASON, EtcdCluster
from tls_files import TestAuthority, write_pair

with_etcd = pytest.mark.skipif(PROGRAM is None, reason=REASON)

A, B = InSyncMember("a", "1"), InSyncMember("b", "1")
PREFIXES = (f"/ariane/test/{number}" for number in itertools.count())
WAIT_S = 30.0


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


def record(holder: str, epoch: int, *, members: tuple[InSyncMember, ...] = (A, B), version: int = 0) -> LeaderRecord:
    return LeaderRecord(
        holder=holder, epoch=epoch, in_sync=members, set_version=version, token=f"{holder}.{epoch}.{version}"
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    etcd = EtcdCluster(tmp_path_factory.mktemp("etcd"))
    etcd.start()
    yield etcd
    etcd.stop()


@asynccontextmanager
async def services(
    cluster: EtcdCluster, count: int = 2, *, ttl_s: int = 5, attempt_s: float = 5.0
) -> AsyncIterator[list[EtcdCoordination]]:
    """Yield clients of one broker set, each with another endpoint first."""
    prefix = next(PREFIXES)
    clients = [
        EtcdCoordination(cluster.urls[index:] + cluster.urls[:index], prefix, ttl_s=ttl_s, attempt_s=attempt_s)
        for index in range(count)
    ]
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()


def done(result: WriteResult) -> RecordSnapshot:
    assert result.outcome is WriteOutcome.DONE
    assert result.snapshot is not None
    return result.snapshot


def refused(result: WriteResult) -> RecordSnapshot:
    assert result.outcome is WriteOutcome.REFUSED
    assert result.snapshot is not None
    return result.snapshot


async def wait_for(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():
            await asyncio.sleep(0.05)


@with_etcd
@in_loop
async def test_one_lease_and_one_record(cluster: EtcdCluster) -> None:
    async with services(cluster) as (a, b):
        assert await b.read() == RecordSnapshot(None, "0", "")
        first = done(await a.create(record("", 0)))
        assert refused(await b.create(record("b", 0, version=7))) == first == await b.read()
        assert first.lease == ""

        held = done(await a.acquire(first, record("a", 1)))
        assert held.record == record("a", 1)
        assert held.lease
        assert refused(await b.acquire(first, record("b", 1))) == held == await b.read()
        assert refused(await b.acquire(held, record("b", 2))) == held, "the lease is not free"

        renewed = done(await a.renew(held))
        assert (renewed.record, renewed.version) == (held.record, held.version)
        assert renewed.lease != held.lease
        assert refused(await a.renew(held)) == renewed, "another lease replaced it"

        smaller = done(await a.swap(held, record("a", 1, members=(A,), version=1)))
        assert smaller.lease == renewed.lease
        assert refused(await a.swap(held, record("a", 1, version=2))) == smaller, "the record has changed"

        free = done(await a.release(smaller, record("a", 1, members=(A,), version=2)))
        assert free.lease == ""
        assert refused(await a.swap(free, record("a", 1, version=3))) == free, "without a lease"
        assert refused(await a.renew(free)) == free
        assert done(await b.acquire(free, record("b", 2))).record == record("b", 2)


@with_etcd
@in_loop
async def test_a_lease_ends_and_its_holder_can_write_no_more(cluster: EtcdCluster) -> None:
    async with services(cluster, ttl_s=2) as (a, b):
        started = time.clock_gettime(time.CLOCK_BOOTTIME)
        held = done(await a.acquire(done(await a.create(record("", 0))), record("a", 1)))

        async def is_free() -> bool:
            return (await b.read()).lease == ""

        await wait_for(is_free)
        assert time.clock_gettime(time.CLOCK_BOOTTIME) >= started + 2, "never early"
        assert refused(await a.renew(held)).lease == ""
        assert refused(await a.swap(held, record("a", 1, members=(A,), version=1))).record == record("a", 1)
        taken = done(await b.acquire(await b.read(), record("b", 2)))
        assert refused(await a.release(held, record("a", 1))) == taken


@with_etcd
@in_loop
async def test_of_many_candidates_one_acquires(cluster: EtcdCluster) -> None:
    async with services(cluster, 3) as clients:
        free = done(await clients[0].create(record("", 0)))
        results = await asyncio.gather(*(client.acquire(free, record(f"m{n}", 1)) for n, client in enumerate(clients)))
        assert sorted(result.outcome.value for result in results) == ["done", "refused", "refused"]


@with_etcd
@in_loop
async def test_a_frozen_endpoint_costs_one_attempt(cluster: EtcdCluster) -> None:
    async with services(cluster, 1, attempt_s=1.0) as (a,):
        free = done(await a.create(record("", 0)))
        cluster.members[0].signal(signal.SIGSTOP)
        try:
            # If it leads, the others elect a leader first.
            async def is_readable() -> bool:
                try:
                    return (await a.read()) == free
                except CoordinationUnavailable:
                    return False

            await wait_for(is_readable)
            assert done(await a.acquire(free, record("a", 1))).record == record("a", 1)
        finally:
            cluster.members[0].signal(signal.SIGCONT)
    cluster.wait_healthy()


@with_etcd
@in_loop
async def test_without_quorum_nothing_is_confirmed_and_an_open_write_is_recognized(cluster: EtcdCluster) -> None:
    async with services(cluster, ttl_s=60, attempt_s=0.3) as (a, b):
        held = done(await a.acquire(done(await a.create(record("", 0))), record("a", 1)))
        for member in cluster.members[1:]:
            member.signal(signal.SIGSTOP)
        smaller = record("a", 1, members=(A,), version=1)
        try:
            assert (await a.renew(held)).outcome is WriteOutcome.UNKNOWN, "keep-alives of a leader would succeed"
            assert (await a.swap(held, smaller)).outcome is WriteOutcome.UNKNOWN
            with pytest.raises(CoordinationUnavailable, match="cannot be read"):
                await b.read()
        finally:
            for member in cluster.members[1:]:
                member.signal(signal.SIGCONT)
        cluster.wait_healthy()
        settled = done(await a.swap(held, smaller))
        assert settled.record == smaller
        assert settled.lease.partition(":")[0] == held.lease.partition(":")[0]


@with_etcd
@in_loop
async def test_endpoints_of_another_cluster_are_refused(cluster: EtcdCluster, tmp_path: Path) -> None:
    other = EtcdCluster(tmp_path, 1)
    other.start()
    try:
        client = EtcdCoordination([cluster.urls[0], *other.urls], next(PREFIXES), ttl_s=5)
        assert (await client.read()).record is None
        client._demote(client._endpoints[0])
        assert (await client.create(record("", 0))).outcome is WriteOutcome.DONE, "at the second attempt"
        await client.close()
        lone = EtcdCoordination(other.urls, "/x", ttl_s=5)
        lone._cluster_id = "1"
        with pytest.raises(CoordinationUnavailable, match="another etcd cluster"):
            await lone.read()
        await lone.close()
    finally:
        other.stop()


@with_etcd
@in_loop
async def test_users_tokens_and_roles_over_tls(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    write_pair(authority.issue("etcd"), tmp_path / "etcd.pem", tmp_path / "etcd.key")
    files = (f"--cert-file={tmp_path / 'etcd.pem'}", f"--key-file={tmp_path / 'etcd.key'}")
    tls = ssl.create_default_context(cafile=str(authority.path))
    etcd = EtcdCluster(tmp_path, 1, *files, scheme="https")
    etcd.members[0].tls = tls
    etcd.start()
    (url,) = etcd.urls
    admin = JsonEndpoint(url, tls=tls)
    try:
        key, end = "L2FyaWFuZS8=", "L2FyaWFuZTA="  # /ariane/ and /ariane0
        for path, body in (
            ("user/add", {"name": "root", "password": "r"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "broker", "password": "secret"}),
            ("role/add", {"name": "broker"}),
            ("role/grant", {"name": "broker", "perm": {"permType": 2, "key": key, "range_end": end}}),
            ("user/grant", {"user": "broker", "role": "broker"}),
            ("enable", {}),
        ):
            assert (await admin.request("POST", f"/v3/auth/{path}", body)).status == 200, path
        user = EtcdCredentials("broker", "secret")
        assert "secret" not in repr(user)
        client = EtcdCoordination([url], "/ariane/x", ttl_s=5, tls=tls, credentials=user)
        held = done(await client.acquire(done(await client.create(record("", 0))), record("a", 1)))
        client._tokens[client._endpoints[0].addr] = "expired.1"
        assert done(await client.renew(held)).record == held.record
        await client.close()
        for prefix, credentials, fault in (
            ("/ariane/x", EtcdCredentials("broker", "wrong"), "authentication failed"),
            ("/ariane/x", None, "user name is empty"),
            ("/other", user, "permission denied"),
        ):
            client = EtcdCoordination([url], prefix, ttl_s=5, tls=tls, credentials=credentials)
            with pytest.raises(CoordinationUnavailable, match=fault):
                await client.read()
            assert (await client.create(record("", 0))).outcome is WriteOutcome.UNKNOWN
            await client.close()
        stranger = EtcdCoordination([url], "/ariane/x", ttl_s=5)
        with pytest.raises(CoordinationUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await stranger.read()
    finally:
        await admin.close()
        etcd.stop()


@with_etcd
@in_loop
async def test_foreign_bytes_are_no_record(cluster: EtcdCluster) -> None:
    admin = JsonEndpoint(cluster.urls[0])
    await admin.request("POST", "/v3/kv/put", {"key": "L2ZvcmVpZ24vcmVjb3Jk", "value": "Zm9v"})
    await admin.close()
    client = EtcdCoordination(cluster.urls, "/foreign", ttl_s=5)
    with pytest.raises(InvalidLeaderRecord, match="another program"):
        await client.read()
    await client.close()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        # The gateway of 3.4 and 3.5, then that of 3.6 and later.
        (403, {"error": "e", "message": "etcdserver: permission denied", "code": 7}, "refused .* code 7"),
        (403, {"message": "etcdserver: permission denied", "code": 7, "details": []}, "refused .* code 7"),
        (503, {"error": "e", "message": "etcdserver: no leader", "code": 14}, "failed .* no leader"),
        (503, {"code": 14, "message": "etcdserver: no leader", "details": []}, "failed .* no leader"),
        (500, {"code": 2, "message": "context deadline exceeded"}, "failed .* deadline"),
        (404, "Not Found", "failed .*Not Found"),
        (200, {"header": {"cluster_id": "1"}}, "incomplete"),
    ],
)
@in_loop
async def test_errors_by_status_and_code(status: int, body: object, message: str) -> None:
    data = body.encode() if isinstance(body, str) else msgspec.json.encode(body)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(data)) + data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = EtcdCoordination([f"http://127.0.0.1:{port}"], "/x", ttl_s=5)
        with pytest.raises(CoordinationUnavailable, match=message):
            await client.read()
        await client.close()


@pytest.mark.parametrize(
    ("endpoints", "ttl_s"), [([], 5), (["http://h:1"], 1), (["h:1"], 5), (["http://h"], 5), (["http://h:x"], 5)]
)
def test_invalid_arguments(endpoints: list[str], ttl_s: int) -> None:
    with pytest.raises(ConfigError):
        EtcdCoordination(endpoints, "/x", ttl_s=ttl_s)
