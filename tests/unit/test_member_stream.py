"""Replication between brokers of Ariane without sockets: identities, epochs, and which members a send waits for."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.replication.following import Following
from ariane.broker.replication.replication import ReplicationFeed
from ariane.broker.replication.slave_proof import greet
from ariane.clock import Clock
from ariane.errors import ConnectionLost, ProtocolError, StoreError, StoreFull
from ariane.failover.leader_record import InSyncMember
from ariane.model import host
from ariane.net.streams import Stream
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records.member_stream import (
    ChangesFrame,
    Hello,
    MemberFrame,
    MemberFrameReader,
    MemberReport,
    MemberReportReader,
    Welcome,
    changes_head,
    encode_report,
    frame_head,
)
from ariane.protocol.records.replication import report
from ariane.store.log.epochs import Epoch, EpochHistory, open_epochs
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData

HOST = host.pack("127.0.0.1", 10911)


class Pipe:
    """One end of a connection in memory."""

    addr = "10.0.0.9:1"

    def __init__(self, outgoing: asyncio.StreamReader, incoming: asyncio.StreamReader) -> None:
        self._outgoing, self._incoming = outgoing, incoming

    async def write(self, *pieces: bytes) -> None:
        if self._outgoing.at_eof() or self._incoming.at_eof():
            raise ConnectionLost(self.addr, "was closed by the peer")
        self._outgoing.feed_data(b"".join(pieces))

    async def read(self, silence_s: float) -> bytes:
        data = await self._incoming.read(1 << 20)
        if not data:
            raise ConnectionLost(self.addr, "was closed by the peer")
        return data

    async def read_exactly(self, size: int, silence_s: float) -> bytes:
        try:
            return await self._incoming.readexactly(size)
        except asyncio.IncompleteReadError:
            raise ConnectionLost(self.addr, "was closed by the peer") from None

    def set_identified(self) -> None: ...

    def abort(self) -> None:
        self._outgoing.feed_eof()
        self._incoming.feed_eof()


class ManualClock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def draft(body: bytes) -> RecordDraft:
    return RecordDraft(topic="T", queue_id=0, body=body, born_ms=1, born_host=HOST)


def opened(disk: FakeDisk, *, follower: bool = False) -> MessageStore:
    config = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=100, follower=follower)
    return open_store(config, disk, now_ms=FakeClock(tick_ms=1).now_ms, store_host=HOST)


class Leader:
    """A master with some records, and the members that are connected to it."""

    def __init__(
        self, *, records: int = 20, epochs: EpochHistory | None = None, epoch: int = 0, **settings: Any
    ) -> None:
        self.disk = FakeDisk()
        self.store = opened(self.disk)
        self.clock = ManualClock()
        self.put(records)
        config = BrokerConfig(broker_name="b", ha_transfer_batch_size=200, **settings)
        self.feed = ReplicationFeed(config, self.store, epochs=epochs, epoch=epoch, clock=cast(Clock, self.clock))
        self.serving: list[asyncio.Task[None]] = []

    def put(self, records: int) -> int:
        for number in range(records):
            self.store.put(draft(b"%d" % number * (1 + number % 9)))
        self.store.dispatch_pending()
        return self.store.commit_log_max

    def connect(self) -> Pipe:
        there, back = asyncio.StreamReader(), asyncio.StreamReader()
        self.serving.append(asyncio.ensure_future(self.feed.serve(cast(Stream, Pipe(back, there)))))
        return Pipe(there, back)

    async def join(self, name: str, end: int | None = None, incarnation: str = "1") -> Pipe:
        pipe = self.connect()
        hello = Hello(member=name, incarnation=incarnation, end=self.store.commit_log_max if end is None else end)
        await greet(cast(Stream, pipe), hello, None, "b", 1)
        await turns()
        return pipe

    async def acknowledge(self, pipe: Pipe, end: int) -> None:
        await pipe.write(encode_report(MemberReport(self.feed._epoch, end, 0)))
        await turns()


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def with_leader(work: Callable[[Leader], Awaitable[None]], **settings: object) -> None:
    async def run() -> None:
        leader = Leader(**settings)  # type: ignore[arg-type]
        try:
            await work(leader)
        finally:
            for task in leader.serving:
                task.cancel()
            await asyncio.gather(*leader.serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_send_waits_for_all_members_in_sync() -> None:
    """A member that stores nothing cannot be hidden by another one, and the other one is not enough."""

    async def work(leader: Leader) -> None:
        first, second = await leader.join("x"), await leader.join("y")
        assert leader.feed.in_sync_size == 3
        end = leader.put(1)
        leader.feed.notify_appended()
        waiter = leader.feed.wait_replicated(end)
        await leader.acknowledge(first, end)
        assert not waiter.done()
        assert leader.feed.acknowledged_offset < end
        await leader.acknowledge(second, end)
        assert waiter.done()
        assert waiter.result() == ResponseCode.SUCCESS

    with_leader(work)


def test_a_member_that_stops_acknowledging_leaves_and_the_send_is_answered() -> None:
    async def work(leader: Leader) -> None:
        first, _ = await leader.join("x"), await leader.join("y")
        end = leader.put(1)
        leader.feed.notify_appended()
        waiter = leader.feed.wait_replicated(end)
        await leader.acknowledge(first, end)
        for _ in range(20):
            leader.clock.now_s += 0.1
            await leader.feed.update_in_sync_set()
        assert leader.feed.in_sync_size == 2
        assert waiter.done()
        assert waiter.result() == ResponseCode.SUCCESS

    with_leader(work)


def test_a_member_that_disconnects_leaves_at_once() -> None:
    async def work(leader: Leader) -> None:
        first, second = await leader.join("x"), await leader.join("y")
        end = leader.put(1)
        waiter = leader.feed.wait_replicated(end)
        await leader.acknowledge(first, end)
        second.abort()
        await turns()
        assert waiter.done()
        assert waiter.result() == ResponseCode.SUCCESS
        first.abort()
        await turns()
        assert not leader.feed.has_slaves
        assert leader.feed.wait_replicated(leader.put(1)).result() == ResponseCode.SLAVE_NOT_AVAILABLE

    with_leader(work)


def test_below_the_least_number_of_members_nothing_is_stored() -> None:
    async def work(leader: Leader) -> None:
        leader.feed.refuse_if_short()
        end = leader.store.commit_log_max
        with pytest.raises(StoreError, match="fewer than 3 brokers .*minInSyncReplicas"):
            leader.put(1)
        java = leader.connect()
        await java.write(report(end))
        first, second = await leader.join("x"), await leader.join("y")
        assert leader.put(1) > end
        second.abort()
        await turns()
        with pytest.raises(StoreError, match="minInSyncReplicas"):
            leader.put(1)
        full = leader.store.refusal = StoreFull("full")
        await leader.join("y")
        assert leader.store.refusal is full
        leader.store.refusal = None
        first.abort()
        await turns()
        assert leader.store.refusal is not None
        assert leader.store.log_end() is None  # runs of sends are refused, too

    with_leader(work, broker_role="SYNC_MASTER", min_in_sync_replicas=3)


def test_an_anonymous_slave_counts_only_without_members() -> None:
    async def work(leader: Leader) -> None:
        java = leader.connect()
        await java.write(report(10))
        await turns()
        end = leader.put(1)
        alone = leader.feed.wait_replicated(end)
        await java.write(report(end))
        await turns()
        assert alone.done()
        member = await leader.join("x")
        end = leader.put(1)
        waiter = leader.feed.wait_replicated(end)
        await java.write(report(end))
        await turns()
        assert not waiter.done()
        await leader.acknowledge(member, end)
        assert waiter.done()

    with_leader(work)


def test_a_member_that_connects_again_replaces_its_former_connection() -> None:
    async def work(leader: Leader) -> None:
        former = await leader.join("x")
        await leader.join("x", incarnation="2")
        assert len(leader.feed.slave_offsets()) == 1
        assert leader.feed.in_sync_size == 2
        with pytest.raises(ConnectionLost):
            await leader.acknowledge(former, 10)

    with_leader(work)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(member="b-0", incarnation="1", end=0), "the name of its master"),
        (Hello(member="x", incarnation="1", end=0, promised=9), "accepted epoch 9"),
        (Hello(member="x", incarnation="1", end=1 << 40), "up to"),
        (Hello(member="x", incarnation="1", end=400, epochs=((1, 0, "a"), (2, 300, "x"))), "up to 300"),
        (Hello(member="x", incarnation="1", end=400, epochs=((2, 0, "x"),)), "up to 0"),
    ],
)
def test_a_member_that_cannot_follow_is_refused_with_the_reason(hello: Hello, reason: str) -> None:
    async def work(leader: Leader) -> None:
        with pytest.raises(ProtocolError, match=reason):
            await greet(cast(Stream, leader.connect()), hello, None, "b", 1)
        assert not leader.feed.has_slaves
        with pytest.raises(ProtocolError, match="of 'other', not of b"):
            serving = leader.connect()
            with contextlib.suppress(ConnectionLost):
                leader.serving[-1].add_done_callback(lambda _: serving.abort())
                await greet(cast(Stream, serving), hello, None, "other", 1)
            await leader.serving[-1]

    with_leader(
        work,
        epochs=EpochHistory(FakeDisk(), "/store", promised=4, epochs=(Epoch(1, 0, "a"), Epoch(4, 600, "b"))),
        epoch=4,
    )


def test_greeting_and_frames_round_trip_with_any_fragmentation() -> None:
    sent = [MemberFrame(0, 4, 0, b"abc"), MemberFrame(3, 4, 3, b""), MemberFrame(3, 4, 3, bytes(1000))]
    stream = b"".join(frame_head(offset, len(data), epoch, end) + data for offset, epoch, end, data in sent)
    for step in (1, 7, 29, len(stream)):
        frames, result = MemberFrameReader(), []
        for position in range(0, len(stream), step):
            result += frames.feed(stream[position : position + step])
        assert result == sent
    for bad in (
        frame_head(-1, 0, 0, 0),
        frame_head(0, -1, 0, 0),
        frame_head(0, 5 << 20, 0, 0),
        frame_head(0, 0, -1, 0),
    ):
        with pytest.raises(ProtocolError):
            MemberFrameReader().feed(bad)
    head = changes_head(7, 2, 4)
    assert MemberFrameReader(has_changes=True).feed(stream + head + b"[]") == [*sent, ChangesFrame(7, 4, b"[]")]
    with pytest.raises(ProtocolError):
        MemberFrameReader().feed(head)  # a leader sends them to members only that have asked for them
    with_changes = MemberReport(1, 5, 3, -1)
    assert MemberReportReader(has_changes=True).feed(encode_report(with_changes)) == with_changes
    with pytest.raises(ProtocolError):
        MemberReportReader(has_changes=True).feed(encode_report(MemberReport(1, 5, 3, -2)))
    reports = MemberReportReader()
    both = encode_report(MemberReport(1, 5, 3)) + encode_report(MemberReport(1, 9, 9))
    assert reports.feed(both[:20]) is None
    assert reports.feed(both[20:]) == MemberReport(1, 9, 9)
    for invalid in (MemberReport(-1, 0, 0), MemberReport(0, 3, 4)):
        with pytest.raises(ProtocolError):
            reports.feed(encode_report(invalid))


# --- the member's side ---

EPOCHS = ((1, 0, "a"), (4, 600, "b"), (6, 1500, "a"))


def frames_of(store: MessageStore, start: int, epoch: int, size: int) -> list[MemberFrame]:
    """The leader's log from `start` on in one message."""
    frames = []
    while data := store.replication_source.read(start, size):
        frames.append(MemberFrame(start, epoch, 0, data))
        start += len(data)
    return frames


def follower(disk: FakeDisk) -> tuple[MessageStore, Following]:
    store = opened(disk, follower=True)
    epochs = open_epochs(disk, "/store", store.commit_log_max)
    return store, Following(store.follow_master(), epochs, InSyncMember("x", "1"), store.replication_source)


def test_a_leader_of_a_lower_epoch_and_its_frames_are_refused() -> None:
    source = Leader.__new__(Leader)
    source.store = opened(FakeDisk())
    source.put(5)
    _, following = follower(FakeDisk())
    following.accept(Welcome(member="a", epoch=6, epochs=EPOCHS))
    following.store(frames_of(source.store, 0, 6, 100)[:2])
    with pytest.raises(ProtocolError, match="epoch 5, which is over"):
        following.accept(Welcome(member="b", epoch=5, epochs=EPOCHS[:2]))
    received = following.replica.received
    rest = frames_of(source.store, received, 6, 100)
    with pytest.raises(ProtocolError, match="a frame of epoch 5"):
        following.store([rest[0]._replace(epoch=5)])
    following.epochs.promise(7)  # a candidate has asked for it
    with pytest.raises(ProtocolError, match="has promised 7"):
        following.store([rest[0]])
    assert following.replica.received == received


def test_a_member_with_other_records_than_the_leader_stores_nothing() -> None:
    disk = FakeDisk()
    source = opened(FakeDisk())
    source.put(draft(b"x"))
    _, following = follower(disk)
    following.accept(Welcome(member="a", epoch=2, epochs=((2, 0, "a"),)))
    following.store(frames_of(source, 0, 2, 1000))
    with pytest.raises(ProtocolError, match="up to 0"):
        following.accept(Welcome(member="b", epoch=3, epochs=((3, 0, "b"),)))
    assert following.epochs.promised == 2


@pytest.mark.parametrize("kept", [SurvivingData.NONE, SurvivingData.ALL, SurvivingData.SOME])
def test_the_epoch_of_each_stored_record_is_on_the_disk(kept: SurvivingData) -> None:
    """Power is lost at every change: no record survives whose epoch is unknown, or another one's."""
    source = Leader.__new__(Leader)
    source.store = opened(FakeDisk())
    source.put(20)

    def follow(disk: FakeDisk) -> None:
        _, following = follower(disk)
        following.accept(Welcome(member="a", epoch=7, epochs=EPOCHS))
        for frame in frames_of(source.store, 0, 7, 300):
            following.store([frame])

    complete = FakeDisk()
    follow(complete)
    for cut in range(1, complete.changes + 1):
        disk = FakeDisk()
        disk.power_off_at = cut
        with contextlib.suppress(PowerLost):
            follow(disk)
        for remaining in (disk.after_kill(), disk.after_power_loss(kept, random.Random(cut))):
            store, following = follower(remaining)
            wanted = tuple(Epoch(*entry) for entry in EPOCHS if entry[1] < store.commit_log_max)
            assert following.epochs.epochs[: len(wanted)] == wanted
            assert len(following.epochs.epochs) <= len(wanted) + 1
            following.accept(Welcome(member="a", epoch=7, epochs=EPOCHS))


def test_a_member_has_the_leaders_log_and_epochs() -> None:
    epochs = EpochHistory(FakeDisk(), "/store", promised=7, epochs=tuple(Epoch(*entry) for entry in EPOCHS))

    async def work(leader: Leader) -> None:
        store, following = follower(FakeDisk())
        pipe = leader.connect()
        following.accept(await greet(cast(Stream, pipe), following.hello(), None, "b", 1))
        frames = MemberFrameReader()
        starts = {start for _, start, _ in EPOCHS}
        while following.replica.received < leader.store.commit_log_max:
            received = frames.feed(await pipe.read(1))
            for frame in received:
                assert not any(frame.offset < start < frame.offset + len(frame.data) for start in starts)
            await pipe.write(encode_report(following.store(received)))
        store.dispatch_pending()
        assert store.get("T", 0, 0, 32).records == leader.store.get("T", 0, 0, 32).records
        assert following.epochs.epochs == epochs.epochs
        await turns()
        assert leader.feed.acknowledged_offset == leader.store.commit_log_max

    with_leader(work, epochs=epochs, epoch=7, records=25)


def test_an_incomplete_record_is_not_acknowledged_and_received_again() -> None:
    source = opened(FakeDisk())
    placed = source.put(draft(b"x" * 50))
    _, following = follower(FakeDisk())
    following.accept(Welcome(member="a"))
    data = source.replication_source.read(0, 1000)
    assert following.store([MemberFrame(0, 0, 0, data[:60])]).written == 0
    assert following.hello().end == 0
    assert following.store([MemberFrame(0, 0, 0, data)]).written == placed.size
    with pytest.raises(StoreError):
        following.epochs.promise(-1)


def test_a_member_with_sync_flush_acknowledges_what_is_on_its_disk() -> None:
    class Flusher:
        async def wait_on_disk(self, end_offset: int, timeout_s: float) -> bool:
            store.flush()
            return True

    source = opened(FakeDisk())
    placed = source.put(draft(b"x" * 50))
    store, following = follower(FakeDisk())
    following.flusher = cast(Any, Flusher())
    following.accept(Welcome(member="a"))
    report = following.store([MemberFrame(0, 0, 0, source.replication_source.read(0, 1000))])
    assert (report.written, report.flushed, following.has_unflushed) == (0, 0, True)
    asyncio.run(following.flush())
    assert (following.report().written, following.has_unflushed) == (placed.size, False)
