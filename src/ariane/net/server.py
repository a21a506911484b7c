"""Server sockets: numbered connections, their requests to handlers, requests to connected peers. [NettyRemotingServer]"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Protocol, Self, TypeVar

from ariane.errors import ConfigError, ConnectionLost, ReplyError
from ariane.net.connection import Connection, Handler, Peer
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.listening.connection_gate import ConnectionGate
from ariane.net.replies import TurnHandler
from ariane.net.tasks import BackgroundTasks
from ariane.net.turn_router import TurnRouter
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command

log = logging.getLogger("ariane.net")

IDLE_S = 120.0  # a connection without traffic for this long is closed, as Java does on both sides
IDLE_SCAN_S = 10.0
BACKLOG = 1024
CLOSE_S = 1.0
HEAP_BLOCK = 4 << 20  # larger than the responses of a batch


class ServedClient(Protocol):
    """A client that the server reaches: by its connection, or by other means. [Connection]"""

    peer: Peer
    last_active: float

    @property
    def is_writable(self) -> bool: ...

    @property
    def is_throttled(self) -> bool: ...

    def one_way(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> None: ...

    async def request(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, timeout_ms: float
    ) -> Command: ...

    def resume_writing(self, *, is_release: bool = False) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


C = TypeVar("C", bound=ServedClient)


class RemotingServer:
    """Listens on a port and serves requests; an asynchronous context manager.

        async with RemotingServer(handlers, "127.0.0.1", 0) as server:
            print(server.port)

    Leaving the context closes every connection. Port 0 selects a free port; a caller that needs the number before requests
    arrive calls `bind` first and fills `handlers` afterwards.

    Args:
        handlers: Request code -> handler.
        host: Address to listen on.
        port: Port to listen on.
        on_lost: Called with the peer of each connection that was closed.
        idle_s: Connections without traffic for this many seconds are closed.
        limits: Bounds; the defaults if omitted.
        gate: Opens encrypted and plain connections; None: all are plain.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        host: str,
        port: int,
        *,
        on_lost: Callable[[Peer], None] | None = None,
        idle_s: float = IDLE_S,
        limits: ServerLimits | None = None,
        gate: ConnectionGate | None = None,
    ) -> None:
        self._handlers = handlers
        self._host = host
        self.port = port
        self._on_lost = on_lost
        self._idle_s = idle_s
        self.limits = limits or ServerLimits()
        self.gate = gate
        self.turns: Mapping[int, TurnHandler] = {}  # by code: serve plain requests before they are decoded one by one
        self._connections: dict[int, ServedClient] = {}  # by number
        # Of connections of all ports: never reused, so that state of a lost peer cannot be mistaken for a new one's.
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None  # None until `bind`
        self._additional_servers: list[asyncio.Server] = []  # the VIP port; the same connections with other handlers
        self._tasks = BackgroundTasks("server")  # scan for idle connections
        self._all_closed = asyncio.Event()  # set when the last connection is lost; the exit waits for it

    async def bind(self) -> None:
        """Bind the port without accepting connections yet."""
        self._server = await self._listen(self.port, self._handlers)
        self.port = self._server.sockets[0].getsockname()[1]

    async def bind_additional(self, port: int, handlers: Mapping[int, Handler]) -> None:
        """Bind another port with handlers of its own. Peers of all ports are numbered together."""
        self._additional_servers.append(await self._listen(port, handlers))

    async def _listen(self, port: int, handlers: Mapping[int, Handler]) -> asyncio.Server:
        try:
            return await asyncio.get_running_loop().create_server(
                self._factory(handlers), self._host, port, backlog=BACKLOG, start_serving=False
            )
        except OSError as error:
            fix = f"cannot listen on {self._host}:{port} ({error.strerror or error}); stop what uses it or choose another port"
            raise ConfigError("listenPort", port, fix) from error

    async def __aenter__(self) -> Self:
        if self._server is None:
            await self.bind()
        assert self._server is not None
        _retain_freed_memory()
        for server in (self._server, *self._additional_servers):
            await server.start_serving()
        self.close_idle_connections()
        return self

    def close_idle_connections(self) -> None:
        """Close connections without traffic from now on; for a server that does not listen, but has attached clients."""
        self._tasks.repeat(min(IDLE_SCAN_S, self._idle_s), self._close_idle, "close idle connections")

    async def __aexit__(self, *exception: object) -> None:
        await self._tasks.close()
        listening = [self._server, *self._additional_servers] if self._server is not None else []
        for server in listening:
            server.close()
        if self.gate is not None:
            await self.gate.close()
        for connection in list(self._connections.values()):
            connection.close()
        await self._wait_closed()
        for server in listening:
            await server.wait_closed()

    def abort(self) -> None:
        """Close the ports and abort all connections, as the end of the process does: buffered responses are lost."""
        for server in [self._server, *self._additional_servers] if self._server is not None else []:
            server.close()
        if self.gate is not None:
            self.gate.abort()
        self.abort_connections()

    def release_answers(self) -> None:
        """Write the answers that were held while `limits.may_answer` was false."""
        for connection in list(self._connections.values()):
            connection.resume_writing(is_release=True)

    def abort_connections(self) -> int:
        """Abort all connections and return their number."""
        connections = list(self._connections.values())
        for connection in connections:
            connection.abort()
        return len(connections)

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def attach(self, make_client: Callable[[int], C], peer: Peer) -> C:
        """Count a client that is served by other means as a connection, until `detach`. Return it.

        Args:
            make_client: Creates the client with this number.
            peer: Its address.

        Raises:
            ReplyError: there are too many connections.
        """
        number, quotas = next(self._numbers), self.limits.quotas
        quotas.open(number, peer.ip)
        if refusal := quotas.connection_refusal(number):
            quotas.close(number)
            raise ReplyError(ResponseCode.SYSTEM_BUSY, refusal.remark)
        client = make_client(number)
        self._connections[number] = client
        return client

    def detach(self, client: ServedClient) -> None:
        """Note the end of such a client, as that of a connection."""
        if self._connections.get(client.peer.id) is client:
            self.limits.quotas.close(client.peer.id)
            self._on_connection_lost(client)

    def is_connected(self, peer_id: int) -> bool:
        return peer_id in self._connections

    def one_way(self, peer_id: int, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a request without a response to a connected peer. Raise ConnectionLost if it is not connected."""
        self._connection(peer_id).one_way(code, fields, body)

    async def request(
        self, peer_id: int, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, timeout_ms: float
    ) -> Command:
        """Send a request to a connected peer and return its response."""
        return await self._connection(peer_id).request(code, fields, body, timeout_ms=timeout_ms)

    def is_writable(self, peer_id: int) -> bool:
        """Return whether a peer is connected and reads what it is sent."""
        connection = self._connections.get(peer_id)
        return connection is not None and connection.is_writable

    def close_peer(self, peer_id: int) -> None:
        connection = self._connections.get(peer_id)
        if connection is not None:
            connection.close()

    async def _wait_closed(self) -> None:
        """Wait until all connections have written their buffers, at most CLOSE_S: some peers never read."""
        if self._connections:
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._all_closed.wait()
        self.abort_connections()

    def _connection(self, peer_id: int) -> ServedClient:
        connection = self._connections.get(peer_id)
        if connection is None:
            raise ConnectionLost(f"peer {peer_id}", "is closed")
        return connection

    def _factory(self, handlers: Mapping[int, Handler]) -> Callable[[], asyncio.Protocol]:
        gate = self.gate
        if gate is None:
            return lambda: self._accept(handlers)
        return lambda: gate.undecided(lambda: self._accept(handlers))

    def _accept(self, handlers: Mapping[int, Handler]) -> Connection:
        return Connection(
            next(self._numbers),
            handlers,
            is_server=True,
            limits=self.limits,
            turns=self._turn_router(handlers),
            on_made=self._on_connection_made,
            on_lost=self._on_connection_lost,
        )

    def _turn_router(self, handlers: Mapping[int, Handler]) -> TurnRouter | None:
        """Return what serves runs of plain requests on a port with these handlers; None if each request is served by itself."""
        turns = {code: turn for code, turn in self.turns.items() if code in handlers}
        return TurnRouter(turns) if turns else None

    def _on_connection_made(self, connection: Connection) -> None:
        if refusal := self.limits.quotas.connection_refusal(connection.peer.id):
            now = asyncio.get_running_loop().time()
            self.limits.log_about(connection.peer, now, "Refusing the connection of %s: %s", refusal.remark)
            if self.limits.audit is not None:
                self.limits.audit.refused_connection(connection.peer, refusal.remark)
            connection.reset()
            return
        self._connections[connection.peer.id] = connection

    def _on_connection_lost(self, connection: ServedClient) -> None:
        if self._connections.pop(connection.peer.id, None) is not None and self._on_lost:
            self._on_lost(connection.peer)
        if not self._connections:
            self._all_closed.set()

    async def _close_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self._connections.values()):
            if now - connection.last_active > self._idle_s and not connection.is_throttled:
                log.info(
                    "Closing the connection of %s: idle for %.0f s", connection.peer.addr, now - connection.last_active
                )
                connection.close()


def _retain_freed_memory() -> None:
    """Let the allocator of glibc retain some megabytes of freed memory.

    By default it returns more than 128 KB to the system, unless a larger block was freed before. Responses of that size would be
    allocated from the system a thousand times per second, each page cleared first.
    """
    bytes(HEAP_BLOCK)  # freed at once
