"""When stored messages are dispatched to their queues: at once for a held pull or a reader, otherwise in rounds."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from ariane.broker.config.broker_config import BrokerConfig, to_store_config
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery import post_store
from ariane.broker.delivery.post_store import COLLECT_S, DISPATCH_RETRY_S, PostStoreDispatcher
from ariane.broker.replication.replication import ReplicationFeed
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.kernels.key_hashes import KeyHashes
from ariane.kernels.sends.send_turn import QueueRun, SendRun
from ariane.model import host
from ariane.protocol.records.queue_entry import ENTRY
from ariane.protocol.records.record import encode_v4
from ariane.store.index.key_query import KeyQuery
from ariane.store.message_store import ROUND_QUEUES, RecordDraft, open_store
from ariane.store.writing.store_dispatcher import CREATIONS_MAX
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk
from ariane.testing.virtual.virtual_time import VirtualLoop

HERE = host.pack("127.0.0.1", 10911)
KEYS = "KEYS\x01k\x02"


class DispatchRig:
    """A dispatcher with its store on a fake disk."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        config = BrokerConfig(
            broker_name="b", store_path_root_dir="/store", mapped_file_size_commit_log=100_000, **settings
        )
        self.config = to_store_config(config)
        self.disk = FakeDisk()
        self.store = open_store(self.config, self.disk, now_ms=self.clock.now_ms, store_host=HERE)
        self.feed = ReplicationFeed(config, self.store)
        self.dispatcher = PostStoreDispatcher(
            settings=DynamicConfig(config, 0),
            store=self.store,
            stats=BrokerStats("C"),
            feed=self.feed,
            clock=self.clock,
        )

    def send(self, *queue_ids: int, tag: int = 0) -> None:
        """Send a message to each of these queues, all in one run."""
        end = self.store.log_end()
        assert end is not None
        records, queues, keyed, offset = [], [], [], end.offset
        for queue_id in queue_ids:
            number = self.store.next_offset("T", queue_id)
            record = encode_v4(
                b"T", b"x", KEYS.encode(), queue_id, number, offset, 0, HERE, end.store_ms, HERE, 0, 0, 0, 0
            )
            queues.append(QueueRun("T", queue_id, ENTRY.pack(offset, len(record), tag), 1, len(record)))
            records.append(record)
            keyed.append(("T", KEYS, offset, end.store_ms))
            offset += len(record)
        run = SendRun(0, len(records), b"".join(records), queues, KeyHashes().hash_keys(keyed), b"")
        self.store.put_run(run, end.store_ms)
        self.dispatcher.on_sends_stored(queues)

    def put(self, queue_id: int) -> None:
        self.store.put(RecordDraft(topic="T", queue_id=queue_id, body=b"x", born_ms=0, born_host=HERE))
        self.dispatcher.on_stored()

    def created(self) -> int:
        """Return the number of queues that have a file."""
        return sum(bool(queue.segments.bases) for queue in self.store._queues.by_id("T").values())  # type: ignore[attr-defined]

    def written(self, queue_id: int) -> int:
        """Return the number of entries in the file of a queue."""
        queue = self.store._queues.get(("T", queue_id))
        return 0 if queue is None else queue.max


def run(scenario: Callable[[DispatchRig], Coroutine[Any, Any, None]], **settings: Any) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(scenario(DispatchRig(**settings)))
    finally:
        loop.close()


async def ticks(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_messages_that_nothing_waits_for_are_written_together() -> None:
    async def scenario(rig: DispatchRig) -> None:
        rig.send(0)
        await ticks()
        rig.send(0, 1)
        await ticks()
        assert (rig.written(0), rig.written(1), rig.store.collected_records) == (0, 0, 3)
        await asyncio.sleep(COLLECT_S)
        await ticks()
        assert (rig.written(0), rig.written(1), rig.store.collected_records) == (2, 1, 0)
        assert rig.store._dispatcher.dispatched == rig.store.commit_log_max
        rig.send(0)
        await asyncio.sleep(COLLECT_S)
        await ticks()
        assert rig.written(0) == 3

    run(scenario)


def test_a_round_writes_some_queues_in_each_iteration_of_the_loop() -> None:
    async def scenario(rig: DispatchRig) -> None:
        queues = range(3 * ROUND_QUEUES)
        rig.send(*queues)
        rig.store.dispatch_pending()  # creates their files
        rig.send(*queues)
        await asyncio.sleep(COLLECT_S)
        written = [sum(rig.written(queue_id) for queue_id in queues)]
        while rig.store.collected_records:
            rig.send(0)  # messages that come during a round are in it, or in the next one
            await asyncio.sleep(0)
            written.append(sum(rig.written(queue_id) for queue_id in queues[1:]))
            if written[-1] == 2 * len(queues[1:]):
                break
        assert len(written) >= 2
        assert all(later - earlier <= ROUND_QUEUES for earlier, later in itertools.pairwise(written))
        total = rig.store.max_offset("T", 0)
        await asyncio.sleep(COLLECT_S)
        await ticks()
        assert rig.store.collected_records == 0
        assert rig.written(0) == total == len(rig.store.get("T", 0, 0, 32).records)

    run(scenario)


def test_a_round_creates_some_files_in_each_iteration_of_the_loop() -> None:
    async def scenario(rig: DispatchRig) -> None:
        rig.send(*range(3 * CREATIONS_MAX))
        await asyncio.sleep(COLLECT_S)
        created = [rig.created()]
        while rig.store.collected_records:
            await asyncio.sleep(0)
            created.append(rig.created())
        assert created[0] < created[-1] == 3 * CREATIONS_MAX
        assert all(later - earlier <= CREATIONS_MAX for earlier, later in itertools.pairwise(created))

    run(scenario)


def test_messages_for_new_queues_wait_for_the_files_of_those_before_them() -> None:
    """The files of hundreds of new topics were created in one iteration of the loop: all other clients waited for 0.5 s."""

    async def scenario(rig: DispatchRig) -> None:
        for queue_id in range(3 * CREATIONS_MAX):
            rig.put(queue_id)
            assert rig.created() >= queue_id - CREATIONS_MAX
        await ticks()
        assert rig.created() == 3 * CREATIONS_MAX
        assert [rig.store.max_offset("T", queue_id) for queue_id in range(3 * CREATIONS_MAX)] == [1] * 3 * CREATIONS_MAX

    run(scenario)


def test_a_flush_creates_some_files_in_each_iteration_of_the_loop() -> None:
    async def scenario(rig: DispatchRig) -> None:
        waiter = rig.dispatcher.pull_waiters.wait("T", 3 * CREATIONS_MAX - 1, 0, None, 60_000)
        for queue_id in range(3 * CREATIONS_MAX):
            rig.put(queue_id)
        rig.store.flush()
        rig.dispatcher.on_flushed()
        created = [rig.created()]
        while not waiter.done():
            await asyncio.sleep(0)
            created.append(rig.created())
        assert (created[0], created[-1]) == (0, 3 * CREATIONS_MAX)
        assert all(later - earlier <= CREATIONS_MAX for earlier, later in itertools.pairwise(created))

    run(scenario, flush_disk_type="SYNC_FLUSH")


def test_many_collected_entries_are_written_before_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_store, "COLLECTED_MAX", 4)

    async def scenario(rig: DispatchRig) -> None:
        for _ in range(4):
            rig.send(0)
        await ticks()
        assert rig.written(0) == 4

    run(scenario)


def test_a_reader_sees_what_was_sent_before() -> None:
    async def scenario(rig: DispatchRig) -> None:
        rig.send(0, 1, 2, 3)
        assert rig.store.has_queue("T", 3) and rig.store.topics() == {"T": [0, 1, 2, 3]}
        assert rig.store.max_offset("T", 0) == 1
        assert len(rig.store.get("T", 1, 0, 32).records) == 1
        assert len(rig.store.entries("T", 2, 0, 32)) == 1
        assert rig.store.collected_records == 1
        assert rig.store.dispatched == rig.store.commit_log_max

    run(scenario)


def test_a_query_by_key_finds_what_was_sent_before() -> None:
    async def scenario(rig: DispatchRig) -> None:
        for number in range(3):
            rig.send(0, 1)
            assert len(rig.store.query(KeyQuery("T", "k", 32)).records) == 3 * number + 2
            rig.send(2)
            rig.store.write_checkpoint()  # covers the records that are dispatched: none
            assert len(rig.store.query(KeyQuery("T", "k", 32)).records) == 3 * number + 3
            rig.store.dispatch_singles()

    run(scenario)


def test_a_single_message_follows_the_sends_before_it() -> None:
    async def scenario(rig: DispatchRig) -> None:
        rig.send(0, 1)
        rig.put(0)
        rig.send(0, 1)  # listed behind the single one
        await ticks()
        rig.send(0)
        assert (rig.written(0), rig.written(1), rig.store.collected_records) == (3, 2, 1)
        assert len(rig.store.get("T", 0, 0, 32).records) == 4

    run(scenario)


def test_a_held_pull_gets_its_message_at_once() -> None:
    async def scenario(rig: DispatchRig) -> None:
        waiter = rig.dispatcher.pull_waiters.wait("T", 0, 0, None, 60_000)
        rig.send(0, 1)
        await ticks()
        assert waiter.done()
        assert (rig.written(0), rig.written(1)) == (1, 0)

    run(scenario)


def test_a_held_pull_is_woken_although_a_reader_or_a_single_message_came_first() -> None:
    async def scenario(rig: DispatchRig) -> None:
        read = rig.dispatcher.pull_waiters.wait("T", 0, 0, frozenset({7}), 60_000)
        listed = rig.dispatcher.pull_waiters.wait("T", 1, 0, frozenset({7}), 60_000)
        rig.send(0, 1, tag=7)
        rig.put(1)
        assert rig.store.max_offset("T", 0) == 1
        await ticks()
        assert read.done() and listed.done()

    run(scenario)


def test_a_connected_slave_is_notified_of_sends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: DispatchRig) -> None:
        monkeypatch.setattr(ReplicationFeed, "has_slaves", True)
        more = rig.feed._more
        rig.send(0)
        assert more.is_set()

    run(scenario)


def test_in_synchronous_mode_nothing_is_collected() -> None:
    async def scenario(_: DispatchRig) -> None:
        rig = DispatchRig(flush_disk_type="SYNC_FLUSH")
        requests: list[int] = []
        rig.dispatcher.flush_before_dispatch(SimpleNamespace(request_flush=lambda: requests.append(1)))
        rig.send(0)
        assert requests == [1]
        await ticks()
        assert (rig.written(0), rig.store.collected_records, rig.store.max_offset("T", 0)) == (0, 0, 0)
        rig.store.flush()
        assert rig.store.max_offset("T", 0) == 1

    run(scenario)


def test_entries_that_cannot_be_written_are_written_later(caplog: pytest.LogCaptureFixture) -> None:
    def fail(what: str, path: str) -> None:
        if what == "write" and "/consumequeue/" in path:
            raise OSError(errno.EIO, "broken", path)

    async def scenario(rig: DispatchRig) -> None:
        rig.send(0, 1)
        rig.disk.fail = fail
        waiter = rig.dispatcher.pull_waiters.wait("T", 1, 0, None, 60_000)
        await asyncio.sleep(COLLECT_S)
        assert rig.store.max_offset("T", 0) == 0
        assert len(caplog.records) == 1 and "stay invisible" in caplog.records[0].getMessage()
        rig.disk.fail = lambda what, path: None
        rig.send(0)
        await asyncio.sleep(DISPATCH_RETRY_S)
        await ticks()
        assert waiter.done()
        assert (rig.written(0), rig.written(1), rig.store.collected_records) == (2, 1, 0)

    run(scenario)


def test_a_stop_writes_what_is_collected_and_nothing_later() -> None:
    async def scenario(rig: DispatchRig) -> None:
        rig.send(0, 1)
        rig.store.close()
        changes = rig.disk.changes
        await asyncio.sleep(COLLECT_S)
        assert rig.disk.changes == changes
        store = open_store(rig.config, rig.disk, now_ms=rig.clock.now_ms, store_host=HERE)
        assert store.recovery_report.clean
        assert (store.max_offset("T", 0), store.max_offset("T", 1)) == (1, 1)

    run(scenario)
