"""Plain byte streams beside the frames of the remoting protocol: what replication runs over. [HAService]

A `Stream` is one connection: `read` what came, `write` with a bound on what waits to be sent. Who serves or connects owns its
end: when the coroutine that was given a stream returns or fails, the stream is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

from ariane.errors import ArianeError, ConfigError, ConnectionLost
from ariane.model import host
from ariane.net.tasks import Tasks

log = logging.getLogger("ariane.net.streams")

READ_SIZE = 1 << 20
CONNECT_TIMEOUT_S = 3.0
CONNECTIONS_MAX = 64  # of one listening port


class Stream:
    """One connection. Every failure is ConnectionLost."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        name = writer.get_extra_info("peername") or ("?", 0)
        self.addr = f"{name[0]}:{name[1]}"

    async def read(self, silence_s: float) -> bytes:
        """What has come; ConnectionLost when the other side closed, or said nothing for `silence_s`."""
        try:
            async with asyncio.timeout(silence_s):
                data = await self._reader.read(READ_SIZE)
        except TimeoutError:
            raise ConnectionLost(self.addr, f"was silent for {silence_s:g} s") from None
        except OSError as error:
            raise ConnectionLost(self.addr, error.strerror or str(error)) from error
        if not data:
            raise ConnectionLost(self.addr, "was closed by the other side")
        return data

    async def write(self, *pieces: bytes) -> None:
        """Send `pieces`; waits while too much is not taken by the other side."""
        try:
            self._writer.writelines(pieces)
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(self.addr, error.strerror or str(error)) from error

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):  # it is over either way
            await self._writer.wait_closed()


class StreamServer:
    """`async with StreamServer(host, port, serve, setting)`: calls `serve` for each connection, in a task of its own."""

    def __init__(self, address: str, port: int, serve: Callable[[Stream], Awaitable[None]], setting: str) -> None:
        """`setting` names the port in errors."""
        self._address = address
        self.port = port
        self._serve = serve
        self._setting = setting
        self._server: asyncio.Server | None = None
        self._tasks = Tasks("streams")
        self._open = 0

    async def bind(self) -> None:
        """Take the port, and let nobody in yet."""
        try:
            self._server = await asyncio.start_server(self._accept, self._address, self.port, start_serving=False)
        except OSError as error:
            fix = f"cannot listen on {self._address}:{self.port} ({error.strerror}); stop what uses it or choose another port"
            raise ConfigError(self._setting, self.port, fix) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        if self._server is None:
            await self.bind()
        assert self._server is not None
        await self._server.start_serving()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        await self._tasks.close()
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = Stream(reader, writer)
        if self._open >= CONNECTIONS_MAX:
            log.error("refusing %s: %d connections are open", stream.addr, CONNECTIONS_MAX)
            writer.close()
            return
        self._tasks.start(self._run(stream), f"serve {stream.addr}")

    async def _run(self, stream: Stream) -> None:
        self._open += 1
        try:
            await self._serve(stream)
        except ArianeError as error:
            log.info("the connection of %s ended: %s", stream.addr, error)
        finally:
            self._open -= 1
            await stream.close()


@contextlib.asynccontextmanager
async def connected(addr: str) -> AsyncIterator[Stream]:
    """A connection to `addr`, closed at the end of the block. ConnectionLost when none can be made."""
    ip, port = host.parse(addr)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(ip, port)
    except TimeoutError:
        raise ConnectionLost(addr, f"not made within {CONNECT_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise ConnectionLost(addr, error.strerror or str(error)) from error
    stream = Stream(reader, writer)
    try:
        yield stream
    finally:
        await stream.close()
