"""Types between a connection and its request handlers: peers, replies, handler signatures."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from ariane.errors import ArianeError, ProtocolError, ReplyError
from ariane.model import host
from ariane.net.peer_log import PeerLog
from ariane.protocol import command as commands
from ariane.protocol.codes import ResponseCode, code_name
from ariane.protocol.command import RESPONSE, Command
from ariane.protocol.requests.pop import AckedDelivery

UNSUPPORTED_CODES_MAX = 64  # codes per connection that are remembered as logged


UNKNOWN = ("0.0.0.0", 0)  # noqa: S104 - the name of a peer that reset its connection before it was accepted


class Peer(NamedTuple):
    """The sender of a request."""

    id: int  # unique while the connection lives
    ip: str
    port: int
    packed: bytes  # the address as in records
    names: tuple[str, ...] = ()  # of its client certificate, which was verified

    @property
    def is_unknown(self) -> bool:
        """Whether the peer reset its connection before it was accepted."""
        return (self.ip, self.port) == UNKNOWN

    @property
    def shown(self) -> str:
        """The address in log lines."""
        return "an unknown address (reset before it was accepted)" if self.is_unknown else self.addr

    @property
    def addr(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


class Reply(msgspec.Struct, frozen=True):
    """The reply of a handler. `fields` is None if the code has no response header; a body may consist of pieces.

    `on_unsent` is called in place of sending it if the connection is closed.
    """

    code: int = ResponseCode.SUCCESS
    fields: Mapping[str, str] | None = None
    remark: str | None = None
    body: bytes | Sequence[bytes] = b""
    on_unsent: Callable[[], None] | None = None


# Signs a request: receives its extFields and body, returns the extFields to send.
Sign = Callable[[Mapping[str, str] | None, bytes], Mapping[str, str]]


class LateReply(NamedTuple):
    """Deferred reply of an asynchronous handler, for large responses: `build` is called once there is room to write it."""

    build: Callable[[], Reply | None]
    complete: Reply | None = None
    """What `build` returns, if that exists already."""


class ServedTurn(NamedTuple):
    """Plain requests of one read that were served together."""

    position: int  # of the next frame in the data
    requests: int
    responses: bytes | Awaitable[bytes]  # their frames
    is_last: bool  # whether other connections are served before the rest of the data


class TurnHandler(Protocol):
    """Serves runs of plain requests without decoding each into a command."""

    def serve(self, data: bytes, position: int, peer: Peer, waited_s: float) -> ServedTurn | None:
        """Serve the plain requests in `data` from `position` on, the start of a frame.

        Args:
            waited_s: How long they have been queued since they were read.

        Returns:
            None if the next frame has to be decoded for its handler, or is not complete.
        """
        ...


class AckHandler(Protocol):
    """Serves acknowledgements together. [PopHandler.ack_all]"""

    def __call__(self, deliveries: Sequence[AckedDelivery], /) -> Awaitable[None] | None:
        """End deliveries, all or nothing; raise ArianeError if each has to be decided about.

        Returns:
            None if their end is durable; otherwise an awaitable, which raises FlushFailed if it will not be.
        """
        ...


HandlerResult = Reply | None | Awaitable[Reply | LateReply | None]
Handler = Callable[[Command, Peer], HandlerResult]


class UnsupportedCodes:
    """Unsupported codes of one connection: each is logged once, because clients of later versions send it repeatedly."""

    def __init__(self) -> None:
        self._logged: set[int] = set()

    def log(self, code: int, peer: Peer, log: PeerLog, now: float) -> None:
        if code not in self._logged and len(self._logged) < UNSUPPORTED_CODES_MAX:
            self._logged.add(code)
            text = "Rejecting requests of %s with code %s: not supported here"
            log.warning(peer.ip, now, text, peer.shown, code_name(code))


def make_peer(number: int, name: Sequence[Any], names: tuple[str, ...] = ()) -> Peer:
    """Return the peer with this number, socket name and names of its certificate."""
    return Peer(number, name[0], name[1], host.pack(name[0], name[1]), names)


def encode(request: Command, reply: Reply) -> tuple[list[bytes], str | None]:
    """Return the pieces of the response frame, in the header form of the request.

    A reply that exceeds the frame limit of peers is replaced by a refusal, whose remark is returned, too.
    """
    try:
        return _encode(request, reply), None
    except ProtocolError as error:
        remark = f"Cannot send the response to {code_name(request.code)}: {error}"
        return _encode(request, Reply(ResponseCode.SYSTEM_ERROR, remark=remark)), remark


def _encode(request: Command, reply: Reply) -> list[bytes]:
    return commands.encode(
        reply.code,
        opaque=request.opaque,
        flag=RESPONSE,
        fields=reply.fields,
        remark=reply.remark,
        body=reply.body,
        form=request.form,
    )


def not_supported(code: int) -> Reply:
    """Return the reply to a request with an unsupported code."""
    return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {code} not supported")


def header_too_large(code: int, size: int, header_max: int) -> Reply:
    """Return the reply to a request whose header has `size` bytes, more than `header_max`."""
    remark = f"Invalid header of request {code_name(code)}: {size} bytes, expected at most {header_max}"
    return Reply(ResponseCode.SYSTEM_ERROR, remark=f"{remark} (maxRequestHeaderSize)")


def error_reply(code: int, error: BaseException, peer: Peer, log: PeerLog, now: float) -> Reply:
    """Return the reply to a request of `peer` whose handler raised `error`, and log what is not a rejection."""
    if isinstance(error, ReplyError):
        return Reply(error.code, remark=error.remark)
    request = f"{code_name(code)} of {peer.shown}"
    if isinstance(error, ArianeError):
        log.warning(peer.ip, now, "%s failed: %s", request, error)
        return Reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
    log.error(peer.ip, now, "%s failed", request, exc_info=error)
    return Reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def completed(reply: Reply | None) -> LateReply:
    """Return a late reply that is complete already and only waits for room."""
    return LateReply(lambda: reply, reply)


def abandon(reply: Reply | None) -> None:
    """Report that a reply is not sent."""
    if reply is not None and reply.on_unsent is not None:
        reply.on_unsent()


def abandon_all(late_replies: deque[tuple[Command, LateReply]]) -> None:
    """Report that the late replies of a closed connection are not sent, and forget them."""
    while late_replies:
        abandon(late_replies.popleft()[1].complete)
