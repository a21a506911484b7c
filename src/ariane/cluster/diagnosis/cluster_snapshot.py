"""Asks every server of a cluster what `diagnosis` needs: name servers, brokers, and groups (`group_snapshot`).

Whatever does not respond is part of the snapshot, with the reason. [DefaultMQAdminExt]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.connection import BrokerServer, registered_servers
from ariane.cluster.diagnosis.cluster_checks import diagnose
from ariane.cluster.diagnosis.findings import BrokerState, ClusterSnapshot, Finding, NameServerState
from ariane.cluster.diagnosis.group_snapshot import GroupSnapshotOperations
from ariane.cluster.servers.name_server_admin import parse_texts
from ariane.errors import ArianeError
from ariane.net.pools.name_servers import NameServerClient
from ariane.protocol import fastjson, java_properties
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.routing import ClusterInfo, KvTableBody


class DiagnosisOperations(GroupSnapshotOperations):
    """Operations that look for faults of a cluster."""

    async def diagnose(self, *, open_files_max: int | None = None, clock: Clock = SYSTEM_CLOCK) -> list[Finding]:
        """Return what is wrong with the cluster, errors first; an empty list if nothing is.

        Args:
            open_files_max: Limit of open files of a process of this machine; None: unknown.
            clock: This machine's clock.
        """
        return diagnose(await self.fetch_snapshot(open_files_max=open_files_max, clock=clock))

    async def fetch_snapshot(
        self, *, open_files_max: int | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> ClusterSnapshot:
        """Ask all servers concurrently. Arguments: `diagnose`."""
        registrations = await asyncio.gather(*(self._registered(addr) for addr in self.name_servers))
        infos = [info for _, info in registrations if info is not None]
        servers = sorted({server for info in infos for server in registered_servers(info)})
        brokers, groups = await asyncio.gather(
            asyncio.gather(*(self._broker_state(server, clock) for server in servers)),
            self.group_states(servers, clock),
        )
        return ClusterSnapshot(tuple(state for state, _ in registrations), tuple(brokers), groups, open_files_max)

    async def _registered(self, addr: str) -> tuple[NameServerState, ClusterInfo | None]:
        client = NameServerClient(self.peers, [addr], timeout_ms=self.timeout_ms)
        try:
            info = await client.fetch_cluster()
        except ArianeError as error:
            return NameServerState(addr, None, str(error)), None
        brokers = frozenset(server.addr for server in registered_servers(info))
        return NameServerState(addr, brokers, reported=await self._reported(addr)), info

    async def _reported(self, addr: str) -> Mapping[str, str]:
        try:
            return parse_texts((await self.request(addr, RequestCode.GET_NAMESRV_CONFIG)).body).reported
        except ArianeError:
            return {}  # refused: the name server has access control

    async def _broker_state(self, server: BrokerServer, clock: Clock) -> BrokerState:
        try:
            await self.peers.connect(server.addr)  # the time of connecting would widen the bounds of the clock's offset
            before_ms = clock.now_ms()
            answer = await self.request(server.addr, RequestCode.GET_BROKER_RUNTIME_INFO)
            after_ms = clock.now_ms()
            runtime = fastjson.decode(answer.body, KvTableBody).table
        except ArianeError as error:
            return BrokerState(server, None, None, str(error))
        half_ms = (after_ms - before_ms + 1) // 2
        try:
            body = (await self.request(server.addr, RequestCode.GET_BROKER_CONFIG)).body
            config = java_properties.parse(body.decode(errors="replace"))
        except ArianeError as error:
            return BrokerState(server, runtime, None, str(error), before_ms + half_ms, half_ms)
        return BrokerState(server, runtime, config, "", before_ms + half_ms, half_ms)


def open_files_limit() -> int | None:
    """Return the soft limit of open files of this process; None where systems have none."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit
