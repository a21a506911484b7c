"""One connection of a server or a client: bytes in, commands to handlers, replies out. [NettyRemotingAbstract]

    data_received → FrameReader ─ plain ones   → TurnHandler → responses ──────┐
                                ├ request      → handler → Reply ──────────────┤
                                └ response     → pending future                ├→ one write per batch of frames
    request() / one_way() ─────────────────────────────────────────────────────┘

All replies of one tick of the event loop leave in one write (`outgoing`), and so do all requests made in it: system calls cost more
than the Python code. A tick serves up to FRAMES_PER_TICK requests of a connection in TICK_S, or the sends of a turn; connections
that take longer get a tick each (`limits.slow_turns`).

Bounds: an unfinished frame (16 MiB), requests in flight here (`limits.flow_limits`) and at the peer (`session.PENDING_MAX`),
unread responses: a server serves no requests of a peer that does not read its responses, and closes the connection in time.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import math
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast

from ariane.errors import ConnectionLost, ProtocolError, RequestTimeout
from ariane.net import replies
from ariane.net.awaited_responses import AwaitedResponses
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.limits.throttle import Throttle
from ariane.net.limits.unread_responses import NOTE_MIN_BYTES
from ariane.net.outgoing import Outgoing
from ariane.net.replies import Handler, HandlerResult, LateReply, Peer, Reply, Sign, TurnHandler
from ariane.net.tls import certificate_names
from ariane.protocol import command as commands
from ariane.protocol.codes import ResponseCode, code_name
from ariane.protocol.command import ONE_WAY, RESPONSE, Command
from ariane.protocol.frame import FRAME_MAX, FrameReader, OversizedFrame

__all__ = ["Connection", "Handler", "HandlerResult", "LateReply", "Peer", "Reply", "Sign"]

T = TypeVar("T")
log = logging.getLogger("ariane.net")

# Requests of one connection served in one tick of the event loop. A bound shares the loop fairly between connections, and the
# peer receives the first responses while the last of its requests are still being served.
FRAMES_PER_TICK = 32
TICK_S = 0.003  # requests that take longer end the tick earlier: most take 50 µs
# Pieces and bytes of responses that end a batch of requests. Batches of consumers end sooner, so that producers do not wait for
# thousands of messages that are being read.
PIECES_PER_TICK = 2 * FRAMES_PER_TICK
BATCH_BYTES_MAX = 256 * 1024
# Bytes of late replies in one tick: unread bytes exceed their bound by at most this and one response.
BYTES_PER_TICK = 1024 * 1024
NO_LINGER = struct.pack("ii", 1, 0)  # the option of sockets that are reset when they are closed
CLOSE_S = 10.0  # time limit for writing buffered data when a connection is closed


class Connection(asyncio.Protocol):
    """A connection of a server or a client, as an asyncio protocol.

    Args:
        number: Identifies the peer as long as the connection lives (`Peer.id`).
        handlers: Request code -> handler for requests of the peer.
        turns: Serves runs of plain requests before they are decoded one by one.
        is_server: Whether requests and unread responses are bounded by `limits`.
        limits: Bounds shared by all connections of a server.
        sign: Signs outgoing requests.
        language: Language that requests name, for servers that choose the form of a body by it.
        on_made: Called when the connection is established.
        on_lost: Called once, when it is closed for any reason.
    """

    def __init__(
        self,
        number: int,
        handlers: Mapping[int, Handler],
        *,
        is_server: bool,
        limits: ServerLimits | None = None,
        turns: TurnHandler | None = None,
        sign: Sign | None = None,
        language: str = commands.OUR_LANGUAGE,
        on_made: Callable[[Connection], None] | None = None,
        on_lost: Callable[[Connection], None] | None = None,
    ) -> None:
        self.peer = replies.make_peer(number, ("0.0.0.0", 0))  # noqa: S104 - not an address to listen on: unknown until connected
        self.last_active = 0.0  # loop time of the last read or write, for idle time-outs
        self._handlers = handlers
        self._is_server = is_server
        self._limits = limits or ServerLimits()
        self._turns = turns
        self._sign = sign
        self._language = language
        self._on_made = on_made
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()  # read once: every frame needs its clock
        self._reader = FrameReader()
        self._awaited = AwaitedResponses(self._loop)  # of requests that we sent
        self._transport: asyncio.Transport | None = None  # None before the connection is established
        # Frames for the peer, and whether it reads them.
        self._out = Outgoing(self, self._limits if is_server else None, self._loop)
        self._unfinished: set[asyncio.Future[Any]] = set()  # handlers and turns without a reply
        self._in_flight = 0  # requests that they serve
        self._late_replies: collections.deque[tuple[Command, LateReply]] = collections.deque()  # waiting for room
        self._is_batch_scheduled = False  # the rest of the frames is served in a later tick, after other connections
        self._is_slow = False  # the last batch took TICK_S or longer: the next one waits for a tick of its own
        self._has_unfinished = False  # part of a large frame has arrived and is counted in the limits
        self._unsupported = replies.UnsupportedCodes()  # each is logged once
        self._frames_per_tick = FRAMES_PER_TICK if is_server else sys.maxsize  # so that others get their turn
        self._has_pending_frames = False  # frames were read but not served yet
        self.read_at = 0.0  # when they were read, on the loop's clock; of a client, when anything was read
        self._waited_s = 0.0  # how long the requests of this batch have been queued since
        self._overload: str | None = None  # why no further request is accepted in this batch, if so
        self._throttle: Throttle | None = None  # of a server's connection; used while there are limits of rates
        self._requests = 0  # accepted in this batch

    # --- requests to the peer ---

    async def request(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, timeout_ms: float
    ) -> Command:
        """Send a request and return the response, whatever its code.

        Raises:
            RequestTimeout: no response within `timeout_ms`.
            ConnectionLost: the connection was closed before the response arrived.
        """
        if not self._out.writable.is_set():
            await self.wait_writable(timeout_ms)
        return await self.request_nowait(code, fields, body, timeout_ms=timeout_ms)

    async def wait_writable(self, timeout_ms: float) -> None:
        """Wait until the peer has read most of the data sent to it. Raise RequestTimeout if it does not in time."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._out.writable.wait()
        except TimeoutError:
            raise RequestTimeout(self.peer.addr, timeout_ms) from None

    def request_nowait(
        self, code: int, fields: commands.Fields | None = None, body: bytes = b"", *, timeout_ms: float
    ) -> asyncio.Future[Command]:
        """Send a request without waiting for room in the write buffer; the caller bounds its requests in flight."""
        if self._transport is None:
            raise ConnectionLost(self.peer.addr, "is closed")
        if self._sign is not None:
            fields = self._sign(commands.field_texts(fields), body)
        opaque, response = self._awaited.add(self.peer, timeout_ms)
        try:
            pieces = commands.encode(code, opaque=opaque, flag=0, fields=fields, body=body, language=self._language)
        except ProtocolError as error:
            self._awaited.remove(opaque)
            raise ProtocolError(f"Cannot send request {code_name(code)} to {self.peer.addr}: {error}") from None
        self._out.write(pieces)
        return response

    def one_way(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, remark: str | None = None
    ) -> None:
        """Send a request that has no response. Raise ConnectionLost if the connection is closed."""
        if self._transport is None:
            raise ConnectionLost(self.peer.addr, "is closed")
        if self._sign is not None:
            fields = self._sign(fields, body)
        opaque = self._awaited.next_opaque()
        self._out.write(commands.encode(code, opaque=opaque, flag=ONE_WAY, fields=fields, remark=remark, body=body))

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """Whether the connection is open and the peer reads what it is sent."""
        return self.is_open and self._out.writable.is_set()

    @property
    def is_throttled(self) -> bool:
        """Whether nothing is read from the peer because of a limit."""
        return self._throttle is not None and self._throttle.is_closed

    def close(self) -> None:
        """Write buffered data, then close. What the peer does not read within CLOSE_S is discarded."""
        if self._transport is not None and not self._transport.is_closing():
            self._out.flush()
            self._transport.close()
            self._loop.call_later(CLOSE_S, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Abort the connection with a TCP reset.

        Java's clients of 4.9.4 fail the pending requests of a reset connection, and try another broker. When a connection is merely
        closed, they wait until the requests time out, and no time is left for another one.
        """
        # The number of a socket that is closing may be that of another one already.
        if self._transport is not None and not self._transport.is_closing():
            opened = self._transport.get_extra_info("socket")
            if opened is not None:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # The socket has no name if the peer reset the connection before it was accepted; data that it sent is still served.
        name = transport.get_extra_info("peername") or replies.UNKNOWN
        self.peer = replies.make_peer(self.peer.id, name, certificate_names(transport.get_extra_info("peercert")))
        self.last_active = self._loop.time()
        if self._is_server:
            quota = self._limits.quotas.open(self.peer.id, self.peer.ip)
            self._throttle = Throttle(self, quota, self._loop)
        self._out.attach(self._transport, None if self._throttle is None else self._throttle.quota)
        if self._on_made:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self._loop.time()
        if self._limits.quotas.is_active and self._throttle is not None:
            self._throttle.add("bytes_in", len(data), self.last_active)
        self._reader.append(data)
        if self._has_pending_frames:
            return
        self.read_at = self.last_active
        if self._is_server and (self._is_slow or not self._out.writable.is_set()):
            self._has_pending_frames = True
            self.update_reading()
            self._schedule_batch()  # served once the peer has read its responses
        else:
            self._process_batch()

    def _process_batch(self, waited_s: float = 0.0) -> None:
        """Serve the next frames and write their responses. The rest is served in the next tick; nothing is read until then."""
        self._out.hold()  # responses of this batch leave in one write, below
        self._waited_s = waited_s
        self._overload = self._limits.overload_reason(self._in_flight)
        throttle = self._throttle if self._limits.quotas.is_active else None
        if throttle is not None:
            self._requests = 0
            refusal = throttle.begin_batch(self._loop.time())
            self._overload = self._overload or refusal
        begun = self._loop.time()
        try:
            is_over = self._serve_frames(begun + TICK_S if self._is_server else math.inf)
        except ProtocolError as error:
            self._log_closing(error)
            self._has_pending_frames = False
            self.close()
            return
        now = self._loop.time()
        self._is_slow = self._is_server and now - begun >= TICK_S
        if throttle is not None:
            throttle.end_batch(self._requests, now)
        self._out.flush()
        if is_over:
            self._has_pending_frames = True
            self.update_reading()
            self._schedule_batch()
            return
        waiting = 0 if self._transport is None else self._reader.waiting  # a lost connection completes no frame
        if self._throttle is not None and (self._has_unfinished or waiting >= NOTE_MIN_BYTES):
            self._has_unfinished = waiting >= NOTE_MIN_BYTES
            self._throttle.quota.note_unfinished(self, waiting if self._has_unfinished else 0)
        if self._has_pending_frames:
            self._has_pending_frames = False
            self.update_reading()

    def _serve_frames(self, tick_end: float) -> bool:
        """Serve frames of this batch; return whether it ended, at `tick_end` or for its size, before they did."""
        reader, header_max = self._reader, self._limits.header_max if self._is_server else FRAME_MAX
        for _ in range(self._frames_per_tick):
            if self._turns is not None and (is_over := self._serve_turn(self._turns)) is not None:
                if is_over or reader.release():
                    return is_over
                continue
            frame = reader.next_request(header_max)
            if frame is None:
                return False
            if isinstance(frame, OversizedFrame):
                self._refuse_header(frame, header_max)
                continue
            command = commands.decode(frame)
            if command.flag & RESPONSE:
                self._awaited.resolve(command, self.peer)
                continue
            self._serve(command)
            if (
                self._out.pieces >= PIECES_PER_TICK
                or self._out.size >= BATCH_BYTES_MAX
                or self._loop.time() >= tick_end
            ):
                return True
        return True

    def _serve_turn(self, turns: TurnHandler) -> bool | None:
        """Serve the plain requests that come next; return whether they end the batch, None if there are none."""
        reader = self._reader
        if reader.position == len(reader.data) or self._overload is not None:
            return None
        turn = turns.serve(reader.data, reader.position, self.peer, self._waited_s)
        if turn is None:
            return None
        reader.position = turn.position
        self._requests += turn.requests
        if isinstance(turn.responses, bytes):
            self._write_responses([turn.responses])
        else:
            self._track(turn.responses, turn.requests, self._on_turn_done)
        return turn.is_last or self._out.size >= BATCH_BYTES_MAX

    def _on_turn_done(self, done: asyncio.Future[bytes]) -> None:
        if error := done.exception():
            self.drop(f"its requests cannot be answered: {type(error).__name__}: {error}")
        else:
            self._write_responses([done.result()])

    def _write_responses(self, pieces: list[bytes]) -> None:
        if self._transport is not None:
            self._out.write_responses(pieces)

    def _schedule_batch(self) -> None:
        """Serve the remaining frames in the next tick of the event loop, or when the peer has read its responses."""
        if self._is_batch_scheduled or (self._is_server and not self._out.writable.is_set()):
            return
        self._is_batch_scheduled = True
        if self._is_slow:
            self._limits.slow_turns.add(self._process_next_batch, self._loop.call_soon)
        else:
            self._loop.call_soon(self._process_next_batch)

    def _process_next_batch(self) -> None:
        self._is_batch_scheduled = False
        self._send_late_replies()
        if self._has_pending_frames:
            self._process_batch(self._loop.time() - self.read_at)

    def update_reading(self) -> None:
        """Resume reading, or pause it while frames are pending or (as a server) responses are unread."""
        if self._transport is None:
            return
        is_unread = self._is_server and not self._out.writable.is_set()
        if self._has_pending_frames or is_unread or self.is_throttled:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._out.pause()
        self.update_reading()

    def resume_writing(self, *, is_release: bool = False) -> None:  # is_release: the server may answer again
        self._out.release() if is_release else self._out.resume()
        self.update_reading()
        if self._has_pending_frames or self._late_replies:
            self._schedule_batch()

    def on_written(self, size: int, now: float) -> None:
        """Note the time, and serve what waited for room."""
        self.last_active = now
        if self._limits.quotas.is_active and self._throttle is not None:
            self._throttle.add("bytes_out", size, now)
        if self._late_replies:
            self._schedule_batch()

    def _log_closing(self, reason: object) -> None:
        self._limits.log_about(self.peer, self._loop.time(), "Closing the connection of %s: %s", reason)

    def drop(self, reason: str) -> None:
        """Reset the connection; unread responses are lost."""
        self._log_closing(reason)
        self._out.forget()
        self.reset()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._out.detach()
        replies.abandon_all(self._late_replies)
        if self._throttle is not None:
            self._throttle.quota.note_unfinished(self, 0)
            self._throttle.cancel()
            self._limits.quotas.close(self.peer.id)
        if self._has_pending_frames:  # one-way requests are served although the peer is gone
            self._schedule_batch()
        self._awaited.close(self.peer.addr, str(error) if error else "was closed by the peer")
        for task in self._unfinished:
            self._limits.cancellations.add(task.cancel)
        if self._on_lost:
            self._on_lost(self)

    # --- serving ---

    def _serve(self, command: Command) -> None:
        handler = self._handlers.get(command.code)
        if handler is None:
            self._unsupported.log(command.code, self.peer, self._limits.log, self._loop.time())
            self._reply(command, replies.not_supported(command.code))
            return
        rejection = self._limits.rejection(command.code, self._overload, self._waited_s)
        if rejection is not None:
            self._refuse(command, handler, rejection)
            return
        self._requests += 1
        try:
            handled = handler(command, self.peer)
        except Exception as error:  # noqa: BLE001 - whatever one request does, the connection serves the next
            handled = self._error_reply(command, error)
        if handled is None or isinstance(handled, Reply):
            self._reply(command, handled)
            return
        # Enough for the response: the body of a request is not retained while it is in flight.
        header = Command(command.code, command.opaque, command.flag, form=command.form)
        self._track(handled, 1, lambda done: self._on_handler_done(header, done))

    def _track(self, unfinished: Awaitable[T], requests: int, on_done: Callable[[asyncio.Future[T]], None]) -> None:
        """Count requests as in flight until `unfinished` ends, and call `on_done` with it unless it was cancelled."""
        future = asyncio.ensure_future(unfinished)
        self._unfinished.add(future)
        self._in_flight += requests
        self._limits.in_flight += requests

        def end(done: asyncio.Future[T]) -> None:
            self._limits.in_flight -= requests
            self._in_flight -= requests
            self._unfinished.discard(done)
            if not done.cancelled():
                on_done(done)

        future.add_done_callback(end)

    def _refuse(self, command: Command, handler: Handler, remark: str) -> None:
        """Answer a request that is not served: with the reason, or late if it exceeds a rate and is one that clients repeat."""
        throttle = self._throttle
        if throttle is not None and throttle.refusal is not None:
            if command.code in self._limits.delayed:
                wait_s = throttle.delay(self._loop.time())
                self._track(
                    self._serve_late(command, handler, wait_s), 1, lambda done: self._on_handler_done(command, done)
                )
                return
            throttle.count_refused()
            if self._limits.audit is not None:
                self._limits.audit.refused(command, self.peer, throttle.refusal.remark)
        self._reply(command, Reply(ResponseCode.SYSTEM_BUSY, remark=remark))

    async def _serve_late(self, command: Command, handler: Handler, wait_s: float) -> Reply | LateReply | None:
        await asyncio.sleep(wait_s)
        handled = handler(command, self.peer)
        return handled if handled is None or isinstance(handled, Reply) else await handled

    def _refuse_header(self, frame: OversizedFrame, header_max: int) -> None:
        """Reject a request whose header is too large, without decoding its fields."""
        command = commands.outline(frame)
        if not command.flag & RESPONSE:
            self._reply(command, replies.header_too_large(command.code, frame.header_size, header_max))

    def _on_handler_done(self, command: Command, done: asyncio.Future[Reply | LateReply | None]) -> None:
        error = done.exception()
        reply = self._error_reply(command, error) if error else done.result()
        has_room = self._out.size < BYTES_PER_TICK and self._out.writable.is_set()
        if has_room and not self._late_replies and not isinstance(reply, LateReply):
            self._reply(command, reply)
            return
        # Many handlers may finish in the same tick.
        self._late_replies.append((command, reply if isinstance(reply, LateReply) else replies.completed(reply)))
        self._send_late_replies()

    def _send_late_replies(self) -> None:
        """Build and write late replies as long as there is room for them, and time in this tick."""
        tick_end = self._loop.time() + TICK_S
        while self._late_replies and self._out.writable.is_set() and self._out.size < BYTES_PER_TICK:
            command, late_reply = self._late_replies.popleft()
            try:
                reply = late_reply.build()
            except Exception as error:  # noqa: BLE001 - as in _serve
                reply = self._error_reply(command, error)
            self._reply(command, reply)
            if self._late_replies and self._loop.time() >= tick_end:
                self._is_slow = True
                self._schedule_batch()
                return

    def _reply(self, command: Command, reply: Reply | None) -> None:
        if reply is None or command.flag & ONE_WAY or self._transport is None:
            replies.abandon(reply)
            return
        pieces, refusal = replies.encode(command, reply)
        if refusal:
            self._limits.log.warning(self.peer.ip, self._loop.time(), "%s: %s", self.peer.shown, refusal)
        self._write_responses(pieces)

    def _error_reply(self, command: Command, error: BaseException) -> Reply:
        return replies.error_reply(command.code, error, self.peer, self._limits.log, self._loop.time())
