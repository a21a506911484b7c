"""Requests of a client that wait for a reply message, which a broker pushes. [RequestFutureHolder]"""

from __future__ import annotations

import asyncio
import logging

from ariane.clock import Clock
from ariane.errors import MessageRefused
from ariane.model import message as names
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.net.connection import Peer, Reply
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties
from ariane.protocol.records.received_messages import expand_body
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.callbacks import PushReply

log = logging.getLogger("ariane.client")

PENDING_MAX = 65_536  # pending requests of one client
UNKNOWN_OFFSET = -1  # a pushed reply has no offset, whether or not the broker stored it


class PendingReplies:
    """Requests of one client whose replies are pending."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._futures: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def expect(self, correlation_id: str) -> asyncio.Future[ReceivedMessage]:
        """Return a future of the reply. The caller must call `forget` in any case.

        Raises:
            MessageRefused: too many requests are pending.
        """
        if len(self._futures) >= PENDING_MAX:
            raise MessageRefused(f"{PENDING_MAX} requests of this client wait for replies: await some of them first")
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._futures[correlation_id] = future
        return future

    def forget(self, correlation_id: str) -> None:
        """Discard a request that was answered, failed or timed out."""
        self._futures.pop(correlation_id, None)

    def on_reply(self, command: Command, peer: Peer) -> Reply:
        """Handle a reply that a broker pushes (326). Refuse it if nothing waits for it, so that the replier is informed."""
        message = _parse(decode_header(command, PushReply), command.body, self._clock.now_ms())
        correlation_id = message.properties.get(names.CORRELATION_ID, "")
        future = self._futures.pop(correlation_id, None)
        if future is None or future.done():
            log.info(
                "Refusing a reply from %s: no pending request %s (timed out or unknown)",
                message.born_host,
                correlation_id,
            )
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"no pending request {correlation_id}")
        future.set_result(message)
        return Reply()


def _parse(header: PushReply, body: bytes, now_ms: int) -> ReceivedMessage:
    """Return a pushed reply as the application sees it. It belongs to no queue of the application."""
    pairs = properties.decode(header.properties or "")
    pairs[names.ARRIVE_TIME] = str(now_ms)
    stored_size = len(body)
    body, sys_flag, body_error = expand_body(body, header.sys_flag)
    if body_error:
        log.error("Cannot read the body of a reply from %s: %s", header.born_host, body_error)
    return ReceivedMessage(
        topic=header.topic,
        body=body,
        properties=pairs,
        queue=MessageQueue(header.topic, "", header.queue_id),
        queue_offset=UNKNOWN_OFFSET,
        commit_log_offset=UNKNOWN_OFFSET,
        message_id=pairs.get(names.UNIQ_KEY, ""),
        offset_message_id="",
        born_ms=header.born_ms,
        born_host=header.born_host,
        store_ms=header.store_ms,
        store_host=header.store_host,
        reconsume_times=header.reconsume_times or 0,
        flag=header.flag,
        sys_flag=sys_flag,
        stored_size=stored_size,
        body_error=body_error,
    )
