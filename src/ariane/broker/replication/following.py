"""Replication of the log, the slave's side: follows its master. `replication` is the master's side. [HAService.HAClient]

    connect ─► report, or greeting ─► chunk ─► store ─► report … ; after an error: again after RETRY_S

A slave greets an Ariane master as a member, with its identity and the epochs of its log. What it acknowledges is written to its
files, but not necessarily on its disk, as in Java; a member reports both ends. From a Java master an empty slave gets only the
newest file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.replication.slave_proof import greet, prove
from ariane.errors import ArianeError, ConnectionLost, ProtocolError
from ariane.failover.leader_record import InSyncMember
from ariane.net.streams import Stream, open_stream
from ariane.protocol.records import member_stream
from ariane.protocol.records.member_stream import Hello, MemberFrame, MemberFrameReader, MemberReport, Welcome
from ariane.protocol.records.replication import ReplicationChunk, ReplicationChunkReader, report
from ariane.protocol.signing import Credentials
from ariane.store.log.epochs import Epoch, EpochHistory, common_end
from ariane.store.writing.log_replica import Replica, ReplicationSource

log = logging.getLogger("ariane.broker.replication.following")

RETRY_S = 5.0
ANSWER_S = 10.0  # time limit for the answers of a master before the stream


class MasterLink(NamedTuple):
    """How the master is to be connected to."""

    context: ssl.SSLContext | None  # None: plain
    proof: Credentials | None  # the account to prove before the stream; None: the master asks for none
    has_members: bool  # the master is Ariane's and serves members


class Following:
    """What a slave has, and stores what its master sends."""

    def __init__(self, replica: Replica, epochs: EpochHistory, member: InSyncMember, source: ReplicationSource) -> None:
        self.replica = replica  # the log
        self.epochs = epochs  # of the log
        self.member = member  # this slave
        self._source = source  # how far consumers of this slave read
        self._leader_epoch = 0  # of the connection
        self._leader_epochs: tuple[Epoch, ...] = ()  # of the leader's log

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
        leader_epochs = tuple(Epoch(*entry) for entry in welcome.epochs)
        end = self.replica.received
        if (common := common_end(self.epochs.epochs, end, leader_epochs, end)) < end:
            raise ProtocolError(
                f"this log ends at {end}, and is the same as that of {welcome.member} only up to {common}"
            )
        self.epochs.promise(welcome.epoch)
        self._leader_epoch, self._leader_epochs = welcome.epoch, leader_epochs

    def store(self, frames: Sequence[MemberFrame]) -> MemberReport:
        """Append the data of frames, and return what this member has.

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
        return self.report()

    def report(self) -> MemberReport:
        """Return the ends of this log: record boundaries, because an incomplete record is lost at a restart."""
        return MemberReport(self._leader_epoch, self.replica.end, self.replica.flushed)


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
            async with open_stream(addr, context) as stream:
                if has_members:
                    following.accept(await greet(stream, following.hello(), proof, config.broker_name, ANSWER_S))
                elif proof is not None:
                    await prove(stream, proof, config.broker_name, ANSWER_S)
                log.info("Following the master at %s from offset %d", addr, following.replica.received)
                reported = ""
                await (_follow_as_member if has_members else _follow_as_slave)(config, following, stream, on_stored)
        except ArianeError as error:
            if str(error) != reported:  # once per reason, not every RETRY_S
                reported = str(error)
                log.error("Replication failed, retrying every %g s: %s", RETRY_S, error)
        await asyncio.sleep(RETRY_S)
        await refresh_master()


async def _follow_as_member(
    config: BrokerConfig, following: Following, stream: Stream, on_stored: Callable[[], None]
) -> None:
    frames = MemberFrameReader()

    async def report_end() -> None:
        await stream.write(member_stream.encode_report(following.report()))

    async with _regular_reports(config, report_end):
        await report_end()
        while True:
            following.store(frames.feed(await stream.read(config.ha_housekeeping_interval / 1000)))
            on_stored()
            await report_end()


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
