"""Start with an unexpected store directory: it is rejected with an explanation or rebuilt, never deleted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ariane.broker.config import broker_config
from ariane.errors import ConfigError, RecordsLost, StoreCorrupt, StoreError, StoreLocked
from ariane.model.topic import TopicDeletion
from ariane.protocol.records.queue_entry import ENTRY_SIZE
from ariane.store.log import checkpoint as checkpoints
from ariane.store.log.deletions import Deletions
from ariane.store.message_store import GetStatus, MessageStore, RecordDraft, StoreConfig, open_store
from ariane.store.queues import dispatch
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData

SEGMENT, QUEUE_FILE = 4096, 200
COUNT = 60


def config(**changes: object) -> StoreConfig:
    settings: dict[str, object] = {
        "root": "/s",
        "commit_log_size": SEGMENT,
        "consume_queue_size": QUEUE_FILE,
        "index": True,
        "index_slots": 16,
        "index_entries": 64,
    }
    return StoreConfig(**(settings | changes))  # type: ignore[arg-type]


def opened(disk: FakeDisk, **changes: object) -> MessageStore:
    return open_store(config(**changes), disk, now_ms=lambda: 1_000_000, store_host=bytes(8))


def filled(disk: FakeDisk, count: int = COUNT, **changes: object) -> None:
    """A store with some segments and two queues of several files, stopped in order."""
    store = opened(disk, **changes)
    for number in range(count):
        store.put(RecordDraft(topic="T", queue_id=number % 2, body=b"%090d" % number, born_ms=1, born_host=bytes(8)))
    store.dispatch_pending()
    store.close()


def bodies(store: MessageStore) -> list[int]:
    results = []
    for queue_id in (0, 1):
        offset = store.min_offset("T", queue_id)
        while offset < store.max_offset("T", queue_id):
            result = store.get("T", queue_id, offset, 32)
            assert result.status is GetStatus.FOUND
            results += [int(data[data.index(b"0" * 50) :][:90]) for data in result.records]
            offset = result.next_offset
    return sorted(results)


def paths(disk: FakeDisk, part: str) -> list[str]:
    return sorted(path for path in disk.paths() if part in path)


def resize(disk: FakeDisk, path: str, size: int) -> None:
    handle = disk.open(path)
    disk.truncate(handle, size)
    disk.close(handle)


def content(disk: FakeDisk, part: str) -> dict[str, bytes]:
    results = {}
    for path in paths(disk, part):
        handle = disk.open(path)
        results[path] = disk.pread(handle, disk.size(path) or 0, 0)
        disk.close(handle)
    return results


# --- the commit log is missing ---


@pytest.mark.parametrize("java_wrote_last", [False, True])
def test_a_missing_log_prevents_the_start_and_changes_no_queue(*, java_wrote_last: bool) -> None:
    disk = FakeDisk()
    filled(disk)
    if java_wrote_last:
        forget_checkpoint(disk)
    queues = content(disk, "consumequeue")
    with pytest.raises(StoreError, match="--accept-empty-log") as caught:
        opened(disk, commit_log="/elsewhere")
    assert "/elsewhere contains no message" in str(caught.value)
    assert "storePathCommitLog" in str(caught.value)
    with pytest.raises(StoreError, match="--accept-empty-log"):
        opened(disk, commit_log="/elsewhere")  # a supervisor starts it again
    assert content(disk, "consumequeue") == queues
    store = opened(disk)
    assert bodies(store) == list(range(COUNT))


@pytest.mark.parametrize("java_wrote_last", [False, True])
def test_a_log_of_zeros_counts_as_empty(*, java_wrote_last: bool) -> None:
    disk = FakeDisk()
    filled(disk)
    if java_wrote_last:
        forget_checkpoint(disk)
    for path in paths(disk, "/commitlog/"):
        disk.remove(path)
    disk.close(disk.create("/s/commitlog/" + "0" * 20, SEGMENT))
    queues = content(disk, "consumequeue")
    with pytest.raises(StoreError, match="contains no message"):
        opened(disk)
    assert content(disk, "consumequeue") == queues


def test_a_missing_log_can_be_accepted() -> None:
    disk = FakeDisk()
    filled(disk)
    store = opened(disk, commit_log="/elsewhere", accept_empty_log=True)
    assert any("/elsewhere" in note and "accepted" in note for note in store.recovery_report.notes)
    assert store.topics() == {}
    store.put(RecordDraft(topic="T", queue_id=0, body=b"%090d" % 7, born_ms=1, born_host=bytes(8)))
    store.dispatch_pending()
    store.close()
    assert bodies(opened(disk, commit_log="/elsewhere")) == [7]


def test_a_new_store_and_one_that_crashed_before_its_first_flush_start() -> None:
    disk = FakeDisk()
    store = opened(disk)
    store.put(RecordDraft(topic="T", queue_id=0, body=b"%090d" % 7, born_ms=1, born_host=bytes(8)))
    store.dispatch_pending()
    repeated = disk.after_kill()
    opened(repeated).close()


@pytest.mark.parametrize("java_wrote_last", [False, True])
def test_a_missing_end_of_the_log_prevents_the_start(*, java_wrote_last: bool) -> None:
    disk = FakeDisk()
    filled(disk)
    if java_wrote_last:
        forget_checkpoint(disk)
    before = content(disk, "consumequeue")
    disk.remove(paths(disk, "/commitlog/")[-1])
    with pytest.raises(StoreError, match="files at its end are missing") as caught:
        opened(disk)
    assert "--accept-empty-log" in str(caught.value)
    with pytest.raises(StoreError, match="files at its end are missing"):
        opened(disk)  # a supervisor starts it again
    assert content(disk, "consumequeue") == before
    store = opened(disk, accept_empty_log=True)
    remaining = bodies(store)
    assert remaining == list(range(len(remaining)))
    assert COUNT // 2 < len(remaining) < COUNT
    store.put(RecordDraft(topic="T", queue_id=0, body=b"%090d" % 99, born_ms=1, born_host=bytes(8)))
    store.dispatch_pending()
    store.close()
    assert bodies(opened(disk)) == [*remaining, 99]


def test_a_removed_first_segment_is_reported() -> None:
    disk = FakeDisk()
    filled(disk)
    disk.remove(paths(disk, "/commitlog/")[0])
    store = opened(disk)
    assert any("begins at 4096, the last run recorded 0" in note for note in store.recovery_report.notes)
    store.close()
    assert not any("recorded" in note for note in opened(disk).recovery_report.notes), "it is reported once"


def test_a_segment_removed_by_retention_is_not_reported() -> None:
    disk = FakeDisk()
    filled(disk)
    store = opened(disk)
    removal = store.retention.begin_log_removal(store.retention.log_files()[0])
    assert removal is not None
    assert not store.retention.is_recorded
    store.write_checkpoint()
    assert store.retention.is_recorded
    removal.run()
    assert not any("recorded" in note for note in opened(disk.after_kill()).recovery_report.notes)


def forget_checkpoint(disk: FakeDisk) -> None:
    """Leave the checkpoint as Java writes it: three times."""
    handle = disk.open("/s/checkpoint")
    result = checkpoints.decode(disk.pread(handle, checkpoints.SIZE, 0))
    disk.pwrite(handle, checkpoints.encode(checkpoints.Checkpoint(*result[:3])), 0)
    disk.close(handle)


def test_a_deletion_record_of_another_log_hides_no_message() -> None:
    """The log was lost and its loss accepted, or config/ was copied from another broker."""
    disk = FakeDisk()
    filled(disk)
    stale = Deletions({"T": TopicDeletion(below=1 << 30, store_ms=5)})
    store = open_store(config(), disk, now_ms=lambda: 1_000_000, store_host=bytes(8), deletions=lambda: stale)
    assert bodies(store) == list(range(COUNT))


def test_a_later_deletion_applies_although_its_log_is_shorter() -> None:
    deletions = Deletions({"T": TopicDeletion(below=1 << 30, store_ms=5)})
    assert deletions.add("T", TopicDeletion(below=4096, store_ms=1_000_000))
    assert deletions.get("T") == TopicDeletion(below=4096, store_ms=1_000_000)
    assert not deletions.add("T", TopicDeletion(below=4096, store_ms=1_000_000))
    assert not deletions.add("T", TopicDeletion(below=4000, store_ms=900_000))


# --- a commit log outside the root ---


def test_a_log_outside_the_root_is_read_and_written_there() -> None:
    disk = FakeDisk()
    filled(disk, commit_log="/fast/log/")
    assert paths(disk, "/fast/log/0")
    assert not paths(disk, "/s/commitlog/")
    store = opened(disk, commit_log="/fast/log")
    assert bodies(store) == list(range(COUNT))


def test_two_stores_never_share_a_commit_log(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    store = open_store(real(tmp_path / "a", commit_log=log), store_host=bytes(8))
    with pytest.raises(StoreLocked, match="storePathCommitLog"):
        open_store(real(tmp_path / "b", commit_log=f"{log}/"), store_host=bytes(8))
    store.close()
    open_store(real(tmp_path / "b", commit_log=log), store_host=bytes(8)).close()
    store = open_store(real(tmp_path / "a"), store_host=bytes(8))
    with pytest.raises(StoreLocked, match="storePathCommitLog"):
        open_store(real(tmp_path / "b", commit_log=str(tmp_path / "a" / "commitlog")), store_host=bytes(8))
    store.close()


def test_corrupt_ranges_of_a_log_outside_the_root_are_copied_into_the_root() -> None:
    disk = FakeDisk()
    filled(disk, commit_log="/fast/log")
    first = paths(disk, "/fast/log/0")[0]
    handle = disk.open(first)
    disk.pwrite(handle, b"damage" * 10, 300)
    disk.close(handle)
    disk.remove("/s/checkpoint")
    disk.close(disk.create("/s/abort", 0))
    opened(disk, commit_log="/fast/log")
    assert paths(disk, "/s/damaged/")
    assert not paths(disk, "/fast/damaged/")


def test_the_log_directory_is_configured_in_broker_conf() -> None:
    settings, _ = broker_config.BROKER_SETTINGS.parse(
        {"brokerName": "b", "storePathRootDir": "/s", "storePathCommitLog": "/l/"}
    )
    assert broker_config.to_store_config(settings).log_directory == "/l"
    settings, _ = broker_config.BROKER_SETTINGS.parse({"brokerName": "b", "storePathRootDir": "/s"})
    assert broker_config.to_store_config(settings).log_directory == "/s/commitlog"


# --- files of another length ---


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("size", [0, 7, 60, QUEUE_FILE + 20])
def test_a_queue_file_of_a_wrong_length_is_rebuilt(which: int, size: int, *, crashed: bool) -> None:
    disk = FakeDisk()
    filled(disk)
    resize(disk, paths(disk, "/consumequeue/T/0/")[which], size)
    if crashed:
        disk.close(disk.create("/s/abort", 0))
    store = opened(disk)
    assert bodies(store) == list(range(COUNT))
    assert any("consume" in note or "consumequeue" in note for note in store.recovery_report.notes)
    store.close()
    assert {disk.size(path) for path in paths(disk, "/consumequeue/")} == {QUEUE_FILE}


@pytest.mark.parametrize("java_wrote_last", [False, True])
@pytest.mark.parametrize("fault", ["short", "missing"])
def test_an_interrupted_rebuild_restarts(fault: str, monkeypatch: pytest.MonkeyPatch, *, java_wrote_last: bool) -> None:
    monkeypatch.setattr(dispatch, "BATCH_RECORDS", 3)  # entries reach the disk while records are still read
    disk = FakeDisk()
    filled(disk)
    if java_wrote_last:
        forget_checkpoint(disk)
    if fault == "short":
        resize(disk, paths(disk, "/consumequeue/T/0/")[0], 60)
    elif java_wrote_last:
        disk.remove(paths(disk, "/consumequeue/T/0/")[1])
    else:
        disk.remove(paths(disk, "/consumequeue/T/0/")[-1])
    point = 0
    while True:
        broken = disk.after_kill()
        broken.power_off_at = broken.changes + point + 1
        try:
            opened(broken)
        except PowerLost:
            for kept in (None, SurvivingData.ALL, SurvivingData.NONE):
                after = broken.after_kill() if kept is None else broken.after_power_loss(kept, random.Random(1))
                after.power_off_at = None
                store = opened(after)
                assert bodies(store) == list(range(COUNT)), f"interrupted at change {point + 1}, kept {kept}"
            point += 1
            continue
        break
    assert point > 20


@pytest.mark.parametrize("lost", [1, 5, 20])
@pytest.mark.parametrize("last", [43, 46])  # number of messages, 41 of them below the checkpoint
def test_queues_that_lost_flushed_entries_are_rebuilt(lost: int, last: int) -> None:
    """A file system that failed lacks entries that the checkpoint counts: other records must not get their numbers."""
    disk = FakeDisk()
    store = opened(disk)
    for number in range(last):
        store.put(RecordDraft(topic="T", queue_id=number % 2, body=b"%090d" % number, born_ms=1, born_host=bytes(8)))
        if number == 40:
            store.dispatch_pending()
            store.flush()
            store.write_checkpoint()
    store.dispatch_pending()
    disk = disk.after_kill()
    first = 21 - lost  # of 21 entries in queue 0
    for path in paths(disk, "/consumequeue/T/0/"):
        base = int(path.rpartition("/")[2]) // ENTRY_SIZE
        handle = disk.open(path)
        for entry in range(max(first, base), base + QUEUE_FILE // ENTRY_SIZE):
            disk.pwrite(handle, bytes(ENTRY_SIZE), (entry - base) * ENTRY_SIZE)
        disk.close(handle)
    with pytest.raises(RecordsLost, match="entries of the queues"):
        opened(disk, repairs_loss=False)  # a member of a set: another incarnation begins first
    store = opened(disk)
    assert bodies(store) == list(range(last))
    assert store.max_offset("T", 0) == (last + 1) // 2


def test_queues_written_with_another_file_size_are_not_modified() -> None:
    disk = FakeDisk()
    filled(disk)
    with pytest.raises(ConfigError, match=f"mappedFileSizeConsumeQueue = {QUEUE_FILE}"):
        opened(disk, consume_queue_size=QUEUE_FILE * 2)
    assert bodies(opened(disk)) == list(range(COUNT))


def test_an_index_file_of_a_wrong_length_is_rebuilt() -> None:
    disk = FakeDisk()
    filled(disk)
    path = paths(disk, "/index/")
    for item in path:
        resize(disk, item, 33)
    opened(disk).close()


@pytest.mark.parametrize("crashed", [False, True])
def test_a_truncated_segment_between_others_prevents_the_start(*, crashed: bool) -> None:
    disk = FakeDisk()
    filled(disk)
    path = paths(disk, "/commitlog/")[1]
    resize(disk, path, 1000)
    if crashed:
        disk.close(disk.create("/s/abort", 0))
    before = content(disk, "consumequeue")
    with pytest.raises(StoreCorrupt, match="1000 bytes instead of 4096: it was truncated") as caught:
        opened(disk)
    assert "mappedFileSize" not in str(caught.value)
    assert f"truncate -s 4096 {path}" in str(caught.value)
    assert content(disk, "consumequeue") == before
    resize(disk, path, SEGMENT)
    assert bodies_without_corrupt(opened(disk))


def bodies_without_corrupt(store: MessageStore) -> bool:
    result = store.get("T", 0, 0, 32)
    return result.status is GetStatus.FOUND


def test_a_truncated_last_segment_prevents_the_start_if_more_was_flushed() -> None:
    disk = FakeDisk()
    filled(disk)
    disk.close(disk.create("/s/abort", 0))
    resize(disk, paths(disk, "/commitlog/")[-1], 100)
    with pytest.raises(StoreCorrupt, match="truncated"):
        opened(disk)


@pytest.mark.parametrize("size", [0, 10])
def test_a_segment_shortened_by_a_crash_is_extended(size: int) -> None:
    disk = FakeDisk()
    filled(disk)
    disk.close(disk.create("/s/abort", 0))
    last = int(paths(disk, "/commitlog/")[-1].rpartition("/")[2])
    disk.close(disk.create(f"/s/commitlog/{last + SEGMENT:020d}", size))
    assert bodies(opened(disk)) == list(range(COUNT))


def test_a_segment_that_is_too_long_prevents_the_start() -> None:
    disk = FakeDisk()
    filled(disk)
    resize(disk, paths(disk, "/commitlog/")[0], SEGMENT + 5)
    with pytest.raises(StoreCorrupt, match="appended"):
        opened(disk)


def test_segments_of_one_other_length_are_a_configuration_error() -> None:
    disk = FakeDisk()
    filled(disk)
    with pytest.raises(ConfigError, match=f"set mappedFileSizeCommitLog = {SEGMENT}"):
        opened(disk, commit_log_size=2 * SEGMENT)


def test_a_single_segment_of_another_length_has_two_possible_causes() -> None:
    disk = FakeDisk()
    filled(disk, 3)
    with pytest.raises(ConfigError, match="truncated, restore it") as caught:
        opened(disk, commit_log_size=2 * SEGMENT)
    assert f"mappedFileSizeCommitLog = {SEGMENT}" in str(caught.value)


def test_a_renamed_segment_prevents_the_start() -> None:
    disk = FakeDisk()
    filled(disk)
    path = paths(disk, "/commitlog/")[-1]
    disk.rename(path, path[:-1] + "7")
    with pytest.raises(StoreCorrupt, match="renamed"):
        opened(disk)


# --- directories that cannot be used ---


def real(root: Path, **changes: object) -> StoreConfig:
    return config(root=str(root), **changes)


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "consumequeue/T", "consumequeue/T/0", ""])
def test_a_file_in_place_of_a_directory_is_a_one_line_error(name: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    path = root / name if name else root
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    with pytest.raises(StoreError) as caught:
        open_store(real(root), store_host=bytes(8))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "move it" in str(caught.value)


@pytest.mark.parametrize("name", ["lock", "abort", "checkpoint"])
def test_a_directory_in_place_of_a_file_is_a_one_line_error(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(StoreError) as caught:
        store = open_store(real(tmp_path), store_host=bytes(8))
        store.close()
    assert str(tmp_path / name) in str(caught.value)


def test_a_broken_link_to_a_missing_mount_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path / "not-mounted")
    with pytest.raises(StoreError, match="store") as caught:
        open_store(real(tmp_path / "store"), store_host=bytes(8))
    assert "mount" in str(caught.value)


@pytest.mark.parametrize("number", [13, 30, 5, 107])  # EACCES, EROFS, EIO, ENOTCONN
def test_an_unwritable_disk_is_a_one_line_error(number: int) -> None:
    def fail(kind: str, path: str) -> None:
        raise OSError(number, "reason", path)

    disk = FakeDisk()
    disk.fail = fail
    with pytest.raises(StoreError, match="Cannot open the store: /s") as caught:
        opened(disk)
    assert "\n" not in str(caught.value)


# --- the owner of the store has to note a loss before the log is repaired ---


def killed() -> FakeDisk:
    """Return the disk of a process that was killed before its first flush."""
    disk = FakeDisk()
    store = opened(disk)
    for number in range(COUNT):
        store.put(RecordDraft(topic="T", queue_id=0, body=b"%090d" % number, born_ms=1, born_host=bytes(8)))
    return disk.after_kill()


@pytest.mark.parametrize("follower", [False, True])
@pytest.mark.parametrize("damage", ["a record", "a file", "the end"])
def test_a_start_that_may_not_repair_a_loss_leaves_the_log_as_it_is(damage: str, *, follower: bool) -> None:
    disk = killed()
    files = paths(disk, "/commitlog/")
    if damage == "a record":
        data = disk.contents(files[0])
        data[data.index(b"%090d" % 3)] ^= 1
    elif damage == "a file":
        disk.remove(files[1])
    else:
        disk = FakeDisk()
        filled(disk)
        disk.remove(files[-1])
    log = content(disk, "/commitlog/")
    for _ in range(2):
        with pytest.raises(RecordsLost):
            opened(disk, repairs_loss=False, accept_empty_log=True, follower=follower)
        assert content(disk, "/commitlog/") == log
    opened(disk, accept_empty_log=True, follower=follower)


def test_the_first_part_of_a_record_is_no_loss() -> None:
    disk = killed()
    last = disk.contents(paths(disk, "/commitlog/")[-1])
    last[len(last.rstrip(b"\0")) - 20 :] = bytes(len(last) - len(last.rstrip(b"\0")) + 20)
    store = opened(disk, repairs_loss=False)
    assert store.recovery_report.cut_bytes > 0
    assert bodies(store) == list(range(COUNT - 1))
