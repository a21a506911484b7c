"""Plain or encrypted: decided for each new connection by its first byte, on one port. [NettyRemotingServer.HandshakeHandler]

    accept ─→ UndecidedConnection ─ first byte 0x16 ─→ TLS handshake ─→ protocol of the port, on the encrypted transport
                                  └ any other       ───────────────────→ protocol of the port, on the same transport

A plain connection takes no further step and no copy: its transport changes the protocol once (decision 0022). Both states before
the port's protocol are bounded in number and time (`pending_connections`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from ariane.errors import ArianeError
from ariane.net import replies
from ariane.net.limits.connection_limits import ConnectionLimits
from ariane.net.listening.pending_connections import PendingConnections
from ariane.net.listening.server_tls import ServerTls, TlsMode
from ariane.net.peer_log import PeerLog
from ariane.net.tasks import BackgroundTasks

log = logging.getLogger("ariane.net.tls")

HANDSHAKE_BYTE = (
    0x16  # first byte of a TLS connection; a frame begins with 0x00 or 0x01, and a report of a slave with 0x00
)
FIRST_BYTE_S = 30.0
HANDSHAKE_S = 10.0
SHUTDOWN_S = 10.0  # time limit for unread data and the peer's close_notify
# A loop accepts up to 1,024 connections before it reads the first byte of any of them.
SILENT_LIMITS = ConnectionLimits(total=8192, per_address=2048)
HANDSHAKE_LIMITS = ConnectionLimits(total=2048, per_address=512)

MakeProtocol = Callable[[], asyncio.Protocol]


class ConnectionGate:
    """Opens the connections of a server's ports.

    Args:
        tls: Certificates and mode of the server.
        is_required: Whether these ports need encryption, or accept plain connections, whatever the mode; None: the mode decides.
        setting: What decides, in messages.
        first_byte_s: Time limit for the first byte.
    """

    def __init__(
        self, tls: ServerTls, *, is_required: bool | None = None, setting: str = "", first_byte_s: float | None = None
    ) -> None:
        self.tls = tls
        self.mode: TlsMode = tls.mode
        if is_required is not None and tls.mode != "disabled":
            self.mode = "enforcing" if is_required else "permissive"
        self.mode_setting = setting or f"tls.server.mode is {tls.mode}"
        self.silent = PendingConnections("no data arrived", SILENT_LIMITS, first_byte_s or FIRST_BYTE_S)
        self.handshakes = PendingConnections("its TLS handshake did not end", HANDSHAKE_LIMITS, HANDSHAKE_S)
        self._tasks = BackgroundTasks("TLS")  # one per unfinished handshake
        self._log = PeerLog(log)
        self._is_closed = False

    def undecided(self, make_protocol: MakeProtocol) -> UndecidedConnection:
        """Return the protocol of a connection that was accepted on a port."""
        return UndecidedConnection(self, make_protocol)

    def start(self, connection: UndecidedConnection, first_data: bytes) -> None:
        """Start the TLS handshake of a connection."""
        if not self._is_closed:
            self._tasks.start(connection.encrypt(first_data), f"handshake with {connection.addr}")

    def log_closing(self, connection: UndecidedConnection, reason: object) -> None:
        now = asyncio.get_running_loop().time()
        self._log.warning(connection.ip, now, "Closing the connection of %s: %s", connection.addr, reason)

    def abort(self) -> None:
        """Abort all connections that are not established."""
        self._is_closed = True
        for pending in (self.silent, self.handshakes):
            pending.abort_all()

    async def close(self) -> None:
        """Abort all connections that are not established, and end their handshakes."""
        self.abort()
        await self._tasks.close()


class UndecidedConnection(asyncio.Protocol):
    """A connection until the protocol of its port takes it over."""

    def __init__(self, gate: ConnectionGate, make_protocol: MakeProtocol) -> None:
        self._gate = gate
        self._make_protocol = make_protocol
        self._is_dropped = False  # the reason is logged, and no other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # The socket has no name if the peer reset the connection before it was accepted.
        name = transport.get_extra_info("peername") or replies.UNKNOWN
        self.ip, self.addr = str(name[0]), f"{name[0]}:{name[1]}"
        self._gate.silent.add(self)

    def data_received(self, data: bytes) -> None:
        gate, mode = self._gate, self._gate.mode
        gate.silent.discard(self)
        if data[0] != HANDSHAKE_BYTE:
            if mode == "enforcing":
                self.drop(f"it is not encrypted, and {gate.mode_setting}")
            else:
                self._hand_over(self._transport, data)
        elif mode == "disabled":
            self.drop(f"it is encrypted, and {gate.mode_setting}")
        else:
            self._transport.pause_reading()  # until the TLS layer reads
            gate.handshakes.add(self)
            gate.start(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._gate.silent.discard(self)

    def drop(self, reason: str) -> None:
        """Log the reason, and abort the connection."""
        if not self._is_dropped:
            self._gate.log_closing(self, reason)
        self.abort()

    def abort(self) -> None:
        self._is_dropped = True
        self._gate.silent.discard(self)
        self._gate.handshakes.discard(self)
        self._transport.abort()

    async def encrypt(self, first_data: bytes) -> None:
        """Perform the handshake, and hand over the encrypted connection."""
        early = _EarlyData()
        try:
            context = await self._gate.tls.context()
            if self._transport.is_closing():
                return
            loop = asyncio.get_running_loop()
            handshake = asyncio.ensure_future(
                loop.start_tls(
                    self._transport,
                    early,
                    context,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=SHUTDOWN_S,
                )
            )
            await asyncio.sleep(0)  # `start_tls` has installed the TLS layer, and scheduled its `connection_made`
            loop.call_soon(self._feed, first_data)
            encrypted = await handshake
        except (OSError, ArianeError) as error:  # includes ssl.SSLError
            if not self._transport.is_closing() or not isinstance(error, ConnectionError):
                self.drop(f"TLS: {getattr(error, 'reason', None) or error}")
            return
        finally:
            self._gate.handshakes.discard(self)
        # None: the peer closed the connection during the handshake.
        if encrypted is not None and not self._is_dropped:  # pyright: ignore[reportUnnecessaryComparison]
            early.successor = self._hand_over(encrypted, bytes(early.data))
            if early.is_lost:
                early.successor.connection_lost(None)

    def _feed(self, data: bytes) -> None:
        """Pass what arrived before the TLS layer was installed to it, as its transport does with what arrives from now on."""
        layer = self._transport.get_protocol()
        if layer is self or self._transport.is_closing():
            return
        reader = cast(asyncio.BufferedProtocol, layer)
        rest = memoryview(data)
        while rest:
            buffer = memoryview(reader.get_buffer(len(rest)))
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            reader.buffer_updated(size)
            rest = rest[size:]

    def _hand_over(self, transport: asyncio.Transport, data: bytes) -> asyncio.Protocol:
        """Let the protocol of the port take the connection over, and pass it `data`."""
        protocol = self._make_protocol()
        was_closing = transport.is_closing()  # by the peer, whose requests are served nevertheless
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data and (was_closing or not transport.is_closing()):
            protocol.data_received(data)
        return protocol


class _EarlyData(asyncio.Protocol):
    """Collects what a peer sends together with the end of its handshake: it arrives before `start_tls` returns."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_lost = False
        self.successor: asyncio.Protocol | None = None  # the protocol that has taken the connection over

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if self.successor is not None:
            self.successor.connection_lost(error)
