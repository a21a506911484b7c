"""The requests of a peer that its connection serves: each is refused or passed to its handler, and its reply is written.

    serve(command) ───→ handler ──→ Reply ─────────────────────────────────→ Outgoing
                          └ in flight ──→ Reply, LateReply ─→ room to write ────┤
    serve_turn(frames) → TurnHandler → responses ───────────────────────────────┘

A reply that comes later than its request waits until there is room to write it. Many handlers may end in one tick, and a
`LateReply` builds its response only then, so a peer that does not read costs no memory for responses.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from ariane.net import replies
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.limits.throttle import Throttle
from ariane.net.outgoing import Outgoing
from ariane.net.replies import Handler, LateReply, Peer, Reply, TurnHandler
from ariane.protocol import command as commands
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import ONE_WAY, RESPONSE, Command
from ariane.protocol.frame import FrameReader, OversizedFrame

T = TypeVar("T")

# Bytes of responses that end a batch of requests. Batches of consumers end sooner, so that producers do not wait for thousands of
# messages that are being read.
BATCH_BYTES_MAX = 256 * 1024
# Bytes of late replies in one tick: unread bytes exceed their bound by at most this and one response.
BYTES_PER_TICK = 1024 * 1024


class RequestOwner(Protocol):
    """The connection of the requests."""

    def send_late_replies(self) -> None:
        """Call `ServedRequests.send_late`, now and in later ticks."""
        ...

    def drop(self, reason: str) -> None:
        """Abort the connection."""
        ...


class ServedRequests:
    """Requests of one peer from their arrival to their reply.

    Args:
        owner: Sends the late replies; dropped if a turn fails.
        handlers: Request code → handler.
        turns: Serves runs of plain requests before they are decoded one by one.
        limits: Bounds shared by all connections of a server.
        out: Writes the replies.
        peer: The sender, until `attach`.
    """

    def __init__(
        self,
        owner: RequestOwner,
        handlers: Mapping[int, Handler],
        turns: TurnHandler | None,
        *,
        limits: ServerLimits,
        out: Outgoing,
        peer: Peer,
    ) -> None:
        self._owner = owner
        self._handlers = handlers
        self._turns = turns
        self._limits = limits
        self._out = out
        self._peer = peer
        self._throttle: Throttle | None = None  # of a server's connection; used while there are limits of rates
        self._loop = asyncio.get_running_loop()
        self._is_open = False  # replies can be written
        self._unfinished: set[asyncio.Future[Any]] = set()  # handlers and turns without a reply
        self._in_flight = 0  # requests that they serve
        self._late_replies: collections.deque[tuple[Command, LateReply]] = collections.deque()  # waiting for room
        self._unsupported = replies.UnsupportedCodes()  # each is logged once
        self._waited_s = 0.0  # how long the requests of this batch have been queued since they were read
        self._overload: str | None = None  # why no further request is accepted in this batch, if so
        self.accepted = 0  # requests of this batch

    @property
    def has_late_replies(self) -> bool:
        """Whether replies wait for room."""
        return bool(self._late_replies)

    def attach(self, peer: Peer, throttle: Throttle | None) -> None:
        """Send replies to `peer` from now on; `throttle` says which of its requests exceed a rate."""
        self._peer, self._throttle, self._is_open = peer, throttle, True

    def close(self) -> None:
        """Cancel what is not finished: the connection is lost."""
        self._is_open = False
        replies.abandon_all(self._late_replies)
        for task in self._unfinished:
            self._cancel(task)

    def begin_batch(self, waited_s: float, refusal: str | None) -> None:
        """Begin with requests that have been queued for `waited_s`; all of them are refused if there is a reason."""
        self._waited_s = waited_s
        self._overload = self._limits.overload_reason(self._in_flight) or refusal
        self.accepted = 0

    def serve_turn(self, reader: FrameReader) -> bool | None:
        """Serve the plain requests that come next; return whether they end the batch, None if there are none."""
        if self._turns is None or self._overload is not None or reader.position == len(reader.data):
            return None
        turn = self._turns.serve(reader.data, reader.position, self._peer, self._waited_s)
        if turn is None:
            return None
        reader.position = turn.position
        self.accepted += turn.requests
        if isinstance(turn.responses, bytes):
            self._write([turn.responses])
        else:
            self._track(turn.responses, turn.requests, self._on_turn_done)
        return turn.is_last or self._out.size >= BATCH_BYTES_MAX

    def serve(self, command: Command) -> None:
        """Pass a request to its handler, or refuse it."""
        handler = self._handlers.get(command.code)
        if handler is None:
            self._unsupported.log(command.code, self._peer, self._limits.log, self._loop.time())
            self._reply(command, replies.not_supported(command.code))
            return
        rejection = self._limits.rejection(command.code, self._overload, self._waited_s)
        if rejection is not None:
            self._refuse(command, handler, rejection)
            return
        self.accepted += 1
        try:
            handled = handler(command, self._peer)
        except Exception as error:  # noqa: BLE001 - whatever one request does, the connection serves the next
            handled = self._error_reply(command, error)
        if handled is None or isinstance(handled, Reply):
            self._reply(command, handled)
            return
        # Enough for the response: the body of a request is not retained while it is in flight.
        header = Command(command.code, command.opaque, command.flag, form=command.form)
        future = self._track(handled, 1, lambda done: self._on_handler_done(header, done))
        # Read before the connection was lost: its reply has no reader.
        if not self._is_open and not command.flag & ONE_WAY:
            self._cancel(future)

    def refuse_header(self, frame: OversizedFrame, header_max: int) -> None:
        """Reject a request whose header is too large, without decoding its fields."""
        command = commands.outline(frame)
        if not command.flag & RESPONSE:
            self._reply(command, replies.header_too_large(command.code, frame.header_size, header_max))

    def send_late(self, tick_end: float) -> bool:
        """Build and write late replies as long as there is room for them. Return whether `tick_end` came before the last one."""
        while self._late_replies and self._out.writable.is_set() and self._out.size < BYTES_PER_TICK:
            command, late_reply = self._late_replies.popleft()
            try:
                reply = late_reply.build()
            except Exception as error:  # noqa: BLE001 - as in `serve`
                reply = self._error_reply(command, error)
            self._reply(command, reply)
            if self._late_replies and self._loop.time() >= tick_end:
                return True
        return False

    def _track(
        self, unfinished: Awaitable[T], requests: int, on_done: Callable[[asyncio.Future[T]], None]
    ) -> asyncio.Future[T]:
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
        return future

    def _cancel(self, future: asyncio.Future[Any]) -> None:
        """Cancel a handler or turn after it has begun: a coroutine that never runs gives back nothing of what its request took."""
        self._limits.cancellations.add(lambda: self._loop.call_soon(future.cancel))

    def _on_turn_done(self, done: asyncio.Future[bytes]) -> None:
        if error := done.exception():
            self._owner.drop(f"its requests cannot be answered: {type(error).__name__}: {error}")
        else:
            self._write([done.result()])

    def _on_handler_done(self, command: Command, done: asyncio.Future[Reply | LateReply | None]) -> None:
        error = done.exception()
        reply = self._error_reply(command, error) if error else done.result()
        has_room = self._out.size < BYTES_PER_TICK and self._out.writable.is_set()
        if has_room and not self._late_replies and not isinstance(reply, LateReply):
            self._reply(command, reply)
            return
        self._late_replies.append((command, reply if isinstance(reply, LateReply) else replies.completed(reply)))
        self._owner.send_late_replies()

    def _refuse(self, command: Command, handler: Handler, remark: str) -> None:
        """Answer a request that is not served: with the reason, or late if it exceeds a rate and is one that clients repeat."""
        throttle = self._throttle
        if throttle is not None and throttle.refusal is not None:
            if command.code in self._limits.delayed:
                delayed = self._serve_delayed(command, handler, throttle.delay(self._loop.time()))
                self._track(delayed, 1, lambda done: self._on_handler_done(command, done))
                return
            throttle.count_refused()
            if self._limits.audit is not None:
                self._limits.audit.refused(command, self._peer, throttle.refusal.remark)
        self._reply(command, Reply(ResponseCode.SYSTEM_BUSY, remark=remark))

    async def _serve_delayed(self, command: Command, handler: Handler, wait_s: float) -> Reply | LateReply | None:
        await asyncio.sleep(wait_s)
        handled = handler(command, self._peer)
        return handled if handled is None or isinstance(handled, Reply) else await handled

    def _error_reply(self, command: Command, error: BaseException) -> Reply:
        return replies.error_reply(command.code, error, self._peer, self._limits.log, self._loop.time())

    def _reply(self, command: Command, reply: Reply | None) -> None:
        if reply is None or command.flag & ONE_WAY or not self._is_open:
            replies.abandon(reply)
            return
        pieces, refusal = replies.encode(command, reply)
        if refusal:
            self._limits.log.warning(self._peer.ip, self._loop.time(), "%s: %s", self._peer.shown, refusal)
        self._write(pieces)

    def _write(self, pieces: list[bytes]) -> None:
        if self._is_open:
            self._out.write_responses(pieces)
