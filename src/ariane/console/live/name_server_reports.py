"""What name servers report about their ports (319): the expiry of certificates, and what other machines can do.

Requested once a minute: both change when an operator changes something. A name server of Java reports nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ariane.clock import Clock
from ariane.cluster.servers.name_server_admin import parse_texts
from ariane.errors import ArianeError
from ariane.net.pools.requester import Requester
from ariane.protocol.codes import RequestCode

INTERVAL_S = 60.0


class NameServerReports:
    """The newest reports."""

    def __init__(self, peers: Requester, name_servers: Sequence[str], *, timeout_ms: float, clock: Clock) -> None:
        self._peers = peers
        self._name_servers = tuple(dict.fromkeys(name_servers))
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._due_s = float("-inf")  # monotonic time of the next requests
        # Texts by key; empty if there is nothing to report, or it never responded.
        self.by_addr: Mapping[str, Mapping[str, str]] = {}

    async def refresh(self) -> None:
        """Request the reports if the last ones are older than a minute."""
        now_s = self._clock.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + INTERVAL_S
        reports = await asyncio.gather(*map(self._report, self._name_servers))
        self.by_addr = dict(zip(self._name_servers, reports, strict=True))

    async def _report(self, addr: str) -> Mapping[str, str]:
        try:
            answer = await self._peers.request(addr, RequestCode.GET_NAMESRV_CONFIG, timeout_ms=self._timeout_ms)
        except ArianeError:
            return self.by_addr.get(addr, {})  # without it, an alert would end and begin again
        return parse_texts(answer.body).reported
