"""The end of a log is cut off: the store is one that never had those records, and they stay readable aside."""

from __future__ import annotations

import contextlib
import errno
import random
from pathlib import Path

import pytest

from ariane.errors import StoreError
from ariane.model import host
from ariane.protocol.records.record import Record
from ariane.store.check.reader import read_cut
from ariane.store.disk.files import SystemDisk
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.store.recovery.log_cut import cut_log, distrust_queues, last_readable
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData

HOST = host.pack("127.0.0.1", 10911)
CONFIG = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=100, index_slots=8, index_entries=16)


def opened(disk: FakeDisk | SystemDisk, config: StoreConfig = CONFIG) -> MessageStore:
    return open_store(config, disk, now_ms=FakeClock(tick_ms=1).now_ms, store_host=HOST)


def draft(number: int) -> RecordDraft:
    return RecordDraft(
        topic="T",
        queue_id=number % 3,
        body=b"%d" % number * (1 + number % 30),
        born_ms=1,
        born_host=HOST,
        properties=f"KEYS\x01k{number}\x02",
    )


def closed(disk: FakeDisk | SystemDisk, config: StoreConfig, count: int = 30) -> list[int]:
    """Put messages, close the store, and return where the log ended before each of them, and at last."""
    store = opened(disk, config)
    ends = [0]
    for number in range(count):
        store.put(draft(number))
        ends.append(store.commit_log_max)
        if number % 7 == 6:
            store.dispatch_pending()
            store.write_checkpoint()
    store.close()
    return ends


def queues(store: MessageStore) -> dict[int, list[bytes | None]]:
    return {
        queue_id: [store.read_queue_record("T", queue_id, number) for number in range(store.max_offset("T", queue_id))]
        for queue_id in range(3)
    }


def check_cut(store: MessageStore, uncut: MessageStore, count: int) -> None:
    """The queues contain the first messages only, and new ones get the numbers of those that were cut off."""
    before = {queue_id: records[: (count - queue_id + 2) // 3] for queue_id, records in queues(uncut).items()}
    assert {queue_id: records for queue_id, records in queues(store).items() if records} == {
        queue_id: records for queue_id, records in before.items() if records
    }
    end = store.commit_log_max
    assert store.put(draft(count)).queue_offset == len(before[count % 3])
    store.dispatch_pending()
    assert store.read_queue_record("T", count % 3, len(before[count % 3])) is not None
    assert store.commit_log_max > end


@pytest.mark.parametrize("count", [0, 1, 7, 13, 14, 29, 30])
def test_a_cut_store_is_one_that_never_had_the_records(count: int) -> None:
    disk, whole = FakeDisk(), FakeDisk()
    ends = closed(disk, CONFIG)
    assert closed(whole, CONFIG) == ends
    path = cut_log(CONFIG, disk, ends[count], ends[-1])
    assert bool(path) == (count < 30)
    store = opened(disk)
    assert store.commit_log_max == ends[count]
    check_cut(store, opened(whole), count)


@pytest.mark.parametrize(
    ("kept", "seed"),
    [(SurvivingData.NONE, 0), (SurvivingData.ALL, 0), *((SurvivingData.SOME, seed) for seed in range(20))],
)
def test_a_power_loss_during_a_cut_leaves_the_whole_log_or_the_cut_one(kept: SurvivingData, seed: int) -> None:
    complete = FakeDisk()
    ends = closed(complete, CONFIG)
    before = complete.changes
    cut_log(CONFIG, complete, ends[13], ends[-1])
    whole = FakeDisk()
    closed(whole, CONFIG)
    for change in range(before + 1, complete.changes + 1):
        disk = FakeDisk()
        closed(disk, CONFIG)
        disk.power_off_at = change
        with contextlib.suppress(PowerLost):
            cut_log(CONFIG, disk, ends[13], ends[-1])
        remaining = disk.after_power_loss(kept, random.Random(seed * 1000 + change))
        store = opened(remaining)
        assert ends[13] <= store.commit_log_max <= ends[-1]
        end = store.commit_log_max
        store.close()
        cut_log(CONFIG, remaining, ends[13], end)
        store = opened(remaining)
        assert store.commit_log_max == ends[13]
        check_cut(store, opened(whole.after_power_loss(SurvivingData.ALL, random.Random(0))), 13)


def test_a_log_is_cut_at_records_only() -> None:
    disk = FakeDisk()
    ends = closed(disk, CONFIG)
    for end in (ends[13] + 4, ends[13] - 1):
        with pytest.raises(StoreError, match="no record begins"):
            cut_log(CONFIG, disk, end, ends[-1])
    assert opened(disk).commit_log_max == ends[-1]


def test_a_copy_that_has_no_room_leaves_no_part_of_it() -> None:
    disk = FakeDisk()
    ends = closed(disk, CONFIG)

    def fail(kind: str, path: str) -> None:
        if "/cut/" in path and kind == "write":
            raise OSError(errno.ENOSPC, "No space left on device", path)

    disk.fail = fail
    with pytest.raises(StoreError, match="No space left"):
        cut_log(CONFIG, disk, ends[7], ends[-1])
    assert not [path for path in disk.paths() if "/cut/" in path]


@pytest.mark.parametrize("missing", [[2], [2, 3], [-1], [-2, -1]])
def test_a_log_without_some_of_its_files_is_cut_before_them(missing: list[int]) -> None:
    """A file system that failed lacks files which were flushed."""
    disk = FakeDisk()
    ends = closed(disk, CONFIG)
    files = sorted(path for path in disk.paths() if path.startswith("/store/commitlog/"))
    lost = [files[number] for number in missing]
    for path in lost:
        disk.remove(path)
    found = last_readable(CONFIG, disk)
    assert found is not None
    path = cut_log(CONFIG, disk, *found)
    store = opened(disk)
    first_lost = int(lost[0].rpartition("/")[2])
    assert store.commit_log_max == found[0] in ends
    assert first_lost - CONFIG.commit_log_size < found[0] < first_lost
    assert disk.size(path) == found[1] - found[0]


def test_queues_of_a_damaged_file_system_are_rebuilt_without_a_record_that_shows_the_loss() -> None:
    disk = FakeDisk()
    closed(disk, CONFIG)
    expected = queues(opened(disk.after_kill()))
    last = max(path for path in disk.paths() if path.startswith("/store/consumequeue/T/1/"))
    handle = disk.open(last)
    disk.pwrite(handle, bytes(disk.size(last) or 0), 0)
    disk.close(handle)
    assert queues(opened(disk.after_kill())) != expected  # all entries are below the checkpoint
    distrust_queues(CONFIG, disk)
    assert queues(opened(disk)) == expected


def test_what_was_cut_off_is_readable(tmp_path: Path) -> None:
    config = StoreConfig(root=str(tmp_path), commit_log_size=4096, consume_queue_size=100, index=False)
    ends = closed(SystemDisk(), config)
    for number in (1, 2):
        path = cut_log(config, SystemDisk(), ends[13], ends[-1])
        assert Path(path).name == f"{ends[13]:020d}-{number}"
        records = list(read_cut(path))
        assert all(isinstance(record, Record) for record in records)
        assert [record.queue_offset for record in records if isinstance(record, Record)] == [
            number // 3 for number in range(13, 30)
        ]
        assert len(list(read_cut(path, ends[20]))) == 10
        store = opened(SystemDisk(), config)
        for message in range(13, 30):
            store.put(draft(message))
        assert store.commit_log_max == ends[-1]
        store.close()
    with pytest.raises(StoreError, match="cut directory"):
        list(read_cut(str(tmp_path / "checkpoint")))
