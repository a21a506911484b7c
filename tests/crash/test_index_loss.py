"""The key index after power losses, torn writes, lost and damaged files: never fatal, never wrong, no entry lost permanently."""

from __future__ import annotations

import contextlib
import random
import struct

import promises
import pytest
from msgspec.structs import replace

from ariane.errors import StoreError
from ariane.model import host
from ariane.protocol.records import record
from ariane.store.index import index_builder
from ariane.store.index.key_query import KeyQuery
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData

HOST = host.pack("127.0.0.1", 10911)
CONFIG = StoreConfig(
    root="/store",
    commit_log_size=1024,
    consume_queue_size=200,
    flush="sync",
    index=True,
    index_slots=3,
    index_entries=8,
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index files are written continuously, not only when they are full."""
    monkeypatch.setattr(index_builder, "BATCH_RECORDS", 2)


def opened(disk: FakeDisk, config: StoreConfig = CONFIG) -> MessageStore:
    return open_store(config, disk, now_ms=FakeClock(tick_ms=700).now_ms, store_host=HOST)


def draft(unique: str, words: str = "") -> RecordDraft:
    properties = f"UNIQ_KEY\x01{unique}" + (f"\x02KEYS\x01{words}" if words else "")
    return RecordDraft(topic="T", queue_id=0, body=b"", born_ms=1, born_host=HOST, properties=properties)


Messages = dict[int, str]  # unique ids by offset


def workload(store: MessageStore, sent: Messages, acknowledged: Messages, count: int = 24) -> None:
    waiting: Messages = {}
    for number in range(count):
        unique = f"ID{number:04X}"
        placed = store.put(draft(unique, "all even" if number % 4 == 0 else "Aa" if number % 4 == 1 else ""))
        waiting[placed.offset] = sent[placed.offset] = unique
        if number % 3 == 2:
            store.flush()
            acknowledged.update(waiting)
            waiting.clear()
            store.dispatch_pending()
        if number % 7 == 6:
            store.write_checkpoint()


def in_log(store: MessageStore) -> Messages:
    """Return the unique ids of all messages that consumers can read, by commit-log offset."""
    offset, match = store.min_offset("T", 0), {}
    while offset < store.max_offset("T", 0):
        result = store.get("T", 0, offset, 32)
        for data in result.records:
            item = record.decode(data)
            match[item.offset] = item.property_map()["UNIQ_KEY"]
        offset = result.next_offset
    return match


def by_key(store: MessageStore, key: str) -> list[int]:
    return [record.decode(data).offset for data in store.index.query(KeyQuery("T", key, 1000)).records]


def check_index(store: MessageStore) -> None:
    """Check that the index finds each message of the log by its id and keys, and no other message."""
    messages = in_log(store)
    for offset, unique in messages.items():
        assert by_key(store, unique) == [offset]
    numbers = {offset: int(unique[2:], 16) for offset, unique in messages.items()}
    assert by_key(store, "all") == sorted(offset for offset, number in numbers.items() if number % 4 == 0)
    assert by_key(store, "Aa") == sorted(offset for offset, number in numbers.items() if number % 4 == 1)
    assert by_key(store, "BB") == []
    assert by_key(store, "IDFFFF") == []


def check(disk: FakeDisk, acknowledged: Messages, config: StoreConfig = CONFIG) -> None:
    store = opened(disk, config)
    assert in_log(store).items() >= acknowledged.items()
    check_index(store)
    store.put(draft("ID0400", "all"))
    store.flush()
    store.dispatch_pending()
    check_index(store)
    store.close()
    repeated = opened(disk, config)
    assert repeated.recovery_report.notes == ()
    check_index(repeated)
    repeated.close()


def run(disk: FakeDisk, acknowledged: Messages, config: StoreConfig = CONFIG) -> None:
    store = opened(disk, config)
    workload(store, {}, acknowledged)
    store.close()


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize(("kept", "seed"), promises.FATES)
def test_power_lost_at_every_change(kept: SurvivingData, seed: int, flush: str) -> None:
    config = replace(CONFIG, flush=flush)
    probe = FakeDisk()
    run(probe, {}, config)
    assert len([path for path in probe.paths() if "/index/" in path]) > 4
    for cut in range(1, probe.changes + 1):
        disk, acknowledged = FakeDisk(), Messages()
        disk.power_off_at = cut
        with contextlib.suppress(PowerLost):
            run(disk, acknowledged, config)
        check(disk.after_power_loss(kept, random.Random(seed * 1000 + cut)), acknowledged, config)


@pytest.mark.parametrize(("kept", "seed"), promises.FATES)
def test_power_lost_again_while_recovering(kept: SurvivingData, seed: int) -> None:
    first, acknowledged = FakeDisk(), Messages()
    store = opened(first)
    workload(store, {}, acknowledged)
    remaining = first.after_power_loss(kept, random.Random(seed))
    probe = remaining.after_kill()
    opened(probe)
    for cut in range(1, probe.changes + 1):
        disk = remaining.after_kill()
        disk.power_off_at = cut
        with pytest.raises(PowerLost):
            opened(disk)
        check(disk.after_power_loss(kept, random.Random(cut)), acknowledged)


def test_every_write_of_the_index_torn_at_every_byte() -> None:
    """The last write before the power loss is one to an index file: header, entries or slots."""
    probe = FakeDisk()
    writes: dict[int, int] = {}
    original = probe.pwrite

    def pwrite(handle: int, data: bytes, offset: int) -> None:
        if "/index/" in probe._handles[handle][0]:
            writes[probe.changes + 1] = len(data)
        original(handle, data, offset)

    probe.pwrite = pwrite  # type: ignore[method-assign]
    run(probe, {})
    assert len(writes) > 20
    for change, size in writes.items():
        for torn_at in range(0, size, 1 if change % 5 == 0 else 7):
            disk, acknowledged = FakeDisk(), Messages()
            disk.power_off_at, disk.torn_at = change, torn_at
            with pytest.raises(PowerLost):
                run(disk, acknowledged)
            check(disk.after_kill(), acknowledged)


@pytest.mark.parametrize("seed", range(60))
def test_entries_torn_after_the_flushed_ones(seed: int) -> None:
    """A torn entry refers to an offset below the flushed end, with or without a record there; its file may be a new one."""
    config = replace(CONFIG, index_slots=3000, index_entries=6 + seed % 20, commit_log_size=65536)
    disk, acknowledged = FakeDisk(), Messages()
    store = opened(disk, config)
    sent: Messages = {}
    for number in range(30):
        if number == 3 + seed % 7:
            store.write_checkpoint()
        placed = store.put(draft(f"ID{number:04X}", "all even" if number % 4 == 0 else "Aa" if number % 4 == 1 else ""))
        sent[placed.offset] = f"ID{number:04X}"
        store.flush()
        store.dispatch_pending()
    acknowledged.update(sent)
    check(disk.after_power_loss(SurvivingData.TORN, random.Random(seed)), acknowledged, config)


@pytest.mark.parametrize("place", ["no record", "the record before", "one before the first"])
def test_an_entry_torn_to_name_another_offset(place: str) -> None:
    """The entry fits into its chain and its offset is below the flushed end, in the last flushed file and in an unflushed one."""
    config = replace(CONFIG, flush="async", index_slots=3000, index_entries=50, commit_log_size=65536)
    disk, acknowledged = FakeDisk(), Messages()
    store = opened(disk, config)
    store.put(RecordDraft(topic="U", queue_id=0, body=b"", born_ms=1, born_host=HOST, properties=""))
    for number in range(20, 24):
        unique = f"ID{number:04X}"
        acknowledged[store.put(draft(unique)).offset] = unique
    store.flush()
    store.dispatch_pending()
    store.write_checkpoint()
    remaining = disk.after_power_loss(SurvivingData.NONE, random.Random(1))
    (path,) = [item for item in remaining.paths() if "/index/" in item]
    content = remaining.contents(path)
    *_, before, last = acknowledged
    offset = {"no record": last + 1, "the record before": before, "one before the first": 0}[place]
    entry = struct.pack(">iqii", 7, offset, 0, 0)
    entries_at = 40 + 4 * 3000
    assert content[entries_at + 5 * 20 :].strip(b"\0") == b""
    content[entries_at + 5 * 20 : entries_at + 6 * 20] = entry
    torn_new = bytearray(len(content))
    torn_new[entries_at + 20 : entries_at + 40] = entry
    struct.pack_into(">qqqqii", torn_new, 0, 1_700_000_000_000, 1_700_000_000_000, offset, offset, 1, 2)
    new = path[:-17] + f"{int(path[-17:]) + 1:017d}"
    for with_new in (False, True):
        disk = remaining.after_kill()
        if with_new:
            disk.close(disk.create(new, len(torn_new)))
            disk.contents(new)[:] = torn_new
        opened(disk, config).close()
        repeated = opened(disk, config)
        assert repeated.recovery_report.notes == ()
        for position, unique in acknowledged.items():
            assert by_key(repeated, unique) == [position]
        repeated.close()
        for item in [item for item in disk.paths() if "/index/" in item]:
            kept = disk.contents(item)
            *_, end, _, count = struct.unpack_from(">qqqqii", kept)
            named = [struct.unpack_from(">iq", kept, entries_at + 20 * number)[1] for number in range(1, count)]
            assert set(named) <= set(acknowledged)
            assert named == sorted(named)
            assert named[-1] == end


UNCLEAN = pytest.mark.long("tests/crash/test_index_loss.py::test_power_lost_while_a_damaged_file_is_rebuilt")


@pytest.mark.parametrize("is_clean", [True, pytest.param(False, marks=UNCLEAN)])
@pytest.mark.parametrize(("kept", "seed"), promises.FATES)
def test_power_lost_while_a_damaged_file_is_rebuilt(kept: SurvivingData, seed: int, is_clean: bool) -> None:
    """Nothing of a rebuilt file is flushed, whatever the checkpoint recorded for the file it replaces."""
    first, acknowledged = FakeDisk(), Messages()
    store = opened(first)
    workload(store, {}, acknowledged)
    if is_clean:
        store.close()
    else:
        store.write_checkpoint()
    files = [path for path in first.paths() if "/index/" in path]
    for damaged in files[::2]:
        remaining = first.after_kill()
        remaining.contents(damaged)[40 + 4 * 3 + 20 + 8 :] = bytes(
            len(remaining.contents(damaged)) - (40 + 4 * 3 + 20 + 8)
        )
        remaining = remaining.after_power_loss(SurvivingData.ALL, random.Random(0))
        probe = remaining.after_kill()
        opened(probe)
        for cut in range(1, probe.changes + 1):
            disk = remaining.after_kill()
            disk.power_off_at = cut
            with pytest.raises(PowerLost):
                opened(disk)
            check(disk.after_power_loss(kept, random.Random(seed * 1000 + cut)), acknowledged)
        check(probe.after_power_loss(kept, random.Random(seed)), acknowledged)


@pytest.mark.parametrize("is_clean", [True, False])
def test_any_lost_file_is_rebuilt(is_clean: bool) -> None:
    disk, acknowledged = FakeDisk(), Messages()
    store = opened(disk)
    workload(store, {}, acknowledged)
    if is_clean:
        store.close()
    else:
        store.write_checkpoint()
    files = [path for path in disk.paths() if "/index/" in path]
    for lost in [*([path] for path in files), files[:2], files[1:], files]:
        remaining = disk.after_kill()
        for path in lost:
            remaining.remove(path)
        store = opened(remaining)
        assert "rebuilding" in "".join(store.recovery_report.notes)
        check_index(store)
        store.close()
        check(remaining, acknowledged)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("size", [0, 1, 40, 60, 1000])
def test_a_file_of_a_wrong_length_is_rebuilt(is_clean: bool, size: int) -> None:
    disk, acknowledged = FakeDisk(), Messages()
    store = opened(disk)
    workload(store, {}, acknowledged)
    if is_clean:
        store.close()
    for path in [path for path in disk.paths() if "/index/" in path]:
        remaining = disk.after_kill()
        content = remaining.contents(path)
        content[:] = content[:size].ljust(size, b"\0")
        check(remaining, acknowledged)


def test_unrelated_files_are_not_touched() -> None:
    disk = FakeDisk()
    run(disk, {})
    disk.close(disk.create("/store/index/README", 7))
    disk.close(disk.create("/store/index/123", 7))
    check(disk, {})
    assert disk.size("/store/index/README") == 7


def test_an_overwritten_page_is_detected_and_the_file_rebuilt() -> None:
    """Overwrite any twenty bytes of entries, slots or header with 0xff or random bytes."""
    disk, acknowledged = FakeDisk(), Messages()
    run(disk, acknowledged)
    chance = random.Random(5)
    noticed = 0
    for path in [path for path in disk.paths() if "/index/" in path]:
        for position in range(0, len(disk.contents(path)), 20):
            for content in (b"\xff" * 20, chance.randbytes(20)):
                remaining = disk.after_kill()
                remaining.contents(path)[position : position + 20] = content[: len(remaining.contents(path)) - position]
                store = opened(remaining)
                messages = in_log(store)
                for offset, unique in messages.items():
                    assert by_key(store, unique) in ([offset], []), "never another message"
                noticed += bool(store.index.notes)
                store.close()
                for item in [item for item in remaining.paths() if "/index/" in item]:
                    remaining.remove(item)
                check(remaining, acknowledged)
    assert noticed > 50


def test_bit_flips_in_the_index_are_never_fatal() -> None:
    disk = FakeDisk()
    run(disk, {})
    for path in [path for path in disk.paths() if "/index/" in path][:3]:
        for position in range(0, len(disk.contents(path)), 3):
            remaining = disk.after_kill()
            remaining.contents(path)[position] ^= 1 << position % 8
            store = opened(remaining)
            messages = in_log(store)
            for offset, unique in messages.items():
                assert by_key(store, unique) in ([offset], [])
            for number in range(10):
                store.put(draft(f"ID1{number:03X}"))
            store.flush()
            store.dispatch_pending()
            for number in range(10):
                assert len(by_key(store, f"ID1{number:03X}")) == 1
            store.close()


def test_a_permanently_damaged_index_fails_only_queries() -> None:
    disk = FakeDisk()
    store = opened(disk)
    workload(store, {}, {})
    check_index(store)
    real = disk.pread

    def noise(handle: int, size: int, offset: int) -> bytes:
        data = real(handle, size, offset)
        return b"\x7f" * len(data) if "/index/" in disk._handles[handle][0] else data

    disk.pread = noise  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="damaged repeatedly"):
        store.index.query(KeyQuery("T", "all", 10))
    placed = store.put(draft("ID0406"))
    store.flush()
    store.dispatch_pending()
    disk.pread = real  # type: ignore[method-assign]
    assert by_key(store, "ID0406") == [placed.offset]
    check_index(store)


def test_records_lost_in_a_crash_have_no_index_entries() -> None:
    """Old slots on the disk, and entries after the end, would reappear as the file grows."""
    config = replace(CONFIG, flush="async", index_slots=3000, index_entries=50, commit_log_size=65536)
    disk = FakeDisk()
    store = opened(disk, config)
    store.put(draft("ID0002"))
    store.close()
    store = opened(disk, config)
    for number in range(4, 24):
        store.put(draft(f"ID{number:04X}", f"{number * 7919:x}zz"))  # its slot is far from the others
    store.dispatch_pending()
    store.index.query(KeyQuery("T", "none", 1))
    store.index.complete(store.commit_log_max)  # the slots, too, as if it was about to stop
    (path,) = [item for item in disk.paths() if "/index/" in item]
    handle = disk.open(path)
    disk.fsync(handle)  # and the system writes them by itself
    remaining = disk.after_power_loss(SurvivingData.NONE, random.Random(1))
    store = opened(remaining, config)
    assert list(in_log(store).values()) == ["ID0002"]
    content = remaining.contents(path)
    assert not content[40 + 4 * 3000 + 20 * 2 :].strip(b"\0")
    store.close()
    slots = content[40 : 40 + 4 * 3000]
    assert [number for (number,) in struct.iter_unpack(">i", slots) if number] == [1]
    check_index(opened(remaining, config))


def test_the_index_never_covers_unflushed_messages() -> None:
    """Two power losses: the first removes messages from the log, the second the index entries of their successors."""
    config = replace(CONFIG, flush="async", commit_log_size=65536)
    disk = FakeDisk()
    store = opened(disk, config)
    for number in range(10):
        store.put(draft(f"ID{number:04X}", "all" if number % 4 == 0 else "Aa" if number % 4 == 1 else ""))
    store.dispatch_pending()
    store.write_checkpoint()
    disk = disk.after_power_loss(SurvivingData.NONE, random.Random(1))
    store = opened(disk, config)
    assert in_log(store) == {}
    for number in range(20, 30):
        store.put(draft(f"ID{number:04X}", "all" if number % 4 == 0 else "Aa" if number % 4 == 1 else ""))
    store.dispatch_pending()
    store.flush()
    store = opened(disk.after_power_loss(SurvivingData.NONE, random.Random(1)), config)
    assert len(in_log(store)) == 10
    check_index(store)


def test_another_size_after_a_crash() -> None:
    disk, acknowledged = FakeDisk(), Messages()
    workload(opened(disk), {}, acknowledged)
    remaining = disk.after_power_loss(SurvivingData.NONE, random.Random(1))
    store = opened(remaining, replace(CONFIG, index_slots=7, index_entries=30))
    assert in_log(store).items() >= acknowledged.items()
    check_index(store)
    store.close()
