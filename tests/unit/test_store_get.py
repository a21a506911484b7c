"""The work of one read is bounded, however many messages a client requests."""

from __future__ import annotations

import pytest

from ariane.model import host
from ariane.store.message_store import GetStatus, MessageStore, RecordDraft, RecordFilter, StoreConfig, open_store
from ariane.store.queues import queue_reader
from ariane.testing.disk import FakeDisk

HOST = host.pack("127.0.0.1", 10911)
CONFIG = StoreConfig(root="/store", commit_log_size=1 << 20, consume_queue_size=20 * 2_000)
ALL = 2**31 - 1


@pytest.fixture
def store() -> MessageStore:
    """A store with 1,000 messages in one queue."""
    disk = FakeDisk()
    opened = open_store(CONFIG, disk, now_ms=disk.now_ms, store_host=HOST)
    for _ in range(1_000):
        opened.put(RecordDraft(topic="T", queue_id=0, body=b"x", born_ms=1, born_host=HOST))
    opened.flush()
    opened.dispatch_pending()
    return opened


def test_a_filter_examines_at_most_800_records_per_read(store: MessageStore) -> None:
    judged: list[bytes] = []

    def refuse(record: bytes) -> bool:
        judged.append(record)
        return False

    result = store.get("T", 0, 0, ALL, RecordFilter(accept=refuse))
    assert (len(judged), result.status, result.next_offset) == (800, GetStatus.NO_MATCHED_MESSAGE, 800)
    result = store.get("T", 0, result.next_offset, ALL, RecordFilter(accept=refuse))
    assert (len(judged), result.next_offset) == (1_000, 1_000)


@pytest.mark.parametrize(("asked", "seen"), [(1, 800), (ALL, 900), (-1, 800), (850, 850)])
def test_a_read_examines_a_bounded_number_of_entries(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, asked: int, seen: int
) -> None:
    monkeypatch.setattr(queue_reader, "ENTRIES_MAX", 900)
    result = store.get("T", 0, 0, asked, RecordFilter(frozenset({1})))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, seen)
