"""Backups of a store: what they contain while it is written to, what is copied again, and what a restored store has."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from ariane.backup import create, store_snapshot
from ariane.backup.backup_target import BackupTarget, DirectoryTarget, open_target
from ariane.backup.create import BackupOutcome, create_backup, sole_backup
from ariane.backup.manifest import BackupManifest, chunk_name, id_at, list_ids, read_manifest
from ariane.backup.restore import find_faults, restore_backup
from ariane.backup.retention import retain
from ariane.errors import ConfigError, StoreCorrupt, StoreError, StoreLocked
from ariane.store.disk.files import ReadOnlyDisk, SystemDisk
from ariane.store.message_store import GetStatus, MessageStore, RecordDraft, StoreConfig, open_store

SEGMENT = 4096
START_MS = 4_000_000_000_000  # later than the files of the test


class Times:
    """A clock: each look is 10 s later, so that files settle between two backups."""

    def __init__(self) -> None:
        self._times = itertools.count(START_MS, 10_000)

    def __call__(self) -> int:
        return next(self._times)


def opened(root: Path) -> MessageStore:
    config = StoreConfig(root=str(root), commit_log_size=SEGMENT, consume_queue_size=200)
    return open_store(config, SystemDisk(), now_ms=lambda: 1_000_000, store_host=bytes(8))


def put(store: MessageStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.put(RecordDraft(topic="T", queue_id=number % 2, body=b"%090d" % number, born_ms=1, born_host=bytes(8)))
    store.dispatch_pending()


def numbers(store: MessageStore) -> list[int]:
    found: list[int] = []
    for queue_id in (0, 1):
        offset = store.min_offset("T", queue_id)
        while offset < store.max_offset("T", queue_id):
            result = store.get("T", queue_id, offset, 32)
            assert result.status is GetStatus.FOUND
            found += [int(data[data.index(b"0" * 50) :][:90]) for data in result.records]
            offset = result.next_offset
    return sorted(found)


def restored(target: BackupTarget, manifest: BackupManifest, root: Path) -> list[int]:
    restore_backup(target, manifest, root)
    store = opened(root)
    try:
        return numbers(store)
    finally:
        store.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store" / "config").mkdir(parents=True)
    (tmp_path / "store" / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    return tmp_path / "store"


@pytest.fixture(params=["directory", "memory"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> BackupTarget:
    return open_target(str(tmp_path / "target") if request.param == "directory" else f"memory://{tmp_path}/target")


@pytest.fixture
def back_up(root: Path, target: BackupTarget) -> Callable[[], BackupOutcome]:
    times = Times()
    return lambda: create_backup(str(root), target, now_ms=times, host="h")


def test_a_store_that_is_open_is_restored_with_all_of_its_messages(root, target, back_up, tmp_path):
    store = opened(root)
    put(store, 0, 60)
    outcome = back_up()
    put(store, 60, 7)
    store.close()
    assert outcome.manifest.records == 60
    assert outcome.manifest.log_start == 0
    restore_backup(target, read_manifest(target), tmp_path / "new")
    sizes = {path.stat().st_size for path in (tmp_path / "new/commitlog").iterdir()}
    assert sizes == {SEGMENT}, "Java refuses a file of another size"
    copy = opened(tmp_path / "new")
    assert numbers(copy) == list(range(60))
    copy.close()
    assert (tmp_path / "new/config/topics.json").read_text() == '{"topicConfigTable":{}}'
    assert (tmp_path / "new/config/topics.json").stat().st_mode & 0o777 == 0o600


def test_a_second_backup_writes_only_what_is_new(root, target, back_up, tmp_path):
    store = opened(root)
    put(store, 0, 60)
    first = back_up()
    unchanged = back_up()
    put(store, 60, 1)
    third = back_up()
    store.close()
    assert first.written == first.manifest.length
    assert unchanged.written == 0
    assert 0 < third.written <= SEGMENT
    assert [restored(target, read_manifest(target, id_), tmp_path / id_) for id_ in list_ids(target)] == [
        list(range(60)),
        list(range(60)),
        list(range(61)),
    ]


def test_finished_files_are_not_read_again(root, target, back_up, monkeypatch):
    store = opened(root)
    put(store, 0, 200)
    back_up()
    scanned = []
    scan = store_snapshot.RecordScanner

    def counted(segments, start, stop, **options):
        scanned.append(start - start % SEGMENT)
        return scan(segments, start, stop, **options)

    monkeypatch.setattr(store_snapshot, "RecordScanner", counted)
    manifest = back_up().manifest
    store.close()
    assert manifest.records == 200
    assert min(scanned) >= manifest.log_end - SEGMENT


def test_documents_that_change_meanwhile_are_read_again_with_the_log(root, target, tmp_path):
    """A topic that is created and used during a backup is in it with its messages, or without both."""
    store = opened(root)
    put(store, 0, 10)
    document = root / "config" / "topics.json"

    class BusyDisk(ReadOnlyDisk):
        looks = 0

        def listdir(self, path: str) -> list[str]:
            if path.endswith("/config"):
                self.looks += 1
                if self.looks == 2:  # after the log was read for the first time
                    document.write_text('{"topicConfigTable":{"T":{}}}')
                    put(store, 10, 5)
            return super().listdir(path)

    disk = BusyDisk()
    manifest = create_backup(str(root), target, now_ms=Times(), disk=disk, host="h").manifest
    store.close()
    assert disk.looks > 2
    assert manifest.records == 15
    assert restored(target, manifest, tmp_path / "new") == list(range(15))
    assert "T" in (tmp_path / "new/config/topics.json").read_text()


def test_a_store_that_never_rests_is_not_backed_up_inconsistently(root, target):
    class RestlessDisk(ReadOnlyDisk):
        looks = 0

        def listdir(self, path: str) -> list[str]:
            self.looks += 1
            (root / "config" / "consumerOffset.json").write_text(str(self.looks))
            return super().listdir(path)

    opened(root).close()
    with pytest.raises(StoreError, match="changed 100 times during a backup: repeat it"):
        create_backup(str(root), target, now_ms=Times(), disk=RestlessDisk(), host="h")
    assert list(list_ids(target)) == []


def test_a_record_that_is_being_written_is_not_copied(root, target, back_up, tmp_path):
    store = opened(root)
    put(store, 0, 5)
    store.close()
    path = next((root / "commitlog").iterdir())
    end = back_up().manifest.log_end
    with path.open("r+b") as file:
        file.seek(end)
        file.write(b"\0\0\0\xf0\xda\xa3\x20\xa7")  # size and magic of a record whose rest is not written yet
    outcome = back_up()
    assert (outcome.manifest.log_end, outcome.corrupt_ranges) == (end, ())


def test_a_corrupt_range_is_reported_and_copied(root, target, back_up, tmp_path):
    store = opened(root)
    put(store, 0, 100)
    store.close()
    path = root / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"?" * 50)
    outcome = back_up()
    assert len(outcome.corrupt_ranges) == 1
    assert outcome.manifest.records == 99
    restore_backup(target, outcome.manifest, tmp_path / "new")
    assert (tmp_path / "new/commitlog" / path.name).read_bytes() == path.read_bytes()


def test_a_file_whose_end_is_corrupt_hides_no_later_file(root, target, back_up):
    store = opened(root)
    put(store, 0, 100)
    store.close()
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(SEGMENT - 600)
        file.write(b"?" * 600)
    outcome = back_up()
    assert len(outcome.corrupt_ranges) == 1
    assert 90 < outcome.manifest.records < 100


def test_a_file_that_the_retention_removes_meanwhile_is_not_in_the_backup(root, target, back_up, monkeypatch, tmp_path):
    store = opened(root)
    put(store, 0, 100)
    store.close()
    copied = create._copied

    def removing(*arguments):
        (root / "commitlog" / f"{0:020d}").unlink()
        return copied(*arguments)

    monkeypatch.setattr(create, "_copied", removing)
    manifest = back_up().manifest
    assert manifest.log_start == SEGMENT
    found = restored(target, manifest, tmp_path / "new")
    assert found == list(range(found[0], 100))
    assert found[0] > 0


def test_a_missing_file_between_others_is_an_error(root, target, back_up):
    store = opened(root)
    put(store, 0, 100)
    store.close()
    (root / "commitlog" / f"{SEGMENT:020d}").unlink()
    with pytest.raises(StoreError, match=f"{SEGMENT:020d} is missing"):
        back_up()


@pytest.mark.parametrize("damage", [b"", b"x" * 100])
def test_a_damaged_part_is_found_and_never_restored(root, target, back_up, tmp_path, damage):
    store = opened(root)
    put(store, 0, 60)
    store.close()
    manifest = back_up().manifest
    assert list(find_faults(target, manifest)) == []
    log_file = next(file for file in manifest.files if file.path.startswith("commitlog"))
    target.write(chunk_name(log_file.chunks[0]), damage)
    (fault,) = find_faults(target, manifest)
    assert fault.file == log_file
    with pytest.raises(StoreCorrupt, match="have the digest"):
        restore_backup(target, manifest, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    target.write(chunk_name(log_file.chunks[0]), (root / log_file.path).read_bytes()[: log_file.length])
    assert restored(target, manifest, tmp_path / "new") == list(range(60))


def test_a_missing_part_is_copied_again_by_the_next_backup(root, target, back_up):
    store = opened(root)
    put(store, 0, 60)
    store.close()
    manifest = back_up().manifest
    target.remove(chunk_name(manifest.files[0].chunks[0]))
    assert len(list(find_faults(target, manifest))) == 1
    assert back_up().written > 0
    assert list(find_faults(target, manifest)) == []


def test_a_retention_keeps_the_newest_and_their_parts(root, target, back_up, tmp_path):
    store = opened(root)
    for first in range(0, 90, 30):
        put(store, first, 30)
        back_up()
    store.close()
    ids = list(list_ids(target))
    removal = retain(target, 1)
    assert removal.backups == tuple(ids[:2])
    assert removal.chunks > 0
    assert list(list_ids(target)) == ids[2:]
    manifest = read_manifest(target)
    assert {name.rpartition("/")[2] for name in target.names("chunks")} == manifest.chunks
    assert restored(target, manifest, tmp_path / "new") == list(range(90))
    assert retain(target, 1) == ((), 0)


def test_one_target_has_the_backups_of_one_store(root, target, back_up, tmp_path):
    opened(root).close()
    back_up()
    with pytest.raises(ConfigError, match=r"it contains backups of .*/store on h: use another URL"):
        create_backup(str(root), target, now_ms=Times(), host="another")


def test_nothing_is_overwritten(root, target, back_up, tmp_path):
    opened(root).close()
    manifest = back_up().manifest
    with pytest.raises(ConfigError, match="it exists already"):
        restore_backup(target, manifest, root)
    with pytest.raises(ConfigError, match="it exists already"):
        restore_backup(target, manifest, tmp_path / "new", commit_log=root)


def test_a_log_elsewhere_is_restored_elsewhere(root, target, tmp_path):
    store = opened(root)
    put(store, 0, 30)
    store.close()
    (root / "commitlog").rename(tmp_path / "log")
    manifest = create_backup(str(root), target, now_ms=Times(), commit_log=str(tmp_path / "log"), host="h").manifest
    restore_backup(target, manifest, tmp_path / "new", commit_log=tmp_path / "new-log")
    assert not (tmp_path / "new" / "commitlog").exists()
    (tmp_path / "new-log").rename(tmp_path / "new" / "commitlog")
    store = opened(tmp_path / "new")
    assert numbers(store) == list(range(30))
    store.close()


def test_what_is_not_a_store_or_a_backup_is_an_error(root, target, tmp_path):
    with pytest.raises(StoreError, match="is not a store directory"):
        create_backup(str(tmp_path), target, now_ms=Times())
    with pytest.raises(ConfigError, match="it contains no backup"):
        read_manifest(target)
    opened(root).close()
    create_backup(str(root), target, now_ms=Times())
    with pytest.raises(ConfigError, match=f"--backup = 'x': .* has {id_at(START_MS)}"):
        read_manifest(target, "x")
    target.write(f"backups/{id_at(START_MS)}.json", b"{")
    with pytest.raises(StoreCorrupt):
        read_manifest(target)
    with pytest.raises(ConfigError, match="nosuchkind"):
        open_target("nosuchkind://bucket/x")


def test_a_second_backup_at_the_same_time_is_refused(root):
    with sole_backup(str(root)), pytest.raises(StoreLocked, match="in progress"), sole_backup(str(root)):
        pass
    with sole_backup(str(root)):
        pass


def test_a_target_that_cannot_be_written_is_an_error(root, tmp_path):
    opened(root).close()
    directory = tmp_path / "target"
    directory.write_text("a file")
    with pytest.raises(StoreError, match="Cannot write"):
        create_backup(str(root), DirectoryTarget(directory), now_ms=Times())
