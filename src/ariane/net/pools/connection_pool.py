"""Client connections, one per address: opened on first use, and again after they were lost. [NettyRemotingClient]"""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
from collections.abc import Mapping
from typing import Self

import msgspec

from ariane.errors import ConnectionLost
from ariane.model import host
from ariane.net.connection import Connection, Handler, Sign
from ariane.net.pools.requester import Requester, ServerRequest
from ariane.net.tls import tls_fault
from ariane.protocol.command import OUR_LANGUAGE, Command
from ariane.protocol.requests import encode_header

CONNECT_TIMEOUT_MS = 3000


class ConnectionPool(Requester):
    """Sends requests to addresses, over one connection per address.

        async with ConnectionPool() as pool:
            response = await pool.request("10.0.0.5:10911", RequestCode.GET_MAX_OFFSET, QueueRef("T", 0))

    Args:
        handlers: Request code -> handler for requests that arrive on our connections (brokers notify consumers).
        sign: Signs outgoing requests.
        language: Language that requests name.
        tls: Encrypts the connections (`net.tls`); None: plain ones.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler] | None = None,
        *,
        sign: Sign | None = None,
        language: str = OUR_LANGUAGE,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._sign = sign
        self._tls = tls
        self._language = language
        self._handlers = handlers or {}
        self._connections: dict[str, Connection] = {}  # by address; closed ones are replaced at the next request
        # Attempts in flight, by address: concurrent requests share one.
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._numbers = itertools.count(1)  # identify connections in handlers of requests from servers
        self._closed = False  # refuses further requests, which would open connections that are never closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, and refuse further requests."""
        self._closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        for connection in list(self._connections.values()):
            connection.close()

    async def exchange(self, request: ServerRequest) -> Command:
        """Send a request over the connection to its server."""
        connection = await self.connect(request.addr)
        return await connection.request(
            request.code, self._fields(request.header), request.body, timeout_ms=request.timeout_ms
        )

    async def one_way(self, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b"") -> None:
        """Send a request that has no response. Raise ConnectionLost if it cannot be written."""
        connection = await self.connect(addr)
        connection.one_way(code, self._fields(header), body)

    def _fields(self, header: msgspec.Struct | None) -> dict[str, str] | None:
        """Return the extFields of a request."""
        return encode_header(header) if header else None

    async def connect(self, addr: str) -> Connection:
        """Return the open connection to `addr`, connecting if there is none. Concurrent callers share one attempt."""
        connection = self._connections.get(addr)
        if connection is not None and connection.is_open:
            return connection
        task = self._connecting.get(addr)
        if task is None:
            task = asyncio.ensure_future(self._connect(addr))
            self._connecting[addr] = task
            task.add_done_callback(lambda done: self._connecting.pop(addr, None))
        return await asyncio.shield(task)

    def abort(self, addr: str) -> None:
        """Abort the connection to `addr`, if there is one: requests in flight raise ConnectionLost."""
        connection = self._connections.get(addr)
        if connection is not None:
            connection.abort()

    def has_read(self, addr: str, since_ms: float) -> bool:
        """Return whether anything has arrived from `addr` in the last `since_ms`, for example a part of a response."""
        connection = self._connections.get(addr)
        return connection is not None and connection.read_at > asyncio.get_running_loop().time() - since_ms / 1000

    async def _connect(self, addr: str) -> Connection:
        if self._closed:
            raise ConnectionLost(addr, "not opened: the connection pool is closed")
        ip, port = host.parse(addr)
        loop = asyncio.get_running_loop()
        connection = Connection(
            next(self._numbers),
            self._handlers,
            is_server=False,
            sign=self._sign,
            language=self._language,
            on_lost=lambda _: self._on_connection_lost(addr),
        )
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                await loop.create_connection(lambda: connection, ip, port, ssl=self._tls)
        except TimeoutError:
            raise ConnectionLost(addr, f"not established within {CONNECT_TIMEOUT_MS} ms") from None
        except ssl.SSLError as error:
            raise ConnectionLost(addr, tls_fault(error)) from error
        except OSError as error:
            raise ConnectionLost(addr, _reason(error)) from error
        self._connections[addr] = connection
        return connection

    def _on_connection_lost(self, addr: str) -> None:
        connection = self._connections.get(addr)
        if connection is not None and not connection.is_open:
            del self._connections[addr]


def _reason(error: OSError) -> str:
    """Return the system's text of an error: asyncio puts the address, which callers print anyway, in its place."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return error.strerror or str(error)
