"""The audit log of a server: what is recorded, repeated refusals, a disk that fails, rotation, and pages."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ariane.audit import server_audit_log
from ariane.audit.line_files import LineFiles
from ariane.audit.record_files import audit_files, read_page
from ariane.audit.records import RequestAccount
from ariane.audit.refusal_limits import IN_ALL, PER_ADDRESS, PER_SENDER
from ariane.audit.server_audit_log import ServerAuditLog
from ariane.errors import ReplyError
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.replies import HandlerResult, Peer, Reply, make_peer
from ariane.protocol.codes import RequestCode as Code
from ariane.protocol.command import Command
from ariane.protocol.requests.audit import AuditRecord, GetAuditLog
from ariane.protocol.requests.routing import PutKv, RegisterBroker
from ariane.testing.clock import FakeClock

PEER = make_peer(1, ("10.0.0.5", 4711), ("shop.example",))


class Signatures:
    """An identification to which the account `proven` is proven."""

    def identity(self, command: Command, peer: Peer) -> RequestAccount:
        account = command.field_map().get("AccessKey", "")
        return RequestAccount(account, "signature" if account == "proven" else "")


def command(code: int, account: str = "proven", **fields: str) -> Command:
    return Command(code, 1, 0, fields={"AccessKey": account, **fields})


def peer(number: int) -> Peer:
    return make_peer(number, (f"10.0.{number // 250}.{number % 250}", 4711))


def run(tmp_path: Path, work: Callable[[ServerAuditLog], Awaitable[Any]], **options: Any) -> list[AuditRecord]:
    """Run `work`, close the log, and return all records, the oldest first."""

    async def execute() -> list[AuditRecord]:
        settings = {"file_bytes_max": 1 << 20, "files_max": 3, "clock": FakeClock(), **options}
        log = ServerAuditLog(tmp_path, "broker-a:0", **settings)
        log.identification = Signatures()
        await work(log)
        page = await log.read(GetAuditLog(size=1_000))
        await log.close()
        return list(reversed(page.records))

    return asyncio.run(execute())


def test_changes_are_recorded_when_they_are_answered(tmp_path: Path) -> None:
    answer = asyncio.Event()

    async def slow() -> Reply:
        await answer.wait()
        return Reply(remark="in force")

    def failing(request: Command, sender: Peer) -> HandlerResult:
        raise ReplyError(1, "no such topic")

    async def work(log: ServerAuditLog) -> None:
        handlers = log.with_records(
            {
                Code.DELETE_TOPIC_IN_BROKER: lambda request, sender: slow(),
                Code.UPDATE_AND_CREATE_TOPIC: failing,
                Code.DELETE_ACL_CONFIG: lambda request, sender: Reply(210, remark="no such account"),
                Code.GET_BROKER_CONFIG: lambda request, sender: Reply(),
            }
        )
        handled: Any = handlers[Code.DELETE_TOPIC_IN_BROKER](command(215, topic="orders"), PEER)
        assert (await log.read(GetAuditLog())).records == ()
        answer.set()
        assert (await handled).remark == "in force"
        with pytest.raises(ReplyError):
            handlers[Code.UPDATE_AND_CREATE_TOPIC](command(17, topic="bills"), PEER)
        handlers[Code.DELETE_ACL_CONFIG](command(51, accessKey="shop"), PEER)
        handlers[Code.GET_BROKER_CONFIG](command(26), PEER)

    records = run(tmp_path, work)
    assert [(record.request, record.result, record.resource, record.reason) for record in records] == [
        ("DELETE_TOPIC_IN_BROKER", "done", "topic:orders", "in force"),
        ("UPDATE_AND_CREATE_TOPIC", "failed", "topic:bills", "no such topic"),
        ("DELETE_ACL_CONFIG", "failed", "account:shop", "no such account"),
    ]
    first = records[0]
    assert (first.number, first.server, first.account, first.proof) == (1, "broker-a:0", "proven", "signature")
    assert (first.address, first.certificate) == ("10.0.0.5:4711", "shop.example")
    path = tmp_path / "audit.jsonl"
    assert len(path.read_text().splitlines()) == 3
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_change_whose_connection_closes_is_recorded_as_unknown(tmp_path: Path) -> None:
    async def work(log: ServerAuditLog) -> None:
        never = asyncio.get_running_loop().create_future()
        serve = log.with_records({Code.UPDATE_BROKER_CONFIG: lambda request, sender: never})
        task = asyncio.ensure_future(serve[Code.UPDATE_BROKER_CONFIG](command(25), PEER))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    assert [record.result for record in run(tmp_path, work)] == ["unknown"]


def test_repeated_refusals_are_counted_and_all_of_them_are_accounted_for(tmp_path: Path) -> None:
    clock = FakeClock()

    async def work(log: ServerAuditLog) -> None:
        for _ in range(500):
            log.refused(command(10, "guesser"), PEER, "Check signature failed")
        for number in range(500):  # another account each time
            log.refused(command(10, f"account-{number}"), PEER, "No acl config")
        for number in range(2_000):  # another address each time
            log.refused(command(10, ""), peer(number), "No accessKey is configured")
        await log.record_due_counts()  # the minute is not over
        clock.advance(61)
        await log.record_due_counts()

    records = run(tmp_path, work, clock=clock)
    assert sum(record.count for record in records) == 3_000
    alone = [record for record in records if record.count == 1]
    assert len(alone) == IN_ALL
    assert sum(record.account == "guesser" for record in alone) == PER_SENDER
    assert sum(record.address.startswith("10.0.0.5:") and record.account != "" for record in alone) == PER_ADDRESS
    counted = {(record.account, record.address): record.count for record in records if record.count > 1}
    assert counted == {("guesser", "10.0.0.5"): 490, ("", "10.0.0.5"): 451, ("", ""): 1_459}
    assert not (tmp_path / "audit.jsonl").exists()


def test_refusals_rotate_no_change_away(tmp_path: Path) -> None:
    clock = FakeClock()

    async def work(log: ServerAuditLog) -> None:
        serve = log.with_records({Code.DELETE_TOPIC_IN_BROKER: lambda request, sender: Reply()})
        serve[Code.DELETE_TOPIC_IN_BROKER](command(215, topic="orders"), PEER)
        for _ in range(30):
            for number in range(9):
                log.refused(command(10, "guesser"), peer(number), "x" * 900)
            clock.advance(61)
            await log.read(GetAuditLog())  # written in small parts

    records = run(tmp_path, work, clock=clock, file_bytes_max=65_536)
    assert records[0].resource == "topic:orders"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.jsonl", "audit_refused.1.jsonl", "audit_refused.2.jsonl", "audit_refused.jsonl"]


def test_a_failing_disk_delays_no_request_and_loses_no_silent_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_audit_log, "PENDING_MAX", 5)
    monkeypatch.setattr(server_audit_log, "RETRY_S", 0.01)
    append, is_full = LineFiles.append, [True]

    def fail(files: LineFiles, lines: bytes) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(files, lines)

    monkeypatch.setattr(LineFiles, "append", fail)

    async def work(log: ServerAuditLog) -> None:
        serve = log.with_records({Code.DELETE_TOPIC_IN_BROKER: lambda request, sender: Reply()})
        for number in range(9):
            serve[Code.DELETE_TOPIC_IN_BROKER](command(215, topic=f"T{number}"), PEER)
        assert log.state.describe() == ""
        while log.state.failures < 2:
            await asyncio.sleep(0.001)
        assert log.state.pending + log.state.lost >= 9
        assert log.state.lost
        assert f"{log.state.pending} records wait, {log.state.lost} are lost" in log.state.describe()
        is_full.clear()
        while not (await log.read(GetAuditLog(result="lost"))).records:
            await asyncio.sleep(0.001)
        assert log.state.pending == 0
        assert log.state.lost

    records = run(tmp_path, work)
    lost = [record for record in records if record.result == "lost"]
    assert sum(record.count for record in lost) + len(records) - len(lost) == 9
    assert [record.resource for record in records[:5]] == [f"topic:T{number}" for number in range(5)]
    assert "No space left" in caplog.text


def test_connections_beyond_a_limit_are_recorded_and_counted(tmp_path: Path) -> None:
    async def work(log: ServerAuditLog) -> None:
        for _ in range(PER_SENDER + 7):
            log.refused_connection(PEER, "[QUOTA]addressConnectionsMax: …")

    records = run(tmp_path, work)
    assert {(record.request, record.result, record.account) for record in records} == {("CONNECTION", "refused", "")}
    assert [record.count for record in records] == [1] * PER_SENDER
    (counts,) = [record for record in (read_page(audit_files(tmp_path), GetAuditLog())).records if record.count > 1]
    assert (counts.address, counts.count) == ("10.0.0.5", 7)


def test_refused_slaves_are_recorded_and_counted(tmp_path: Path) -> None:
    async def work(log: ServerAuditLog) -> None:
        for port in range(PER_SENDER + 7):
            log.refused_slave("10.0.0.5", f"10.0.0.5:{port}", "a-slave", "no valid signature")

    records = run(tmp_path, work)
    assert {(record.request, record.result, record.account) for record in records} == {
        ("REPLICATION", "refused", "a-slave")
    }
    assert [record.address for record in records] == [f"10.0.0.5:{port}" for port in range(PER_SENDER)]
    (counts,) = [record for record in (read_page(audit_files(tmp_path), GetAuditLog())).records if record.count > 1]
    assert (counts.address, counts.account, counts.count) == ("10.0.0.5", "a-slave", 7)


def test_a_line_that_a_crash_tore_damages_no_other_and_numbers_continue(tmp_path: Path) -> None:
    async def change(log: ServerAuditLog) -> None:
        serve = log.with_records({Code.DELETE_TOPIC_IN_BROKER: lambda request, sender: Reply()})
        serve[Code.DELETE_TOPIC_IN_BROKER](command(215, topic="orders"), PEER)

    run(tmp_path, change)
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"number":2,"timeMs":17')
    assert [record.number for record in run(tmp_path, change)] == [1, 3]


def test_pages_continue_where_the_last_one_ended(tmp_path: Path) -> None:
    async def work(log: ServerAuditLog) -> None:
        serve = log.with_records({Code.DELETE_TOPIC_IN_BROKER: lambda request, sender: Reply()})
        for number in range(25):
            serve[Code.DELETE_TOPIC_IN_BROKER](command(215, topic=f"T{number % 5}"), PEER)
            log.refused(command(10, f"account-{number}"), peer(number), "No acl config")
            await log.read(GetAuditLog())
        numbers: list[int] = []
        selection = GetAuditLog(size=7)
        while True:
            page = await log.read(selection)
            numbers += [record.number for record in page.records]
            if not page.before:
                break
            selection = GetAuditLog(size=7, before=page.before)
        assert numbers == list(range(50, 0, -1))
        later = await log.read(GetAuditLog(after=48))
        assert [record.number for record in later.records] == [50, 49]
        found = await log.read(GetAuditLog(resource="T3", result="done", request="215", account="proven", size=2))
        assert [record.resource for record in found.records] == ["topic:T3", "topic:T3"]
        assert [record.address for record in (await log.read(GetAuditLog(address="10.0.0.7"))).records] == [
            "10.0.0.7:4711"
        ]

    run(tmp_path, work, file_bytes_max=2_000, files_max=20)


def test_texts_of_peers_are_bounded_and_stay_in_one_line(tmp_path: Path) -> None:
    async def work(log: ServerAuditLog) -> None:
        log.refused(command(10, "a\nb" * 10_000, topic="\ud800" * 10_000), PEER, "x" * 10_000)

    (record,) = run(tmp_path, work)
    assert len(record.account) == 255
    assert max(len(record.reason), len(record.resource)) == 1_000
    (line,) = (tmp_path / "audit_refused.jsonl").read_text().splitlines()
    assert json.loads(line)["account"].startswith("a\nb")


def test_a_name_server_records_changes_and_each_new_registration_once(tmp_path: Path) -> None:
    async def work() -> list[tuple[str, str, str]]:
        config = NameServerConfig(
            bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"), audit_log_enable="true"
        )
        async with NameServer(config) as server, ConnectionPool() as peers:
            broker = RegisterBroker("broker-a", "127.0.0.1:10911", "DefaultCluster", "127.0.0.1:10912", 0)
            for _ in range(3):
                await peers.request_ok(server.addr, Code.REGISTER_BROKER, broker)
            await peers.request_ok(server.addr, Code.PUT_KV_CONFIG, PutKv("orders", "key", "value"))
            await peers.request(server.addr, Code.UPDATE_NAMESRV_CONFIG, None, b"kvConfigPath=/etc/passwd")
            answer = await peers.request(server.addr, Code.GET_AUDIT_LOG)
            assert (answer.code, "without access control" in (answer.remark or "")) == (16, True)
        page = read_page(audit_files(tmp_path / "audit"), GetAuditLog())
        return [(record.request, record.result, record.resource) for record in reversed(page.records)]

    assert asyncio.run(work()) == [
        ("REGISTER_BROKER", "done", "broker:broker-a address:127.0.0.1:10911 cluster:DefaultCluster id:0"),
        ("PUT_KV_CONFIG", "done", "namespace:orders key:key"),
        ("UPDATE_NAMESRV_CONFIG", "failed", "setting:kvConfigPath"),
    ]
