"""One file of the key index: a hash table whose chains run from the newest entry of a slot to the oldest.

    header 40 B   begin time i64 | end time i64 | begin offset i64 | end offset i64 | slots in use i32 | next entry i32
    slots         i32 each: number of the newest entry whose hash belongs to the slot, 0 for none
    entries       hash i32 | commit log offset i64 | seconds since begin time i32 | number of the next older entry i32

Entry 0 is never used, so the next entry of an empty file is 1. Times are store times in ms, offsets those of records.

Entries and header are written immediately. The slots can be computed from the entries: they stay in memory while a file grows, and
are written when it is full or the store is closed; after a crash they are rebuilt from the entries. [IndexFile]
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, Protocol

from ariane.kernels.key_hashes import Hashed
from ariane.store.files import OpenFiles

HEADER = Struct(">qqqqii")
SLOT = Struct(">i")
ENTRY = Struct(">iqii")
HEADER_SIZE, SLOT_SIZE, ENTRY_SIZE = 40, 4, 20
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
        self._slots: memoryview | None = None  # native i32; None: on the disk, or to be rebuilt from the entries
        # The slots of the disk match the entries.
        self.slots_on_disk = True
        # The disk has slots from before a crash, which pages of zeros must overwrite.
        self._slots_are_stale = False

    @property
    def room(self) -> int:
        return self.sizes.entries - self.header.next_entry

    # --- writing ---

    def append(self, hashed: Sequence[Hashed]) -> None:
        """Add entries, at most `room`. After an OSError none of them counts, and the call can be repeated."""
        begin_ms, end_ms, begin_offset, _, used_slots, count = self.header
        if count <= 1:
            _, begin_offset, begin_ms = hashed[0]
        slots = self.slots()
        slot_count = self.sizes.slots
        pack = ENTRY.pack
        first, seconds, seconds_for = count, 0, -1
        entries: list[bytes] = []
        for value, offset, store_ms in hashed:
            if store_ms != seconds_for:
                seconds_for = store_ms
                seconds = min(max((store_ms - begin_ms) // 1000, 0), SECONDS_MAX)
            slot = value % slot_count
            older = slots[slot]
            if not older:
                used_slots += 1
            elif not 0 < older < count:
                self._slots = None
                raise IndexCorrupt(self.path, f"slot {slot} names entry {older} of {count}")
            entries.append(pack(value, offset, seconds, older))
            slots[slot] = count
            count += 1
        _, end_offset, last_ms = hashed[-1]
        header = IndexHeader(begin_ms, max(end_ms, last_ms), begin_offset, end_offset, used_slots, count)
        self.slots_on_disk = False
        try:
            handle = self._files.get(self.path)
            self._disk.pwrite(handle, b"".join(entries), self.sizes.entries_at + ENTRY_SIZE * first)
            self._disk.pwrite(handle, HEADER.pack(*header), 0)
        except OSError:
            self._slots = None  # they name entries that do not count
            raise
        self.header = header

    def write_slots(self) -> None:
        """Write the slots, unless they are on the disk."""
        if self.slots_on_disk:
            return
        data = self.slots().cast("B")
        handle = self._files.get(self.path)
        for position in range(0, len(data), PAGE):
            page = bytes(data[position : position + PAGE])
            if page.strip(b"\0") or self._has_slots(handle, position, len(page)):
                self._disk.pwrite(handle, swap_byte_order(page), HEADER_SIZE + position)
        self.slots_on_disk, self._slots_are_stale = True, False

    def _has_slots(self, handle: int, position: int, size: int) -> bool:
        """Return whether the disk has slots from before a crash where there are none now."""
        return self._slots_are_stale and bool(self._disk.pread(handle, size, HEADER_SIZE + position).strip(b"\0"))

    def forget_slots(self) -> None:
        """Free the memory of the slots, which must be on the disk."""
        self._slots = None

    def slots(self) -> memoryview:
        """Return the slots in memory: read from the disk, or rebuilt from the entries if the disk does not have them."""
        if self._slots is None:
            # Zeros from the operating system, so that untouched pages take no memory.
            slots = memoryview(bytearray(SLOT_SIZE * self.sizes.slots)).cast("i")
            if not self.slots_on_disk:
                self._fill_from_entries(slots)
            elif self.header.next_entry > 1:
                self._fill_from_disk(slots)
            self._slots = slots
        return self._slots

    def _fill_from_disk(self, slots: memoryview) -> None:
        size, target, position = SLOT_SIZE * self.sizes.slots, slots.cast("B"), 0
        handle = self._files.get(self.path)
        while position < size:
            data = self._disk.pread(handle, min(_READ_AT_ONCE, size - position), HEADER_SIZE + position)
            if data.strip(b"\0"):
                target[position : position + len(data)] = swap_byte_order(data)
            position += max(len(data), 1)

    def _fill_from_entries(self, slots: memoryview) -> None:
        used_slots = 0
        number, slot_count = 1, self.sizes.slots
        handle = self._files.get(self.path)
        while number < self.header.next_entry:
            count = min(CHUNK_ENTRIES, self.header.next_entry - number)
            data = self._disk.pread(handle, ENTRY_SIZE * count, self.sizes.entries_at + ENTRY_SIZE * number)
            if len(data) < ENTRY_SIZE * count:
                raise IndexCorrupt(self.path, f"it ends before entry {number + count}")
            for value, _, _, older in ENTRY.iter_unpack(data):
                if value < 0 or slots[value % slot_count] != older:
                    raise IndexCorrupt(self.path, f"entry {number} does not continue the chain of its slot")
                slots[value % slot_count] = number
                number += 1
                if not older:
                    used_slots += 1
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
            number = int(self.slots()[slot])
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
        self._slots = memoryview(bytearray(SLOT_SIZE * self.sizes.slots)).cast("i")
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

    def _scan_valid_entries(self, slots: memoryview, limit: int, log: IndexedLog) -> tuple[int, bool]:
        """Find the first entry that cannot belong to a record below `limit`; fill `slots` with the entries before it.

        Returns:
            Its number, and whether it, or an entry after it in the same chunk, claims to be flushed.
        """
        slot_count, number, last, used_slots = self.sizes.slots, 1, 0, 0
        handle = self._files.get(self.path)
        while number < self.sizes.entries:
            count = min(CHUNK_ENTRIES, self.sizes.entries - number)
            data = self._disk.pread(handle, ENTRY_SIZE * count, self.sizes.entries_at + ENTRY_SIZE * number)
            if len(data) < ENTRY_SIZE * count:
                raise IndexCorrupt(self.path, f"it ends before entry {number + count}")
            for entry_number, (value, offset, seconds, older) in enumerate(ENTRY.iter_unpack(data)):
                slot = value % slot_count
                is_blank = not (value or offset or seconds or older) and not log_confirms(log, 0, [0])
                if value < 0 or not last <= offset < limit or slots[slot] != older or is_blank:
                    self.header = self.header._replace(slots_used=used_slots)
                    return number, _has_flushed_entry(data[ENTRY_SIZE * entry_number :], limit)
                slots[slot] = number
                last = offset
                used_slots += not older
                number += 1
        self.header = self.header._replace(slots_used=used_slots)
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


def swap_byte_order(data: bytes) -> bytes:
    """Convert slots between the byte order of the machine and that of the file."""
    numbers = array("i")
    numbers.frombytes(data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()
