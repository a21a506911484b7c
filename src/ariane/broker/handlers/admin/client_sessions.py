"""Client sessions: heartbeats, unregistering, group members, queue locks (34, 35, 38, 41, 42, 46, 203, 204).

[ClientManageProcessor, ConsumerManageProcessor]
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass

from ariane.broker.collaborators import LockDurability
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.lifecycle.client_registry import ClientRegistry
from ariane.broker.state.consumer_filters import ConsumerFilters, unsupported_remark
from ariane.broker.state.group_members import Member
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.queue_locks import QueueLocks
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.clock import Clock
from ariane.errors import FilterError, FlushFailed, ReplyError, StoreError
from ariane.filter.sql import compile_sql
from ariane.model.topic import retry_topic, topic_name_fault
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.net.limits.quotas import Quotas
from ariane.protocol import fastjson
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_body, decode_header
from ariane.protocol.requests.admin import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerGroupRef,
)
from ariane.protocol.requests.clients import (
    CheckClient,
    ConsumerData,
    ConsumerList,
    GroupRef,
    HeartbeatData,
    LockBatch,
    LockBatchResponse,
    UnregisterClient,
    WireQueue,
)
from ariane.protocol.requests.messaging import SQL92, TAG

log = logging.getLogger("ariane.broker")


@dataclass(frozen=True, kw_only=True)
class ClientSessionHandler:
    """Maintains the members of groups and the queue locks of orderly consumers."""

    settings: DynamicConfig  # whether members are notified of changes
    topics: TopicRegistry  # creates the retry topic of a group
    groups: GroupRegistry  # creates a group on first use, if that is enabled
    clients: ClientRegistry  # who belongs to which group; notifies the other members of a change
    filters: ConsumerFilters  # compiled SQL92 expressions of heartbeats
    locks: QueueLocks  # queue locks of orderly consumers
    lock_durability: LockDurability  # a lock counts only once it survives a restart
    quotas: Quotas  # limits of subscriptions
    clock: Clock  # expiry of locks

    # --- membership ---

    def heartbeat(self, command: Command, peer: Peer) -> Reply:
        """Handle HEART_BEAT: refresh the membership of a client in its groups, and create missing retry topics.

        Clients read the broker's version from the response.
        """
        data = decode_body(command, HeartbeatData)
        member = Member(data.client_id, peer.id, peer.addr, command.language, command.version, self._monotonic_ms())
        for consumer in data.consumers:
            group = self.groups.get_or_create(consumer.group_name)
            notify = True
            if group is not None:
                notify = group.notify_consumer_ids_changed_enable
                retry = retry_topic(consumer.group_name)
                if topic_name_fault(retry) is None and self.topics.get(retry) is None:
                    self._create_retry_topic(retry, group.retry_queue_nums)
            self._check_subscriptions(consumer, peer)
            if self.clients.members.heartbeat_consumer(consumer, member) and notify:
                self.clients.notify_group_changed(consumer.group_name)
            self.quotas.set_subscriptions(peer.id, self.clients.members.subscription_count(peer.id))
            self.filters.register(consumer.group_name, consumer.subscription_data_set)
        for producer in data.producers:
            self.clients.members.heartbeat_producer(producer.group_name, member)
        return Reply()

    def _check_subscriptions(self, consumer: ConsumerData, peer: Peer) -> None:
        """Raise ReplyError if a heartbeat adds subscriptions beyond a limit. One that repeats the former is never refused."""
        current = self.clients.members.subscription_count(peer.id, consumer.group_name)
        growth = len(consumer.subscription_data_set) - current
        if growth > 0 and (
            refusal := self.quotas.admit(peer.id, {"subscriptions": growth}, self._monotonic_ms() / 1000)
        ):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, refusal.remark)

    def _create_retry_topic(self, name: str, queues: int) -> None:
        try:
            self.topics.get_or_create_internal(name, queues)
        except StoreError as error:  # consuming goes on with a full disk: the next heartbeat tries again
            log.warning("Could not create topic %s, retrying with the next heartbeat: %s", name, error)

    def unregister(self, command: Command, peer: Peer) -> Reply:
        """Handle UNREGISTER_CLIENT: remove a client from its groups."""
        request = decode_header(command, UnregisterClient)
        if request.producer_group:
            self.clients.members.remove_producer(request.producer_group, peer.id)
        if request.consumer_group and self.clients.members.remove_consumer(request.consumer_group, peer.id):
            group = self.groups.get(request.consumer_group)
            if group is None or group.notify_consumer_ids_changed_enable:
                self.clients.notify_group_changed(request.consumer_group)
        self.quotas.set_subscriptions(peer.id, self.clients.members.subscription_count(peer.id))
        return Reply(fields={})

    def consumer_list(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_CONSUMER_LIST_BY_GROUP: the client ids that share the queues of a group."""
        group = decode_header(command, GroupRef).consumer_group
        ids = self.clients.members.client_ids(group)
        if not ids:
            return Reply(ResponseCode.SYSTEM_ERROR, {}, f"no consumer for this group, {group}")
        return Reply(fields={}, body=fastjson.write(ConsumerList(tuple(ids))))

    # --- queue locks ---

    def lock(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle LOCK_BATCH_MQ: the requested queues that the client owns from now on.

        The response waits until the locks survive a restart: otherwise two clients could own a queue after it.
        """
        request = decode_body(command, LockBatch)
        queues = [queue.queue() for queue in request.mq_set]
        locked = self.locks.lock(request.consumer_group, request.client_id, queues, self._monotonic_ms())
        reply = Reply(body=fastjson.write(LockBatchResponse(tuple(map(WireQueue.of, locked)))))
        durable = self.lock_durability.wait_locks_durable()
        return reply if durable is None else _reply_when_durable(durable, reply)

    def unlock(self, command: Command, peer: Peer) -> Reply:
        """Handle UNLOCK_BATCH_MQ."""
        request = decode_body(command, LockBatch)
        self.locks.unlock(request.consumer_group, request.client_id, [queue.queue() for queue in request.mq_set])
        return Reply()

    # --- checks and connections ---

    def check_client(self, command: Command, peer: Peer) -> Reply:
        """Handle CHECK_CLIENT_CONFIG: report whether this broker can evaluate a consumer's filter expression."""
        subscription = decode_body(command, CheckClient).subscription_data
        if subscription is None or subscription.expression_type in (None, "", TAG):
            return Reply()
        is_enabled = self.settings.current.enable_property_filter
        if not is_enabled or subscription.expression_type != SQL92:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=unsupported_remark(subscription.expression_type, is_enabled))
        try:
            compile_sql(subscription.sub_string or "")
        except FilterError as error:
            return Reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
        return Reply()

    def consumer_connections(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_CONSUMER_CONNECTION_LIST: the members and subscriptions of a consumer group."""
        name = decode_header(command, GroupRef).consumer_group
        group = self.clients.members.consumers.get(name)
        if group is None:
            return Reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            connection_set=_connections(group.members.values()),
            consume_from_where=group.consume_from_where,
            consume_type=group.consume_type,
            message_model=group.message_model,
            subscription_table=group.subscriptions,
        )
        return Reply(body=fastjson.write(body))

    def producer_connections(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_PRODUCER_CONNECTION_LIST: the members of a producer group."""
        name = decode_header(command, ProducerGroupRef).producer_group
        members = self.clients.members.producers.get(name)
        if not members:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")
        return Reply(body=fastjson.write(ProducerConnection(_connections(members.values()))))

    def _monotonic_ms(self) -> float:
        return self.clock.monotonic() * 1000


async def _reply_when_durable(durable: Awaitable[None], reply: Reply) -> Reply:
    try:
        await durable
    except FlushFailed as error:  # consuming goes on with a broken disk
        log.error("Could not save queue locks, a restart of this broker would lose them: %s", error)
    return reply


def _connections(members: Iterable[Member]) -> tuple[ClientConnection, ...]:
    return tuple(ClientConnection(member.addr, member.client_id, member.language, member.version) for member in members)
