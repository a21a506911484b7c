"""Connections of the HTTP server: bounded in number, with deadlines for what a client has to send and to read.

    uvicorn ─→ HttpConnection, one per connection ─→ HttpConnections.add        displaces one above the limits
                                                     HttpConnections.close_late once a second

uvicorn itself only closes connections that are idle after a response.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ariane.net.limits.connection_limits import ConnectionLimits, select_displaced
from ariane.net.peer_log import PeerLog

log = logging.getLogger("ariane.console")
# uvicorn's warnings about requests have no limit, so that a client could fill the disk; HttpConnections has its own.
_errors_only = logging.getLogger("ariane.console.http")
_errors_only.setLevel(logging.ERROR)

# A browser opens 6, and all connections that a proxy forwards have its address. Only requests whose answer is in progress
# hold a place: a new connection displaces one that is idle or whose request is incomplete.
LIMITS = ConnectionLimits(total=512, per_address=128)
HEAD, BODY, RESPONSE = "head", "body", "response"
DEADLINES_S = {
    HEAD: 8.0,  # from the connection or the first byte of a request to the end of its head
    BODY: 8.0,  # to the end of its body, and a second more for each BODY_RATE bytes of it
    RESPONSE: 30.0,  # for each 64 KiB that the client has to read
}
BODY_RATE = 16 * 1024  # bytes per second

_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n"


class Progress(NamedTuple):
    """How far a connection is: it is late if this is the same for too long."""

    phase: str | None  # HEAD, BODY or RESPONSE; None if the client has nothing to send or to read
    request: object  # the current request, or the one before


class HttpConnections:
    """The open connections of a server."""

    def __init__(self, limits: ConnectionLimits = LIMITS, deadlines_s: dict[str, float] = DEADLINES_S) -> None:
        self._limits = limits
        self._deadlines_s = deadlines_s
        self._open: dict[HttpConnection, None] = {}  # oldest first
        self._log = PeerLog(log)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: HttpConnection) -> None:
        """Count a new connection, and close one if there are too many, perhaps itself."""
        self._open[connection] = None
        displaced = select_displaced(connection, list(self._open), self._limits)
        if displaced is None:
            return
        self.warn(displaced, "too many are open")
        self.discard(displaced)
        if displaced is connection:
            displaced.close(_REFUSED)
        else:
            displaced.transport.abort()

    def discard(self, connection: HttpConnection) -> None:
        """Forget a connection that was closed."""
        self._open.pop(connection, None)

    def close_late(self, now_s: float) -> None:
        """Close the connections whose clients have exceeded a deadline. Called once a second."""
        for connection in list(self._open):
            if phase := connection.late_phase(now_s, self._deadlines_s):
                self.warn(connection, f"its {phase} is not complete in time")
                self.discard(connection)
                connection.close(_TIMEOUT if phase != RESPONSE else b"")

    def warn(self, connection: HttpConnection, reason: str) -> None:
        """Log why a connection is closed, unless there are too many lines about its address."""
        now_s = asyncio.get_running_loop().time()
        text = "Closing the connection of %s: %s (%d are open)"
        self._log.warning(connection.ip, now_s, text, connection.ip, reason, len(self._open))


class HttpConnection(H11Protocol):
    """A connection of uvicorn that counts and has deadlines.

    Args:
        connections: The open connections of its server.
        uvicorn: Arguments of uvicorn's class.
    """

    def __init__(self, connections: HttpConnections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.logger = _errors_only
        self._connections = connections  # it is one of them from connection_made to connection_lost
        self._progress = Progress(None, None)  # when it was examined last
        self._progress_since_s = 0.0  # time of the first examination with this progress
        self._received = 0  # bytes in all
        self._received_before = 0  # bytes at that time
        self.ip = "?"  # of the client, or of its proxy

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection."""
        super().connection_made(transport)
        self.ip = self.client[0] if self.client else "?"
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._connections.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes."""
        self._received += len(data)
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, and close the connection. Called by uvicorn."""
        self._connections.warn(self, "its request is invalid")
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # the request was answered before all of it had arrived
            self.transport.close()

    @property
    def is_identified(self) -> bool:
        """Whether a complete request is being answered, to a client that reads."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        return is_answering and self.conn.their_state in (h11.DONE, h11.MUST_CLOSE) and not self.flow.write_paused

    def late_phase(self, now_s: float, deadlines_s: dict[str, float]) -> str | None:
        """Return the phase that takes longer than its deadline; None if none does."""
        progress = Progress(self._phase(), self.cycle)
        if progress != self._progress:
            self._progress, self._progress_since_s, self._received_before = progress, now_s, self._received
        if progress.phase is None:
            return None
        deadline_s = deadlines_s[progress.phase]
        if progress.phase == BODY and not self.cycle.response_complete:
            deadline_s += (self._received - self._received_before) / BODY_RATE
        return progress.phase if now_s - self._progress_since_s >= deadline_s else None

    def close(self, response: bytes) -> None:
        """Close the connection; after `response`, if the client waits for one."""
        is_waiting = self.cycle is None or self.cycle.response_complete or not self.cycle.response_started
        # Browsers open connections in advance: a response without a request would confuse them.
        if is_waiting and response and (self._received or response is _REFUSED):
            self.transport.write(response)
            self.transport.close()
        else:
            self.transport.abort()

    def _phase(self) -> str | None:
        if self.flow.write_paused or self.transport.is_closing():
            return RESPONSE
        if self.timeout_keep_alive_task is not None:
            return None  # idle: uvicorn closes it
        if self.conn.their_state is h11.IDLE:
            return HEAD
        # Reading pauses while the application does not take what has arrived.
        return BODY if self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused else None
