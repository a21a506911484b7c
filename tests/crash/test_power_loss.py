"""Power is lost at every single change of a workload, and the disk keeps none, all, or some of what was not flushed.

Whatever is left: the store opens, everything that was acknowledged is there, nothing is there that nobody sent, and it goes on.
"""

from __future__ import annotations

import errno
import random

import pytest

from ariane.errors import FlushFailed, StoreError, StoreFull
from ariane.model import host
from ariane.protocol import record
from ariane.store.message_store import Draft, GetStatus, MessageStore, StoreConfig, open_store
from ariane.testing.disk import FakeDisk, Kept, PowerLost

HOST = host.pack("127.0.0.1", 10911)
CONFIG = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=200, flush="sync")
FATES = [(Kept.NONE, 0), (Kept.ALL, 0), *((Kept.SOME, seed) for seed in range(3))]


def opened(disk: FakeDisk, config: StoreConfig = CONFIG) -> MessageStore:
    clock = iter(range(1_700_000_000_000, 1_800_000_000_000))
    return open_store(config, disk, now_ms=lambda: next(clock), store_host=HOST)


def draft(body: bytes, queue_id: int = 0, topic: str = "T") -> Draft:
    return Draft(topic=topic, queue_id=queue_id, body=body, born_ms=1, born_host=HOST, tags="a", properties="TAGS\x01a")


class Sent:
    """What a producer knows: bodies that were put, and where those lie that were acknowledged."""

    def __init__(self) -> None:
        self.put: set[bytes] = set()
        self.acknowledged: dict[int, bytes] = {}


def workload(store: MessageStore, sent: Sent, count: int = 14) -> None:
    """Single messages and batches to three queues, flushed as a broker does; queue files and checkpoint now and then."""
    waiting: dict[int, bytes] = {}
    for number in range(count):
        bodies = [b"%d.%d" % (number, part) * (1 + number % 3) for part in range(1 + number % 3)]
        sent.put.update(bodies)
        drafts = [draft(body, number % 2, "T" if number % 4 else "U") for body in bodies]
        placed = [store.put(drafts[0])] if len(drafts) == 1 else store.put_batch(drafts)
        waiting.update(zip((one.offset for one in placed), bodies, strict=True))
        if number % 2:
            flush = store.begin_flush()
            assert flush is not None
            flush.run()
            store.end_flush(flush, None)
            sent.acknowledged.update(waiting)
            waiting.clear()
            store.step()
        if number % 5 == 4:
            store.flush_derived()


def stored(store: MessageStore) -> dict[int, bytes]:
    """Everything that consumers can read, by commit-log offset; queue offsets have to be without gaps."""
    found = {}
    for topic, queue_ids in store.topics().items():
        for queue_id in queue_ids:
            at = store.min_offset(topic, queue_id)
            while at < store.max_offset(topic, queue_id):
                got = store.get(topic, queue_id, at, 32)
                assert got.status is GetStatus.FOUND
                for number, data in enumerate(got.records):
                    one = record.decode(data)
                    assert (one.topic, one.queue_id, one.queue_offset) == (topic, queue_id, at + number)
                    assert one.crc_is_right()
                    found[one.offset] = one.body
                at = got.next_offset
    return found


def check(disk: FakeDisk, sent: Sent) -> None:
    """The promises, on what is left of a disk."""
    store = opened(disk)
    found = stored(store)
    assert found.items() >= sent.acknowledged.items()
    assert set(found.values()) <= sent.put
    for offset, body in sent.acknowledged.items():
        data = store.record_at(offset)
        assert data is not None and record.decode(data).body == body
    more = store.put(draft(b"after"))
    store.flush()
    store.step()
    after = stored(store)
    assert after == {**found, more.offset: b"after"}
    store.close()
    again = opened(disk)
    assert stored(again) == after
    again.close()


def changes_of(work: object) -> int:
    disk = FakeDisk()
    store = opened(disk)
    workload(store, Sent())
    store.close()
    return disk.changes


@pytest.mark.parametrize(("kept", "seed"), FATES)
def test_power_lost_at_every_change(kept: Kept, seed: int) -> None:
    for cut in range(1, changes_of(workload) + 1):
        disk, sent = FakeDisk(), Sent()
        disk.power_off_at = cut
        try:
            store = opened(disk)
            workload(store, sent)
            store.close()
        except PowerLost:
            pass
        check(disk.after_power_loss(kept, random.Random(seed * 1000 + cut)), sent)


@pytest.mark.parametrize(("kept", "seed"), FATES)
def test_power_lost_again_while_recovering(kept: Kept, seed: int) -> None:
    first, sent = FakeDisk(), Sent()
    store = opened(first)
    workload(store, sent)
    chance = random.Random(seed)
    left = first.after_power_loss(kept, chance)
    probe = left.after_kill()
    opened(probe)
    for cut in range(1, probe.changes + 1):
        disk = left.after_kill()
        disk.power_off_at = cut
        with pytest.raises(PowerLost):
            opened(disk)
        check(disk.after_power_loss(kept, random.Random(cut)), sent)


def test_a_write_torn_at_every_byte() -> None:
    last = draft(b"the last message, which is torn", 1)
    disk, sent = FakeDisk(), Sent()
    store = opened(disk)
    workload(store, sent)
    size = store.put(last).size
    for torn_at in range(size):
        disk, sent = FakeDisk(), Sent()
        store = opened(disk)
        workload(store, sent)
        disk.power_off_at, disk.torn_at = disk.changes + 1, torn_at
        with pytest.raises(PowerLost):
            store.put(last)
        check(disk.after_kill(), sent)


def test_derived_files_that_are_lost_are_made_again() -> None:
    """The checkpoint, all files of a queue, or any file of it but the first (retention removes those in order)."""
    disk, sent = FakeDisk(), Sent()
    store = opened(disk)
    workload(store, sent, 60)
    store.close()
    everything = stored(opened(disk.after_kill()))
    queues: dict[str, list[str]] = {}
    for path in disk.paths():
        if "/consumequeue/" in path:
            queues.setdefault(path.rpartition("/")[0], []).append(path)
    losses = [["/store/checkpoint"], *queues.values(), *([one] for files in queues.values() for one in files[1:])]
    assert len(losses) > 6
    for lost in losses:
        left = disk.after_kill()
        for path in lost:
            left.remove(path)
        store = opened(left)
        assert stored(store) == everything, lost
        store.close()


@pytest.mark.parametrize("kind", ["fsync", "fsync_dir"])
def test_a_failed_fsync_never_acknowledges(kind: str) -> None:
    number = 0
    while True:
        number += 1
        disk, sent = FakeDisk(), Sent()
        store = opened(disk)
        left = number

        def fail(what: str, path: str) -> None:
            nonlocal left
            if what == kind:
                left -= 1
                if left == 0:
                    raise OSError(errno.EIO, "input/output error", path)

        disk.fail = fail
        try:
            workload(store, sent)
            if left > 0:
                break  # the workload has fewer
            raise AssertionError("the failure was swallowed")
        except OSError as error:
            flush = store._log._flushing
            if flush is not None:
                store.end_flush(flush, error)
        except FlushFailed:
            pass
        with pytest.raises(FlushFailed):
            store.put(draft(b"never"))
        # Consumers go on reading, and never above what was flushed.
        assert stored(store).items() <= {**sent.acknowledged}.items()
        disk.fail = lambda what, path: None
        with pytest.raises(StoreError):
            store.put(draft(b"not even when the disk is well again"))
        store.close()
        check(disk.after_kill(), sent)
    assert number > 3


def test_a_full_disk_refuses_writes_serves_reads_and_goes_on_with_room() -> None:
    disk, sent = FakeDisk(), Sent()
    store = opened(disk)
    workload(store, sent)
    store.flush()
    store.step()
    before = stored(store)
    disk.room = 50
    for _ in range(3):
        with pytest.raises(StoreFull):
            store.put(draft(b"no room"))
        with pytest.raises(StoreFull):
            store.put_batch([draft(b"no"), draft(b"room")])
    assert stored(store) == before
    disk.room = None
    placed = store.put(draft(b"room again"))
    store.flush()
    store.step()
    assert stored(store) == {**before, placed.offset: b"room again"}
    store.close()


def test_in_sync_mode_nobody_reads_what_is_not_flushed() -> None:
    store = opened(FakeDisk())
    placed = store.put(draft(b"soon"))
    assert store.step() == []
    assert store.get("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.record_at(placed.offset) is None
    store.flush()
    assert [arrival.max_offset for arrival in store.step()] == [1]
    assert store.record_at(placed.offset) is not None
    store.close()
