"""Asks every server of a cluster what `diagnosis` needs: name servers, brokers, members of groups with their subscriptions.

Whatever does not respond is part of the snapshot, with the reason. [DefaultMQAdminExt]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.connection import BrokerServer, gather_bounded, registered_servers
from ariane.cluster.consumer_status import ConsumerState, ConsumerStatusOperations
from ariane.cluster.diagnosis import BrokerState, ClientState, ClusterSnapshot, Finding, NameServerState, diagnose
from ariane.errors import ArianeError
from ariane.model.topic import retry_topic
from ariane.net.name_servers import NameServerClient
from ariane.protocol import fastjson, java_properties
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.routing import ClusterInfo, KvTableBody

GROUPS_AT_ONCE = 32  # groups in flight: each costs a request per master and one per member


class DiagnosisOperations(ConsumerStatusOperations):
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
            asyncio.gather(*(self._broker_state(server, clock) for server in servers)), self._groups(servers)
        )
        return ClusterSnapshot(tuple(state for state, _ in registrations), tuple(brokers), groups, open_files_max)

    async def _registered(self, addr: str) -> tuple[NameServerState, ClusterInfo | None]:
        client = NameServerClient(self.peers, [addr], timeout_ms=self.timeout_ms)
        try:
            info = await client.fetch_cluster()
        except ArianeError as error:
            return NameServerState(addr, None, str(error)), None
        return NameServerState(addr, frozenset(server.addr for server in registered_servers(info))), info

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

    async def _groups(self, servers: Sequence[BrokerServer]) -> Mapping[str, tuple[ClientState, ...]]:
        """Return the members of all groups that have more than one. A group is known by its retry topic."""
        try:
            names = await self.groups_with_retry_topic()
        except ArianeError:
            return {}  # no name server responds, which is a finding of its own
        masters = [server for server in servers if server.is_master]
        members = await gather_bounded((self._members(name, masters) for name in names), GROUPS_AT_ONCE)
        return {name: clients for name, clients in zip(names, members, strict=True) if len(clients) > 1}

    async def _members(self, group: str, masters: Sequence[BrokerServer]) -> tuple[ClientState, ...]:
        connections = await self.consumer_connections(group, masters)
        if connections is None or len(connections.connections) < 2:
            return ()
        states = (await self.consumer_states(group, connections)).states
        return tuple(
            ClientState(client.client_id, str(client.version), _subscriptions(group, states.get(client.client_id)))
            for client in sorted(connections.connections, key=lambda client: client.client_id)
        )


def _subscriptions(group: str, state: ConsumerState | None) -> Mapping[str, str] | None:
    """Return topics and expressions of a member, without the group's own retry topic; None if it did not respond."""
    if state is None:
        return None
    return {data.topic: data.sub_string or "*" for data in state.subscriptions if data.topic != retry_topic(group)}


def open_files_limit() -> int | None:
    """Return the soft limit of open files of this process; None where systems have none."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit
