"""Connections of a task that sends messages: requests do not wait for responses. Blocking, no event loop.

One connection per address, opened on first use and again after a failure. Each request gets exactly one response: the server's,
the error of its connection, or RequestTimeout. A connection that received nothing for the time limit of a request is closed.
"""

from __future__ import annotations

import selectors
import ssl
import time
from collections.abc import Callable
from typing import NamedTuple

from ariane.errors import ArianeError, ConnectionLost, ProtocolError, RequestTimeout
from ariane.protocol.command import Command
from ariane.protocol.signing import Credentials
from ariane.spark.wire.blocking_connection import BlockingConnection

POLL_MAX_S = 1.0


class PipelinedResponse(NamedTuple):
    """Outcome of a request: the server's response, or an error."""

    token: int
    command: Command | None
    error: ArianeError | None = None


class PipelinedConnectionPool:
    """All connections of one task."""

    def __init__(
        self,
        timeout_ms: int,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_ms = timeout_ms  # limit from the enqueueing of a request to its response
        self._credentials = credentials  # sign requests; None without access control
        self._tls = tls  # None: plain connections
        self._monotonic = monotonic
        # By address; a connection that failed is removed and opened again by the next request.
        self._connections: dict[str, BlockingConnection] = {}
        self._read_at: dict[str, float] = {}  # address → time of the last received bytes
        self._selector = selectors.DefaultSelector()  # waits for all connections at once, without a thread for each
        # Tokens identify requests over all connections, because the opaque numbers of two connections may be equal.
        self._last_token = 0

    def send(self, addr: str, code: int, fields: dict[str, str], body: bytes = b"") -> int:
        """Send a request without waiting; return its token, which the response repeats.

        Raises:
            ConnectionLost: the connection cannot be opened.
        """
        connection = self._connections.get(addr)
        if connection is None:
            connection = self._connections[addr] = BlockingConnection(
                addr, self._timeout_ms, self._credentials, self._tls
            )
            connection.socket.setblocking(False)
            self._read_at[addr] = self._monotonic()
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._last_token += 1
        connection.enqueue(self._last_token, code, fields, body, self._monotonic() + self._timeout_ms / 1000)
        self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
        return self._last_token

    def poll(self, wait_s: float) -> list[PipelinedResponse]:
        """Return the requests that completed or failed; wait at most `wait_s` seconds for one."""
        deadlines = [
            deadline
            for connection in self._connections.values()
            if (deadline := connection.session.next_deadline()) is not None
        ]
        wait_s = max(0.0, min([wait_s, POLL_MAX_S, *(deadline - self._monotonic() for deadline in deadlines)]))
        if not self._connections:
            time.sleep(wait_s)
            return []
        responses: list[PipelinedResponse] = []
        for key, events in self._selector.select(wait_s):
            wire: BlockingConnection = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    wire.write()
                    if not wire.unsent:
                        self._selector.modify(wire.socket, selectors.EVENT_READ, wire)
                if events & selectors.EVENT_READ:
                    responses += [PipelinedResponse(token, command) for token, command in wire.read()]
                    self._read_at[wire.addr] = self._monotonic()
            except (OSError, ProtocolError) as error:
                responses += self._close_connection(wire, getattr(error, "strerror", None) or str(error))
            except ConnectionLost as error:
                responses += self._close_connection(wire, error.reason)
        return responses + self._expire()

    def close(self) -> None:
        for wire in self._connections.values():
            wire.close()
        self._connections.clear()
        self._selector.close()

    def _expire(self) -> list[PipelinedResponse]:
        """Return the requests that exceeded their time limit; close connections that received nothing in the meantime."""
        responses: list[PipelinedResponse] = []
        now = self._monotonic()
        for connection in list(self._connections.values()):
            expired = connection.session.pop_expired(now)
            responses += [
                PipelinedResponse(token, None, RequestTimeout(connection.addr, self._timeout_ms)) for token in expired
            ]
            if expired and self._read_at[connection.addr] <= now - self._timeout_ms / 1000:
                responses += self._close_connection(connection, f"received nothing for {self._timeout_ms} ms")
        return responses

    def _close_connection(self, connection: BlockingConnection, reason: str) -> list[PipelinedResponse]:
        del self._connections[connection.addr], self._read_at[connection.addr]
        self._selector.unregister(connection.socket)
        connection.close()
        return [
            PipelinedResponse(token, None, ConnectionLost(connection.addr, reason))
            for token in connection.session.close()
        ]
