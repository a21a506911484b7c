"""A Lease of Kubernetes as coordination service, against a scripted API server: one object with a resourceVersion, and faults."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.failover.failover_settings import open_coordination
from ariane.broker.failover.waiting import SystemBootClock
from ariane.errors import ConfigError, CoordinationUnavailable, InvalidLeaderRecord
from ariane.failover.coordination import RecordSnapshot, WriteOutcome, WriteResult
from ariane.failover.kubernetes import LEASE, RECORD, KubernetesAccess, KubernetesCoordination
from ariane.failover.leader_record import InSyncMember, LeaderRecord
from ariane.testing.disk import FakeDisk
from failover_members import TTL_S, configs_of, leads, members, until

A, B = InSyncMember("a", "1"), InSyncMember("b", "1")
PATH = "/apis/coordination.k8s.io/v1/namespaces/prod/leases"
NAME = "ariane-c-broker-a"


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def boottime(self) -> float:
        return self.now_s


class ApiServer:
    """Stores one Lease as an API server does: POST creates, PUT replaces the version that it names, GET is linearizable."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self.version = 100
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.lost = 0  # writes to apply without an answer
        self.ignored = 0  # requests to neither execute nor answer
        self.status = 0  # of all answers
        self.before_write: Callable[[], None] = lambda: None
        self.port = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ApiServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {
                    name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers["content-length"]))
                answer = self._answer(method, path, headers, json.loads(body) if body else None)
                if answer is None:
                    break
                status, result = answer
                data = json.dumps(result).encode()
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        writer.close()

    def _answer(self, method: str, path: str, headers: dict[str, str], body: Any) -> tuple[int, Any] | None:
        self.requests.append((method, headers, body))
        if self.ignored:
            self.ignored -= 1
            return None
        if self.status:
            return self.status, {"kind": "Status", "message": "scripted"}
        if method == "GET":
            assert path == f"{PATH}/{NAME}"
            return (200, self.stored) if self.stored else (404, {"reason": "NotFound"})
        self.before_write()
        result = self._write(method, path, body)
        if self.lost:
            self.lost -= 1
            return None
        return result

    def _write(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        meta = body["metadata"]
        assert (body["apiVersion"], body["kind"]) == ("coordination.k8s.io/v1", "Lease")
        if method == "POST":
            assert path == PATH
            if self.stored:
                return 409, {"reason": "AlreadyExists"}
            meta["uid"] = "u1"
        elif self.stored is None:
            return 404, {"reason": "NotFound"}
        elif (meta.get("uid"), meta.get("resourceVersion")) != ("u1", self.stored["metadata"]["resourceVersion"]):
            return 409, {"reason": "Conflict"}
        self.touch(body)
        return (201 if method == "POST" else 200), body

    def touch(self, body: Any) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.stored = json.loads(json.dumps(body))

    def annotate(self) -> None:
        """Change the object as another program does that does not take part."""
        assert self.stored is not None
        body = json.loads(json.dumps(self.stored))
        body["metadata"]["annotations"]["other"] = "x"
        self.touch(body)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(60):
                await test(*args, **named)

        asyncio.run(limited())

    return run


@contextlib.asynccontextmanager
async def clients(server: ApiServer, count: int = 2, **options: Any) -> AsyncIterator[list[KubernetesCoordination]]:
    async with server.serving(), contextlib.AsyncExitStack() as stack:
        result = []
        for _ in range(count):
            url = f"kubernetes+http://127.0.0.1:{server.port}/prod"
            client = KubernetesCoordination([url], NAME, **{"ttl_s": 10, "clock": ManualClock()} | options)
            stack.push_async_callback(client.close)
            result.append(client)
        yield result


def record(holder: str, epoch: int, version: int = 0) -> LeaderRecord:
    token = f"{holder}.{epoch}.{version}"
    return LeaderRecord(holder=holder, epoch=epoch, in_sync=(A, B), set_version=version, token=token)


def result_of(result: WriteResult, outcome: WriteOutcome) -> RecordSnapshot:
    assert result.outcome is outcome
    assert result.snapshot is not None
    return result.snapshot


def done(result: WriteResult) -> RecordSnapshot:
    return result_of(result, WriteOutcome.DONE)


def refused(result: WriteResult) -> RecordSnapshot:
    return result_of(result, WriteOutcome.REFUSED)


@in_loop
async def test_one_lease_and_one_record() -> None:
    server = ApiServer()
    async with clients(server) as (a, b):
        assert await b.read() == RecordSnapshot(None, "", "")
        first = done(await a.create(record("", 0)))
        assert refused(await b.create(record("b", 0, 7))) == first == await b.read()
        assert first.lease == ""
        led = done(await a.acquire(first, record("a", 1)))
        assert led.lease
        assert refused(await b.acquire(first, record("b", 1))).record == record("a", 1)
        renewed = done(await a.renew(led))
        assert (renewed.record, renewed.version, renewed.lease != led.lease) == (led.record, led.version, True)
        assert refused(await a.renew(led)) == renewed, "a late renewal replaces no newer lease"
        swapped = done(await a.swap(led, record("a", 1, 1)))
        assert refused(await a.swap(led, record("a", 1, 2))) == swapped
        assert refused(await b.renew(first)) == swapped
        freed = done(await a.release(swapped, record("a", 1, 3)))
        assert freed.lease == ""
        assert refused(await a.swap(freed, record("a", 1, 4))) == freed
        assert done(await b.acquire(freed, record("b", 2))).record == record("b", 2)
    assert server.stored is not None
    spec = server.stored["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("b", 10, 2)
    assert spec["renewTime"].endswith("Z")


@in_loop
async def test_a_lease_ends_only_after_its_ttl_on_the_clock_of_the_candidate() -> None:
    server, late, early = ApiServer(), ManualClock(), ManualClock()
    async with clients(server, 1) as (holder,), clients(server, 1, clock=early) as (b,):
        led = done(await holder.acquire(done(await holder.create(record("", 0))), record("a", 1)))
        assert (await b.read()).lease == led.lease
        early.now_s += 9.9
        assert (await b.read()).lease == led.lease
        renewed = done(await holder.renew(led))
        early.now_s += 9.9
        assert (await b.read()).lease == renewed.lease, "the ttl counts from when the renewal was seen"
        early.now_s += 9.9
        async with clients(server, 1, clock=late) as (fresh,):
            late.now_s = 1e6
            assert (await fresh.read()).lease == renewed.lease, "a candidate that starts waits a ttl"
        early.now_s += 0.2
        free = await b.read()
        assert free == RecordSnapshot(record("a", 1), renewed.version, "")
        assert done(await b.acquire(free, record("b", 2))).lease
        assert refused(await holder.renew(renewed)).record == record("b", 2)


@in_loop
async def test_a_longer_ttl_of_the_holder_counts() -> None:
    server, clock = ApiServer(), ManualClock()
    async with clients(server, 1, ttl_s=60) as (holder,), clients(server, 1, clock=clock) as (b,):
        led = done(await holder.acquire(done(await holder.create(record("", 0))), record("a", 1)))
        assert (await b.read()).lease == led.lease
        clock.now_s += 59
        assert (await b.read()).lease == led.lease


@in_loop
async def test_a_renewal_between_read_and_write_refuses_the_candidate() -> None:
    server, clock = ApiServer(), ManualClock()
    async with clients(server, 1) as (holder,), clients(server, 1, clock=clock) as (b,):
        led = done(await holder.acquire(done(await holder.create(record("", 0))), record("a", 1)))
        await b.read()
        clock.now_s += 10
        free = await b.read()
        assert free.lease == ""

        def renew() -> None:
            server.before_write = lambda: None
            server.annotate()
            assert server.stored is not None
            server.stored["metadata"]["annotations"][LEASE] = "renewed"

        server.before_write = renew
        assert refused(await b.acquire(free, record("b", 2))).lease == "renewed"
        assert led.record == record("a", 1)


@pytest.mark.parametrize("operation", ["create", "acquire", "renew", "swap", "release"])
@in_loop
async def test_a_write_whose_answer_is_lost_is_recognized(operation: str) -> None:
    server = ApiServer()
    async with clients(server, 1) as (a,):
        if operation == "create":
            server.lost = 1
            done(await a.create(record("", 0)))
            return
        free = done(await a.create(record("", 0)))
        if operation == "acquire":
            server.lost = 1
            assert done(await a.acquire(free, record("a", 1))).lease
            return
        led = done(await a.acquire(free, record("a", 1)))
        server.lost = 1
        match operation:
            case "renew":
                assert done(await a.renew(led)).lease not in ("", led.lease)
            case "swap":
                assert done(await a.swap(led, record("a", 1, 1))).record == record("a", 1, 1)
            case _:
                assert done(await a.release(led, record("a", 1, 1))).lease == ""


@in_loop
async def test_other_changes_of_the_object_cost_an_attempt_and_stay() -> None:
    server = ApiServer()
    async with clients(server, 1) as (a,):
        led = done(await a.acquire(done(await a.create(record("", 0))), record("a", 1)))
        calls = 0

        def annotate_once() -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                server.annotate()

        server.before_write = annotate_once
        done(await a.renew(led))
        assert calls == 2
    assert server.stored is not None
    assert server.stored["metadata"]["annotations"]["other"] == "x"


@in_loop
async def test_without_an_answer_the_outcome_is_unknown() -> None:
    server = ApiServer()
    async with clients(server, 1) as (a,):
        free = done(await a.create(record("", 0)))
        for fault in ("status", "ignored"):
            setattr(server, fault, 503)
            assert (await a.acquire(free, record("a", 1))).outcome is WriteOutcome.UNKNOWN
            with pytest.raises(CoordinationUnavailable):
                await a.read()
            setattr(server, fault, 0)
        server.status = 403
        assert (await a.acquire(free, record("a", 1))).outcome is WriteOutcome.UNKNOWN
        server.status = 0
        assert (await a.read()).record == record("", 0)


@in_loop
async def test_a_server_that_does_not_answer_is_tried_last() -> None:
    server = ApiServer()
    async with server.serving():
        urls = ["kubernetes+http://127.0.0.1:1/prod", f"kubernetes+http://127.0.0.1:{server.port}/prod"]
        client = KubernetesCoordination(urls, NAME, ttl_s=10, clock=ManualClock())
        for _ in range(2):
            assert (await client.read()).record is None
        await client.close()


@in_loop
async def test_a_foreign_lease_is_no_record() -> None:
    server = ApiServer()
    server.touch({"metadata": {"name": NAME, "uid": "u1"}, "spec": {"holderIdentity": "controller"}})
    async with clients(server, 1) as (a,):
        with pytest.raises(InvalidLeaderRecord, match="of another program"):
            await a.read()
        server.stored["metadata"]["annotations"] = {RECORD: "{}"}  # type: ignore[index]
        with pytest.raises(InvalidLeaderRecord):
            await a.read()


@in_loop
async def test_the_token_is_read_for_each_request(tmp_path: Path) -> None:
    server, token = ApiServer(), tmp_path / "token"
    async with clients(server, 1, access=KubernetesAccess(str(token))) as (a,):
        for text in ("first", "second"):
            token.write_text(f"{text}\n")
            await a.read()
        token.unlink()
        await a.read()
    assert [headers.get("authorization") for _, headers, _ in server.requests] == [
        "Bearer first",
        "Bearer second",
        None,
    ]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"failover_endpoints": "kubernetes"}, "needs the service account of a pod"),
        ({"failover_endpoints": "kubernetes+https://h:1"}, r"expected kubernetes\+https://host:port/namespace"),
        ({"failover_endpoints": "kubernetes+https://h:1/a;kubernetes+https://h:1/b"}, "one namespace"),
        ({"failover_endpoints": "kubernetes+http://h:1/a", "failover_prefix": "/ariane"}, "the name of a Lease"),
    ],
)
def test_invalid_settings(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_coordination(BrokerConfig(**settings))  # type: ignore[arg-type]


@in_loop
async def test_a_set_elects_a_master_and_hands_over() -> None:
    server = ApiServer()
    configs, disks = configs_of("ab"), {name: FakeDisk() for name in "ab"}
    async with server.serving(), contextlib.AsyncExitStack() as stack:
        brokers = {}
        for name, config in configs.items():
            url = f"kubernetes+http://127.0.0.1:{server.port}/prod"
            service = KubernetesCoordination([url], NAME, ttl_s=TTL_S, clock=SystemBootClock())
            started = members({name: config}, disks, service, creates_set=name == "a")  # type: ignore[arg-type]
            brokers |= await stack.enter_async_context(started)
        await leads(brokers["a"])
        await until(lambda: len(brokers["a"].agent.state.snapshot.record.in_sync) == 2)
        brokers["a"].hand_over("b")
        await leads(brokers["b"])
        await brokers["b"].__aexit__(None, None, None)
        await leads(brokers["a"])
