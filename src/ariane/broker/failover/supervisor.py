"""A broker of a set with failover: opens one Broker object after the other, in the role that the record gives this member.

    agent ──► promote       close the slave's Broker ─► open a master's, whose epoch is stored before its first record
          ──► resume        answers are written, the name servers learn of the master
          ──► end_epoch     answer held pulls, reset the connections ─► open a slave's Broker
          ──► follow        connect to the holder ─► the same log: copy on
                                                  ─► another one: close, cut at the last common record, open again

The agent, the identity of the member and the address stay. Each Broker object has one role and one epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import time
from collections.abc import Collection
from typing import Self

import msgspec

from ariane.access.own_account import own_credentials
from ariane.broker.broker import Broker
from ariane.broker.broker_handlers import BrokerHandlers, BrokerServices
from ariane.broker.config.broker_config import BrokerConfig, to_store_config
from ariane.broker.failover.cut_retention import ROUND_S, CutRetention
from ariane.broker.failover.disk_probe import DiskProbe
from ariane.broker.failover.failover_settings import (
    check_settings,
    lease_times,
    members_of,
    open_coordination,
    probe_interval_s,
    role_config,
)
from ariane.broker.failover.hand_over import LeaseHandOver
from ariane.broker.failover.incarnation import Incarnation
from ariane.broker.failover.member_cut import cut_member, empty_member
from ariane.broker.failover.member_requests import MemberRequests, to_member_end
from ariane.broker.failover.set_record import create_set
from ariane.broker.failover.waiting import RETRY_S, SystemBootClock, retried
from ariane.broker.replication.member_identity import log_is_empty, open_identity, read_boot_id
from ariane.broker.replication.membership import Membership
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ArianeError, CoordinationUnavailable, StoreError
from ariane.failover import decisions
from ariane.failover.agent import FailoverAgent
from ariane.failover.coordination import Coordination
from ariane.failover.leader_record import InSyncMember, LeaderRecord
from ariane.failover.member_state import (
    LEADING,
    NEVER,
    HigherEpoch,
    MemberEnd,
    MemberRole,
    MemberState,
    TimePassed,
)
from ariane.net.listening.server_tls import ServerTls
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import signing
from ariane.store.disk.files import Disk, SystemDisk
from ariane.store.log.epochs import EpochHistory, open_epochs
from ariane.store.recovery.store_directory import is_running_or_crashed

log = logging.getLogger("ariane.broker.failover.supervisor")

PARTING_S = 0.05  # for the answers to held pulls: a consumer of Java would wait 30 s for them
REGISTRATIONS_S = (
    1.0,
    3.0,
    10.0,
)  # a new master registers again then: at a Java name server a late registration of the former one may have won
ROOM_CHECK_S = 1.0  # between two looks at the room on the disk of a master
REOPEN_S = 5.0  # after the store of a follower failed: what the disk lost is unknown, and it may work again


class FailoverBroker:
    """One member of a broker set; an asynchronous context manager. `addr` is its address in all roles."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        config_file: str | None = None,
        disk: Disk | None = None,
        clock: Clock = SYSTEM_CLOCK,
        accept_empty_log: bool = False,
        restore_topics: bool = False,
        creates_set: bool = False,
        coordination: Coordination | None = None,
    ) -> None:
        """Create a member; it starts with `async with`.

        Args:
            config: The settings; `failover_endpoints` is set.
            config_file: As of `Broker`.
            disk: The file system, replaced by tests.
            clock: Wall and monotonic clock, replaced by tests. Leases are measured by CLOCK_BOOTTIME.
            accept_empty_log: As of `Broker`.
            restore_topics: As of `Broker`.
            creates_set: Store the first record of the set, with this member alone, unless there is one.
            coordination: The coordination service; None: that of the settings.

        Raises:
            ConfigError: a setting is invalid.
        """
        check_settings(config)
        self.config = config.validate()
        self.addr = ""
        self._config_file = config_file
        self._disk = disk or SystemDisk()
        self._clock = clock
        self._accept_empty_log, self._restore_topics = accept_empty_log, restore_topics
        self._creates_set = creates_set
        self._service = coordination or open_coordination(config)
        self._boot_clock = SystemBootClock()
        self._members = members_of(config)
        self._broker: Broker | None = None  # None while the next one is opened
        self._membership: Membership | None = None  # of that broker
        self._switch = asyncio.Lock()  # one change of the Broker at a time
        self._following: asyncio.Task[None] | None = None  # of a slave's Broker
        self._tasks = BackgroundTasks("failover", clock=clock)
        self._open = contextlib.AsyncExitStack()
        self._is_stopping = False

    # --- what a Broker has ---

    @property
    def broker(self) -> Broker:
        """Return the Broker of the current role.

        Raises:
            StoreError: the role changes at the moment.
        """
        if self._broker is None:
            raise StoreError("this broker changes its role: try again")
        return self._broker

    @property
    def open_broker(self) -> Broker | None:
        """Return the Broker of the current role; None while the next one is opened."""
        return self._broker

    @property
    def tls(self) -> ServerTls:
        return self.broker.tls

    @property
    def services(self) -> BrokerServices:
        return self.broker.services

    @property
    def handlers(self) -> BrokerHandlers:
        return self.broker.handlers

    @property
    def has_room(self) -> bool:
        """Return whether the disk takes messages."""
        return not self._probe.is_full

    @property
    def is_leader(self) -> bool:
        """Return whether this member may answer as the master of the set."""
        membership = self._membership
        return membership is not None and membership.epoch > 0 and membership.may_answer()

    async def reload(self) -> None:
        """Read certificates and access control files again."""
        if self._broker is not None:
            await self._broker.reload()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._is_stopping = True
        try:
            if hasattr(self, "_hand_over"):
                await self._hand_over.release_at_stop()
        finally:
            await self._open.aclose()

    async def _start(self) -> None:
        config, root = self.config, self.config.store_path_root_dir
        credentials = own_credentials(config)
        sign = None if credentials is None else lambda fields, body: signing.sign(credentials, fields, body)
        peers = await self._open.enter_async_context(ConnectionPool(tls=config.client_tls(), sign=sign))
        self._open.push_async_callback(self._service.close)
        times = lease_times(config)
        self._requests = MemberRequests(peers, config.member_name, self._members, times.attempt_s)
        log_directory = to_store_config(config).log_directory
        epochs = open_epochs(self._disk, root)
        # Without records and without epochs, nothing was ever stored here: nothing can be missing.
        is_new = log_is_empty(self._disk, log_directory) and bool(epochs.epochs)
        identity = open_identity(
            self._disk, root, config.member_name, boot_id=read_boot_id(),
            log_end=0 if is_new else 1, flushes=config.sync_flush,
        )  # fmt: skip
        now = self._boot_clock.boottime()
        state = MemberState(
            me=identity.member, nonce=secrets.token_hex(8), times=times, started_at=now,
            epoch=epochs.promised, epoch_at=now,
        )  # fmt: skip
        self.agent = FailoverAgent(state, service=self._service, replica=self, clock=self._boot_clock)
        self._incarnation = Incarnation(identity, self.agent, self._tasks)
        self._hand_over = LeaseHandOver(self, self.agent, self._tasks)
        self._probe = DiskProbe(
            self._disk, (root, log_directory), interval_s=probe_interval_s(config),
            full_above=config.disk_space_warning_level_ratio, now=self._boot_clock.boottime,
        )  # fmt: skip
        self._open.push_async_callback(self._close_broker, is_final=True)
        async with self._switch:
            await self._incarnation.check_log(role_config(config, leads=False), self._disk, epochs)
            await self._open_broker(0)
        self._probe.start()
        self._open.callback(self._probe.stop)
        if self._creates_set:
            token, promised = f"{state.nonce}.first", epochs.promised
            await create_set(self._service, decisions.first_record([self.agent.state.me], token, epoch=promised))
        self._open.push_async_callback(self._tasks.close)
        self._tasks.start(self._run_agent(), "run the agent")
        retention = CutRetention(config, self._disk, self._clock.now_ms)
        self._tasks.repeat(ROUND_S, retention.run, "remove old files of cut")
        self._tasks.repeat(ROOM_CHECK_S, self._hand_over.leave_full_disk, "hand over while the disk is full")

    async def _run_agent(self) -> None:
        try:
            await self.agent.run()
        finally:
            if not self._is_stopping:
                log.critical("The failover agent has ended, and nothing would end this state: stopping the broker")
                signal.raise_signal(signal.SIGTERM)

    # --- brokers ---

    async def _open_broker(self, epoch: int) -> None:
        """Open the Broker of a role: a master of `epoch`, or with 0 a slave. The caller has the lock."""
        membership = Membership(
            identity=self._incarnation.identity,
            epoch=epoch,
            agent=self.agent,
            supervisor=self,
            addresses=self._members,
            clock=self._boot_clock,
        )
        broker = Broker(
            role_config(self.config, leads=epoch > 0),
            config_file=self._config_file,
            disk=self._disk,
            clock=self._clock,
            accept_empty_log=self._accept_empty_log,
            restore_topics=self._restore_topics,
            membership=membership,
        )
        started = time.monotonic()
        try:
            await broker.__aenter__()
        except (StoreError, OSError) as error:
            if self._incarnation.check_start(error) and not epoch:
                await self._open_broker(0)
                return
            raise
        self._broker, self._membership, self.addr = broker, membership, broker.addr
        self._accept_empty_log = False  # accepted once
        log.info("Opened as %s in %.2f s", f"master of epoch {epoch}" if epoch else "slave", time.monotonic() - started)
        self._incarnation.check_opened(broker.services.store, leads=epoch > 0)
        membership.identity = self._incarnation.identity  # records are missing: it joins as another incarnation
        if not epoch:
            broker.register()

    async def _close_broker(self, *, is_final: bool = False) -> None:
        broker, membership, self._broker = self._broker, self._membership, None
        if broker is None or membership is None:
            return
        membership.is_switching = not is_final
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if not is_final:
            broker.services.server.abort()  # clients look for the next master at once
        # Settings that requests have changed hold in all roles.
        former = self.config
        self.config = msgspec.structs.replace(
            broker.config, broker_role=former.broker_role, broker_id=former.broker_id,
            confirmed_reads=former.confirmed_reads,
        )  # fmt: skip
        store = broker.services.store
        self._incarnation.log_end = store.commit_log_max
        try:
            await broker.__aexit__(None, None, None)
        except (ArianeError, OSError) as error:
            log.error("The broker did not stop in order: %s", error)
        if is_running_or_crashed(self._disk, self.config.store_path_root_dir):
            self._incarnation.on_failure(store, "its store was not closed in order")
        elif is_final:
            self._incarnation.identity.mark_stopped(self._incarnation.log_end)

    async def _reopen(self, broker: Broker) -> None:
        await asyncio.sleep(REOPEN_S)
        async with self._switch:
            if self._broker is broker and not self._leads():
                await self._close_broker()
                await retried(lambda: self._open_broker(0), "open the broker as a slave")
                self._follow_holder()

    async def _become_slave(self, after_s: float = 0.0) -> None:
        """Open a slave's Broker, unless one is open, and follow the holder of the record."""
        await asyncio.sleep(after_s)
        async with self._switch:
            if self._leads():
                return  # another epoch since
            if self._membership is None or self._membership.epoch or self._broker is None:
                await self._close_broker()
                await retried(lambda: self._open_broker(0), "open the broker as a slave")
            self._follow_holder()

    def _leads(self) -> bool:
        """Return whether the open Broker is that of the epoch that this member leads."""
        state, membership = self.agent.state, self._membership
        is_open = self._broker is not None and membership is not None and membership.epoch == state.epoch
        return is_open and state.role in LEADING

    def _follow_holder(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None
        membership = self._membership
        addr = "" if membership is None or membership.epoch else membership.holder_addr()
        if self._broker is not None and addr:
            self._following = self._broker.follow(addr)

    async def _cut(self, common: int, membership: Membership | None, *, disjoint_at: int | None = None) -> None:
        """Cut the log at `common`, and follow the holder with the rest: only that of the Broker whose log was compared.

        Args:
            common: Where the common records of both logs end.
            membership: That of the Broker whose log was compared.
            disjoint_at: Where one of the logs begins, after `common`: nothing of this log can stay.
        """
        async with self._switch:
            if self._broker is None or self._membership is not membership:
                return
            end, epochs = self._broker.services.store.commit_log_max, self._epochs()
            await self._close_broker()
            config = role_config(self.config, leads=False)
            try:
                if disjoint_at is None:
                    await cut_member(config, self._disk, epochs, common, end)
                    self._incarnation.log_end = common
                else:
                    lost = f"its log or that of the master begins at {disjoint_at}, and their common records end at {common}"
                    self._incarnation.replace(lost)
                    await empty_member(config, self._disk, epochs)
                    self._incarnation.log_end = 0
            except Exception:  # whatever it was, a Broker is opened
                log.exception("The log cannot be cut at %d", common)
                await asyncio.sleep(RETRY_S)
            await retried(lambda: self._open_broker(0), "open the broker as a slave")
            self._follow_holder()

    # --- Supervisor: what a Broker reports ---

    def on_diverged(self, common: int) -> None:
        """Cut the log at `common`, up to where it is that of the leader."""
        self._tasks.start(self._cut(common, self._membership), "cut the log")

    def on_disjoint(self, common: int, start: int) -> None:
        """Put the log aside, and begin with an empty one."""
        self._tasks.start(self._cut(common, self._membership, disjoint_at=start), "begin with an empty log")

    def hand_over(self, successor: str) -> None:
        """Release the lease for `successor`, and follow it."""
        self._hand_over.start(successor)

    def accept_loss(self) -> None:
        """Lead with the log that this member has."""
        self._hand_over.accept_loss()

    # --- FailoverReplica: what the agent asks for ---

    def health(self) -> TimePassed:
        """Return when disk and event loop responded last. This runs in the loop."""
        broker, now = self._broker, self._boot_clock.boottime()
        if self.is_leader and broker is not None:
            broker.services.server.release_answers()
        failed = broker is not None and self._has_failed(broker)
        # A safety net: the lease of a master without its Broker would be renewed, and nothing served.
        failed = failed or (self.agent.state.role is MemberRole.MASTER and not self._leads())
        return TimePassed(NEVER if failed else self._probe.completed_at, now)

    def _has_failed(self, broker: Broker) -> bool:
        store = broker.services.store
        if store.failure is None:
            return False
        # The end of an epoch opens the store again, too.
        if self._incarnation.on_failure(store, store.failure) and self.agent.state.role not in LEADING:
            self._tasks.start(self._reopen(broker), "open the broker after a failure of its store")
        return True

    def hold(self) -> None:
        """Answer nothing: each write checks the deadline."""

    def resume(self, epoch: int) -> None:
        """Serve as master of `epoch`."""
        broker, membership = self._broker, self._membership
        if broker is None or membership is None or membership.epoch != epoch:
            return
        broker.services.server.release_answers()
        if not membership.is_registering:
            membership.is_registering = True
            broker.register()
            again = broker.services.registration.register_again(REGISTRATIONS_S)
            self._tasks.start(again, "register the new master again")

    def end_epoch(self, epoch: int) -> None:
        """Stop serving `epoch`: answer held pulls while the lease lasts, then reset the connections."""
        broker, membership = self._broker, self._membership
        if broker is not None and membership is not None and membership.epoch == epoch:
            if not self._is_stopping:
                broker.services.registration.abandon()
            membership.parting_until = min(self.agent.state.deadline, self._boot_clock.boottime() + PARTING_S)
            broker.services.dispatcher.pull_waiters.expire_all()
            broker.services.store.refusal = StoreError(f"epoch {epoch} is over: send again")
            error = StoreError(f"epoch {epoch} is over: whether the next one has the record is unknown")
            broker.services.feed.fail_waiters(error)
        if not self._is_stopping:
            self._tasks.start(self._become_slave(PARTING_S), "open the broker as a slave")

    async def store_epoch(self, epoch: int) -> None:
        """Store `epoch` durably, and refuse lower ones from then on."""

        async def store() -> None:
            async with self._switch:
                epochs = self._epochs()
                if epoch > epochs.promised:
                    epochs.promise(epoch)
                if self._broker is not None:
                    self._broker.services.registration.epoch = epochs.promised

        await retried(store, f"store epoch {epoch}")

    async def accept_fence(self, epoch: int) -> None:
        """Store the epoch of a candidate, as far as the record has it: it is written before the candidate names it, and an epoch
        of another set would exclude this member for good. Without the coordination service it is stored as named."""
        try:
            record = (await self._service.read()).record
        except CoordinationUnavailable as error:
            log.warning("Storing epoch %d as the candidate names it: %s", epoch, error)
        else:
            epoch = min(epoch, record.epoch if record is not None else 0)
        self.agent.observe(HigherEpoch(epoch))
        await self.store_epoch(epoch)

    def _epochs(self) -> EpochHistory:
        if self._broker is not None and self._membership is not None and self._membership.epochs is not None:
            return self._membership.epochs
        return open_epochs(self._disk, self.config.store_path_root_dir)

    async def fence(self, epoch: int) -> int:
        """Ask every reachable member to store `epoch`. Return the highest epoch that one of them has."""
        return await self._requests.fence(epoch)

    async def promote(self, epoch: int) -> None:
        """Open a master's Broker. It is opened to its end, also if the agent cancels this."""
        try:
            await asyncio.shield(self._tasks.start(self._promote(epoch), f"open the broker as master of epoch {epoch}"))
        except OSError as error:
            raise StoreError(f"the broker cannot be opened as master: {error}") from error

    async def _promote(self, epoch: int) -> None:
        async with self._switch:
            await self._close_broker()
            try:
                await self._open_broker(epoch)
            except BaseException:
                self._tasks.start(self._become_slave(), "open the broker as a slave")
                raise

    async def follow(self, record: LeaderRecord) -> None:
        """Follow the holder of the record from now on."""
        self._tasks.start(self._become_slave(), f"follow {record.holder}")

    async def ends(self, members: Collection[InSyncMember]) -> tuple[MemberEnd, ...]:
        """Return the ends of the logs of reachable members, its own included."""
        local_ends = [to_member_end(self._membership.answer_of())] if self._membership else []
        return (*local_ends, *await self._requests.ends(members, self.agent.state.epoch))

    async def ask_failsafe(self, epoch: int, members: Collection[str]) -> frozenset[str]:
        """Return which of `members` agree that this member goes on."""
        return await self._requests.ask_failsafe(members, epoch)
