"""SEND_REPLY_MESSAGE (324), _V2 (325): the answer to a message, pushed to the client that waits for it. [ReplyMessageProcessor]

    replier ─ 325, topic <cluster>_REPLY_TOPIC ─→ checks of a send ─ 326 ─→ the producer named by REPLY_TO_CLIENT
                                                                   └ stored too (storeReplyMessageEnable)

The replier is answered 0 when the requester took the reply, 1 when not; it is stored in both cases. msgId "0" tells that it
is not stored. Stored replies are a record of what was said, nobody reads them to deliver them: they are not waited for.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from ariane.broker.handlers import send
from ariane.broker.handlers.consumer_admin import Ask
from ariane.broker.handlers.send import SendHandler
from ariane.broker.state.group_members import GroupMembers
from ariane.errors import ArianeError, ReplyError
from ariane.model import host, ids
from ariane.model import message as names
from ariane.net.connection import Handled, Handler, Peer, Reply
from ariane.protocol import properties
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import fields, typed
from ariane.protocol.requests.callbacks import PushReply
from ariane.protocol.requests.messaging import LONG_NAMES, SendMessage
from ariane.store.message_store import RecordDraft

log = logging.getLogger("ariane.broker")

PUSH_MS = 10_000  # how long a requester may take to answer that it has the reply


class ReplyMessageHandler(NamedTuple):
    """What a reply needs: the parts of a send, and a way to the producers."""

    sending: SendHandler
    members: GroupMembers
    ask: Ask


def handlers(parts: ReplyMessageHandler) -> dict[int, Handler]:
    return {
        RequestCode.SEND_REPLY_MESSAGE: lambda command, peer: reply(
            parts, typed(command, SendMessage, LONG_NAMES), command, peer
        ),
        RequestCode.SEND_REPLY_MESSAGE_V2: lambda command, peer: reply(
            parts, typed(command, SendMessage), command, peer
        ),
    }


def reply(parts: ReplyMessageHandler, request: SendMessage, command: Command, peer: Peer) -> Handled:
    """Push a reply to who waits for it, and store it."""
    config = parts.sending.config
    context = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
    try:
        topic, queue_id = send.target(parts.sending, request)
    except ReplyError as error:
        return Reply(error.code, context, error.remark)
    return _pushed_and_stored(parts, request, command.body, peer, topic.topic_name, queue_id, context)


async def _pushed_and_stored(
    parts: ReplyMessageHandler,
    request: SendMessage,
    body: bytes,
    peer: Peer,
    topic: str,
    queue_id: int,
    context: dict[str, str],
) -> Reply:
    own = properties.decode(request.properties) if request.properties else {}
    fault = await _push(parts, request, body, peer, queue_id, own)
    stored = {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
    if parts.sending.config.store_reply_message_enable:
        try:
            placed = parts.sending.store.put(_draft(request, body, peer, topic, queue_id, own))
        except ArianeError as error:
            log.warning("a reply to %s is not stored: %s", own.get(names.REPLY_TO_CLIENT), error)
        else:
            parts.sending.stored()
            stored["msgId"] = ids.offset_message_id(parts.sending.store_host, placed.offset)
            stored["queueOffset"] = str(placed.queue_offset)
    if fault:
        return Reply(ResponseCode.SYSTEM_ERROR, context | stored, fault)
    return Reply(ResponseCode.SUCCESS, context | stored)


async def _push(
    parts: ReplyMessageHandler, request: SendMessage, body: bytes, peer: Peer, queue_id: int, own: dict[str, str]
) -> str | None:
    """Why the requester did not get the reply, or None. PUSH_REPLY_TIME is put into `own`."""
    client_id = own.get(names.REPLY_TO_CLIENT)
    if not client_id:
        return f"reply message property[{names.REPLY_TO_CLIENT}] is null"
    member = parts.members.find_producer(client_id)
    if member is None:
        return f"push reply message fail, channel of <{client_id}> not found."
    now = parts.sending.now_ms()
    own[names.PUSH_REPLY_TIME] = str(now)
    header = PushReply(
        producer_group=request.producer_group,
        topic=request.topic,
        default_topic=request.default_topic,
        default_topic_queue_nums=request.default_topic_queue_nums,
        queue_id=queue_id,
        sys_flag=request.sys_flag,
        born_ms=request.born_ms,
        flag=request.flag,
        born_host=peer.addr,
        store_host=host.text(parts.sending.store_host),
        store_ms=now,
        properties=properties.join(own),
        reconsume_times=request.reconsume_times,
        unit_mode=request.unit_mode,
    )
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    try:
        answer = await parts.ask(member.peer_id, code, fields(header), body, timeout_ms=PUSH_MS)
    except ArianeError as error:
        return f"push reply message to {client_id} fail: {error}"
    if answer.code != ResponseCode.SUCCESS:
        return f"push reply message to {client_id} fail: it answered code {answer.code}, {answer.remark}"
    return None


def _draft(
    request: SendMessage, body: bytes, peer: Peer, topic: str, queue_id: int, own: dict[str, str]
) -> RecordDraft:
    return RecordDraft(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=properties.join(own),
        tags=own.get(names.TAGS, ""),
        flag=request.flag,
        sys_flag=request.sys_flag & ~names.TRANSACTION_MASK,  # a reply is no half message, whatever it says
        born_ms=request.born_ms,
        born_host=peer.packed,
        reconsume_times=request.reconsume_times or 0,
    )
