"""Clients: heartbeats, leaving, who is there, queue locks (34, 35, 38, 41, 42, 46, 203, 204).

[ClientManageProcessor, ConsumerManageProcessor]
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from ariane.broker.state.consumer_filters import ConsumerFilters, unsupported_remark
from ariane.broker.state.group_members import GroupMembers, Member
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.queue_locks import QueueLocks
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import FilterError, FlushFailed, StoreError
from ariane.filter.sql import compile_sql
from ariane.model.topic import retry_topic, topic_name_fault
from ariane.net.connection import Handled, Handler, Peer, Reply
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import typed, typed_body
from ariane.protocol.requests.admin import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerGroupRef,
)
from ariane.protocol.requests.clients import (
    CheckClient,
    ConsumerList,
    GroupRef,
    HeartbeatData,
    LockBatch,
    LockBatchAnswer,
    UnregisterClient,
    WireQueue,
)
from ariane.protocol.requests.messaging import SQL92, TAG

log = logging.getLogger("ariane.broker")


class ClientSessionHandler(NamedTuple):
    """What these handlers need. `changed` tells the members of a group that one came or went; `monotonic_ms` is the
    time that memberships and locks live by; `sql` says whether SQL92 is served; `durable` waits until a change of locks is as
    safe as the flush mode promises, None when it is."""

    topics: TopicRegistry
    groups: GroupRegistry
    members: GroupMembers
    locks: QueueLocks
    changed: Callable[[str], None]
    monotonic_ms: Callable[[], float]
    filters: ConsumerFilters
    sql: bool
    durable: Callable[[], Awaitable[None] | None]


def handlers(parts: ClientSessionHandler) -> dict[int, Handler]:
    table: dict[RequestCode, Callable[[ClientSessionHandler, Command, Peer], Handled]] = {
        RequestCode.HEART_BEAT: heartbeat,
        RequestCode.UNREGISTER_CLIENT: unregister,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
        RequestCode.LOCK_BATCH_MQ: lock,
        RequestCode.UNLOCK_BATCH_MQ: unlock,
        RequestCode.CHECK_CLIENT_CONFIG: check_client,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer_connections,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: producer_connections,
    }

    def bound(serve: Callable[[ClientSessionHandler, Command, Peer], Handled]) -> Handler:
        return lambda command, peer: serve(parts, command, peer)

    return {code: bound(serve) for code, serve in table.items()}


def heartbeat(parts: ClientSessionHandler, command: Command, peer: Peer) -> Reply:
    """Keep the groups of a client alive; each consumer group gets its retry topic. The answer's version counts."""
    data = typed_body(command, HeartbeatData)
    member = Member(data.client_id, peer.id, peer.addr, command.language, command.version, parts.monotonic_ms())
    for consumer in data.consumers:
        settings = parts.groups.get_or_create(consumer.group_name)
        notify = True
        if settings is not None:
            notify = settings.notify_consumer_ids_changed_enable
            retry = retry_topic(consumer.group_name)
            if topic_name_fault(retry) is None and parts.topics.get(retry) is None:
                _create_retry_topic(parts, retry, settings.retry_queue_nums)
        if parts.members.heartbeat_consumer(consumer, member) and notify:
            parts.changed(consumer.group_name)
        parts.filters.register(consumer.group_name, consumer.subscription_data_set)
    for producer in data.producers:
        parts.members.heartbeat_producer(producer.group_name, member)
    return Reply()


def _create_retry_topic(parts: ClientSessionHandler, name: str, queues: int) -> None:
    try:
        parts.topics.get_or_create_internal(name, queues)
    except StoreError as error:  # a full disk keeps nobody from reading: the next heartbeat tries again
        log.warning("topic %s is not created yet: %s", name, error)


def unregister(parts: ClientSessionHandler, command: Command, peer: Peer) -> Reply:
    request = typed(command, UnregisterClient)
    if request.producer_group:
        parts.members.remove_producer(request.producer_group, peer.id)
    if request.consumer_group and parts.members.remove_consumer(request.consumer_group, peer.id):
        settings = parts.groups.get(request.consumer_group)
        if settings is None or settings.notify_consumer_ids_changed_enable:
            parts.changed(request.consumer_group)
    return Reply(fields={})


def consumer_list(parts: ClientSessionHandler, command: Command, peer: Peer) -> Reply:
    group = typed(command, GroupRef).consumer_group
    ids = parts.members.client_ids(group)
    if not ids:
        return Reply(ResponseCode.SYSTEM_ERROR, {}, f"no consumer for this group, {group}")
    return Reply(fields={}, body=fastjson.write(ConsumerList(tuple(ids))))


def lock(parts: ClientSessionHandler, command: Command, peer: Peer) -> Handled:
    """The queues that are the client's from now on. A new owner is not told before the next start would know it, too."""
    request = typed_body(command, LockBatch)
    queues = [queue.queue() for queue in request.mq_set]
    mine = parts.locks.lock(request.consumer_group, request.client_id, queues, parts.monotonic_ms())
    answer = Reply(body=fastjson.write(LockBatchAnswer(tuple(map(WireQueue.of, mine)))))
    durable = parts.durable()
    return answer if durable is None else _when_durable(durable, answer)


async def _when_durable(durable: Awaitable[None], answer: Reply) -> Reply:
    try:
        await durable
    except FlushFailed as error:  # a broken disk keeps nobody from reading
        log.error("queue locks are not saved, a restart of this broker would forget them: %s", error)
    return answer


def unlock(parts: ClientSessionHandler, command: Command, peer: Peer) -> Reply:
    request = typed_body(command, LockBatch)
    parts.locks.unlock(request.consumer_group, request.client_id, [queue.queue() for queue in request.mq_set])
    return Reply()


def check_client(parts: ClientSessionHandler, command: Command, peer: Peer) -> Reply:
    """Whether the broker can filter as a consumer wants to."""
    subscription = typed_body(command, CheckClient).subscription_data
    if subscription is None or subscription.expression_type in (None, "", TAG):
        return Reply()
    if not parts.sql or subscription.expression_type != SQL92:
        return Reply(ResponseCode.SYSTEM_ERROR, remark=unsupported_remark(subscription.expression_type, parts.sql))
    try:
        compile_sql(subscription.sub_string or "")
    except FilterError as error:
        return Reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
    return Reply()


def consumer_connections(parts: ClientSessionHandler, command: Command, peer: Peer) -> Reply:
    name = typed(command, GroupRef).consumer_group
    group = parts.members.consumers.get(name)
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


def producer_connections(parts: ClientSessionHandler, command: Command, peer: Peer) -> Reply:
    name = typed(command, ProducerGroupRef).producer_group
    members = parts.members.producers.get(name)
    if not members:
        return Reply(ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")
    return Reply(body=fastjson.write(ProducerConnection(_connections(members.values()))))


def _connections(members: Iterable[Member]) -> tuple[ClientConnection, ...]:
    return tuple(ClientConnection(one.addr, one.client_id, one.language, one.version) for one in members)
