"""Finds messages by key, unique id or offset id. [QueryMsgByKey-, -ByUniqueKey-, -ByIdSubCommand]

Queries every broker of the topic's route page by page to the end. Brokers whose messages may be missing are part of the
result: callers must report them.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ariane.client.received_messages import to_received_message
from ariane.errors import ConnectionLost, ReplyError, RequestTimeout
from ariane.model import ids
from ariane.model.message import KEYS, UNIQ_KEY, MessageQueue, ReceivedMessage
from ariane.net.connection_pool import ConnectionPool
from ariane.protocol import fastjson, record
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import QueryMessage, QueryMessageAnswer, ViewMessage
from ariane.protocol.requests.routing import BrokerData, RouteRequest, TopicRoute

PAGE_MESSAGES = 64  # default maximum per response (maxMsgsNumBatch)
MESSAGES_MAX = 10_000  # default maximum per query
TIMEOUT_MS = 10_000
EVER_MS = (1 << 63) - 1


class QueryResult(NamedTuple):
    """Messages in the order of their store times; `missing` maps brokers with possibly missing messages to the reason."""

    messages: list[ReceivedMessage]
    missing: dict[str, str]


class UniqueKeyResult(NamedTuple):
    """The message with a unique id: the copy that was stored first; None if no broker has one."""

    message: ReceivedMessage | None
    copies: list[ReceivedMessage]
    missing: dict[str, str]


async def query_by_key(
    peers: ConnectionPool,
    namesrv: str,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = EVER_MS,
    messages_max: int = MESSAGES_MAX,
) -> QueryResult:
    """Return the newest messages of each broker with a key or unique id, stored in a time range.

    Raises:
        ReplyError: the name server has no route to the topic.
    """
    answer = await peers.request_ok(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic))
    route = fastjson.decode(answer.body, TopicRoute)
    query = QueryMessage(topic, key, PAGE_MESSAGES, begin_ms, end_ms)
    messages: list[ReceivedMessage] = []
    missing: dict[str, str] = {}
    for broker in sorted(route.broker_datas, key=lambda data: data.broker_name):
        found: dict[int, ReceivedMessage] = {}
        try:
            why = await _of_broker(peers, broker, query, messages_max, found)
        except (ConnectionLost, RequestTimeout, ReplyError) as error:
            why = str(error)
        if why:
            missing[broker.broker_name] = why
        messages += found.values()
    return QueryResult(sorted(messages, key=_by_store_time), missing)


async def query_by_unique_key(peers: ConnectionPool, namesrv: str, topic: str, unique_id: str) -> UniqueKeyResult:
    """Return the message with a unique id. Searches all times, because the time in the id is by the client's clock."""
    found = await query_by_key(peers, namesrv, topic, unique_id)
    copies = [message for message in found.messages if message.properties.get(UNIQ_KEY) == unique_id]
    return UniqueKeyResult(copies[0] if copies else None, copies, found.missing)


async def view_by_offset_id(peers: ConnectionPool, message_id: str) -> ReceivedMessage:
    """Return the message with an offset message id from the broker that stored it.

    Raises:
        ProtocolError: the id is malformed.
        ReplyError: the broker has no such message.
    """
    addr, offset = ids.parse_offset_message_id(message_id)
    answer = await peers.request_ok(addr, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset), timeout_ms=TIMEOUT_MS)
    return _message(record.decode(answer.body), addr)


async def _of_broker(
    peers: ConnectionPool, broker: BrokerData, query: QueryMessage, messages_max: int, found: dict[int, ReceivedMessage]
) -> str:
    """Add the messages of one broker to `found`, by offset. Return why some may be missing, or ""."""
    if not broker.broker_addrs:
        return "no registered address"
    addr = broker.broker_addrs[min(broker.broker_addrs)]
    while True:
        answer = await peers.request(addr, RequestCode.QUERY_MESSAGE, query, timeout_ms=TIMEOUT_MS)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            raise ReplyError(answer.code, answer.remark, addr)
        page = list(record.decode_all(answer.body))
        for one in page:
            if one.offset not in found and one.topic == query.topic and _has_key(one, query.key):
                found[one.offset] = _message(one, broker.broker_name)
        if len(found) > messages_max:
            for offset in sorted(found)[: len(found) - messages_max]:
                del found[offset]
            return f"limited to the newest {messages_max} messages"
        said = decode_header(answer, QueryMessageAnswer) if answer.field_map() else QueryMessageAnswer(0, 0)
        if said.truncated is not None:
            if said.next_position is None:
                return ""
            query = _on(query, query_position=said.next_position)
        elif len(page) < PAGE_MESSAGES:
            return ""
        else:  # a Java broker does not report whether there are more: query the messages stored before
            oldest_ms = min(one.store_ms for one in page)
            if oldest_ms >= query.end_timestamp:
                return f"more than {PAGE_MESSAGES} messages with the same store time {oldest_ms}; the others cannot be queried"
            query = _on(query, end_timestamp=oldest_ms)


def _on(query: QueryMessage, **changes: str | int) -> QueryMessage:
    return msgspec.structs.replace(query, **changes)


def _has_key(one: record.Record, key: str) -> bool:
    table = one.property_map()
    return key == table.get(UNIQ_KEY) or key in table.get(KEYS, "").split(" ")


def _message(one: record.Record, broker: str) -> ReceivedMessage:
    return to_received_message(one, one.property_map(), MessageQueue(one.topic, broker, one.queue_id))


def _by_store_time(message: ReceivedMessage) -> tuple[int, str, int]:
    return message.store_ms, message.queue.broker, message.commit_log_offset
