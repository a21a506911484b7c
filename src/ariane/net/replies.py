"""Requests as handlers get and answer them: the types between a connection and what serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ariane.errors import ProtocolError
from ariane.model import host
from ariane.protocol.codes import ResponseCode, code_name
from ariane.protocol.command import Command


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


class LateReply(NamedTuple):
    """What an awaitable handler gives when its answer is large: `make` is called when there is room to write the answer."""

    build: Callable[[], Reply | None]


HandlerResult = Reply | None | Awaitable[Reply | LateReply | None]
Handler = Callable[[Command, Peer], HandlerResult]


def make_peer(number: int, name: Sequence[Any]) -> Peer:
    """The peer behind a socket name."""
    return Peer(number, name[0], name[1], host.pack(name[0], name[1]))


def not_supported(code: int) -> Reply:
    """The answer to a request with a code that is not served here."""
    return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {code} not supported")


def header_too_large(code: int, size: int, header_max: int) -> Reply:
    """The answer to a request with a header of `size` bytes."""
    remark = f"the header of request {code_name(code)} has {size} bytes, at most {header_max} are accepted"
    return Reply(ResponseCode.SYSTEM_ERROR, remark=f"{remark} (maxRequestHeaderSize)")


def response_too_large(code: int, error: ProtocolError) -> Reply:
    """The answer instead of one that no peer would read."""
    return Reply(ResponseCode.SYSTEM_ERROR, remark=f"the answer to {code_name(code)} cannot be sent: {error}")


def completed(reply: Reply | None) -> LateReply:
    """An answer that was made already, and is written when there is room."""
    return LateReply(lambda: reply)
