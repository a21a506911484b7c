"""What the pulls of a turn read of the store: entries that are read ahead are those of the queue, whatever happened since."""

from __future__ import annotations

import pytest

from ariane.model import host
from ariane.protocol.records.queue_entry import ENTRY_SIZE
from ariane.store import turn_reads
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.store.queues.consume_queue import AHEAD_ENTRIES, TAIL_ENTRIES
from ariane.store.turn_reads import TurnReads
from ariane.testing.disk import FakeDisk

HOST = host.pack("127.0.0.1", 10911)
CONFIG = StoreConfig(root="/store", commit_log_size=1 << 18, consume_queue_size=20 * 2_000)


class CountingDisk(FakeDisk):
    """Counts preads of queues."""

    def __init__(self) -> None:
        super().__init__()
        self.preads = 0

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self.preads += 1
        return super().pread(handle, size, offset)


def put(store: MessageStore, count: int, queue_id: int = 0) -> None:
    for _ in range(count):
        store.put(RecordDraft(topic="T", queue_id=queue_id, body=b"x", born_ms=1, born_host=HOST))
    store.flush()
    store.dispatch_pending()


def opened(disk: FakeDisk) -> MessageStore:
    return open_store(CONFIG, disk, now_ms=disk.now_ms, store_host=HOST)


def begin(store: MessageStore) -> TurnReads:
    reads = store.turn_reads
    reads.begin()
    reads.select_topic("T")
    return reads


def entries_of(store: MessageStore, number: int, count: int, queue_id: int = 0) -> bytes:
    found = begin(store).find(queue_id, number, count)
    return b"" if found is None else found[0]


def expected(store: MessageStore, number: int, count: int) -> bytes:
    queue = store._queues.get(("T", 0))
    assert queue is not None
    return queue.entries(number, count)


@pytest.mark.parametrize("count", [1, 32, 300, 800, 900])
@pytest.mark.parametrize("step", [1, 31, 32, 257])
def test_a_reader_that_goes_on_gets_the_entries_of_the_queue(count: int, step: int) -> None:
    store = opened(CountingDisk())
    put(store, 1500)
    for number in range(0, 1500, step):
        assert entries_of(store, number, count) == expected(store, number, count)
    for number in range(1400, 0, -97):
        assert entries_of(store, number, count) == expected(store, number, count)
    store.close()


def test_most_reads_of_a_backlog_need_no_pread() -> None:
    disk = CountingDisk()
    store = opened(disk)
    put(store, 1500)
    assert store.min_offset("T", 0) == 0  # found by reading, and remembered
    disk.preads = 0
    for number in range(0, 1500 - TAIL_ENTRIES, 32):
        assert len(entries_of(store, number, 32)) == 32 * ENTRY_SIZE
    assert disk.preads <= 1 + 1500 // AHEAD_ENTRIES
    store.close()


def test_messages_that_arrive_are_found() -> None:
    store = opened(FakeDisk())
    put(store, 700)
    store.close()
    disk = store._disk
    assert isinstance(disk, FakeDisk)
    store = opened(disk)  # without entries in memory
    assert len(entries_of(store, 690, 32)) == 10 * ENTRY_SIZE
    for _ in range(5):
        put(store, 150)
        assert entries_of(store, 690, 32) == expected(store, 690, 32)
        assert entries_of(store, 695, 100) == expected(store, 695, 100)
    store.close()


def test_a_deleted_topic_has_no_entries() -> None:
    store = opened(FakeDisk())
    put(store, 700)
    assert entries_of(store, 0, 32)
    store.delete_topic("T")
    assert entries_of(store, 0, 32) == b""
    put(store, 600)
    assert entries_of(store, 0, 32) == expected(store, 0, 32)
    store.close()


def test_a_queue_that_begins_again_has_other_entries() -> None:
    store = opened(FakeDisk())
    put(store, 700)
    assert entries_of(store, 0, 32)
    queue = store._queues.get(("T", 0))
    assert queue is not None
    assert queue.ahead
    queue.restart(0)
    assert queue.ahead == b""
    assert entries_of(store, 0, 32) == b""
    put(store, 600)
    assert entries_of(store, 0, 32) == expected(store, 0, 32)


def test_few_queues_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_reads, "AHEAD_QUEUES_MAX", 3)
    store = opened(FakeDisk())
    for queue_id in range(8):
        put(store, 600, queue_id)
    for queue_id in (*range(8), *range(8)):
        assert len(entries_of(store, 0, 32, queue_id)) == 32 * ENTRY_SIZE
        queues = [store._queues.get(("T", number)) for number in range(8)]
        assert sum(1 for queue in queues if queue is not None and queue.ahead) <= 3
    store.close()


def test_what_no_queue_contains_is_not_found() -> None:
    store = opened(FakeDisk())
    put(store, 100)
    reads = begin(store)
    for queue_id, number in ((0, -1), (0, 100), (0, 2**62), (1, 0), (-1, 0)):
        assert reads.find(queue_id, number, 32) is None
    reads.select_topic("U")
    assert reads.find(0, 0, 32) is None
    store.close()


def test_entries_that_are_not_whole_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 700)
    monkeypatch.setattr(disk, "pread", lambda handle, size, offset: bytes(30))
    assert begin(store).find(0, 0, 32) is None


def test_a_file_of_the_log_that_cannot_be_mapped_has_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 100)
    reads = begin(store)
    assert reads.source(1 << 40, store.config, 1000) is None
    found = reads.source(0, store.config, 1000)
    assert found is not None
    assert (found[1].base, found[1].size, found[1].log_start, found[1].turn_bytes) == (0, 1 << 18, 0, 1000)
    monkeypatch.setattr(disk, "map", lambda handle, size: None)
    store._files.drop(store._log.segments.path(0))
    assert reads.source(0, store.config, 1000) is None
    store.close()
