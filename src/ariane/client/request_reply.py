"""Request and reply: pending requests of a client, and both kinds of message. [RequestFutureHolder, MessageUtil]

request  a message with CORRELATION_ID, REPLY_TO_CLIENT (client id of the requester), TTL (ms)
reply    to <cluster>_REPLY_TOPIC, with the same three, MSG_TYPE=reply; its broker pushes it to the requester (326)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from ariane.client import send_codec
from ariane.client.send_codec import PreparedMessage
from ariane.client.settings import ProducerSettings
from ariane.clock import Clock
from ariane.errors import MessageRefused
from ariane.model import message as names
from ariane.model.message import Message, MessageQueue, ReceivedMessage
from ariane.model.topic import reply_topic
from ariane.net.connection import Peer, Reply
from ariane.protocol import properties
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.received_messages import expand_body
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.callbacks import PushReply

log = logging.getLogger("ariane.client")

REPLY = "reply"  # value of MSG_TYPE
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
        message = parse_pushed_reply(decode_header(command, PushReply), command.body, self._clock.now_ms())
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


def prepare_request(prepared: PreparedMessage, correlation_id: str, client_id: str, timeout_ms: int) -> PreparedMessage:
    """Return a prepared message as a request of `client_id`."""
    added = {
        names.CORRELATION_ID: correlation_id,
        names.REPLY_TO_CLIENT: client_id,
        names.TTL: str(timeout_ms),
    }
    return send_codec.with_properties(prepared, added)


def build_reply(
    request: ReceivedMessage, body: bytes, *, tags: str, keys: Sequence[str], properties: Mapping[str, str]
) -> Message:
    """Return a message for the topic of replies.

    Raises:
        MessageRefused: the message to reply to is not a request.
    """
    required = (names.CLUSTER, names.CORRELATION_ID, names.REPLY_TO_CLIENT)
    missing = [name for name in required if not request.properties.get(name)]
    if missing:
        raise MessageRefused(f"message {request.message_id} is not a request: it lacks {', '.join(missing)}")
    topic = reply_topic(request.properties[names.CLUSTER])
    return Message(topic=topic, body=body, tags=tags, keys=keys, properties=properties)


def prepare_reply(
    request: ReceivedMessage, response: Message, message_id: str, settings: ProducerSettings
) -> PreparedMessage:
    """Return a message of `build_reply`, prepared as the reply to `request`."""
    prepared = send_codec.prepare(response, message_id, settings)
    added = {
        names.MSG_TYPE: REPLY,
        names.CORRELATION_ID: request.properties[names.CORRELATION_ID],
        names.REPLY_TO_CLIENT: request.properties[names.REPLY_TO_CLIENT],
    }
    if ttl := request.properties.get(names.TTL):
        added[names.TTL] = ttl
    prepared = send_codec.with_properties(prepared, added)
    return msgspec.structs.replace(prepared, code=RequestCode.SEND_REPLY_MESSAGE_V2)


def parse_pushed_reply(header: PushReply, body: bytes, now_ms: int) -> ReceivedMessage:
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
