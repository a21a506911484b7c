"""Which request code is served by whom, and with which parts: the broker's table of contents.

[BrokerController.registerProcessor]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from ariane.broker.access_control import AccessControl
from ariane.broker.client_registry import ClientRegistry
from ariane.broker.dynamic_config import DynamicConfig
from ariane.broker.file_cleaner import FileCleaner
from ariane.broker.flusher import Flusher
from ariane.broker.handlers import (
    acl_admin,
    broker_admin,
    client_sessions,
    config_admin,
    consumer_admin,
    end_transaction,
    file_expiry,
    message_query,
    offset_requests,
    pull,
    recall,
    reply_message,
    runtime_info,
    send,
    send_back,
    statistics,
    topic_admin,
)
from ariane.broker.persistent_state import PersistentState
from ariane.broker.post_store import PostStoreDispatcher
from ariane.broker.registration import Registration
from ariane.broker.replication import ReplicationFeed
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.broker.stats.stats_recorder import StatsRecorder
from ariane.broker.topic_deletion import TopicRemover
from ariane.broker.transaction_service import TransactionService
from ariane.model.topic import TIMER_TOPIC
from ariane.net.connection import Handler
from ariane.net.server import RemotingServer
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.requests.admin import DelayOffsetTable
from ariane.store.files import Disk
from ariane.store.key_query import KeyQuery
from ariane.store.message_store import MessageStore

RECALL_MAX = 32  # timers of one unique key that are looked at: a message that is sent again has it twice


class BrokerServices(NamedTuple):
    """All there is to serve with. A handler is given the few of it that it needs."""

    settings: DynamicConfig
    addr: str
    store_host: bytes
    boot_ms: int
    disk: Disk
    store: MessageStore
    tables: PersistentState
    remover: TopicRemover
    presence: ClientRegistry
    messages: PostStoreDispatcher
    flusher: Flusher
    feed: ReplicationFeed
    transactions: TransactionService
    cleaner: FileCleaner
    stats: BrokerStats
    recorder: StatsRecorder
    registration: Registration
    access: AccessControl | None
    server: RemotingServer
    tasks: BackgroundTasks
    write_settings: Callable[..., Awaitable[Any]] | None
    now_ms: Callable[[], int]
    monotonic_ms: Callable[[], float]


def handlers(parts: BrokerServices) -> dict[int, Handler]:
    """The whole table."""
    config, store, now_ms = parts.settings.current, parts.store, parts.now_ms
    tables, presence, messages = parts.tables, parts.presence, parts.messages
    durable = parts.flusher.waiting(config)
    recalling = recall.RecallHandler(store, messages.deliveries, lambda key: _timers_of(store, key), durable)
    sending = send.SendHandler(
        parts.settings,
        tables.topics,
        tables.groups,
        store,
        parts.store_host,
        durable,
        messages.on_stored,
        now_ms,
        messages.schedule,
        parts.stats,
        parts.transactions,
        lambda name, peer: recall.cancel(recalling, name, peer.packed)[1],
        parts.feed.wait_replicated if config.broker_role == "SYNC_MASTER" else None,
    )
    return {
        **send.handlers(sending),
        **send_back.handlers(
            send_back.SendBackHandler(
                parts.settings,
                tables.topics,
                tables.groups,
                store,
                messages.store_returned,
                durable,
                messages.on_stored,
            )
        ),
        **recall.handlers(recalling),
        **reply_message.handlers(reply_message.ReplyMessageHandler(sending, presence.members, parts.server.request)),
        **end_transaction.handlers(parts.transactions, durable, is_slave=config.is_slave),
        **consumer_admin.handlers(
            consumer_admin.ConsumerAdminHandler(
                config.broker_name,
                tables.topics,
                presence.members,
                tables.offsets,
                store,
                parts.server.request,
                parts.server.one_way,
            )
        ),
        **pull.handlers(
            pull.PullHandler(
                parts.settings,
                tables.topics,
                tables.groups,
                presence.members,
                tables.offsets,
                store,
                parts.store_host,
                messages.pull_waiters,
                messages.on_stored,
                now_ms,
                tables.filters,
                parts.stats,
            )
        ),
        **message_query.handlers(config, store),
        **offset_requests.handlers(tables.offsets, tables.topics, store),
        **client_sessions.handlers(
            client_sessions.ClientSessionHandler(
                tables.topics,
                tables.groups,
                presence.members,
                tables.locks,
                presence.notify_group_changed,
                parts.monotonic_ms,
                tables.filters,
                config.enable_property_filter,
                tables.wait_locks_durable,
            )
        ),
        **_administration(parts),
    }


def _administration(parts: BrokerServices) -> dict[int, Handler]:
    config, store, now_ms = parts.settings.current, parts.store, parts.now_ms
    tables, presence = parts.tables, parts.presence
    return {
        **topic_admin.handlers(
            topic_admin.TopicAdminHandler(
                config, tables, parts.remover, parts.registration.wait_registered, parts.stats
            )
        ),
        **statistics.handlers(
            statistics.StatisticsHandler(
                config,
                parts.addr,
                tables.topics,
                tables.groups,
                presence.members,
                tables.offsets,
                store,
                parts.stats,
                now_ms,
            )
        ),
        **runtime_info.handlers(
            runtime_info.RuntimeInfoHandler(
                parts.settings,
                store,
                parts.disk,
                parts.stats,
                lambda: parts.recorder.loop_lag_ms,
                now_ms,
                parts.boot_ms,
                parts.messages.delay_level_positions,
            )
        ),
        **broker_admin.handlers(
            broker_admin.BrokerAdminHandler(
                parts.settings,
                tables.topics,
                presence.members,
                tables.offsets,
                store,
                parts.remover,
                presence.filter_servers,
                lambda: DelayOffsetTable(store.delayed.level_positions()),
                now_ms,
                parts.monotonic_ms,
            )
        ),
        **file_expiry.handlers(parts.cleaner.request_cleaning),
        **acl_admin.handlers(acl_admin.AclAdminHandler(config, parts.addr, parts.access)),
        **config_admin.handlers(
            config_admin.ConfigAdminHandler(
                parts.settings,
                tables.topics,
                tables.groups,
                store,
                parts.server.limits,
                now_ms,
                parts.write_settings,
                parts.registration.wait_registered,
                lambda work: parts.tasks.start(work, "change the settings"),
            )
        ),
    }


def _timers_of(store: MessageStore, unique_key: str) -> Iterable[bytes]:
    """Records of the timer topic with this unique key."""
    return store.index.query(KeyQuery(TIMER_TOPIC, unique_key, RECALL_MAX)).records
