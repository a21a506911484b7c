"""`Requester`: sends requests to servers by their addresses. Pools of connections, and checks before them, implement `exchange`.

request, request_ok ─→ ServerRequest ─→ exchange ─→ response
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import msgspec

from ariane.errors import ReplyError
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command

REQUEST_TIMEOUT_MS = 3000


class ServerRequest(NamedTuple):
    """A request, and the server that it is sent to."""

    addr: str
    code: int
    header: msgspec.Struct | None = None
    body: bytes = b""
    timeout_ms: float = REQUEST_TIMEOUT_MS


class Requester(ABC):
    """Sends requests to addresses."""

    async def request(
        self,
        addr: str,
        code: int,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
    ) -> Command:
        """Send a request to `addr` and return the response, whatever its code.

        Raises:
            RequestTimeout: no response within `timeout_ms`.
            ConnectionLost: the connection was refused, or closed before the response arrived.
        """
        return await self.exchange(ServerRequest(addr, code, header, body, timeout_ms))

    async def request_ok(
        self,
        addr: str,
        code: int,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
    ) -> Command:
        """Send a request to `addr` and return the successful response.

        Raises:
            ReplyError: the response has another code than SUCCESS.
            RequestTimeout, ConnectionLost: as `request`.
        """
        response = await self.request(addr, code, header, body, timeout_ms=timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise ReplyError(response.code, response.remark, addr)
        return response

    @abstractmethod
    async def exchange(self, request: ServerRequest) -> Command:
        """Send a request and return the response; raises as `request`."""
