"""The disks of test clusters behave alike, and as the machine's disk does when it is full."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ariane.clock import SYSTEM_CLOCK
from ariane.store.disk.files import Disk
from ariane.testing.fillable_disks import FillableDisk, MemoryDisk


@pytest.fixture(params=[MemoryDisk, FillableDisk])
def disk(request: pytest.FixtureRequest) -> Disk:
    return MemoryDisk(SYSTEM_CLOCK) if request.param is MemoryDisk else FillableDisk()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    root = str(tmp_path / "store")
    assert disk.make_dirs(root)
    assert disk.make_dirs(root) == []
    return root


def test_files_read_back_what_was_written_and_zeros_elsewhere(disk: Disk, root: str) -> None:
    handle = disk.create(f"{root}/log", 100)
    assert (disk.size(f"{root}/log"), disk.pread(handle, 200, 0)) == (100, bytes(100))
    disk.pwrite(handle, b"abc", 10)
    disk.pwrite(handle, b"B", 11)
    disk.fsync(handle)
    disk.fsync_dir(root)
    assert disk.pread(handle, 5, 9) == b"\0aBc\0"
    assert disk.pread(handle, 5, 98) == b"\0\0"
    assert disk.pread(handle, 5, 200) == b""
    disk.pwrite(handle, b"end", 99)
    assert disk.size(f"{root}/log") == 102
    disk.truncate(handle, 11)
    assert disk.pread(handle, 100, 10) == b"a"
    disk.truncate(handle, 20)
    assert disk.pread(handle, 100, 10) == b"a" + bytes(9)
    assert abs((disk.modified_ms(f"{root}/log") or 0) - SYSTEM_CLOCK.now_ms()) < 60_000
    disk.close(handle)
    handle = disk.open(f"{root}/log")
    assert disk.pread(handle, 1, 10) == b"a"
    disk.close(handle)


def test_names(disk: Disk, root: str) -> None:
    first, second = f"{root}/a", f"{root}/b"
    handle = disk.create(first, 10)
    disk.pwrite(handle, b"1", 0)
    with pytest.raises(FileExistsError):
        disk.create(first, 10)
    disk.rename(first, second)
    assert (disk.size(first), disk.size(second), disk.listdir(root)) == (None, 10, ["b"])
    assert disk.is_at(handle, second) and not disk.is_at(handle, first)
    disk.make_dirs(f"{root}/sub/sub")
    assert disk.listdir(root) == ["b", "sub"]
    disk.for_each(disk.remove, [second])
    assert disk.pread(handle, 1, 0) == b"1", "open files outlive their names"
    disk.close(handle)
    disk.remove_dir(f"{root}/sub/sub")
    assert disk.listdir(f"{root}/sub") == []
    for missing in (disk.open, disk.remove, disk.listdir):
        with pytest.raises(FileNotFoundError):
            missing(f"{root}/missing")
    with pytest.raises(FileNotFoundError):
        disk.create(f"{root}/missing/a", 1)
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/missing", first)
    with pytest.raises(IsADirectoryError):
        disk.open(root)
    assert disk.modified_ms(f"{root}/missing") is None


def test_a_path_is_locked_once(disk: Disk, root: str) -> None:
    handle = disk.lock(f"{root}/lock", b"lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/lock", b"lock")
    disk.unlock(handle)
    again = disk.lock(f"{root}/lock", b"lock")
    disk.unlock(again)
    directory = disk.lock_dir(root)
    with pytest.raises(BlockingIOError):
        disk.lock_dir(root)
    disk.unlock(directory)


def test_a_full_disk_takes_no_more_room(disk: MemoryDisk | FillableDisk, root: str) -> None:
    handle = disk.create(f"{root}/log", 1 << 20)
    disk.pwrite(handle, b"x" * 100, 0)
    assert disk.usage(root).free > 0
    disk.is_full = True
    assert disk.usage(root).free == 0
    disk.pwrite(handle, b"y" * 50, 20)
    for write in (lambda: disk.pwrite(handle, b"z", 1 << 19), lambda: disk.create(f"{root}/b", 1)):
        with pytest.raises(OSError) as full:
            write()
        assert full.value.errno == errno.ENOSPC
    assert disk.pread(handle, 3, 19) == b"xyy"
    disk.is_full = False
    disk.pwrite(handle, b"z", 1 << 19)
    assert disk.pread(handle, 1, 1 << 19) == b"z"
    assert disk.next_data(handle, 0) == 0
    disk.close(handle)
