"""Confirmed reads: consumers see what all in-sync brokers have, and numbers come from the whole log."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.replication.confirmed_reads import READ_CODES, ConfirmedReads
from ariane.broker.replication.following import Following
from ariane.broker.replication.replication import ReplicationFeed
from ariane.errors import ConfigError
from ariane.failover.leader_record import InSyncMember
from ariane.model import host
from ariane.net.connection import Reply
from ariane.net.replies import TurnHandler
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records.member_stream import MemberFrame, Welcome
from ariane.store.index.key_query import KeyQuery
from ariane.store.log.epochs import open_epochs
from ariane.store.message_store import GetStatus, MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, SurvivingData

HOST = host.pack("127.0.0.1", 10911)
SIZES: dict[str, Any] = {"commit_log_size": 4096, "consume_queue_size": 200, "confirmed_reads": True, "index": True}


def opened(disk: FakeDisk, *, follower: bool = False, flush: Any = "async") -> MessageStore:
    config = StoreConfig(root="/store", follower=follower, flush=flush, index_slots=10, index_entries=50, **SIZES)
    return open_store(config, disk, now_ms=FakeClock(tick_ms=1).now_ms, store_host=HOST)


def put(store: MessageStore, body: bytes) -> tuple[int, int]:
    """Append a message; return its number and the end of its record."""
    draft = RecordDraft(
        topic="T",
        queue_id=0,
        body=body,
        born_ms=1,
        born_host=HOST,
        properties="KEYS\x01k\x02UNIQ_KEY\x01" + body.decode(),
    )
    result = store.put(draft)
    return result.queue_offset, result.offset + result.size


def confirm(store: MessageStore, end: int) -> int:
    """Confirm the log up to `end`; return the number of arrivals."""
    store.replication_source.confirmed = end
    return len(store.dispatch_pending())


def bodies(store: MessageStore) -> list[bytes]:
    result = store.get("T", 0, 0, 32)
    return [record.partition(b"body")[2][:2] for record in result.records] if result.status is GetStatus.FOUND else []


def test_only_confirmed_messages_can_be_read() -> None:
    store = opened(FakeDisk())
    ends = [put(store, b"body%02d" % number)[1] for number in range(4)]
    assert store.dispatch_pending() == []
    for count, end in enumerate(ends, 1):
        assert confirm(store, end - 1) == 0
        assert (store.max_offset("T", 0), len(bodies(store))) == (count - 1, count - 1)
        assert store.read_queue_record("T", 0, count - 1) is None
        assert confirm(store, end) == 1
        assert (store.max_offset("T", 0), len(bodies(store))) == (count, count)
        query = KeyQuery("T", "k", 32, 0, 1 << 60)
        assert len(store.query(query).records) == count
        assert store.read_record(end) is None
        store.turn_reads.begin()
        store.turn_reads.select_topic("T")
        assert store.turn_reads.find(0, count, 1) is None
        assert store.replication_source.read(0, 4096)[:end]  # slaves read everything
    assert store.next_offset("T", 0) == 4


def test_flush_mode_and_confirmation_both_limit_reads() -> None:
    store = opened(FakeDisk(), flush="sync")
    _, end = put(store, b"body00")
    assert confirm(store, end) == 0
    store.flush()
    assert len(store.dispatch_pending()) == 1
    _, later = put(store, b"body01")
    store.flush()
    assert store.dispatch_pending() == []
    assert confirm(store, later) == 1


@pytest.mark.parametrize("stop", ["killed", "stopped", "power"])
def test_no_number_is_used_twice_after_a_restart_with_unconfirmed_messages_issue_7689(stop: str) -> None:
    """Numbers come from the whole log: rebuilt only up to the confirmed end, two messages would have one number."""
    disk = FakeDisk()
    store = opened(disk)
    _, confirmed = put(store, b"body00")
    confirm(store, confirmed)
    for number in range(1, 4):
        assert put(store, b"body%02d" % number)[0] == number
    if stop == "stopped":
        store.close()
    store.flush() if stop == "power" else None
    again = opened(
        disk.after_power_loss(SurvivingData.NONE, random.Random(1)) if stop == "power" else disk.after_kill()
    )
    reads = ConfirmedReads(again)
    assert not reads.is_open
    number, end = put(again, b"body04")
    assert number == 4
    confirm(again, end)
    assert reads.is_open
    assert bodies(again) == [b"00", b"01", b"02", b"03", b"04"]


def test_until_the_log_of_the_start_is_confirmed_reads_are_refused() -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, b"body00")
    store.flush()
    store = opened(disk.after_kill())
    reads = ConfirmedReads(store)
    served: list[int] = []

    def serve(command: Command, peer: object) -> Reply:
        served.append(command.code)
        return Reply()

    class Turns:
        def serve(self, *_: object) -> str:
            return "served"

    handlers = reads.with_checks(dict.fromkeys((*READ_CODES, RequestCode.HEART_BEAT), serve))  # type: ignore[dict-item]
    turns = reads.with_turn_check(cast(TurnHandler, Turns()))
    for code, handler in handlers.items():
        reply = handler(Command(code), None)  # type: ignore[arg-type]
        assert isinstance(reply, Reply)
        assert reply.code == (0 if code == RequestCode.HEART_BEAT else ResponseCode.SERVICE_NOT_AVAILABLE)
    assert served == [RequestCode.HEART_BEAT]
    assert turns.serve(b"", 0, None, 0.0) is None  # type: ignore[arg-type]
    store.replication_source.confirmed = store.commit_log_max
    for code, handler in handlers.items():
        handler(Command(code), None)  # type: ignore[arg-type]
    assert len(served) == len(READ_CODES) + 2
    assert turns.serve(b"", 0, None, 0.0) == "served"  # type: ignore[arg-type, comparison-overlap]


def feed_of(store: MessageStore, **settings: Any) -> tuple[ReplicationFeed, list[int]]:
    config = BrokerConfig(broker_name="b", broker_role="SYNC_MASTER", confirmed_reads=True, **settings)
    feed = ReplicationFeed(config, store)
    calls: list[int] = []
    feed.on_confirmed = lambda: calls.append(len(store.dispatch_pending()))
    return feed, calls


def test_a_master_alone_confirms_its_own_log() -> None:
    async def run() -> None:
        store = opened(FakeDisk())
        feed, calls = feed_of(store)
        put(store, b"body00")
        feed.notify_appended()
        feed.notify_appended()
        assert calls == [1]

    asyncio.run(run())


def test_the_confirmed_end_waits_for_absent_members_issue_6662() -> None:
    """A master that is cut off from a member must not let consumers pass messages that the member lacks."""

    async def run() -> None:
        store = opened(FakeDisk())
        feed, _ = feed_of(store, min_in_sync_replicas=2)
        _, first = put(store, b"body00")
        feed.notify_appended()
        await feed.update_in_sync_set()
        assert bodies(store) == []
        member = InSyncMember("x", "1")
        feed._members[member] = cast(Any, None)
        feed._in_sync.on_report(member, first)
        feed._update()
        assert bodies(store) == [b"00"]
        _, second = put_unchecked(store, b"body01")
        feed.notify_appended()
        assert bodies(store) == [b"00"]
        del feed._members[member]  # cut off
        feed._in_sync.on_disconnect(member)
        feed._update()
        await feed.update_in_sync_set()
        assert feed.in_sync_size == 1
        assert bodies(store) == [b"00"]
        feed._members[member] = cast(Any, None)
        feed._in_sync.on_report(member, second)
        feed._update()
        assert bodies(store) == [b"00", b"01"]

    asyncio.run(run())


def put_unchecked(store: MessageStore, body: bytes) -> tuple[int, int]:
    store.refusal = None
    return put(store, body)


def test_consumers_of_a_slave_read_up_to_the_masters_confirmed_end() -> None:
    source, disk = opened(FakeDisk()), FakeDisk()
    ends = [put(source, b"body%02d" % number)[1] for number in range(3)]
    slave = opened(disk, follower=True)
    member = InSyncMember("x", "1")
    following = Following(slave.follow_master(), open_epochs(disk, "/store", 0), member, slave.replication_source)
    following.accept(Welcome(member="b-0"))
    data = source.replication_source.read(0, 4096)
    assert following.store([MemberFrame(0, 0, ends[0], data)]).written == ends[2]
    assert len(slave.dispatch_pending()) == 1
    assert bodies(slave) == [b"00"]
    following.store([MemberFrame(ends[2], 0, ends[1], b""), MemberFrame(ends[2], 0, ends[0], b"")])
    assert len(slave.dispatch_pending()) == 1
    assert bodies(slave) == [b"00", b"01"]
    slave.flush()
    again = opened(disk.after_kill(), follower=True)
    assert not ConfirmedReads(again).is_open
    slave.close()


def test_without_the_setting_nothing_is_checked() -> None:
    store = open_store(StoreConfig(root="/store", commit_log_size=4096), FakeDisk(), store_host=HOST)
    reads, turns = ConfirmedReads(store), cast(TurnHandler, object())
    assert store.replication_source.confirmed is None
    assert reads.is_open
    assert reads.with_turn_check(turns) is turns
    _, end = put(store, b"body00")
    assert store.replication_source.readable_end == end
    with pytest.raises(ConfigError, match="confirmedReads"):
        BrokerConfig(broker_name="b", confirmed_reads=True).validate()
