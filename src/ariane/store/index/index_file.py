"""One file of the key index: a hash table whose chains run from the newest entry of a slot to the oldest.

    header 40 B   begin time i64 | end time i64 | begin offset i64 | end offset i64 | slots in use i32 | next entry i32
    slots         i32 each: number of the newest entry whose hash belongs to the slot, 0 for none
    entries       hash i32 | commit log offset i64 | seconds since begin time i32 | number of the next older entry i32

Entry 0 is never used, so the next entry of an empty file is 1. Times are store times in ms, offsets those of records.

Entries and header are written immediately. The slots can be computed from the entries: they stay in memory while a file grows, and
are written when it is full or the store is closed; after a crash they are rebuilt from the entries. [IndexFile]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple, Protocol

from ariane.kernels.implementation import index_slots
from ariane.kernels.index_slots import ENTRY, ENTRY_SIZE, SLOT_SIZE, EntryBounds, IndexSlots
from ariane.protocol.records.queue_entry import INDEX_KEY
from ariane.store.disk.files import OpenFiles

HEADER = Struct(">qqqqii")
SLOT = Struct(">i")
HEADER_SIZE = HEADER.size
PAGE = 4096  # slots are written by pages, except pages of zeros
_READ_AT_ONCE = 1 << 20
CHUNK_ENTRIES = 50_000  # entries per read while slots are rebuilt
SECONDS_MAX = 2147483647


class IndexSizes(NamedTuple):
    """Layout of the files of an index, which the files do not contain."""

    slots: int  # maxHashSlotNum
    entries: int  # maxIndexNum, including the unused entry 0

    @property
    def entries_at(self) -> int:
        return HEADER_SIZE + SLOT_SIZE * self.slots

    @property
    def file_size(self) -> int:
        return self.entries_at + ENTRY_SIZE * self.entries


class IndexHeader(NamedTuple):
    begin_ms: int  # store time of the first entry's record
    end_ms: int  # store time of the last entry's record
    begin_offset: int  # log offset of the first entry's record
    end_offset: int  # log offset of the last entry's record
    slots_used: int  # slots with at least one entry
    next_entry: int  # number of the next entry; entries count from 1, because a slot of 0 is empty


class HashedKeys(NamedTuple):
    """Hashed keys of records, in log order."""

    keys: bytes  # `INDEX_KEY` by `INDEX_KEY`
    store_times: list[tuple[int, int]]  # of their records, as runs `(keys, store time)`; none is empty

    @property
    def key_count(self) -> int:
        return len(self.keys) // INDEX_KEY.size

    def offset(self, number: int) -> int:
        """Return the log offset of the record of a key."""
        return int(INDEX_KEY.unpack_from(self.keys, INDEX_KEY.size * number)[1])

    def part(self, start: int, stop: int) -> HashedKeys:
        """Return the keys from number `start` to `stop`."""
        store_times: list[tuple[int, int]] = []
        first = 0
        for count, store_ms in self.store_times:
            taken = min(stop, first + count) - max(start, first)
            if taken > 0:
                store_times.append((taken, store_ms))
            first += count
        return HashedKeys(self.keys[INDEX_KEY.size * start : INDEX_KEY.size * stop], store_times)


class ScannedKeys(NamedTuple):
    """Keys of adjacent records that a start has read, so that the index need not read them again."""

    start: int  # log offset of the first record
    end: int  # of the last record
    keys: HashedKeys


class IndexEntry(NamedTuple):
    """An entry of a chain: offset and store time of a record, the latter in whole seconds."""

    number: int
    hashed: int
    offset: int
    ms: int


class IndexedLog(Protocol):
    """The part of the commit log's interface that an index file needs to check its entries."""

    start: int

    def store_ms(self, offset: int) -> int | None:
        """Return the store time of the record at `offset`, or None without a record."""
        ...

    def key_hashes(self, offset: int) -> list[int]:
        """Return the hashes of all keys of the record at `offset`; empty without a record."""
        ...


def log_confirms(log: IndexedLog, offset: int, hashes: list[int], *, all_of_them: bool = False) -> bool:
    """Return whether the record at `offset` has keys with these hashes; a removed record counts as confirmed."""
    if offset < log.start:
        return True
    recorded = log.key_hashes(offset)
    return recorded == hashes if all_of_them else set(hashes) <= set(recorded)


class IndexCorrupt(Exception):
    """An index file is damaged; the message says how. Stays inside the store."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class IndexFile:
    """One existing file; `header` says how many entries are valid."""

    def __init__(self, files: OpenFiles, path: str, sizes: IndexSizes) -> None:
        self._files = files  # bounds the number of open files
        self._disk = files.disk  # entries and slots are read and written in place
        self.path = path  # also the key of its open handle
        self.name = path.rpartition("/")[2]  # Java's time stamp of its creation
        self.sizes = sizes  # slots and entries of the file
        # Valid part of the file; on the disk after each `append`.
        self.header = IndexHeader(0, 0, 0, 0, 0, 1)
        self._slots: IndexSlots | None = None  # None: on the disk, or to be rebuilt from the entries
        # The slots of the disk match the entries.
        self.slots_on_disk = True
        # The disk has slots from before a crash, which pages of zeros must overwrite.
        self._slots_are_stale = False

    @property
    def room(self) -> int:
        return self.sizes.entries - self.header.next_entry

    # --- writing ---

    def append(self, hashed: HashedKeys) -> None:
        """Add entries, at least one and at most `room`. After an OSError none of them counts, and the call can be repeated."""
        begin_ms, end_ms, begin_offset, _, used_slots, first = self.header
        if first <= 1:
            begin_offset, begin_ms = hashed.offset(0), hashed.store_times[0][1]
        count, slots = hashed.key_count, self.slots()
        entries, newly_used = slots.link(hashed.keys, _seconds(hashed.store_times, begin_ms), first)
        if len(entries) < ENTRY_SIZE * count:
            linked = len(entries) // ENTRY_SIZE
            slot = INDEX_KEY.unpack_from(hashed.keys, INDEX_KEY.size * linked)[0] % self.sizes.slots
            self._slots = None  # they name entries that are not written
            raise IndexCorrupt(self.path, f"slot {slot} names entry {slots.newest(slot)} of {first + linked}")
        end_offset, last_ms = hashed.offset(count - 1), hashed.store_times[-1][1]
        header = IndexHeader(
            begin_ms, max(end_ms, last_ms), begin_offset, end_offset, used_slots + newly_used, first + count
        )
        self.slots_on_disk = False
        try:
            handle = self._files.get(self.path)
            self._disk.pwrite(handle, entries, self.sizes.entries_at + ENTRY_SIZE * first)
            self._disk.pwrite(handle, HEADER.pack(*header), 0)
        except OSError:
            self._slots = None  # they name entries that do not count
            raise
        self.header = header

    def write_slots(self) -> None:
        """Write the slots, unless they are on the disk."""
        if self.slots_on_disk:
            return
        slots, size = self.slots(), SLOT_SIZE * self.sizes.slots
        handle = self._files.get(self.path)
        for position in range(0, size, PAGE):
            page = slots.dump(position, PAGE)
            if page.strip(b"\0") or self._has_slots(handle, position, len(page)):
                self._disk.pwrite(handle, page, HEADER_SIZE + position)
        self.slots_on_disk, self._slots_are_stale = True, False

    def _has_slots(self, handle: int, position: int, size: int) -> bool:
        """Return whether the disk has slots from before a crash where there are none now."""
        return self._slots_are_stale and bool(self._disk.pread(handle, size, HEADER_SIZE + position).strip(b"\0"))

    def forget_slots(self) -> None:
        """Free the memory of the slots, which must be on the disk."""
        self._slots = None

    def slots(self) -> IndexSlots:
        """Return the slots in memory: read from the disk, or rebuilt from the entries if the disk does not have them."""
        if self._slots is None:
            slots = index_slots(self.sizes.slots)
            if not self.slots_on_disk:
                self._fill_from_entries(slots)
            elif self.header.next_entry > 1:
                self._fill_from_disk(slots)
            self._slots = slots
        return self._slots

    def _fill_from_disk(self, slots: IndexSlots) -> None:
        size, position = SLOT_SIZE * self.sizes.slots, 0
        handle = self._files.get(self.path)
        while position < size:
            data = self._disk.pread(handle, min(_READ_AT_ONCE, size - position), HEADER_SIZE + position)
            if len(data) % SLOT_SIZE or not data:
                raise IndexCorrupt(self.path, f"it ends before slot {(position + len(data)) // SLOT_SIZE}")
            slots.load(position, data)
            position += len(data)

    def _fill_from_entries(self, slots: IndexSlots) -> None:
        used_slots = 0
        number = 1
        handle = self._files.get(self.path)
        while number < self.header.next_entry:
            count = min(CHUNK_ENTRIES, self.header.next_entry - number)
            data = self._disk.pread(handle, ENTRY_SIZE * count, self.sizes.entries_at + ENTRY_SIZE * number)
            if len(data) < ENTRY_SIZE * count:
                raise IndexCorrupt(self.path, f"it ends before entry {number + count}")
            continued = slots.continue_chains(data, number, EntryBounds())
            if continued.length < count:
                raise IndexCorrupt(
                    self.path, f"entry {number + continued.length} does not continue the chain of its slot"
                )
            number += count
            used_slots += continued.slots_used
        self.header = self.header._replace(slots_used=used_slots)

    # --- reading ---

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return the hash, offset, seconds and next older number of an entry."""
        data = self._disk.pread(self._files.get(self.path), ENTRY_SIZE, self.sizes.entries_at + ENTRY_SIZE * number)
        if len(data) < ENTRY_SIZE:
            raise IndexCorrupt(self.path, f"it ends before entry {number}")
        return ENTRY.unpack(data)

    def has_entry(self, value: int, number: int, offset: int) -> bool:
        """Return whether entry `number` belongs to the chain of a hash and to the record at `offset`."""
        if not 0 < number < self.header.next_entry:
            return False
        entry_hash, entry_offset, _, _ = self.entry(number)
        return entry_offset == offset and entry_hash % self.sizes.slots == value % self.sizes.slots

    def newest(self, value: int) -> int:
        """Return the number of the newest entry in the chain of a hash, 0 for none."""
        slot = value % self.sizes.slots
        if self._slots is not None or not self.slots_on_disk:
            number = self.slots().newest(slot)
        else:
            data = self._disk.pread(self._files.get(self.path), SLOT_SIZE, HEADER_SIZE + SLOT_SIZE * slot)
            if len(data) < SLOT_SIZE:
                raise IndexCorrupt(self.path, f"it ends before slot {slot}")
            number = SLOT.unpack(data)[0]
        if not 0 <= number < self.header.next_entry:
            raise IndexCorrupt(self.path, f"slot {slot} names entry {number} of {self.header.next_entry}")
        return number

    def chain(self, value: int, number: int) -> Iterator[IndexEntry]:
        """Yield the chain of a hash from entry `number` on, newest first, including entries of other hashes that share it."""
        begin_ms, _, begin_offset, end_offset, _, _ = self.header
        slot = value % self.sizes.slots
        while number:
            entry_hash, offset, seconds, older = self.entry(number)
            if entry_hash % self.sizes.slots != slot or entry_hash < 0 or not begin_offset <= offset <= end_offset:
                raise IndexCorrupt(self.path, f"entry {number} does not belong to slot {slot}")
            # Java counts the seconds of the first entry from the end of the previous file; its record was stored at `begin_ms`.
            yield IndexEntry(number, entry_hash, offset, begin_ms + (1000 * seconds if number > 1 else 0))
            if not 0 <= older < number:
                raise IndexCorrupt(self.path, f"entry {number} says that {older} is older")
            number = older

    # --- opening ---

    def open(self, store_ms: Callable[[int], int | None]) -> None:
        """Read the header of a file whose writer stopped in order.

        Args:
            store_ms: returns the store time of a record, None if the log no longer has it.

        Raises:
            IndexCorrupt: the header does not match the entries.
        """
        self._read_header()
        _, _, begin_offset, end_offset, used_slots, count = self.header
        if not 1 <= count <= self.sizes.entries or not 0 <= used_slots <= min(count, self.sizes.slots):
            raise IndexCorrupt(self.path, f"{count} entries in {used_slots} slots")
        if begin_offset > end_offset:
            raise IndexCorrupt(self.path, "it ends before it begins")
        if count > 1:
            self._verify_begin(store_ms)
            if self.entry(count - 1)[1] != end_offset:
                raise IndexCorrupt(self.path, f"its last entry is not for the record at {end_offset}")

    def recover(self, limit: int, log: IndexedLog) -> bool:
        """After a crash, accept the entries of records below `limit`, which were flushed; return whether some of them are damaged.

        A torn write leaves any mix of old and new bytes, so an entry may name an offset below `limit` that is not its own. Of the
        header only the beginning is used. Nothing is written before `write_recovered`.
        """
        self._read_header()
        self._slots = index_slots(self.sizes.slots)
        low, is_broken = self._scan_valid_entries(self._slots, limit, log)
        valid = low
        while low > 1:
            start = self._first_of_record(low)
            hashes = [self.entry(number)[0] for number in range(start, low)]
            if log_confirms(log, self.entry(start)[1], hashes, all_of_them=True):
                break
            low, is_broken = start, True
        self.header = self.header._replace(next_entry=low)
        self.slots_on_disk, self._slots_are_stale = False, True
        if low < valid:
            self._slots = None
        if low > 1:
            self._verify_begin(log.store_ms)
            _, end_offset, seconds, _ = self.entry(low - 1)
            end_ms = log.store_ms(end_offset) or self.header.begin_ms + 1000 * seconds + 999
            self.header = self.header._replace(end_offset=end_offset, end_ms=end_ms)
            self.slots()
        return is_broken

    def write_recovered(self) -> None:
        """Write the result of `recover`, and clear the rest, which could pass for entries at the next recovery."""
        handle = self._files.get(self.path)
        self._disk.truncate(handle, self.sizes.entries_at + ENTRY_SIZE * self.header.next_entry)
        self._disk.truncate(handle, self.sizes.file_size)
        self._disk.pwrite(handle, HEADER.pack(*self.header), 0)
        self._disk.fsync(handle)

    def _scan_valid_entries(self, slots: IndexSlots, limit: int, log: IndexedLog) -> tuple[int, bool]:
        """Find the first entry that cannot belong to a record below `limit`; fill `slots` with the entries before it.

        Returns:
            Its number, and whether it, or an entry after it in the same chunk, claims to be flushed.
        """
        number = 1
        bounds = EntryBounds(offset_end=limit, allows_zeros=log_confirms(log, 0, [0]))
        handle = self._files.get(self.path)
        self.header = self.header._replace(slots_used=0)
        while number < self.sizes.entries:
            count = min(CHUNK_ENTRIES, self.sizes.entries - number)
            data = self._disk.pread(handle, ENTRY_SIZE * count, self.sizes.entries_at + ENTRY_SIZE * number)
            if len(data) < ENTRY_SIZE * count:
                raise IndexCorrupt(self.path, f"it ends before entry {number + count}")
            continued = slots.continue_chains(data, number, bounds)
            number += continued.length
            self.header = self.header._replace(slots_used=self.header.slots_used + continued.slots_used)
            if continued.length < count:
                return number, _has_flushed_entry(data[ENTRY_SIZE * continued.length :], limit)
            bounds = bounds._replace(last_offset=continued.last_offset)
        return number, False

    def _first_of_record(self, stop: int) -> int:
        """Return the number of the first entry of the record that the entry before `stop` belongs to."""
        start, offset = stop - 1, self.entry(stop - 1)[1]
        while start > 1 and self.entry(start - 1)[1] == offset:
            start -= 1
        return start

    def has_flushed_entries(self, limit: int, log: IndexedLog) -> bool:
        """After a crash, return whether this file has entries of records below `limit`: then it and all older files were flushed.

        Raises:
            IndexCorrupt: it seems to have some, but they are damaged.
        """
        self._verify_size()
        value, offset, seconds, older = self.entry(1)
        if offset >= limit or (not (value or offset or seconds or older) and not log_confirms(log, 0, [0])):
            return False
        if offset < 0 or not log_confirms(log, offset, [value]):
            raise IndexCorrupt(
                self.path, f"its first entry is for a record at {offset} that does not exist, or does not have its key"
            )
        return True

    def last_ms(self) -> int:
        """Return the store time of the newest record, as the header has it."""
        self._read_header()
        return self.header.end_ms

    def _verify_size(self) -> None:
        size = self._disk.size(self.path)
        if size != self.sizes.file_size:
            raise IndexCorrupt(
                self.path,
                f"it has {size} bytes, a file with {self.sizes.slots} slots (maxHashSlotNum) and {self.sizes.entries}"
                f" entries (maxIndexNum) has {self.sizes.file_size}",
            )

    def _read_header(self) -> None:
        self._verify_size()
        self.header = IndexHeader(*HEADER.unpack(self._disk.pread(self._files.get(self.path), HEADER_SIZE, 0)))

    def _verify_begin(self, store_ms: Callable[[int], int | None]) -> None:
        begin_ms, _, begin_offset, *_ = self.header
        if self.entry(1)[1] != begin_offset:
            raise IndexCorrupt(self.path, f"its first entry is not for the record at {begin_offset}")
        stored = store_ms(begin_offset)
        if stored is not None and stored != begin_ms:
            raise IndexCorrupt(
                self.path, f"it begins at {begin_ms}, the record at {begin_offset} was stored at {stored}"
            )


def _has_flushed_entry(data: bytes, limit: int) -> bool:
    """Return whether one of these entries, which begin with an invalid one, claims to be flushed."""
    if not data.strip(b"\0"):
        return False
    return any(entry[1] < limit and any(entry) for entry in ENTRY.iter_unpack(data))


def _seconds(store_times: list[tuple[int, int]], begin_ms: int) -> list[tuple[int, int]]:
    """Return runs of store times as runs of seconds since the begin of a file."""
    runs: list[tuple[int, int]] = []
    for count, store_ms in store_times:
        seconds = min(max((store_ms - begin_ms) // 1000, 0), SECONDS_MAX)
        if runs and runs[-1][1] == seconds:
            runs[-1] = (runs[-1][0] + count, seconds)
        else:
            runs.append((count, seconds))
    return runs
