"""Store files to rows: every record once for any split, damage as separate rows, and the tail of a growing log."""

from __future__ import annotations

import base64
import itertools
import json
import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

import java_store
from ariane.errors import ConfigError, StoreError
from ariane.model import host
from ariane.protocol.records import compression, record
from ariane.spark.records import bodies
from ariane.spark.store import commit_log, log_task
from ariane.spark.store.commit_log import LogDamage
from ariane.spark.store.store_options import StoreOptions, parse
from ariane.store.check import reader
from ariane.store.disk.files import OpenFiles, ReadOnlyDisk
from ariane.store.disk.segments import Segments
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store

HOST, V6 = host.pack("127.0.0.1", 10911), host.pack("2001:db8::1", 10911)
FILE = 64 * 1024
COLUMNS = ["topic", "queue_offset", "commit_log_offset", "body", "segment", "position", "valid", "damage", "store_size"]


@pytest.fixture(autouse=True)
def look_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the tests are small, so the part before a range is small, too."""
    monkeypatch.setattr(commit_log, "LOOK_BACK_BYTES", 8 * 1024)


def opened(root: Path) -> MessageStore:
    return open_store(StoreConfig(root=str(root), commit_log_size=FILE), store_host=HOST)


def filled(root: Path, count: int = 600, seed: int = 1, *, nested: bool = True) -> list[bytes]:
    """A store with messages of 0 to 1,500 bytes, some of them IPv6, some holding a record of some place of the log."""
    chance = random.Random(seed)
    store = opened(root)
    bodies = []
    for n in range(count):
        body = b"%d " % n + chance.randbytes(chance.randrange(1500)) if n % 9 else b""
        if nested and n % 7 == 0:
            body += inner(store.commit_log_max + 88 + len(body))
        born = V6 if n % 50 == 49 else HOST
        store.put(
            RecordDraft(
                topic=f"T{n % 3}", queue_id=n % 2, body=body, born_ms=5 + n, born_host=born, properties="KEYS\x01k"
            )
        )
        bodies.append(body)
    store.dispatch_pending()
    store.close()
    return bodies


def inner(place: int) -> bytes:
    """A record that is right in all its parts for this place: a body may hold it."""
    return record.encode(
        b"inner", b"never to be seen", b"", queue_id=0, queue_offset=0, offset=place, born_ms=1, born_host=HOST, store_ms=1 << 50,
        store_host=HOST,
    )  # fmt: skip


def rows(root: Path, split: int = 1 << 40, columns: Sequence[str] = COLUMNS, **more: Any) -> list[dict[str, Any]]:
    options = StoreOptions(path=str(root), **more)
    result = commit_log.find_log(str(root))
    bodies = []
    for part in log_task.plan_ranges(result, result.start, result.end, split):
        for batch in log_task.read_rows(part, options, columns, result.file_size):
            batch.validate(full=True)
            bodies += batch.to_pylist()
    return bodies


def told(root: Path) -> list[record.Record]:
    return [item for item in reader.read_log(str(root)) if isinstance(item, record.Record)]


@pytest.mark.parametrize("split", [1 << 40, 50_000, 9_000, 700, 97])
def test_every_record_is_read_once_for_any_split(tmp_path: Path, split: int) -> None:
    bodies = filled(tmp_path, 300)
    result = rows(tmp_path, split, chunk_bytes=20_000 if split < 50_000 else 1 << 20)
    assert [row["body"] for row in result] == bodies
    assert all(row["valid"] and row["damage"] is None for row in result)
    plain = told(tmp_path)
    assert (
        [row["position"] for row in result]
        == [row["commit_log_offset"] for row in result]
        == [item.offset for item in plain]
    )
    assert [row["segment"] for row in result] == [f"{item.offset // FILE * FILE:020d}" for item in plain]
    assert rows(tmp_path / "commitlog") == result
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "checkpoint").mkdir()
    assert rows(tmp_path / "commitlog") == result


def test_any_chunk_size_gives_the_same_rows(tmp_path: Path) -> None:
    filled(tmp_path, 120)
    expected = rows(tmp_path)
    for chunk in (100, 1000, 3000, 70_000):  # less than a record, too
        assert rows(tmp_path, chunk_bytes=chunk) == expected


def test_topics_and_columns_are_selected(tmp_path: Path) -> None:
    filled(tmp_path, 100)
    result = rows(tmp_path, columns=["topic", "broker", "keys"], topic=("T1",), broker="broker-a")
    assert result == [{"topic": "T1", "broker": "broker-a", "keys": "k"}] * 33
    assert {row["topic"] for row in rows(tmp_path, topic=("T1", "T2"))} == {"T1", "T2"}
    assert rows(tmp_path, topic=("T",)) == []


@pytest.mark.parametrize("seed", range(12))
def test_planted_damage_becomes_rows_and_all_other_records_are_read(tmp_path: Path, seed: int) -> None:
    filled(tmp_path, 600, seed, nested=seed % 2 == 0)
    records, chance = told(tmp_path), random.Random(seed)
    spoiled: set[int] = set()
    planted = []
    for _ in range(8):
        position = chance.randrange(len(records) - 10)
        count = chance.choice([1, 1, 1, 3, 12])
        begin, end = records[position].offset, records[min(position + count, len(records) - 2)].offset
        if begin // FILE != (end - 1) // FILE:
            continue
        begin += chance.randrange(0, 8)  # the size, the magic: no record begins here any more
        with (tmp_path / "commitlog" / f"{begin // FILE * FILE:020d}").open("r+b") as file:
            file.seek(begin % FILE)
            file.write(chance.choice([b"\0", b"\xff"]) * (end - begin))
        spoiled |= {item.offset for item in records if begin - 8 < item.offset < end}
        planted.append((begin, end))
    for split in (1 << 40, 20_000, 3_000):
        result = rows(tmp_path, split)
        good = [row for row in result if row["valid"]]
        assert [row["position"] for row in good] == [item.offset for item in records if item.offset not in spoiled]
        bad = [row for row in result if not row["valid"]]
        for begin, end in planted:
            assert any(row["position"] <= begin and end <= row["position"] + row["store_size"] for row in bad), (
                begin,
                end,
            )
        for item in spoiled:
            assert any(row["position"] <= item < row["position"] + row["store_size"] for row in bad), item
        assert all(row["damage"] and row["body"] is None and row["topic"] is None for row in bad)
        assert [row["position"] for row in result] == sorted(row["position"] for row in result)


def test_a_record_with_a_corrupt_body_retains_its_other_columns(tmp_path: Path) -> None:
    bodies = filled(tmp_path, 60)
    victim = told(tmp_path)[31]
    flip(tmp_path, victim.offset + 90)
    for row in rows(tmp_path, 2_000)[31], rows(tmp_path)[31]:
        assert row["damage"] == "the CRC of the body is wrong"
        assert (row["valid"], row["body"], row["queue_offset"]) == (False, None, victim.queue_offset)
    unchecked = rows(tmp_path, check_crc=False)
    assert all(row["valid"] for row in unchecked)
    assert unchecked[31]["body"] != bodies[31]


def test_flipped_bytes_affect_only_their_records(tmp_path: Path) -> None:
    filled(tmp_path / "whole", 250, nested=False)
    records = told(tmp_path / "whole")
    for seed in range(15):
        chance, root = random.Random(seed), tmp_path / str(seed)
        shutil.copytree(tmp_path / "whole", root)
        hit = set()
        for _ in range(chance.randrange(1, 5)):
            item = chance.choice(records[:-2])
            flip(root, item.offset + chance.choice([chance.randrange(91), chance.randrange(item.size)]))
            hit.add(item.offset)
        result = rows(root)
        # Fields that no checksum covers are taken as they are: a record that was hit may look right.
        good = [row["position"] for row in result if row["valid"] and row["position"] not in hit]
        assert good == [item.offset for item in records if item.offset not in hit], seed
        for split in (20_000, 3_000, 700):
            assert rows(root, split) == result, seed


def flip(root: Path, place: int) -> None:
    with (root / "commitlog" / f"{place // FILE * FILE:020d}").open("r+b") as file:
        file.seek(place % FILE)
        (octet,) = file.read(1)
        file.seek(place % FILE)
        file.write(bytes((octet ^ 0xFF,)))


def test_invalid_texts_and_bodies_that_do_not_expand_are_damage(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(20):
        body = compression.compress(b"packed" * 99)[0]
        flag = compression.ZLIB_FLAGS if n % 2 else 0
        body = b"none" if n == 13 else body
        store.put(
            RecordDraft(
                topic="T", queue_id=0, body=body, born_ms=5, born_host=HOST, properties="KEYS\x01k", sys_flag=flag
            )
        )
    store.close()
    flip(tmp_path, told(tmp_path)[4].offset + told(tmp_path)[4].size - 1)  # the property's value
    result = rows(tmp_path, columns=[*COLUMNS, "keys"])
    assert [n for n, row in enumerate(result) if not row["valid"]] == [4, 13]
    assert "UTF-8" in result[4]["damage"]
    assert "broken" in result[13]["damage"]
    assert result[13]["keys"] == "k"
    assert result[15]["body"] == b"packed" * 99


def test_a_replaced_corrupt_range_and_a_missing_file_are_rows(tmp_path: Path) -> None:
    filled(tmp_path, 400)
    victim = told(tmp_path)[200]
    base = victim.offset // FILE * FILE
    with (tmp_path / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(victim.offset % FILE)
        file.write(bytes(victim.size))
    (tmp_path / "checkpoint").unlink()  # the next start reads all, as after a crash
    (tmp_path / "abort").touch()
    opened(tmp_path).close()
    (closed,) = [row for row in rows(tmp_path) if not row["valid"]]
    assert (closed["position"], closed["topic"], closed["body"]) == (victim.offset, None, None)
    assert "a broker replaced a corrupt range here" in closed["damage"]
    (tmp_path / "commitlog" / f"{base:020d}").unlink()
    (gone,) = [row for row in rows(tmp_path, 10_000) if not row["valid"]]
    assert (gone["position"], gone["store_size"]) == (base, FILE)
    assert "this file is missing" in gone["damage"]


def test_a_truncated_file_is_damage_unless_it_is_the_last(tmp_path: Path) -> None:
    filled(tmp_path, 300)
    first, *_, last = sorted((tmp_path / "commitlog").iterdir())
    records = told(tmp_path)
    with first.open("r+b") as file:
        file.truncate(30_000)
    (cut,) = [row for row in rows(tmp_path, 7_000) if not row["valid"]]
    assert cut["position"] + cut["store_size"] == FILE
    assert len(rows(tmp_path)) == 1 + sum(
        stored_record.offset >= FILE or stored_record.offset + stored_record.size <= 30_000 for stored_record in records
    )
    (tmp_path / "checkpoint").unlink()  # else it says what was written in the last file
    inside = records[-3].offset - int(last.name)
    with last.open("r+b") as file:
        file.truncate(inside + 50)
    assert rows(tmp_path)[-1]["position"] == records[-4].offset


def test_the_log_does_not_end_below_its_checkpoint(tmp_path: Path) -> None:
    filled(tmp_path, 100)
    first = told(tmp_path)[-4]
    path = tmp_path / "commitlog" / f"{first.offset // FILE * FILE:020d}"
    data = path.read_bytes()
    path.write_bytes(data[: first.offset % FILE] + bytes(FILE - first.offset % FILE))
    lost = rows(tmp_path)[-1]
    assert (lost["valid"], lost["position"]) == (False, first.offset)
    assert "nothing was written here" in lost["damage"]
    (tmp_path / "checkpoint").unlink()
    assert all(row["valid"] for row in rows(tmp_path))


@pytest.mark.parametrize("torn", [1, 40, 91, -30, -1])
def test_a_half_written_record_is_the_tail_of_a_live_log(tmp_path: Path, torn: int) -> None:
    filled(tmp_path, 50)
    (tmp_path / "checkpoint").unlink()
    last = told(tmp_path)[-1]
    path = tmp_path / "commitlog" / f"{last.offset // FILE * FILE:020d}"
    data = path.read_bytes()
    offset = last.offset % FILE + (torn if torn > 0 else last.size + torn)
    path.write_bytes(data[:offset] + bytes(FILE - offset))
    result = rows(tmp_path, 5_000)
    assert len(result) == 49
    assert all(row["valid"] for row in result)


def test_leftovers_after_a_truncation_by_java_are_not_read(tmp_path: Path) -> None:
    filled(tmp_path / "old", 40, nested=False)
    filled(tmp_path / "new", 10, nested=False)
    old, new = (told(tmp_path / name) for name in ("old", "new"))
    path = tmp_path / "new" / "commitlog" / f"{0:020d}"
    end = new[-1].offset + new[-1].size
    before = (tmp_path / "old" / "commitlog" / f"{0:020d}").read_bytes()
    path.write_bytes(path.read_bytes()[:end] + b"\x01" * 5 + before[end + 5 :])
    (tmp_path / "new" / "checkpoint").unlink()
    assert max(stored_record.store_ms for stored_record in old) <= new[0].store_ms
    result = rows(tmp_path / "new", 1_000)
    assert [row["position"] for row in result if row["valid"]][:10] == [stored_record.offset for stored_record in new]
    if old[-1].store_ms < new[-2].store_ms:  # within the same ms they could not be distinguished
        assert len(result) == 10


def test_a_log_that_grows_is_read_up_to_its_end_each_time(tmp_path: Path) -> None:
    store = opened(tmp_path)
    known, position, seen = None, 0, []
    options = StoreOptions(path=str(tmp_path))
    for turn in range(60):
        for n in range(turn % 5 * 10):
            store.put(
                RecordDraft(topic="T", queue_id=0, body=b"%d" % n * 300, born_ms=5, born_host=HOST, properties="")
            )
        known = commit_log.find_log(str(tmp_path), known)
        assert known.end == store.commit_log_max
        assert known.end == commit_log.find_log(str(tmp_path)).end
        for part in log_task.plan_ranges(known, position, known.end, 10_000):
            for batch in log_task.read_rows(part, options, ["position", "valid"], known.file_size):
                seen += batch.to_pylist()
        position = known.end
    store.close()
    assert [row["position"] for row in seen] == [item.offset for item in told(tmp_path)]
    assert all(row["valid"] for row in seen)


def test_boundaries_are_positions_of_records(tmp_path: Path) -> None:
    filled(tmp_path, 100)
    places = [item.offset for item in told(tmp_path)]
    result = commit_log.find_log(str(tmp_path))
    files = OpenFiles(ReadOnlyDisk())
    for position in range(0, FILE, 501):
        log = Segments(files, result.directory, result.file_size, [0])
        assert commit_log.next_boundary(log, position, FILE) == next(
            (item for item in places if item >= position and item < FILE), FILE
        )
    files.close()


def test_a_directory_without_a_store_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a directory"):
        commit_log.find_log(str(tmp_path / "none"))
    with pytest.raises(StoreError, match="it contains no commitlog"):
        commit_log.find_log(str(tmp_path))
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(StoreError, match="no broker has stored a message"):
        commit_log.find_log(str(tmp_path))
    filled(tmp_path / "store", 100)
    files = sorted((tmp_path / "store" / "commitlog").iterdir())
    files[1].rename(files[1].with_name(f"{FILE + 1:020d}"))
    with pytest.raises(StoreError, match="multiple"):
        commit_log.find_log(str(tmp_path / "store"))


def test_a_file_removed_after_planning_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path, 300)
    result = commit_log.find_log(str(tmp_path))
    parts = log_task.plan_ranges(result, result.start, result.end, 1 << 40)
    shutil.rmtree(tmp_path / "commitlog")
    with pytest.raises(StoreError, match="removed after this read was planned"):
        list(log_task.read_rows(parts[0], StoreOptions(path=str(tmp_path)), COLUMNS, result.file_size))


def test_planned_ranges_cover_the_log_without_overlap() -> None:
    result = commit_log.StoredLog("d", 1000, (1000, 2000, 4000), 4321)
    parts = log_task.plan_ranges(result, 1000, 4321, 300)
    assert parts[0] == log_task.LogRange("d", 1000, 1000, 1300, 2000, True)
    assert LogDamage(3000, 1000, "this file is missing") in parts
    edges = [(p.offset, p.offset + p.size) if isinstance(p, LogDamage) else (p.begin, p.end) for p in parts]
    assert edges[0][0] == 1000
    assert edges[-1][1] == 4321
    assert all(low[1] == high[0] for low, high in itertools.pairwise(edges))
    assert log_task.plan_ranges(result, 4321, 4321, 300) == []


def test_options_are_validated() -> None:
    parsed = parse({"path": "file:///a%20b", "TOPIC": "T, U", "maxPartitionBytes": "65536", "checkcrc": "False"})
    assert (parsed.path, parsed.topic, parsed.max_partition_bytes, parsed.check_crc) == (
        "/a b",
        ("T", "U"),
        65536,
        False,
    )
    for wrong in (
        {}, {"path": "hdfs://host/x"}, {"path": "x", "topics": "T"}, {"path": "x", "maxPartitionBytes": "1"},
        {"path": "x", "topic": "a b"},
        {"path": "x", "checkCrc": "maybe"}, {"path": "x", "startingPosition": "soon"},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            parse(wrong)


def test_a_java_store_gives_the_messages_that_a_java_consumer_received(tmp_path: Path) -> None:
    data = Path(__file__).parents[1] / "data"
    java_store.unpack(tmp_path)
    expected = [json.loads(line) for line in (data / "store.json").read_text().splitlines()]
    columns = ["message_id", "offset_message_id", "body", "queue_id", "queue_offset", "keys", "tags", "born_timestamp"]
    for split in (1 << 40, 10_000):
        result = rows(tmp_path / "store", split, columns, topic=("T",))
        rows_by_id = {row["offset_message_id"]: row for row in result}
        assert len(rows_by_id) == len(result) == len(expected) == 193
        for item in expected:
            row = rows_by_id[item["offsetMsgId"]]
            assert row["body"] == base64.b64decode(item["body"])
            assert (row["message_id"], row["queue_id"], row["queue_offset"]) == (
                item["msgId"],
                item["queueId"],
                item["queueOffset"],
            )
            assert (row["keys"], row["tags"]) == (item.get("key"), item.get("tags"))
            assert row["born_timestamp"].timestamp() * 1000 == pytest.approx(item["bornTimestamp"])
        assert all(row["valid"] for row in rows(tmp_path / "store", split))


def test_a_log_written_during_the_read_shows_complete_records_only(tmp_path: Path) -> None:
    store, done = opened(tmp_path), threading.Event()

    def write() -> None:
        chance = random.Random(3)
        for n in range(3000):
            body = chance.randbytes(chance.randrange(2000))
            store.put(RecordDraft(topic="T", queue_id=0, body=body, born_ms=5, born_host=HOST, properties="KEYS\x01k"))
            if n % 100 == 0:
                store.dispatch_pending()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    options = StoreOptions(path=str(tmp_path))
    known, position, seen, is_last = None, 0, [], False
    while not is_last:
        is_last = done.is_set()
        known = commit_log.find_log(str(tmp_path), known)
        for part in log_task.plan_ranges(known, position, known.end, 1 << 40):
            for batch in log_task.read_rows(part, options, ["position", "valid"], known.file_size):
                seen += batch.to_pylist()
        position = known.end
    writer.join()
    store.close()
    assert all(row["valid"] for row in seen)
    assert [row["position"] for row in seen] == [item.offset for item in told(tmp_path)]
    assert len(seen) == 3000


@pytest.mark.parametrize("born", [HOST, V6])
def test_bodies_that_expand_beyond_a_batch_are_split_into_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, born: bytes
) -> None:
    monkeypatch.setattr(bodies, "EXPANDED_BYTES_MAX", 1000)
    created = [b"%d" % number * size for number, size in enumerate([400, 1, 400, 900, 100, 1000])]
    store = opened(tmp_path)
    for body in created:
        packed = compression.compress(body)[0]
        store.put(
            RecordDraft(topic="T", queue_id=0, body=packed, born_ms=1, born_host=born, sys_flag=compression.ZLIB_FLAGS)
        )
    store.dispatch_pending()
    store.close()
    result = commit_log.find_log(str(tmp_path))
    (part,) = log_task.plan_ranges(result, result.start, result.end, 1 << 40)
    batches = list(log_task.read_rows(part, StoreOptions(path=str(tmp_path)), ["body", "valid"], result.file_size))
    assert [body for batch in batches for body in batch["body"].to_pylist()] == created
    assert all(all(batch["valid"].to_pylist()) for batch in batches)
    assert max(sum(map(len, batch["body"].to_pylist())) for batch in batches) <= 1000
