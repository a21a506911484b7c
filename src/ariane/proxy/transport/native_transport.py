"""The transport of the native kernels: events of a thread that owns sockets, TLS and HTTP/2, in turns.

thread ─ one wake-up per turn ─▶ take ─┬ calls ─────▶ a task each ─▶ CallServer ─┐
   ▲                                   ├ plain sends ─▶ PlainSendCalls ──────────┤
   │                                   └ plain acks ──▶ PlainAckCalls ───────────┤
   └──────────── send, once per turn of the loop ◀── replies ◀───────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from ariane.errors import ArianeError, ConfigError, ReplyError
from ariane.kernels.grpc_port import Event, GrpcPort, OpenGrpcPort, PlainAcks, PlainSends
from ariane.net.limits.connection_limits import ConnectionLimits, select_displaced
from ariane.net.listening.server_tls import ServerTls
from ariane.net.peer_log import PeerLog
from ariane.net.replies import Peer, make_peer
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.requests.pop import AckedDelivery
from ariane.proxy.call_server import CallArrival, CallServer, StreamRefused
from ariane.proxy.calls.call import Call
from ariane.proxy.calls.plain_acks import PlainAckCalls
from ariane.proxy.calls.plain_sends import PlainSendCalls, StoredRun, failed_reply
from ariane.proxy.conversion import field_checks

log = logging.getLogger("ariane.proxy")

LIMITS = ConnectionLimits(total=8192, per_address=1024)
UNWRITTEN_MAX = 64 * 1024  # bytes of a streaming call, before it waits until they are written
STREAMS = {"ReceiveMessage", "Telemetry"}
OK, INVALID_ARGUMENT, INTERNAL = 0, 3, 13  # statuses of gRPC


class NativeConnection:
    """The connection of a client. [CallConnection, BoundedConnection]"""

    def __init__(self, number: int, peer: Peer) -> None:
        self.number = number
        self.peer = peer
        self.is_identified = False
        self.plain_call: Call | None = None  # the last one that stood for several plain calls

    @property
    def ip(self) -> str:
        """Address of the client."""
        return self.peer.ip


class NativeTransport:
    """Serves calls that the native kernels receive. [Transport]

    Args:
        calls: Serves them.
        sends: Serves plain sends together.
        acks: Serves plain acknowledgements together.
        tls: Certificates.
        open_port: Starts the thread.
    """

    def __init__(
        self,
        *,
        calls: CallServer,
        sends: PlainSendCalls,
        acks: PlainAckCalls,
        tls: ServerTls,
        open_port: OpenGrpcPort,
    ) -> None:
        self._calls = calls
        self._sends = sends
        self._acks = acks
        self._tls = tls
        self._open_port = open_port
        self._port: GrpcPort | None = None  # None while it is closed
        self._connections: dict[int, NativeConnection] = {}  # oldest first
        self._streams: dict[int, _Stream] = {}  # streaming calls by number
        self._tasks = BackgroundTasks("gRPC calls")
        self._log = PeerLog(log)
        self._replacing: asyncio.Task[None] | None = None  # of the certificate; None before the first time
        self._is_sending = False  # whether answers are passed on at the end of this turn of the loop
        self._handlers: Mapping[str, Callable[..., None]] = {
            "call": self._on_call,
            "message": self._on_message,
            "ended": self._on_ended,
            "cancelled": self._on_cancelled,
            "room": self._on_room,
            "opened": self._on_opened,
            "closed": self._on_closed,
            "tls_needed": self._on_tls_needed,
        }

    async def start(self, address: str, port: int) -> int:
        """Listen, and return the port. Raise OSError if it is in use."""
        opened = self._open_port(
            address,
            port,
            methods={*self._calls.unary_names, *STREAMS},
            tls_mode=self._tls.mode,
            takes_plain_calls=not self._calls.needs_accounts,
            reserved=field_checks.RESERVED,
        )
        self._port = opened
        if self._tls.has_files:
            await self._set_certificate()
            self._tls.on_reloaded = self._on_tls_needed
        asyncio.get_running_loop().add_reader(opened.fileno(), self._take_turn)
        return opened.port

    def abort(self) -> None:
        """Close the port and abort all connections."""
        port, self._port = self._port, None
        if port is not None:
            self._tls.on_reloaded = None
            asyncio.get_running_loop().remove_reader(port.fileno())
            port.close()

    async def close(self) -> None:
        """Close the port, and end all calls."""
        self.abort()
        await self._tasks.close()

    # --- turns ---

    def _take_turn(self) -> None:
        if self._port is None:
            return
        events, sends, acks = self._port.take()
        for kind, *values in events:
            try:
                self._handlers[kind](*values)
            except Exception:  # whatever an event does, the next is served
                log.exception("%s of the gRPC port failed", kind)
        for batch in sends:
            try:
                self._serve_sends(batch)
            except Exception:
                log.exception("%d sends of the gRPC port failed", len(batch))
                self._end([*batch.take_between(0, sys.maxsize), *(number for _, number, *_ in batch.take_rest())])
        for ended in acks:
            try:
                self._serve_acks(ended)
            except Exception:
                log.exception("%d acknowledgements of the gRPC port failed", len(ended))
                self._end([number for _, number, *_ in ended.take_rest()])
        if sends or acks:  # most are answered now, which need not wait for the next turn
            self._port.send()

    def _schedule_send(self) -> None:
        """Pass the answers on once all that is ready in this turn of the loop is answered."""
        if not self._is_sending:
            self._is_sending = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_sending = False
        if self._port is not None:
            self._port.send()

    def _reply(self, call: int, message: Any) -> None:
        if self._port is not None:
            self._port.reply(call, message.SerializeToString())
            self._schedule_send()

    # --- connections ---

    def _on_opened(self, number: int, ip: str, port: int) -> None:
        opened = self._connections[number] = NativeConnection(number, make_peer(0, (ip, port)))
        displaced = select_displaced(opened, list(self._connections.values()), LIMITS)
        if displaced is not None and self._port is not None:
            now = asyncio.get_running_loop().time()
            text = "Closing the connection of %s: too many are open (%d in all)"
            self._log.warning(displaced.ip, now, text, displaced.peer.addr, len(self._connections))
            del self._connections[displaced.number]
            self._port.abort(displaced.number)
            self._schedule_send()

    def _on_closed(self, number: int, reason: str) -> None:
        closed = self._connections.pop(number, None)
        if closed is not None and reason:
            now = asyncio.get_running_loop().time()
            self._log.warning(closed.ip, now, "Closing the connection of %s: %s", closed.peer.addr, reason)

    def _on_tls_needed(self) -> None:
        if self._replacing is None or self._replacing.done():  # each connection that waits for it asks
            self._replacing = self._tasks.start(self._replace_certificate(), "certificate of the gRPC port")

    async def _replace_certificate(self) -> None:
        try:
            await self._set_certificate()
        except ConfigError as error:
            log.error("Keeping the former certificate of the gRPC port: %s", error, extra={"notice": True})

    async def _set_certificate(self) -> None:
        pair = await self._tls.key_pair()
        if self._port is None:
            return
        try:
            self._port.set_certificate(pair.certificate, pair.key)
        except ValueError as error:
            fix = f"cannot be used by the native transport ({error}); use another key, or grpcTransport = aio"
            raise ConfigError("tls.server.keyPath", "", fix) from None
        self._schedule_send()

    # --- calls ---

    def _on_call(
        self, call: int, connection: int, method: str, metadata: dict[str, str], data: bytes, remaining_ms: float | None
    ) -> None:
        arrival = CallArrival(metadata, self._connections.get(connection), remaining_ms, self._port)
        if method in STREAMS:
            stream = self._streams[call] = _Stream(self, call)
            serving = (
                self._receive(stream, data, arrival) if method == "ReceiveMessage" else self._telemetry(stream, arrival)
            )
            stream.task = self._tasks.start(self._serve_stream(stream, serving), method)
        else:
            self._tasks.start(self._serve(call, method, data, arrival), method)

    async def _serve(self, call: int, method: str, data: bytes, arrival: CallArrival) -> None:
        self._reply(call, await self._calls.unary(method, data, arrival))

    async def _serve_stream(self, stream: _Stream, serving: Awaitable[None]) -> None:
        code, text = INTERNAL, "the server ends"
        try:
            await serving
            code, text = OK, ""
        except StreamRefused as refused:
            code, text = INTERNAL if refused.is_internal else INVALID_ARGUMENT, refused.text
        finally:
            self._streams.pop(stream.call, None)
            if self._port is not None:
                self._port.end(stream.call, code, text)
                self._schedule_send()

    async def _receive(self, stream: _Stream, data: bytes, arrival: CallArrival) -> None:
        async for reply in self._calls.receive(data, arrival):
            await stream.write(reply)

    async def _telemetry(self, stream: _Stream, arrival: CallArrival) -> None:
        async for command in self._calls.telemetry(stream.read(), arrival):
            await stream.write(command)

    def write(self, call: int, data: bytes, *, is_framed: bool, wants_room: bool) -> None:
        """Answer a streaming call with another message, or with several that are framed."""
        if self._port is not None:
            add = self._port.messages if is_framed else self._port.message
            add(call, data, wants_room)
            self._schedule_send()

    def read_on(self, call: int) -> None:
        """Let the next message of a Telemetry stream arrive."""
        if self._port is not None:
            self._port.read(call)
            self._schedule_send()

    def _on_message(self, call: int, data: bytes) -> None:
        if (stream := self._streams.get(call)) is not None:
            stream.messages.put_nowait(data)

    def _on_ended(self, call: int) -> None:
        if (stream := self._streams.get(call)) is not None:
            stream.messages.put_nowait(None)

    def _on_room(self, call: int) -> None:
        if (stream := self._streams.get(call)) is not None:
            stream.on_written()

    def _on_cancelled(self, call: int) -> None:
        if (stream := self._streams.get(call)) is not None and stream.task is not None:
            stream.task.cancel()

    def _open_plain(self, calls: PlainSends | PlainAcks) -> Call | None:
        """Return a call in place of all that arrived together; None if each has to be opened by itself."""
        connection = self._connections.get(calls.connection)
        former = None if connection is None else connection.plain_call
        if former is not None and former.caller.client_id == calls.client_id and self._calls.stands_for(former):
            return former
        opened = self._calls.open_plain(CallArrival(calls.headers, connection, None))
        if connection is not None:
            connection.plain_call = opened
        return opened

    # --- plain sends ---

    def _serve_sends(self, sends: PlainSends) -> None:
        call = self._open_plain(sends)
        alone = sends.take_rest() if call is None else self._store(sends, call)
        for _, *values in alone:
            self._on_call(*values)

    def _store(self, sends: PlainSends, call: Call) -> list[Event]:
        """Store plain sends. Return the calls that have to be served by themselves."""
        runs, alone = self._sends.serve(sends, call)
        for run in runs:
            if isinstance(run.responses, bytes):
                self._answer(sends, call, run.responses, run.started_ms)
            else:
                self._tasks.start(self._answer_when_durable(sends, call, run.responses, run), "plain sends")
        return alone

    def _answer(self, sends: PlainSends, call: Call, responses: bytes, started_ms: int) -> None:
        if self._port is not None:
            for number, code, remark in self._sends.answer(sends, call, self._port, responses, started_ms):
                self._reply(number, failed_reply(code, remark, call))

    def _end(self, calls: list[int]) -> None:
        """End the calls that an error has left unanswered: the thread counts them until then."""
        for call in calls:
            if self._port is not None:
                self._port.end(call, INTERNAL, "the server failed")

    async def _answer_when_durable(
        self, sends: PlainSends, call: Call, responses: Awaitable[bytes], run: StoredRun
    ) -> None:
        try:
            stored = await responses
        except ReplyError as error:
            for number in sends.take_between(*run.frames):
                self._reply(number, failed_reply(error.code, error.remark or "", call))
        else:
            self._answer(sends, call, stored, run.started_ms)
            self._schedule_send()

    # --- plain acknowledgements ---

    def _serve_acks(self, acks: PlainAcks) -> None:
        call = self._open_plain(acks)
        deliveries = [AckedDelivery(*fields) for fields in acks.deliveries]
        try:
            durable = None if call is None else self._acks.serve(deliveries)
        except ArianeError:  # each of them gets its own reply
            call = None
        if call is None:
            self._serve_alone(acks)
        elif durable is None:
            self._answer_acks(acks, deliveries)
        else:
            self._tasks.start(self._answer_acks_when_durable(acks, deliveries, durable), "plain acknowledgements")

    def _serve_alone(self, acks: PlainAcks) -> None:
        for _, *values in acks.take_rest():
            self._on_call(*values)

    def _answer_acks(self, acks: PlainAcks, deliveries: Sequence[AckedDelivery]) -> None:
        self._acks.on_ended(deliveries)
        if self._port is not None:
            acks.answer(self._port)

    async def _answer_acks_when_durable(
        self, acks: PlainAcks, deliveries: Sequence[AckedDelivery], durable: Awaitable[None]
    ) -> None:
        try:
            await durable
        except ArianeError:
            self._serve_alone(acks)
        else:
            self._answer_acks(acks, deliveries)
            self._schedule_send()


class _Stream:
    """A streaming call."""

    def __init__(self, transport: NativeTransport, call: int) -> None:
        self.call = call
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()  # at most one, and the end
        self.task: asyncio.Task[None] | None = None  # None until it is started
        self._transport = transport
        self._unwritten = 0  # bytes since the last message that was written for certain
        self._written: asyncio.Future[None] | None = None  # resolved when the last message is written

    async def write(self, message: Any) -> None:
        """Answer with another message, or several as bytes. Waits if too many bytes are not written yet."""
        is_framed = isinstance(message, bytes)
        data = message if is_framed else message.SerializeToString()
        self._unwritten += len(data)
        is_full = self._unwritten >= UNWRITTEN_MAX
        self._transport.write(self.call, data, is_framed=is_framed, wants_room=is_full)
        if is_full:
            self._unwritten = 0
            self._written = asyncio.get_running_loop().create_future()
            await self._written

    def on_written(self) -> None:
        if self._written is not None and not self._written.done():
            self._written.set_result(None)

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the messages of the client."""
        while (data := await self.messages.get()) is not None:
            yield data
            self._transport.read_on(self.call)
