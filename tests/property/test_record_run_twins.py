"""Both implementations of `scan_records` return the same runs, and the same records as `parse_record`, whatever the bytes are.

records, damaged ones, noise ─┬→ ariane.kernels.record_runs ─┐
                              ├→ ariane_native ──────────────┼→ the same runs
                              └→ parse_record, one by one ───┘
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ariane.kernels import implementation
from ariane.kernels.key_hashes import KeyHashes
from ariane.kernels.record_runs import LogPlace, ScannedRecords
from ariane.kernels.scanned_record import NotARecord, ScannedRecord, parse_record
from ariane.model.hashes import string_hash
from ariane.protocol.records import properties as properties_text
from ariane.protocol.records import record
from ariane.protocol.records.queue_entry import ENTRY
from ariane.store.disk.files import OpenFiles
from ariane.store.disk.segments import Segments
from ariane.store.log.record_scanner import RecordScanner
from ariane.testing.disk import FakeDisk

PYTHON = implementation.select("python")
HOSTS = [bytes(8), bytes(range(20))]
I64 = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63 - 1, -(2**63)])
NAMES = [b"KEYS", b"TAGS", b"UNIQ_KEY", b"XTAGS", b"KEYS\xff", b"", b"x"]
VALUES = st.sampled_from(
    [
        b"",
        b"a",
        b"a b  a",
        b"TAGS\x01b",
        b"7F0000010A9F18B4AAC2000000000000",
        "é€😀".encode(),
        b"\xff",
        b"\xed\xa0\x80x",
        b"\xe2\x82",
    ]
)
TEXTS = st.lists(
    st.tuples(st.sampled_from(NAMES), VALUES).map(b"\x01".join) | st.binary(max_size=4), max_size=5
).map(b"\x02".join)  # fmt: skip


@st.composite
def records(draw: Any, offset: int) -> bytes:
    """Strategy: a valid record, apart from its CRC and zeros at its end now and then."""
    data = record.encode(
        draw(st.sampled_from([b"T", b"T", "Ü".encode(), b"\xff\xc3", b"", b"SCHEDULE_TOPIC_XXXX"])),
        draw(st.binary(max_size=30)),
        draw(TEXTS) + draw(st.sampled_from([b"", b"", b"", b"\0"])),
        queue_id=draw(st.integers(-1, 2)), queue_offset=draw(st.integers(0, 3) | I64), offset=offset,
        born_ms=1, store_ms=draw(st.integers(5, 7) | I64), born_host=draw(st.sampled_from([HOSTS[0]] * 3 + HOSTS)),
        store_host=draw(st.sampled_from([HOSTS[0]] * 3 + HOSTS)), sys_flag=draw(st.sampled_from([0, 0, 0, 1, 4, 8, 12])),
        prepared_offset=draw(st.just(0) | I64),
    )  # fmt: skip
    if draw(st.integers(0, 19)) == 0:
        data = data[: record.BODY_CRC_AT] + b"\x01\x02\x03\x04" + data[record.BODY_CRC_AT + 4 :]
    return data


@st.composite
def logs(draw: Any, start: int, size_max: int = 1 << 20) -> bytes:
    """Strategy: adjacent records at their offsets, some with damaged bytes."""
    data = b""
    for _ in range(draw(st.integers(0, 6))):
        following = draw(records(start + len(data)))
        if len(data) + len(following) + record.FILLER_SIZE > size_max:
            break
        data += following
    spoilt = bytearray(data)
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        if spoilt:
            position = draw(st.integers(0, len(spoilt) - 1))
            spoilt[position] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    return bytes(spoilt)


def parse_all(data: bytes, position: int, place: LogPlace, *, check_crc: bool) -> list[ScannedRecord]:
    """Return the records of a run, one by one."""
    found: list[ScannedRecord] = []
    at = 0
    while at < place.until:
        try:
            item = parse_record(data, position + at, place.offset + at, place.room - at, check_crc=check_crc)
        except NotARecord:
            break
        found.append(item)
        at += item.size
    return found


def expected_keys(found: list[ScannedRecord]) -> tuple[bytes, list[tuple[int, int]]]:
    """Return keys and their times, hashed record by record."""
    keys, times = b"", []
    for item in found:
        if item.sys_flag & 12 == 12:
            continue
        topic, text = item.topic.decode("utf-8", "replace"), item.properties.decode("utf-8", "replace")
        own = KeyHashes().hash_keys([(topic, text, item.offset, item.store_ms)])
        keys += own
        times += [item.store_ms] * (len(own) // 12)
    return keys, [(1, time) for time in times]


def check(run: ScannedRecords | None, found: list[ScannedRecord], *, hash_keys: bool) -> None:
    """Compare a run with its records."""
    assert (run is None) is (not found)
    if run is None:
        return
    assert (run.size, run.records) == (sum(item.size for item in found), len(found))
    times = [item.store_ms for item in found]
    pairs = list(pairwise(times))
    assert run.times[:2] == (times[0], times[-1])
    assert run.times.floor_ms == max([min(pair) for pair in pairs], default=-(2**63))
    assert run.times.decreases == sum(after < before for before, after in pairs)
    queues: dict[tuple[bytes, int], list[ScannedRecord]] = {}
    for item in found:
        if item.sys_flag & 12 in (0, 8):
            queues.setdefault((item.topic, item.queue_id), []).append(item)
    assert [(queue.topic, queue.queue_id) for queue in run.queues] == list(queues)
    for queue, items in zip(run.queues, queues.values(), strict=True):
        numbers = [item.queue_offset for item in items]
        assert queue.queue_offset == numbers[0]
        assert queue.is_consecutive is (numbers == list(range(numbers[0], numbers[0] + len(numbers))))
        tags = [properties_text.decode(item.properties.decode("utf-8", "replace")).get("TAGS", "") for item in items]
        assert list(ENTRY.iter_unpack(queue.entries)) == [
            (item.offset, item.size, string_hash(tag)) for item, tag in zip(items, tags, strict=True)
        ]
    keys, key_times = expected_keys(found) if hash_keys else (b"", [])
    assert run.keys == keys
    assert [(1, time) for count, time in run.key_times for _ in range(count)] == key_times
    assert all(before[1] != after[1] for before, after in pairwise(run.key_times))
    assert run.deliveries == [
        (item.offset, item.prepared_offset) for item in found if item.prepared_offset < 0 and item.sys_flag & 12 != 12
    ]
    assert run.commits == [item.offset for item in found if item.sys_flag & 12 == 8]
    assert run.rollbacks == [item.offset for item in found if item.sys_flag & 12 == 12]


@settings(max_examples=400, deadline=None)
@given(st.data(), st.booleans(), st.booleans(), st.sampled_from([0, 1 << 40, 2**63 - 200]))
def test_runs(data: st.DataObject, check_crc: bool, hash_keys: bool, start: int) -> None:
    start = min(start, 2**63 - 1 - 200)
    before = data.draw(st.binary(max_size=3))
    stored = data.draw(logs(start)) if start < 1 << 62 else data.draw(records(start))
    stored = stored[: data.draw(st.integers(0, len(stored)) | st.just(len(stored)))] + data.draw(
        st.binary(max_size=120)
    )
    limits = st.integers(0, len(stored) + 200) | st.just(1 << 30)
    place = LogPlace(start, data.draw(limits), data.draw(limits))
    run = PYTHON.scan_records(before + stored, len(before), place, check_crc=check_crc, hash_keys=hash_keys)
    check(run, parse_all(before + stored, len(before), place, check_crc=check_crc), hash_keys=hash_keys)
    pytest.importorskip("ariane_native", reason="ariane_native is not installed; ./ariane install builds it with cargo")
    native = implementation.select("native")
    assert native.scan_records(before + stored, len(before), place, check_crc=check_crc, hash_keys=hash_keys) == run
    assert native.description.startswith("native"), "a panic"


FILE_SIZE = 1200


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans(), st.none() | st.integers(0, 8), st.booleans(), st.booleans())
def test_a_scan_by_runs_ends_where_one_by_records_does(
    data: st.DataObject, check_crc: bool, floor_ms: int | None, all_written: bool, is_native: bool
) -> None:
    disk = FakeDisk()
    disk.make_dirs("/log")
    segments = Segments(OpenFiles(disk), "/log", FILE_SIZE, [])
    for base in range(0, data.draw(st.integers(1, 3)) * FILE_SIZE, FILE_SIZE):
        segments.create_file(base)
        stored = data.draw(logs(base, FILE_SIZE))
        if len(stored) <= FILE_SIZE - record.FILLER_SIZE and data.draw(st.booleans()):
            stored += record.filler(FILE_SIZE - len(stored))
        segments.write(base, stored)
    if is_native:
        pytest.importorskip(
            "ariane_native", reason="ariane_native is not installed; ./ariane install builds it with cargo"
        )
    stop = data.draw(st.just(1 << 62) | st.integers(1, segments.stop))
    scan = partial(
        RecordScanner, segments, 0, stop, check_crc=check_crc, min_store_ms=floor_ms, all_written=all_written
    )
    one_by_one, by_runs = scan(), scan()
    expected = list(one_by_one)
    with mock.patch.object(
        implementation, "selected", lambda: implementation.select("native" if is_native else "python")
    ):
        runs = list(by_runs.runs())
    assert sum(run.scanned.records for run in runs) == len(expected)
    entries = [item for item in expected if item.sys_flag & 12 in (0, 8)]
    scanned = [item for run in runs for queue in run.scanned.queues for item in run.records_of(queue.entries)]
    assert sorted(scanned) == sorted(entries)
    for name in ("end", "stop_reason", "corrupt_ranges", "min_store_ms"):
        assert getattr(by_runs, name) == getattr(one_by_one, name), name


@pytest.mark.parametrize("choice", ["python", "native"])
def test_only_the_first_record_after_a_corrupt_range_is_checked_and_a_run_of_its_own(choice: str) -> None:
    if choice == "native":
        pytest.importorskip(
            "ariane_native", reason="ariane_native is not installed; ./ariane install builds it with cargo"
        )
    disk = FakeDisk()
    disk.make_dirs("/log")
    segments = Segments(OpenFiles(disk), "/log", FILE_SIZE, [])
    segments.create_file(0)
    stored = b""
    for number, is_damaged in enumerate([False, True, False, False, True]):
        item = record.encode(
            b"T", b"body", b"", queue_id=0, queue_offset=number, offset=len(stored), born_ms=1, store_ms=5,
            born_host=HOSTS[0], store_host=HOSTS[0],
        )  # fmt: skip
        at = record.MAGIC_AT if number == 1 else record.BODY_CRC_AT
        stored += item[:at] + b"\0" * 4 + item[at + 4 :] if is_damaged else item
    segments.write(0, stored)
    scanner = RecordScanner(segments, 0, 1 << 62, check_crc=False, min_store_ms=0)
    with mock.patch.object(implementation, "selected", lambda: implementation.select(choice)):
        assert [(run.offset, run.scanned.records) for run in scanner.runs()] == [(0, 1), (192, 1), (288, 2)]
    assert [(corrupt.offset, corrupt.size) for corrupt in scanner.corrupt_ranges] == [(96, 96)]
