"""Replication of the log: a master feeds its slaves and tracks their offsets, a slave follows its master. [HAService]

    master   ReplicationFeed.serve, per slave:   first report ─► start offset ─► chunks, heartbeats ─►
                                                 ◄─ reports: `acknowledged_offset` advances, waiting sends are answered
    slave    follow_master:   connect ─► report ─► chunk ─► store ─► report … ; after an error: again after RETRY_S

What a slave acknowledges is written to its files, but not necessarily on its disk, as in Java. A slave with an empty log gets
everything that the master still has; from a Java master it gets only the newest file.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence

from ariane.access.access_control import AccessControl
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.offset_waiters import OffsetWaiter, OffsetWaiters
from ariane.broker.replication.slave_proof import check_proof, prove
from ariane.errors import ArianeError, ConnectionLost, ProtocolError
from ariane.net.streams import Stream, open_stream
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records.replication import AckReader, ReplicationChunk, ReplicationChunkReader, frame_head, report
from ariane.protocol.signing import Credentials
from ariane.store.message_store import MessageStore
from ariane.store.writing.log_replica import Replica

log = logging.getLogger("ariane.broker.replication.replication")

RETRY_S = 5.0
# Timeout of a connection's first report, unless haSendHeartbeatInterval is long. An Ariane slave reports immediately, a Java slave
# after that interval, which is 5 s by default.
FIRST_REPORT_S = 10.0


class ReplicationFeed:
    """The master's side. `notify_appended` is called whenever the log may have grown."""

    def __init__(self, config: BrokerConfig, store: MessageStore, access: AccessControl | None = None) -> None:
        self._access = access  # checks the proofs of slaves with haAclEnable
        self._config = config  # intervals and limits of replication
        self._store = store  # the log to send
        self._slaves: dict[Stream, int] = {}  # acknowledged offset of each connected slave
        # Sends that wait for a slave.
        self._waiters = OffsetWaiters(reached=ResponseCode.SUCCESS, timed_out=ResponseCode.FLUSH_SLAVE_TIMEOUT)
        self._more = asyncio.Event()  # the log has grown; wakes the senders

    @property
    def acknowledged_offset(self) -> int:
        """Acknowledged offset of the best connected slave, 0 without slaves."""
        return max(self._slaves.values(), default=0)

    @property
    def has_slaves(self) -> bool:
        """Return whether a slave is connected."""
        return bool(self._slaves)

    def slave_offsets(self) -> list[tuple[str, int]]:
        """Return address and acknowledged offset of each connected slave."""
        return [(stream.addr, offset) for stream, offset in self._slaves.items()]

    def notify_appended(self) -> None:
        """Wake the tasks that send to slaves."""
        self._more.set()
        self._more = asyncio.Event()

    def wait_replicated(self, end: int) -> OffsetWaiter[ResponseCode]:
        """Return a waiter (SYNC_MASTER): its result is SUCCESS once a slave has the log up to `end`, or why that is unknown."""
        acknowledged = self.acknowledged_offset
        if acknowledged >= end:
            return self._waiters.finished(ResponseCode.SUCCESS)
        if not self._slaves or end - acknowledged >= self._config.ha_slave_fallbehind_max:
            return self._waiters.finished(ResponseCode.SLAVE_NOT_AVAILABLE)
        return self._waiters.wait(end, self._config.slave_timeout / 1000)

    async def serve(self, stream: Stream) -> None:
        """Feed one slave until it disconnects."""
        silence_s = self._config.ha_housekeeping_interval / 1000
        reports = AckReader()
        heartbeat_s = self._config.ha_send_heartbeat_interval / 1000
        first_s = min(silence_s, max(FIRST_REPORT_S, 2 * heartbeat_s))
        if self._config.ha_acl_enable and self._access is not None:
            await check_proof(stream, self._access, self._config.broker_name, first_s)
        first = await _first_report(stream, reports, first_s)
        start = first or self._store.commit_log_min
        if not self._store.commit_log_min <= start <= self._store.commit_log_max:
            raise ProtocolError(
                f"slave {stream.addr} requests the log from {start}, but this master has {self._store.commit_log_min} to"
                f" {self._store.commit_log_max}; restart the slave with an empty store"
            )
        stream.set_identified()
        log.info("Slave %s follows from offset %d", stream.addr, start)
        self._slaves[stream] = first
        tasks = {
            asyncio.ensure_future(self._send(stream, start)),
            asyncio.ensure_future(self._listen(stream, reports, silence_s)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            del self._slaves[stream]
            log.info("Slave %s disconnected, %d slaves remain", stream.addr, len(self._slaves))

    async def _listen(self, stream: Stream, reports: AckReader, silence_s: float) -> None:
        while True:
            offset = reports.feed(await stream.read(silence_s))
            if offset is None:
                continue
            if offset > self._store.commit_log_max:
                raise ProtocolError(f"slave {stream.addr} reports offset {offset}, beyond the end of this master's log")
            self._slaves[stream] = offset
            self._waiters.advance(offset)

    async def _send(self, stream: Stream, offset: int) -> None:
        batch, store = self._config.ha_transfer_batch_size, self._store
        heartbeat_s = self._config.ha_send_heartbeat_interval / 1000
        while True:
            more = self._more
            if offset < store.commit_log_min:
                raise ProtocolError(
                    f"slave {stream.addr} is at offset {offset}, which this master has removed; restart it with an empty store"
                )
            data = store.replication_source.read(offset, batch)
            if data:
                await stream.write(frame_head(offset, len(data)), data)
                offset += len(data)
                continue
            try:
                async with asyncio.timeout(heartbeat_s):
                    await more.wait()
            except TimeoutError:
                await stream.write(frame_head(offset, 0))


async def _first_report(stream: Stream, reports: AckReader, within_s: float) -> int:
    """Return the offset of the report that every slave sends first.

    Raises:
        ConnectionLost: no complete report arrived within `within_s`.
    """
    try:
        async with asyncio.timeout(within_s):
            while (first := reports.feed(await stream.read(within_s))) is None:
                pass
    except TimeoutError:
        raise ConnectionLost(stream.addr, f"did not report as a slave within {within_s:g} s") from None
    return first


async def follow_master(
    config: BrokerConfig,
    replica: Replica,
    master_address: Callable[[], str],
    refresh_master: Callable[[], Awaitable[None]],
    on_stored: Callable[[], None],
    encryption: Callable[[], Awaitable[ssl.SSLContext | None]],
    proof: Credentials | None = None,
) -> None:
    """Follow the master's log until cancelled.

    Args:
        config: Intervals of replication.
        replica: The log of this slave.
        master_address: Returns the master's replication address, "" while it is unknown.
        refresh_master: Updates that address after an error.
        on_stored: Called when records were stored.
        encryption: Returns the context of the connection, None for a plain one; raises if the master must not be connected to.
        proof: The account to prove before the stream; None: none is asked for.
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
            async with open_stream(addr, await encryption()) as stream:
                if proof is not None:
                    await prove(stream, proof, config.broker_name, FIRST_REPORT_S)
                log.info("Following the master at %s from offset %d", addr, replica.received)
                reported = ""
                await _follow_once(config, replica, stream, on_stored)
        except ArianeError as error:
            if str(error) != reported:  # once per reason, not every RETRY_S
                reported = str(error)
                log.error("Replication failed, retrying every %g s: %s", RETRY_S, error)
        await asyncio.sleep(RETRY_S)
        await refresh_master()


async def _follow_once(config: BrokerConfig, replica: Replica, stream: Stream, stored: Callable[[], None]) -> None:
    chunks = ReplicationChunkReader()
    reporting = asyncio.ensure_future(_report_regularly(config, replica, stream))
    try:
        await stream.write(report(replica.received))
        while True:
            received = chunks.feed(await stream.read(config.ha_housekeeping_interval / 1000))
            for offset, data in _joined(received, replica.file_size):
                if offset != replica.received and replica.received:
                    raise ProtocolError(
                        f"the master {stream.addr} sends from offset {offset}, but this log ends at {replica.received}"
                    )
                if data:
                    replica.append(offset, data)
            stored()
            await stream.write(report(replica.received))
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


def _joined(chunks: Sequence[ReplicationChunk], file_size: int) -> list[ReplicationChunk]:
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


async def _report_regularly(config: BrokerConfig, replica: Replica, stream: Stream) -> None:
    """Report periodically, so that the master does not time out. A broken connection is noticed by the reader."""
    while True:
        await asyncio.sleep(config.ha_send_heartbeat_interval / 1000)
        await stream.write(report(replica.received))
