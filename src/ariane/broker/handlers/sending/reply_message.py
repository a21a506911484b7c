"""SEND_REPLY_MESSAGE (324), _V2 (325): the reply to a request message, pushed to the waiting client. [ReplyMessageProcessor]

    replier ─ 325, topic <cluster>_REPLY_TOPIC ─→ checks of a send ─ 326 ─→ the producer named by REPLY_TO_CLIENT
                                                                   └ stored too (storeReplyMessageEnable)

The replier gets code 0 if the requester received the reply, otherwise 1; it is stored in both cases. msgId "0" means that it is
not stored. Stored replies are a log only; no consumer delivers them, so responses do not wait for their flush.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ariane.broker.collaborators import ClientRequests, StoreListener
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.handlers.sending.send import IncomingMessage
from ariane.broker.handlers.sending.send_target import SendTargets
from ariane.broker.state.group_members import GroupMembers
from ariane.clock import Clock
from ariane.errors import ArianeError, ReplyError
from ariane.model import host, ids
from ariane.model import message as names
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.callbacks import PushReply
from ariane.protocol.requests.messaging import LONG_NAMES, SendMessage
from ariane.store.message_store import MessageStore, RecordDraft

log = logging.getLogger("ariane.broker")

PUSH_MS = 10_000  # timeout of a push to the requester


@dataclass(frozen=True, kw_only=True)
class ReplyMessageHandler:
    """Pushes replies to the clients that wait for them."""

    settings: DynamicConfig  # region and trace switch, which replies contain
    targets: SendTargets  # checks the topic as for a send
    members: GroupMembers  # finds the requester by its client id
    clients: ClientRequests  # pushes the reply to the requester
    store: MessageStore  # stores the reply as well, if storeReplyMessageEnable
    store_host: bytes  # packed address of this broker
    listener: StoreListener  # dispatches the stored reply
    clock: Clock  # time of the push

    def reply(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle SEND_REPLY_MESSAGE_V2."""
        return self._reply(decode_header(command, SendMessage), command.body, peer)

    def reply_v1(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle SEND_REPLY_MESSAGE: the same header with long field names."""
        return self._reply(decode_header(command, SendMessage, LONG_NAMES), command.body, peer)

    def _reply(self, request: SendMessage, body: bytes, peer: Peer) -> HandlerResult:
        config = self.settings.current
        context = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
        try:
            topic = self.targets.topic(request)
            queue_id = self.targets.queue_id(request, topic)
        except ReplyError as error:
            return Reply(error.code, context, error.remark)
        property_map = properties.decode(request.properties) if request.properties else {}
        return self._push_and_store(IncomingMessage(request, topic, queue_id, property_map, body, peer), context)

    async def _push_and_store(self, message: IncomingMessage, context: dict[str, str]) -> Reply:
        fault = await self._push(message)
        stored = {"msgId": "0", "queueId": str(message.queue_id), "queueOffset": "0"}
        if self.settings.current.store_reply_message_enable:
            try:
                result = self.store.put(_draft(message))
            except ArianeError as error:
                requester = message.properties.get(names.REPLY_TO_CLIENT)
                log.warning("Could not store a reply to %s: %s", requester, error)
            else:
                self.listener.on_stored()
                stored["msgId"] = ids.offset_message_id(self.store_host, result.offset)
                stored["queueOffset"] = str(result.queue_offset)
        if fault:
            return Reply(ResponseCode.SYSTEM_ERROR, context | stored, fault)
        return Reply(ResponseCode.SUCCESS, context | stored)

    async def _push(self, message: IncomingMessage) -> str | None:
        """Push a reply, with PUSH_REPLY_TIME, to its requester, and return why the requester did not get it; None if it did."""
        request, property_map = message.request, message.properties
        client_id = property_map.get(names.REPLY_TO_CLIENT)
        if not client_id:
            return f"reply message property[{names.REPLY_TO_CLIENT}] is null"
        member = self.members.find_producer(client_id)
        if member is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self.clock.now_ms()
        property_map[names.PUSH_REPLY_TIME] = str(now_ms)
        header = PushReply(
            producer_group=request.producer_group,
            topic=request.topic,
            default_topic=request.default_topic,
            default_topic_queue_nums=request.default_topic_queue_nums,
            queue_id=message.queue_id,
            sys_flag=request.sys_flag,
            born_ms=request.born_ms,
            flag=request.flag,
            born_host=message.peer.addr,
            store_host=host.text(self.store_host),
            store_ms=now_ms,
            properties=properties.join(property_map),
            reconsume_times=request.reconsume_times,
            unit_mode=request.unit_mode,
        )
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        try:
            response = await self.clients.request(
                member.peer_id, code, encode_header(header), message.body, timeout_ms=PUSH_MS
            )
        except ArianeError as error:
            return f"push reply message to {client_id} fail: {error}"
        if response.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail: it answered code {response.code}, {response.remark}"
        return None


def _draft(message: IncomingMessage) -> RecordDraft:
    request, property_map = message.request, message.properties
    return RecordDraft(
        topic=message.topic.topic_name,
        queue_id=message.queue_id,
        body=message.body,
        properties=properties.join(property_map),
        tags=property_map.get(names.TAGS, ""),
        flag=request.flag,
        sys_flag=request.sys_flag & ~names.TRANSACTION_MASK,  # a reply is never a half message
        born_ms=request.born_ms,
        born_host=message.peer.packed,
        reconsume_times=request.reconsume_times or 0,
    )
