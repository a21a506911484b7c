"""Copies of the log: a master feeds its slaves and knows how far they are, a slave follows its master. [HAService]

    master   Feed.serve, one per slave:   first report ─► from where ─► chunks, heartbeats ─►
                                          ◄─ reports: `acknowledged` moves, sends that wait are answered
    slave    follow:   connect ─► report ─► chunk ─► store ─► report ... ; broken: again after RETRY_S

What a slave acknowledges it has written to its files, as in Java; it need not be on its disk yet. A slave with an empty log gets
everything that the master still has; a Java master gives one only its newest file.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from ariane.broker.config import BrokerConfig
from ariane.errors import ArianeError, ConnectionLost, ProtocolError
from ariane.net.streams import Stream, open_stream
from ariane.protocol.codes import ResponseCode
from ariane.protocol.replication import AckReader, ReplicationChunk, ReplicationChunkReader, frame_head, report
from ariane.store.log_replica import Replica
from ariane.store.message_store import MessageStore

log = logging.getLogger("ariane.broker.replication")

RETRY_S = 5.0
# In which a connection has to report as a slave, unless haSendHeartbeatInterval is long. An Ariane slave reports at once, a
# Java slave when that interval, 5 s, is over for the first time.
FIRST_REPORT_S = 10.0


class _Waiter(NamedTuple):
    end: int
    number: int
    answer: asyncio.Future[ResponseCode]


class ReplicationFeed:
    """The master's side. `appended` is called whenever there may be more for slaves."""

    def __init__(self, config: BrokerConfig, store: MessageStore) -> None:
        self._config = config
        self._store = store
        self._slaves: dict[Stream, int] = {}  # how far each has acknowledged
        self._waiting: list[_Waiter] = []  # a heap: who waits for the least comes first
        self._numbers = itertools.count()
        self._more = asyncio.Event()

    @property
    def acknowledged_offset(self) -> int:
        """How far the best connected slave is; 0 without any."""
        return max(self._slaves.values(), default=0)

    def notify_appended(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    async def wait_replicated(self, end: int) -> ResponseCode:
        """SUCCESS once a slave has the log up to `end`; else why it is not known to have it (SYNC_MASTER)."""
        if self.acknowledged_offset >= end:
            return ResponseCode.SUCCESS
        if not self._slaves or end - self.acknowledged_offset >= self._config.ha_slave_fallbehind_max:
            return ResponseCode.SLAVE_NOT_AVAILABLE
        loop = asyncio.get_running_loop()
        waiter = _Waiter(end, next(self._numbers), loop.create_future())
        heapq.heappush(self._waiting, waiter)
        timer = loop.call_later(
            self._config.slave_timeout / 1000, _resolve, waiter.answer, ResponseCode.FLUSH_SLAVE_TIMEOUT
        )
        try:
            return await waiter.answer
        finally:
            timer.cancel()

    async def serve(self, stream: Stream) -> None:
        """Feed one slave until it leaves."""
        silence_s = self._config.ha_housekeeping_interval / 1000
        reports = AckReader()
        heartbeat_s = self._config.ha_send_heartbeat_interval / 1000
        first = await _first_report(stream, reports, min(silence_s, max(FIRST_REPORT_S, 2 * heartbeat_s)))
        start = first or self._store.commit_log_min
        if not self._store.commit_log_min <= start <= self._store.commit_log_max:
            raise ProtocolError(
                f"the slave {stream.addr} asks for the log from {start}, this master has {self._store.commit_log_min} to"
                f" {self._store.commit_log_max}: a slave that does not fit its master needs an empty store"
            )
        stream.set_identified()
        log.info("slave %s follows from %d", stream.addr, start)
        self._slaves[stream] = first
        both = {
            asyncio.ensure_future(self._send(stream, start)),
            asyncio.ensure_future(self._listen(stream, reports, silence_s)),
        }
        try:
            ended, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for one in ended:
                one.result()
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            del self._slaves[stream]
            log.info("slave %s is gone, %d slaves are left", stream.addr, len(self._slaves))

    async def _listen(self, stream: Stream, reports: AckReader, silence_s: float) -> None:
        while True:
            offset = reports.feed(await stream.read(silence_s))
            if offset is None:
                continue
            if offset > self._store.commit_log_max:
                raise ProtocolError(f"slave {stream.addr} has the log up to {offset}, beyond this master's end")
            self._slaves[stream] = offset
            while self._waiting and self._waiting[0].end <= offset:
                _resolve(heapq.heappop(self._waiting).answer, ResponseCode.SUCCESS)

    async def _send(self, stream: Stream, at: int) -> None:
        batch, store = self._config.ha_transfer_batch_size, self._store
        heartbeat_s = self._config.ha_send_heartbeat_interval / 1000
        while True:
            more = self._more
            while self._waiting and self._waiting[0].answer.done():
                heapq.heappop(self._waiting)  # timed out
            if at < store.commit_log_min:
                raise ProtocolError(f"slave {stream.addr} is at {at}, which was removed: it needs an empty store")
            data = store.replication_source.read(at, batch)
            if data:
                await stream.write(frame_head(at, len(data)), data)
                at += len(data)
                continue
            try:
                async with asyncio.timeout(heartbeat_s):
                    await more.wait()
            except TimeoutError:
                await stream.write(frame_head(at, 0))


async def _first_report(stream: Stream, reports: AckReader, within_s: float) -> int:
    """Wait for the report with which every slave begins.

    Raises:
        ConnectionLost: none is complete within `within_s`.
    """
    try:
        async with asyncio.timeout(within_s):
            while (first := reports.feed(await stream.read(within_s))) is None:
                pass
    except TimeoutError:
        raise ConnectionLost(stream.addr, f"did not report as a slave within {within_s:g} s") from None
    return first


def _resolve(answer: asyncio.Future[ResponseCode], code: ResponseCode) -> None:
    if not answer.done():
        answer.set_result(code)


async def follow_master(
    config: BrokerConfig,
    replica: Replica,
    master_address: Callable[[], str],
    refresh_master: Callable[[], Awaitable[None]],
    on_stored: Callable[[], None],
) -> None:
    """The slave's side, until cancelled. `master` is the address for replication, "" while unknown; `ask_again` has the name
    servers asked whether it is another now; `stored` is told of new bytes."""
    said = ""
    while True:
        addr = master_address()
        try:
            if not addr:
                raise ConnectionLost(
                    config.broker_name, "no name server knows the master yet, and haMasterAddress is not set"
                )
            async with open_stream(addr) as stream:
                log.info("following the master at %s from %d", addr, replica.received)
                said = ""
                await _follow_once(config, replica, stream, on_stored)
        except ArianeError as error:
            if str(error) != said:  # once for each reason, not every RETRY_S
                said = str(error)
                log.error("replication: %s; trying every %g s", error, RETRY_S)
        await asyncio.sleep(RETRY_S)
        await refresh_master()


async def _follow_once(config: BrokerConfig, replica: Replica, stream: Stream, stored: Callable[[], None]) -> None:
    chunks = ReplicationChunkReader()
    reporting = asyncio.ensure_future(_report_regularly(config, replica, stream))
    try:
        await stream.write(report(replica.received))
        while True:
            came = chunks.feed(await stream.read(config.ha_housekeeping_interval / 1000))
            for offset, data in _joined(came, replica.file_size):
                if offset != replica.received and replica.received:
                    raise ProtocolError(
                        f"the master {stream.addr} sends from {offset}, this log ends at {replica.received}"
                    )
                if data:
                    replica.append(offset, data)
            stored()
            await stream.write(report(replica.received))
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


def _joined(chunks: Sequence[ReplicationChunk], file_size: int) -> list[ReplicationChunk]:
    """Chunks that came together and follow each other as one, for one write each; not across the end of a file."""
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
    """So that the master knows this slave lives; a connection that broke is noticed by who reads."""
    while True:
        await asyncio.sleep(config.ha_send_heartbeat_interval / 1000)
        await stream.write(report(replica.received))
