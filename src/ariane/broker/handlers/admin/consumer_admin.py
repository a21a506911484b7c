"""Requests of tools to consumers, relayed by the broker: reset offsets (222), status (223), running info (307), consume one (309).

    tool ─ 222 ─→ new offsets, computed here ─ 220, one-way ─→ every member
    tool ─ 223 ─→ 221 ─→ every member, or the named one ─→ their offsets in one table
    tool ─ 307, 309 ─→ the same fields ─→ the member with that client id ─→ its response, unchanged

[AdminBrokerProcessor, Broker2Client]
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from ariane.broker.collaborators import ClientRequests
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.group_members import GroupMembers, Member
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ArianeError, ConnectionLost, ProtocolError, ReplyError, RequestTimeout
from ariane.model import ids
from ariane.model.message import MessageQueue
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.callbacks import (
    ConsumeDirectly,
    ConsumerStatus,
    QueueTable,
    ResetOffset,
    RunningInfoRequest,
    reset_body,
    status_table,
    statuses_body,
)
from ariane.store.message_store import MessageStore

CALL_MS = 10_000  # for 307 and 309, as in Java: a listener may take its time
STATUS_MS = 5_000
LATEST = -1  # timestamp of 222 that means the end of each queue
LIST_LANGUAGE = "CPP"  # clients of this language read the offsets as a list


@dataclass(frozen=True, kw_only=True)
class ConsumerAdminHandler:
    """Relays requests of tools to the members of consumer groups."""

    broker_name: str  # queues in replies are named by topic, broker and id
    topics: TopicRegistry  # number of queues to reset
    members: GroupMembers  # the member, or all members, to relay to
    offsets: ConsumerOffsets  # committed offsets, which a reset starts from
    store: MessageStore  # store times of messages, to find offsets by time
    clients: ClientRequests  # sends requests to connected clients

    # --- one member ---

    def running_info(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle GET_CONSUMER_RUNNING_INFO."""
        request = decode_header(command, RunningInfoRequest)
        member = self._member(request.consumer_group, request.client_id)
        return self._relay(member, request.consumer_group, command, command.field_map(), command.body)

    def consume_directly(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle CONSUME_MESSAGE_DIRECTLY: let one member consume a stored message; no offset changes."""
        request = decode_header(command, ConsumeDirectly)
        if not request.client_id or not request.msg_id:
            raise ReplyError(
                ResponseCode.SYSTEM_ERROR, "name the client (clientId) and the message (msgId, an offset id)"
            )
        member = self._member(request.consumer_group, request.client_id)
        _, offset = ids.parse_offset_message_id(request.msg_id)
        record = self.store.read_record(offset)
        if record is None:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"no message {request.msg_id} on {self.broker_name}")
        texts = {**command.field_map(), "brokerName": self.broker_name}
        return self._relay(member, request.consumer_group, command, texts, record)

    def _member(self, group: str, client_id: str) -> Member:
        member = self.members.find_consumer(group, client_id)
        if member is None:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        return member

    async def _relay(
        self, member: Member, group: str, command: Command, texts: Mapping[str, str], body: bytes
    ) -> Reply:
        try:
            response = await self.clients.request(member.peer_id, command.code, texts, body, timeout_ms=CALL_MS)
        except RequestTimeout as error:
            remark = f"consumer <{group}> <{member.client_id}> Timeout: {error}"
            return Reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
        return Reply(response.code, response.field_map() or None, response.remark, response.body)

    # --- all members ---

    def reset_offsets(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle INVOKE_BROKER_TO_RESET_OFFSET: send the members of a group the offsets to continue from.

        The members commit these offsets themselves; without an online member nothing changes.
        """
        request = decode_header(command, ResetOffset)
        table = self._new_offsets(request)
        members = self.members.consumer_members(request.group)
        if not members:
            remark = (
                f"Consumer not online, so can not reset offset, Group: {request.group} "
                f"Topic: {request.topic} Timestamp: {request.timestamp}"
            )
            return Reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
        header = encode_header(request)
        unreached = []
        for member in members:
            as_list = LIST_LANGUAGE in (command.language, member.language)
            try:
                body = reset_body(table, as_list=as_list)
                self.clients.one_way(member.peer_id, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)
            except ConnectionLost:
                unreached.append(member.client_id)
        if len(unreached) == len(members):
            remark = f"no member of {request.group} could be reached: {unreached}"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        missing = f"not reached, their connections are closed: {', '.join(unreached)}" if unreached else None
        return Reply(remark=missing, body=reset_body(table))

    def _new_offsets(self, request: ResetOffset) -> QueueTable:
        topic = self.topics.get(request.topic)
        if topic is None:
            remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={request.topic}"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        store, table = self.store, {}
        for queue_id in range(topic.write_queue_nums):
            stored = self.offsets.get(request.group, request.topic, queue_id)
            if stored is None:
                remark = f"The consumer group <{request.group}> has no offset of {request.topic}, queue {queue_id}"
                raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
            offset = (
                store.max_offset(request.topic, queue_id)
                if request.timestamp == LATEST
                else store.offset_by_time(request.topic, queue_id, request.timestamp)
            )
            queue = MessageQueue(request.topic, self.broker_name, queue_id)
            # Without force, a reset only moves backwards: it must not skip messages.
            table[queue] = offset if request.is_force or offset < stored else stored
        return table

    async def consumer_status(self, command: Command, peer: Peer) -> Reply:
        """Handle INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the offsets that each member has in memory, by client id."""
        request = decode_header(command, ConsumerStatus)
        members = self.members.consumer_members(request.group)
        if not members:
            remark = f"No Any Consumer online in the consumer group: [{request.group}]"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        if request.client_addr:
            members = [member for member in members if member.client_id == request.client_addr]
            if not members:
                remark = f"The Consumer <{request.group}> <{request.client_addr}> not online"
                return Reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        header = encode_header(ConsumerStatus(request.topic, request.group))
        responses = await asyncio.gather(*(self._status_of(member, header) for member in members))
        results = list(zip(members, responses, strict=True))
        tables = {member.client_id: table for member, table in results if isinstance(table, dict)}
        failed = [f"{member.client_id}: {reason}" for member, reason in results if isinstance(reason, str)]
        if not tables:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"no member answered: {'; '.join(failed)}")
        missing = f"without the members that did not answer: {'; '.join(failed)}" if failed else None
        return Reply(remark=missing, body=statuses_body(tables))

    async def _status_of(self, member: Member, header: Mapping[str, str]) -> QueueTable | str:
        """Return the member's offsets, or the reason why it did not report them."""
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        try:
            response = await self.clients.request(member.peer_id, code, header, timeout_ms=STATUS_MS)
            if response.code != ResponseCode.SUCCESS:
                return f"answered code {response.code}: {response.remark}"
            # Parsing a large table of Java's JSON dialect would block the loop.
            return await asyncio.to_thread(status_table, response.body) if response.body else {}
        except (ArianeError, ProtocolError) as error:
            return str(error)
