"""Trace records in files: order, bounds, crashes, and what the next process takes over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ariane.client.tracing import trace_spill
from ariane.client.tracing.trace_spill import TraceSpill
from ariane.errors import ConfigError
from ariane.protocol.trace_batches import TraceEntry

MIB = 1024 * 1024


def entries(*numbers: int, size: int = 10) -> list[TraceEntry]:
    return [TraceEntry(b"%04d" % number + b"t" * (size - 1) + b"\x02", f"ID{number} ORDER", 1) for number in numbers]


def numbers(found: object) -> list[int]:
    return [int(entry.text[:4]) for entry in found]  # type: ignore[attr-defined]


def opened(directory: Path, bytes_max: int = MIB) -> TraceSpill:
    spill = TraceSpill(directory, bytes_max)
    spill.open()
    return spill


def crash(spill: TraceSpill) -> None:
    """End as a killed process does: the lock is released, the files stay."""
    os.close(spill._lock)


def test_records_return_in_their_order_with_their_keys(tmp_path: Path) -> None:
    spill = opened(tmp_path)
    assert spill.append(entries(1, 2, 3)) == 3
    assert spill.oldest()[0] == entries(1)[0]
    spill.discard(2)
    assert spill.append(entries(4)) == 1
    assert (numbers(spill.oldest()), spill.count) == ([3], 2)
    spill.discard(1)
    assert numbers(spill.oldest()) == [4]
    spill.discard(1)
    assert (list(spill.oldest()), spill.count) == ([], 0)
    spill.close()
    assert list(tmp_path.iterdir()) == []


def test_the_files_are_bounded_and_room_returns_with_each_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_spill, "SEGMENT_BYTES", 2_000)
    spill = opened(tmp_path, 5_000)
    kept = sum(spill.append(entries(number, size=900)) for number in range(10))
    assert (kept, spill.count) == (5, 5)
    assert numbers(spill.oldest()) == [0, 1, 2]
    spill.discard(3)
    assert spill.append(entries(10, 11, 12, 13, size=900)) == 3
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.trace")) <= 5_000
    seen = []
    while spill.count:
        seen += numbers(spill.oldest())
        spill.discard(len(spill.oldest()))
    assert seen == [3, 4, 10, 11, 12]


def test_what_a_crashed_process_left_is_taken_over_once(tmp_path: Path) -> None:
    dead, alive = opened(tmp_path), opened(tmp_path)
    dead.append(entries(1, 2))
    dead.oldest()
    dead.discard(1)  # of a segment that was not sent completely, all is sent again
    dead.append(entries(3))
    alive.append(entries(9))
    crash(dead)
    heir, late = opened(tmp_path), opened(tmp_path)
    assert (heir.count, late.count) == (3, 0)
    assert numbers(heir.oldest()) == [1, 2]
    heir.discard(2)
    assert numbers(heir.oldest()) == [3]
    assert numbers(alive.oldest()) == [9]  # of a process that lives
    heir.close()
    assert opened(tmp_path).count == 1


@pytest.mark.parametrize("cut", range(1, 45, 4))
def test_the_end_of_an_incomplete_entry_is_ignored(tmp_path: Path, cut: int) -> None:
    dead = opened(tmp_path)
    dead.append(entries(1, 2))
    crash(dead)
    (path,) = tmp_path.rglob("*.trace")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - cut])
    heir = opened(tmp_path)
    assert numbers(heir.oldest()) == ([1] if cut <= 35 else [])
    assert heir.count == len(heir.oldest())


def test_a_full_disk_loses_only_what_it_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spill = opened(tmp_path)
    spill.append(entries(1))
    write = os.write
    monkeypatch.setattr(trace_spill.os, "write", lambda handle, data: write(handle, data[:20]))
    with pytest.raises(OSError, match="the disk is full"):
        spill.append(entries(2))
    monkeypatch.undo()
    spill.append(entries(3))
    seen = []
    while spill.count:
        seen += numbers(spill.oldest())
        spill.discard(len(spill.oldest()))
    assert seen == [1, 3]


def test_directories_of_other_programs_are_not_touched(tmp_path: Path) -> None:
    for name in ("empty", "logs"):
        (tmp_path / name).mkdir()
    (tmp_path / "logs" / "00000001.trace").write_bytes(b"theirs")
    opened(tmp_path).close()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["00000001.trace", "empty", "logs"]


def test_a_directory_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="spill_dir = .*cannot be used"):
        opened(tmp_path / "file")
