"""A simulated network for a VirtualLoop: TCP as programs see it, with delays, losses and machines that vanish.

    create_connection ─→ listener at (ip, port)      connection refused without a listener
    write ─ delay ─→ data_received of the other end   in order, each end in the process that opened it
    a process is killed ─→ the other ends see a reset; if its machine vanished they see nothing, and time out

Data of one write arrives in one piece. An end that does not read (its process is paused) makes the writer stop at its
high-water mark. `delay_s` and `is_lost` are called for every connection and every frame, so a test may replace them at any time.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any

from ariane.testing.virtual.virtual_time import VirtualLoop, VirtualProcess

DELAY_MS = (0.1, 2.0)  # one way, within a data centre
HIGH_WATER = 64 * 1024  # asyncio's default, until a protocol sets another
PORT_FIRST = 32_768  # first of the ports that are assigned


class VirtualNetwork:
    """The network of a loop: `loop.network = VirtualNetwork(loop, rng)`.

    `delay_s(from_ip, to_ip)` returns the delay of one write; `is_lost(frame)` decides whether a frame (length-prefixed, as
    RocketMQ's) is dropped.
    """

    def __init__(self, loop: VirtualLoop, rng: Random) -> None:
        # Both may be replaced by a test while the network runs.
        self.delay_s: Callable[[str, str], float] = lambda from_ip, to_ip: rng.uniform(*DELAY_MS) / 1000
        self.is_lost: Callable[[bytes], bool] | None = None  # None: nothing is lost
        self._loop = loop  # schedules deliveries in virtual time
        self._listeners: dict[tuple[str, int], VirtualListener] = {}  # by address and port
        # Open connections by process, in order of creation, to cut them when it is killed.
        self._ends: dict[VirtualProcess, dict[VirtualEndpoint, None]] = {}
        self._vanished: set[str] = set()  # machines that answer nothing, not even with a refusal
        # Ephemeral ports; never reused, so that no late packet reaches a new connection.
        self._ports = itertools.count(PORT_FIRST)

    def vanish(self, process: VirtualProcess) -> None:
        """Kill `process` with its machine: peers are not notified, connections to it stay open and silent. The address is usable
        again by the next process that listens there."""
        self._vanished.add(process.ip)
        process.kill()

    # --- for the loop ---

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int = 100,
        start_serving: bool = True,
    ) -> VirtualListener:
        process = self._current()
        ip = process.ip
        port = port or next(self._ports)
        if (ip, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, "address already in use")
        listener = VirtualListener(self, ip, port, protocol_factory)
        self._listeners[ip, port] = listener
        self._vanished.discard(ip)
        process.killed.append(listener.close)
        if start_serving:
            await listener.start_serving()
        return listener

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, *, ssl: None = None
    ) -> tuple[VirtualEndpoint, asyncio.Protocol]:
        """Connect, always unencrypted. [asyncio.loop.create_connection]"""
        process = self._current()
        await asyncio.sleep(self.delay_s(process.ip, host))
        if host in self._vanished:
            await self._loop.create_future()  # no response, not even a refusal
        listener = self._listeners.get((host, port))
        if listener is None or not listener.is_serving():
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        local, remote = (process.ip, next(self._ports)), (host, port)
        protocol = protocol_factory()
        local_endpoint = VirtualEndpoint(self, process, local, remote, copy_context())
        remote_endpoint = VirtualEndpoint(self, listener.process, remote, local, listener.context)
        local_endpoint.other, remote_endpoint.other = remote_endpoint, local_endpoint
        for end in (local_endpoint, remote_endpoint):
            self._own(end)
        local_endpoint.protocol = protocol
        self._loop.call_soon(remote_endpoint.accept, listener.protocol_factory, context=remote_endpoint.context)
        protocol.connection_made(local_endpoint)
        return local_endpoint, protocol

    # --- implementation ---

    def _current(self) -> VirtualProcess:
        process = self._loop.current_process()
        if process is None:
            raise RuntimeError("Sockets belong to processes: run this code with loop.process(name).start(…)")
        return process

    def _own(self, end: VirtualEndpoint) -> None:
        if end.process not in self._ends:
            self._ends[end.process] = {}
            end.process.killed.append(lambda: self._cut(end.process))
        self._ends[end.process][end] = None

    def _cut(self, process: VirtualProcess) -> None:
        """Close the connections of a killed process, as its operating system does, unless the machine vanished."""
        for end in list(self._ends.pop(process, {})):
            end.is_over = True
            if process.ip not in self._vanished:
                end.notify_end(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def forget(self, end: VirtualEndpoint) -> None:
        self._ends.get(end.process, {}).pop(end, None)

    def stop_listening(self, listener: VirtualListener) -> None:
        if self._listeners.get((listener.ip, listener.port)) is listener:
            del self._listeners[listener.ip, listener.port]

    def pieces_of(self, data: bytes) -> bytes:
        """Return `data` without the frames that are lost."""
        if self.is_lost is None:
            return data
        pieces, position = [], 0
        while position < len(data):
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            frame = data[position:end]
            if not self.is_lost(frame):
                pieces.append(frame)
            position = end
        return b"".join(pieces)


class _Address:
    """The part of a socket that servers use: its address."""

    def __init__(self, ip: str, port: int) -> None:
        self._name = (ip, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name


class VirtualListener:
    """A listening socket, as returned by `loop.create_server`."""

    def __init__(
        self, network: VirtualNetwork, ip: str, port: int, protocol_factory: Callable[[], asyncio.Protocol]
    ) -> None:
        self.ip = ip  # of the listening process
        self.port = port  # chosen by the network if the server asked for 0
        self.process = network._current()  # owner; its kill closes the listener
        self.protocol_factory = protocol_factory  # creates the protocol of each accepted connection
        self.context = copy_context()  # contextvars of the owner: accepted connections run in its process
        self.sockets = [_Address(ip, port)]  # what `asyncio.Server.sockets` offers: objects with a `getsockname`
        self._network = network  # removes the listener when it is closed
        self._is_serving = False  # False refuses connections, as between `create_server` and `start_serving`

    def is_serving(self) -> bool:
        return self._is_serving

    async def start_serving(self) -> None:
        self._is_serving = True

    def close(self) -> None:
        self._is_serving = False
        self._network.stop_listening(self)

    async def wait_closed(self) -> None:
        """Return without waiting: there is nothing to wait for."""


class VirtualEndpoint(asyncio.Transport):
    """One end of a connection."""

    other: VirtualEndpoint  # set once both ends exist

    def __init__(
        self,
        network: VirtualNetwork,
        process: VirtualProcess,
        local: tuple[str, int],
        remote: tuple[str, int],
        context: Context,
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.process = process  # owner of this end; nothing is delivered to a killed one
        # Contextvars in which callbacks of this end run: they decide which process owns new tasks.
        self.context = context
        self.protocol: asyncio.Protocol | None = None  # None until the connection is accepted
        self.is_over = False  # closed by either end; no further callback except `connection_lost`
        self._network = network  # delays and losses
        self._loop = network._loop  # time and callbacks
        self._from, self._to = local[0], remote[0]  # address for the network's delay; ports do not matter to it
        self._arrives_at = 0.0  # arrival time of the last write; later ones may not overtake it
        self._unread = 0  # bytes written here and not read by the other end
        self._high = HIGH_WATER  # unread bytes above which writing pauses, as the kernel's buffers do
        self._is_full = False  # `pause_writing` was called and not yet `resume_writing`
        self._is_reading = True  # False between `pause_reading` and `resume_reading`
        self._waiting: list[bytes] = []  # received pieces that the protocol has not read

    def accept(self, protocol_factory: Callable[[], asyncio.Protocol]) -> None:
        self.protocol = protocol_factory()
        self.protocol.connection_made(self)

    # --- asyncio.Transport ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_over:
            return
        sent = self._network.pieces_of(bytes(data))
        self._unread += len(sent)
        self._deliver(self.other._arrive, sent)
        if self._unread > self._high and not self._is_full and self.protocol is not None:
            self._is_full = True
            self.protocol.pause_writing()

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self._end(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._waiting:
            self._loop.call_soon(self._read, context=self.context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._unread

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol | None:  # type: ignore[override]
        return self.protocol

    # --- towards the other end ---

    def notify_end(self, error: Exception | None) -> None:
        """Notify the other end, after all written data, that this one is closed."""
        self._deliver(self.other._ended, error)

    def _deliver(self, call: Callable[[Any], None], value: Any) -> None:
        if not self.other.process.is_alive:
            return
        self._arrives_at = max(self._arrives_at, self._loop.time() + self._network.delay_s(self._from, self._to))
        self._loop.call_at(self._arrives_at, call, value, context=self.other.context)

    def _end(self, error: Exception | None) -> None:
        if not self.is_over:
            self.is_over = True
            self.notify_end(error)
            self._loop.call_soon(self._lost, None, context=self.context)

    # --- from the other end ---

    def _arrive(self, data: bytes) -> None:
        if not self.is_over and data:
            self._waiting.append(data)
            self._read()

    def _read(self) -> None:
        while self._waiting and self._is_reading and not self.is_over and self.protocol is not None:
            data = self._waiting.pop(0)
            self.protocol.data_received(data)
            if self.other.process.is_alive:
                self._loop.call_soon(self.other._was_read, len(data), context=self.other.context)

    def _was_read(self, size: int) -> None:
        self._unread -= size
        if self._is_full and self._unread <= self._high // 4 and self.protocol is not None and not self.is_over:
            self._is_full = False
            self.protocol.resume_writing()

    def _ended(self, error: Exception | None) -> None:
        if not self.is_over:
            self.is_over = True
            self._lost(error)

    def _lost(self, error: Exception | None) -> None:
        self._network.forget(self)
        self._waiting.clear()
        if self.protocol is not None:
            self.protocol.connection_lost(error)
