"""Files removed while the store is open: detected, reported once, and no message becomes invisible."""

from __future__ import annotations

import errno
import logging

import pytest

from ariane.errors import StoreError
from ariane.store.index.key_query import KeyQuery
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.disk import FakeDisk

CONFIG = StoreConfig(
    root="/s", commit_log_size=4096, consume_queue_size=200, index=True, index_slots=16, index_entries=64
)


def opened(disk: FakeDisk, **changes: object) -> MessageStore:
    return open_store(CONFIG, disk, now_ms=lambda: 1_000_000, store_host=bytes(8))


def draft(number: int) -> RecordDraft:
    return RecordDraft(
        topic="T", queue_id=0, body=b"%090d" % number, born_ms=1, born_host=bytes(8), properties=f"KEYS\x01k{number}"
    )


def put(store: MessageStore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        store.put(draft(number))
    store.dispatch_pending()


def remove(disk: FakeDisk, part: str) -> None:
    """As `rm -r` does: the names are gone, open handles go on."""
    for path in [path for path in disk.paths() if part in path]:
        disk.remove(path)


def flush(store: MessageStore) -> None:
    store.flush()
    store.write_checkpoint()


def test_a_removed_queue_stops_writes_and_is_rebuilt_by_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 5)
    flush(store)
    remove(disk, "/consumequeue/T")
    put(store, 3, 5)  # the handle is open, so the removal is not noticed yet
    with caplog.at_level(logging.ERROR):
        flush(store)
        for _ in range(3):
            with pytest.raises(StoreError, match=r"consumequeue/T/0/0+ was removed.*restart the broker"):
                put(store, 1, 8)
            flush(store)
    assert len(caplog.records) == 1
    repeated = opened(disk.after_kill())
    assert repeated.max_offset("T", 0) == 8
    assert len(repeated.get("T", 0, 0, 32).records) == 8


def test_a_removed_queue_without_an_open_file_stops_writes_at_the_first_entry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 5)
    flush(store)
    remove(disk, "/consumequeue/T")
    store._files.drop("/s/consumequeue/T/0/" + "0" * 20)
    store.put(draft(5))
    for _ in range(3):
        with pytest.raises(StoreError, match="Cannot write"):
            store.dispatch_pending()
    with pytest.raises(StoreError, match="was removed"):
        store.put(draft(6))
    assert len([record for record in caplog.records if "was removed" in record.message]) == 1
    assert opened(disk.after_kill()).max_offset("T", 0) == 6


def test_reading_a_removed_queue_is_reported_as_such() -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 5)
    store.close()
    store = opened(disk)
    store.max_offset("T", 0)  # opened
    remove(disk, "/consumequeue/T")
    store._files.drop("/s/consumequeue/T/0/" + "0" * 20)
    with pytest.raises(StoreError, match="was removed"):
        store.get("T", 0, 0, 32)


def test_a_deleted_topic_is_not_reported_as_a_removed_queue() -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 5)
    store.flush()
    pending = store.begin_checkpoint()
    assert pending is not None
    remove(disk, "/consumequeue/T")
    for queue in store._queues.all():
        store._queues._unregister(queue)
    pending.run()
    store.end_flush(pending, None)
    put(store, 1)


def test_a_topic_created_again_during_a_flush_is_not_reported_as_removed() -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 5)
    store.flush()
    flush_in_flight = store.begin_checkpoint()
    assert flush_in_flight is not None
    store.delete_topic("T")
    flush_in_flight.run()  # finds no file of the queue
    put(store, 3)
    store.end_flush(flush_in_flight, None)
    put(store, 1)
    assert store.max_offset("T", 0) == 4


def test_a_directory_that_cannot_be_listed_is_not_reported_as_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 5)
    listdir = disk.listdir

    def no_descriptor(path: str) -> list[str]:
        if path.endswith("/commitlog"):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return listdir(path)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "listdir", no_descriptor)
        flush(store)
    put(store, 1, 5)
    flush(store)


@pytest.mark.parametrize("which", [0, -1])
def test_a_removed_segment_stops_writes_while_its_messages_can_still_be_read(
    which: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 60)
    flush(store)
    remove(disk, sorted(path for path in disk.paths() if "/commitlog/" in path)[which])
    store.begin_checkpoint()
    store.begin_checkpoint()
    with pytest.raises(StoreError, match="commitlog/[0-9]+ was removed while the broker runs"):
        store.put(draft(99))
    assert len([record for record in caplog.records if "was removed" in record.message]) == 1


def test_a_removed_index_is_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 90)
    flush(store)
    remove(disk, "/index/")
    put(store, 3, 90)
    flush(store)
    for number in (0, 50, 92):
        assert len(store.index.query(KeyQuery("T", f"k{number}", 5)).records) == 1, number
    assert len([record for record in caplog.records if "index is rebuilt" in record.message]) == 1
    store.close()
    assert [path for path in disk.paths() if "/index/" in path]


def test_files_removed_by_the_store_are_not_reported_as_missing() -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 90)
    flush(store)
    removal = store.retention.begin_log_removal(store.retention.log_files()[0])
    assert removal is not None
    flush(store)
    removal.run()
    store.retention.end_log_removal(removal)
    while store.retention.plan_queue_files():
        flush(store)
        store.retention.remove_queue_files()
    flush(store)
    put(store, 1)


def test_a_full_disk_is_reported_once_until_space_is_freed(caplog: pytest.LogCaptureFixture) -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 3)
    for _ in range(2):
        disk.room = 10
        for number in range(5):
            with pytest.raises(StoreError, match="No room"):
                store.put(draft(number))
        disk.room = None
        put(store, 1)
        assert store.clear_write_failure()
        assert not store.clear_write_failure()
    reported = [record for record in caplog.records if getattr(record, "notice", False)]
    assert len(reported) == 2
    assert all("Messages are refused" in record.getMessage() for record in reported)


def test_reading_a_removed_segment_is_reported_as_such() -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, 60)
    flush(store)
    first = min(path for path in disk.paths() if "/commitlog/" in path)
    disk.remove(first)
    store._files.drop(first)
    with pytest.raises(StoreError, match="commitlog/0+ was removed.*put the file back"):
        store.get("T", 0, 0, 5)
    with pytest.raises(StoreError, match="was removed"):
        store.put(draft(60))
