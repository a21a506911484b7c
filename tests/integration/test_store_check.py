"""`ariane store check` and `cat`: on valid stores of ours and of Java, and with one defect at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from struct import pack, unpack_from

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

import java_store
from ariane.cli.main import app
from ariane.model import host
from ariane.store.check.store_check import ERROR, NOTE, WARNING, CheckFinding, CheckSummary, check
from ariane.store.index.index_file import IndexSizes
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.disk import FakeDisk

HOST = host.pack("127.0.0.1", 10911)
CONFIG = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=200)
LOG = f"/store/commitlog/{0:020d}"
QUEUE = f"/store/consumequeue/T/0/{0:020d}"
BODY_AT = 88
PROPERTIES = "TAGS\x01a\x02KEYS\x01order-17-of-somebody-else"
SIZE = 91 + len(b"body 0" + b"T" + PROPERTIES.encode())  # of the first records
LAST = f"/store/commitlog/{4096:020d}"
SECOND = f"/store/commitlog/{1024:020d}"


def filled(disk: FakeDisk | None = None, root: str = "/store", count: int = 12) -> MessageStore:
    store = open_store(StoreConfig(root=root, commit_log_size=1024, consume_queue_size=200), disk, store_host=HOST)
    for number in range(count):
        draft = RecordDraft(
            topic="T", queue_id=0, body=b"body %d" % number, born_ms=1, born_host=HOST, tags="a", properties=PROPERTIES
        )
        store.put(draft)
    store.flush()
    store.dispatch_pending()
    return store


@pytest.fixture
def disk() -> FakeDisk:
    disk_copy = FakeDisk()
    filled(disk_copy, count=30).close()
    return disk_copy


def faults(disk: FakeDisk) -> list[CheckFinding]:
    return [item for item in check("/store", disk) if item.severity != NOTE]


def test_a_valid_store_has_no_findings_and_is_not_modified(disk: FakeDisk) -> None:
    before, summary = disk.changes, CheckSummary()
    assert list(check("/store", disk, summary)) == []
    assert (summary.records, summary.entries, summary.queues) == (30, 30, 1)
    assert disk.changes == before


def test_a_running_store_is_valid_while_dispatch_is_pending() -> None:
    disk = FakeDisk()
    store = filled(disk)
    for _ in range(3):
        store.put(RecordDraft(topic="T", queue_id=0, body=b"new", born_ms=1, born_host=HOST))
    result = list(check("/store", disk))
    assert {item.severity for item in result} == {NOTE}
    assert any("3 new records have no entry yet" in item.message for item in result)
    store.close()


def overwritten(path: str, at: int, data: bytes) -> Callable[[FakeDisk], None]:
    def change(disk: FakeDisk) -> None:
        disk.contents(path)[at : at + len(data)] = data

    return change


def removed(path: str) -> Callable[[FakeDisk], None]:
    return lambda disk: disk.remove(path)


def made(path: str, data: bytes) -> Callable[[FakeDisk], None]:
    def change(disk: FakeDisk) -> None:
        handle = disk.create(path, len(data))
        disk.pwrite(handle, data, 0)
        disk.close(handle)

    return change


@pytest.mark.parametrize(
    ("change", "severity", "file", "offset", "what"),
    [
        (overwritten(LOG, SIZE + 4, b"\0"), ERROR, LOG, SIZE, f"{SIZE} bytes at {SIZE} are not a record: magic"),
        (overwritten(LOG, BODY_AT, b"x"), ERROR, LOG, 0, "CRC"),
        (overwritten(QUEUE, 3 * 20, b"\1"), ERROR, QUEUE, 60, "T-0 entry 3 points to"),
        (overwritten(QUEUE, 3 * 20 + 11, b"\1"), ERROR, QUEUE, 60, "T-0 entry 3 points to"),
        (overwritten(QUEUE, 3 * 20 + 19, b"\1"), WARNING, QUEUE, 60, "tags code"),
        (overwritten(QUEUE, 3 * 20, bytes(20)), ERROR, QUEUE, 60, "lacks entry 3"),
        (removed(QUEUE), ERROR, QUEUE, 0, "lacks entry 0"),
        (removed(SECOND), ERROR, SECOND, 0, "missing between others"),
        (removed("/store/checkpoint"), WARNING, "/store/checkpoint", 0, "is missing"),
        (made("/store/commitlog/notes.txt", b""), ERROR, "/store/commitlog/notes.txt", 0, "does not belong here"),
        (made("/store/consumequeue/T/x/0", b""), ERROR, "/store/consumequeue/T/x", 0, "is not a queue id"),
        (made("/store/config/topics.json", b"{"), ERROR, "/store/config/topics.json", 0, "cannot be parsed"),
        (made("/store/index/20261121055052982", b"\x7f" * 60), WARNING, "/store/index/20261121055052982", 0, "header"),
        (overwritten(LAST, 1015, b"x"), WARNING, LAST, 0, "after the last record"),
    ],
)
def test_each_kind_of_damage_is_found(
    disk: FakeDisk, change: Callable[[FakeDisk], None], severity: str, file: str, offset: int, what: str
) -> None:
    disk.make_dirs("/store/config")
    disk.make_dirs("/store/index")
    disk.make_dirs("/store/consumequeue/T/x")
    change(disk)
    result = [
        fault for fault in faults(disk) if fault.severity == severity and fault.file == file and what in fault.message
    ]
    assert result, faults(disk)
    if offset:
        assert result[0].offset == offset
    assert all(fault.fix for fault in faults(disk))


@pytest.mark.parametrize("content", [b"", b"\0" * 8])
def test_an_empty_document_is_an_error(disk: FakeDisk, content: bytes) -> None:
    disk.make_dirs("/store/config")
    made("/store/config/topics.json", content)(disk)
    assert [fault.severity for fault in faults(disk) if fault.file == "/store/config/topics.json"] == [ERROR]


def test_a_directory_in_place_of_a_document_is_an_error(disk: FakeDisk) -> None:
    disk.make_dirs("/store/config/topics.json")
    result = [fault for fault in faults(disk) if fault.file == "/store/config/topics.json"]
    assert [(fault.severity, fault.fix) for fault in result] == [(ERROR, "move it away: no broker starts with it")]


INDEX_SIZES = IndexSizes(5, 12)
INDEXED = replace(CONFIG, index=True, index_slots=5, index_entries=12)
ENTRIES_AT = 40 + 4 * 5


def indexed(disk: FakeDisk) -> MessageStore:
    store = open_store(INDEXED, disk, now_ms=lambda: 1_700_000_000_000, store_host=HOST)
    for number in range(20):
        draft = RecordDraft(
            topic="T", queue_id=0, body=b"", born_ms=1, born_host=HOST, properties=f"KEYS\x01k{number} all"
        )
        store.put(draft)
    store.flush()
    store.dispatch_pending()
    return store


def index_faults(disk: FakeDisk) -> list[CheckFinding]:
    return list(check("/store", disk, index_sizes=INDEX_SIZES))


def test_a_valid_key_index_has_no_findings() -> None:
    disk, summary = FakeDisk(), CheckSummary()
    store = indexed(disk)
    store.write_checkpoint()
    assert [fault for fault in index_faults(disk) if fault.severity != NOTE] == []
    store.close()
    assert list(check("/store", disk, summary, index_sizes=INDEX_SIZES)) == []
    assert len([path for path in disk.paths() if "/index/" in path]) == 4
    result = list(check("/store", disk))
    assert [fault.severity for fault in result] == [NOTE] * 4
    assert "its entries were not checked" in result[0].message


@pytest.mark.parametrize(
    ("at", "data", "offset", "what"),
    [
        (ENTRIES_AT + 20 * 3 + 4, pack(">q", 5), ENTRIES_AT + 60, "entry 3 is for 5, where no record begins"),
        (ENTRIES_AT + 20 * 5 + 4, pack(">q", 5), ENTRIES_AT + 100, "entry 5 is for a record at 5, the previous one"),
        (ENTRIES_AT + 20 * 3 + 4, pack(">q", 1 << 40), ENTRIES_AT + 60, "entry 3 is for a record at 1099511627776"),
        (ENTRIES_AT + 20 * 3 + 16, pack(">i", 77), ENTRIES_AT + 60, "entry 3 names 77 as the next older entry"),
        (ENTRIES_AT + 20 * 3, pack(">i", -1), ENTRIES_AT + 60, "entry 3 names"),
        (24, pack(">q", 1000), 0, "its header ends at offset 1000, its last entry is for"),
        (36, pack(">i", 13), 0, "its header counts 12 entries, it has room for 11"),
    ],
)
def test_each_kind_of_index_damage_is_found(at: int, data: bytes, offset: int, what: str) -> None:
    disk = FakeDisk()
    indexed(disk).close()
    path = next(path for path in disk.paths() if "/index/" in path)
    overwritten(path, at, data)(disk)
    (result,) = index_faults(disk)
    assert (result.severity, result.file, result.offset) == (WARNING, path, offset)
    assert what in result.message
    assert result.fix


def test_an_index_slot_with_a_wrong_entry_number_is_found() -> None:
    disk = FakeDisk()
    indexed(disk).close()
    for path in [path for path in disk.paths() if "/index/" in path]:
        for slot in range(5):
            remaining = disk.after_kill()
            content = remaining.contents(path)
            content[40 + 4 * slot : 44 + 4 * slot] = pack(">i", unpack_from(">i", content, 40 + 4 * slot)[0] ^ 1)
            (result,) = index_faults(remaining)
            assert (result.severity, result.file, result.offset) == (WARNING, path, 40 + 4 * slot)
            assert f"slot {slot} names entry" in result.message


def test_an_index_entry_without_a_matching_key_in_its_record_is_found() -> None:
    """The hash is a different one of the same slot: only the record reveals the error."""
    disk = FakeDisk()
    indexed(disk).close()
    path = next(path for path in disk.paths() if "/index/" in path)
    position = ENTRIES_AT + 20 * 4
    content = disk.contents(path)
    content[position : position + 4] = pack(">i", unpack_from(">i", content, position)[0] % 5)
    (result,) = index_faults(disk)
    assert (result.severity, result.file, result.offset) == (WARNING, path, position)
    assert "does not have" in result.message


def test_a_skipped_corrupt_range_stays_in_the_report(disk: FakeDisk) -> None:
    """After a start that skipped it, the report has warnings with the lost range and the path of its copy, but no error."""
    disk.remove("/store/checkpoint")
    made("/store/abort", b"")(disk)
    overwritten(LOG, SIZE + 4, b"\0")(disk)
    store = open_store(CONFIG, disk, store_host=HOST)
    assert [(hole.offset, hole.size) for hole in store.recovery_report.corrupt_ranges] == [(SIZE, SIZE)]
    store.close()
    result = faults(disk)
    assert [item.severity for item in result] == [WARNING, WARNING]
    assert f"{SIZE} bytes at {SIZE} were not a record and were overwritten by a start: magic" in result[0].message
    assert "1 entries, the first of them 1, are empty" in result[1].message
    kept = bytes(disk.contents(f"/store/damaged/{SIZE:020d}"))
    assert kept[BODY_AT : BODY_AT + 6] == b"body 1"


def test_cli_on_a_valid_and_on_a_damaged_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    filled(root=str(root)).close()
    runner = CliRunner()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert runner.invoke(app, ["store", "check", str(root)]).exit_code == 0
    shown = runner.invoke(app, ["store", "cat", str(root), "--topic", "T", "--queue", "0", "--from", "10", "--json"])
    assert [json.loads(line)["body"] for line in shown.stdout.splitlines()] == ["body 10", "body 11"]
    shown = runner.invoke(app, ["store", "cat", str(root), "--count", "2", "--body", "hex"])
    assert [line.split()[-1] for line in shown.stdout.splitlines()] == [b"body 0".hex(), b"body 1".hex()]
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    log = root / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes()[:4] + b"\0" + log.read_bytes()[5:])
    result = runner.invoke(app, ["store", "check", str(root), "--json"])
    assert result.exit_code == 1
    *rows, last = map(json.loads, result.stdout.splitlines())
    assert {"severity", "file", "offset", "message", "fix"} == set(rows[0])
    assert last["errors"] == len([row for row in rows if row["severity"] == ERROR])
    assert runner.invoke(app, ["store", "check", str(tmp_path / "nothing")]).exit_code == 2
    assert runner.invoke(app, ["store", "cat", str(tmp_path)]).exit_code == 2
    missing = runner.invoke(app, ["store", "cat", str(root), "--topic", "T", "--queue", "9"])
    assert (missing.exit_code, missing.stderr) == (2, f"Error: Queue 9 of topic T not found in {root}\n")


def test_a_java_store_is_valid(tmp_path: Path) -> None:
    root = java_store.unpack(tmp_path)
    summary = CheckSummary()
    result = list(check(str(root), summary=summary))
    assert [item for item in result if item.severity != NOTE] == []
    assert summary.records > 20 and summary.entries > 20
