"""Request-reply: who waits for which reply, and the two messages of it. [RequestFutureHolder, MessageUtil]

request  a message with CORRELATION_ID, REPLY_TO_CLIENT (who waits), TTL (ms)
reply    to <cluster>_REPLY_TOPIC, the three copied, MSG_TYPE=reply; its broker pushes it to who waits (326)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from ariane.client import send_codec
from ariane.client.received_messages import expand_body
from ariane.client.send_codec import PreparedMessage
from ariane.client.settings import ProducerSettings
from ariane.clock import Clock
from ariane.errors import MessageRefused
from ariane.model import message as names
from ariane.model.message import Message, MessageQueue, ReceivedMessage
from ariane.model.topic import reply_topic
from ariane.net.connection import Peer, Reply
from ariane.protocol import properties
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import typed
from ariane.protocol.requests.callbacks import PushReply

log = logging.getLogger("ariane.client")

REPLY = "reply"  # MSG_TYPE
PENDING_MAX = 65_536  # requests of one client that wait for their replies
UNKNOWN_OFFSET = -1  # a reply is pushed, whether or not it lies in a queue


class PendingReplies:
    """The requests of one client that wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._futures: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def expect(self, correlation_id: str) -> asyncio.Future[ReceivedMessage]:
        """The reply to come. Who asks calls `forget` in any case."""
        if len(self._futures) >= PENDING_MAX:
            raise MessageRefused(f"{PENDING_MAX} requests of this client wait for their replies: await some first")
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._futures[correlation_id] = future
        return future

    def forget(self, correlation_id: str) -> None:
        self._futures.pop(correlation_id, None)

    def on_reply(self, command: Command, peer: Peer) -> Reply:
        """A broker pushes a reply (326). One that nobody waits for any more is refused, so that the replier knows."""
        message = parse_pushed_reply(typed(command, PushReply), command.body, self._clock.now_ms())
        correlation_id = message.properties.get(names.CORRELATION_ID, "")
        future = self._futures.pop(correlation_id, None)
        if future is None or future.done():
            log.info("a reply from %s comes too late, or was never asked for: %s", message.born_host, correlation_id)
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"nobody waits for the reply {correlation_id}")
        future.set_result(message)
        return Reply()


def prepare_request(out: PreparedMessage, correlation_id: str, client_id: str, timeout_ms: int) -> PreparedMessage:
    """`out` as a request of `client_id`."""
    own = {
        names.CORRELATION_ID: correlation_id,
        names.REPLY_TO_CLIENT: client_id,
        names.TTL: str(timeout_ms),
    }
    return send_codec.with_properties(out, own)


def build_reply(
    asked: ReceivedMessage, body: bytes, *, tags: str, keys: Sequence[str], properties: Mapping[str, str]
) -> Message:
    """A message for the topic of replies; MessageRefused when `asked` does not ask for one."""
    wanted = (names.CLUSTER, names.CORRELATION_ID, names.REPLY_TO_CLIENT)
    missing = [name for name in wanted if not asked.properties.get(name)]
    if missing:
        raise MessageRefused(f"{asked.message_id} is no request: it has no {', '.join(missing)}")
    topic = reply_topic(asked.properties[names.CLUSTER])
    return Message(topic=topic, body=body, tags=tags, keys=keys, properties=properties)


def prepare_reply(
    asked: ReceivedMessage, answer: Message, message_id: str, settings: ProducerSettings
) -> PreparedMessage:
    """`answer` (made by `answer_to`) as the reply to `asked`."""
    out = send_codec.prepare(answer, message_id, settings)
    own = {
        names.MSG_TYPE: REPLY,
        names.CORRELATION_ID: asked.properties[names.CORRELATION_ID],
        names.REPLY_TO_CLIENT: asked.properties[names.REPLY_TO_CLIENT],
    }
    if ttl := asked.properties.get(names.TTL):
        own[names.TTL] = ttl
    return send_codec.with_properties(out, own)._replace(is_reply=True)


def parse_pushed_reply(header: PushReply, body: bytes, now_ms: int) -> ReceivedMessage:
    """A pushed reply as the application sees it. It has no place in a queue that anybody would know."""
    table = properties.decode(header.properties or "")
    table[names.ARRIVE_TIME] = str(now_ms)
    stored_size = len(body)
    body, sys_flag, body_error = expand_body(body, header.sys_flag)
    if body_error:
        log.error("Cannot read the body of a reply from %s: %s", header.born_host, body_error)
    return ReceivedMessage(
        topic=header.topic,
        body=body,
        properties=table,
        queue=MessageQueue(header.topic, "", header.queue_id),
        queue_offset=UNKNOWN_OFFSET,
        commit_log_offset=UNKNOWN_OFFSET,
        message_id=table.get(names.UNIQ_KEY, ""),
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
