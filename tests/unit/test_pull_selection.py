"""The selection of a pull: by column or entry by entry, from a map or read by read, the result is the same."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ariane.kernels.pulls.pull_selection import (
    COLUMNS_MAX,
    FileMap,
    PullLimits,
    gather_records,
    select_candidates,
    select_entries,
    select_messages,
)
from ariane.model import host
from ariane.protocol.records.queue_entry import BLANK, BLANK_SIZE, ENTRY, LOST_CODE
from ariane.protocol.records.record import FIXED_SIZE, IDENTITY, MAGIC
from ariane.store.message_store import GetStatus, MessageStore, RecordDraft, RecordFilter, StoreConfig, open_store
from ariane.store.queues import queue_reader
from ariane.testing.disk import FakeDisk

HOST = host.pack("127.0.0.1", 10911)
NO_LIMIT = 1 << 40
ALL = PullLimits(0, 0, NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT)

codes = st.sampled_from([0, 1, 2, -5, 1 << 40, -(1 << 40), LOST_CODE])
usual_entries = st.tuples(st.integers(0, 5000), st.integers(FIXED_SIZE, 400), st.sampled_from([1, 2]))
entries_of_any_kind = st.one_of(
    usual_entries,
    st.tuples(st.integers(0, 5000), st.sampled_from([0, -1, 50, 300, BLANK_SIZE]), codes),
)
limits = st.builds(
    PullLimits,
    log_start=st.sampled_from([0, 0, 700]),
    recent_from=st.sampled_from([-1, -1, 2500]),
    count_max=st.integers(-1, 40),
    bytes_max=st.integers(0, 6000),
    disk_count_max=st.integers(0, 10),
    disk_bytes_max=st.integers(0, 2000),
)


class Bytes:
    """A map of these bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.loaded: list[tuple[int, int]] = []

    def load(self, start: int, stop: int) -> bool:
        self.loaded.append((start, stop))
        return stop <= len(self.data)

    def __getitem__(self, part: slice) -> bytes:
        start, stop = self.loaded[-1]
        assert start <= part.start < part.stop <= stop
        return self.data[part]

    def close(self) -> None:
        pass


@settings(max_examples=300, deadline=None)
@example([(0, 200, 1), (1, 0, LOST_CODE), (2, BLANK_SIZE, 0), (3, 200, 1)], None, ALL._replace(count_max=1))
@example([(0, 200, 1), (300, 200, 1), (600, 200, LOST_CODE)], None, ALL._replace(bytes_max=400))
@given(
    st.lists(usual_entries, min_size=1, max_size=60) | st.lists(entries_of_any_kind, min_size=1, max_size=60),
    st.none() | st.frozensets(codes, min_size=1) | st.just(frozenset({1, 2})),
    limits,
)
@example([(0, 100, 1), (100, BLANK_SIZE, 0)], None, ALL._replace(count_max=1))
@example([(0, 100, 1), (100, 100, LOST_CODE)], frozenset({1, LOST_CODE}), ALL)
def test_entries_are_selected_as_one_by_one(
    entries: list[tuple[int, int, int]], wanted: frozenset[int] | None, limits: PullLimits
) -> None:
    entries.sort()
    selected = select_entries(b"".join(ENTRY.pack(*entry) for entry in entries), wanted, limits)
    expected = select_candidates(entries, wanted, limits)
    assert (list(selected.offsets), list(selected.sizes)) == (list(expected.offsets), list(expected.sizes))
    assert selected[2:] == expected[2:]


@pytest.mark.parametrize("count", [COLUMNS_MAX - 1, COLUMNS_MAX, COLUMNS_MAX + 1, 4 * COLUMNS_MAX])
def test_many_small_messages_are_selected_whole(count: int) -> None:
    entries = b"".join(ENTRY.pack(100 * number, 100, 0) for number in range(count))
    assert select_entries(entries, None, ALL).scanned == count


def log_of(sizes: list[int], base: int) -> tuple[bytes, list[int]]:
    """Return a file of records of these sizes, and their log offsets."""
    data, offsets = bytearray(), []
    for size in sizes:
        offsets.append(base + len(data))
        data += IDENTITY.pack(size, MAGIC, offsets[-1]) + bytes(size - IDENTITY.size)
    return bytes(data), offsets


def test_records_are_gathered_in_order() -> None:
    data, offsets = log_of([100, 200, 300, 91], 5000)
    log_map = Bytes(data)
    body = gather_records(cast(FileMap, log_map), 5000, len(data), offsets[1::2], [200, 91])
    assert body == data[100:300] + data[600:691]
    assert log_map.loaded == [(100, 691)]


@pytest.mark.parametrize(
    ("offset", "size", "why"),
    [
        (5000, 101, "another size"),
        (5001, 100, "no record there"),
        (4900, 100, "in the file before"),
        (5591, 101, "beyond the end of the file"),
        (5000, 90, "shorter than any record"),
        (5000, -100, "negative"),
        (5000, 1 << 30, "a gigabyte"),
    ],
)
def test_what_is_no_record_of_the_file_is_not_gathered(offset: int, size: int, why: str) -> None:
    data, offsets = log_of([100, 200, 300, 91], 5000)
    log_map = Bytes(data)
    assert gather_records(cast(FileMap, log_map), 5000, len(data), [offset, offsets[1]], [size, 200]) is None, why
    assert all(0 <= start < stop <= len(data) for start, stop in log_map.loaded)


def test_records_far_from_each_other_are_not_gathered() -> None:
    data, offsets = log_of([1 << 20, 100], 0)
    log_map = Bytes(data)
    assert gather_records(cast(FileMap, log_map), 0, len(data), [0, offsets[1]], [1 << 20, 100]) is None
    assert not log_map.loaded


def test_nothing_is_loaded_for_a_tag_that_no_message_has() -> None:
    data, offsets = log_of([100, 100], 0)
    log_map = Bytes(data)
    entries = b"".join(ENTRY.pack(offset, 100, 7) for offset in offsets)
    selected = select_messages(entries, cast(FileMap, log_map), 0, len(data), frozenset({8}), ALL)
    assert selected == (b"", (), 2, offsets[1], False)
    assert not log_map.loaded


def test_removed_entries_are_reported() -> None:
    limits = ALL._replace(log_start=1)
    selected = select_messages(BLANK, cast(FileMap, Bytes(b"")), 0, 100, None, limits)
    assert selected is not None
    assert (selected.scanned, selected.last, selected.is_removed) == (1, 0, True)


# --- a store, with maps and without ---


class Unmapped(FakeDisk):
    """A disk of a system without maps."""

    def map(self, handle: int, size: int) -> None:
        return None


def filled(disk: FakeDisk, log_size: int = 4096) -> MessageStore:
    """Return a store with one corrupt record; many of its pulls cross the end of a log file."""
    config = StoreConfig(root="/store", commit_log_size=log_size, consume_queue_size=200)
    store = open_store(config, disk, now_ms=lambda: 1, store_host=HOST)
    for number in range(120):
        draft = RecordDraft(
            topic="T",
            queue_id=number % 3,
            body=b"x" * (number * 37 % 300),
            born_ms=1,
            born_host=HOST,
            properties=f"TAGS\x01{'ab'[number % 2]}",
            tags="ab"[number % 2],
        )
        store.put(draft)
    store.flush()
    store.dispatch_pending()
    offset, _, _ = store.entries("T", 1, 7, 1)[0]
    disk.contents(f"/store/commitlog/{offset - offset % log_size:020}")[offset % log_size + 5] ^= 1
    return store


@pytest.mark.parametrize(
    "wanted",
    [
        RecordFilter(),
        RecordFilter(frozenset({ord("a")})),
        RecordFilter(frozenset({ord("a"), ord("b")})),
        RecordFilter(accept=lambda record: len(record) % 3 == 0),
        RecordFilter(frozenset({5})),
    ],
)
@pytest.mark.parametrize("count", [1, 3, 32])
def test_pulls_are_the_same_with_maps_and_without(wanted: RecordFilter, count: int) -> None:
    mapped, unmapped = filled(FakeDisk()), filled(Unmapped())
    for queue_id in range(3):
        offset = 0
        while offset < mapped.max_offset("T", queue_id):
            result = mapped.get("T", queue_id, offset, count, wanted)
            assert result == unmapped.get("T", queue_id, offset, count, wanted)
            assert result.next_offset > offset
            offset = result.next_offset
    assert mapped._log.corrupt_records == unmapped._log.corrupt_records
    assert bool(mapped._log.corrupt_records) == (wanted.codes != {5})


def test_a_corrupt_record_is_skipped_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    store = filled(FakeDisk())
    result = store.get("T", 1, 7, 1)
    assert (result.status, result.body, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, b"", 8)
    result = store.get("T", 1, 6, 3)
    assert (result.status, len(result.sizes), result.next_offset) == (GetStatus.FOUND, 2, 9)
    assert len([line for line in caplog.messages if "corrupt record" in line]) == 1


def test_usual_pulls_need_no_single_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a record was read by itself")

    store = filled(FakeDisk(), log_size=1 << 20)
    monkeypatch.setattr(queue_reader, "_read_spans", refuse)
    assert store.get("T", 0, 0, 5).status is GetStatus.FOUND
    assert store.get("T", 0, 0, 5, RecordFilter(accept=lambda record: True)).status is GetStatus.FOUND


@pytest.mark.parametrize("disk_class", [FakeDisk, Unmapped])
def test_records_far_from_each_other_are_read_one_by_one(
    disk_class: type[FakeDisk], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = disk_class()
    config = StoreConfig(root="/store", commit_log_size=4 << 20, consume_queue_size=2000)
    store = open_store(config, disk, now_ms=lambda: 1, store_host=HOST)
    for number in range(40):
        body = bytes([number]) * (100_000 if number % 2 else 10)
        store.put(RecordDraft(topic="T", queue_id=number % 2, body=body, born_ms=1, born_host=HOST))
    store.flush()
    store.dispatch_pending()

    with monkeypatch.context() as patch:
        patch.setattr(queue_reader, "_read_spans", None)  # calling it would fail
        result = store.get("T", 0, 0, 32)
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 20)
    assert [record[88:98] for record in result.records] == [bytes([number]) * 10 for number in range(0, 40, 2)]

    offset, _, _ = store.entries("T", 0, 3, 1)[0]
    disk.contents(f"/store/commitlog/{0:020}")[offset + 5] ^= 1
    result = store.get("T", 0, 0, 32)
    assert (len(result.sizes), result.next_offset) == (19, 20)
    assert [offset] == list(store._log.corrupt_records)
    assert len([line for line in caplog.messages if "corrupt record" in line]) == 1
