"""The key index: hashes, bytes of a file, roll-over, windows, pages, bounds. On a disk in memory."""

from __future__ import annotations

import errno
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ariane.errors import ConfigError, ProtocolError, StoreError, StoreFull
from ariane.kernels.key_hashes import KeyHashes, key_hash, parse_keys
from ariane.model import host
from ariane.model.hashes import java_hash, string_hash
from ariane.model.message import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from ariane.protocol.records import record
from ariane.protocol.records.queue_entry import INDEX_KEY
from ariane.store.index import index_builder, key_query
from ariane.store.index.key_query import KeyQuery, QueryPosition
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk

HOST = host.pack("127.0.0.1", 10911)
CONFIG = StoreConfig(
    root="/store", commit_log_size=4096, consume_queue_size=400, index=True, index_slots=4, index_entries=8
)
T0 = 1_700_000_000_000


def opened(disk: FakeDisk, clock: FakeClock | None = None, config: StoreConfig = CONFIG) -> MessageStore:
    return open_store(config, disk, now_ms=(clock or FakeClock(T0)).now_ms, store_host=HOST)


def draft(unique: str = "", keys: str = "", *, topic: str = "T", sys_flag: int = 0, body: bytes = b"b") -> RecordDraft:
    pairs = [("UNIQ_KEY", unique), ("KEYS", keys), ("WAIT", "true")]
    properties = "\x02".join(f"{name}\x01{value}" for name, value in pairs if value)
    return RecordDraft(
        topic=topic, queue_id=0, body=body, born_ms=1, born_host=HOST, properties=properties, sys_flag=sys_flag
    )


def found(store: MessageStore, key: str, topic: str = "T", **limits: int) -> list[int]:
    """Offsets of what one query gives."""
    result = store.index.query(KeyQuery(topic, key, limits.pop("max_count", 64), **limits))
    return [record.decode(data).offset for data in result.records]


def index_files(disk: FakeDisk) -> list[str]:
    return [path for path in disk.paths() if path.startswith("/store/index/")]


# --- hashes ---


def test_string_hashes_equal_javas() -> None:
    assert (string_hash(""), string_hash("Aa"), string_hash("BB")) == (0, 2112, 2112)
    assert string_hash("polygenelubricants") == -(2**31)
    assert string_hash("a" * 5000) == java_hash("a" * 5000)
    h = 0
    for character in "x" * 600:
        h = (31 * h + ord(character)) & 0xFFFFFFFF
    assert string_hash("x" * 600) & 0xFFFFFFFF == h
    assert string_hash("é𝄞") == ((233 * 31 + 0xD834) * 31 + 0xDD1E)


def key_with_hash(topic: str, target: int) -> str:
    """A key of printable characters whose hash with the topic is `target`, modulo 2^32."""
    start = string_hash(f"{topic}#") & 0xFFFFFFFF
    rest = (target - start * 31**7 - sum(48 * 31**i for i in range(7))) % 2**32
    digits = [chr(48 + rest // 31**i % 31) for i in range(7)]
    return "".join(reversed(digits))


def test_the_hash_without_a_positive_counterpart_is_zero() -> None:
    key = key_with_hash("T", 2**31)
    assert string_hash(f"T#{key}") == -(2**31)
    assert key_hash("T", key) == 0
    unique = key_with_hash("T", 5)
    assert key_hash("T", unique) == 5
    assert key_hash("T", key_with_hash("T", -5)) == 5


HEX = st.text("0123456789ABCDEF", min_size=0, max_size=36)
TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12)
NAMES = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "MY_UNIQ_KEY", "MYKEYS", "a", ""])
PROPERTIES = st.lists(st.tuples(NAMES, HEX | TEXT | st.sampled_from(["a b", " a  a", "Aa BB"])), max_size=5)


@given(st.lists(st.tuples(st.sampled_from(["T", "Topic_2", "%RETRY%g"]), PROPERTIES), max_size=20))
def test_bulk_hashes_equal_single_hashes(messages: list[tuple[str, list[tuple[str, str]]]]) -> None:
    noted = [
        (topic, "\x02".join(f"{name}\x01{value}" for name, value in pairs), number, number)
        for number, (topic, pairs) in enumerate(messages)
    ]
    expected = [
        (key_hash(topic, key), offset) for topic, properties, offset, _ in noted for key in parse_keys(properties)
    ]
    assert list(INDEX_KEY.iter_unpack(KeyHashes().hash_keys(noted))) == expected


def test_keys_are_the_unique_id_and_the_words() -> None:
    assert parse_keys("KEYS\x01b  a b\x02UNIQ_KEY\x01id") == ["id", "b", "a"]
    assert parse_keys("KEYS\x01a\tb") == ["a\tb"]
    assert parse_keys("TAGS\x01a") == []


# --- bytes ---


def test_the_bytes_of_an_index_file_are_exact() -> None:
    """Three keys, computed by hand: hash of "T#k1" = (84*31+35)*961 + 107*31 + 49."""
    disk, clock = FakeDisk(), FakeClock(T0)
    store = opened(disk, clock)
    h1 = (84 * 31 + 35) * 961 + 107 * 31 + 49
    h2, h5 = h1 + 1, h1 + 4
    first = store.put(draft(keys="k1"))
    clock.advance_ms(2999)
    second = store.put(draft(keys="k2 k5"))
    store.dispatch_pending()
    store.close()
    (path,) = index_files(disk)
    slots = [0, 0, 0, 0]
    slots[h2 % 4], slots[h5 % 4] = 2, 3
    expected = pack(">qqqqii", T0, T0 + 2999, first.offset, second.offset, 2, 4)
    expected += pack(">4i", *slots)
    expected += bytes(20) + pack(">iqii", h1, first.offset, 0, 0)
    expected += pack(">iqii", h2, second.offset, 2, 0) + pack(">iqii", h5, second.offset, 2, 1)
    assert disk.contents(path) == expected + bytes(20 * 4)
    assert len(path.rpartition("/")[2]) == 17


def test_no_file_is_created_without_a_key() -> None:
    disk = FakeDisk()
    store = opened(disk)
    store.put(draft())
    store.dispatch_pending()
    store.close()
    assert index_files(disk) == []


# --- queries ---


def test_a_hash_collision_is_not_a_match() -> None:
    store = opened(FakeDisk())
    item = store.put(draft(keys="Aa"))
    other = store.put(draft(keys="BB"))
    elsewhere = store.put(draft(keys="Aa", topic="U"))
    store.dispatch_pending()
    assert key_hash("T", "Aa") == key_hash("T", "BB")
    assert found(store, "Aa") == [item.offset]
    assert found(store, "BB") == [other.offset]
    assert found(store, "Aa", "U") == [elsewhere.offset]
    assert found(store, "A") == []


def test_a_query_finds_every_message_visible_to_consumers() -> None:
    store = opened(FakeDisk())
    placed = store.put(draft("ID1"))
    assert found(store, "ID1") == []
    store.dispatch_pending()
    assert found(store, "ID1") == [placed.offset]
    batch = store.put_batch([draft("ID2", "a"), draft("ID3", "a")])
    store.dispatch_pending()
    assert found(store, "a") == [item.offset for item in batch]


def test_in_sync_mode_a_query_finds_only_flushed_messages() -> None:
    store = opened(FakeDisk(), config=replace(CONFIG, flush="sync"))
    placed = store.put(draft("ID1"))
    store.dispatch_pending()
    assert found(store, "ID1") == []
    store.flush()
    store.dispatch_pending()
    assert found(store, "ID1") == [placed.offset]


def test_half_messages_are_found_but_rolled_back_ones_are_not() -> None:
    disk = FakeDisk()
    store = opened(disk)
    half = store.put(draft("H", sys_flag=TRANSACTION_PREPARED))
    store.put(draft("R", sys_flag=TRANSACTION_ROLLBACK))
    store.dispatch_pending()
    assert (found(store, "H"), found(store, "R")) == ([half.offset], [])
    survivor = disk.after_kill()
    repeated = opened(survivor)
    assert (found(repeated, "H"), found(repeated, "R")) == ([half.offset], [])


def test_keys_of_a_message_share_one_file_and_times_are_correct_after_a_roll() -> None:
    disk, clock = FakeDisk(), FakeClock(T0)
    store = opened(disk, clock)
    for _ in range(3):
        store.put(draft(keys="x y"))  # 6 of 7
    clock.advance_ms(3_600_000)
    late = store.put(draft("ID", "late"))  # does not fit any more
    store.dispatch_pending()
    assert found(store, "late", begin_ms=T0 + 3_600_000, end_ms=T0 + 3_600_000) == [late.offset]
    store.close()
    first, second = index_files(disk)
    assert disk.contents(first)[36:40] == pack(">i", 7)
    assert disk.contents(second)[:8] == pack(">q", T0 + 3_600_000)
    assert disk.contents(second)[40 + 16 + 20 + 12 :][:4] == pack(">i", 0)
    repeated = opened(disk, clock)
    assert found(repeated, "ID", begin_ms=T0 + 3_600_000, end_ms=T0 + 3_600_000) == [late.offset]
    assert len(found(repeated, "x")) == 3
    assert repeated.recovery_report.notes == ()


def test_a_message_with_more_keys_than_a_file_loses_none() -> None:
    disk = FakeDisk()
    store = opened(disk)
    store.put(draft(keys="before"))
    words = [f"w{number}" for number in range(30)]
    placed = store.put(draft("ID", " ".join(words)))
    store.dispatch_pending()
    for _ in range(2):
        assert all(found(store, word) == [placed.offset] for word in [*words, "ID"])
        store.close()
        store = opened(disk)
    assert len(index_files(disk)) > 4


def test_file_names_ascend_even_if_the_clock_does_not() -> None:
    disk, clock = FakeDisk(), FakeClock(T0)
    store = opened(disk, clock)
    for number in range(40):
        store.put(draft(f"ID{number}"))
        clock.advance_ms(-1000)
    store.dispatch_pending()
    assert all(len(found(store, f"ID{number}")) == 1 for number in range(40))
    store.close()
    assert len(index_files(disk)) == 6
    repeated = opened(disk, clock)
    assert all(len(found(repeated, f"ID{number}")) == 1 for number in range(40))


def test_time_ranges_are_exact_to_the_millisecond() -> None:
    clock = FakeClock(T0)
    store = opened(FakeDisk(), clock)
    offsets = {}
    for ms in (0, 1, 999, 1000, 1500, 2999, 3000, 60_000):
        clock.set_ms(T0 + ms)
        offsets[ms] = store.put(draft(keys="k")).offset
    store.dispatch_pending()
    for begin in (0, 1, 2, 999, 1000, 1001, 2500, 3000, 3001, 60_001):
        for end in (0, 998, 999, 1000, 1499, 2999, 3000, 59_999, 60_000):
            expected = [offset for ms, offset in offsets.items() if begin <= ms <= end]
            assert found(store, "k", begin_ms=T0 + begin, end_ms=T0 + end) == expected, (begin, end)


@pytest.mark.parametrize("max_count", [1, 3, 64])
def test_pages_continue_to_the_oldest_message(max_count: int) -> None:
    store = opened(FakeDisk())
    offsets = [store.put(draft(f"ID{number}", "many")).offset for number in range(50)]
    store.dispatch_pending()
    assert pages(store, "many", max_count) == offsets


def pages(store: MessageStore, key: str, max_count: int) -> list[int]:
    """All pages of a query, each made of what was newest among the rest; while it goes on, more is put."""
    collected: list[int] = []
    position: QueryPosition | None = None
    while True:
        result = store.index.query(KeyQuery("T", key, max_count, position=position))
        page = [record.decode(data).offset for data in result.records]
        assert len(page) <= max_count
        assert page == sorted(page)
        collected = page + collected
        store.put(draft("new", key))
        store.dispatch_pending()
        if result.position is None:
            return collected
        position = QueryPosition.parse(result.position.text())


def test_a_page_has_a_continuation_only_if_more_results_exist() -> None:
    store = opened(FakeDisk())
    for number in range(3):
        store.put(draft(keys=f"k only{number}"))
    store.dispatch_pending()
    assert store.index.query(KeyQuery("T", "k", 3)).position is None
    assert store.index.query(KeyQuery("T", "k", 2)).position is not None
    nothing = store.index.query(KeyQuery("T", "k", 0))
    assert nothing.records == []
    assert nothing.position is not None


def test_a_position_in_a_removed_file_continues_by_offset() -> None:
    disk = FakeDisk()
    store = opened(disk)
    offsets = [store.put(draft(f"ID{number}", "many")).offset for number in range(20)]
    store.dispatch_pending()
    first = store.index.query(KeyQuery("T", "many", 5))
    assert first.position is not None
    store.close()
    for path in index_files(disk):
        disk.remove(path)
    repeated = opened(disk)
    assert "rebuilding" in repeated.recovery_report.notes[-1]
    gone = first.position._replace(file="20010101000000000", number=99)
    rest = repeated.index.query(KeyQuery("T", "many", 64, position=gone))
    assert [record.decode(data).offset for data in rest.records] == offsets[:15]


@pytest.mark.parametrize("text", ["", "1", "1-2", "1-2-x", "-1-2-3", "1-2-3-4", "9" * 30 + "-1-1", "1-../x-1", "²-1-1"])
def test_an_invalid_position_is_rejected(text: str) -> None:
    with pytest.raises(ProtocolError, match="position"):
        QueryPosition.parse(text)


def test_a_query_examines_a_bounded_number_of_entries_and_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(FakeDisk())
    old = store.put(draft(keys="Aa"))
    for _ in range(30):
        store.put(draft(keys="BB"))
    store.dispatch_pending()
    monkeypatch.setattr(key_query, "ENTRIES_SCANNED_MAX", 7)
    position, rounds = None, 0
    while True:
        result = store.index.query(KeyQuery("T", "Aa", 64, position=position))
        rounds += 1
        if result.position is None:
            break
        assert result.records == []
        position = result.position
    assert [record.decode(data).offset for data in result.records] == [old.offset]
    assert rounds == 5


def test_a_response_has_a_maximum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(FakeDisk())
    offsets = [store.put(draft(keys="k", body=b"x" * 1000)).offset for _ in range(10)]
    store.dispatch_pending()
    monkeypatch.setattr(key_query, "BYTES_MAX", 2500)
    assert found(store, "k") == offsets[-2:]
    assert pages(store, "k", 64) == offsets
    monkeypatch.setattr(key_query, "BYTES_MAX", 1)
    assert found(store, "k", begin_ms=T0) != []


def test_the_last_update_is_reported() -> None:
    clock = FakeClock(T0)
    store = opened(FakeDisk(), clock)
    assert store.index.query(KeyQuery("T", "k", 1))[2:] == (0, 0)
    store.put(draft(keys="k"))
    clock.advance_ms(5)
    placed = store.put(draft(keys="k"))
    store.dispatch_pending()
    assert store.index.query(KeyQuery("T", "none", 1))[2:] == (T0 + 5, placed.offset)


# --- life ---


def test_without_an_index_queries_are_rejected_and_nothing_is_stored() -> None:
    disk = FakeDisk()
    store = opened(disk, config=replace(CONFIG, index=False))
    store.put(draft("ID"))
    store.dispatch_pending()
    with pytest.raises(StoreError, match="messageIndexEnable"):
        store.index.query(KeyQuery("T", "ID", 1))
    assert store.index.drop_before(100) == 0
    store.close()
    assert index_files(disk) == []
    repeated = opened(disk)
    assert len(found(repeated, "ID")) == 1, "an index that is turned on knows what was there before"


def test_an_index_that_was_disabled_for_a_while_is_completed() -> None:
    disk = FakeDisk()
    for number, is_on in enumerate((True, False, True, False, True)):
        store = opened(disk, config=replace(CONFIG, index=is_on))
        store.put(draft(f"ID{number}", "all"))
        store.dispatch_pending()
        if is_on:
            assert len(found(store, "all")) == number + 1
        store.close()


def test_files_of_other_sizes_are_rebuilt() -> None:
    disk = FakeDisk()
    store = opened(disk)
    placed = [store.put(draft(f"ID{number}")).offset for number in range(20)]
    store.dispatch_pending()
    store.close()
    other = opened(disk, config=replace(CONFIG, index_slots=5))
    assert "maxHashSlotNum" in other.recovery_report.notes[-1]
    assert [found(other, f"ID{number}") for number in range(20)] == [[offset] for offset in placed]
    other.close()
    repeated = opened(disk, config=other.config)
    assert repeated.recovery_report.notes == ()


@pytest.mark.parametrize(("name", "value"), [("index_slots", 0), ("index_entries", 1), ("index_entries", 1 << 31)])
def test_invalid_sizes_are_rejected(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=r"maxHashSlotNum|maxIndexNum"):
        StoreConfig(root="/store", **{name: value}).check()


def test_retention_removes_index_files_below_the_minimum_offset() -> None:
    disk = FakeDisk()
    store = opened(disk)
    placed = [store.put(draft(f"ID{number}")).offset for number in range(20)]
    store.dispatch_pending()
    store.flush()
    store.write_checkpoint()
    assert store.index.drop_before(placed[0]) == 0
    assert store.index.drop_before(placed[7]) == 1
    assert found(store, "ID6") == []
    assert found(store, "ID7") == [placed[7]]
    assert store.index.drop_before(1 << 60) == 1
    # Killed at any time: what retention took is not taken for a loss.
    for files in (3, 3, 1, 1):
        assert len(index_files(disk)) == files
        repeated = opened(disk.after_kill())
        assert repeated.recovery_report.notes == ()
        assert [len(found(repeated, f"ID{number}")) for number in range(14, 20)] == [1] * 6
        store.write_checkpoint()
    assert [len(found(store, f"ID{number}")) for number in range(20)] == [0] * 14 + [1] * 6
    store.close()
    assert opened(disk).recovery_report.notes == ()


def test_a_full_disk_rejects_queries_but_not_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_builder, "BATCH_RECORDS", 2)
    disk = FakeDisk()
    store = opened(disk)
    offsets = [store.put(draft(f"ID{number}")).offset for number in range(5)]
    store.dispatch_pending()

    def fail(kind: str, path: str) -> None:
        if "/index/" in path and kind != "fsync":
            raise OSError(errno.ENOSPC, "no space left on device", path)

    disk.fail = fail
    offsets += [store.put(draft(f"ID{number}")).offset for number in range(5, 12)]
    assert [arrival.max_offset for arrival in store.dispatch_pending()] == list(range(6, 13))
    store.flush()
    store.write_checkpoint()
    for _ in range(2):
        with pytest.raises(StoreFull):
            store.index.query(KeyQuery("T", "ID0", 1))
    survivor = disk.after_kill()
    survivor.fail = lambda kind, path: fail(kind, path) if kind == "create" else None
    started = opened(survivor)
    with pytest.raises(StoreFull):
        started.index.query(KeyQuery("T", "ID0", 1))
    survivor = survivor.after_kill()
    disk.fail = lambda kind, path: None
    assert [found(store, f"ID{number}") for number in range(12)] == [[offset] for offset in offsets]
    store.close()
    for remaining in (disk, survivor):
        repeated = opened(remaining)
        assert [found(repeated, f"ID{number}") for number in range(12)] == [[offset] for offset in offsets]
        assert repeated.recovery_report.notes == ()
