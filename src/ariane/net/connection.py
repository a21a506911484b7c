"""One connection of a server or a client: bytes in, frames to what serves or awaits them, frames out. [NettyRemotingAbstract]

    data_received → FrameReader ─ request, plain ones → ServedRequests → replies ─┐
                                └ response            → AwaitedResponses          ├→ one write per batch of frames
    request() / one_way() ────────────────────────────────────────────────────────┘

All replies of one tick of the event loop leave in one write (`outgoing`), and so do all requests made in it: system calls cost more
than the Python code. A batch is up to FRAMES_PER_TICK requests of a connection in TICK_S, or the sends of a turn; the batches of
all connections share the ticks (`limits.tick_shares`).

Bounds: an unfinished frame (16 MiB), requests in flight here (`limits.flow_limits`) and at the peer (`session.PENDING_MAX`),
unread responses: a server serves no requests of a peer that does not read its responses, and closes the connection in time.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from typing import cast

from ariane.errors import ConnectionLost, ProtocolError, RequestTimeout
from ariane.net import replies
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.limits.throttle import Throttle
from ariane.net.limits.tick_shares import TICK_S
from ariane.net.limits.unread_responses import NOTE_MIN_BYTES
from ariane.net.outgoing import Outgoing
from ariane.net.replies import Handler, HandlerResult, LateReply, Peer, Reply, Sign, TurnHandler
from ariane.net.requests.awaited_responses import AwaitedResponses
from ariane.net.requests.served_requests import BATCH_BYTES_MAX, ServedRequests
from ariane.net.tls import certificate_names
from ariane.protocol import command as commands
from ariane.protocol.codes import code_name
from ariane.protocol.command import ONE_WAY, RESPONSE, Command
from ariane.protocol.frame import FRAME_MAX, FrameReader, OversizedFrame

__all__ = ["Connection", "Handler", "HandlerResult", "LateReply", "Peer", "Reply", "Sign"]

# Requests of one connection served in one tick of the event loop. A bound shares the loop fairly between connections, and the
# peer receives the first responses while the last of its requests are still being served.
FRAMES_PER_TICK = 32
SLOW_BATCHES = 2  # of TICK_S or longer in a row: a busy machine interrupts a single one
PIECES_PER_TICK = 2 * FRAMES_PER_TICK  # pieces of responses that end a batch of requests, as BATCH_BYTES_MAX does
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
        self._is_server = is_server
        self._limits = limits or ServerLimits()
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
        self._served = ServedRequests(self, handlers, turns, limits=self._limits, out=self._out, peer=self.peer)
        self._is_batch_scheduled = False  # the rest of the frames is served in a later tick, after other connections
        self._slow_batches = 0  # that took TICK_S or longer since one that did not
        self._has_unfinished = False  # part of a large frame has arrived and is counted in the limits
        self._frames_per_tick = FRAMES_PER_TICK if is_server else sys.maxsize  # so that others get their turn
        self._has_pending_frames = False  # frames were read but not served yet
        self.read_at = 0.0  # when they were read, on the loop's clock; of a client, when anything was read
        self._throttle: Throttle | None = None  # of a server's connection; used while there are limits of rates

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
    def _is_slow(self) -> bool:
        return self._is_server and self._slow_batches >= SLOW_BATCHES

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
        self._served.attach(self.peer, self._throttle)
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
        if self._is_server and (self._is_slow or self._limits.ticks.is_full or not self._out.writable.is_set()):
            self._has_pending_frames = True
            self.update_reading()
            self._schedule_batch(is_arrival=True)  # served once the peer has read its responses
        else:
            self._process_batch()

    def _process_batch(self, waited_s: float = 0.0) -> None:
        """Serve the next frames and write their responses. The rest is served in a later tick; nothing is read until then."""
        self._out.hold()  # responses of this batch leave in one write, below
        begun = self._loop.time()
        throttle = self._throttle if self._limits.quotas.is_active else None
        self._served.begin_batch(waited_s, None if throttle is None else throttle.begin_batch(begun))
        try:
            is_over = self._serve_frames(begun + self._limits.ticks.batch_s if self._is_server else math.inf)
        except ProtocolError as error:
            self._log_closing(error)
            self._has_pending_frames = False
            self.close()
            return
        now = self._loop.time()
        if self._is_server and now > begun:
            self._limits.ticks.spend(now - begun, self._loop.call_soon)
        if now - begun >= TICK_S:
            self._slow_batches += 1
        elif self._served.accepted:  # how soon requests are refused is not how long they take
            self._slow_batches = 0
        if throttle is not None:
            throttle.end_batch(self._served.accepted, now)
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
        reader, served = self._reader, self._served
        header_max = self._limits.header_max if self._is_server else FRAME_MAX
        for _ in range(self._frames_per_tick):
            if (is_over := served.serve_turn(reader)) is not None:
                if is_over or reader.release():
                    return is_over
                continue
            frame = reader.next_request(header_max)
            if frame is None:
                return False
            if isinstance(frame, OversizedFrame):
                served.refuse_header(frame, header_max)
                continue
            command = commands.decode(frame)
            if command.flag & RESPONSE:
                self._awaited.resolve(command, self.peer)
                continue
            served.serve(command)
            if (
                self._out.pieces >= PIECES_PER_TICK
                or self._out.size >= BATCH_BYTES_MAX
                or self._loop.time() >= tick_end
            ):
                return True
        return True

    def _schedule_batch(self, *, is_arrival: bool = False) -> None:
        """Serve the remaining frames in a later tick of the event loop, or when the peer has read its responses."""
        if self._is_batch_scheduled or (self._is_server and not self._out.writable.is_set()):
            return
        self._is_batch_scheduled = True
        self._limits.ticks.add(
            self._process_next_batch, self._loop.call_soon, is_slow=self._is_slow, is_arrival=is_arrival
        )

    def _process_next_batch(self) -> None:
        self._is_batch_scheduled = False
        self.send_late_replies()
        if self._has_pending_frames:
            self._process_batch(self._loop.time() - self.read_at)

    def send_late_replies(self) -> None:
        """Send late replies in this tick, and those that take longer in a later one."""
        if self._served.send_late(self._loop.time() + TICK_S):
            self._slow_batches = SLOW_BATCHES
            self._schedule_batch()

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
        if self._has_pending_frames or self._served.has_late_replies:
            self._schedule_batch()

    def on_written(self, size: int, now: float) -> None:
        """Note the time, and serve what waited for room."""
        self.last_active = now
        if self._limits.quotas.is_active and self._throttle is not None:
            self._throttle.add("bytes_out", size, now)
        if self._served.has_late_replies:
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
        self._served.close()
        if self._throttle is not None:
            self._throttle.quota.note_unfinished(self, 0)
            self._throttle.cancel()
            self._limits.quotas.close(self.peer.id)
        if self._has_pending_frames:  # one-way requests are served although the peer is gone
            self._schedule_batch()
        self._awaited.close(self.peer.addr, str(error) if error else "was closed by the peer")
        if self._on_lost:
            self._on_lost(self)
