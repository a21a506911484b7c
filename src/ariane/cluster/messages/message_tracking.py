"""Finds out which consumer groups have consumed a message, and lets one consume it again. [MessageTrack, TraceView]

track(message)             state of each group: inferred from its committed offset and its subscription
query_trace(unique key)    what traced clients reported: sends, and consumptions with their outcome
consume_directly(…)        CONSUME_MESSAGE_DIRECTLY (309): the broker sends the record to one client
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from ariane.cluster.connection import BrokerServer, BrokerUnavailable, Change
from ariane.cluster.messages.message_query import MessageOperations
from ariane.cluster.messages.queue_reading import readable_servers
from ariane.cluster.topics.topic_queries import TopicQueries
from ariane.errors import ArianeError, NotFound, ProtocolError, ReplyError
from ariane.model.host import ip_of
from ariane.model.message import ReceivedMessage
from ariane.model.topic import TRACE_TOPIC
from ariane.model.trace_event import ConsumeEndEvent, PublishEvent
from ariane.protocol import fastjson, trace_codec
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.admin import ConsumerConnection
from ariane.protocol.requests.callbacks import ConsumeDirectly
from ariane.protocol.requests.clients import BROADCASTING, GroupRef, SubscriptionData
from ariane.protocol.requests.stats import ConsumeStats, GetConsumeStats, by_queue

BROADCAST_REASON = "the group broadcasts: each client stores its offsets itself"
PULL_CONSUMER = ("CONSUME_ACTIVELY", 0)  # consume type of pull consumers, by name or as an enum's index


class TrackState(Enum):
    """State of a message in a consumer group, by Java's names."""

    CONSUMED = "consumed"
    CONSUMED_BUT_FILTERED = "skipped by the tag filter"
    PULL = "read by pull consumers"
    NOT_CONSUME_YET = "not consumed yet"
    NOT_ONLINE = "no consumer online"
    UNKNOWN = "unknown"


class MessageTrack(NamedTuple):
    """A message in one consumer group.

    Attributes:
        group: The consumer group.
        state: CONSUMED if the committed offset is beyond the message: an inference, no proof.
        reason: Why the state is not known, or no consumer is asked; None otherwise.
    """

    group: str
    state: TrackState
    reason: str | None = None


class TracksResult(NamedTuple):
    """A message in all groups that consume its topic, by name."""

    tracks: list[MessageTrack]
    unavailable: tuple[BrokerUnavailable, ...] = ()


class TraceRow(NamedTuple):
    """One event of a message that a client reported. Times are by the client's clock.

    Attributes:
        kind: "Pub" for a send, "Sub" for a consumption.
        group: Producer or consumer group.
        client_host: IP address of the client.
        time_ms: When it began; for a consumption, when it ended. None if an old client did not report it.
        cost_ms: Duration.
        is_success: Whether it succeeded.
    """

    kind: str
    group: str
    client_host: str
    time_ms: int | None
    cost_ms: int
    is_success: bool


class TraceRows(NamedTuple):
    """Reported events, in the order in which they were stored."""

    rows: list[TraceRow]
    unavailable: tuple[BrokerUnavailable, ...] = ()


class DirectConsumption(msgspec.Struct, frozen=True, rename="camel"):
    """Outcome of a direct consumption, as the client responded. [ConsumeMessageDirectlyResult]"""

    auto_commit: bool = True
    consume_result: str | None = (
        None  # CR_SUCCESS, CR_LATER, CR_COMMIT, CR_ROLLBACK, CR_RETURN_NULL, CR_THROW_EXCEPTION
    )
    order: bool = False
    remark: str | None = None
    spent_time_mills: int = 0

    @property
    def is_success(self) -> bool:
        """Whether the listener accepted the message."""
        return self.consume_result in ("CR_SUCCESS", "CR_COMMIT")


class MessageTrackOperations(TopicQueries, MessageOperations):
    """Operations that follow messages to their consumers."""

    async def track(self, message: ReceivedMessage) -> TracksResult:
        """Return the state of a message in every group that is online for its topic or has offsets of it.

        Raises:
            RouteNotFound: its topic does not exist any more.
        """
        topic = message.queue.topic
        servers = readable_servers(await self.routing.fetch_route(topic))
        groups, unavailable = await self.list_groups_of(topic, servers)
        masters = await self.select_brokers()
        tracks = [await self._track_in_group(message, group, masters) for group in groups]
        return TracksResult(tracks, unavailable)

    async def query_trace(self, unique_key: str, trace_topic: str = TRACE_TOPIC) -> TraceRows:
        """Return the sends and consumptions of a message that clients reported to a trace topic.

        Raises:
            RouteNotFound: the trace topic does not exist.
        """
        carriers = await self.query_by_key(trace_topic, unique_key)
        rows = [row for carrier in carriers.messages for row in _trace_rows(carrier, unique_key)]
        return TraceRows(rows, carriers.unavailable)

    async def consume_directly(self, message: ReceivedMessage, group: str, client_id: str) -> DirectConsumption | None:
        """Let one client of a group consume a stored message now, outside of its queue. In a dry run return None.

        Offsets do not change, and a failure is not retried.

        Raises:
            ReplyError: no such client is online at the broker, or it did not respond.
            ConnectionLost, RequestTimeout: the broker did not respond.
        """
        header = ConsumeDirectly(group, client_id, message.offset_message_id)
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        change = Change(message.store_host, f"let {client_id} consume message {message.message_id}", code, header)
        self.changes.append(change)
        if self.is_dry_run:
            return None
        answer = await self.request(change.addr, code, header, is_slow=True)
        return fastjson.decode(answer.body, DirectConsumption)

    async def find_client(self, message: ReceivedMessage, group: str) -> str:
        """Return the id of an online client of a group at the broker that stores a message.

        Raises:
            ReplyError: the group is not online there.
            ConnectionLost, RequestTimeout: the broker did not respond.
        """
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answer = await self.request(message.store_host, code, GroupRef(group))
        clients = sorted(client.client_id for client in fastjson.decode(answer.body, ConsumerConnection).connection_set)
        if not clients:
            raise NotFound(f"online client of group {group} at", message.store_host)
        return clients[0]

    async def _track_in_group(self, message: ReceivedMessage, group: str, masters: list[BrokerServer]) -> MessageTrack:
        connections: list[ConsumerConnection] = []
        offline = failed = ""
        for server in masters:
            try:
                answer = await self.request(server.addr, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupRef(group))
                connections.append(fastjson.decode(answer.body, ConsumerConnection))
            except ReplyError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    offline = f"CODE:{error.code} DESC:{error.remark}"
                else:
                    failed = str(error)
            except ArianeError as error:
                failed = str(error)
        if not connections:
            return MessageTrack(group, TrackState.UNKNOWN if failed else TrackState.NOT_ONLINE, failed or offline)
        if connections[0].message_model in BROADCASTING:
            return MessageTrack(group, TrackState.UNKNOWN, BROADCAST_REASON)
        if connections[0].consume_type in PULL_CONSUMER:
            return MessageTrack(group, TrackState.PULL)
        try:
            is_consumed = await self._is_consumed(message, group, masters)
        except ArianeError as error:
            return MessageTrack(group, TrackState.UNKNOWN, str(error))
        if not is_consumed:
            return MessageTrack(group, TrackState.NOT_CONSUME_YET)
        subscription = connections[0].subscription_table.get(message.queue.topic)
        is_filtered = subscription is not None and not _accepts(subscription, message.tags)
        return MessageTrack(group, TrackState.CONSUMED_BUT_FILTERED if is_filtered else TrackState.CONSUMED)

    async def _is_consumed(self, message: ReceivedMessage, group: str, masters: list[BrokerServer]) -> bool:
        addr = next((server.addr for server in masters if server.broker == message.queue.broker), message.store_host)
        header = GetConsumeStats(group, message.queue.topic)
        answer = await self.request(addr, RequestCode.GET_CONSUME_STATS, header, is_slow=True)
        offsets = by_queue(fastjson.decode(answer.body, ConsumeStats).offset_table)
        offset = offsets.get(message.queue)
        if offset is None:
            raise ProtocolError(f"{addr} reported no offset of {group} in queue {message.queue.queue_id}")
        return offset.consumer_offset > message.queue_offset


def _accepts(subscription: SubscriptionData, tag: str) -> bool:
    return not subscription.tags_set or "*" in subscription.tags_set or tag in subscription.tags_set


def _trace_rows(carrier: ReceivedMessage, unique_key: str) -> list[TraceRow]:
    """Return the rows of one trace message; the client's host is the address that sent it."""
    host = ip_of(carrier.born_host)
    rows = []
    for event in trace_codec.decode(carrier.body)[0]:
        if not isinstance(event, PublishEvent | ConsumeEndEvent) or event.message_id != unique_key:
            continue
        kind = "Pub" if isinstance(event, PublishEvent) else "Sub"
        rows.append(TraceRow(kind, event.group, host, event.timestamp_ms, event.cost_ms, event.success))
    return rows
