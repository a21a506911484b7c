"""Replication of the log, the master's side: feeds slaves and tracks their offsets. `following` is the slave's side. [HAService]

    serve, per slave:   first report or greeting ─► start offset ─► chunks, heartbeats ─►
                        ◄─ reports: `acknowledged_offset` advances, waiting sends are answered

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
from ariane.broker.replication.in_sync_set import InSyncRules, InSyncSet
from ariane.broker.replication.member_identity import member_name
from ariane.broker.replication.slave_proof import check_proof, receive_hello, send_welcome
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ProtocolError, StoreError
from ariane.failover.leader_record import InSyncMember
from ariane.net.streams import Stream
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import member_stream
from ariane.protocol.records.member_stream import Hello, MemberReportReader, Welcome
from ariane.protocol.records.replication import REPORT_SIZE, AckReader, frame_head
from ariane.store.log.epochs import Epoch, EpochHistory, batch_end, common_end
from ariane.store.message_store import MessageStore

log = logging.getLogger("ariane.broker.replication.replication")

# Timeout of a connection's first report, unless haSendHeartbeatInterval is long. An Ariane slave reports immediately, a Java slave
# after that interval, which is 5 s by default.
FIRST_REPORT_S = 10.0
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
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._access = access if config.ha_acl_enable else None  # checks the proofs of slaves
        self._config = config  # intervals and limits of replication
        self._store = store  # the log to send
        self._anonymous: dict[Stream, int] = {}  # acknowledged offset of each connected slave that did not greet
        self._members: dict[InSyncMember, Stream] = {}  # connected members
        self._epochs = epochs  # of the log; None: it was written without failover
        self._epoch = epoch  # of this master; 0 without failover
        self._clock = clock  # monotonic: how long members are behind
        self._own = InSyncMember(member_name(config), "leader")
        # Without a record that decides about promotions, nothing has to be stored before a member leaves.
        rules = InSyncRules(leaves_at_disconnect=True)
        self._in_sync = InSyncSet(self._own, (), rules, log_end=0, now_s=clock.monotonic())
        self._shortage = StoreError(
            f"fewer than {config.min_in_sync_replicas} brokers of this set have all messages (minInSyncReplicas): start the slaves"
        )
        self.on_confirmed: Callable[[], None] = lambda: None  # called when consumers may read more (confirmedReads)
        # Sends that wait for slaves.
        self._waiters = OffsetWaiters(reached=ResponseCode.SUCCESS, timed_out=ResponseCode.FLUSH_SLAVE_TIMEOUT)
        self._more = asyncio.Event()  # the log has grown; wakes the senders

    @property
    def acknowledged_offset(self) -> int:
        """Offset that all in-sync members have; without members that of the best slave; 0 without slaves."""
        replicated = self._in_sync.replicated
        return self._best_offset() if replicated is None else replicated

    @property
    def has_slaves(self) -> bool:
        """Return whether a slave is connected."""
        return bool(self._anonymous or self._members)

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
        self._more.set()
        self._more = asyncio.Event()

    def wait_replicated(self, end: int) -> OffsetWaiter[ResponseCode]:
        """Return a waiter (SYNC_MASTER): its result is SUCCESS once slaves have the log up to `end`, or why that is unknown."""
        if self.acknowledged_offset >= end:
            return self._waiters.finished(ResponseCode.SUCCESS)
        if not self.has_slaves or end - self._best_offset() >= self._config.ha_slave_fallbehind_max:
            return self._waiters.finished(ResponseCode.SLAVE_NOT_AVAILABLE)
        return self._waiters.wait(end, self._config.slave_timeout / 1000)

    async def update_in_sync_set(self) -> None:
        """Let members join that have caught up, and leave that are behind. Call this several times per second."""
        if self._members:
            self._in_sync.on_append(self._store.replication_source.end, self._clock.monotonic())
            self._update()
        self.refuse_if_short()
        self._confirm()

    def refuse_if_short(self) -> None:
        """Refuse writes while too few members have all messages (minInSyncReplicas): nothing that is stored is safe then."""
        least, store = self._config.min_in_sync_replicas, self._store
        if least > 1 and self._config.broker_role == "SYNC_MASTER":
            if self.in_sync_size >= least:
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
            await _run_both(self._send(stream, start, frame_head), self._listen(stream, reports, silence_s))
        finally:
            del self._anonymous[stream]
            self._update()
            log.info("Slave %s disconnected, %d slaves remain", stream.addr, len(self.slave_offsets()))

    async def _serve_member(self, stream: Stream, first_s: float, silence_s: float) -> None:
        hello = await receive_hello(stream, self._access, self._config.broker_name, first_s)
        member, epochs = InSyncMember(hello.member, hello.incarnation), self._log_epochs
        refusal = self._refusal(hello)
        entries = tuple((epoch.number, epoch.start, epoch.holder) for epoch in epochs[-member_stream.EPOCHS_MAX :])
        welcome = Welcome(member=self._own.name, epoch=self._epoch, epochs=entries, refusal=refusal)
        await send_welcome(stream, welcome)
        if refusal:
            raise ProtocolError(f"member {hello.member} at {stream.addr} is refused: {refusal}")
        start = self._start_of(stream, hello.end)
        for former in [other for other in self._members if other.name == member.name]:
            log.warning("Member %s has connected again from %s", member.name, stream.addr)
            self._leave(former, self._members[former])
        log.info("Member %s at %s follows from offset %d", member.name, stream.addr, start)
        self._members[member] = stream
        self._in_sync.on_append(self._store.replication_source.end, self._clock.monotonic())
        self._in_sync.on_report(member, hello.end)
        self._update()
        try:
            await _run_both(
                self._send(stream, start, self._member_head), self._listen_to_member(stream, member, silence_s)
            )
        finally:
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
        if hello.promised > self._epoch:
            return f"it has accepted epoch {hello.promised}, and this master is of epoch {self._epoch}"
        own_epochs = [Epoch(*entry) for entry in hello.epochs]
        common = common_end(own_epochs, hello.end, self._log_epochs, self._store.commit_log_max)
        if common < hello.end:
            return f"its log ends at {hello.end}, and is the same as this master's up to {common}; restart it with an empty store"
        return ""

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

    async def _listen_to_member(self, stream: Stream, member: InSyncMember, silence_s: float) -> None:
        reports = MemberReportReader()
        while True:
            report = reports.feed(await stream.read(silence_s))
            if report is None:
                continue
            self._check_end(stream, report.written)
            if report.epoch != self._epoch:
                raise ProtocolError(
                    f"member {member.name} acknowledges epoch {report.epoch} to a master of {self._epoch}"
                )
            self._in_sync.on_report(member, report.written)
            self._confirm()
            self._waiters.advance(self.acknowledged_offset)

    def _check_end(self, stream: Stream, end: int) -> None:
        if end > self._store.commit_log_max:
            raise ProtocolError(f"slave {stream.addr} reports offset {end}, beyond the end of this master's log")

    async def _send(self, stream: Stream, offset: int, head: Callable[[int, int], bytes]) -> None:
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
        wanted = self._in_sync.update(self._clock.monotonic())
        if wanted is not None:
            former = self._in_sync.stored
            self._in_sync.begin_swap(wanted)
            self._in_sync.on_stored(wanted, self._in_sync.version + 1)
            for change, members in (("joined", wanted - former), ("left", former - wanted)):
                for member in members:
                    log.info("Member %s %s the in-sync set, which has %d members", member.name, change, len(wanted))
        self.refuse_if_short()
        self._confirm()
        self._waiters.advance(self.acknowledged_offset)

    def _confirm(self) -> None:
        """Let consumers read what the in-sync set has; nothing more while it has too few members."""
        source = self._store.replication_source
        if source.confirmed is None or self._config.is_slave or self.in_sync_size < self._config.min_in_sync_replicas:
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
