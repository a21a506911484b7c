"""Messages by key, QUERY_MESSAGE (12), and by their place in the log, VIEW_MESSAGE_BY_ID (33). [QueryMessageProcessor]

A client asks for a unique id from the time on that the id holds, by its own clock, less a second. Where that clock is ahead, the
message was stored "before" it was made; so the time window of such a query counts for nothing here: an id is unique anyway.
"""

from __future__ import annotations

import re

from ariane.broker.config import BrokerConfig
from ariane.net.connection import Handler, Peer, Reply
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import fields, typed
from ariane.protocol.requests.messaging import QueryMessage, QueryMessageAnswer, ViewMessage
from ariane.store.key_query import KeyQuery, QueryPosition
from ariane.store.message_store import MessageStore

UNIQUE_ID = re.compile(r"[0-9A-F]{32}(?:[0-9A-F]{24})?")  # as Java clients make them, over IPv4 or IPv6


def handlers(config: BrokerConfig, store: MessageStore) -> dict[int, Handler]:
    def query(command: Command, peer: Peer) -> Reply:
        return query_message(config, store, typed(command, QueryMessage))

    def view(command: Command, peer: Peer) -> Reply:
        return view_message(store, typed(command, ViewMessage))

    return {RequestCode.QUERY_MESSAGE: query, RequestCode.VIEW_MESSAGE_BY_ID: view}


def query_message(config: BrokerConfig, store: MessageStore, request: QueryMessage) -> Reply:
    """The newest messages with a key, in the order of the log; what did not fit is said, and where to go on."""
    is_unique = request.unique_key_query == "true"
    most = min(config.default_query_max_num if is_unique else request.max_num, config.max_msgs_num_batch)
    position = QueryPosition.parse(request.query_position) if request.query_position else None
    wanted = KeyQuery(request.topic, request.key, most, position=position)
    if not is_unique and not UNIQUE_ID.fullmatch(request.key):
        wanted = wanted._replace(begin_ms=request.begin_timestamp, end_ms=request.end_timestamp)
    found = store.index.query(wanted)
    rest = found.position
    header = fields(
        QueryMessageAnswer(found.last_ms, found.last_offset, rest is not None, None if rest is None else rest.text())
    )
    remark = None if rest is None else "there is more: ask again with queryPosition set to nextPosition"
    if not found.records:
        nothing = f"can not find message of topic {request.topic} with key {request.key} in this time range"
        return Reply(ResponseCode.QUERY_NOT_FOUND, header, f"{nothing}; {remark}" if remark else nothing)
    return Reply(fields=header, remark=remark, body=found.records)


def view_message(store: MessageStore, request: ViewMessage) -> Reply:
    record = store.read_record(request.offset)
    if record is None:
        return Reply(ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {request.offset}")
    return Reply(body=record)
