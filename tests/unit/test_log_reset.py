"""A log that cannot be cut is put aside as a whole: the store is empty, and follows another log from any offset."""

from __future__ import annotations

import contextlib
import errno
import random
from pathlib import Path

import pytest

from ariane.protocol.records.record import Record
from ariane.store.check.reader import read_cut
from ariane.store.disk.files import SystemDisk
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.store.recovery.log_reset import empty_log
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData

HOST = bytes(8)
CONFIG = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=100, index_slots=8, index_entries=16)


def opened(disk: FakeDisk | SystemDisk, config: StoreConfig = CONFIG) -> MessageStore:
    return open_store(config, disk, now_ms=FakeClock(tick_ms=1).now_ms, store_host=HOST)


def closed(disk: FakeDisk | SystemDisk, config: StoreConfig = CONFIG) -> int:
    """Put messages into several files, and remove the first file; return the end of the log."""
    store = opened(disk, config)
    for number in range(30):
        body = b"%d" % number * (1 + number % 30)
        store.put(RecordDraft(topic="T", queue_id=0, body=body, born_ms=1, born_host=HOST, properties="KEYS\x01k\x02"))
    store.flush()
    store.dispatch_pending()
    store.write_checkpoint()
    removal = store.retention.begin_log_removal(store.retention.log_files()[0])
    assert removal is not None
    store.write_checkpoint()
    removal.run()
    store.retention.end_log_removal(removal)
    store.close()
    return store.commit_log_max


def test_an_emptied_store_has_no_message_and_takes_new_ones() -> None:
    disk = FakeDisk()
    end = closed(disk)
    assert empty_log(CONFIG, disk) > 2
    store = opened(disk)
    assert store.commit_log_max == 0 < end
    assert store.max_offset("T", 0) == 0
    store.put(RecordDraft(topic="T", queue_id=0, body=b"x", born_ms=1, born_host=HOST))
    store.dispatch_pending()
    assert len(store.get("T", 0, 0, 32).records) == 1


@pytest.mark.parametrize(("kept", "seed"), [(SurvivingData.NONE, 0), (SurvivingData.ALL, 0), (SurvivingData.SOME, 1)])
def test_a_power_loss_leaves_the_first_part_of_the_log(kept: SurvivingData, seed: int) -> None:
    complete = FakeDisk()
    closed(complete)
    before = complete.changes
    empty_log(CONFIG, complete)
    for change in range(before + 1, complete.changes + 1):
        disk = FakeDisk()
        end = closed(disk)
        disk.power_off_at = change
        with contextlib.suppress(PowerLost):
            empty_log(CONFIG, disk)
        remaining = disk.after_power_loss(kept, random.Random(seed * 1000 + change))
        store = opened(remaining)
        assert store.commit_log_max <= end
        store.close()
        empty_log(CONFIG, remaining)
        assert opened(remaining).commit_log_max == 0


def test_the_files_are_readable_also_if_the_log_is_on_another_disk(tmp_path: Path) -> None:
    class TwoDisks(SystemDisk):
        def rename(self, source: str, target: str) -> None:
            if "/cut/" in target:
                raise OSError(errno.EXDEV, "Invalid cross-device link", target)
            super().rename(source, target)

    config = StoreConfig(root=str(tmp_path), commit_log_size=1024, consume_queue_size=100, index=False)
    counts = []
    for disk in (SystemDisk(), TwoDisks()):
        closed(disk, config)
        number = empty_log(config, disk)
        paths = sorted(tmp_path.glob("cut/*"))
        assert len(paths) == number
        counts.append(sum(isinstance(item, Record) for path in paths for item in read_cut(str(path))))
        for path in paths:
            path.unlink()
    assert counts[0] == counts[1] > 20
