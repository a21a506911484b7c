"""Which request code is served by whom, and with which parts: the broker's table of contents.

[BrokerController.registerProcessor]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from ariane.broker.access import AccessControl
from ariane.broker.cleaning import Cleaner
from ariane.broker.deletion import TopicRemover
from ariane.broker.flush import Flusher
from ariane.broker.handlers import (
    acl,
    admin,
    cleaning,
    clients,
    offsets,
    pull,
    query,
    recall,
    relay,
    reply,
    runtime,
    send,
    send_back,
    settings,
    stats,
    topics,
    transactions,
)
from ariane.broker.messages import Messages
from ariane.broker.presence import Presence
from ariane.broker.registration import Registration
from ariane.broker.replication import Feed
from ariane.broker.settings import Settings
from ariane.broker.stats.counters import BrokerStats
from ariane.broker.stats.recorder import Recorder
from ariane.broker.tables import Tables
from ariane.broker.transactions import Transactions
from ariane.model.topic import TIMER_TOPIC
from ariane.net.connection import Handler
from ariane.net.server import Server
from ariane.net.tasks import Tasks
from ariane.protocol.requests.admin import DelayOffsetTable
from ariane.store.files import Disk
from ariane.store.message_store import MessageStore
from ariane.store.query import Wanted

RECALL_MAX = 32  # timers of one unique key that are looked at: a message that is sent again has it twice


class Parts(NamedTuple):
    """All there is to serve with. A handler is given the few of it that it needs."""

    settings: Settings
    addr: str
    store_host: bytes
    boot_ms: int
    disk: Disk
    store: MessageStore
    tables: Tables
    remover: TopicRemover
    presence: Presence
    messages: Messages
    flusher: Flusher
    feed: Feed
    transactions: Transactions
    cleaner: Cleaner
    stats: BrokerStats
    recorder: Recorder
    registration: Registration
    access: AccessControl | None
    server: Server
    tasks: Tasks
    write_settings: Callable[..., Awaitable[Any]] | None
    now_ms: Callable[[], int]
    monotonic_ms: Callable[[], float]


def handlers(parts: Parts) -> dict[int, Handler]:
    """The whole table."""
    config, store, now_ms = parts.settings.now, parts.store, parts.now_ms
    tables, presence, messages = parts.tables, parts.presence, parts.messages
    durable = parts.flusher.waiting(config)
    recalling = recall.RecallParts(store, messages.deliveries, lambda key: _timers_of(store, key), durable)
    sending = send.SendParts(
        parts.settings,
        tables.topics,
        tables.groups,
        store,
        parts.store_host,
        durable,
        messages.stored,
        now_ms,
        messages.kept,
        parts.stats,
        parts.transactions,
        lambda name, peer: recall.cancel(recalling, name, peer.packed)[1],
        parts.feed.replicated if config.broker_role == "SYNC_MASTER" else None,
    )
    return {
        **send.handlers(sending),
        **send_back.handlers(
            send_back.SendBackParts(
                parts.settings, tables.topics, tables.groups, store, messages.put_returned, durable, messages.stored
            )
        ),
        **recall.handlers(recalling),
        **reply.handlers(reply.ReplyParts(sending, presence.members, parts.server.request)),
        **transactions.handlers(parts.transactions, durable, is_slave=config.is_slave),
        **relay.handlers(
            relay.RelayParts(
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
            pull.PullParts(
                parts.settings,
                tables.topics,
                tables.groups,
                presence.members,
                tables.offsets,
                store,
                parts.store_host,
                messages.arrivals,
                messages.stored,
                now_ms,
                tables.filters,
                parts.stats,
            )
        ),
        **query.handlers(config, store),
        **offsets.handlers(tables.offsets, tables.topics, store),
        **clients.handlers(
            clients.ClientParts(
                tables.topics,
                tables.groups,
                presence.members,
                tables.locks,
                presence.changed,
                parts.monotonic_ms,
                tables.filters,
                config.enable_property_filter,
                tables.locks_durable,
            )
        ),
        **_administration(parts),
    }


def _administration(parts: Parts) -> dict[int, Handler]:
    config, store, now_ms = parts.settings.now, parts.store, parts.now_ms
    tables, presence = parts.tables, parts.presence
    return {
        **topics.handlers(topics.AdminParts(config, tables, parts.remover, parts.registration.settled, parts.stats)),
        **stats.handlers(
            stats.StatsParts(
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
        **runtime.handlers(
            runtime.RuntimeParts(
                parts.settings,
                store,
                parts.disk,
                parts.stats,
                lambda: parts.recorder.late_ms,
                now_ms,
                parts.boot_ms,
                parts.messages.delay_levels,
            )
        ),
        **admin.handlers(
            admin.WholeParts(
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
        **cleaning.handlers(parts.cleaner.clean_soon),
        **acl.handlers(acl.AclParts(config, parts.addr, parts.access)),
        **settings.handlers(
            settings.SettingsParts(
                parts.settings,
                tables.topics,
                tables.groups,
                store,
                parts.server.limits,
                now_ms,
                parts.write_settings,
                parts.registration.settled,
                lambda work: parts.tasks.start(work, "change the settings"),
            )
        ),
    }


def _timers_of(store: MessageStore, unique_key: str) -> Iterable[bytes]:
    """Records of the timer topic with this unique key."""
    return store.index.query(Wanted(TIMER_TOPIC, unique_key, RECALL_MAX)).records
