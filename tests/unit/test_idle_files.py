"""Open files of a store: bounded, and closed when they are idle."""

from __future__ import annotations

import pytest

from ariane.store.disk.files import CLOSED_PER_SLICE, OpenFiles
from ariane.testing.disk import FakeDisk


class HandleDisk(FakeDisk):
    """A disk that lists its open handles."""

    def __init__(self) -> None:
        super().__init__()
        self.open_handles: set[int] = set()

    def open(self, path: str) -> int:
        handle = super().open(path)
        self.open_handles.add(handle)
        return handle

    def create(self, path: str, size: int) -> int:
        handle = super().create(path, size)
        self.open_handles.add(handle)
        return handle

    def close(self, handle: int) -> None:
        super().close(handle)
        self.open_handles.discard(handle)


@pytest.fixture
def disk() -> HandleDisk:
    return HandleDisk()


def test_handles_that_are_not_used_are_closed_in_slices(disk: HandleDisk) -> None:
    """A broker kept 10,042 files open, most of them of topics that were used once."""
    files = OpenFiles(disk, 1000)
    paths = [f"/{number}" for number in range(200)]
    for path in paths:
        files.create(path, 0)
    assert len(list(files.close_idle())) == 0
    assert len(disk.open_handles) == 200
    files.get("/0")
    slices = files.close_idle()
    next(slices)
    assert len(disk.open_handles) == 200 - CLOSED_PER_SLICE
    files.drop("/199")  # meanwhile
    list(slices)
    assert len(disk.open_handles) == 1
    assert files.get("/0") in disk.open_handles
    files.close()
    assert not disk.open_handles


def test_the_bound_of_open_files_includes_idle_ones(disk: HandleDisk) -> None:
    files = OpenFiles(disk, 3)
    for path in ("/a", "/b", "/c"):
        files.create(path, 0)
    list(files.close_idle())
    kept = files.get("/a")
    files.create("/d", 0)  # closes /b
    assert len(disk.open_handles) == 3 and kept in disk.open_handles
    assert files.get("/a") == kept
