"""Replication of the log, the master's side: feeds slaves and tracks their offsets. `following` is the slave's side. [HAService]

    serve, per slave:   first report or greeting ─► start offset ─► chunks, heartbeats ─►
                        ◄─ reports: `acknowledged_offset` advances, waiting sends are answered
    changes of topics, groups, offsets, locks follow the log in one sequence (`change_stream`); answers wait for them, too

Slaves of Ariane greet as members. A send is replicated once all members of the in-sync set have it. Slaves of Java, and of earlier
versions, are anonymous: they count only while the set has no member but the master, and then one of them is enough, as in Java.
A slave with an empty log gets everything that the master still has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from ariane.access.access_control import AccessControl
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.offset_waiters import OffsetWaiter, OffsetWaiters
from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.replication.change_stream import ChangeCursor, ChangeStream
from ariane.broker.replication.in_sync_set import ALL_CHANGES, InSyncRules, InSyncSet
from ariane.broker.replication.member_identity import member_name
from ariane.broker.replication.membership import Membership
from ariane.broker.replication.slave_proof import check_proof, receive_hello, send_welcome
from ariane.broker.state.saved.change_records import Change
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ProtocolError, StoreError
from ariane.failover.leader_record import InSyncMember
from ariane.net.streams import Stream
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import member_stream
from ariane.protocol.records.member_stream import NO_CHANGES, Hello, MemberReportReader, Welcome, changes_head
from ariane.protocol.records.replication import REPORT_SIZE, AckReader, frame_head
from ariane.store.log.epochs import Epoch, EpochHistory, batch_end, common_end
from ariane.store.message_store import MessageStore

log = logging.getLogger("ariane.broker.replication.replication")

# Timeout of a connection's first report, unless haSendHeartbeatInterval is long. An Ariane slave reports immediately, a Java slave
# after that interval, which is 5 s by default.
FIRST_REPORT_S = 10.0
COLLECT_INTERVAL_S = 0.1  # consumers repeat at most about so much after a switch
UPDATE_INTERVAL_S = 0.2  # between two looks at members that are behind, or have caught up


class ReplicationFeed:
    """The master's side. `notify_appended` is called whenever the log may have grown."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        access: AccessControl | None = None,
        *,
        epochs: EpochHistory | None = None,
        epoch: int = 0,
        membership: Membership | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._access = access if config.ha_acl_enable else None  # checks the proofs of slaves
        self._config = config  # intervals and limits of replication
        self._store = store  # the log to send
        self._anonymous: dict[Stream, int] = {}  # acknowledged offset of each connected slave that did not greet
        self._members: dict[InSyncMember, Stream] = {}  # connected members
        self._epochs = epochs  # of the log; None: it was written without failover
        self._membership = membership  # None: without failover
        self._leads = membership is not None and membership.epoch > 0  # by a lease, in an epoch
        self._epoch = membership.epoch if membership else epoch  # of this master; 0 without failover, and of a follower
        self._swapping: frozenset[InSyncMember] | None = None  # proposed for the record, outcome not taken
        self._is_over = False  # the epoch: nothing is confirmed any more, because the outcome of a swap is not taken
        self._clock = clock  # monotonic: how long members are behind
        self._own = membership.me if membership else InSyncMember(member_name(config), "leader")
        self._in_sync = self._begin()
        self._shortage = StoreError(
            f"fewer than {config.min_in_sync_replicas} brokers of this set have all messages (minInSyncReplicas): start the slaves"
        )
        self.on_confirmed: Callable[[], None] = lambda: None  # called when consumers may read more (confirmedReads)
        # Sends that wait for slaves, and other requests whose records must not be lost.
        self._waiters = OffsetWaiters(reached=ResponseCode.SUCCESS, timed_out=ResponseCode.FLUSH_SLAVE_TIMEOUT)
        self._confirmations = OffsetWaiters(reached=True, timed_out=False)
        self._more = asyncio.Event()  # the log has grown, or state has changed; wakes the senders
        self._changes: ChangeStream | None = None  # of this master's state; None: members copy tables
        self._change_waiters: OffsetWaiters[bool] = OffsetWaiters(reached=True, timed_out=False)

    def send_changes(self, state: PersistentState) -> None:
        """Send the changes of this master's state to its members from now on."""
        changes = self._changes = ChangeStream(state, lambda: self._store.commit_log_max)

        def on_change(change: Change) -> None:
            changes.append(change)
            self._in_sync.on_change(changes.last, self._clock.monotonic())
            self._wake()

        state.on_change = on_change

    def _begin(self) -> InSyncSet:
        now_s = self._clock.monotonic()
        if self._membership is None or not self._leads:
            # Without a record that decides about promotions, nothing has to be stored before a member leaves.
            return InSyncSet(self._own, (), InSyncRules(leaves_at_disconnect=True), log_end=0, now_s=now_s)
        record, end = self._membership.record(), self._store.commit_log_max
        rules = InSyncRules(least=self._config.min_in_sync_replicas)
        return InSyncSet(self._own, record.in_sync, rules, log_end=end, now_s=now_s, version=record.set_version)

    @property
    def acknowledged_offset(self) -> int:
        """Offset that all in-sync members have; without members that of the best slave; 0 without slaves."""
        if self._leads:
            return self._store.replication_source.confirmed or 0
        replicated = self._in_sync.replicated
        return self._best_offset() if replicated is None else replicated

    @property
    def has_slaves(self) -> bool:
        """Return whether a slave is connected, or has to be: with failover, also this broker's own records are confirmed."""
        return bool(self._anonymous or self._members or self._leads)

    def has_replicas(self, end: int) -> bool:
        """Return whether slaves have the log up to `end`, as many as a send needs."""
        is_enough = self._in_sync.complete_size >= self._config.min_in_sync_replicas
        return self.has_slaves and is_enough and self.acknowledged_offset >= end

    @property
    def in_sync_size(self) -> int:
        """Number of members that have what sends are answered for, the master included."""
        return self._in_sync.least_size

    def slave_offsets(self) -> list[tuple[str, int]]:
        """Return address and acknowledged offset of each connected slave."""
        members = [(stream.addr, self._in_sync.end_of(member) or 0) for member, stream in self._members.items()]
        return [*members, *((stream.addr, offset) for stream, offset in self._anonymous.items())]

    def notify_appended(self) -> None:
        """Wake the tasks that send to slaves."""
        if self._members or self._config.confirmed_reads:
            self._in_sync.on_append(self._store.replication_source.end, self._clock.monotonic())
            self._confirm()
            if self._leads:
                self._advance()
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    def wait_replicated(self, end: int) -> OffsetWaiter[ResponseCode]:
        """Return a waiter (SYNC_MASTER): its result is SUCCESS once slaves have the log up to `end`, or why that is unknown."""
        if self.acknowledged_offset >= end:
            return self._waiters.finished(ResponseCode.SUCCESS)
        if self._leads:
            return self._waiters.wait(end, self._config.slave_timeout / 1000)
        if not self.has_slaves or end - self._best_offset() >= self._config.ha_slave_fallbehind_max:
            return self._waiters.finished(ResponseCode.SLAVE_NOT_AVAILABLE)
        return self._waiters.wait(end, self._config.slave_timeout / 1000)

    def wait_flushed(self, end_offset: int) -> OffsetWaiter[bool]:
        """Return a waiter: its result is True once the in-sync set has the log up to `end_offset`, False if that took too long.

        With failover it takes the place of the flusher's: what the set has confirmed is flushed here in synchronous mode.
        """
        if self.acknowledged_offset >= end_offset:
            return self._confirmations.finished(True)
        return self._confirmations.wait(end_offset, self._config.slave_timeout / 1000)

    def fail_waiters(self, error: Exception) -> None:
        """End all waits with an error: the epoch is over, and whether its last records are in the next one is unknown."""
        self._waiters.fail(error)
        self._confirmations.fail(error)
        self._change_waiters.fail(error)
        self._is_over = True

    def _advance(self) -> None:
        if self._is_over:
            return
        self._waiters.advance(self.acknowledged_offset)
        self._confirmations.advance(self.acknowledged_offset)
        self._change_waiters.advance(self._in_sync.confirmed_changes)

    def wait_changed(self) -> OffsetWaiter[bool] | None:
        """Return a waiter for the changes so far, other than commits of consumers; None if all members in sync have them.

        Its result is False if that takes longer than slaveTimeout.
        """
        changes = self._changes
        if changes is None or changes.awaited <= self._in_sync.confirmed_changes:
            return None
        return self._change_waiters.wait(changes.awaited, self._config.slave_timeout / 1000)

    async def collect_offsets(self) -> None:
        """Send the offsets that consumers committed to the members. Call this several times per second."""
        if self._changes is not None and self._changes.collect_offsets():
            self._in_sync.on_change(self._changes.last, self._clock.monotonic())
            self._wake()

    async def update_in_sync_set(self) -> None:
        """Let members join that have caught up, and leave that are behind. Call this several times per second."""
        if self._members or self._leads:
            self._in_sync.on_append(self._store.replication_source.end, self._clock.monotonic())
            self._update()
        self.refuse_if_short()
        self._confirm()

    def refuse_if_short(self) -> None:
        """Refuse writes while too few members have all messages (minInSyncReplicas): nothing that is stored is safe then."""
        least, store = self._config.min_in_sync_replicas, self._store
        if least > 1 and self._config.broker_role == "SYNC_MASTER":
            if self._in_sync.complete_size >= least:
                if store.refusal is self._shortage:
                    store.refusal = None
            elif store.refusal is None:
                store.refusal = self._shortage

    # --- one slave ---

    async def serve(self, stream: Stream) -> None:
        """Feed one slave until it disconnects."""
        silence_s = self._config.ha_housekeeping_interval / 1000
        first_s = min(silence_s, max(FIRST_REPORT_S, 2 * self._config.ha_send_heartbeat_interval / 1000))
        opening = await stream.read_exactly(REPORT_SIZE, first_s)
        if opening == member_stream.MAGIC:
            await self._serve_member(stream, first_s, silence_s)
            return
        if self._access is not None:
            await check_proof(stream, opening, self._access, self._config.broker_name, first_s)
            opening = await stream.read_exactly(REPORT_SIZE, first_s)
        await self._serve_anonymous(stream, opening, silence_s)

    async def _serve_anonymous(self, stream: Stream, opening: bytes, silence_s: float) -> None:
        reports = AckReader()
        first = reports.feed(opening) or 0
        start = self._start_of(stream, first)
        log.info("Slave %s follows from offset %d", stream.addr, start)
        self._anonymous[stream] = first
        try:
            await _run_both(self._send(stream, start, frame_head, None), self._listen(stream, reports, silence_s))
        finally:
            del self._anonymous[stream]
            self._update()
            log.info("Slave %s disconnected, %d slaves remain", stream.addr, len(self.slave_offsets()))

    async def _serve_member(self, stream: Stream, first_s: float, silence_s: float) -> None:
        hello = await receive_hello(stream, self._access, self._config.broker_name, first_s)
        member, epochs = InSyncMember(hello.member, hello.incarnation), self._log_epochs
        common, refusal = self._common_end(hello), self._refusal(hello)
        if self._membership and self._membership.lists(hello.member):
            self._membership.observe_epoch(hello.promised)
        entries = tuple((epoch.number, epoch.start, epoch.holder) for epoch in epochs[-member_stream.EPOCHS_MAX :])
        changes = self._changes if hello.changes is not None else None
        welcome = Welcome(
            member=self._own.name,
            epoch=self._epoch,
            epochs=entries,
            changes=None if changes is None else changes.position,
            refusal=refusal,
            start=self._store.commit_log_min,
        )
        await send_welcome(stream, welcome)
        if refusal:
            raise ProtocolError(f"member {hello.member} at {stream.addr} is refused: {refusal}")
        if common < hello.end:
            log.info("Member %s has records after %d that this log lacks: it has to cut its log", member.name, common)
            return
        if self._membership and 0 < hello.end < self._store.commit_log_min:
            log.info("Member %s lacks records that were removed here: it has to begin with an empty log", member.name)
            return
        start = self._start_of(stream, hello.end)
        for former in [other for other in self._members if other.name == member.name]:
            log.warning("Member %s has connected again from %s", member.name, stream.addr)
            self._leave(former, self._members[former])
        log.info("Member %s at %s follows from offset %d", member.name, stream.addr, start)
        self._members[member] = stream
        self._in_sync.on_append(self._store.replication_source.end, self._clock.monotonic())
        cursor = None if changes is None or hello.changes is None else changes.connect(hello.changes)
        self._in_sync.on_report(member, hello.end, ALL_CHANGES if cursor is None else NO_CHANGES)
        self._update()
        try:
            await _run_both(
                self._send(stream, start, self._member_head, cursor),
                self._listen_to_member(stream, member, silence_s, has_changes=cursor is not None),
            )
        finally:
            if changes is not None and cursor is not None:
                changes.disconnect(cursor)
            if self._members.get(member) is stream:
                self._leave(member, stream)
            log.info("Member %s at %s disconnected", member.name, stream.addr)

    def _leave(self, member: InSyncMember, stream: Stream) -> None:
        del self._members[member]
        stream.abort()
        self._in_sync.on_disconnect(member)
        self._update()

    def _refusal(self, hello: Hello) -> str:
        """Return why a member is not served; empty if it is."""
        if hello.member == self._own.name:
            return f"{hello.member} is the name of its master, too: set another memberName"
        if self._membership and not self._membership.lists(hello.member):
            return f"failoverMembers of {self._own.name} lacks {hello.member}: add it at all members"
        if self._membership and not self._leads:
            return f"{self._own.name} does not lead the set"
        if hello.promised > self._epoch:
            return f"it has accepted epoch {hello.promised}, and this master is of epoch {self._epoch}"
        common = self._common_end(hello)
        if common < hello.end and self._membership is None:
            return f"its log ends at {hello.end}, and is the same as this master's up to {common}; restart it with an empty store"
        return ""

    def _common_end(self, hello: Hello) -> int:
        """Return up to where the member's log is a prefix of this one."""
        epochs = [Epoch(*entry) for entry in hello.epochs]
        return common_end(epochs, hello.end, self._log_epochs, self._store.commit_log_max)

    def _start_of(self, stream: Stream, end: int) -> int:
        """Return the offset to send from to a slave whose log ends at `end`, and mark it as identified."""
        start = end or self._store.commit_log_min
        if not self._store.commit_log_min <= start <= self._store.commit_log_max:
            raise ProtocolError(
                f"slave {stream.addr} requests the log from {start}, but this master has {self._store.commit_log_min} to"
                f" {self._store.commit_log_max}; restart the slave with an empty store"
            )
        stream.set_identified()
        return start

    async def _listen(self, stream: Stream, reports: AckReader, silence_s: float) -> None:
        while True:
            offset = reports.feed(await stream.read(silence_s))
            if offset is None:
                continue
            self._check_end(stream, offset)
            self._anonymous[stream] = offset
            self._waiters.advance(self.acknowledged_offset)

    async def _listen_to_member(
        self, stream: Stream, member: InSyncMember, silence_s: float, *, has_changes: bool
    ) -> None:
        reports, is_new = MemberReportReader(has_changes=has_changes), has_changes
        while True:
            report = reports.feed(await stream.read(silence_s))
            if report is None:
                continue
            self._check_end(stream, report.written)
            if report.epoch != self._epoch:
                raise ProtocolError(
                    f"member {member.name} acknowledges epoch {report.epoch} to a master of {self._epoch}"
                )
            changes = ALL_CHANGES if report.changes is None else report.changes
            if self._changes is not None and report.changes is not None and report.changes > self._changes.last:
                raise ProtocolError(f"member {member.name} reports change {changes} of {self._changes.last}")
            self._in_sync.on_report(member, report.written, changes)
            if is_new and changes != NO_CHANGES:
                is_new = False
                self._update()  # it may join at once
            self._confirm()
            self._advance()

    def _check_end(self, stream: Stream, end: int) -> None:
        if end > self._store.commit_log_max:
            raise ProtocolError(f"slave {stream.addr} reports offset {end}, beyond the end of this master's log")

    async def _send(
        self, stream: Stream, offset: int, head: Callable[[int, int], bytes], cursor: ChangeCursor | None
    ) -> None:
        batch, store = self._config.ha_transfer_batch_size, self._store
        heartbeat_s = self._config.ha_send_heartbeat_interval / 1000
        confirmed = store.replication_source.confirmed
        while True:
            more = self._more
            if offset < store.commit_log_min:
                raise ProtocolError(
                    f"slave {stream.addr} is at offset {offset}, which this master has removed; restart it with an empty store"
                )
            size = batch_end(self._log_epochs, offset, offset + batch) - offset
            if cursor is not None:
                if change := cursor.take(offset):
                    await stream.write(changes_head(change.position, len(change.data), self._epoch), change.data)
                    continue
                if (position := cursor.next_position) is not None:
                    size = min(size, position - offset)
            data = store.replication_source.read(offset, size)
            if data:
                confirmed = store.replication_source.confirmed
                await stream.write(head(offset, len(data)), data)
                offset += len(data)
                continue
            is_idle = False
            if confirmed == store.replication_source.confirmed:
                try:
                    async with asyncio.timeout(heartbeat_s):
                        await more.wait()
                except TimeoutError:
                    is_idle = True
            # A slave's consumers read up to the confirmed end, too.
            if is_idle or confirmed != store.replication_source.confirmed:
                confirmed = store.replication_source.confirmed
                await stream.write(head(offset, 0))

    def _member_head(self, offset: int, size: int) -> bytes:
        return member_stream.frame_head(offset, size, self._epoch, self._store.replication_source.confirmed or 0)

    @property
    def _log_epochs(self) -> tuple[Epoch, ...]:
        return self._epochs.epochs if self._epochs is not None else ()

    # --- the in-sync set ---

    def _best_offset(self) -> int:
        """Return the acknowledged offset of the best connected slave."""
        return max([offset for _, offset in self.slave_offsets()], default=0)

    def _update(self) -> None:
        """Change the set, and answer the sends that its members have now. Without failover a change needs no record."""
        if self._membership and self._leads:
            self._take_record(self._membership)
        wanted = self._in_sync.update(self._clock.monotonic())
        if wanted is not None and self._membership and self._leads:
            self._begin_swap(self._membership, wanted)
        elif wanted is not None:
            former = self._in_sync.stored
            self._in_sync.begin_swap(wanted)
            self._in_sync.on_stored(wanted, self._in_sync.version + 1)
            self._log_change(former)
        self.refuse_if_short()
        self._confirm()
        self._advance()

    def _begin_swap(self, membership: Membership, wanted: frozenset[InSyncMember]) -> None:
        """Require the members of another set, then have it stored in the record: one change at a time."""
        if self._swapping is not None:
            return
        self._in_sync.begin_swap(wanted)
        self._swapping = wanted
        membership.swap(wanted)
        self._take_record(membership)

    def _take_record(self, membership: Membership) -> None:
        """Take the set of the record, and the outcome of a swap. One that the agent did not begin is refused."""
        record, former = membership.record(), self._in_sync.stored
        if record.set_version > self._in_sync.version:
            self._in_sync.on_stored(frozenset(record.in_sync), record.set_version)
            self._log_change(former)
            self._swapping = None if not membership.is_swapping else self._swapping
        elif self._swapping is not None and not membership.is_swapping:
            self._in_sync.on_refused(self._swapping)
            self._swapping = None

    def _log_change(self, former: frozenset[InSyncMember]) -> None:
        members = self._in_sync.stored
        for change, names in (("joined", members - former), ("left", former - members)):
            for member in names:
                log.info("Member %s %s the in-sync set, which has %d members", member.name, change, len(members))

    def _confirm(self) -> None:
        """Let consumers read what the in-sync set has; nothing more while it has too few members."""
        source = self._store.replication_source
        if (
            self._is_over
            or source.confirmed is None
            or self._config.is_slave
            or self.in_sync_size < self._config.min_in_sync_replicas
        ):
            return
        if self._in_sync.confirmed > source.confirmed:
            source.confirmed = self._in_sync.confirmed
            self.on_confirmed()


async def _run_both(sender: Coroutine[None, None, None], listener: Coroutine[None, None, None]) -> None:
    """Run both directions of a connection until one of them fails."""
    tasks = {asyncio.ensure_future(sender), asyncio.ensure_future(listener)}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
