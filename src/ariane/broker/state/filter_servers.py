"""Filter servers that are registered at this broker and announced with it to the name servers. [FilterServerManager]

4.9.4 does not ship filter servers any more; those that a cluster still runs are passed on unchanged.
"""

from __future__ import annotations

from ariane.errors import ReplyError
from ariane.protocol.codes import ResponseCode

SILENT_MS = 30_000  # a registration expires this long after its last renewal
FILTER_SERVERS_MAX = 1_000


class FilterServers:
    """Address and time of the last registration, by connection. Times are monotonic."""

    def __init__(self) -> None:
        self._servers: dict[int, tuple[str, float]] = {}

    def register(self, peer_id: int, addr: str, now_ms: float) -> None:
        """Add or renew the registration of a connection."""
        if peer_id not in self._servers and len(self._servers) >= FILTER_SERVERS_MAX:
            remark = f"cannot register the filter server: this broker has {FILTER_SERVERS_MAX}, the maximum"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        self._servers[peer_id] = (addr, now_ms)

    def remove_peer(self, peer_id: int) -> None:
        """Remove the registration of a closed connection."""
        self._servers.pop(peer_id, None)

    def addresses(self, now_ms: float) -> tuple[str, ...]:
        """Return the addresses of filter servers that registered recently, and remove the others."""
        for peer_id, (_, seen_ms) in list(self._servers.items()):
            if now_ms - seen_ms > SILENT_MS:
                del self._servers[peer_id]
        return tuple(sorted({addr for addr, _ in self._servers.values()}))
