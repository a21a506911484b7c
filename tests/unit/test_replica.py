"""Replication without sockets: framing, a store that follows another's bytes, and the acknowledged offset of a slave."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.replication.replication import ReplicationFeed
from ariane.errors import ArianeError, ConfigError, ConnectionLost, ProtocolError, StoreError, StoreFull
from ariane.model import host
from ariane.model.message import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from ariane.model.topic import SCHEDULE_TOPIC
from ariane.net.streams import Stream
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records.queue_entry import ENTRY, ENTRY_SIZE
from ariane.protocol.records.replication import AckReader, ReplicationChunk, ReplicationChunkReader, frame_head, report
from ariane.store.index.key_query import KeyQuery
from ariane.store.message_store import GetStatus, MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData

HOST = host.pack("127.0.0.1", 10911)
CONFIG = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=100)
FOLLOWER = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=100, follower=True)


def test_only_the_last_complete_report_counts() -> None:
    reports = AckReader()
    assert reports.feed(report(1)[:5]) is None
    assert reports.feed(report(1)[5:] + report(2) + report(3)[:7]) == 2
    assert reports.feed(report(3)[7:]) == 3
    with pytest.raises(ProtocolError):
        reports.feed(report(-1))


def test_chunks_round_trip_with_any_fragmentation() -> None:
    sent = [ReplicationChunk(0, b"abc"), ReplicationChunk(3, b""), ReplicationChunk(3, bytes(1000))]
    stream = b"".join(frame_head(offset, len(data)) + data for offset, data in sent)
    for step in (1, 7, 13, len(stream)):
        chunks, result = ReplicationChunkReader(), []
        for position in range(0, len(stream), step):
            result += chunks.feed(stream[position : position + step])
        assert result == sent
    for bad in (frame_head(-1, 0), frame_head(0, -1), frame_head(0, 5 << 20)):
        with pytest.raises(ProtocolError):
            ReplicationChunkReader().feed(bad)


def opened(disk: FakeDisk, config: StoreConfig = CONFIG) -> MessageStore:
    return open_store(config, disk, now_ms=FakeClock(tick_ms=1).now_ms, store_host=HOST)


def draft(body: bytes, queue_id: int = 0, topic: str = "T") -> RecordDraft:
    return RecordDraft(
        topic=topic, queue_id=queue_id, body=body, born_ms=1, born_host=HOST, tags="a", properties="TAGS\x01a"
    )


def master(count: int = 50) -> MessageStore:
    store = opened(FakeDisk())
    for number in range(count):
        store.put(draft(b"%d" % number * (1 + number % 30), number % 3))
    store.dispatch_pending()
    return store


def pieces(store: MessageStore, at: int, size: int) -> list[ReplicationChunk]:
    """The master's log from `at` on as it is sent: cut at the ends of files."""
    results = []
    while data := store.replication_source.read(at, size):
        results.append(ReplicationChunk(at, data))
        at += len(data)
    return results


def stored(store: MessageStore) -> dict[tuple[str, int, int], bytes]:
    results = {}
    for topic, ids in store.topics().items():
        for queue_id in ids:
            offset = store.min_offset(topic, queue_id)
            while (result := store.get(topic, queue_id, offset, 32)).status is GetStatus.FOUND:
                results.update({(topic, queue_id, offset + n): data for n, data in enumerate(result.records)})
                offset = result.next_offset
    return results


@pytest.mark.parametrize("size", [1, 7, 100, 1024, 32768])
def test_a_follower_has_the_same_records_with_any_fragmentation(size: int) -> None:
    first = master()
    follower = opened(FakeDisk(), FOLLOWER)
    replica = follower.follow_master()
    seen = 0
    for chunk in pieces(first, 0, size):
        replica.append(*chunk)
        seen += sum(len(arrival.entries) // ENTRY_SIZE for arrival in follower.dispatch_pending())
    assert replica.received == first.commit_log_max
    assert follower.commit_log_max == first.commit_log_max
    assert stored(follower) == stored(first)
    assert seen == 50
    assert follower.replication_source.read(0, 1024) == first.replication_source.read(0, 1024)
    with pytest.raises(StoreError, match="slave"):
        follower.put(draft(b"x"))


def mixed_master() -> MessageStore:
    """A master with delayed, delivered, half, committed and rolled-back records, keys, and another topic between them."""
    kinds = ((0, 0), (0, 0), (TRANSACTION_PREPARED, 0), (TRANSACTION_COMMIT, 5), (TRANSACTION_ROLLBACK, 5), (0, ~7))
    store = opened(FakeDisk(), msgspec.structs.replace(CONFIG, index=True))
    for number in range(60):
        state, prepared = kinds[number % 6]
        is_delayed = number % 20 == 7
        properties = f"KEYS\x01k{number % 7}\x02TAGS\x01a" + ("\x02DELAY\x013" if is_delayed else "")
        topic = SCHEDULE_TOPIC if is_delayed else ("T", "U")[number % 11 == 0]
        plain = draft(b"%d" % number, number % 2, topic)
        store.put(msgspec.structs.replace(plain, properties=properties, sys_flag=state, prepared_offset=prepared))
    store.dispatch_pending()
    return store


@pytest.mark.parametrize(("size", "appends"), [(1, 1), (100, 5), (700, 1), (32768, 5)])
def test_records_of_all_kinds_are_dispatched_as_by_the_master(size: int, appends: int) -> None:
    first = mixed_master()
    follower = opened(FakeDisk(), msgspec.structs.replace(FOLLOWER, index=True))
    replica = follower.follow_master()
    for number, chunk in enumerate(pieces(first, 0, size)):
        replica.append(*chunk)
        if number % appends == 0:
            follower.dispatch_pending()
    follower.dispatch_pending()
    assert stored(follower) == stored(first)
    assert follower.dispatched == first.dispatched == first.commit_log_max
    for topic, queues in first.topics().items():
        for queue in queues:
            assert follower.entries(topic, queue, 0, 100) == first.entries(topic, queue, 0, 100)
    for key in range(7):
        query = KeyQuery("T", f"k{key}", 100)
        assert follower.query(query) == first.query(query)


def test_records_after_the_confirmed_end_wait_within_a_run() -> None:
    first = mixed_master()
    config = StoreConfig(
        root="/store", commit_log_size=1 << 20, consume_queue_size=100, follower=True, confirmed_reads=True
    )
    follower = opened(FakeDisk(), config)
    replica = follower.follow_master()
    log = b"".join(data for _, data in pieces(first, 0, 1024))[:1000]
    replica.append(0, log)
    ends = []
    for confirmed in range(replica.end + 1):
        follower.replication_source.confirmed = confirmed
        entries = b"".join(arrival.entries for arrival in follower.dispatch_pending())
        ends += [offset + size for offset, size, _ in ENTRY.iter_unpack(entries)]
        assert all(end <= confirmed for end in ends)
    assert len(ends) > 5
    assert ends == sorted(set(ends))


def test_an_incomplete_record_is_not_readable() -> None:
    store = opened(FakeDisk())
    placed = store.put(draft(b"x" * 50))
    store.dispatch_pending()
    follower = opened(FakeDisk(), FOLLOWER)
    replica = follower.follow_master()
    for position in range(placed.size):
        assert follower.dispatch_pending() == []
        assert follower.get("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
        replica.append(position, store.replication_source.read(position, 1))
    assert len(follower.dispatch_pending()) == 1
    assert stored(follower) == stored(store)


def test_an_empty_follower_starts_at_the_masters_first_offset() -> None:
    first = master()
    base = 1024 * 3
    disk = FakeDisk()
    follower = opened(disk, FOLLOWER)
    replica = follower.follow_master()
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        replica.append(100, b"x")
    for chunk in pieces(first, base, 300):
        replica.append(*chunk)
        follower.dispatch_pending()
    assert follower.commit_log_min == base
    everything = stored(first)
    stored_bodies = stored(follower)
    assert stored_bodies and stored_bodies.items() <= everything.items()
    assert follower.min_offset("T", 0) > 0 and follower.max_offset("T", 0) == first.max_offset("T", 0)
    with pytest.raises(StoreError, match="ends at"):
        replica.append(0, b"x")
    follower.close()
    repeated = opened(disk.after_kill())
    assert stored(repeated) == stored_bodies


def test_a_flush_in_flight_survives_the_move_of_an_empty_log_to_the_masters_start() -> None:
    source, disk = master(), FakeDisk()
    follower = opened(disk, FOLLOWER)
    replica = follower.follow_master()
    flush = follower.begin_flush()  # of the new, empty file
    assert flush is not None
    first = source.replication_source.read(1024, 1024)
    replica.append(1024, first)
    flush.run()
    follower.end_flush(flush, None)
    follower.dispatch_pending()
    follower.flush()
    assert follower.failure is None
    assert follower.commit_log_min == 1024
    follower.close()


def test_a_different_file_size_is_reported() -> None:
    follower = opened(FakeDisk(), FOLLOWER)
    with pytest.raises(ConfigError, match="mappedFileSizeCommitLog"):
        follower.follow_master().append(0, bytes(2000))


def test_a_topic_recreated_at_the_master_restarts_at_the_follower() -> None:
    first = master(9)
    first.flush()
    first.delete_topic("T")
    for number in range(4):
        first.put(draft(b"new %d" % number))
    first.dispatch_pending()
    follower = opened(FakeDisk(), FOLLOWER)
    replica = follower.follow_master()
    for chunk in pieces(first, 0, 100):
        replica.append(*chunk)
    follower.dispatch_pending()
    assert follower.max_offset("T", 0) == 4
    assert {key: data for key, data in stored(follower).items() if key[1] == 0} == stored(first)


def test_a_follower_with_a_full_disk_resumes_when_there_is_space() -> None:
    first = master()
    disk = FakeDisk()
    follower = opened(disk, FOLLOWER)
    replica = follower.follow_master()
    chunks = pieces(first, 0, 200)
    for chunk in chunks[:5]:
        replica.append(*chunk)
    follower.dispatch_pending()
    disk.room = 10
    for _ in range(2):
        with pytest.raises(StoreFull):
            replica.append(*chunks[5])
    disk.room = None
    for chunk in chunks[5:]:
        replica.append(*chunk)
    disk.room = 10
    with pytest.raises(StoreFull):
        follower.dispatch_pending()
    disk.room = None
    follower.dispatch_pending()
    assert stored(follower) == stored(first)


@pytest.mark.parametrize(
    ("kept", "seed"),
    [(SurvivingData.NONE, 0), (SurvivingData.ALL, 0), (SurvivingData.SOME, 1), (SurvivingData.SOME, 2)],
)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_follower_recovers_from_a_power_loss_at_every_change(kept: SurvivingData, seed: int, flush: str) -> None:
    """It opens, contains only records of the master and all that it had flushed, and resumes from its end."""
    first = master(40)
    config = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=100, flush=flush, follower=True)  # type: ignore[arg-type]
    chunks = pieces(first, 0, 90)

    def follow(disk: FakeDisk, flushed: list[int]) -> None:
        store = opened(disk, config)
        replica = store.follow_master()
        for number, chunk in enumerate(chunks):
            replica.append(*chunk)
            if number % 5 == 2:
                store.flush()
                flushed[0] = store.flushed
            store.dispatch_pending()
            if number % 7 == 6:
                store.write_checkpoint()
        store.close()

    complete = FakeDisk()
    follow(complete, [0])
    assert stored(opened(complete, config)) == stored(first)
    for cut in range(1, complete.changes + 1):
        disk, flushed = FakeDisk(), [0]
        disk.power_off_at = cut
        with contextlib.suppress(PowerLost):
            follow(disk, flushed)
        remaining = disk.after_power_loss(kept, random.Random(seed * 1000 + cut))
        store = opened(remaining, config)
        assert store.commit_log_max >= flushed[0]
        assert stored(store).items() <= stored(first).items()
        replica = store.follow_master()
        for chunk in pieces(first, replica.received, 333):
            replica.append(*chunk)
        store.flush()
        store.dispatch_pending()
        assert stored(store) == stored(first)
        store.close()


# --- the master's side ---


class Script:
    """A stream whose other side is a list of what it says; None: it waits."""

    addr = "slave"

    def __init__(self) -> None:
        self.said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.heard = ReplicationChunkReader()
        self.got: list[ReplicationChunk] = []
        self._partial = b""

    async def read(self, silence_s: float) -> bytes:
        data = self._partial or await self.said.get()
        if data is None:
            raise ConnectionLost("slave", "was closed by the other side")
        self._partial = b""
        return data

    async def read_exactly(self, size: int, silence_s: float) -> bytes:
        data = b""
        while len(data) < size:
            data += await self.read(silence_s)
        self._partial = data[size:]
        return data[:size]

    def abort(self) -> None:
        self.said.put_nowait(None)

    def set_identified(self) -> None: ...

    async def write(self, *data: bytes) -> None:
        self.got += self.heard.feed(b"".join(data))


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def with_feed(
    work: Callable[[ReplicationFeed, MessageStore, Script, asyncio.Task[None]], Awaitable[None]], **settings: int
) -> None:
    async def run() -> None:
        store = master(20)
        feed = ReplicationFeed(BrokerConfig(broker_name="b", **settings), store)  # type: ignore[arg-type]
        script = Script()
        serving = asyncio.ensure_future(feed.serve(cast(Stream, script)))
        try:
            await work(feed, store, script, serving)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_nothing_is_sent_before_the_first_report_and_an_empty_slave_receives_everything() -> None:
    async def work(feed: ReplicationFeed, store: MessageStore, script: Script, serving: asyncio.Task[None]) -> None:
        await turns()
        assert script.got == []
        script.said.put_nowait(report(0))
        await turns()
        assert script.got[0].offset == 0
        assert sum(len(data) for _, data in script.got) == store.commit_log_max
        assert all(offset // 1024 == (offset + len(data) - 1) // 1024 for offset, data in script.got)
        store.put(draft(b"more"))
        feed.notify_appended()
        await turns()
        assert script.got[-1].offset + len(script.got[-1].data) == store.commit_log_max

    with_feed(work)


def test_a_send_waits_until_a_slave_has_replicated_it() -> None:
    async def work(feed: ReplicationFeed, store: MessageStore, script: Script, serving: asyncio.Task[None]) -> None:
        end = store.commit_log_max
        assert await feed.wait_replicated(end) == ResponseCode.SLAVE_NOT_AVAILABLE
        script.said.put_nowait(report(10))
        await turns()
        late = asyncio.ensure_future(feed.wait_replicated(end))
        early = asyncio.ensure_future(feed.wait_replicated(500))
        await turns()
        assert not early.done()
        script.said.put_nowait(report(500))
        await turns()
        assert early.done() and not late.done()
        assert early.result() == ResponseCode.SUCCESS
        script.said.put_nowait(report(end))
        assert await late == ResponseCode.SUCCESS
        assert feed.acknowledged_offset == end
        script.said.put_nowait(None)
        with pytest.raises(ConnectionLost):
            await serving
        assert await feed.wait_replicated(end + 1) == ResponseCode.SLAVE_NOT_AVAILABLE

    with_feed(work)


def test_an_unresponsive_or_lagging_slave_fails_the_send() -> None:
    async def work(feed: ReplicationFeed, store: MessageStore, script: Script, serving: asyncio.Task[None]) -> None:
        script.said.put_nowait(report(10))
        await turns()
        assert await feed.wait_replicated(1009) == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert await feed.wait_replicated(1010) == ResponseCode.SLAVE_NOT_AVAILABLE

    with_feed(work, slave_timeout=0, ha_slave_fallbehind_max=1000)


@pytest.mark.parametrize("reports", [[1 << 40], [10, 1 << 40]])
def test_a_slave_ahead_of_its_master_is_disconnected(reports: list[int]) -> None:
    async def work(feed: ReplicationFeed, store: MessageStore, script: Script, serving: asyncio.Task[None]) -> None:
        for offset in reports:
            script.said.put_nowait(report(offset))
            await turns()
        with pytest.raises(ArianeError):
            await serving
        assert feed.acknowledged_offset == 0

    with_feed(work)


def test_in_sync_flush_slaves_receive_only_flushed_records() -> None:
    store = opened(FakeDisk(), StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=100, flush="sync"))
    placed = store.put(draft(b"x"))
    assert store.replication_source.read(0, 100) == b""
    store.flush()
    assert len(store.replication_source.read(0, 1000)) == placed.size
