"""Inspection and clean-up of a whole broker (45, 300, 301, 305, 306, 308, 314, 316, 321, 328). [AdminBrokerProcessor]"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.lifecycle.client_registry import ClientRegistry
from ariane.broker.lifecycle.topic_deletion import TopicRemover
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.topic_registry import TopicRegistry, protected_topics
from ariane.clock import Clock
from ariane.errors import ReplyError
from ariane.filter import tags
from ariane.model import host
from ariane.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC, group_name_fault, is_system_topic
from ariane.net.connection import Peer, Reply
from ariane.protocol import fastjson
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.admin import DelayOffsetTable, TopicRef
from ariane.protocol.requests.brokers import (
    CloneOffsets,
    Corrections,
    FilterServer,
    FilterServerResponse,
    GroupList,
    ProducerInfo,
    ProducerTable,
    QueryCorrection,
    QueryQueue,
    QueueEntries,
    QueueEntry,
)
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import TAG
from ariane.protocol.requests.routing import TopicList
from ariane.store.message_store import MessageStore
from ariane.store.queues.consume_queue import LMQ_PREFIX

log = logging.getLogger("ariane.broker")

# Pending deliveries refer to entries of these queues by number, so an empty file must not be removed.
KEPT_QUEUES = (SCHEDULE_TOPIC, TIMER_TOPIC)
ENTRIES_MAX = 4_096  # entries in one response to 321: less than 1 MiB of JSON
BEHIND = 2**63 - 1  # response of 308 for a queue in which the compared group is behind the others


@dataclass(frozen=True, kw_only=True)
class BrokerAdminHandler:
    """Reports what a broker stores and serves, and removes unused queues and topics."""

    settings: DynamicConfig  # names of the broker and the cluster
    topics: TopicRegistry  # requests about other topics are refused
    offsets: ConsumerOffsets  # topics that groups have offsets of; copies them to another group
    clients: ClientRegistry  # connected members and their subscriptions, and Java's filter servers
    store: MessageStore  # queues, their bounds and entries
    remover: TopicRemover  # deletes topics with their messages and offsets
    clock: Clock  # durations and times of replies

    # --- inspection ---

    def delay_offsets(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_ALL_DELAY_OFFSET: the next entry of each delay level."""
        return Reply(body=fastjson.write(DelayOffsetTable(self.store.delayed.level_positions())))

    def consumer_groups(self, command: Command, peer: Peer) -> Reply:
        """Handle QUERY_TOPIC_CONSUME_BY_WHO: groups that are online for a topic or have offsets of it."""
        topic = decode_header(command, TopicRef).topic
        groups = self.clients.members.groups_of(topic) | self.offsets.groups_of(topic)
        return Reply(body=fastjson.write(GroupList(tuple(sorted(groups)))))

    def system_topics(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        return Reply(body=fastjson.write(TopicList(None, tuple(sorted(protected_topics(self.settings.current))))))

    def producers(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_ALL_PRODUCER_INFO: the connected producers of each group."""
        now_ms, monotonic_ms = self.clock.now_ms(), self.clock.monotonic() * 1000
        table = {
            group: tuple(
                ProducerInfo(
                    member.client_id,
                    member.language,
                    now_ms - int(monotonic_ms - member.seen_ms),
                    f"/{member.addr}",
                    member.version,
                )
                for member in members.values()
            )
            for group, members in self.clients.members.producers.items()
        }
        return Reply(body=fastjson.write(ProducerTable(table)))

    def register_filter_server(self, command: Command, peer: Peer) -> Reply:
        """Handle REGISTER_FILTER_SERVER: list the peer among the filter servers of this broker's routes."""
        addr = decode_header(command, FilterServer).filter_server_addr
        host.parse(addr)
        self.clients.filter_servers.register(peer.id, addr, self.clock.monotonic() * 1000)
        config = self.settings.current
        return Reply(fields=encode_header(FilterServerResponse(config.broker_name, config.broker_id)))

    # --- offsets and queues ---

    def clone_offsets(self, command: Command, peer: Peer) -> Reply:
        """Handle CLONE_GROUP_OFFSET: copy one group's offsets to another, of one topic or of all topics.

        Deleted topics are skipped; so are, unless `offline` is set, topics that the source group is online for without
        subscribing to them.
        """
        request = decode_header(command, CloneOffsets)
        if fault := group_name_fault(request.dest_group):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
        topics = [request.topic] if request.topic else sorted(self.offsets.topics_of(request.src_group))
        online = self.clients.members.consumers.get(request.src_group)
        cloned = []
        for topic in topics:
            if self.topics.get(topic) is None:
                continue
            if not request.offline and online is not None and topic not in online.subscriptions:
                continue
            if self.offsets.clone(request.src_group, request.dest_group, topic):
                cloned.append(topic)
        if cloned:
            log.info("Copied the offsets of %s to %s: %s", request.src_group, request.dest_group, ", ".join(cloned))
            return Reply()
        topics_text = request.topic or "any topic"
        return Reply(remark=f"nothing to clone: {request.src_group} has no offsets of {topics_text} on this broker")

    def correction(self, command: Command, peer: Peer) -> Reply:
        """Handle QUERY_CORRECTION_OFFSET: the smallest offset of any group in each queue of a topic.

        A queue in which the compared group is slower still is answered with BEHIND. Filtered groups are ignored (4.9.4 deletes
        their offsets).
        """
        request = decode_header(command, QueryCorrection)
        ignored = set(filter(None, (request.filter_groups or "").split(",")))
        slowest: dict[int, int] = {}
        for group in sorted(self.offsets.groups_of(request.topic) - ignored):
            for queue_id, offset in self.offsets.queue_offsets(group, request.topic).items():
                if offset >= self.store.min_offset(request.topic, queue_id):
                    slowest[queue_id] = min(offset, slowest.get(queue_id, offset))
        for queue_id, offset in self.offsets.queue_offsets(request.compare_group, request.topic).items():
            smallest = slowest.get(queue_id, 0)
            slowest[queue_id] = BEHIND if smallest > offset else smallest
        return Reply(body=fastjson.write(Corrections(slowest)))

    def query_queue(self, command: Command, peer: Peer) -> Reply:
        """Handle QUERY_CONSUME_QUEUE: stored entries of a consume queue, and whether a group's filter accepts them.

        Without a group, or if it is offline, no entry counts as accepted.
        """
        request = decode_header(command, QueryQueue)
        topic, queue_id = request.topic, request.queue_id
        if not 0 <= request.count <= ENTRIES_MAX:
            raise ReplyError(
                ResponseCode.SYSTEM_ERROR, f"invalid count {request.count}: expected 0 to {ENTRIES_MAX} entries"
            )
        if not self.store.has_queue(topic, queue_id):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist: the queue holds no message")
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        group = request.consumer_group
        subscription = self.clients.members.subscription(group, topic) if group else None
        filter_data = None
        if group:
            filter_data = "null" if subscription else f"{group}@{topic} is not online!"
        body = QueueEntries(filter_data, high, low, (), subscription)
        if not low <= request.index < high:
            return Reply(
                body=fastjson.write(body), remark=f"Index {request.index} is out of range, {low} to {high - 1}"
            )
        entries = self.store.entries(topic, queue_id, request.index, request.count)
        codes = _codes(subscription)
        data = tuple(
            QueueEntry(
                eval=subscription is not None and (codes is None or code in codes),
                physic_offset=offset,
                physic_size=size,
                tags_code=code,
            )
            for offset, size, code in entries
        )
        return Reply(body=fastjson.write(QueueEntries(filter_data, high, low, data, subscription)))

    # --- clean-up ---

    async def clean_unused_topics(self, command: Command, peer: Peer) -> Reply:
        """Handle CLEAN_UNUSED_TOPIC: delete the messages of topics that this broker no longer has."""
        for topic in self.store.topics():
            if self.topics.get(topic) is None and not is_system_topic(topic) and not topic.startswith(LMQ_PREFIX):
                log.warning("Deleting the messages of topic %s, which no longer exists", topic)
                self.remover.remove(topic)
            await asyncio.sleep(0)  # each removal blocks on the disk: serve other requests in between
        return Reply()

    async def clean_expired_queues(self, command: Command, peer: Peer) -> Reply:
        """Handle CLEAN_EXPIRED_CONSUMEQUEUE: remove consume queues whose messages have all expired."""
        for topic in self.store.topics():
            if topic in KEPT_QUEUES or topic.startswith(LMQ_PREFIX):
                continue
            for queue_id in self.store.delete_topic(topic, expired_only=True):
                log.warning("Removed queue %d of topic %s: all its messages have expired", queue_id, topic)
            await asyncio.sleep(0)
        return Reply()


def _codes(subscription: SubscriptionData | None) -> frozenset[int] | None:
    """Return the accepted tag hashes; None for all (SQL92 needs the message, an entry does not decide)."""
    if subscription is None or subscription.expression_type not in (None, "", TAG):
        return None
    return None if subscription.sub_string in (None, "", tags.ALL) else subscription.code_set
