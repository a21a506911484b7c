"""Replication of the log, the slave's side: follows its master. `replication` is the master's side. [HAService.HAClient]

    connect ─► report, or greeting ─► chunk ─► store ─► report … ; after an error: again after RETRY_S

A slave greets an Ariane master as a member, with its identity and the epochs of its log. What it acknowledges is written to its
files, but not necessarily on its disk, as in Java; with SYNC_FLUSH a member acknowledges what is on its disk. From a Java master an
empty slave gets only the newest file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.flusher import Flusher
from ariane.broker.replication.change_follower import ChangeFollower
from ariane.broker.replication.membership import Membership
from ariane.broker.replication.slave_proof import greet, prove
from ariane.errors import ArianeError, ConnectionLost, ProtocolError
from ariane.failover.leader_record import InSyncMember
from ariane.model.backoff import Backoff
from ariane.net.streams import Stream, open_stream
from ariane.protocol.records import member_stream
from ariane.protocol.records.member_stream import (
    ChangesFrame,
    Hello,
    MemberFrame,
    MemberFrameReader,
    MemberReport,
    Welcome,
)
from ariane.protocol.records.replication import ReplicationChunk, ReplicationChunkReader, report
from ariane.protocol.signing import Credentials
from ariane.store.log.epochs import Epoch, EpochHistory, common_end
from ariane.store.writing.log_replica import Replica, ReplicationSource

log = logging.getLogger("ariane.broker.replication.following")

RETRY_S = 5.0
MEMBER_RETRY_S, MEMBER_RETRY_MAX_S = 0.2, 2.0  # with failover: a new leader is reachable soon
MEMBER_ANSWER_S = 1.0  # with failover: less than the time after which a member that is behind leaves the set
ANSWER_S = 10.0  # time limit for the answers of a master before the stream
FLUSH_LIMIT_S = 60.0  # a member whose disk hangs has left the set long before


class MasterLink(NamedTuple):
    """How the master is to be connected to."""

    context: ssl.SSLContext | None  # None: plain
    proof: Credentials | None  # the account to prove before the stream; None: the master asks for none
    has_members: bool  # the master is Ariane's and serves members


class Following:
    """What a slave has, and stores what its master sends."""

    def __init__(
        self,
        replica: Replica,
        epochs: EpochHistory,
        member: InSyncMember,
        source: ReplicationSource,
        membership: Membership | None = None,
    ) -> None:
        self.replica = replica  # the log
        self.epochs = epochs  # of the log
        self._member = member  # this slave
        self.changes: ChangeFollower | None = None  # applies changes of the master's state; None: it takes none
        self.flusher: Flusher | None = None  # with SYNC_FLUSH: what is acknowledged is on the disk
        self._source = source  # how far consumers of this slave read
        self._membership = membership  # None: without failover
        self._leader_epoch = 0  # of the connection
        self._leader_epochs: tuple[Epoch, ...] = ()  # of the leader's log

    @property
    def member(self) -> InSyncMember:
        """Return this slave: with failover, its incarnation may end while it runs."""
        return self._member if self._membership is None else self._membership.me

    def hello(self) -> Hello:
        """Return the greeting of this member, which requests the log from its last record boundary on."""
        self.replica.drop_incomplete()
        entries = tuple((epoch.number, epoch.start, epoch.holder) for epoch in self.epochs.epochs)
        return Hello(
            member=self.member.name,
            incarnation=self.member.incarnation,
            end=self.replica.received,
            promised=self.epochs.promised,
            epochs=entries[-member_stream.EPOCHS_MAX :],
            changes=None if self.changes is None else self.changes.position,
        )

    def accept(self, welcome: Welcome) -> None:
        """Accept a leader: from now on data of lower epochs is refused.

        Raises:
            ProtocolError: its epoch is over, or this log has records that are not in the leader's.
            StoreError: the epoch cannot be stored.
        """
        if welcome.epoch < self.epochs.promised:
            raise ProtocolError(
                f"{welcome.member} leads epoch {welcome.epoch}, which is over: this member has promised {self.epochs.promised}"
            )
        if self._membership is not None:
            self._membership.check_epoch(welcome.epoch)
        leader_epochs = tuple(Epoch(*entry) for entry in welcome.epochs)
        end = self.replica.received
        common = common_end(self.epochs.epochs, end, leader_epochs, end)
        if end and common < (start := max(self.replica.start, welcome.start)):
            if self._membership is not None:
                self._membership.on_disjoint(common, start)
            raise ProtocolError(
                f"the last record that this log and that of {welcome.member} have in common is before {common}, and one of them"
                f" begins at {start}: restart this slave with an empty store"
            )
        if common < end:
            if self._membership is not None:
                self._membership.on_diverged(common)
            raise ProtocolError(
                f"this log ends at {end}, and is the same as that of {welcome.member} only up to {common}"
            )
        self.epochs.promise(welcome.epoch)
        self._leader_epoch, self._leader_epochs = welcome.epoch, leader_epochs
        if self.changes is not None:
            self.changes.begin(welcome.changes)
        if self._membership is not None:
            self._membership.on_accepted(welcome.epoch)

    @property
    def follows_changes(self) -> bool:
        """Return whether the current or last master sends the changes of its state: then tables are not copied."""
        return self.changes is not None and self.changes.is_following

    def follow_anonymously(self) -> None:
        """Follow a master that does not serve members."""
        if self.changes is not None:
            self.changes.begin(None)

    def store(self, frames: Sequence[MemberFrame | ChangesFrame]) -> MemberReport:
        """Append the data of frames, apply their changes, and return what this member has.

        Raises:
            ProtocolError: a frame is of another epoch, or does not follow this log.
            StoreError: the data cannot be stored.
        """
        for frame in frames:
            if frame.epoch != self._leader_epoch or frame.epoch < self.epochs.promised:
                raise ProtocolError(
                    f"a frame of epoch {frame.epoch} from the leader of epoch {self._leader_epoch}; this member has promised"
                    f" {self.epochs.promised}"
                )
        run: list[MemberFrame] = []
        for frame in frames:
            if isinstance(frame, MemberFrame):
                run.append(frame)
            else:
                self._store_log(run)
                run = []
                self._apply(frame)
        self._store_log(run)
        return self.report()

    def _apply(self, frame: ChangesFrame) -> None:
        if frame.position > self.replica.end > 0 or self.changes is None:
            raise ProtocolError(
                f"the leader sends changes that follow its log up to {frame.position}, but this log ends at {self.replica.end}"
            )
        self.changes.apply(frame.data)

    def _store_log(self, frames: list[MemberFrame]) -> None:
        for offset, data in joined(
            [ReplicationChunk(frame.offset, frame.data) for frame in frames], self.replica.file_size
        ):
            if offset != self.replica.received and self.replica.received:
                raise ProtocolError(
                    f"the leader sends from offset {offset}, but this log ends at {self.replica.received}"
                )
            if data:
                self.epochs.adopt(self._leader_epochs, offset + len(data))  # before the first record of an epoch
                self.replica.append(offset, data)
        if frames and self._source.confirmed is not None:
            self._source.confirmed = max(self._source.confirmed, *(frame.confirmed for frame in frames))

    def report(self) -> MemberReport:
        """Return the ends of this log: record boundaries, because an incomplete record is lost at a restart."""
        changes = self.changes.reported if self.changes is not None and self.changes.is_following else None
        flushed = self.replica.flushed
        return MemberReport(self._leader_epoch, self.replica.end if self.flusher is None else flushed, flushed, changes)

    @property
    def has_unflushed(self) -> bool:
        """Return whether something is acknowledged only after a flush."""
        if self.flusher is None:
            return False
        return self.replica.flushed < self.replica.end or (self.changes is not None and self.changes.has_unflushed)

    async def flush(self) -> None:
        """Wait until everything that is stored so far may be acknowledged.

        Raises:
            FlushFailed: the disk failed.
        """
        if self.flusher is not None and self.replica.flushed < self.replica.end:
            await self.flusher.wait_on_disk(self.replica.end, FLUSH_LIMIT_S)
        if self.changes is not None:
            await self.changes.flush()


async def follow_master(
    config: BrokerConfig,
    following: Following,
    master_address: Callable[[], str],
    refresh_master: Callable[[], Awaitable[None]],
    on_stored: Callable[[], None],
    link: Callable[[], Awaitable[MasterLink]],
) -> None:
    """Follow the master's log until cancelled.

    Args:
        config: Intervals of replication.
        following: The log of this slave.
        master_address: Returns the master's replication address, "" while it is unknown.
        refresh_master: Updates that address after an error.
        on_stored: Called when records were stored.
        link: Returns how to connect to the master; raises if it must not be connected to.
    """
    reported = ""
    while True:
        addr = master_address()
        try:
            if not addr:
                raise ConnectionLost(
                    config.broker_name,
                    "no name server knows the address of the master yet, and haMasterAddress is not set",
                )
            context, proof, has_members = await link()
            await following.flush()  # the greeting is an acknowledgement, too
            async with open_stream(addr, context) as stream:
                if has_members:
                    following.accept(await greet(stream, following.hello(), proof, config.broker_name, ANSWER_S))
                else:
                    following.follow_anonymously()
                    if proof is not None:
                        await prove(stream, proof, config.broker_name, ANSWER_S)
                how = "" if context is None else ", encrypted"
                log.info("Following the master at %s from offset %d%s", addr, following.replica.received, how)
                reported = ""
                await (_follow_as_member if has_members else _follow_as_slave)(config, following, stream, on_stored)
        except ArianeError as error:
            if str(error) != reported:  # once per reason, not every RETRY_S
                reported = str(error)
                log.error("Replication failed, retrying every %g s: %s", RETRY_S, error)
        await asyncio.sleep(RETRY_S)
        await refresh_master()


async def follow_leader(
    config: BrokerConfig, following: Following, addr: str, on_stored: Callable[[], None], link: MasterLink
) -> None:
    """Follow the leader at the replication address `addr` until cancelled: with failover, another one is another call."""
    reported, failures = "", 0
    while True:
        try:
            await following.flush()
            async with open_stream(addr, link.context) as stream:
                following.accept(
                    await greet(stream, following.hello(), link.proof, config.broker_name, MEMBER_ANSWER_S)
                )
                how = "" if link.context is None else ", encrypted"
                log.info("Following the leader at %s from offset %d%s", addr, following.replica.received, how)
                reported, failures = "", 0
                await _follow_as_member(config, following, stream, on_stored)
        except ArianeError as error:
            failures += 1
            if str(error) != reported:
                reported = str(error)
                log.warning("Replication from %s failed, retrying: %s", addr, error)
        await asyncio.sleep(Backoff(MEMBER_RETRY_S, MEMBER_RETRY_MAX_S).delay_s(failures))


async def _follow_as_member(
    config: BrokerConfig, following: Following, stream: Stream, on_stored: Callable[[], None]
) -> None:
    frames = MemberFrameReader(has_changes=following.follows_changes)
    changes, saving, flushing = following.changes, _nothing(), _nothing()

    async def report_end() -> None:
        await stream.write(member_stream.encode_report(following.report()))

    async def save_snapshot(changes: ChangeFollower) -> None:
        await changes.save()
        await report_end()

    async def report_flushed() -> None:
        while following.has_unflushed:
            await following.flush()
            await report_end()

    try:
        async with _regular_reports(config, report_end):
            await report_end()
            while True:
                following.store(frames.feed(await stream.read(config.ha_housekeeping_interval / 1000)))
                on_stored()
                if following.flusher is None:
                    await report_end()
                elif flushing.done():
                    flushing.result()
                    flushing = asyncio.ensure_future(report_flushed())
                if changes is not None and changes.has_unsaved and saving.done():
                    saving.result()  # raises why the last one was not stored
                    saving = asyncio.ensure_future(save_snapshot(changes))  # meanwhile the log is followed
    finally:
        flushing.cancel()
        await asyncio.gather(saving, flushing, return_exceptions=True)


def _nothing() -> asyncio.Future[None]:
    return asyncio.ensure_future(asyncio.sleep(0))


async def _follow_as_slave(
    config: BrokerConfig, following: Following, stream: Stream, on_stored: Callable[[], None]
) -> None:
    chunks, replica = ReplicationChunkReader(), following.replica

    async def report_end() -> None:
        await stream.write(report(replica.received))

    async with _regular_reports(config, report_end):
        await report_end()
        while True:
            received = chunks.feed(await stream.read(config.ha_housekeeping_interval / 1000))
            for offset, data in joined(received, replica.file_size):
                if offset != replica.received and replica.received:
                    raise ProtocolError(
                        f"the master {stream.addr} sends from offset {offset}, but this log ends at {replica.received}"
                    )
                if data:
                    replica.append(offset, data)
            on_stored()
            await report_end()


@contextlib.asynccontextmanager
async def _regular_reports(config: BrokerConfig, report_end: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Report periodically, so that the master does not time out. A broken connection is noticed by the reader."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(config.ha_send_heartbeat_interval / 1000)
            await report_end()

    reporting = asyncio.ensure_future(repeat())
    try:
        yield
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


def joined(chunks: Sequence[ReplicationChunk], file_size: int) -> list[ReplicationChunk]:
    """Join adjacent chunks that arrived together, to write each run with one call; never across the end of a file."""
    joined: list[ReplicationChunk] = []
    runs: list[list[bytes]] = []
    end = -1
    for chunk in chunks:
        if chunk.offset == end and end % file_size and chunk.data:
            runs[-1].append(chunk.data)
        else:
            joined.append(chunk)
            runs.append([chunk.data])
        end = chunk.offset + len(chunk.data)
    return [ReplicationChunk(first.offset, b"".join(run)) for first, run in zip(joined, runs, strict=True)]
