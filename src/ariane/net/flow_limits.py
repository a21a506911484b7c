"""What a server takes on at once, shared by all its connections. [RemotingServer's thread pools, BrokerFastFailure]

A connection looks at its limits once a turn, not once a request: a turn of 32 frames may so go 31 requests beyond.
Requests that are not read yet wait in the sockets; what is here bounds those that were read and are not answered, and the
answers that were written and are not read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from ariane.net.peer_log import PeerLog
from ariane.net.unread_responses import UnreadResponses
from ariane.protocol.command import HEADER_MAX

CONNECTIONS_MAX = 16_384
REQUESTS_MAX = 100_000
CONNECTION_REQUESTS_MAX = 16_384
CONNECTION_UNREAD_MAX = 4 * 1024 * 1024
UNREAD_MAX = 256 * 1024 * 1024
UNREAD_TIMEOUT_S = 60.0
UNFINISHED_MAX = 512 * 1024 * 1024


class PeerQuota(Protocol):
    """A connection that has received a part of a frame."""

    def drop(self, why: str) -> None:
        """Close the connection at once."""
        ...


class UnfinishedFrames:
    """Bytes of frames that have come in part, on all connections: the oldest goes when they are too many.

    A peer that means well sends the rest of a frame at once; one that holds its frame back is the oldest before long.
    """

    def __init__(self, total_max: int) -> None:
        self.total_max = total_max
        self.total = 0
        self._sizes: dict[PeerQuota, int] = {}  # in the order in which their frames began

    def note(self, sender: PeerQuota, size: int) -> None:
        """Record that `sender` has `size` bytes of an unfinished frame; 0: it is finished."""
        self.total += size - self._sizes.get(sender, 0)
        if size:
            self._sizes[sender] = size
        else:
            self._sizes.pop(sender, None)
        while self.total > self.total_max and self._sizes:
            oldest = next(iter(self._sizes))
            self.total -= self._sizes.pop(oldest)
            oldest.drop(f"all connections together have more than {self.total_max} bytes of unfinished frames")


class ServerLimits:
    """Bounds that may be changed while the server runs, and the count that they bound.

    `header_max` bounds the header of a request. A connection with more than `connection_unread_max` bytes of unread answers is
    not served until it has read some, and closed when it reads none for `unread_timeout_s`; `unread_max` bounds the unread
    answers of all connections, `unfinished_max` their unfinished frames.

    `waits_s` is how long a request of a code may wait for its turn after it was read; `exempt` codes are served even when
    too much is under way: their handlers answer at once, and without them clients would be lost that are only slow.
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
    ) -> None:
        self.connections_max = connections_max
        self.requests_max = requests_max
        self.connection_requests_max = connection_requests_max
        self.header_max = header_max
        self.connection_unread_max = connection_unread_max
        self.unread_timeout_s = unread_timeout_s
        self.unread = UnreadResponses(unread_max)
        self.unfinished = UnfinishedFrames(unfinished_max)
        self.log = PeerLog(logging.getLogger("ariane.net"))
        self.queue_time_limits_s: Mapping[int, float] = queue_time_limits_s or {}
        self.exempt = exempt
        self.in_flight = 0  # requests of all connections that a handler has not answered yet

    def overload_reason(self, of_connection: int) -> str | None:
        """Why no further request is taken on by a connection that has `of_connection` under way; None: it is."""
        if self.in_flight >= self.requests_max:
            return f"[OVERLOAD]system busy, {self.in_flight} requests are under way, {self.requests_max} are allowed"
        if of_connection >= self.connection_requests_max:
            most = self.connection_requests_max
            return (
                f"[OVERLOAD]system busy, {of_connection} requests of this connection are under way, {most} are allowed"
            )
        return None

    def exceeds_queue_time(self, code: int, waited_s: float) -> str | None:
        """Why a request that waited so long for its turn is not served any more; None: it is."""
        limit_s = self.queue_time_limits_s.get(code)
        if limit_s is None or waited_s <= limit_s:
            return None
        return (
            f"[TIMEOUT_CLEAN_QUEUE]broker busy, period in queue: {waited_s * 1000:.0f}ms "
            f"({limit_s * 1000:.0f}ms are allowed), size of queue: {self.in_flight}"
        )
