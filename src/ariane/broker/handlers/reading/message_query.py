"""QUERY_MESSAGE (12): messages by key; VIEW_MESSAGE_BY_ID (33): by offset in the commit log. [QueryMessageProcessor]

A client that queries a unique id limits the time to its own clock's creation time minus one second. If that clock is ahead, the
message was stored before the limit, so the time range of such queries is ignored: an id is unique anyway.
"""

from __future__ import annotations

import re

from ariane.broker.config.broker_config import BrokerConfig
from ariane.net.connection import Peer, Reply
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.messaging import QueryMessage, QueryMessageResponse, ViewMessage
from ariane.store.index.key_query import KeyQuery, QueryPosition
from ariane.store.message_store import MessageStore

UNIQUE_ID = re.compile(r"[0-9A-F]{32}(?:[0-9A-F]{24})?")  # of Java clients with an IPv4 or IPv6 address


class MessageQueryHandler:
    """Finds stored messages by key or offset."""

    def __init__(self, *, config: BrokerConfig, store: MessageStore) -> None:
        self._config = config
        self._store = store

    def query(self, command: Command, peer: Peer) -> Reply:
        """Handle QUERY_MESSAGE: the newest messages with a key, in log order.

        If not all matches fit into the response, it carries the position to continue from.
        """
        request = decode_header(command, QueryMessage)
        is_unique = request.unique_key_query == "true"
        max_num = min(
            self._config.default_query_max_num if is_unique else request.max_num, self._config.max_msgs_num_batch
        )
        position = QueryPosition.parse(request.query_position) if request.query_position else None
        key_query = KeyQuery(request.topic, request.key, max_num, position=position)
        if not is_unique and not UNIQUE_ID.fullmatch(request.key):
            key_query = key_query._replace(begin_ms=request.begin_timestamp, end_ms=request.end_timestamp)
        result = self._store.query(key_query)
        next_position = result.position
        header = encode_header(
            QueryMessageResponse(
                result.last_ms,
                result.last_offset,
                next_position is not None,
                None if next_position is None else next_position.text(),
            )
        )
        remark = (
            None
            if next_position is None
            else "more messages match: repeat the query with queryPosition set to nextPosition"
        )
        if not result.records:
            not_found = f"can not find message of topic {request.topic} with key {request.key} in this time range"
            return Reply(ResponseCode.QUERY_NOT_FOUND, header, f"{not_found}; {remark}" if remark else not_found)
        return Reply(fields=header, remark=remark, body=result.records)

    def view(self, command: Command, peer: Peer) -> Reply:
        """Handle VIEW_MESSAGE_BY_ID."""
        offset = decode_header(command, ViewMessage).offset
        record = self._store.read_record(offset)
        if record is None:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {offset}")
        return Reply(body=record)
