"""Requests as handlers get and answer them: the types between a connection and what serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ariane.model import host
from ariane.protocol.codes import ResponseCode
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

    make: Callable[[], Reply | None]


Handled = Reply | None | Awaitable[Reply | LateReply | None]
Handler = Callable[[Command, Peer], Handled]


def peer_of(number: int, name: Sequence[Any]) -> Peer:
    """The peer behind a socket name."""
    return Peer(number, name[0], name[1], host.pack(name[0], name[1]))
