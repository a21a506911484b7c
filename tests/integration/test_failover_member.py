"""One member of a set with failover, in this process: its disk fails or is full, its agent ends, its switch is late."""

from __future__ import annotations

import asyncio
import errno
import random
import threading

import pytest
from msgspec.structs import replace

from ariane.broker.failover import supervisor
from ariane.broker.failover.supervisor import FailoverBroker
from ariane.broker.replication.member_identity import open_identity, read_boot_id
from ariane.errors import StoreError
from ariane.failover.coordination import RecordSnapshot
from ariane.failover.member_state import MemberRole
from ariane.store.disk.files import Usage
from ariane.store.log.checkpoint import read_checkpoint
from ariane.store.log.epochs import Epoch, open_epochs
from ariane.store.message_store import RecordDraft, StoreConfig, open_store
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData
from failover_members import (
    FILE_BYTES,
    HOST,
    TTL_S,
    MemoryCoordination,
    config_of,
    configs_of,
    has_all,
    leads,
    member,
    members,
    put,
    until,
)


def stored_incarnation(disk: FakeDisk) -> str:
    """Return what the next start has."""
    return open_identity(disk.after_kill(), "/store", "a", boot_id=read_boot_id(), log_end=1).member.incarnation


def test_6468_a_failed_disk_ends_the_lease_and_the_incarnation() -> None:
    """apache/rocketmq#6468: a master whose disk fails keeps its place, and takes no message."""

    async def work() -> None:
        disk, service = FakeDisk(), MemoryCoordination()
        async with member(config_of(), disk, service, creates_set=True) as broker:
            await leads(broker)
            put(broker)
            former = stored_incarnation(disk)

            def fail(kind: str, path: str) -> None:
                if ("commitlog" in path and kind == "fsync") or ("/ariane/member" in path and kind != "remove"):
                    raise OSError(errno.EIO, "I/O error", path)

            failed, disk.fail = broker.broker, fail
            put(broker)
            await until(lambda: broker.agent.state.role is not MemberRole.MASTER)
            assert broker.agent.state.me.incarnation != former
            await until(lambda: not service.has_lease)
            assert stored_incarnation(disk) != former, (
                "also if the process is killed now, and the identity cannot be written"
            )
            disk.fail = lambda kind, path: None
            await until(lambda: broker._broker not in (None, failed))
            await until(lambda: stored_incarnation(disk) == broker.agent.state.me.incarnation)
            assert service.record is not None
            assert broker.agent.state.me not in service.record.in_sync, "the set has to admit it again"

    asyncio.run(work())


@pytest.mark.long(
    "tests/unit/test_failover_decisions.py::test_a_hanging_disk_makes_a_member_ineligible",
    "tests/integration/test_failover_member.py::test_a_master_whose_disk_hangs_gives_the_lease_up_and_is_not_elected_again_at_once",
)
def test_a_master_with_a_full_disk_hands_over_to_a_member_with_room() -> None:
    async def work() -> None:
        configs, service = configs_of("ab"), MemoryCoordination()
        disks = {name: FakeDisk() for name in configs}
        async with members(configs, disks, service, creates_set=True) as brokers:
            await leads(brokers["a"])
            await until(lambda: has_all(service, 2))
            disks["a"].used = Usage(100, 9)
            await leads(brokers["b"])
            put(brokers["b"])
            disks["b"].used = Usage(100, 9)
            await until(lambda: not brokers["b"].has_room)
            for _ in range(2):
                await brokers["b"]._hand_over.leave_full_disk()
            assert brokers["b"].is_leader, "no other member has room"
            disks["a"].used = None
            await leads(brokers["a"])

    asyncio.run(work())


def test_members_without_room_elect_one_of_them() -> None:
    async def work() -> None:
        disk = FakeDisk()
        disk.used = Usage(100, 9)
        async with member(config_of(), disk, MemoryCoordination(), creates_set=True) as broker:
            await leads(broker)

    asyncio.run(work())


def test_a_master_whose_disk_hangs_gives_the_lease_up_and_is_not_elected_again_at_once() -> None:
    async def work() -> None:
        configs, service = configs_of("ab"), MemoryCoordination()
        disks, released = {name: FakeDisk() for name in configs}, threading.Event()

        def hang(kind: str, path: str) -> None:
            if path.endswith("/ariane/probe"):
                released.wait(30)

        async with members(configs, disks, service, creates_set=True) as brokers:
            await leads(brokers["a"])
            await until(lambda: has_all(service, 2))
            disks["a"].fail = hang
            await leads(brokers["b"])
            former = brokers["a"].agent
            assert former.state.role is MemberRole.INELIGIBLE
            assert former.state.readmission_s == 2 * TTL_S
            released.set()
            await until(lambda: former.state.role is MemberRole.FOLLOWER)
            assert brokers["b"].is_leader

    asyncio.run(work())


def durable_log(disk: FakeDisk, end: int) -> bytes:
    """Return the log up to `end` as a loss of power leaves it."""
    survivor = disk.after_power_loss(SurvivingData.NONE, random.Random(0))
    files = [bytes(survivor.contents(path)) for path in survivor.paths() if path.startswith("/store/commitlog/")]
    return b"".join(files)[:end]


def test_what_a_failed_flush_dropped_is_copied_again_before_the_member_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed flush the page cache has records that never reached the disk, and the next flush reports success."""
    monkeypatch.setattr(supervisor, "REOPEN_S", 0.1)

    async def work() -> None:
        configs, service = configs_of("ab", flush_disk_type="SYNC_FLUSH"), MemoryCoordination()
        disks = {name: FakeDisk() for name in configs}
        async with members(configs, disks, service, creates_set=True) as brokers:
            await leads(brokers["a"])
            await until(lambda: has_all(service, 2))
            services, former = brokers["a"].broker.services, brokers["b"].agent.state.me
            failed = []

            def fail(kind: str, path: str) -> None:
                if "commitlog" in path and kind == "fsync" and not failed:
                    failed.append(path)
                    raise OSError(errno.EIO, "I/O error", path)

            def put_three() -> int:
                end = [put(brokers["a"]) for _ in range(3)][-1]
                services.dispatcher.on_stored()
                return end

            end = put_three()
            await until(lambda: services.feed.acknowledged_offset >= end)
            while not read_checkpoint(disks["b"], "/store/checkpoint").safe_offset:  # what is below it is proven
                await asyncio.sleep(0.01)
                await brokers["b"].broker._flusher.flush_derived()
            disks["b"].fail = fail
            end = put_three()
            await until(lambda: bool(failed) and brokers["b"].agent.state.me != former)
            await until(lambda: service.record is not None and brokers["b"].agent.state.me in service.record.in_sync)
            await until(lambda: services.feed.acknowledged_offset >= end)
            log = durable_log(disks["a"], end)
            assert log.strip(b"\0")
            assert durable_log(disks["b"], end) == log
            assert [path for path in disks["b"].paths() if "/cut/" in path and not path.endswith(f"/{0:020d}-1")]

    asyncio.run(work())


def test_a_last_flush_that_fails_at_a_switch_leaves_a_broker() -> None:
    async def work() -> None:
        disk, service = FakeDisk(), MemoryCoordination()
        async with member(config_of(), disk, service, creates_set=True) as broker:
            await leads(broker)
            former = broker.agent.state.me
            failing = True

            def fail(kind: str, path: str) -> None:
                if failing and broker._broker is None and "checkpoint" in path:
                    raise OSError(errno.EIO, "I/O error", path)

            disk.fail = fail
            put(broker)
            broker.hand_over("b")
            await until(lambda: broker.agent.state.me != former)
            failing = False
            await until(lambda: broker._broker is not None)

    asyncio.run(work())


def test_a_set_is_created_again_after_its_record_was_lost() -> None:
    async def work() -> None:
        config, disk = config_of(), FakeDisk()
        for epoch in (1, 2):
            service = MemoryCoordination()
            async with member(config, disk, service, creates_set=True) as broker:
                await leads(broker)
                assert broker.agent.state.epoch == epoch
                put(broker)

    asyncio.run(work())


def test_a_set_without_messages_starts_again_after_an_orderly_stop() -> None:
    async def work() -> None:
        config, disk, service = config_of(), FakeDisk(), MemoryCoordination()
        for _ in range(2):
            async with member(config, disk, service, creates_set=True) as broker:
                await leads(broker)

    asyncio.run(work())


def test_a_member_takes_part_again_after_an_unexpected_answer() -> None:
    class OddCoordination(MemoryCoordination):
        is_odd = True

        async def read(self) -> RecordSnapshot:
            if self.is_odd:
                self.is_odd = False
                raise KeyError("kvs")
            return await super().read()

    async def work() -> None:
        service = OddCoordination()
        service.is_odd = False
        async with member(config_of(), FakeDisk(), service, creates_set=True) as broker:
            service.is_odd = True
            await leads(broker)
            service.is_odd = True
            await until(lambda: not service.is_odd)
            await leads(broker)

    asyncio.run(work())


def test_a_switch_after_the_deadline_leaves_a_master_that_takes_sends() -> None:
    async def work() -> None:
        async with member(config_of(), FakeDisk(), MemoryCoordination(), creates_set=True) as broker:
            await leads(broker)
            agent = broker.agent
            hand_over = broker._hand_over
            drain = hand_over.drain

            async def late(successor: str) -> StoreError:
                refusal = await drain(successor)
                agent.state = replace(agent.state, role=MemberRole.HOLDING)  # the deadline passed
                return refusal

            hand_over.drain = late  # type: ignore[method-assign]
            await hand_over.run("b")
            await leads(broker)
            assert broker.broker.services.store.refusal is None
            put(broker)

    asyncio.run(work())


class ShortenedLog(FailoverBroker):
    """A member that lost the end of its log while its store was closed."""

    async def _close_broker(self, *, is_final: bool = False) -> None:
        await super()._close_broker(is_final=is_final)
        self._incarnation.log_end += 100


def test_a_log_that_became_shorter_is_not_promoted() -> None:
    async def work() -> None:
        service = MemoryCoordination()
        broker = ShortenedLog(config_of(), disk=FakeDisk(), coordination=service, creates_set=True)
        async with asyncio.timeout(60), broker:
            await until(lambda: service.record is not None and service.record.epoch > 0)
            assert service.record is not None
            await until(lambda: service.record is not None and broker.agent.state.me not in service.record.in_sync)
            await until(lambda: broker.agent.state.role is MemberRole.INELIGIBLE)
            assert "had records up to" in broker.agent.state.fault

    asyncio.run(work())


def forked_member(disk: FakeDisk, records: int) -> str:
    """Return the incarnation of a log of several files with an epoch of its own, whose first files retention has removed."""
    store = open_store(
        StoreConfig(root="/store", commit_log_size=FILE_BYTES, consume_queue_size=6_000_000), disk, store_host=HOST
    )
    for _ in range(records):
        store.put(RecordDraft(topic="SELF_TEST_TOPIC", queue_id=0, body=b"x" * 1000, born_ms=1, born_host=HOST))
    store.flush()
    store.dispatch_pending()
    store.write_checkpoint()
    for file in store.retention.log_files():
        removal = store.retention.begin_log_removal(file)
        assert removal is not None
        store.write_checkpoint()
        removal.run()
        store.retention.end_log_removal(removal)
    assert store.commit_log_min > 0
    open_epochs(disk, "/store", store.commit_log_max).begin(Epoch(1, store.commit_log_min, "b"))
    store.close()
    return open_identity(disk, "/store", "b", boot_id=read_boot_id(), log_end=1).member.incarnation


def test_a_log_without_a_common_record_is_put_aside_as_a_whole() -> None:
    """A former master returns after retention has removed its last common record: nothing of its log can stay."""

    async def work() -> None:
        configs, service = configs_of("ab"), MemoryCoordination()
        disks = {name: FakeDisk() for name in configs}
        former = forked_member(disks["b"], 3 * FILE_BYTES // 1000)
        async with members(configs, disks, service, creates_set=True) as brokers:
            await leads(brokers["a"])
            put(brokers["a"])
            await until(lambda: has_all(service, 2))
            assert brokers["b"].agent.state.me.incarnation != former, (
                "the set must not rely on the log that was put aside"
            )
            end = put(brokers["a"])
            brokers["a"].broker.services.dispatcher.on_stored()
            await until(lambda: brokers["a"].broker.services.feed.acknowledged_offset >= end)
            ends = [broker.broker.services.store.commit_log_max for broker in brokers.values()]
            assert ends == [end, end]
            assert [path for path in disks["b"].paths() if path.startswith("/store/cut/")]

    asyncio.run(work())


def damaged_member(*, has_queues: bool = True, flushed: int = 3) -> tuple[FakeDisk, int]:
    """Return the disk of a member that was killed, whose fifth record is corrupt, and where the fourth begins.

    Args:
        flushed: Number of records below the checkpoint.
    """
    disk = FakeDisk()
    config = StoreConfig(root="/store", commit_log_size=FILE_BYTES, consume_queue_size=6_000_000)
    store = open_store(config, disk, store_host=HOST)
    open_epochs(disk, "/store").begin(Epoch(1, 0, "b"))
    offsets = []
    for _ in range(6):
        draft = RecordDraft(topic="SELF_TEST_TOPIC", queue_id=0, body=b"x" * 100, born_ms=1, born_host=HOST)
        offsets.append(store.put(draft).offset)
        if len(offsets) == flushed:
            store.flush()
            store.dispatch_pending()
            store.write_checkpoint()
    killed = disk.after_kill()
    log = next(path for path in killed.paths() if path.startswith("/store/commitlog/"))
    killed.contents(log)[offsets[4] + 120] ^= 1  # a byte of its body
    if not has_queues:
        killed.remove_tree("/store/consumequeue")
    return killed, offsets[3]


@pytest.mark.parametrize("has_queues", [True, False])
def test_a_start_that_is_killed_while_it_repairs_the_log_leaves_another_incarnation(*, has_queues: bool) -> None:
    """A repaired log does not show what it lost, and a checkpoint of a rebuild covers what was not proven."""

    async def start(disk: FakeDisk, killed_at: int | None = None) -> tuple[str, Epoch, int]:
        changes = 0

        def check(kind: str, path: str) -> None:
            nonlocal changes
            changes += not path.endswith("/ariane/probe")  # of a thread
            if changes == killed_at:
                disk.power_off_at = disk.changes
                raise PowerLost(f"{kind} of {path}")

        disk.fail = check
        async with member(config_of(), disk, MemoryCoordination(), restore_topics=True) as broker:
            needed = changes
            return broker.agent.state.me.incarnation, broker._epochs().epochs[-1], needed

    async def work() -> None:
        damaged, proven = damaged_member(has_queues=has_queues)
        former = open_identity(damaged, "/store", "a", boot_id=read_boot_id(), log_end=1)
        former.mark_distrusted()
        _, _, changes = await start(damaged.after_kill())
        assert changes > 10
        for change in range(1, changes):
            disk = damaged.after_kill()
            with pytest.raises(PowerLost):
                await start(disk, change)
            incarnation, last, _ = await start(disk.after_kill())
            assert incarnation != former.member.incarnation, f"killed at change {change}"
            assert (last.start, last.holder[0]) == (proven, "?"), f"killed at change {change}"

    asyncio.run(work())


def test_a_start_after_a_failure_of_the_disk_reads_what_was_flushed_before() -> None:
    """A file system that is mounted again after its disk failed can lack records below the checkpoint."""

    async def work() -> None:
        disk, readable = damaged_member(flushed=6)
        former = open_identity(disk, "/store", "a", boot_id=read_boot_id(), log_end=1)
        former.mark_distrusted()
        assert former.has_failed
        async with member(config_of(), disk, MemoryCoordination(), restore_topics=True) as broker:
            assert broker.agent.state.me != former.member
            assert broker.broker.services.store.commit_log_max == readable
        assert [path for path in disk.paths() if path.startswith("/store/cut/")]
        assert not open_identity(disk, "/store", "a", boot_id=read_boot_id(), log_end=1).has_failed

    asyncio.run(work())


def test_a_flush_that_fails_at_the_start_of_a_process_ends_the_incarnation() -> None:
    """The kernel reports a failed writeback of a killed process once, to the first flush of the next one."""

    async def work() -> None:
        config, disk, service = config_of(), FakeDisk(), MemoryCoordination()
        async with member(config, disk, service, creates_set=True) as broker:
            await leads(broker)
            put(broker)
            killed = disk.after_kill()
        former = stored_incarnation(killed)

        def fail(kind: str, path: str) -> None:
            if "commitlog" in path and kind == "fsync":
                raise OSError(errno.EIO, "I/O error", path)

        killed.fail = fail
        with pytest.raises((OSError, StoreError)):
            async with member(config, killed, service):
                pass
        killed.fail = lambda kind, path: None
        assert stored_incarnation(killed) != former

    asyncio.run(work())
