"""Costs of a store that grow with its number of queues: queue files are counted and indexed as they come and go."""

from __future__ import annotations

from ariane.model import host
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.disk import FakeDisk

CONFIG = StoreConfig(root="/store", commit_log_size=4096, consume_queue_size=100)


def opened(disk: FakeDisk) -> MessageStore:
    return open_store(CONFIG, disk, now_ms=lambda: 1000, store_host=host.pack("127.0.0.1", 10911))


def files_on_disk(disk: FakeDisk) -> int:
    return sum(
        len(disk.listdir(f"/store/consumequeue/{topic}/{queue}"))
        for topic in disk.listdir("/store/consumequeue")
        for queue in disk.listdir(f"/store/consumequeue/{topic}")
    )


def test_the_number_of_queue_files_follows_creation_deletion_and_restart() -> None:
    disk = FakeDisk()
    store = opened(disk)
    for number in range(120):
        topic, queue = f"T{number % 4}", number % 3
        store.put(RecordDraft(topic=topic, queue_id=queue, body=b"x", born_ms=1, born_host=host.pack("127.0.0.1", 1)))
        store.dispatch_pending()
    assert store._queues.file_count() == files_on_disk(disk) > 12  # several files of each queue
    assert store.has_queue("T0", 0) and not store.has_queue("T0", 9) and not store.has_queue("none", 0)
    assert store.delete_topic("T0") == [0, 1, 2]
    assert not store.has_queue("T0", 0)
    assert sorted(store.topics()) == ["T1", "T2", "T3"]
    assert store._queues.file_count() == files_on_disk(disk)
    store.close()
    store = opened(disk)
    assert store._queues.file_count() == files_on_disk(disk)
    assert store.topics() == {"T1": [0, 1, 2], "T2": [0, 1, 2], "T3": [0, 1, 2]}
    store.close()
