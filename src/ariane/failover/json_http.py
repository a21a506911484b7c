"""HTTP/1.1 requests with JSON bodies over connections that stay open: what the gateways of coordination services need, and no more.

A request has one time limit, from connecting to the last byte of the response. After any failure the connection is closed, because
the response of an abandoned request would otherwise be read as that of the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ariane.errors import ConfigError, ConnectionLost, ProtocolError

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 4 * 1024 * 1024


class JsonResponse(NamedTuple):
    """A response whose body is a JSON object, or text that became `{"message": text}`."""

    status: int
    body: dict[str, Any]


class JsonEndpoint:
    """One server, with one connection at a time. Requests of one endpoint must not overlap."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        """Prepare an endpoint.

        Args:
            url: `http://host:port` or `https://host:port`.
            tls: Certificates for https; None for those that the system trusts.

        Raises:
            ConfigError: the URL is invalid.
        """
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname or port is None or parts.path not in ("", "/"):
            raise ConfigError("endpoint", url, "expected http://host:port or https://host:port")
        self.addr = f"{parts.hostname}:{port}"
        self._host, self._port = parts.hostname, port
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None
    ) -> JsonResponse:
        """Send a request and return its response. The caller sets the time limit, and cancels.

        Raises:
            ConnectionLost: not connected, or no complete response. Whether the request was executed is unknown.
            ProtocolError: the response is not HTTP, or too large.
        """
        data = b"" if body is None else msgspec.json.encode(body)
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self.addr}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        head = "\r\n".join(lines) + "\r\n\r\n"
        is_complete = False
        try:
            reader, writer = await self._connect()
            writer.write(head.encode() + data)
            await writer.drain()
            response, is_reusable = await _read_response(reader)
            is_complete = is_reusable
            return _without_token(response, headers or {})
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionLost(self.addr, str(error) or type(error).__name__) from error
        finally:
            if not is_complete:
                self.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # A connection that the server closed since the last request is not used: the request would fail with an unknown outcome.
        if self._connection is not None and (self._connection[0].at_eof() or self._connection[1].is_closing()):
            self.abort()
        if self._connection is None:
            self._connection = await asyncio.open_connection(
                self._host, self._port, ssl=self._tls, limit=HEAD_BYTES_MAX
            )
        return self._connection

    def abort(self) -> None:
        """Close the connection at once."""
        if self._connection is not None:
            self._connection[1].transport.abort()
            self._connection = None

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            writer = self._connection[1]
            self._connection = None
            writer.close()
            with contextlib.suppress(OSError):  # the peer may have reset it
                await writer.wait_closed()


def _without_token(response: JsonResponse, headers: Mapping[str, str]) -> JsonResponse:
    """Return the response without the token of the request in its message, which is logged: a proxy may echo requests."""
    token, message = headers.get("Authorization", "").rpartition(" ")[2], response.body.get("message")
    if not token or not isinstance(message, str) or token not in message:
        return response
    return response._replace(body=response.body | {"message": message.replace(token, "…")})


async def _read_response(reader: asyncio.StreamReader) -> tuple[JsonResponse, bool]:
    """Return a response, and whether the connection can be used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, rest = head[0].partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isdigit():
        raise ProtocolError(f"Not an HTTP response: '{head[0][:80]}'")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    elif (length := headers.get("content-length", "")).isdigit():
        if int(length) > BODY_BYTES_MAX:
            raise ProtocolError(f"The response has {length} bytes: expected at most {BODY_BYTES_MAX}")
        body = await reader.readexactly(int(length))
    else:
        raise ProtocolError("The response has neither a length nor chunks")
    is_reusable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return JsonResponse(int(status), _decode(body)), is_reusable


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        line = (await reader.readuntil(b"\r\n")).split(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError:
            raise ProtocolError(f"Invalid chunk size {line[:20]!r}") from None
        if not 0 <= size <= BODY_BYTES_MAX - len(body):
            raise ProtocolError(f"The response has more than {BODY_BYTES_MAX} bytes")
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
                pass
            return bytes(body)
        body += await reader.readexactly(size)
        await reader.readexactly(2)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        decoded = None
    return decoded if isinstance(decoded, dict) else {"message": body.decode("utf-8", "replace").strip()[:500]}
