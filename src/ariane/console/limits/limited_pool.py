"""Connections of a request whose sender may not see everything: every request is checked, every answer limited (`request_needs`).

request ─→ names in its header ─ hidden ─→ the answer of a server that does not have them
                               └ visible ─→ server ─→ answer without hidden names and messages, with masks
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ariane.console.limits.access import CARRIERS, MASK, MASKED, Access, Mask, masks_property, topics_of
from ariane.console.limits.request_needs import GROUP_FIELDS, NEEDS, STATISTICS_KEY, Need
from ariane.errors import ProtocolError, ReplyError
from ariane.model import ids
from ariane.model.message import (
    COMPRESSED,
    COMPRESSION_MASK,
    KEYS,
    RESERVED,
    TAGS,
)
from ariane.model.topic import TRANSACTION_GROUP
from ariane.model.trace_event import ConsumeEndEvent, ConsumeStartEvent, TraceEvent
from ariane.net.connection import Connection
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.requester import ServerRequest
from ariane.protocol import fastjson, trace_codec
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties as properties_text
from ariane.protocol.records import record
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import ViewMessage

# Members of JSON answers by what their names, or the members of their items, are.
_TOPIC_KEYS = ("topicConfigTable", "subscriptionTable", "statusTable")
_GROUP_KEYS = ("subscriptionGroupTable", "data", "consumeStatsList")
_TOPIC_LISTS, _GROUP_LISTS = ("topicList",), ("groupList",)
_QUEUE_TOPIC = re.compile(r'"topic"\s*:\s*"([^"]*)"')


class LimitedPool(ConnectionPool):
    """The connections of a console as one account may use them.

    Args:
        peers: The connections; they stay open.
        access: What the account may see.
        trace_topic: Topic of message traces, which store names and keys of many topics.
    """

    def __init__(self, peers: ConnectionPool, access: Access, trace_topic: str) -> None:
        # No connections of its own, so the constructor of the base class is not called.
        self._peers = peers
        self._access = access
        self._trace_topic = trace_topic

    async def exchange(self, request: ServerRequest) -> Command:
        """Send a request and return what the account may see of the response."""
        addr, code, header, body, _ = request
        need = NEEDS.get(code)
        if need is None:
            raise ReplyError(ResponseCode.NO_PERMISSION, "an account with limits cannot use this operation", addr)
        if (name := await self._hidden_name(addr, code, need, header, body)) is not None:
            answer, remark = need.refusal
            return Command(code=answer, remark=remark.format(name=name) or None, body=need.body)
        response = await self._peers.exchange(request)
        if response.code != ResponseCode.SUCCESS:
            return response
        if need.answer == "record" and not self._limited_records(response.body):
            offset = getattr(header, "offset", "")
            remark = f"can not find message by the offset, {offset}"
            return Command(code=ResponseCode.SYSTEM_ERROR, remark=remark)
        if response.body and need.answer == "json" and self._access.is_limited:
            response.body = fastjson.write(self._limited_json(_read_json(response.body)))
        elif response.body and need.answer in ("record", "records"):
            response.body = self._limited_records(response.body)
        return response

    async def one_way(self, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b"") -> None:
        """Refuse: no operation of the console sends requests without a response."""
        raise ReplyError(ResponseCode.NO_PERMISSION, "an account with limits cannot use this operation", addr)

    async def connect(self, addr: str) -> Connection:
        """Refuse: requests on a connection would not be checked."""
        raise ReplyError(ResponseCode.NO_PERMISSION, "an account with limits cannot use this operation", addr)

    # --- requests ---

    async def _hidden_name(
        self, addr: str, code: int, need: Need, header: msgspec.Struct | None, body: bytes
    ) -> str | None:
        """Return the first name in a request that the account does not see; None if it sees all of them."""
        if not self._access.is_limited:
            return None
        fields = encode_header(header) if header is not None else {}
        if code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
            fields = {"groupName": str(fastjson.read(body).get("groupName", ""))}
        elif code == RequestCode.RESUME_CHECK_HALF_MESSAGE:
            return await self._hidden_record(addr, fields["msgId"])
        if fields.get("statsName", "").startswith("BROKER_"):
            return None
        for field in need.names:
            if (name := fields.get(field)) and not self._sees(code, field, name):
                return name
        return None

    def _sees(self, code: int, field: str, name: str) -> bool:
        if field == STATISTICS_KEY:
            topic, _, group = name.partition("@")
            return self._sees_topic(code, topic) and (not group or self._access.sees_group(group))
        if field in GROUP_FIELDS:
            return name == TRANSACTION_GROUP or self._access.sees_group(name)
        return self._sees_topic(code, name)

    def _sees_topic(self, code: int, topic: str) -> bool:
        """Return whether a request may name a topic; one that stores messages of others may be read, not looked at."""
        # Traces are found by the id or key of a message only: to list them would show ids of messages that are hidden.
        if topic == self._trace_topic and code in (RequestCode.QUERY_MESSAGE, RequestCode.GET_ROUTEINFO_BY_TOPIC):
            return True
        return (topic in CARRIERS and code in _READS) or self._access.sees_topic(topic)

    async def _hidden_record(self, addr: str, message_id: str) -> str | None:
        try:
            header = ViewMessage(ids.parse_offset_message_id(message_id)[1])
        except ProtocolError:
            return message_id
        answer = await self.request(addr, RequestCode.VIEW_MESSAGE_BY_ID, header)
        return None if answer.code == ResponseCode.SUCCESS else message_id

    # --- answers ---

    def _limited_json(self, value: Any, name: str = "") -> Any:
        """Return a JSON value without the entries that name a hidden topic or group. `name` is that of its member."""
        access = self._access
        if isinstance(value, Mapping):
            return {
                key: self._limited_json(member, key)
                for key, member in value.items()
                if self._sees_entry(name, key) and self._sees_entity(member)
            }
        if isinstance(value, list):
            if name in _TOPIC_LISTS:
                return [topic for topic in value if access.sees_topic(topic)]
            if name in _GROUP_LISTS:
                return [group for group in value if access.sees_group(group)]
            return [self._limited_json(item, name) for item in value if self._sees_entity(item)]
        return value

    def _sees_entry(self, table: str, key: str) -> bool:
        if table in _TOPIC_KEYS:
            return self._access.sees_topic(key.partition("@")[0])
        if table in _GROUP_KEYS:
            return self._access.sees_group(key)
        if queue := _QUEUE_TOPIC.search(key):  # a queue as a key
            return self._access.sees_topic(queue[1])
        topic, at, group = key.partition("@")
        return not at or table != "offsetTable" or (self._access.sees_topic(topic) and self._access.sees_group(group))

    def _sees_entity(self, value: Any) -> bool:
        """Return whether an object that names its topic or group, such as a subscription, is visible."""
        if not isinstance(value, Mapping):
            return True
        topic, group = value.get("topic"), value.get("groupName")
        return (not isinstance(topic, str) or self._access.sees_topic(topic)) and (
            not isinstance(group, str) or self._access.sees_group(group)
        )

    def _limited_records(self, body: bytes) -> bytes:
        return b"".join(self._visible_records(body))

    def _visible_records(self, body: bytes) -> Iterator[bytes]:
        """Yield the stored messages that the account sees, with what it may see of them."""
        position = 0
        for stored in record.decode_all(body):
            data, position = body[position : position + stored.size], position + stored.size
            table = stored.property_map()
            if stored.topic == self._trace_topic and not self._access.sees_topic(stored.topic):
                yield _encoded(stored, self._visible_traces(stored.body), {**table, KEYS: ""})
            elif self._access.sees_record(stored.topic, table):
                masks = self._access.masked_by(topics_of(stored.topic, table))
                yield _masked(stored, table, masks) if masks else data

    def _visible_traces(self, body: bytes) -> bytes:
        events = (self._visible_trace(event) for event in trace_codec.decode(body)[0])
        return "".join(trace_codec.encode(event) for event in events if event is not None).encode()

    def _visible_trace(self, event: TraceEvent) -> TraceEvent | None:
        """Return what the account may see of an event; None if it concerns a hidden topic or consumer group."""
        access, changes = self._access, {}
        if isinstance(event, ConsumeStartEvent | ConsumeEndEvent):
            if not access.sees_group(event.group):
                return None
            # These do not name the topic: their keys may be those of a hidden one.
            if event.keys and (access.is_limited or masks_property(access.masks, KEYS)):
                changes["keys"] = MASK
            return msgspec.structs.replace(event, **changes)
        if not access.sees_topic(event.topic):
            return None
        if not access.sees_group(event.group):
            changes["group"] = ""  # of producers
        masks = access.masked_by((event.topic,))
        for field, name in (("keys", KEYS), ("tags", TAGS)):
            if getattr(event, field, "") and masks_property(masks, name):
                changes[field] = MASK
        return msgspec.structs.replace(event, **changes)


_READS = frozenset(
    {
        RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE, RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET,
        RequestCode.QUERY_CONSUME_QUEUE, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
    }
)  # fmt: skip


def _read_json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except fastjson.UNREADABLE:
        return fastjson.read(data)


def _masked(stored: record.Record, table: Mapping[str, str], masks: tuple[Mask, ...]) -> bytes:
    """Return the bytes of a stored message with its masked contents replaced, and a property that says so."""
    # Other names of clients and brokers identify the message and its topics.
    names = [name for name in table if name not in RESERVED or name in (KEYS, TAGS)]
    hidden = [name for name in names if masks_property(masks, name)]
    hides_body = any(mask.body for mask in masks)
    shown = {**table, **dict.fromkeys(hidden, MASK), MASKED: ",".join(["body"] * hides_body + hidden)}
    if not hides_body:
        return _encoded(stored, stored.body, shown)
    plain = msgspec.structs.replace(stored, sys_flag=stored.sys_flag & ~(COMPRESSED | COMPRESSION_MASK))
    return _encoded(plain, MASK.encode(), shown)


def _encoded(stored: record.Record, body: bytes, table: Mapping[str, str]) -> bytes:
    return record.encode(
        stored.topic.encode(),
        body,
        properties_text.encode(table).encode(),
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        offset=stored.offset,
        born_ms=stored.born_ms,
        born_host=stored.born_host,
        store_ms=stored.store_ms,
        store_host=stored.store_host,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        reconsume_times=stored.reconsume_times,
        prepared_offset=stored.prepared_offset,
    )
