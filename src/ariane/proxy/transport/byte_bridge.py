"""Plain and encrypted HTTP/2 on one port: connections are opened as those of the remoting port, and their bytes passed on.

    client ─ port 8081 ─▶ ConnectionGate: TLS by the first byte, limits ─▶ BridgedClient ◀─ bytes ─▶ 127.0.0.1: gRPC library
                                                                            FrameMeter: ends floods; CallPacer: shares of calls

The library sees connections of this process. `BridgePeers` has the client of each, by the local port; calls of others are refused.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from typing import cast

from ariane.net.limits.connection_limits import ConnectionLimits, select_displaced
from ariane.net.listening.connection_gate import ConnectionGate
from ariane.net.peer_log import PeerLog
from ariane.net.replies import UNKNOWN, make_peer
from ariane.net.tasks import BackgroundTasks
from ariane.net.tls import certificate_names
from ariane.proxy.transport.call_pacer import CallPacer
from ariane.proxy.transport.frame_meter import FloodError, FrameMeter

log = logging.getLogger("ariane.proxy")

LOOPBACK = "127.0.0.1"
# Two sockets each. A client has one connection to a server, whatever the number of its calls.
LIMITS = ConnectionLimits(total=4096, per_address=1024)
HELD_MAX = 64 * 1024  # bytes of a connection, after which no more are read. Until then its end is noticed


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
        self.pacer = CallPacer()  # shared by all connections; the transport notes begun calls in it

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
        self.pacer.close()
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

    def close_flood(self, client: BridgedClient, now_s: float, reason: FloodError) -> None:
        """Log the reason, and close the connection of a client."""
        self._log.warning(client.ip, now_s, "Closing the connection of %s: %s", client.peer.addr, reason)
        client.abort()

    def on_lost(self, client: BridgedClient, port: int) -> None:
        """Forget a client."""
        self._open.pop(client, None)
        self.pacer.remove(client)
        self._peers.remove(port)


class _Side(asyncio.Protocol):
    """One side of a bridge: what it receives is written to the other, which is not read faster than this side is written."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def pass_on(self, data: bytes) -> None:
        """Write data to the other side."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.pass_on(data)

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.resume_reading()

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
        self._meter = FrameMeter()
        self._held = bytearray()  # received, and not passed on
        self._held_from = 0  # position of the first of these bytes among all that were held
        self._calls: collections.deque[int] = collections.deque()  # positions of their calls
        self._is_full = False  # nothing is read until held bytes were passed on
        self._is_paused = False  # nothing is read until the library has read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername") or UNKNOWN
        self.peer = make_peer(0, name, certificate_names(transport.get_extra_info("peercert")))
        self.pause_reading()  # until `on_connected`
        self._bridge.connect(self)

    @property
    def ip(self) -> str:
        """Address of the client."""
        return self.peer.ip

    def on_connected(self, target: _Side, port: int) -> None:
        """Join the connection to the library."""
        self._port = port
        if self.transport is None:
            if target.transport is not None:
                target.transport.close()
            self._bridge.on_lost(self, port)
            return
        self.other = target
        if self._held:
            self._bridge.pacer.add(self)
        self.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Pass data on, or hold it until the calls in it may begin."""
        now_s = asyncio.get_running_loop().time()
        try:
            calls = self._meter.read(data, now_s)
        except FloodError as error:
            self._bridge.close_flood(self, now_s, error)
            return
        is_joined = self.other is not None
        if is_joined and not self._held and (not calls or self._bridge.pacer.admit(len(calls))):
            self.pass_on(data)
            return
        end = self._held_from + len(self._held)
        self._calls.extend([end + position for position in calls])
        self._held += data
        self._is_full = len(self._held) > HELD_MAX
        if self._is_full:
            super().pause_reading()
        if is_joined:
            self._bridge.pacer.add(self)

    def pass_calls(self, limit: int) -> int:
        """Pass up to so many held calls on, with what follows them. Return how many. [PacedConnection]"""
        count = min(limit, len(self._calls))
        for _ in range(count):
            self._calls.popleft()
        size = self._calls[0] - self._held_from if self._calls else len(self._held)
        self.pass_on(bytes(self._held[:size]))
        del self._held[:size]
        self._held_from += size
        if self._is_full and len(self._held) <= HELD_MAX:
            self._is_full = False
            if not self._is_paused:
                super().resume_reading()
        return count

    @property
    def has_held_data(self) -> bool:
        """Whether not all was passed on."""
        return bool(self._held)

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        self._is_paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless too much is held."""
        self._is_paused = False
        if not self._is_full:
            super().resume_reading()

    def abort(self) -> None:
        """Close the connection at once."""
        self._held.clear()
        self._calls.clear()
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._bridge.on_lost(self, self._port)


class _LibrarySide(_Side):
    """The connection to the library."""

    def __init__(self, client: BridgedClient) -> None:
        super().__init__()
        self.other = client
