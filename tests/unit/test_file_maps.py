"""Maps of files: what pwrite wrote is in them, and a file that becomes shorter costs no process its life."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ariane.kernels.implementation import select
from ariane.kernels.pulls.pull_selection import FileMap
from ariane.model import host
from ariane.store.disk import file_maps
from ariane.store.disk.files import Disk, OpenFiles, SystemDisk
from ariane.store.message_store import GetStatus, MessageStore, RecordDraft, StoreConfig, open_store
from ariane.store.queues import queue_reader
from ariane.testing.disk import FakeDisk

HOST = host.pack("127.0.0.1", 10911)
SIZE = 1 << 20


class CountingDisk(SystemDisk):
    """The machine's disk; counts reads that used no map."""

    preads = 0

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self.preads += 1
        return super().pread(handle, size, offset)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "file")


@pytest.fixture(autouse=True, params=["python", "native"])
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with the maps of both implementations."""
    if request.param == "native":
        pytest.importorskip(
            "ariane_native", reason="ariane_native is not installed; ./ariane install builds it with cargo"
        )
    core = select(request.param)
    for module in (file_maps, queue_reader):
        monkeypatch.setattr(module, "selected", lambda: core)


def mapped(path: str, size: int = SIZE) -> tuple[int, FileMap]:
    """Return a new file and its map; skip the test if this kernel can load no map."""
    handle = SystemDisk().create(path, size)
    file_map = file_maps.map_file(handle, size)
    if file_map is None:
        pytest.skip("no MADV_POPULATE_READ here")
    return handle, file_map


def test_a_map_has_what_pwrite_wrote_after_it(path: str) -> None:
    handle, file_map = mapped(path)

    SystemDisk().pwrite(handle, b"written", 5000)

    assert file_map.load(5000, 5010)
    assert file_map[5000:5007] == b"written"
    assert file_map[5007:5010] == bytes(3)


def test_a_map_has_what_follows_a_truncation_and_a_new_write(path: str) -> None:
    handle, file_map = mapped(path)
    disk = SystemDisk()
    disk.pwrite(handle, b"former" * 1000, 0)
    assert file_map.load(0, 6000)

    disk.truncate(handle, 10)
    disk.truncate(handle, SIZE)
    disk.pwrite(handle, b"later", 5000)

    assert file_map.load(0, 6000)
    assert file_map[0:12] == b"formerform\0\0"
    assert file_map[4999:5006] == b"\0later\0"


def test_a_closed_map_is_an_error(path: str) -> None:
    handle, file_map = mapped(path)
    os.close(handle)
    assert file_map.load(0, 10)
    file_map.close()
    file_map.close()
    with pytest.raises(ValueError, match="closed"):
        file_map[0:10]
    with pytest.raises(ValueError, match="closed"):
        file_map.load(0, 10)


def test_a_shorter_file_does_not_load(path: str) -> None:
    handle, file_map = mapped(path)
    assert file_map.load(SIZE - 10, SIZE)

    os.truncate(handle, SIZE // 2)

    assert not file_map.load(SIZE - 10, SIZE)
    assert not file_map.load(0, SIZE)
    assert file_map.load(0, SIZE // 2)
    assert file_maps.map_file(handle, SIZE) is None


def test_a_map_releases_its_pages_and_still_reads(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_maps, "RESIDENT_MAX", 3 * file_maps.PAGE)
    handle, file_map = mapped(path)
    SystemDisk().pwrite(handle, bytes(range(256)) * (SIZE // 256), 0)

    for start in range(0, SIZE - 512, file_maps.PAGE):
        assert file_map.load(start, start + 512)
        assert file_map[start : start + 256] == bytes(range(256))
        if isinstance(file_map, file_maps.MappedFile):  # that of the native map is tested with it
            assert file_map._loaded <= file_maps.RESIDENT_MAX


def test_the_number_of_maps_is_bounded(tmp_path: Path) -> None:
    closed: list[str] = []

    class OneMap:
        def __init__(self, name: str) -> None:
            self.name = name

        def load(self, start: int, stop: int) -> bool:
            return True

        def __getitem__(self, part: slice) -> bytes:
            return b""

        def close(self) -> None:
            closed.append(self.name)

    class NamedMaps(FakeDisk):
        def map(self, handle: int, size: int) -> OneMap:
            return OneMap(self._handles[handle][0])

    disk = NamedMaps()
    files = OpenFiles(disk, 32)  # which allows two maps
    for name in "abc":
        disk.put_file(f"/{name}")
    first = files.map("/a", 1)
    assert files.map("/b", 1) is not None
    assert files.map("/a", 1) is first
    files.map("/c", 1)
    assert closed == ["/b"]
    files.drop("/a")
    assert closed == ["/b", "/a"]
    files.close()
    assert closed == ["/b", "/a", "/c"]


def test_a_file_that_cannot_be_mapped_is_tried_once() -> None:
    attempts = []

    class NoMaps(FakeDisk):
        def map(self, handle: int, size: int) -> None:
            attempts.append(size)

    disk = NoMaps()
    disk.put_file("/a")
    files = OpenFiles(disk)
    assert (files.map("/a", 7), files.map("/a", 7)) == (None, None)
    assert attempts == [7]
    files.drop("/a")
    files.map("/a", 7)
    assert attempts == [7, 7]


def test_the_fake_map_refuses_slices_without_a_load_right_before() -> None:
    disk = FakeDisk()
    disk.put_file("/a", bytes(100))
    handle = disk.open("/a")
    file_map = disk.map(handle, 100)
    assert file_map is not None
    assert disk.map(handle, 101) is None

    with pytest.raises(AssertionError, match="without a load"):
        file_map[0:10]
    assert file_map.load(10, 20)
    assert file_map[10:20] == bytes(10)
    with pytest.raises(AssertionError, match="without a load"):
        file_map[10:21]
    disk.pwrite(handle, b"x", 50)
    with pytest.raises(AssertionError, match="without a load"):
        file_map[10:20]
    disk.truncate(handle, 15)
    assert not file_map.load(10, 20)


# --- a store reads through maps ---


def filled(root: str, disk: Disk, count: int = 64) -> MessageStore:
    """Return a store with messages of two queues in turn, all of them dispatched."""
    config = StoreConfig(root=root, commit_log_size=SIZE, consume_queue_size=20 * 2000)
    store = open_store(config, disk, now_ms=lambda: 1, store_host=HOST)
    for number in range(count):
        body = b"%d" % number * 100
        store.put(RecordDraft(topic="T", queue_id=number % 2, body=body, born_ms=1, born_host=HOST))
    store.flush()
    store.dispatch_pending()
    return store


def test_a_pull_reads_no_record_one_by_one(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = filled(str(tmp_path), disk)
    if store._log.segments.map(0) is None:
        pytest.skip("no MADV_POPULATE_READ here")
    store.get("T", 1, 0, 32)  # opens the queue
    disk.preads = 0

    result = store.get("T", 1, 0, 32)

    assert result.status is GetStatus.FOUND
    assert [record[88:90] for record in result.records[:6]] == [b"11", b"33", b"55", b"77", b"99", b"11"]
    assert b"".join(result.records) == result.body
    assert disk.preads == 0
    store.close()


def test_a_log_file_that_is_truncated_from_outside_costs_only_its_messages(tmp_path: Path) -> None:
    store = filled(str(tmp_path), SystemDisk())
    assert store.get("T", 0, 0, 32).status is GetStatus.FOUND
    path = tmp_path / "commitlog" / f"{0:020}"

    os.truncate(path, 4096)

    begin = store.get("T", 0, 0, 4)  # these are in the first page
    assert (begin.status, len(begin.sizes)) == (GetStatus.FOUND, 4)
    rest = store.get("T", 0, 24, 8)
    assert (rest.status, rest.body, rest.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, b"", 32)
    os.truncate(path, 0)
    assert store.get("T", 0, 0, 4).status is GetStatus.MESSAGE_WAS_REMOVING
    os.truncate(path, SIZE)
    store.close()


def test_a_disk_error_is_an_error_of_the_pull() -> None:
    class BadSector(FakeDisk):
        is_bad = False

        def pread(self, handle: int, size: int, offset: int) -> bytes:
            if self.is_bad:
                raise OSError(5, "Input/output error")
            return super().pread(handle, size, offset)

        def map(self, handle: int, size: int) -> Unloadable:
            return Unloadable()

    class Unloadable:
        def load(self, start: int, stop: int) -> bool:
            return False

        def __getitem__(self, part: slice) -> bytes:
            raise AssertionError("SIGBUS")

        def close(self) -> None:
            pass

    disk = BadSector()
    store = filled("/store", disk)
    assert store.get("T", 0, 0, 32).status is GetStatus.FOUND
    disk.is_bad = True
    with pytest.raises(OSError, match="Input/output error"):
        store.get("T", 0, 0, 32)
