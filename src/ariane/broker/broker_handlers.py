"""The handler objects of one broker, each built with the few services that it uses.

`request_routing.routes` maps the request codes to their methods.
"""

from __future__ import annotations

from dataclasses import dataclass

from ariane.access.access_control import AccessControl
from ariane.access.public_ports import PortProtection
from ariane.audit.audit_requests import AuditHandler
from ariane.audit.server_audit_log import ServerAuditLog
from ariane.broker.collaborators import Durability
from ariane.broker.config.config_file import BrokerConfigFile
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.pop.delivery_clients import DeliveryClients
from ariane.broker.delivery.pop.parked_polls import ParkedPolls
from ariane.broker.delivery.pop.pop_service import PopService
from ariane.broker.delivery.post_store import PostStoreDispatcher
from ariane.broker.delivery.server_traces import ServerTraces
from ariane.broker.file_cleaner import FileCleaner
from ariane.broker.handlers.admin.acl_admin import AclAdminHandler
from ariane.broker.handlers.admin.broker_admin import BrokerAdminHandler
from ariane.broker.handlers.admin.client_sessions import ClientSessionHandler
from ariane.broker.handlers.admin.config_admin import ConfigAdminHandler
from ariane.broker.handlers.admin.consumer_admin import ConsumerAdminHandler
from ariane.broker.handlers.admin.file_expiry import FileExpiryHandler
from ariane.broker.handlers.admin.request_batch import RequestBatchHandler
from ariane.broker.handlers.admin.runtime_info import RuntimeInfoHandler
from ariane.broker.handlers.admin.statistics import StatisticsHandler
from ariane.broker.handlers.admin.topic_admin import TopicAdminHandler
from ariane.broker.handlers.admin.user_admin import UserAdminHandler
from ariane.broker.handlers.reading.assignments import AssignmentHandler
from ariane.broker.handlers.reading.in_flight_requests import InFlightHandler
from ariane.broker.handlers.reading.message_query import MessageQueryHandler
from ariane.broker.handlers.reading.offset_requests import OffsetHandler
from ariane.broker.handlers.reading.pop import PopHandler
from ariane.broker.handlers.reading.pull import PullHandler
from ariane.broker.handlers.reading.pull_filter import PullFilterBuilder
from ariane.broker.handlers.sending.end_transaction import TransactionHandler
from ariane.broker.handlers.sending.recall import RecallHandler
from ariane.broker.handlers.sending.reply_message import ReplyMessageHandler
from ariane.broker.handlers.sending.send import SendHandler
from ariane.broker.handlers.sending.send_back import SendBackHandler
from ariane.broker.handlers.sending.send_target import SendTargets
from ariane.broker.lifecycle.client_registry import ClientRegistry
from ariane.broker.lifecycle.flusher import Flusher
from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.lifecycle.registration import Registration
from ariane.broker.lifecycle.topic_deletion import TopicRemover
from ariane.broker.replication.membership import Membership
from ariane.broker.replication.replication import ReplicationFeed
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.broker.stats.stats_recorder import StatsRecorder
from ariane.broker.transactions.transaction_service import TransactionService
from ariane.clock import Clock
from ariane.net.server import RemotingServer
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.codes import RequestCode
from ariane.store.disk.files import Disk
from ariane.store.message_store import MessageStore


@dataclass(frozen=True, kw_only=True)
class BrokerServices:
    """The services of one broker, as `Broker` has started them."""

    settings: DynamicConfig  # current values; requests may change some of them
    addr: str
    """Public address, ip:port."""
    store_host: bytes
    """The same, packed as in records."""
    clock: Clock
    disk: Disk
    store: MessageStore
    state: PersistentState
    """Topics, groups, offsets, filters, locks."""
    stats: BrokerStats
    recorder: StatsRecorder  # samples the counters and the delay of the event loop
    dispatcher: PostStoreDispatcher  # wakes held pulls and slaves after each append
    flusher: Flusher  # makes appended records durable
    feed: ReplicationFeed
    transactions: TransactionService  # half messages and their decisions
    traces: ServerTraces  # of clients that write none
    cleaner: FileCleaner  # removes old files; tools can start it
    remover: TopicRemover  # deletes topics with their messages and offsets
    clients: ClientRegistry  # connected clients and the members of groups
    server: RemotingServer
    """Reaches connected clients."""
    registration: Registration
    access: AccessControl | None
    """None if access control is disabled."""
    audit: ServerAuditLog | None
    """None if the audit log is off."""
    protection: PortProtection  # of the ports towards other machines
    config_file: BrokerConfigFile | None
    """None if the broker was started without one."""
    tasks: BackgroundTasks  # for work that outlives its request
    membership: Membership | None = None
    """None without failover."""

    @property
    def durability(self) -> Durability:
        """What requests wait for whose records must not be lost."""
        return self.feed if self.membership is not None and self.membership.epoch else self.flusher


class BrokerHandlers:
    """One handler object per group of request codes."""

    def __init__(self, services: BrokerServices) -> None:
        self._build_message_handlers(services)
        self._build_client_handlers(services)
        self._build_admin_handlers(services)
        if services.membership is not None and services.membership.epoch:
            services.state.offsets.end_of = services.store.max_offset
            services.membership.offsets = services.state.offsets

    def _build_message_handlers(self, services: BrokerServices) -> None:
        settings, config, state = services.settings, services.settings.current, services.state
        store, dispatcher, clock = services.store, services.dispatcher, services.clock
        targets = SendTargets(settings=settings, topics=state.topics, groups=state.groups, clock=clock)
        self.recall = RecallHandler(store=store, deliveries=dispatcher.deliveries, durability=services.durability)
        self.send = SendHandler(
            settings=settings,
            targets=targets,
            store=store,
            store_host=services.store_host,
            delays=dispatcher,
            durability=services.flusher,
            transactions=services.transactions,
            recalls=self.recall,
            stats=services.stats,
            slaves=services.feed if config.broker_role == "SYNC_MASTER" else None,
        )
        self.send_back = SendBackHandler(
            settings=settings,
            topics=state.topics,
            groups=state.groups,
            store=store,
            returned=dispatcher,
            durability=services.durability,
        )
        self.reply_message = ReplyMessageHandler(
            settings=settings,
            targets=targets,
            members=services.clients.members,
            clients=services.server,
            store=store,
            store_host=services.store_host,
            listener=dispatcher,
            clock=clock,
        )
        self.transactions = TransactionHandler(
            transactions=services.transactions, durability=services.durability, is_slave=config.is_slave
        )
        self.pull_filters = PullFilterBuilder(
            settings=settings,
            topics=state.topics,
            groups=state.groups,
            members=services.clients.members,
            filters=state.filters,
        )
        self.pull = PullHandler(
            settings=settings,
            filters=self.pull_filters,
            groups=state.groups,
            offsets=state.offsets,
            store=store,
            store_host=services.store_host,
            waiters=dispatcher.pull_waiters,
            listener=dispatcher,
            stats=services.stats,
            clock=clock,
        )
        state.offsets.on_commit = services.traces.remoting.committed
        self.message_query = MessageQueryHandler(config=config, store=store)
        taken = PopService(store=store, offsets=state.offsets, table=state.pop, record=state.record_pop)
        delivery_clients = DeliveryClients()
        self.pop = PopHandler(
            settings=settings,
            filters=self.pull_filters,
            topics=state.topics,
            store=store,
            service=taken,
            polls=ParkedPolls(store=store, waiters=dispatcher.pull_waiters, clock=clock, due_ms=taken.due_ms),
            clients=delivery_clients,
            durability=state,
            stats=services.stats,
            clock=clock,
        )
        self.in_flight = InFlightHandler(
            table=state.pop, members=services.clients.members, clients=delivery_clients, store=store
        )

    def _build_client_handlers(self, services: BrokerServices) -> None:
        state = services.state
        self.offsets = OffsetHandler(offsets=state.offsets, topics=state.topics, store=services.store)
        self.client_sessions = ClientSessionHandler(
            settings=services.settings,
            topics=state.topics,
            groups=state.groups,
            clients=services.clients,
            filters=state.filters,
            locks=state.locks,
            lock_durability=state,
            quotas=services.server.limits.quotas,
            clock=services.clock,
        )
        self.assignments = AssignmentHandler(
            settings=services.settings,
            topics=state.topics,
            groups=state.groups,
            members=services.clients.members,
            modes=state.request_modes,
            route=services.registration.route,
            record=state.record,
        )
        self.consumer_admin = ConsumerAdminHandler(
            broker_name=services.settings.current.broker_name,
            topics=state.topics,
            members=services.clients.members,
            offsets=state.offsets,
            store=services.store,
            clients=services.server,
        )

    def _build_admin_handlers(self, services: BrokerServices) -> None:
        settings, config, state = services.settings, services.settings.current, services.state
        store, stats, clock = services.store, services.stats, services.clock
        self.topic_admin = TopicAdminHandler(
            config=config,
            state=state,
            remover=services.remover,
            registration=services.registration,
            stats=stats,
        )
        self.statistics = StatisticsHandler(
            config=config,
            addr=services.addr,
            topics=state.topics,
            groups=state.groups,
            members=services.clients.members,
            pop=state.pop,
            offsets=state.offsets,
            store=store,
            stats=stats,
            clock=clock,
        )
        self.request_batch = RequestBatchHandler(
            {
                RequestCode.QUERY_CONSUMER_OFFSET: self.offsets.query_consumer_offset,
                RequestCode.GET_TOPIC_STATS_INFO: self.statistics.topic_stats,
                RequestCode.GET_CONSUMER_CONNECTION_LIST: self.client_sessions.consumer_connections,
                RequestCode.QUERY_CONSUME_TIME_SPAN: self.statistics.time_spans,
                RequestCode.VIEW_BROKER_STATS_DATA: self.statistics.view,
            },
            clock,
        )
        self.runtime_info = RuntimeInfoHandler(
            settings=settings,
            store=store,
            dispatcher=services.dispatcher,
            disk=services.disk,
            stats=stats,
            recorder=services.recorder,
            dropped_entries=state.dropped_entries,
            protection=services.protection,
            exceeded_limits=services.server.limits.quotas.exceeded,
            audit=services.audit,
            registration=services.registration,
            membership=services.membership,
            clock=clock,
        )
        self.broker_admin = BrokerAdminHandler(
            settings=settings,
            topics=state.topics,
            offsets=state.offsets,
            clients=services.clients,
            store=store,
            remover=services.remover,
            clock=clock,
        )
        self.file_expiry = FileExpiryHandler(cleaner=services.cleaner)
        self.config_admin = ConfigAdminHandler(
            settings=settings,
            config_file=services.config_file,
            topics=state.topics,
            groups=state.groups,
            store=store,
            limits=services.server.limits,
            registration=services.registration,
            tasks=services.tasks,
            clock=clock,
        )
        self.audit = AuditHandler(services.audit, is_protected=services.access is not None)
        files = services.access if config.acl_enable else None
        self.acl_admin = AclAdminHandler(config=config, addr=services.addr, access=files)
        self.user_admin = UserAdminHandler(services.access if config.authentication_enabled else None)
