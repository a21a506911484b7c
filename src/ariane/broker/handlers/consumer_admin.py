"""What tools ask of consumers through the broker: reset offsets (222), status (223), running info (307), consume one (309).

    tool ─ 222 ─→ new offsets, computed here ─ 220, one-way ─→ every member
    tool ─ 223 ─→ 221 ─→ every member, or the one that is named ─→ their offsets in one table
    tool ─ 307, 309 ─→ the same fields ─→ the one member with that client id ─→ its answer, unchanged

[AdminBrokerProcessor, Broker2Client]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.group_members import GroupMembers, Member
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ArianeError, ConnectionLost, ProtocolError, ReplyError, RequestTimeout
from ariane.model import ids
from ariane.model.message import MessageQueue
from ariane.net.connection import Handled, Handler, Peer, Reply
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import fields, typed
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
TO_THE_END = -1  # timestamp of 222
LIST_LANGUAGE = "CPP"  # clients of this language read the offsets as a list


class Ask(Protocol):
    """Request an answer of a connected client."""

    async def __call__(
        self, peer_id: int, code: int, fields: Mapping[str, str] | None, body: bytes, *, timeout_ms: float
    ) -> Command: ...


class ConsumerAdminHandler(NamedTuple):
    """What these handlers need. `ask` and `tell` reach a client by the number of its connection."""

    broker_name: str
    topics: TopicRegistry
    members: GroupMembers
    offsets: ConsumerOffsets
    store: MessageStore
    ask: Ask
    tell: Callable[[int, int, Mapping[str, str] | None, bytes], None]


def handlers(parts: ConsumerAdminHandler) -> dict[int, Handler]:
    def reset(command: Command, peer: Peer) -> Handled:
        return reset_offsets(parts, typed(command, ResetOffset), command.language)

    def status(command: Command, peer: Peer) -> Handled:
        return consumer_status(parts, typed(command, ConsumerStatus))

    def running_info(command: Command, peer: Peer) -> Handled:
        request = typed(command, RunningInfoRequest)
        member = _member(parts, request.consumer_group, request.client_id)
        return _passed_on(parts, member, request.consumer_group, command, command.field_map(), command.body)

    def consume(command: Command, peer: Peer) -> Handled:
        return consume_directly(parts, typed(command, ConsumeDirectly), command)

    return {
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: status,
        RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: consume,
    }


# --- one member ---


def consume_directly(parts: ConsumerAdminHandler, request: ConsumeDirectly, command: Command) -> Handled:
    """Have one member consume the message that `msg_id` names; nothing is acknowledged by that."""
    if not request.client_id or not request.msg_id:
        raise ReplyError(ResponseCode.SYSTEM_ERROR, "name the client (clientId) and the message (msgId, an offset id)")
    member = _member(parts, request.consumer_group, request.client_id)
    _, offset = ids.parse_offset_message_id(request.msg_id)
    record = parts.store.read_record(offset)
    if record is None:
        raise ReplyError(ResponseCode.SYSTEM_ERROR, f"no message {request.msg_id} on {parts.broker_name}")
    texts = {**command.field_map(), "brokerName": parts.broker_name}
    return _passed_on(parts, member, request.consumer_group, command, texts, record)


def _member(parts: ConsumerAdminHandler, group: str, client_id: str) -> Member:
    member = parts.members.find_consumer(group, client_id)
    if member is None:
        raise ReplyError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
    return member


async def _passed_on(
    parts: ConsumerAdminHandler, member: Member, group: str, command: Command, texts: Mapping[str, str], body: bytes
) -> Reply:
    try:
        answer = await parts.ask(member.peer_id, command.code, texts, body, timeout_ms=CALL_MS)
    except RequestTimeout as error:
        remark = f"consumer <{group}> <{member.client_id}> Timeout: {error}"
        return Reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
    return Reply(answer.code, answer.field_map() or None, answer.remark, answer.body)


# --- all members ---


def reset_offsets(parts: ConsumerAdminHandler, request: ResetOffset, language: str | None) -> Reply:
    """Tell the members of a group where to go on. They store the offsets themselves, so nothing changes without them."""
    table = _new_offsets(parts, request)
    members = parts.members.consumer_members(request.group)
    if not members:
        remark = (
            f"Consumer not online, so can not reset offset, Group: {request.group} "
            f"Topic: {request.topic} Timestamp: {request.timestamp}"
        )
        return Reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
    header = fields(request)
    untold = []
    for member in members:
        as_list = LIST_LANGUAGE in (language, member.language)
        try:
            body = reset_body(table, as_list=as_list)
            parts.tell(member.peer_id, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)
        except ConnectionLost:
            untold.append(member.client_id)
    if len(untold) == len(members):
        return Reply(ResponseCode.SYSTEM_ERROR, remark=f"no member of {request.group} could be told: {untold}")
    told = f"not told, their connections are closed: {', '.join(untold)}" if untold else None
    return Reply(remark=told, body=reset_body(table))


def _new_offsets(parts: ConsumerAdminHandler, request: ResetOffset) -> QueueTable:
    topic = parts.topics.get(request.topic)
    if topic is None:
        remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={request.topic}"
        raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
    store, table = parts.store, {}
    for queue_id in range(topic.write_queue_nums):
        stored = parts.offsets.get(request.group, request.topic, queue_id)
        if stored is None:
            remark = f"The consumer group <{request.group}> has no offset of {request.topic}, queue {queue_id}"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        at = (
            store.max_offset(request.topic, queue_id)
            if request.timestamp == TO_THE_END
            else store.offset_by_time(request.topic, queue_id, request.timestamp)
        )
        queue = MessageQueue(request.topic, parts.broker_name, queue_id)
        table[queue] = at if request.is_force or at < stored else stored
    return table


async def consumer_status(parts: ConsumerAdminHandler, request: ConsumerStatus) -> Reply:
    """The offsets of a topic as the members have them in memory, by client id."""
    members = parts.members.consumer_members(request.group)
    if not members:
        remark = f"No Any Consumer online in the consumer group: [{request.group}]"
        return Reply(ResponseCode.SYSTEM_ERROR, remark=remark)
    if request.client_addr:
        members = [member for member in members if member.client_id == request.client_addr]
        if not members:
            remark = f"The Consumer <{request.group}> <{request.client_addr}> not online"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=remark)
    header = fields(ConsumerStatus(request.topic, request.group))
    answers = await asyncio.gather(*(_status_of(parts, member, header) for member in members))
    known = {member.client_id: table for member, table in zip(members, answers, strict=True) if isinstance(table, dict)}
    failed = [f"{one.client_id}: {why}" for one, why in zip(members, answers, strict=True) if isinstance(why, str)]
    if not known:
        return Reply(ResponseCode.SYSTEM_ERROR, remark=f"no member answered: {'; '.join(failed)}")
    missing = f"without the members that did not answer: {'; '.join(failed)}" if failed else None
    return Reply(remark=missing, body=statuses_body(known))


async def _status_of(parts: ConsumerAdminHandler, member: Member, header: Mapping[str, str]) -> QueueTable | str:
    """The member's offsets, or why there are none."""
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    try:
        answer = await parts.ask(member.peer_id, code, header, b"", timeout_ms=STATUS_MS)
        if answer.code != ResponseCode.SUCCESS:
            return f"answered code {answer.code}: {answer.remark}"
        # The table is in Java's dialect and may be large: it is read outside the loop.
        return await asyncio.to_thread(status_table, answer.body) if answer.body else {}
    except (ArianeError, ProtocolError) as error:
        return str(error)
