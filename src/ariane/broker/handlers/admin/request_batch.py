"""REQUEST_BATCH: requests for statistics, offsets and clients, hundreds at a time. Not in 4.9.4.

A page of a batch is bounded: the response ends with the request that fills PAGE_BYTES or ends after PAGE_S, and the event loop
serves other connections after each SLICE of requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from ariane.clock import Clock
from ariane.errors import ProtocolError
from ariane.net import replies
from ariane.net.connection import Handler, Peer, Reply
from ariane.net.peer_log import PeerLog
from ariane.net.replies import LateReply
from ariane.protocol.command import Command
from ariane.protocol.request_batch import REQUEST_BYTES_MAX, REQUESTS_MAX, decode_requests

log = logging.getLogger("ariane.broker")

PAGE_BYTES = 1024 * 1024
PAGE_S = 0.25
SLICE = 32  # requests without a pause: less than a millisecond for statistics


class RequestBatchHandler:
    """Serves batches."""

    def __init__(self, handlers: Mapping[int, Handler], clock: Clock) -> None:
        self._handlers = handlers
        self._clock = clock
        self._peer_log = PeerLog(log)  # failed requests are logged at a bounded rate per peer

    async def batch(self, command: Command, peer: Peer) -> Reply:
        """Handle REQUEST_BATCH."""
        if len(command.body) > REQUESTS_MAX * REQUEST_BYTES_MAX:
            raise ProtocolError(f"Invalid batch of {len(command.body)} bytes")
        pieces: list[bytes] = []
        size = 0
        ends_s = self._clock.monotonic() + PAGE_S
        for number, request in enumerate(decode_requests(command.body)):
            response = await self._response(request, peer)
            # A response that is larger than a page is sent alone.
            if pieces and size + len(response) > PAGE_BYTES:
                break
            pieces.append(response)
            size += len(response)
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if self._clock.monotonic() >= ends_s:
                break
        return Reply(body=pieces)

    async def _response(self, request: Command, peer: Peer) -> bytes:
        pieces, _ = replies.encode(request, await self._reply(request, peer))
        return b"".join(pieces)

    async def _reply(self, request: Command, peer: Peer) -> Reply:
        handler = self._handlers.get(request.code)
        if handler is None:
            return replies.not_supported(request.code)
        try:
            handled = handler(request, peer)
            result = handled if handled is None or isinstance(handled, Reply) else await handled
            return (result.build() if isinstance(result, LateReply) else result) or Reply()
        except Exception as error:  # noqa: BLE001 - one request of a batch does not affect the others
            return replies.error_reply(request.code, error, peer, self._peer_log, asyncio.get_running_loop().time())
