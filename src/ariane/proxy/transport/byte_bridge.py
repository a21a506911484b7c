"""Plain and encrypted HTTP/2 on one port: connections are opened as those of the remoting port, and their bytes passed on.

    client ─ port 8081 ─▶ ConnectionGate: TLS by the first byte, limits ─▶ BridgedClient ◀─ bytes ─▶ 127.0.0.1: gRPC library

The library sees connections of this process. `BridgePeers` has the client of each, by the local port; calls of others are refused.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from ariane.net.limits.connection_limits import ConnectionLimits, select_displaced
from ariane.net.listening.connection_gate import ConnectionGate
from ariane.net.peer_log import PeerLog
from ariane.net.replies import UNKNOWN, make_peer
from ariane.net.tasks import BackgroundTasks
from ariane.net.tls import certificate_names

log = logging.getLogger("ariane.proxy")

LOOPBACK = "127.0.0.1"
# Two sockets each. A client has one connection to a server, whatever the number of its calls.
LIMITS = ConnectionLimits(total=4096, per_address=1024)


class BridgePeers:
    """The clients of bridged connections, by the port from which the library sees them connect."""

    def __init__(self) -> None:
        self._clients: dict[int, BridgedClient] = {}

    def add(self, port: int, client: BridgedClient) -> None:
        self._clients[port] = client

    def remove(self, port: int) -> None:
        self._clients.pop(port, None)

    def find(self, library_name: str) -> BridgedClient | None:
        """Return the connection that the library names `ipv4:127.0.0.1:<port>`; None if it was not bridged."""
        prefix, _, port = library_name.rpartition(":")
        return self._clients.get(int(port)) if prefix == f"ipv4:{LOOPBACK}" and port.isdecimal() else None


class ByteBridge:
    """Listens, and passes the bytes of each connection on.

    Args:
        gate: Opens plain and encrypted connections.
        peers: Learns which client each connection belongs to.
    """

    def __init__(self, gate: ConnectionGate, peers: BridgePeers) -> None:
        self._gate = gate
        self._peers = peers
        self._server: asyncio.Server | None = None  # None until it listens
        self._target_port = 0
        self._open: dict[BridgedClient, None] = {}  # oldest first
        self._tasks = BackgroundTasks("gRPC bridge")  # one per connection that is being established
        self._log = PeerLog(log)

    async def start(self, address: str, port: int, target_port: int) -> int:
        """Listen, and return the port. Raise OSError if it is in use."""
        self._target_port = target_port
        self._server = await asyncio.get_running_loop().create_server(
            lambda: self._gate.undecided(lambda: BridgedClient(self)), address, port
        )
        return int(self._server.sockets[0].getsockname()[1])

    def abort(self) -> None:
        """Close the port and abort all connections."""
        if self._server is not None:
            self._server.close()
        self._gate.abort()
        for client in list(self._open):
            client.abort()

    async def close(self) -> None:
        """Close the port and all connections."""
        self.abort()
        await self._gate.close()
        await self._tasks.close()
        if self._server is not None:
            await self._server.wait_closed()

    def connect(self, client: BridgedClient) -> None:
        """Connect a new client to the library, unless there are too many."""
        self._open[client] = None
        displaced = select_displaced(client, list(self._open), LIMITS)
        if displaced is not None:
            now = asyncio.get_running_loop().time()
            text = "Closing the connection of %s: too many are open (%d in all)"
            self._log.warning(displaced.ip, now, text, displaced.peer.addr, len(self._open))
            displaced.abort()
        if displaced is client:
            return
        self._tasks.start(self._connect(client), f"connect {client.peer.addr} to the gRPC library")

    async def _connect(self, client: BridgedClient) -> None:
        try:
            transport, target = await asyncio.get_running_loop().create_connection(
                lambda: _LibrarySide(client), LOOPBACK, self._target_port
            )
        except OSError as error:
            log.error("Closing the connection of %s: %s", client.peer.addr, error)
            client.abort()
            return
        port = int(transport.get_extra_info("sockname")[1])
        self._peers.add(port, client)
        client.on_connected(target, port)

    def on_lost(self, client: BridgedClient, port: int) -> None:
        """Forget a client."""
        self._open.pop(client, None)
        self._peers.remove(port)


class _Side(asyncio.Protocol):
    """One side of a bridge: what it receives is written to the other, which is not read faster than this side is written."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self._early = bytearray()  # received before the other side is connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early += data
        elif self.other.transport is not None:
            self.other.transport.write(data)

    def join(self, other: _Side) -> None:
        """Pass on what was received, and all that follows."""
        self.other = other
        if self._early and other.transport is not None:
            other.transport.write(bytes(self._early))
            self._early.clear()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()  # writes what is buffered


class BridgedClient(_Side):
    """The connection of a client."""

    def __init__(self, bridge: ByteBridge) -> None:
        super().__init__()
        self.peer = make_peer(0, UNKNOWN)
        self.is_identified = False  # whether a call came from it that named its client
        self._bridge = bridge
        self._port = 0  # by which the library knows it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername") or UNKNOWN
        self.peer = make_peer(0, name, certificate_names(transport.get_extra_info("peercert")))
        assert self.transport is not None
        self.transport.pause_reading()  # until the library is connected
        self._bridge.connect(self)

    @property
    def ip(self) -> str:
        """Address of the client."""
        return self.peer.ip

    def on_connected(self, target: _Side, port: int) -> None:
        """Join the connection to the library."""
        self._port = port
        target.join(self)
        if self.transport is None:
            if target.transport is not None:
                target.transport.close()
            self._bridge.on_lost(self, port)
            return
        self.join(target)
        self.transport.resume_reading()

    def abort(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._bridge.on_lost(self, self._port)


class _LibrarySide(_Side):
    """The connection to the library."""

    def __init__(self, client: BridgedClient) -> None:
        super().__init__()
        self._client = client

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self.other is None:
            self._client.abort()
