"""Audit logs of brokers and name servers on one page, without servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from scripted_cluster import FIRST, NAMESRV, SECOND, FixedLive, ScriptedCluster

from ariane.console.areas.access.server_audit import ServerAuditQuery, ServerAuditView, server_audit
from ariane.console.live.live_snapshot import LiveSnapshot
from ariane.console.services import ConsoleServices
from ariane.console.settings import ConsoleSettings
from ariane.net.pools.requester import ServerRequest
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.audit import AuditPage, AuditRecord
from ariane.testing.clock import FakeClock


class AuditedCluster(ScriptedCluster):
    """Two brokers and a name server with these settings, each with one record."""

    def __init__(self, name_server: str) -> None:
        super().__init__(first={})
        self.name_server = name_server
        self.asked: list[str] = []

    async def exchange(self, request: ServerRequest) -> Command:
        addr, code = request.addr, request.code
        if code == RequestCode.GET_NAMESRV_CONFIG:
            return Command(ResponseCode.SUCCESS, 0, 1, None, None, self.name_server.encode())
        if code == RequestCode.GET_AUDIT_LOG:
            self.asked.append(addr)
            time_ms = 2 if addr == NAMESRV else 1
            record = AuditRecord(
                number=7, time_ms=time_ms, server="name server", request="REGISTER_BROKER", result="done"
            )
            return Command(ResponseCode.SUCCESS, 0, 1, None, None, fastjson.write(AuditPage((record,))))
        return await super().exchange(request)


def page(cluster: AuditedCluster, data_dir: Path) -> ServerAuditView:
    settings = ConsoleSettings(namesrv=NAMESRV, data_dir=data_dir)
    live = FixedLive(LiveSnapshot(as_of_ms=1))
    services = ConsoleServices(settings=settings, peers=cluster, live=live, clock=FakeClock())
    return asyncio.run(server_audit(services, ServerAuditQuery()))


def test_name_servers_with_an_audit_log_are_asked(tmp_path: Path) -> None:
    for settings, is_asked in (
        ("auditLogEnable=true\naclEnable=false", True),
        ("auditLogEnable=auto\naclEnable=true", True),
        ("auditLogEnable=auto\naclEnable=false", False),
        ("auditLogEnable=false\naclEnable=true", False),
        ("listenPort=9876", False),  # of Java
    ):
        cluster = AuditedCluster(settings)
        view = page(cluster, tmp_path)
        assert set(cluster.asked) == {FIRST, SECOND, *([NAMESRV] if is_asked else [])}, settings
        names = [row.server for row in view.records.items]
        brokers = {"broker-a:0", "broker-b:0"}
        assert (names[0], set(names[1:])) == ("name server ns:1", brokers) if is_asked else set(names) == brokers


def test_a_name_server_that_does_not_respond_is_named(tmp_path: Path) -> None:
    cluster = AuditedCluster("auditLogEnable=true")
    answer = cluster.exchange

    async def exchange(request: ServerRequest) -> Command:
        if request.code == RequestCode.GET_NAMESRV_CONFIG:
            return Command(ResponseCode.SYSTEM_ERROR, 0, 1, "no permission")
        return await answer(request)

    cluster.exchange = exchange  # type: ignore[method-assign]
    view = page(cluster, tmp_path)
    assert len(view.records.items) == 2
    assert len(view.unavailable) == 1 and "ns:1" in view.unavailable[0] and "no permission" in view.unavailable[0]
