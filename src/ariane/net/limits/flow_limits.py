"""Bounds of a server, shared by all its connections. [RemotingServer's thread pools, BrokerFastFailure]

A connection checks its limits once per batch, not once per request: a batch of 32 frames may exceed them by 31 requests.
Requests that were not read yet wait in the sockets; these limits bound requests that were read and not answered, and
responses that were written and not read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from ariane.net.limits.paced_calls import PacedCalls
from ariane.net.limits.quotas import Quotas
from ariane.net.limits.tick_shares import TickShares
from ariane.net.peer_log import REPEAT_S, PeerLog
from ariane.net.replies import Peer
from ariane.protocol.command import HEADER_MAX, Command

CONNECTIONS_MAX = 16_384
REQUESTS_MAX = 100_000
CONNECTION_REQUESTS_MAX = 16_384
CONNECTION_UNREAD_MAX = 4 * 1024 * 1024
# The last eighth of the requests in flight is for connections with fewer than FEW_REQUESTS: a few others must not fill all.
RESERVED_SHARE = 8
FEW_REQUESTS = 4
UNREAD_MAX = 256 * 1024 * 1024
UNREAD_TIMEOUT_S = 60.0
UNFINISHED_MAX = 512 * 1024 * 1024


class RefusalRecorder(Protocol):
    """Records what a server refuses. [ServerAuditLog]"""

    def refused(self, command: Command, peer: Peer, reason: str) -> None:
        """Record a request that was refused."""
        ...

    def refused_connection(self, peer: Peer, reason: str) -> None:
        """Record a connection that was closed when it was opened."""
        ...


class ServerLimits:
    """Bounds of a server and the counters they apply to. May be changed while the server runs.

    Attributes:
        quotas: Limits in total, per address and per account.
        requests_max: Requests in flight on all connections.
        connection_requests_max: Requests in flight on one connection.
        header_max: Bytes of a request header.
        connection_unread_max: Bytes of unread responses; beyond it a connection is not served until its peer reads.
        unread_timeout_s: A connection is closed if its peer reads nothing for this long meanwhile.
        queue_time_limits_s: Request code -> how long a request may be queued after it was read.
        exempt: Codes that are served even under overload: their handlers reply immediately, and without them (heartbeats)
            slow clients would be considered lost.
        delayed: Codes that are served late, and not refused, beyond a limit of requests per second: consumers of Java would
            repeat a refused pull.
        in_flight: Requests of all connections that have no reply yet.
        may_answer: Checked at each write: while it is false, nothing is written and no request is served, until
            `RemotingServer.release_answers`. None: answers need no permission.
    """

    def __init__(
        self,
        *,
        connections_max: int = CONNECTIONS_MAX,
        requests_max: int = REQUESTS_MAX,
        connection_requests_max: int = CONNECTION_REQUESTS_MAX,
        header_max: int = HEADER_MAX,
        connection_unread_max: int = CONNECTION_UNREAD_MAX,
        unread_max: int = UNREAD_MAX,
        unread_timeout_s: float = UNREAD_TIMEOUT_S,
        unfinished_max: int = UNFINISHED_MAX,
        queue_time_limits_s: Mapping[int, float] | None = None,
        exempt: frozenset[int] = frozenset(),
        delayed: frozenset[int] = frozenset(),
    ) -> None:
        self.may_answer: Callable[[], bool] | None = None
        self.requests_max = requests_max
        self.connection_requests_max = connection_requests_max
        self.header_max = header_max
        self.connection_unread_max = connection_unread_max
        self.unread_timeout_s = unread_timeout_s
        self.quotas = Quotas()  # limits in total, per address and per account
        limits = {
            "serverConnectionsMax": connections_max,
            "serverUnreadMax": unread_max,
            "serverUnfinishedMax": unfinished_max,
        }
        self.quotas.set_limits(limits)
        self.audit: RefusalRecorder | None = None  # records what quotas refuse; None: it is only logged
        self.log = PeerLog(logging.getLogger("ariane.net"))  # logs refusals, at a bounded rate per peer
        # Connections that were reset before they were accepted, as port scans and health checks do.
        self._resets = PeerLog(logging.getLogger("ariane.net"), lines=1, window_s=REPEAT_S)
        self.queue_time_limits_s: Mapping[int, float] = queue_time_limits_s or {}
        self.exempt = exempt
        self.delayed = delayed
        self.ticks = TickShares()  # of the event loop, for the requests of all connections
        self.cancellations = PacedCalls()  # of the requests of lost connections
        self.in_flight = 0  # requests of all connections that a handler has not answered yet

    def log_about(self, peer: Peer, now: float, text: str, *args: object) -> None:
        """Log a warning about a connection. The first `%s` of the text is the peer; one that is unknown is logged as a detail."""
        if peer.is_unknown:
            self._resets.line(logging.INFO, peer.shown, now, text, peer.shown, *args)
        else:
            self.log.warning(peer.ip, now, text, peer.addr, *args)

    def overload_reason(self, of_connection: int) -> str | None:
        """Return why a connection with `of_connection` requests in flight must not accept another; None if it may."""
        limit = self.requests_max
        if of_connection >= FEW_REQUESTS:
            limit -= limit // RESERVED_SHARE
        if self.in_flight >= limit:
            return f"[OVERLOAD]system busy, {self.in_flight} requests are in flight, at most {limit} are allowed"
        if of_connection >= self.connection_requests_max:
            limit = self.connection_requests_max
            return f"[OVERLOAD]system busy, {of_connection} requests of this connection are in flight, at most {limit} are allowed"
        return None

    def rejection(self, code: int, overload: str | None, waited_s: float) -> str | None:
        """Return why a request that was queued for `waited_s` is not served, `overload` if it applies to `code`; None if it is."""
        if overload is not None and code not in self.exempt:
            return overload
        return self.exceeds_queue_time(code, waited_s) if waited_s else None

    def exceeds_queue_time(self, code: int, waited_s: float) -> str | None:
        """Return why a request that was queued for `waited_s` must be rejected; None if it is served."""
        limit_s = self.queue_time_limits_s.get(code)
        if limit_s is None or waited_s <= limit_s:
            return None
        return (
            f"[TIMEOUT_CLEAN_QUEUE]broker busy, period in queue: {waited_s * 1000:.0f}ms "
            f"({limit_s * 1000:.0f}ms are allowed), size of queue: {self.in_flight}"
        )
