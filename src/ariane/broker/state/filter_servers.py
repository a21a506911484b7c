"""Filter servers that registered here, told to the name servers with the broker. [FilterServerManager]

4.9.4 ships none any more; what a cluster still has is passed on as it was.
"""

from __future__ import annotations

from ariane.errors import ReplyError
from ariane.protocol.codes import ResponseCode

SILENT_MS = 30_000
FILTER_SERVERS_MAX = 1_000


class FilterServers:
    """Connection → address and when it was last heard of, in the broker's monotonic time."""

    def __init__(self) -> None:
        self._servers: dict[int, tuple[str, float]] = {}

    def register(self, peer_id: int, addr: str, now_ms: float) -> None:
        if peer_id not in self._servers and len(self._servers) >= FILTER_SERVERS_MAX:
            remark = f"{FILTER_SERVERS_MAX} filter servers are registered already"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        self._servers[peer_id] = (addr, now_ms)

    def remove_peer(self, peer_id: int) -> None:
        self._servers.pop(peer_id, None)

    def addresses(self, now_ms: float) -> tuple[str, ...]:
        """Of those that were heard of lately; the others are forgotten."""
        for peer_id, (_, seen_ms) in list(self._servers.items()):
            if now_ms - seen_ms > SILENT_MS:
                del self._servers[peer_id]
        return tuple(sorted({addr for addr, _ in self._servers.values()}))
