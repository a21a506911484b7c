"""Retention: which old files are removed, and what remains readable."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from ariane.broker.delivery.delayed_delivery import move_timers
from ariane.broker.handlers.admin import runtime_info
from ariane.errors import StoreError, StoreFull
from ariane.model import host
from ariane.model.message import REAL_QID, REAL_TOPIC, TIMER_OUT_MS
from ariane.model.topic import TIMER_TOPIC
from ariane.protocol.records import properties
from ariane.store.disk.files import SystemDisk, Usage
from ariane.store.message_store import GetStatus, MessageStore, RecordDraft, StoreConfig, open_store
from ariane.store.upkeep.retention import (
    FILES_MAX,
    RetainedFile,
    RetentionRule,
    RetentionTrigger,
    count_removable,
    removal_trigger,
    used_percent,
)
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, SurvivingData

HOST = host.pack("127.0.0.1", 10911)
RULE = RetentionRule(reserved_ms=1000, hours=frozenset({4}), used_max=75, forced_above=85)
CONFIG = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=100)


@pytest.mark.parametrize(
    ("usage", "percent"),
    [
        (Usage(100, 25), 75),
        (Usage(1000, 249), 76),
        (Usage(10, 10), 0),
        (Usage(10, 0), 100),
        (None, -1),
        (Usage(0, 0), -1),
    ],
)
def test_disk_usage_is_rounded_up_and_unknown_is_not_zero(usage: Usage | None, percent: int) -> None:
    assert used_percent(usage) == percent


@pytest.mark.parametrize(
    ("percent", "hour", "manual", "why"),
    [
        (10, 4, False, RetentionTrigger.HOUR),
        (75, 5, False, None),
        (76, 5, False, RetentionTrigger.SPACE),
        (-1, 5, False, RetentionTrigger.SPACE),
        (10, 5, True, RetentionTrigger.MANUAL),
    ],
)
def test_the_trigger_of_a_removal_follows_usage_hour_and_request(
    percent: int, hour: int, manual: bool, why: RetentionTrigger | None
) -> None:
    assert removal_trigger(RULE, percent, hour, manual=manual) is why


def test_files_are_removed_oldest_first_up_to_the_first_unexpired_one() -> None:
    files = [RetainedFile(0, 100), RetainedFile(1, 200), RetainedFile(2, 900), RetainedFile(3, 150)]
    assert count_removable(files, RULE, 10, 1099) == 0
    assert count_removable(files, RULE, 10, 1200) == 2
    assert count_removable(files, RULE, 85, 1200) == 2
    assert count_removable(files, RULE, 86, 0) == 4
    assert count_removable(files, RULE._replace(forced_above=None), 99, 1200) == 2
    assert count_removable([RetainedFile(n, 0) for n in range(99)], RULE, 99, 0) == FILES_MAX


def opened(disk: FakeDisk, config: StoreConfig = CONFIG) -> MessageStore:
    return open_store(config, disk, now_ms=disk.now_ms, store_host=HOST)


def draft(body: bytes, queue_id: int = 0, topic: str = "T") -> RecordDraft:
    return RecordDraft(topic=topic, queue_id=queue_id, body=body, born_ms=1, born_host=HOST)


def filled(count: int = 60) -> tuple[FakeDisk, MessageStore]:
    """A store with one message per ms, half of them in each of two queues, all flushed."""
    disk = FakeDisk()
    disk.now_ms = FakeClock(1_000_000, tick_ms=1).now_ms
    store = opened(disk)
    for number in range(count):
        store.put(draft(b"%03d" % number, number % 2))
    store.flush()
    store.dispatch_pending()
    store.write_checkpoint()
    return disk, store


def clean(store: MessageStore, count: int, *, before_each: Callable[[], None] = lambda: None) -> int:
    """Remove the `count` oldest log files and what pointed into them, as the broker does; how many queue files went."""
    for file in store.retention.log_files()[:count]:
        before_each()
        removal = store.retention.begin_log_removal(file)
        assert removal is not None
        removal.run()
        store.retention.end_log_removal(removal)
    removed = 0
    while store.retention.plan_queue_files():
        store.write_checkpoint()
        removed += store.retention.remove_queue_files()
    return removed


def names(disk: FakeDisk, part: str) -> list[int]:
    return [int(path.rpartition("/")[2]) for path in disk.paths() if part in path]


def readable(store: MessageStore, queue_id: int) -> list[int]:
    """Queue offsets that a consumer gets who begins at the queue's minimum."""
    match, offset = [], store.min_offset("T", queue_id)
    while True:
        result = store.get("T", queue_id, offset, 32)
        if result.status is not GetStatus.FOUND:
            return match
        match += range(result.next_offset - len(result.records), result.next_offset)
        offset = result.next_offset


def test_log_queues_and_minimum_offsets_are_trimmed_together() -> None:
    disk, store = filled()
    logs, queue_files = names(disk, "commitlog"), names(disk, "/T/0/")
    assert len(logs) > 4 and len(queue_files) > 3
    per_file = 1024 // 93
    assert clean(store, 3) > 0
    assert names(disk, "commitlog") == logs[3:]
    assert store.commit_log_min == 3 * 1024
    assert names(disk, "/T/0/")[0] > queue_files[0]
    first = store.min_offset("T", 0)
    assert 0 < first <= 3 * per_file
    assert readable(store, 0) == list(range(first, 30))
    result = store.get("T", 0, first - 1, 32)
    assert (result.status, result.next_offset, result.min_offset) == (GetStatus.OFFSET_TOO_SMALL, first, first)
    assert store.read_record(0) is None
    earliest = store.earliest_ms("T", 0)
    assert earliest == store.store_time("T", 0, first) and earliest is not None
    store.close()
    repeated = opened(disk.after_kill())
    assert (repeated.min_offset("T", 0), repeated.max_offset("T", 0)) == (first, 30)
    assert repeated.recovery_report.notes == ()
    assert readable(repeated, 0) == list(range(first, 30))


def test_the_last_files_of_log_and_queue_are_retained() -> None:
    disk, store = filled()
    clean(store, 99)
    assert len(names(disk, "commitlog")) == 1
    assert len(names(disk, "/T/0/")) == 1
    assert store.retention.log_files() == []
    assert store.max_offset("T", 0) == 30
    placed = store.put(draft(b"next"))
    store.dispatch_pending()
    assert placed.queue_offset == 30
    assert readable(store, 0)[-1] == 30


def test_an_empty_queue_retains_its_maximum_offset() -> None:
    disk, store = filled(10)
    for number in range(60):
        store.put(draft(b"%d" % number, 1))
    store.flush()
    store.dispatch_pending()
    store.write_checkpoint()
    clean(store, 99)
    assert store.min_offset("T", 0) == store.max_offset("T", 0) == 5
    assert store.get("T", 0, 0, 32).status is GetStatus.OFFSET_TOO_SMALL
    assert store.get("T", 0, 5, 32).status is GetStatus.OFFSET_OVERFLOW_ONE
    store.close()
    repeated = opened(disk.after_kill())
    assert repeated.put(draft(b"goes on")).queue_offset == 5


def test_files_needed_by_a_start_are_retained() -> None:
    """No file above the flushed checkpoint is removed, whatever its age."""
    disk, store = filled(0)
    for number in range(60):
        store.put(draft(b"%d" % number))
    assert len(names(disk, "commitlog")) > 4
    assert store.retention.log_files() == []
    store.flush()
    store.dispatch_pending()
    assert store.retention.log_files() == []
    store.write_checkpoint()
    assert [file.base for file in store.retention.log_files()] == names(disk, "commitlog")[:-1]
    ages = [file.modified_ms for file in store.retention.log_files()]
    assert ages == sorted(ages) and ages[0] > 1_000_000


def test_a_failed_removal_is_repeated_by_the_next_run() -> None:
    disk, store = filled()
    oldest = names(disk, "commitlog")[0]

    def fail(kind: str, path: str) -> None:
        if kind == "remove":
            raise OSError(errno.EIO, "input/output error", path)

    disk.fail = fail
    removal = store.retention.begin_log_removal(store.retention.log_files()[0])
    assert removal is not None
    with pytest.raises(OSError, match="input/output"):
        removal.run()
    assert store.commit_log_min == 1024 and names(disk, "commitlog")[0] == oldest
    assert readable(store, 0)[-1] == 29
    disk.fail = lambda kind, path: None
    assert clean(store, 1) >= 0
    assert names(disk, "commitlog")[0] == 2 * 1024
    assert store.retention.begin_log_removal(None) is None


def test_a_topic_deleted_between_plan_and_removal_is_skipped() -> None:
    disk, store = filled()
    removal = store.retention.begin_log_removal(store.retention.log_files()[0])
    assert removal is not None
    removal.run()
    store.retention.end_log_removal(removal)
    assert store.retention.plan_queue_files() == 2
    store.write_checkpoint()
    store.delete_topic("T")
    store.put(draft(b"a new topic of the same name"))
    store.flush()
    store.dispatch_pending()
    assert store.retention.remove_queue_files() == 0
    assert readable(store, 0) == [0]
    store.close()
    assert opened(disk.after_kill()).max_offset("T", 0) == 1


def test_a_store_that_rejects_writes_serves_reads() -> None:
    _, store = filled()
    store.refusal = StoreFull("nearly full")
    with pytest.raises(StoreError, match="nearly full"):
        store.put(draft(b"x"))
    with pytest.raises(StoreFull):
        store.put_batch([draft(b"x")])
    assert readable(store, 0) == list(range(30))
    store.refusal = None
    assert store.put(draft(b"x")).queue_offset == 30


DUE_MS = 1_900_000_000_000


def with_timers(count: int) -> tuple[FakeDisk, MessageStore]:
    """Timers in the first file, then enough for some files more; all flushed."""
    disk, store = filled(0)
    for number in range(count):
        own = {REAL_TOPIC: "T", REAL_QID: "0", TIMER_OUT_MS: str(DUE_MS + number)}
        kept = draft(b"%d" % number, 0, TIMER_TOPIC)
        store.put(replace(kept, properties=properties.encode(own), tags_code=DUE_MS + number))
    for number in range(40):
        store.put(draft(b"%d" % number))
    store.flush()
    store.dispatch_pending()
    store.write_checkpoint()
    return disk, store


def due_numbers(store: MessageStore) -> list[int]:
    """Timers in the order in which they are due, all marked as delivered."""
    results = []
    while (due := store.delayed.next_due(DUE_MS + 1000)) is not None:
        results.append(due.number)
        store.delayed.mark_delivered(due, store.commit_log_max)
    return results


def test_timers_in_a_removed_file_are_stored_again_and_delivered_once() -> None:
    disk, store = with_timers(5)
    end = 3 * 1024
    assert len(store.delayed.timers_before(end)) == 5
    moved = move_timers(store, end)
    assert moved == store.commit_log_max
    assert store.delayed.timers_before(end) == []
    assert move_timers(store, end) == 0
    store.flush()
    store.dispatch_pending()
    store.write_checkpoint()
    assert store.commit_log_max > end
    clean(store, 3)
    assert store.commit_log_min == end
    remaining = disk.after_power_loss(SurvivingData.NONE, random.Random(0))
    remaining.now_ms = disk.now_ms
    assert due_numbers(store) == [5, 6, 7, 8, 9]
    assert due_numbers(opened(remaining)) == [5, 6, 7, 8, 9]


def test_a_timer_counts_as_moved_only_when_its_new_record_is_flushed() -> None:
    disk, store = with_timers(5)
    move_timers(store, 1024 * 3)
    store.write_checkpoint()
    remaining = disk.after_power_loss(SurvivingData.NONE, random.Random(0))
    remaining.now_ms = disk.now_ms
    assert due_numbers(opened(remaining)) == [0, 1, 2, 3, 4]


def test_the_size_of_a_disk_includes_space_reserved_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Total of commitLogDirCapacity was used + available; Java prints the size of the file system."""
    state = SimpleNamespace(f_blocks=1_000, f_bfree=300, f_bavail=250, f_frsize=4_096)
    monkeypatch.setattr(os, "statvfs", lambda path: state)
    usage = SystemDisk().usage("/")
    assert usage == Usage(950 * 4_096, 250 * 4_096, 50 * 4_096)
    capacity = runtime_info._disk_usage(SystemDisk(), "/commitlog", "/")["commitLogDirCapacity"]
    assert capacity == "Total : 3.9 MiB, Free : 1000.0 KiB."
