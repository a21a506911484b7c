"""Responses that a connection awaits: a future per request, resolved by its response, its deadline, or the end of the connection.

One timer serves all requests: it runs for the earliest deadline.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from ariane.errors import ConnectionLost, RequestTimeout
from ariane.net.replies import Peer
from ariane.protocol.command import Command
from ariane.protocol.session import Session

log = logging.getLogger("ariane.net")


class _AwaitedResponse(msgspec.Struct):
    answer: asyncio.Future[Command]
    peer: Peer
    timeout_ms: float


class AwaitedResponses:
    """The requests that a connection has sent, until their response or deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._session: Session[_AwaitedResponse] = Session()
        self._timer: asyncio.TimerHandle | None = None  # for the earliest deadline

    def __len__(self) -> int:
        """Return the number of requests in flight."""
        return len(self._session)

    def next_opaque(self) -> int:
        """Return the number of a request without a response."""
        return self._session.next_opaque()

    def add(self, peer: Peer, timeout_ms: float) -> tuple[int, asyncio.Future[Command]]:
        """Return the number of a request to `peer` that is sent now, and the future of its response.

        Raises:
            TooManyRequests: too many requests are in flight.
        """
        response: asyncio.Future[Command] = self._loop.create_future()
        deadline = self._loop.time() + timeout_ms / 1000
        opaque = self._session.register(_AwaitedResponse(response, peer, timeout_ms), deadline)
        if self._timer is None or self._timer.when() > deadline:
            self._schedule_expiry(deadline)
        return opaque, response

    def remove(self, opaque: int) -> None:
        """Forget a request that was not sent."""
        self._session.resolve(opaque)

    def resolve(self, command: Command, peer: Peer) -> None:
        """Resolve the request that this response of `peer` belongs to."""
        awaited = self._session.resolve(command.opaque)
        if awaited is None:
            # It timed out, or the peer responded twice.
            log.debug("Dropping response %d of %s: no pending request", command.opaque, peer.addr)
        elif not awaited.answer.done():
            awaited.answer.set_result(command)

    def close(self, addr: str, reason: str) -> None:
        """Fail all requests, because the connection to `addr` is lost."""
        if self._timer is not None:
            self._timer.cancel()
        for awaited in self._session.close():
            if not awaited.answer.done():
                awaited.answer.set_exception(ConnectionLost(addr, reason))

    def _schedule_expiry(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for awaited in self._session.pop_expired(self._loop.time()):
            if not awaited.answer.done():
                awaited.answer.set_exception(RequestTimeout(awaited.peer.addr, awaited.timeout_ms))
        deadline = self._session.next_deadline()
        if deadline is not None:
            self._schedule_expiry(deadline)
