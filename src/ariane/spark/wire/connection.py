"""One blocking connection to a server, plain or TLS: a request and its answer, or many requests under way at once.

    calls([question, …]) → answers in the same order

Planning asks two questions about each queue. One after another they cost a round trip each; `calls` keeps some hundred of
them under way, so that 20,000 cost little more than their bytes.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from ariane.errors import ConfigError, ConnectionLost, ProtocolError, RequestTimeout
from ariane.model import host
from ariane.protocol import command as commands
from ariane.protocol.command import Command
from ariane.protocol.frame import FrameReader
from ariane.protocol.requests import fields
from ariane.protocol.signing import Credentials, signed

CONNECT_TIMEOUT_S = 3.0
READ_SIZE = 262_144
UNDER_WAY_MAX = 256  # of some 250 bytes each: they fit into the buffers of both kernels, so neither side waits to write
REFILL = 128  # requests are written in lots of this size


class Question(NamedTuple):
    """A request."""

    code: int
    header: msgspec.Struct
    body: bytes = b""


class TlsOptions(Protocol):
    """What of the options says how to encrypt."""

    @property
    def use_tls(self) -> bool: ...
    @property
    def tls_verify(self) -> str: ...
    @property
    def tls_ca_file(self) -> str: ...
    @property
    def tls_cert_file(self) -> str: ...
    @property
    def tls_key_file(self) -> str: ...


def tls_context(options: TlsOptions) -> ssl.SSLContext | None:
    """How connections are encrypted; None when they are not. ConfigError when a file cannot be used."""
    if not options.use_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.tls_verify == "true"
    context.verify_mode = ssl.CERT_NONE if options.tls_verify == "false" else ssl.CERT_REQUIRED
    key, file = "tlsCaFile", options.tls_ca_file
    try:
        if options.tls_verify != "false":
            if file:
                context.load_verify_locations(file)
            else:
                context.load_default_certs()
        if options.tls_cert_file:
            key, file = "tlsCertFile", options.tls_cert_file
            # Without a password of its own, ssl would ask for one at the terminal.
            context.load_cert_chain(file, options.tls_key_file or None, password=lambda: "")
    except OSError as error:  # ssl.SSLError is one
        fix = f"cannot be used on this machine ({error.strerror or error}); it has to be PEM, its key not encrypted"
        raise ConfigError(key, file, fix) from None
    return context


class Wire:
    """One connection."""

    def __init__(
        self, addr: str, timeout_ms: int, credentials: Credentials | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._addr = addr
        self._credentials = credentials
        self._timeout_ms = timeout_ms
        self._opaque = 0
        self._reader = FrameReader()
        name, port = host.parse(addr)
        try:
            self._socket = socket.create_connection((name, port), CONNECT_TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                with contextlib.ExitStack() as opened:
                    opened.callback(self._socket.close)
                    self._socket = tls.wrap_socket(self._socket, server_hostname=name)
                    opened.pop_all()
        except ssl.SSLError as error:
            fix = "check useTls, tlsCaFile and tlsVerify, and that the server speaks TLS"
            raise ConnectionLost(addr, f"TLS: {error.strerror or error}; {fix}") from error
        except OSError as error:
            raise ConnectionLost(addr, error.strerror or str(error)) from error

    def calls(self, questions: Sequence[Question]) -> list[Command]:
        """The answers in the order of the questions. RequestTimeout when for its time none of them comes."""
        answers: dict[int, Command] = {}
        first = self._opaque + 1
        asked = 0
        try:
            while len(answers) < len(questions):
                if asked < len(questions) and asked - len(answers) <= UNDER_WAY_MAX - REFILL:
                    lot = questions[asked : asked + REFILL]
                    self._socket.settimeout(self._timeout_ms / 1000)
                    self._socket.sendall(b"".join(self._encoded(one) for one in lot))
                    asked += len(lot)
                self._receive(first, first + asked, answers)
        except TimeoutError:
            raise RequestTimeout(self._addr, self._timeout_ms) from None
        except OSError as error:
            raise ConnectionLost(self._addr, error.strerror or str(error)) from error
        return [answers[first + number] for number in range(len(questions))]

    def close(self) -> None:
        self._socket.close()

    def _encoded(self, question: Question) -> bytes:
        self._opaque += 1
        texts = fields(question.header)
        if self._credentials is not None:
            texts = signed(self._credentials, texts, question.body)
        pieces = commands.encode(question.code, opaque=self._opaque, flag=0, fields=texts, body=question.body)
        return b"".join(pieces)

    def _receive(self, first: int, beyond: int, answers: dict[int, Command]) -> None:
        """At least one more answer to a request that is under way."""
        before = len(answers)
        ends_s = time.monotonic() + self._timeout_ms / 1000
        while len(answers) == before:
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            data = self._socket.recv(READ_SIZE)
            if not data:
                raise ConnectionLost(self._addr, "was closed by the other side")
            for frame in self._reader.feed(data):
                answer = commands.decode(frame)
                if answer.is_response and first <= answer.opaque < beyond:
                    if answer.opaque in answers:
                        raise ProtocolError(f"{self._addr} answered request {answer.opaque} twice")
                    answers[answer.opaque] = answer
