"""A blocking connection to a server, plain or TLS: framing, signing, and matching of responses to requests.

    call_all([request, …]) → responses in the same order    blocks; pipelines many requests
    enqueue, write, read                                     non-blocking, for `PipelinedConnectionPool`

    enqueue ─→ unsent ─→ socket ─→ FrameReader ─→ Session (matches responses) ─→ responses

Planning sends two requests for each queue. One after another they would cost a round trip each; `call_all` keeps a few hundred
in flight, so that 20,000 requests take little more time than the transfer of their bytes.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ariane.errors import ConnectionLost, ProtocolError, RequestTimeout
from ariane.model import host
from ariane.net.tls import camel_case, tls_fault
from ariane.protocol import command as commands
from ariane.protocol.codes import code_name
from ariane.protocol.command import Command
from ariane.protocol.frame import FrameReader
from ariane.protocol.requests import encode_header
from ariane.protocol.session import Session
from ariane.protocol.signing import Credentials, sign

CONNECT_TIMEOUT_S = 3.0
READ_SIZE = 262_144  # larger than a TLS record, so that no decrypted rest stays inside the SSL object, where select() cannot see it
IN_FLIGHT_MAX = (
    256  # about 250 bytes each: they fit into both kernels' socket buffers, so neither side blocks while writing
)
WRITE_LOT = 128  # requests per write
NEVER = float("inf")
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)  # raised by non-blocking sockets


class Request(NamedTuple):
    """A request to send."""

    code: int
    header: msgspec.Struct | None = None
    body: bytes = b""


class BlockingConnection:
    """An open connection; the constructor connects.

    `session` holds the requests without a response, by number; `unsent` the bytes that `write` has to send.
    """

    def __init__(
        self, addr: str, timeout_ms: int, credentials: Credentials | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.addr = addr  # host and port, for error messages and to count failures by server
        self.unsent = bytearray()
        self.session: Session[int] = Session()
        self._timeout_ms = timeout_ms  # limit of a whole request and of each blocking write
        self._credentials = credentials  # sign requests; None without access control
        self._frames = FrameReader()  # joins received bytes into frames: a read may end within one
        # Public, because the pool of pipelined connections registers it with a selector.
        self.socket = _connect(addr, tls)

    def call_all(self, requests: Sequence[Request]) -> list[Command]:
        """Send requests, pipelined, and return their responses in the same order.

        Raises:
            RequestTimeout: no response arrived within the time limit.
            ConnectionLost: the connection failed.
        """
        responses: dict[int, Command] = {}
        sent = 0
        try:
            while len(responses) < len(requests):
                if sent < len(requests) and sent - len(responses) <= IN_FLIGHT_MAX - WRITE_LOT:
                    for request in requests[sent : sent + WRITE_LOT]:
                        fields = encode_header(request.header) if request.header else {}
                        self.enqueue(sent, request.code, fields, request.body)
                        sent += 1
                    self.socket.settimeout(self._timeout_ms / 1000)
                    self.socket.sendall(self.unsent)
                    self.unsent.clear()
                responses.update(self._receive())
        except TimeoutError:
            raise RequestTimeout(self.addr, self._timeout_ms) from None
        except OSError as error:
            raise ConnectionLost(self.addr, error.strerror or str(error)) from error
        return [responses[number] for number in range(len(requests))]

    def enqueue(self, number: int, code: int, fields: dict[str, str], body: bytes, deadline_s: float = NEVER) -> None:
        """Append a request to `unsent`; `read` returns its response with `number`."""
        if self._credentials is not None:
            fields = sign(self._credentials, fields, body)
        opaque = self.session.register(number, deadline_s)
        try:
            pieces = commands.encode(code, opaque=opaque, flag=0, fields=fields, body=body)
        except ProtocolError as error:
            self.session.resolve(opaque)
            raise ProtocolError(f"cannot send request {code_name(code)} to {self.addr}: {error}") from None
        for piece in pieces:
            self.unsent += piece

    def write(self) -> None:
        """Write as many unsent bytes as the socket accepts."""
        with contextlib.suppress(*_WOULD_BLOCK):
            del self.unsent[: self.socket.send(self.unsent)]

    def read(self) -> list[tuple[int, Command]]:
        """Return the responses that are readable now, with their numbers; late and unknown ones are dropped.

        Raises:
            ConnectionLost: the server closed the connection.
        """
        try:
            data = self.socket.recv(READ_SIZE)
        except _WOULD_BLOCK:
            return []
        if not data:
            raise ConnectionLost(self.addr, "was closed by the server")
        responses = []
        for frame in self._frames.feed(data):
            response = commands.decode(frame)
            number = self.session.resolve(response.opaque) if response.is_response else None
            if number is not None:
                responses.append((number, response))
        return responses

    def close(self) -> None:
        self.socket.close()

    def _receive(self) -> list[tuple[int, Command]]:
        """Wait for at least one response; raise TimeoutError if none arrives in time."""
        deadline_s = time.monotonic() + self._timeout_ms / 1000
        while (remaining_s := deadline_s - time.monotonic()) > 0:
            self.socket.settimeout(remaining_s)
            if responses := self.read():
                return responses
        raise TimeoutError


def _connect(addr: str, tls: ssl.SSLContext | None) -> socket.socket:
    name, port = host.parse(addr)
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((name, port), CONNECT_TIMEOUT_S))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                connection = tls.wrap_socket(connection, server_hostname=name)
            stack.pop_all()
    except ssl.SSLError as error:
        raise ConnectionLost(addr, tls_fault(error, camel_case)) from error
    except OSError as error:
        raise ConnectionLost(addr, error.strerror or str(error)) from error
    return connection
