"""Plain byte streams, in contrast to the frames of the remoting protocol: the transport of replication. [HAService]

A `Stream` is one connection: `read` returns available data, `write` waits while the peer does not read. Server and client own
their end: when the coroutine that received a stream returns or fails, the stream is closed.

A server bounds its connections in total and per address (`limits.connection_limits`). A new connection displaces one that has not
identified itself yet (`Stream.set_identified`), or else the newest of the address with most connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from ariane.errors import ArianeError, ConfigError, ConnectionLost, ProtocolError
from ariane.model import host
from ariane.net.limits.connection_limits import ConnectionLimits, select_displaced
from ariane.net.listening.connection_gate import ConnectionGate
from ariane.net.peer_log import PeerLog
from ariane.net.tasks import BackgroundTasks

log = logging.getLogger("ariane.net.streams")

READ_SIZE = 1 << 20
CONNECT_TIMEOUT_S = 3.0
CLOSE_S = 10.0  # time limit for writing buffered data when a connection is closed
LIMITS = ConnectionLimits(total=64, per_address=16)  # of a listening port


class Stream:
    """One connection. Every failure is raised as ConnectionLost."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        name = writer.get_extra_info("peername") or ("?", 0)
        self.ip = str(name[0])
        self.addr = f"{name[0]}:{name[1]}"
        self.is_identified = False

    async def read(self, silence_s: float) -> bytes:
        """Return the next available data.

        Raises:
            ConnectionLost: the peer closed the connection, or sent nothing for `silence_s`.
        """
        try:
            async with asyncio.timeout(silence_s):
                data = await self._reader.read(READ_SIZE)
        except TimeoutError:
            raise ConnectionLost(self.addr, f"no data received for {silence_s:g} s") from None
        except OSError as error:
            raise ConnectionLost(self.addr, error.strerror or str(error)) from error
        if not data:
            raise ConnectionLost(self.addr, "was closed by the peer")
        return data

    async def read_exactly(self, size: int, silence_s: float) -> bytes:
        """Return the next `size` bytes.

        Raises:
            ConnectionLost: the peer closed the connection before, or did not send them within `silence_s`.
        """
        try:
            async with asyncio.timeout(silence_s):
                return await self._reader.readexactly(size)
        except TimeoutError:
            raise ConnectionLost(self.addr, f"sent no {size} bytes within {silence_s:g} s") from None
        except asyncio.IncompleteReadError:
            raise ConnectionLost(self.addr, "was closed by the peer") from None
        except OSError as error:
            raise ConnectionLost(self.addr, error.strerror or str(error)) from error

    async def write(self, *pieces: bytes) -> None:
        """Send `pieces`, waiting while the peer does not read."""
        try:
            self._writer.writelines(pieces)
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(self.addr, error.strerror or str(error)) from error

    def set_identified(self) -> None:
        """Mark the peer as one that this port serves."""
        self.is_identified = True

    def abort(self) -> None:
        """Close without writing buffered data; pending reads and writes raise ConnectionLost."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Write buffered data, then close. What the peer does not read within CLOSE_S is discarded."""
        await close_writer(self._writer, CLOSE_S)


async def close_writer(writer: asyncio.StreamWriter, limit_s: float) -> None:
    """Write buffered data, then close; what the peer does not read within `limit_s` is discarded."""
    writer.close()
    try:
        async with asyncio.timeout(limit_s):
            await writer.wait_closed()
    except OSError:  # includes TimeoutError; the connection is over either way
        pass
    finally:
        writer.transport.abort()


class StreamServer:
    """Accepts connections and runs `serve` for each, in a task of its own; an asynchronous context manager."""

    def __init__(
        self,
        address: str,
        port: int,
        serve: Callable[[Stream], Awaitable[None]],
        setting: str,
        gate: ConnectionGate | None = None,
    ) -> None:
        """Prepare a server.

        Args:
            address: Address to listen on.
            port: Port to listen on.
            serve: Serves a connection until it returns.
            setting: Configuration key of the port, for error messages.
            gate: Opens encrypted and plain connections; None: all are plain.
        """
        self._address = address
        self.port = port
        self._serve = serve
        self._setting = setting
        self._gate = gate
        self._server: asyncio.Server | None = None  # None until it listens
        self._tasks = BackgroundTasks("streams")  # one per open stream
        self._open: list[Stream] = []  # oldest first
        self._log = PeerLog(log)  # refused connections are logged at a bounded rate per peer

    async def bind(self) -> None:
        """Bind the port without accepting connections yet."""
        gate = self._gate
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._protocol if gate is None else lambda: gate.undecided(self._protocol),
                self._address,
                self.port,
                start_serving=False,
            )
        except OSError as error:
            reason = error.strerror or error
            fix = f"cannot listen on {self._address}:{self.port} ({reason}); stop what uses it or choose another port"
            raise ConfigError(self._setting, self.port, fix) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        if self._server is None:
            await self.bind()
        assert self._server is not None
        await self._server.start_serving()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._server is not None:
            self._server.close()
        if self._gate is not None:
            await self._gate.close()
        await self._tasks.close()
        if self._server is not None:
            await self._server.wait_closed()

    def abort(self) -> None:
        """Close the port and abort all streams, as the end of the process does."""
        if self._server is not None:
            self._server.close()
        if self._gate is not None:
            self._gate.abort()
        for stream in self._open:
            stream.abort()

    def _protocol(self) -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = Stream(reader, writer)
        self._open.append(stream)
        displaced = select_displaced(stream, self._open, LIMITS)
        if displaced is not None:
            self._open.remove(displaced)
            now = asyncio.get_running_loop().time()
            self._log.warning(
                displaced.ip, now, "Closing the connection of %s: too many are open (%d of %s, %d in all)", displaced.addr,
                sum(other.ip == displaced.ip for other in self._open), displaced.ip, len(self._open),
            )  # fmt: skip
            displaced.abort()
        if displaced is not stream:
            self._tasks.start(self._run(stream), f"serve {stream.addr}")

    async def _run(self, stream: Stream) -> None:
        try:
            await self._serve(stream)
        except ArianeError as error:
            now = asyncio.get_running_loop().time()
            level = logging.WARNING if isinstance(error, ProtocolError) else logging.INFO  # refused, or gone
            self._log.line(level, stream.ip, now, "The connection of %s ended: %s", stream.addr, error)
        finally:
            # The stream counts until it is closed, but a new connection displaces it first.
            stream.is_identified = False
            try:
                await stream.close()
            finally:
                if stream in self._open:
                    self._open.remove(stream)


@contextlib.asynccontextmanager
async def open_stream(addr: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Stream]:
    """Connect to `addr` and yield the stream, closed at the end of the block. Raise ConnectionLost if connecting fails."""
    ip, port = host.parse(addr)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(ip, port, ssl=tls)
    except TimeoutError:
        raise ConnectionLost(addr, f"not established within {CONNECT_TIMEOUT_S:g} s") from None
    except OSError as error:  # includes ssl.SSLError
        raise ConnectionLost(addr, error.strerror or str(error)) from error
    stream = Stream(reader, writer)
    try:
        yield stream
    finally:
        await stream.close()
