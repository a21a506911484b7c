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

WAIT_MAX_S = 1.0


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
        self._wires: dict[str, BlockingConnection] = {}
        self._read_at: dict[str, float] = {}  # address → when something last came
        self._selector = selectors.DefaultSelector()
        self._tokens = 0

    def ask(self, addr: str, code: int, fields: dict[str, str], body: bytes = b"") -> int:
        """Number of the request, which its Answer names; ConnectionLost when there is no connection."""
        wire = self._wires.get(addr)
        if wire is None:
            wire = self._wires[addr] = BlockingConnection(addr, self._timeout_ms, self._credentials, self._tls)
            wire.socket.setblocking(False)
            self._read_at[addr] = self._monotonic()
            self._selector.register(wire.socket, selectors.EVENT_READ, wire)
        self._tokens += 1
        wire.ask(self._tokens, code, fields, body, self._monotonic() + self._timeout_ms / 1000)
        self._selector.modify(wire.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, wire)
        return self._tokens

    def answers(self, wait_s: float) -> list[PipelinedResponse]:
        """What was answered by now, or failed; waits for something at most `wait_s`."""
        deadlines = [at for wire in self._wires.values() if (at := wire.session.next_deadline()) is not None]
        wait_s = max(0.0, min([wait_s, WAIT_MAX_S, *(at - self._monotonic() for at in deadlines)]))
        if not self._wires:
            time.sleep(wait_s)
            return []
        found: list[PipelinedResponse] = []
        for key, events in self._selector.select(wait_s):
            wire: BlockingConnection = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    wire.write()
                    if not wire.unsent:
                        self._selector.modify(wire.socket, selectors.EVENT_READ, wire)
                if events & selectors.EVENT_READ:
                    found += [PipelinedResponse(token, command) for token, command in wire.read()]
                    self._read_at[wire.addr] = self._monotonic()
            except (OSError, ProtocolError) as error:
                found += self._end(wire, getattr(error, "strerror", None) or str(error))
            except ConnectionLost as error:
                found += self._end(wire, error.why)
        return found + self._late()

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()
        self._selector.close()

    def _late(self) -> list[PipelinedResponse]:
        """Requests whose time is up."""
        found: list[PipelinedResponse] = []
        now = self._monotonic()
        for wire in list(self._wires.values()):
            late = wire.session.expired(now)
            found += [PipelinedResponse(token, None, RequestTimeout(wire.addr, self._timeout_ms)) for token in late]
            if late and self._read_at[wire.addr] <= now - self._timeout_ms / 1000:
                found += self._end(wire, f"nothing came for {self._timeout_ms} ms")
        return found

    def _end(self, wire: BlockingConnection, why: str) -> list[PipelinedResponse]:
        del self._wires[wire.addr], self._read_at[wire.addr]
        self._selector.unregister(wire.socket)
        wire.close()
        return [PipelinedResponse(token, None, ConnectionLost(wire.addr, why)) for token in wire.session.end()]
