"""Connections of a task that sends: requests go out without waiting, answers come back as they arrive. Blocking, no loop.

One connection per address, made when first asked and again after it broke. A request has one answer: the peer's, or the error
of its connection, or RequestTimeout. A connection on which nothing came for as long as a request may take is given up.
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
    """How a request ended: with an answer, or with an error."""

    token: int
    command: Command | None
    error: ArianeError | None = None


class PipelinedConnectionPool:
    """All connections of one task; `close` ends them."""

    def __init__(
        self,
        timeout_ms: int,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_ms = timeout_ms
        self._credentials = credentials
        self._tls = tls
        self._monotonic = monotonic
        self._connections: dict[str, BlockingConnection] = {}
        self._read_at: dict[str, float] = {}  # address → when something last came
        self._selector = selectors.DefaultSelector()
        self._last_token = 0

    def send(self, addr: str, code: int, fields: dict[str, str], body: bytes = b"") -> int:
        """Number of the request, which its Answer names; ConnectionLost when there is no connection."""
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
        """What was answered by now, or failed; waits for something at most `wait_s`."""
        deadlines = [
            at for connection in self._connections.values() if (at := connection.session.next_deadline()) is not None
        ]
        wait_s = max(0.0, min([wait_s, POLL_MAX_S, *(at - self._monotonic() for at in deadlines)]))
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
                responses += self._close_connection(wire, error.why)
        return responses + self._expire()

    def close(self) -> None:
        for wire in self._connections.values():
            wire.close()
        self._connections.clear()
        self._selector.close()

    def _expire(self) -> list[PipelinedResponse]:
        """Requests whose time is up."""
        responses: list[PipelinedResponse] = []
        now = self._monotonic()
        for connection in list(self._connections.values()):
            late = connection.session.pop_expired(now)
            responses += [
                PipelinedResponse(token, None, RequestTimeout(connection.addr, self._timeout_ms)) for token in late
            ]
            if late and self._read_at[connection.addr] <= now - self._timeout_ms / 1000:
                responses += self._close_connection(connection, f"nothing came for {self._timeout_ms} ms")
        return responses

    def _close_connection(self, connection: BlockingConnection, why: str) -> list[PipelinedResponse]:
        del self._connections[connection.addr], self._read_at[connection.addr]
        self._selector.unregister(connection.socket)
        connection.close()
        return [
            PipelinedResponse(token, None, ConnectionLost(connection.addr, why)) for token in connection.session.close()
        ]
