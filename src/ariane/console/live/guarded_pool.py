"""Connections of the console: they fail fast, and only to servers of the cluster.

    request ─→ registered? ──no──→ NotRegistered
                 │ yes
                 └─→ `FailFastPool`: a silent server delays a page by one second at most, however often it is asked

Message ids contain addresses, and requests are signed with the cluster's account.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ArianeError, ConnectionLost
from ariane.net.connection import Sign
from ariane.net.pools.fail_fast_pool import FailFastPool
from ariane.net.pools.server_health import ServerHealth
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.routing import ClusterInfo

log = logging.getLogger("ariane.console")

LIMIT_MS = 1_000.0


class NotRegistered(ConnectionLost):
    """The server belongs to no name server's cluster, so the console does not connect to it."""


class GuardedPool(FailFastPool):
    """Connections to the servers of a cluster.

    Args:
        name_servers: Addresses of the name servers; requests to other servers than these and their brokers are refused.
        health: Which servers are silent; shared with other pools.
        tls: Encrypts the connections; None: plain ones.
        limit_ms: Time within which a server responds to a probe.
    """

    def __init__(
        self,
        name_servers: Iterable[str],
        *,
        health: ServerHealth,
        sign: Sign | None = None,
        tls: ssl.SSLContext | None = None,
        limit_ms: float = LIMIT_MS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(
            name_servers, health=health, sign=sign, tls=tls, limit_ms=limit_ms, patience_ms=0.0, clock=clock
        )
        self._brokers: set[str] = set()  # addresses that a name server lists, or listed

    async def _admit(self, addr: str) -> None:
        await self._check_registered(addr)
        await super()._admit(addr)

    async def _check_registered(self, addr: str) -> None:
        """Check that the server is one of the name servers, or a broker that one of them lists.

        Raises:
            NotRegistered: it is not.
            ConnectionLost: no name server responded.
        """
        if addr in self._name_servers or addr in self._brokers:
            return
        is_known = False  # whether a name server responded
        for name_server in self._name_servers:
            try:
                response = await self.request(
                    name_server, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=self._limit_ms
                )
                if response.code == ResponseCode.SUCCESS:
                    for broker in fastjson.decode(response.body, ClusterInfo).broker_addr_table.values():
                        self._brokers.update(broker.broker_addrs.values())
                    is_known = True
            except ArianeError as error:
                log.debug("No list of brokers from %s: %s", name_server, error)
        if addr not in self._brokers and is_known:
            raise NotRegistered(addr, "not asked: no name server lists it")
        if addr not in self._brokers:
            raise ConnectionLost(addr, "not asked: no name server responded whether it belongs to the cluster")
