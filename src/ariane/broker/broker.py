"""Wiring of the broker: builds its services, connects them, and starts and stops them.

    async with Broker(config) as broker:
        ... broker.addr serves until the block ends

Start: ports, store (with recovery), state of config/*.json, handlers (`broker_handlers`, `request_routing`), name servers. Stop:
the reverse order, so that acknowledged messages are on the disk before the store closes. [BrokerController]
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import msgspec

from ariane.access import public_ports
from ariane.access.access_control import POLL_INTERVAL_S
from ariane.access.own_account import own_credentials
from ariane.audit.server_audit_log import DRAIN_INTERVAL_S, open_audit_log
from ariane.broker import request_routing
from ariane.broker.access.broker_accounts import guard, open_access_control, signs
from ariane.broker.broker_handlers import BrokerHandlers, BrokerServices
from ariane.broker.config.broker_config import BrokerConfig, to_store_config
from ariane.broker.config.config_file import BrokerConfigFile
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.post_store import PostStoreDispatcher
from ariane.broker.delivery.server_traces import FLUSH_S, ServerTraces
from ariane.broker.file_cleaner import CHECK_INTERVAL_S, FIRST_CHECK_S, FIRST_RUN_S, FileCleaner
from ariane.broker.lifecycle.client_registry import ClientRegistry
from ariane.broker.lifecycle.flusher import Flusher
from ariane.broker.lifecycle.grpc_port import create_proxy
from ariane.broker.lifecycle.persistent_state import PersistentState, load_delay_offsets
from ariane.broker.lifecycle.ports import VIP_EXCLUDED_CODES, bind_ports, check_gaps, find_gaps, warn_of_plain_slaves
from ariane.broker.lifecycle.registration import Registration
from ariane.broker.lifecycle.revive_log import resume_deliveries
from ariane.broker.lifecycle.topic_deletion import TopicRemover
from ariane.broker.lifecycle.write_protection import DELAYED_CODES, EXEMPT_CODES, WriteProtection, set_limits
from ariane.broker.replication import slave_sync
from ariane.broker.replication.awaited_changes import with_replicated_replies
from ariane.broker.replication.confirmed_reads import ConfirmedReads
from ariane.broker.replication.following import MasterLink, follow_leader
from ariane.broker.replication.local_member import LocalMember, prepare_epochs
from ariane.broker.replication.membership import Membership, ha_addr, refuse_member_request
from ariane.broker.replication.replication import COLLECT_INTERVAL_S, UPDATE_INTERVAL_S, ReplicationFeed
from ariane.broker.replication.returning_slaves import start_registration
from ariane.broker.state.loading.lost_configuration import refuse_loss, restore_topics
from ariane.broker.state.loading.saved_state import SavedState
from ariane.broker.state.topic_registry import builtin_topics
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.broker.stats.stats_journal import StatsLogFile
from ariane.broker.stats.stats_recorder import StatsRecorder
from ariane.broker.transactions.producer_selection import ProducerSelector
from ariane.broker.transactions.transaction_check import TransactionChecker
from ariane.broker.transactions.transaction_service import TransactionService
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.kernels import implementation
from ariane.model import host
from ariane.net.connection import Handler
from ariane.net.interfaces import ip_of_server, reachable_ip
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.listening.server_tls import WATCH_INTERVAL_S, ServerTls
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.replies import TurnHandler
from ariane.net.streams import Stream
from ariane.net.tasks import BackgroundTasks, run_blocking
from ariane.protocol import signing
from ariane.protocol.codes import RequestCode
from ariane.proxy.proxy_server import ProxyServer
from ariane.store.disk.files import Disk, SystemDisk
from ariane.store.log.deletions import Deletions
from ariane.store.message_store import open_store

log = logging.getLogger("ariane.broker")

MEMBER_SCAN_S = 10.0
LOCK_SCAN_S = 60.0
FILTER_SAVE_S = 10.0
BACKLOG_CHECK_S = 0.1
IDLE_FILES_S = 60.0  # a file that was not used in this time is closed


class Broker:
    """One broker. `addr` is its public address once it has started."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        config_file: str | None = None,
        disk: Disk | None = None,
        clock: Clock = SYSTEM_CLOCK,
        accept_empty_log: bool = False,
        restore_topics: bool = False,
        membership: Membership | None = None,
    ) -> None:
        """Create a broker; it starts with `async with`.

        Args:
            config: The settings.
            config_file: The file that `config` was read from. Settings changed by tools are stored in it.
            disk: The file system, replaced by tests.
            clock: Wall and monotonic clock, replaced by tests.
            accept_empty_log: Start even if the commit log, or its end, is missing.
            restore_topics: Create topics that have messages and are not in the configuration, which was lost.
            membership: Its role in a set with failover (`broker.failover`).

        Raises:
            ConfigError: a setting is invalid.
        """
        self._accept_empty_log = accept_empty_log
        self._restore_topics = restore_topics
        self._membership = membership  # None: without failover
        # Current values; requests may change some of them.
        self._settings = DynamicConfig(config.validate(), clock.now_ms())
        self._config_file = config_file
        self.addr = ""
        self.proxy: ProxyServer | None = None  # None if the gRPC port is not served
        self._disk = disk or SystemDisk()
        self._clock = clock
        # Periodic work, cancelled at the stop before the services that it uses.
        self._tasks = BackgroundTasks("broker", clock=clock)
        # Blocking work on the disk: flushes of the log, removals, configuration files.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ariane-disk")
        # Two threads, so that the fsync of a change does not wait for a large document.
        self._state_thread = ThreadPoolExecutor(max_workers=2, thread_name_prefix="ariane-state")
        # Flushes consume queues, which must not delay those of the log.
        self._derived_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ariane-derived")
        self._open = contextlib.AsyncExitStack()  # what a stop has to close, in reverse order of the start
        # Exists before the server, which reports lost connections to it.
        self._clients = ClientRegistry(settings=self._settings, clock=clock)

    @property
    def config(self) -> BrokerConfig:
        """Return the settings in force."""
        return self._settings.current

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._open.aclose()
            self._shut_down_threads()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            await self._open.aclose()
        finally:
            self._shut_down_threads()

    def _shut_down_threads(self) -> None:
        self._thread.shutdown()
        self._derived_thread.shutdown()
        self._state_thread.shutdown()

    async def reload(self) -> None:
        """Read certificates and access control files again, at once."""
        await self.tls.reload()
        if self._access:
            await self._access.reload_if_changed()

    async def _start(self) -> None:
        config = self.config
        self._gaps = find_gaps(config)
        check_gaps(config, self._gaps)
        name, directory = f"{config.broker_name}:{config.broker_id}", Path(config.store_path_root_dir) / "audit"
        self._audit = open_audit_log(config, config.has_accounts, directory, name, self._clock)
        if self._audit:
            self._open.push_async_callback(self._audit.close)
        handlers: dict[int, Handler] = {}
        vip_handlers: dict[int, Handler] = {}
        self.tls = ServerTls(config.server_tls())
        self.tls.load()
        client_tls, credentials = config.client_tls(), own_credentials(config)
        self._server, self._ha_server = await bind_ports(
            config,
            handlers,
            vip_handlers,
            self._clients.on_connection_lost,
            self._serve_slave,
            ServerLimits(exempt=EXEMPT_CODES, delayed=DELAYED_CODES),
            self.tls,
        )
        self._clients.server = self._server
        if self._membership and self._membership.epoch:
            self._server.limits.may_answer = self._membership.may_answer
        set_limits(self._server.limits, config)
        self._open.push_async_callback(self._server.__aexit__, None, None, None)
        self._open.push_async_callback(self._ha_server.__aexit__, None, None, None)
        ip = config.broker_ip1 or reachable_ip(config.bind_address)
        self.addr = f"{ip}:{self._server.port}"
        store_host = host.pack(ip_of_server(ip, config.bind_address), self._server.port)
        await run_blocking(lambda: self._open_store(store_host), in_thread=self._membership is not None)
        self._build_services(store_host)
        sign = signs(config) if credentials is None else functools.partial(signing.sign, credentials)
        peers = await self._open.enter_async_context(ConnectionPool(tls=client_tls, sign=sign))
        # Forwards requests of clients: with the broker's account they could do more than their senders may.
        self._forwards = await self._open.enter_async_context(ConnectionPool(tls=client_tls))
        self._open.push_async_callback(self._tasks.close)
        self._registration = Registration(
            settings=self._settings,
            addr=self.addr,
            ha_addr=f"{config.broker_ip2 or ip}:{self._ha_server.port}",
            topics=self._state.topics,
            peers=peers,
            tasks=self._tasks,
            now_ms=self._clock.now_ms,
            filter_servers=lambda: self._clients.filter_servers.addresses(self._monotonic_ms()),
        )
        handlers.update(self._traces.remoting.with_records(served := self._handlers(store_host, peers)))
        self._server.turns = self._turns()
        vip_handlers.update({code: handler for code, handler in handlers.items() if code not in VIP_EXCLUDED_CODES})
        await self._server.__aenter__()
        await self._ha_server.__aenter__()
        if config.grpc_server_enable:
            self.proxy = await self._open.enter_async_context(
                create_proxy(self.services, served, self._reads.guard_acks(self.handlers.pop.ack_all))
            )
        self._start_tasks()
        if not config.is_slave:
            self._start_masters_tasks()
        if self._membership is None:
            end = self._store.commit_log_max
            await start_registration(config, self._registration, self._feed, self._tasks, end)
        self._open.push_async_callback(self._leave_name_servers)
        if self._member.following is not None:
            slave_sync.start(
                config,
                self._registration,
                self._tasks,
                self._copier(peers),
                self._member.following,
                self._dispatcher.on_stored,
                credentials,
                self._membership,
            )
        facts = config.broker_name, self.addr, config.store_path_root_dir, implementation.selected().description
        log.info("Broker %s listens on %s, store %s, kernels: %s", *facts)
        warn_of_plain_slaves(config, self._ha_server.port)
        public_ports.warn_of_gaps(log, self._gaps, "Broker", self._server.port)

    def register(self) -> None:
        """Register with the name servers, and periodically from now on: with failover once the role is certain."""
        assert self._membership is not None
        self._registration.epoch = self._membership.epoch or self._member.epochs.promised
        if self._membership.epoch:
            self._registration.may_register = self._membership.may_answer
        self._tasks.start(self._registration.start(), "register with the name servers")

    def follow(self, addr: str) -> asyncio.Task[None]:
        """Follow the leader at `addr`; ends when it is cancelled, or with the broker."""
        following, config = self._member.following, self.config
        assert following is not None
        proof = own_credentials(config) if config.ha_acl_enable else None
        link = MasterLink(config.replication_context(), proof, has_members=True)
        work = follow_leader(config, following, ha_addr(addr), self._dispatcher.on_stored, link)
        return self._tasks.start(work, f"follow {addr}")

    async def _leave_name_servers(self) -> None:
        if self._membership is not None and self._membership.is_switching:
            self._registration.abandon()  # it registers again in its next role, which replaces this one
        else:
            await self._registration.unregister()

    def _copier(self, peers: ConnectionPool) -> slave_sync.TableCopier:
        return slave_sync.TableCopier(peers=peers, state=self._state, remover=self._remover, member=self._member)

    def _open_store(self, store_host: bytes) -> None:
        config, now_ms, membership = self.config, self._clock.now_ms, self._membership
        root, saved = config.store_path_root_dir, SavedState(self._disk, config.config_dir)

        def load() -> Deletions:  # once the directory is locked
            refuse_loss(self._disk, root, builtin_topics(config), restores=self._restore_topics)
            prepare_epochs(self._disk, root, membership)
            return saved.load()

        accepts, repairs = self._accept_empty_log, membership is None or membership.repairs_loss
        self._store = open_store(
            msgspec.structs.replace(to_store_config(config), accept_empty_log=accepts, repairs_loss=repairs),
            self._disk,
            now_ms=now_ms,
            store_host=store_host,
            delay_positions=load_delay_offsets(self._disk, config),
            deletions=load,
        )
        self._open.callback(self._store.close)
        self._member = LocalMember(config, self._disk, self._store, membership)
        self._open.callback(self._member.close_store)
        self._state = PersistentState(
            config, self._disk, saved, self._state_thread, now_ms, self._monotonic_ms, self._server.limits.quotas
        )
        self._open.push_async_callback(self._state.close)
        if self._restore_topics:
            restore_topics(self._store.topics(), self._state.topics, self._state.groups)
        self._clients.members.on_group_empty = self._state.filters.mark_group_dead

    def _build_services(self, store_host: bytes) -> None:
        config, store, now_ms = self.config, self._store, self._clock.now_ms
        self._build_statistics()
        self._remover = TopicRemover(tables=self._state, store=store, stats=self._stats)
        self._access = open_access_control(config, self._disk, self._thread, now_ms)
        self._server.limits.audit = self._state.creations.audit = self._audit
        if self._audit and self._access:
            self._audit.identification, self._access.audit = self._access, self._audit
        self._protection = WriteProtection(settings=self._settings, store=store, clock=self._clock)
        epochs, membership = self._member.epochs, self._membership
        self._feed = ReplicationFeed(
            config, store, self._access, epochs=epochs, membership=membership, clock=self._clock
        )
        self._feed.refuse_if_short()
        self._member.connect_state(self._state, self._remover, self._feed, self._monotonic_ms)
        self._reads = ConfirmedReads(store)
        self._dispatcher = PostStoreDispatcher(
            settings=self._settings, store=store, stats=self._stats, feed=self._feed, clock=self._clock
        )
        self._feed.on_confirmed = self._dispatcher.on_flushed
        self._flusher = Flusher(
            store=store,
            executor=self._thread,
            derived_executor=self._derived_thread,
            listener=self._dispatcher,
            sync_timeout_s=config.sync_flush_timeout / 1000 if config.sync_flush else None,
        )
        if config.sync_flush:
            self._dispatcher.flush_before_dispatch(self._flusher)
            self._member.flush_before_acknowledging(self._flusher)
        self._transactions = TransactionService(
            store=store,
            topics=self._state.topics,
            offsets=self._state.offsets,
            store_host=store_host,
            flusher=self._flusher,
            listener=self._dispatcher,
            clock=self._clock,
        )
        self._open.callback(self._transactions.close)
        self._traces = ServerTraces(
            settings=self._settings, store=store, dispatcher=self._dispatcher, addr=self.addr, clock=self._clock
        )
        self._open.push_async_callback(self._traces.close)
        self._cleaner = FileCleaner(
            config=config,
            store=store,
            disk=self._disk,
            flusher=self._flusher,
            executor=self._thread,
            on_stored=self._dispatcher.on_stored,
            now_ms=now_ms,
            reject_writes=not config.is_slave,
        )
        if not config.is_slave:
            resume_deliveries(store, self._state)
            self._open.push_async_callback(self._save_delays_at_last)

    def _build_statistics(self) -> None:
        config, store = self.config, self._store
        self._stats = BrokerStats(
            config.broker_cluster_name,
            detail=config.enable_detail_stat,
            fall_recorded=config.disk_fall_recorded,
            drop_unused=config.auto_delete_unused_stats,
            now_ms=self._monotonic_ms,
        )
        is_limited = config.disable_consume_if_consumer_read_slowly
        self._recorder = StatsRecorder(
            self._stats,
            lambda: store.puts,
            StatsLogFile(config.stats_dir),
            self._clock,
            fallbehind_max=config.consumer_fallbehind_threshold if is_limited else None,
            groups=self._state.groups,
        )

    def _handlers(self, store_host: bytes, peers: ConnectionPool) -> dict[int, Handler]:
        path, disk = self._config_file, self._disk
        config_file = BrokerConfigFile(disk=disk, path=path, executor=self._thread) if path else None
        self.services = services = BrokerServices(
            settings=self._settings,
            addr=self.addr,
            store_host=store_host,
            clock=self._clock,
            disk=self._disk,
            store=self._store,
            state=self._state,
            stats=self._stats,
            recorder=self._recorder,
            dispatcher=self._dispatcher,
            flusher=self._flusher,
            feed=self._feed,
            transactions=self._transactions,
            traces=self._traces,
            cleaner=self._cleaner,
            remover=self._remover,
            clients=self._clients,
            server=self._server,
            registration=self._registration,
            access=self._access,
            audit=self._audit,
            protection=public_ports.PortProtection(self.tls, self._gaps),
            config_file=config_file,
            tasks=self._tasks,
            membership=self._membership,
        )
        self.handlers = BrokerHandlers(services)
        table = self._state.creations.with_clients(request_routing.routes(self.handlers))
        if self.config.sync_flush:
            table = self._state.with_durable_replies(table)
        table = with_replicated_replies(table, self._feed.wait_changed)
        table = self._reads.with_checks(self._protection.with_checks(table))
        if self.config.is_slave:
            table.update(slave_sync.reject_handlers())
            delete = slave_sync.delete_topic_handler(self._registration, self._copier(peers), self._forwards)
            table[RequestCode.DELETE_TOPIC_IN_BROKER] = delete
        table[RequestCode.MEMBER_REQUEST] = self._membership.answer if self._membership else refuse_member_request
        if self._audit:
            table = self._audit.with_records(table)
        return guard(self.config, self._access, table, self._store.read_record, self._server.limits.quotas)

    def _turns(self) -> dict[int, TurnHandler]:
        """Return the fast paths of sends and pulls by code; none of a slave, which refuses each request."""
        parts = self.services, self.handlers, self._protection, self._reads
        return {} if self.config.is_slave else request_routing.turns(*parts)

    def _start_tasks(self) -> None:
        config, every, tables = self.config, self._tasks.repeat, self._state
        if config.sync_flush:
            self._tasks.start(self._flusher.run_group_commit(), "flush the commit log for waiting requests")
        else:
            every(config.flush_interval_commit_log / 1000, self._flusher.flush_once, "flush the commit log")
        derived_s = config.flush_interval_consume_queue / 1000
        every(derived_s, self._flusher.flush_derived_periodically, "flush the derived files")
        every(config.flush_interval_commit_log / 1000, tables.flush, "flush the change log")
        every(config.flush_consumer_offset_interval / 1000, tables.save, "save the consumer offsets")
        every(FILTER_SAVE_S, tables.save_filters, "save the filters")
        clean_s = config.clean_resource_interval / 1000
        drop_obsolete = lambda: tables.drop_obsolete_deletions(self._store.commit_log_min)  # noqa: E731
        every(clean_s, drop_obsolete, "drop obsolete deletions")
        every(clean_s, self._cleaner.run, "remove old files", first_s=FIRST_RUN_S)
        every(IDLE_FILES_S, self._close_idle_files, "close idle files")
        every(UPDATE_INTERVAL_S, self._feed.update_in_sync_set, "update the in-sync set")
        every(CHECK_INTERVAL_S, self._cleaner.check_disk_space, "watch the disk", first_s=FIRST_CHECK_S)
        every(BACKLOG_CHECK_S, self._protection.update_backlog, "measure the unflushed log")
        if self._access:
            every(POLL_INTERVAL_S, self._access.reload_if_changed, "reload changed access control files")
        if self._audit:
            every(DRAIN_INTERVAL_S, self._audit.record_due_counts, "record counts of refused requests")
        if self.tls.has_files:
            every(WATCH_INTERVAL_S, self.tls.reload_if_changed, "reload changed certificates")
        every(MEMBER_SCAN_S, self._clients.evict_idle, "evict idle clients")
        self._tasks.start(self._recorder.run(), "record statistics")
        tables.start(self._tasks, self._registration.register_soon)

    def _start_masters_tasks(self) -> None:
        """Start what slaves leave to their master: deliveries, checks of transactions, and the end of locks."""
        config, every = self.config, self._tasks.repeat
        every(COLLECT_INTERVAL_S, self._feed.collect_offsets, "send committed offsets to members")
        every(LOCK_SCAN_S, self._state.remove_expired_locks, "remove expired queue locks")
        every(config.flush_delay_offset_interval / 1000, self._save_delays, "save the positions of delay levels")
        self._tasks.start(self._dispatcher.deliveries.run(), "deliver due messages")
        check_back = TransactionChecker(
            self._transactions,
            ProducerSelector(self._clients.members, self._server),
            timeout_ms=config.transaction_time_out,
            checks_max=config.transaction_check_max,
            durability=self.services.durability,
            clock=self._clock,
        )
        every(FLUSH_S, self._traces.flush, "write message traces")
        self._tasks.start(self._transactions.rebuild(), "rebuild the open transactions")
        every(config.transaction_check_interval / 1000, check_back.check_all, "check open transactions")

    async def _close_idle_files(self) -> None:
        for _ in self._store.close_idle_files():
            await asyncio.sleep(0)

    async def _save_delays(self) -> None:
        await self._state.save_delay_offsets(self._store.delayed.saved_level_positions())

    async def _save_delays_at_last(self) -> None:
        """Save the delay offsets after the last delivery.

        A Java broker that opens this store reads deliveries from that file only.
        """
        await self._flusher.flush_once()
        await self._flusher.flush_derived()
        await self._save_delays()

    async def _serve_slave(self, stream: Stream) -> None:
        await self._feed.serve(stream)  # created after the port was bound

    def _monotonic_ms(self) -> float:
        return self._clock.monotonic() * 1000
