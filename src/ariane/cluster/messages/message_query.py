"""Finds messages by key, unique key, offset id, position, or any id. [QueryMsgByKey-, -ByUniqueKey-, -ById-, -ByOffsetSubCommand]

    any id ─→ offset id of a broker? ─→ VIEW_MESSAGE_BY_ID          one record
           └→ unique key ──────────→ QUERY_MESSAGE per topic        all copies: original, retries, dead letter, delayed

Queries every broker of the topic's route page by page to the end, over all times: the time in a unique key is by the client's
clock and time zone. Brokers whose messages may be missing are part of the result: callers must report them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ariane.cluster.connection import Answers, BrokerServer, BrokerUnavailable, gather_bounded
from ariane.cluster.messages.queue_reading import QueueReadOperations, readable_servers
from ariane.errors import (
    ArianeError,
    ConnectionLost,
    NotFound,
    ProtocolError,
    ReplyError,
    RequestTimeout,
    ServerUnavailable,
)
from ariane.model import ids
from ariane.model.message import KEYS, UNIQ_KEY, MessageQueue, ReceivedMessage
from ariane.model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.records.received_messages import to_received_message
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import QueryMessage, QueryMessageResponse, ViewMessage
from ariane.protocol.requests.routing import TopicRoute

PAGE_MESSAGES = 64  # default maximum per response (maxMsgsNumBatch)
MESSAGES_MAX = 10_000  # default maximum per query
CONCURRENT_TOPICS = 64  # requests in flight to one broker while all topics are searched
EVER_MS = (1 << 63) - 1
PORT_MAX = 65_535

# Topics with copies of messages that are waiting; brokers may have their queues without a topic configuration.
PENDING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)


class QueryResult(NamedTuple):
    """Messages in the order of their store times.

    Attributes:
        messages: The messages.
        unavailable: Brokers that did not respond, so that their messages are missing.
        truncated: Brokers that have more messages, with the reason why these are not in the result.
    """

    messages: list[ReceivedMessage]
    unavailable: tuple[BrokerUnavailable, ...] = ()
    truncated: Mapping[str, str] = {}

    @property
    def first(self) -> ReceivedMessage | None:
        """The message that was stored first; None if no broker has one."""
        return self.messages[0] if self.messages else None

    def not_found(self, kind: str, name: str) -> ArianeError:
        """Return the error for an empty result. It is final only if all brokers responded."""
        if not self.unavailable:
            return NotFound(kind, f"{name}; all store times were searched")
        reasons = ", ".join(f"{broker.broker} {broker.addr}: {broker.reason}" for broker in self.unavailable)
        return ServerUnavailable(f"no {kind} {name} on the brokers that responded; without a response: {reasons}")


class _BrokerResult(NamedTuple):
    messages: list[ReceivedMessage]
    truncated: str


class MessageOperations(QueueReadOperations):
    """Operations that look up messages."""

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = EVER_MS,
        messages_max: int = MESSAGES_MAX,
    ) -> QueryResult:
        """Return the messages of a topic with a business key or unique key, stored in a time range.

        Args:
            topic: Topic that stores the messages.
            key: One of their keys, or their unique key.
            begin_ms: Earliest store time, ms since the epoch.
            end_ms: Latest store time.
            messages_max: Maximum per broker; the newest are returned, and `truncated` names the broker.

        Raises:
            RouteNotFound: the topic does not exist.
        """
        servers = readable_servers(await self.routing.fetch_route(topic))
        query = QueryMessage(topic, key, PAGE_MESSAGES, begin_ms, end_ms)
        return _merge(await self.ask_all(servers, lambda server: self._query_broker(server, query, messages_max)))

    async def query_by_unique_key(self, topic: str, unique_key: str) -> QueryResult:
        """Return the messages of a topic with a unique key: several if a producer sent the message again.

        Raises:
            RouteNotFound: the topic does not exist.
        """
        result = await self.query_by_key(topic, unique_key)
        return result._replace(messages=_with_unique_key(result.messages, unique_key))

    async def view_by_offset_id(self, message_id: str) -> ReceivedMessage:
        """Return the message with an offset id, from the broker whose address is in the id.

        Raises:
            ProtocolError: the id is malformed.
            ReplyError: the broker has no such message.
            ConnectionLost, RequestTimeout: the broker did not respond.
        """
        addr, offset = ids.parse_offset_message_id(message_id)
        answer = await self.request(addr, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset))
        info = await self.routing.fetch_cluster()
        names = {at: name for name, data in info.broker_addr_table.items() for at in data.broker_addrs.values()}
        return to_message(record.decode(answer.body), names.get(addr, addr))

    async def find_messages(
        self, message_id: str, topic: str | None = None, *, pending_only: bool = False
    ) -> QueryResult:
        """Return the message with an id of any kind, and all stored copies if it is a unique key.

        A unique key without a topic is looked up in all topics of all brokers: also among retries, dead letters, delayed
        messages and half messages.

        Args:
            message_id: Offset id or unique key, with IPv4 or IPv6 addresses.
            topic: Search a unique key in this topic only.
            pending_only: Search a unique key in PENDING_TOPICS only: delayed messages and half messages.

        Raises:
            RouteNotFound: the topic does not exist.
            ServerUnavailable: no broker is registered.
        """
        if topic is not None:
            return await self.query_by_unique_key(topic, message_id)
        unreachable: tuple[BrokerUnavailable, ...] = ()
        if is_offset_id(message_id):
            try:
                return QueryResult([await self.view_by_offset_id(message_id)])
            except (ReplyError, ProtocolError):
                pass  # no record begins there: it may be a unique key all the same
            except (ConnectionLost, RequestTimeout) as error:
                unreachable = (BrokerUnavailable("of the id", ids.parse_offset_message_id(message_id)[0], str(error)),)
        result = await self._search_all_topics(message_id, pending_only)
        return result if result.messages else result._replace(unavailable=result.unavailable + unreachable)

    async def query_topics(self, topics: Sequence[str], key: str, *, messages_max: int = MESSAGES_MAX) -> QueryResult:
        """Return the messages with a business key or unique key in several topics, without a look-up of their routes.

        Args:
            topics: Topics that store the messages; those that do not exist have no messages.
            key: One of their keys, or their unique key.
            messages_max: Maximum per broker and topic, the newest.

        Raises:
            ServerUnavailable: no broker is registered.
        """
        info = await self.fetch_cluster()
        servers = readable_servers(TopicRoute(broker_datas=tuple(info.broker_addr_table.values())))
        return _merge(
            await self.ask_all(servers, lambda server: self._query_broker_topics(server, topics, key, messages_max))
        )

    async def view_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """Return the message at an offset of a queue; None if the queue has none there.

        Raises:
            RouteNotFound, NotFound: the topic does not exist, or not on this broker.
            ReplyError: the broker rejected the request, for example because of the queue id.
        """
        at = await self.locate_queue(queue.topic, queue.broker, queue.queue_id)
        page = await self.pull(at, offset, count=1)
        match = next((stored for stored in page.records if stored.queue_offset == offset), None)
        if match is None:
            return None
        message = to_message(match, queue.broker)
        # Java's pull consumers add these to the message, and its tools print them.
        bounds = {"MIN_OFFSET": str(page.min_offset), "MAX_OFFSET": str(page.max_offset)}
        return msgspec.structs.replace(message, properties={**message.properties, **bounds})

    async def _search_all_topics(self, unique_key: str, pending_only: bool) -> QueryResult:
        """Return the messages with a unique key, whatever topic stores them."""
        info = await self.fetch_cluster()
        servers = readable_servers(TopicRoute(broker_datas=tuple(info.broker_addr_table.values())))

        async def search(server: BrokerServer) -> _BrokerResult:
            topics = set(PENDING_TOPICS)
            if not pending_only:
                topics.update((await self._fetch_topics(server)).topic_config_table)
            return await self._query_broker_topics(server, sorted(topics), unique_key, MESSAGES_MAX)

        result = _merge(await self.ask_all(servers, search))
        return result._replace(messages=_with_unique_key(result.messages, unique_key))

    async def _query_broker_topics(
        self, server: BrokerServer, topics: Sequence[str], key: str, messages_max: int
    ) -> _BrokerResult:
        """Return the messages of several topics that one broker has."""
        queries = (QueryMessage(topic, key, PAGE_MESSAGES, 0, EVER_MS) for topic in topics)
        results = await gather_bounded(
            (self._query_broker(server, query, messages_max) for query in queries), CONCURRENT_TOPICS
        )
        messages = [message for result in results for message in result.messages]
        return _BrokerResult(messages, next((result.truncated for result in results if result.truncated), ""))

    async def _query_broker(self, server: BrokerServer, query: QueryMessage, messages_max: int) -> _BrokerResult:
        """Return the messages of one broker, page by page."""
        matches: dict[int, ReceivedMessage] = {}  # by commit-log offset: pages of a Java broker overlap
        while True:
            answer = await self.peers.request(
                server.addr, RequestCode.QUERY_MESSAGE, query, timeout_ms=self.timeout_ms * 3
            )
            if answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
                raise ReplyError(answer.code, answer.remark, server.addr)
            page = list(record.decode_all(answer.body))
            for stored in page:
                if stored.offset not in matches and stored.topic == query.topic and _has_key(stored, query.key):
                    matches[stored.offset] = to_message(stored, server.broker)
            if len(matches) > messages_max:
                newest = sorted(matches)[len(matches) - messages_max :]
                return _BrokerResult([matches[at] for at in newest], f"limited to the newest {messages_max} messages")
            following = _next_page(query, answer, page)
            if not isinstance(following, QueryMessage):
                return _BrokerResult(list(matches.values()), following)
            query = following


def is_offset_id(message_id: str) -> bool:
    """Return whether an id can be an offset id.

    It has a port of two bytes in four; a unique key has a process id in the upper two, which is practically never 0.
    """
    try:
        addr, _ = ids.parse_offset_message_id(message_id)
    except ProtocolError:
        return False
    return 0 < int(addr.rpartition(":")[2]) <= PORT_MAX


def to_message(stored: record.Record, broker: str) -> ReceivedMessage:
    """Return a record of a broker as a message."""
    return to_received_message(stored, stored.property_map(), MessageQueue(stored.topic, broker, stored.queue_id))


def _merge(answers: Answers[_BrokerResult]) -> QueryResult:
    messages = [message for _, result in answers.values for message in result.messages]
    truncated = {server.broker: result.truncated for server, result in answers.values if result.truncated}
    return QueryResult(sorted(messages, key=_by_store_time), answers.unavailable, truncated)


def _next_page(query: QueryMessage, answer: Command, page: list[record.Record]) -> QueryMessage | str:
    """Return the query for the next page, or why there is none: "" at the end."""
    fields = decode_header(answer, QueryMessageResponse) if answer.field_map() else QueryMessageResponse(0, 0)
    if fields.truncated is not None:
        if fields.next_position is None:
            return ""
        return msgspec.structs.replace(query, query_position=fields.next_position)
    if len(page) < PAGE_MESSAGES:
        return ""
    # A Java broker does not report whether there are more: query the messages stored before.
    oldest_ms = min(stored.store_ms for stored in page)
    if oldest_ms >= query.end_timestamp:
        return f"more than {PAGE_MESSAGES} messages with the same store time {oldest_ms}; the others cannot be queried"
    return msgspec.structs.replace(query, end_timestamp=oldest_ms)


def _has_key(stored: record.Record, key: str) -> bool:
    table = stored.property_map()
    return key == table.get(UNIQ_KEY) or key in table.get(KEYS, "").split(" ")


def _with_unique_key(messages: Iterable[ReceivedMessage], unique_key: str) -> list[ReceivedMessage]:
    return [message for message in messages if message.properties.get(UNIQ_KEY) == unique_key]


def _by_store_time(message: ReceivedMessage) -> tuple[int, str, int]:
    return message.store_ms, message.queue.broker, message.commit_log_offset
