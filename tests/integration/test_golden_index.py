"""Index files of a Java 4.9.4 broker (64 slots, 256 entries) are read, extended and rebuilt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from struct import unpack_from

import pytest

import java_store
from ariane.model import host
from ariane.protocol.records import record
from ariane.store.index.key_query import KeyQuery
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store

DATA = Path(__file__).parents[1] / "data"
HOST = host.pack("127.0.0.1", 10911)
ENTRIES_AT = 40 + 64 * 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return java_store.unpack(tmp_path)


def opened(root: Path) -> MessageStore:
    config = StoreConfig(
        root=str(root), commit_log_size=65536, consume_queue_size=1000, index=True, index_slots=64, index_entries=256
    )
    return open_store(config, store_host=HOST)


def expected() -> list[dict[str, str]]:
    return [json.loads(line) for line in (DATA / "store.json").read_text().splitlines()]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "index").iterdir())


def check(store: MessageStore) -> None:
    """Check that every message is found by its unique id and by its key."""
    by_key: dict[str, set[str]] = {}
    for item in expected():
        by_key.setdefault(item["key"], set()).add(item["msgId"])
        (data,) = store.index.query(KeyQuery("T", item["msgId"], 32)).records
        assert record.decode(data).offset == int(item["offsetMsgId"][16:], 16)
    for key, ids in by_key.items():
        match = store.index.query(KeyQuery("T", key, 1000)).records
        assert {record.decode(data).property_map()["UNIQ_KEY"] for data in match} == ids


def test_a_clean_java_index_is_reused(root: Path) -> None:
    java = names(root)
    store = opened(root)
    assert store.recovery_report.notes == ()
    assert set(names(root)) >= set(java)
    check(store)
    placed = store.put(
        RecordDraft(
            topic="T", queue_id=0, body=b"b", born_ms=1, born_host=HOST, properties="UNIQ_KEY\x01OURS\x02KEYS\x01K"
        )
    )
    store.dispatch_pending()
    store.close()
    repeated = opened(root)
    check(repeated)
    (data,) = repeated.index.query(KeyQuery("T", "OURS", 1)).records
    assert record.decode(data).offset == placed.offset
    repeated.close()


def test_the_last_index_file_is_rebuilt_after_a_java_crash(root: Path) -> None:
    """Java itself rebuilds the index only for messages in the last file of the log."""
    (root / "abort").touch()
    java = names(root)
    store = opened(root)
    assert java[-1] not in names(root)
    check(store)
    store.close()


def test_time_ranges_match_the_first_key_of_a_java_file(root: Path) -> None:
    """Java stores that key's time relative to the end of the previous file and does not find it again."""
    store = opened(root)
    for item in expected():
        stored = int(item["storeTimestamp"])
        assert len(store.index.query(KeyQuery("T", item["msgId"], 1, stored, stored)).records) == 1
        assert store.index.query(KeyQuery("T", item["msgId"], 1, stored + 1)).records == []
        assert store.index.query(KeyQuery("T", item["msgId"], 1, 0, stored - 1)).records == []
    store.close()


def test_the_same_log_produces_the_same_index_bytes(root: Path) -> None:
    """The bytes are equal up to the message whose keys Java splits across two files."""
    java = (root / "index" / names(root)[0]).read_bytes()
    shutil.rmtree(root / "index")
    store = opened(root)
    check(store)
    store.close()
    ours = (root / "index" / names(root)[0]).read_bytes()
    assert len(ours) == len(java)
    end = ENTRIES_AT + 20 * unpack_from(">i", ours, 36)[0]
    assert end > ENTRIES_AT + 20 * 200
    assert ours[ENTRIES_AT:end] == java[ENTRIES_AT:end]
    assert ours[:8] == java[:8]
    assert ours[16:24] == java[16:24]
