"""The broker, wired: which parts there are, who is given what, what runs when. Nothing else knows them all.

    async with Broker(config) as broker:
        ... broker.addr serves until the block ends

Start: the store (recovered), the tables of config/*.json, the handlers, the socket, the name servers. Stop: the reverse, so
that what was acknowledged is on disk before the store closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from ariane.broker import delay
from ariane.broker.access import POLL_S, AccessControl
from ariane.broker.arrivals import Arrivals
from ariane.broker.config import BrokerConfig, checked, store_config
from ariane.broker.delay import Deliveries
from ariane.broker.flush import Flusher
from ariane.broker.handlers import acl, admin, clients, offsets, pull, relay, reply, runtime, send, send_back
from ariane.broker.handlers import settings as setting_handlers
from ariane.broker.handlers import stats as stats_handlers
from ariane.broker.handlers import topics as topic_handlers
from ariane.broker.protection import NEVER_HELD, WriteProtection, set_limits
from ariane.broker.registration import Registration
from ariane.broker.settings import Settings, write_file
from ariane.broker.state import documents
from ariane.broker.state.filter_servers import FilterServers
from ariane.broker.state.filters import ConsumerFilters, FilterTable
from ariane.broker.state.groups import Groups
from ariane.broker.state.locks import LockTable, QueueLocks
from ariane.broker.state.members import Members
from ariane.broker.state.offsets import ConsumerOffsets
from ariane.broker.state.topics import Topics
from ariane.broker.stats.counters import BrokerStats
from ariane.broker.stats.journal import Journal
from ariane.broker.stats.recorder import Protection, Recorder
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ConnectionLost, StoreError
from ariane.filter.bloom import Bloom
from ariane.model import host
from ariane.model.message import DELAY, RETRY_TOPIC
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from ariane.net.client import Connections
from ariane.net.connection import Handler, Peer
from ariane.net.interfaces import local_ip
from ariane.net.limits import Limits
from ariane.net.server import Server
from ariane.net.tasks import Tasks
from ariane.protocol import properties
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import fields
from ariane.protocol.requests.admin import ConsumerOffsetTable, DelayOffsetTable, SubscriptionGroupTable
from ariane.protocol.requests.clients import GroupRef
from ariane.protocol.requests.routing import TopicTable
from ariane.store.delayed import Due
from ariane.store.files import Disk, SystemDisk
from ariane.store.message_store import Draft, Placed, open_store

log = logging.getLogger("ariane.broker")

MEMBER_SCAN_S = 10.0
LOCK_SCAN_S = 60.0
FILTER_SAVE_S = 10.0
DISPATCH_RETRY_S = 1.0
PROTECTION_LOOK_S = 0.1
HA_PORT_AFTER = 1  # the address told to slaves; nothing listens there in this version


class Broker:
    """One broker. `addr` is where it serves, once started."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        config_file: str | None = None,
        disk: Disk | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`config_file` is where `config` came from: settings that tools change are kept there."""
        self._settings = Settings(checked(config), clock.now_ms())
        self._config_file = config_file
        self.addr = ""
        self._disk = disk or SystemDisk()
        self._clock = clock
        self._tasks = Tasks("broker")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ariane-disk")
        self._parts = contextlib.AsyncExitStack()
        self._access: AccessControl | None = None
        self._dispatch_due = False
        self._unsaved: set[str] = set()
        self._saved_delays = DelayOffsetTable()

    @property
    def config(self) -> BrokerConfig:
        """The settings that are in force now."""
        return self._settings.now

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._parts.aclose()
            self._thread.shutdown()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._parts.aclose()
        finally:
            self._thread.shutdown()

    async def _start(self) -> None:
        config, parts = self.config, self._parts
        handlers: dict[int, Handler] = {}
        self._server = Server(
            handlers,
            config.bind_address,
            config.listen_port,
            on_lost=self._lost,
            idle_s=config.server_channel_max_idle_time_seconds,
            limits=Limits(exempt=NEVER_HELD),
        )
        set_limits(self._server.limits, self.config)
        await self._server.bind()
        parts.push_async_callback(self._server.__aexit__, None, None, None)
        ip = config.broker_ip1 or local_ip()
        self.addr = f"{ip}:{self._server.port}"

        store_host = host.pack(ip, self._server.port)
        positions = documents.load(self._disk, config.config_dir, documents.DELAYS, DelayOffsetTable).offset_table
        self._store = open_store(
            store_config(config),
            self._disk,
            now_ms=self._clock.now_ms,
            store_host=store_host,
            delay_positions=positions,
        )
        parts.callback(self._store.close)
        self._load_tables()
        parts.push_async_callback(self._save_tables)
        self._count()
        self._arrivals = Arrivals()
        if config.acl_enable:
            self._access = AccessControl(Path(config.rocketmq_home), self._thread, self._clock.now_ms)
        self._protection = WriteProtection(
            self._settings, lambda: self._store.commit_log_max - self._store.flushed, self._clock.monotonic
        )
        self._flusher = Flusher(self._store, self._thread, self._dispatch_soon)
        self._deliveries = Deliveries(self._store, self._dispatch_soon, self._clock.now_ms, self._count_delivered)

        peers = await parts.enter_async_context(Connections())
        parts.push_async_callback(self._tasks.close)
        ha_addr = f"{config.broker_ip2 or ip}:{self._server.port + HA_PORT_AFTER}"
        self._registration = Registration(
            self._settings,
            self.addr,
            ha_addr,
            self._topics.table,
            peers,
            self._tasks,
            self._topics.set_order,
            lambda: self._filter_servers.addresses(self._monotonic_ms()),
        )
        served = self._protection.guarded(self._handlers(store_host))
        handlers.update(self._access.guarded(served) if self._access else served)
        await self._server.__aenter__()
        self._start_tasks()
        await self._registration.start()
        parts.push_async_callback(self._registration.leave)
        log.info("broker %s serves at %s, store %s", config.broker_name, self.addr, config.store_path_root_dir)

    def _handlers(self, store_host: bytes) -> dict[int, Handler]:
        """Which code is served by whom, and with which parts."""
        config, now_ms, store = self.config, self._clock.now_ms, self._store
        timeout_s = config.sync_flush_timeout / 1000
        aside = functools.partial(asyncio.get_running_loop().run_in_executor, self._thread)
        durable = functools.partial(self._flusher.durable, timeout_s=timeout_s) if config.sync_flush else None
        sending = send.SendParts(
            self._settings,
            self._topics,
            self._groups,
            store,
            store_host,
            durable,
            self._dispatch_soon,
            now_ms,
            self._kept,
            self._stats,
        )
        return {
            **send.handlers(sending),
            **send_back.handlers(
                send_back.SendBackParts(
                    config, self._topics, self._groups, store, self._put_retry, durable, self._dispatch_soon
                )
            ),
            **reply.handlers(reply.ReplyParts(sending, self._members, self._server.request)),
            **relay.handlers(
                relay.RelayParts(
                    config.broker_name,
                    self._topics,
                    self._members,
                    self._offsets,
                    store,
                    self._server.request,
                    self._server.one_way,
                )
            ),
            **pull.handlers(
                pull.PullParts(
                    self._settings,
                    self._topics,
                    self._groups,
                    self._members,
                    self._offsets,
                    store,
                    store_host,
                    self._arrivals,
                    self._dispatch_soon,
                    now_ms,
                    self._filters,
                    self._stats,
                )
            ),
            **offsets.handlers(self._offsets, store),
            **clients.handlers(
                clients.ClientParts(
                    self._topics,
                    self._groups,
                    self._members,
                    self._locks,
                    self._members_changed,
                    self._monotonic_ms,
                    self._filters,
                    config.enable_property_filter,
                    self._save_tables,
                )
            ),
            **topic_handlers.handlers(
                topic_handlers.AdminParts(
                    config, self._topics, self._groups, self._offsets, store, self._registration.settled, self._stats
                )
            ),
            **stats_handlers.handlers(
                stats_handlers.StatsParts(
                    config,
                    self.addr,
                    self._topics,
                    self._groups,
                    self._members,
                    self._offsets,
                    store,
                    self._stats,
                    now_ms,
                )
            ),
            **runtime.handlers(
                runtime.RuntimeParts(
                    self._settings,
                    store,
                    self._disk,
                    self._stats,
                    lambda: self._recorder.late_ms,
                    now_ms,
                    self._boot_ms,
                    self._delay_levels,
                )
            ),
            **admin.handlers(
                admin.WholeParts(
                    self._settings,
                    self._topics,
                    self._members,
                    self._offsets,
                    store,
                    self._filter_servers,
                    lambda: DelayOffsetTable(store.delayed.level_positions()),
                    now_ms,
                    self._monotonic_ms,
                )
            ),
            **acl.handlers(acl.AclParts(config, self.addr, self._access)),
            **setting_handlers.handlers(
                setting_handlers.SettingsParts(
                    self._settings,
                    self._topics,
                    self._groups,
                    store,
                    self._server.limits,
                    now_ms,
                    functools.partial(aside, write_file, self._disk, self._config_file) if self._config_file else None,
                    self._registration.settled,
                    lambda work: self._tasks.start(work, "change the settings"),
                )
            ),
        }

    def _start_tasks(self) -> None:
        config, every = self.config, self._tasks.every
        if config.sync_flush:
            self._tasks.start(self._flusher.commit_groups(), "flush the commit log for those who wait")
        else:
            every(config.flush_interval_commit_log / 1000, self._flusher.flush_once, "flush the commit log")
        every(config.flush_interval_consume_queue / 1000, self._flusher.flush_derived, "flush the consume queues")
        every(config.flush_consumer_offset_interval / 1000, self._save_tables, "save the consumer offsets")
        if self._access:
            every(POLL_S, self._access.poll, "read changed access control files")
        every(PROTECTION_LOOK_S, self._protection.look, "see how much of the log waits for the disk")
        every(config.flush_delay_offset_interval / 1000, self._save_delay_offsets, "save the positions of delay levels")
        self._tasks.start(self._deliveries.run(), "deliver what is due")
        every(FILTER_SAVE_S, self._save_filters, "forget dead filters and save the others")
        every(MEMBER_SCAN_S, self._drop_silent_members, "drop silent clients")
        every(LOCK_SCAN_S, self._forget_expired_locks, "forget expired queue locks")
        self._tasks.start(self._recorder.run(), "count")
        self._topics.changed = self._topics_changed
        self._groups.changed = functools.partial(self._save_soon, documents.GROUPS)

    # --- messages ---

    def _dispatch_soon(self) -> None:
        """Derive queue entries and wake held pulls, once for all that this turn of the loop stores."""
        if self.config.sync_flush:
            self._flusher.wake()  # nothing is derived before it is flushed, and not everybody waits for that
        if not self._dispatch_due:
            self._dispatch_due = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_due = False
        try:
            arrivals = self._store.step()
        except StoreError as error:
            log.error("messages stay invisible to consumers until their queue entries are written: %s", error)
            asyncio.get_running_loop().call_later(DISPATCH_RETRY_S, self._dispatch_soon)
            return
        self._arrivals.notify(arrivals)
        if self._store.delayed.arrived:
            self._store.delayed.arrived = False
            self._deliveries.wake()

    def _kept(self, draft: Draft, own: dict[str, str]) -> Draft:
        """A message with these properties where it waits for its time, or as it is."""
        if delay.ASKS.isdisjoint(own):
            return draft
        config, store = self.config, self._store
        floor_ms = max(store.last_ms, store.delayed.floor_ms)
        limits = delay.Limits(len(store.config.delays_ms), floor_ms, config.timer_max_delay_sec * 1000)
        return delay.kept(draft, own, self._clock.now_ms(), limits)

    def _put_retry(self, draft: Draft) -> Placed:
        """Store a message that a consumer gave back: after the delay of its level, or at once (a dead letter)."""
        own = properties.decode(draft.properties)
        if own.get(DELAY) == "0":
            delay.forget(own)
        kept = self._kept(draft, own)
        placed = self._store.put(kept)
        delay_queue = kept.queue_id if kept.topic == SCHEDULE_TOPIC else None
        group = draft.topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
        self._stats.sent_back(own.get(RETRY_TOPIC, draft.topic), group, delay_queue=delay_queue, size=placed.size)
        return placed

    def _count_delivered(self, due: Due, draft: Draft, size: int) -> None:
        if due.topic == SCHEDULE_TOPIC:
            self._stats.delivered_delayed(draft.topic, due.queue_id, 1, size)
        else:
            self._stats.sent(draft.topic, 1, size)

    def _delay_levels(self) -> dict[int, tuple[int, int]]:
        """Delay level: number of its next entry, and behind its last."""
        positions = self._store.delayed.level_positions()
        return {
            level: (number, self._store.max_offset(SCHEDULE_TOPIC, level - 1)) for level, number in positions.items()
        }

    # --- tables that survive a restart ---

    def _load_tables(self) -> None:
        config, now_ms = self.config, self._clock.now_ms
        load = functools.partial(documents.load, self._disk, config.config_dir)
        self._topics = Topics(load(documents.TOPICS, TopicTable), config, now_ms)
        groups = load(documents.GROUPS, SubscriptionGroupTable)
        self._groups = Groups(groups, auto_create=config.auto_create_subscription_group, now_ms=now_ms)
        self._offsets = ConsumerOffsets(load(documents.OFFSETS, ConsumerOffsetTable))
        self._members = Members()
        bloom = Bloom.sized(config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter)
        keep_ms = config.filter_data_clean_time_span
        self._filters = ConsumerFilters(load(documents.FILTERS, FilterTable), bloom, keep_ms=keep_ms, now_ms=now_ms)
        self._members.gone = self._filters.group_gone
        self._locks = QueueLocks(load(documents.LOCKS, LockTable), self._monotonic_ms())
        self._filter_servers = FilterServers()

    def _topics_changed(self) -> None:
        self._save_soon(documents.TOPICS)
        self._registration.soon()

    def _save_soon(self, name: str) -> None:
        """Topics and groups are saved at once, changes of one turn of the loop together."""
        if not self._unsaved:
            asyncio.get_running_loop().call_soon(self._start_saving)
        self._unsaved.add(name)

    def _start_saving(self) -> None:
        self._tasks.start(self._save_tables(), "save topics and groups")

    async def _save_delay_offsets(self) -> None:
        table = DelayOffsetTable(self._store.delayed.saved_level_positions())
        if table != self._saved_delays:
            save = functools.partial(documents.save, self._disk, self.config.config_dir, documents.DELAYS)
            await asyncio.get_running_loop().run_in_executor(self._thread, save, documents.text(table))
            self._saved_delays = table

    async def _save_tables(self) -> None:
        """Write what changed. The texts are made here, in the loop; the disk is waited for in the worker thread."""
        tables = {
            documents.TOPICS: self._topics.table,
            documents.GROUPS: self._groups.table,
            documents.OFFSETS: self._offsets.table,
            documents.FILTERS: self._filters.table,
            documents.LOCKS: self._locks.table,
        }
        pairs = (documents.LOCKS, self._locks), (documents.FILTERS, self._filters), (documents.OFFSETS, self._offsets)
        for name, state in pairs:
            if state.changed:
                state.changed = False
                self._unsaved.add(name)
        save = functools.partial(documents.save, self._disk, self.config.config_dir)
        for name in sorted(self._unsaved):
            text = documents.text(tables[name]())
            self._unsaved.discard(name)
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, save, name, text)
            except BaseException:  # cancelled, too: who saves last has to save it
                self._unsaved.add(name)
                raise

    async def _save_filters(self) -> None:
        self._filters.forget_dead()
        await self._save_tables()

    # --- statistics ---

    def _count(self) -> None:
        config, store = self.config, self._store
        self._boot_ms = self._clock.now_ms()
        self._stats = BrokerStats(
            config.broker_cluster_name,
            detail=config.enable_detail_stat,
            fall_recorded=config.disk_fall_recorded,
            drop_unused=config.auto_delete_unused_stats,
            now_ms=self._monotonic_ms,
        )
        protection = None
        if config.disable_consume_if_consumer_read_slowly:
            protection = Protection(config.consumer_fallbehind_threshold, self._groups.stop_consuming)
        journal = Journal(config.stats_dir)
        self._recorder = Recorder(self._stats, lambda: store.puts, journal, self._clock, protection)

    # --- members ---

    def _members_changed(self, group: str) -> None:
        """Tell the members of a consumer group to share its queues out again."""
        if not self.config.notify_consumer_ids_changed_enable:
            return
        header = fields(GroupRef(group))
        for peer_id in self._members.peers(group):
            try:
                self._server.one_way(peer_id, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
            except ConnectionLost as error:
                log.info("%s of group %s is not told of the change: %s", peer_id, group, error)

    def _lost(self, peer: Peer) -> None:
        self._filter_servers.lost(peer.id)
        for group in self._members.lost(peer.id):
            self._members_changed(group)

    async def _drop_silent_members(self) -> None:
        for peer_id in self._members.silent(self._monotonic_ms()):
            for group in self._members.lost(peer_id):
                self._members_changed(group)
            self._server.close_peer(peer_id)

    async def _forget_expired_locks(self) -> None:
        self._locks.forget_expired(self._monotonic_ms())

    def _monotonic_ms(self) -> float:
        return self._clock.monotonic() * 1000
