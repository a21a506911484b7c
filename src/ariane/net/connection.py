"""One connection, either side of it: bytes in, commands to the handler, replies out. [NettyRemotingAbstract]

    data_received → FrameReader → command.decode ─ request → handler → Reply ─┐
                                                 └ response → who waits       ├→ one write per batch of frames
    request() / one_way() ────────────────────────────────────────────────────┘

All replies of one turn of the loop leave in one write, and so do all requests made in it: system calls and wake-ups cost
more than Python does. A turn serves at most TURN_FRAMES requests of a connection.

Bounds: an unfinished frame (16 MiB), the Limits of requests that may be under way here, PENDING_MAX that we may have under
way there, and the socket's write buffer: a server stops reading from a peer that does not read its answers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from ariane.errors import ArianeError, ConnectionLost, ProtocolError, ReplyError, RequestTimeout
from ariane.model import host
from ariane.net.limits import Limits
from ariane.protocol import command as commands
from ariane.protocol.codes import ResponseCode, code_name
from ariane.protocol.command import ONE_WAY, RESPONSE, Command
from ariane.protocol.frame import Frame, FrameReader
from ariane.protocol.session import Session

log = logging.getLogger("ariane.net")

# Requests of one connection served in one turn of the loop: others get their turn, and the peer has its first answers while
# the last of what it sent is still being served.
TURN_FRAMES = 32
# Pieces of answers that end a turn: a pull is answered in one piece for each message, so its reader's turns end sooner, and
# those who send do not wait for thousands of messages that somebody reads.
TURN_PIECES = 2 * TURN_FRAMES
WRITE_HIGH_WATER = 4 * 1024 * 1024


class Peer(NamedTuple):
    """Who sent a request: a number that lives as long as the connection, and its address (`packed` as in a record)."""

    id: int
    ip: str
    port: int
    packed: bytes

    @property
    def addr(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


class Reply(msgspec.Struct, frozen=True):
    """What a handler answers. `fields` None means the code has no header class; a body may come in pieces."""

    code: int = ResponseCode.SUCCESS
    fields: Mapping[str, str] | None = None
    remark: str | None = None
    body: bytes | Sequence[bytes] = b""


# Given the extFields and the body of a request, the extFields that go out: how requests are signed.
Sign = Callable[[Mapping[str, str] | None, bytes], Mapping[str, str]]

Handled = Reply | None | Awaitable[Reply | None]
Handler = Callable[[Command, Peer], Handled]


class _Waiting(NamedTuple):
    answer: asyncio.Future[Command]
    timeout_ms: float


class Connection(asyncio.Protocol):
    """A connection of a server (`serving`) or of a client. `lost` is called once, when it is over."""

    def __init__(
        self,
        number: int,
        handlers: Mapping[int, Handler],
        *,
        serving: bool,
        limits: Limits | None = None,
        sign: Sign | None = None,
        made: Callable[[Connection], None] | None = None,
        lost: Callable[[Connection], None] | None = None,
    ) -> None:
        self.peer = _peer(number, ("0.0.0.0", 0))  # noqa: S104 - not an address to listen on: unknown until connected
        self.last_active = 0.0
        self._handlers = handlers
        self._serving = serving
        self._limits = limits or Limits()
        self._sign = sign
        self._made = made
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._session: Session[_Waiting] = Session()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._write_due = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._under_way: set[asyncio.Future[Reply | None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._turn_frames = TURN_FRAMES if serving else None
        self._frames: Iterator[Frame] | None = None  # left over from this turn
        self._read_at = 0.0  # when they were read
        self._waited_s = 0.0  # how long the requests of this turn have waited since
        self._overload: str | None = None  # why nothing more is taken on in this turn

    # --- asking ---

    async def request(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: float,
    ) -> Command:
        """The answer to a request, whatever its code. RequestTimeout or ConnectionLost when none comes."""
        if not self._may_write.is_set():
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._may_write.wait()
            except TimeoutError:
                raise RequestTimeout(self.peer.addr, timeout_ms) from None
        return await self.ask(code, fields, body, timeout_ms=timeout_ms)

    def ask(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, timeout_ms: float
    ) -> asyncio.Future[Command]:
        """As `request`, without waiting for room in the write buffer: the caller keeps its own bound."""
        if self._transport is None:
            raise ConnectionLost(self.peer.addr, "is closed")
        if self._sign is not None:
            fields = self._sign(fields, body)
        answer: asyncio.Future[Command] = self._loop.create_future()
        deadline = self._loop.time() + timeout_ms / 1000
        opaque = self._session.ask(_Waiting(answer, timeout_ms), deadline)
        self._write(commands.encode(code, opaque=opaque, flag=0, fields=fields, body=body))
        if self._timer is None or self._timer.when() > deadline:
            self._arm(deadline)
        return answer

    def one_way(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, remark: str | None = None
    ) -> None:
        """A request that gets no answer. ConnectionLost when the connection is already closed."""
        if self._transport is None:
            raise ConnectionLost(self.peer.addr, "is closed")
        if self._sign is not None:
            fields = self._sign(fields, body)
        opaque = self._session.next_opaque()
        self._write(commands.encode(code, opaque=opaque, flag=ONE_WAY, fields=fields, remark=remark, body=body))

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_room(self) -> bool:
        """Open, and the other side reads what it is sent."""
        return self.is_open and self._may_write.is_set()

    def close(self) -> None:
        """Write what is due, then close."""
        if self._transport is not None:
            self._write_out()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        name = transport.get_extra_info("peername") or ("0.0.0.0", 0)  # noqa: S104 - the peer left already
        self.peer = _peer(self.peer.id, name)
        self.last_active = self._loop.time()
        if self._made:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self._loop.time()
        frames = self._reader.feed(data)
        if self._frames is None:
            self._read_at = self.last_active
            self._take_turn(frames)
        else:
            self._frames = itertools.chain(self._frames, frames)

    def _take_turn(self, frames: Iterator[Frame], waited_s: float = 0.0) -> None:
        """Serve the next frames and write what they were answered; what is left over waits for the next turn of the loop,
        and nothing is read until then."""
        self._write_due = True  # what is answered here leaves together, below
        self._waited_s = waited_s
        self._overload = self._limits.overload(len(self._under_way))
        count, is_over = 0, False
        try:
            for frame in itertools.islice(frames, self._turn_frames):
                count += 1
                command = commands.decode(frame)
                if command.flag & RESPONSE:
                    self._answered(command)
                else:
                    self._serve(command)
                    if len(self._out) >= TURN_PIECES:
                        is_over = True
                        break
        except ProtocolError as error:
            log.warning("closing the connection of %s: %s", self.peer.addr, error)
            self._frames = None
            self.close()
            return
        self._write_out()
        if is_over or count == self._turn_frames:
            self._frames = frames
            self._read_when_ready()
            self._loop.call_soon(self._next_turn)
        elif self._frames is not None:
            self._frames = None
            self._read_when_ready()

    def _next_turn(self) -> None:
        if self._frames is not None:
            self._take_turn(self._frames, self._loop.time() - self._read_at)

    def _read_when_ready(self) -> None:
        """Read on, unless frames wait for their turn or (a server) answers wait to be read."""
        if self._transport is None:
            return
        if self._frames is not None or (self._serving and not self._may_write.is_set()):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._may_write.clear()
        self._read_when_ready()

    def resume_writing(self) -> None:
        self._may_write.set()
        self._read_when_ready()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._out.clear()
        self._may_write.set()
        if self._timer is not None:
            self._timer.cancel()
        why = str(error) if error else "was closed by the other side"
        for answer, _ in self._session.end():
            if not answer.done():
                answer.set_exception(ConnectionLost(self.peer.addr, why))
        for task in list(self._under_way):
            task.cancel()
        if self._lost:
            self._lost(self)

    # --- serving ---

    def _serve(self, command: Command) -> None:
        handler = self._handlers.get(command.code)
        if handler is None:
            log.warning("%s asked for %s, which is not served here", self.peer.addr, code_name(command.code))
            self._reply(command, _not_supported(command.code))
            return
        if (self._overload is not None or self._waited_s) and (remark := self._busy(command.code)) is not None:
            self._reply(command, Reply(ResponseCode.SYSTEM_BUSY, remark=remark))
            return
        try:
            handled = handler(command, self.peer)
        except Exception as error:  # noqa: BLE001 - whatever one request does, the connection serves the next
            handled = self._failure(command, error)
        if handled is None or isinstance(handled, Reply):
            self._reply(command, handled)
            return
        future = asyncio.ensure_future(handled)
        self._under_way.add(future)
        self._limits.under_way += 1
        future.add_done_callback(lambda done: self._finished(command, done))

    def _busy(self, code: int) -> str | None:
        """Why a request of this turn is not served; None: it is."""
        if self._overload is not None and code not in self._limits.exempt:
            return self._overload
        return self._limits.waited_too_long(code, self._waited_s)

    def _finished(self, command: Command, done: asyncio.Future[Reply | None]) -> None:
        self._limits.under_way -= 1
        self._under_way.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        self._reply(command, self._failure(command, error) if error else done.result())

    def _reply(self, command: Command, reply: Reply | None) -> None:
        if reply is None or command.flag & ONE_WAY or self._transport is None:
            return
        pieces = commands.encode(
            reply.code,
            opaque=command.opaque,
            flag=RESPONSE,
            fields=reply.fields,
            remark=reply.remark,
            body=reply.body,
            form=command.form,
        )
        self._write(pieces)

    def _failure(self, command: Command, error: BaseException) -> Reply:
        """The answer to a request whose handler raised."""
        if isinstance(error, ReplyError):
            return Reply(error.code, remark=error.remark)
        what = f"{code_name(command.code)} of {self.peer.addr}"
        if isinstance(error, ArianeError):
            log.warning("%s failed: %s", what, error)
            return Reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        log.error("%s failed", what, exc_info=error)
        return Reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    # --- answers to our requests ---

    def _answered(self, command: Command) -> None:
        waiting = self._session.answered(command.opaque)
        if waiting is None:
            log.debug("%s answered %d, for which nobody waits", self.peer.addr, command.opaque)
        elif not waiting.answer.done():
            waiting.answer.set_result(command)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for answer, timeout_ms in self._session.expired(self._loop.time()):
            if not answer.done():
                answer.set_exception(RequestTimeout(self.peer.addr, timeout_ms))
        deadline = self._session.next_deadline()
        if deadline is not None:
            self._arm(deadline)

    # --- writing ---

    def _write(self, pieces: list[bytes]) -> None:
        self._out += pieces
        if not self._write_due:
            self._write_due = True
            self._loop.call_soon(self._write_out)

    def _write_out(self) -> None:
        self._write_due = False
        if self._out and self._transport is not None:
            self.last_active = self._loop.time()
            # One copy costs less than handing over many small pieces.
            self._transport.write(b"".join(self._out))
            self._out = []


def _peer(number: int, name: Sequence[Any]) -> Peer:
    return Peer(number, name[0], name[1], host.pack(name[0], name[1]))


def _not_supported(code: int) -> Reply:
    return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {code} not supported")
