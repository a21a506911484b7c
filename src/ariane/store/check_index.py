"""The key index's part of `check`: names, headers, chains, and whether the records have the keys of their entries.

All entries of a file are read in order, so the chain of each slot can be followed as it grew: the memory of one file's slots is
enough. Records are read for a sample of the entries only. [no counterpart in Java]
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from ariane.store.check_report import NOTE, WARNING, CheckFinding
from ariane.store.corrupt_ranges import is_replacement
from ariane.store.files import Disk, OpenFiles
from ariane.store.index import NAME_DIGITS
from ariane.store.index_builder import hash_record_keys
from ariane.store.index_file import (
    CHUNK_ENTRIES,
    ENTRY,
    ENTRY_SIZE,
    HEADER,
    HEADER_SIZE,
    SLOT_SIZE,
    IndexHeader,
    IndexSizes,
    swap_byte_order,
)
from ariane.store.record_scanner import NotARecord, read_record
from ariane.store.segments import Segments

SAMPLE = 1000  # entries of a file whose records are read
SLOTS_AT_ONCE = 1 << 18
_FIX = "remove the file while no broker runs: it is rebuilt from the log"


def check_index(
    files: OpenFiles, root: str, log: Segments, log_end: int, sizes: IndexSizes, *, is_running: bool
) -> Iterator[CheckFinding]:
    """Yield findings about the files in `root`/index; only the first of each file, since the others mostly follow from it."""
    directory, disk = f"{root}/index", files.disk
    if disk.size(directory) is None:
        return
    names = disk.listdir(directory)
    previous_end = 0
    for name in names:
        path = f"{directory}/{name}"
        if len(name) != NAME_DIGITS or not name.isdigit():
            yield CheckFinding(WARNING, path, 0, "is not an index file", "move it out of the store directory")
            continue
        data, size = disk.pread(files.get(path), HEADER_SIZE, 0), disk.size(path) or 0
        fault = _header_fault(data, size, previous_end)
        if fault:
            yield CheckFinding(WARNING, path, 0, fault, _FIX)
            continue
        header = IndexHeader(*HEADER.unpack(data))
        previous_end = max(previous_end, header.begin_offset)
        if header.next_entry <= 1:
            continue
        if size != sizes.file_size:
            problem = (
                f"has {size} bytes, not the {sizes.file_size} of {sizes.slots} slots and {sizes.entries} entries:"
                " its entries were not checked"
            )
            yield CheckFinding(NOTE, path, 0, problem, "")
            continue
        # The slots of the file that is being written are in the memory of the broker.
        file_check = _FileCheck(
            files=files, path=path, header=header, sizes=sizes, log=log, log_end=log_end, is_running=is_running
        )
        first_fault = file_check.fault(with_slots=not (is_running and name == names[-1]))
        if first_fault is not None:
            yield CheckFinding(WARNING, path, first_fault[0], first_fault[1], _FIX)


def index_files_of(disk: Disk, root: str) -> int:
    """Return the number of index files."""
    directory = f"{root}/index"
    names = [] if disk.size(directory) is None else disk.listdir(directory)
    return sum(len(name) == NAME_DIGITS and name.isdigit() for name in names)


def _header_fault(data: bytes, size: int, previous_end: int) -> str:
    if len(data) < HEADER_SIZE:
        return f"has {len(data)} bytes, less than a header"
    begin_ms, end_ms, begin, end, slots, count = HEADER.unpack(data)
    if not any(data):
        return ""  # just created
    if begin_ms > end_ms or begin > end:
        return f"its header ends ({end_ms} ms, offset {end}) before it begins ({begin_ms} ms, offset {begin})"
    if count < 1 or slots < 0 or slots >= max(count, 1) or (count - 1) * ENTRY_SIZE > size:
        return f"its header counts {count - 1} entries in {slots} slots, in a file of {size} bytes"
    if begin < previous_end:
        return f"it begins at offset {begin}, before the previous file ({previous_end})"
    return ""


class _FileCheck:
    """The entries and slots of one file."""

    def __init__(
        self,
        *,
        files: OpenFiles,
        path: str,
        header: IndexHeader,
        sizes: IndexSizes,
        log: Segments,
        log_end: int,
        is_running: bool,
    ) -> None:
        # From the cache of open files.
        self._disk, self._handle = files.disk, files.get(path)  # reads; a check never writes
        # Slots and entries of each file.
        self._header, self._sizes = header, sizes  # how many entries and slots are valid
        # A growing log has more records than `log_end` says by the time an entry is checked.
        self._log, self._log_end, self._is_running = log, log_end, is_running
        # Newest entry of each slot, as far as the entries were read.
        self._slots = array("i", bytes(SLOT_SIZE * sizes.slots))

    def fault(self, *, with_slots: bool) -> tuple[int, str] | None:
        """Return the byte and the description of the first fault; None if there is none."""
        if self._header.next_entry > self._sizes.entries:
            return (
                0,
                f"its header counts {self._header.next_entry - 1} entries, it has room for {self._sizes.entries - 1}",
            )
        return self._entry_fault() or (self._slot_fault() if with_slots else None)

    def _entry_fault(self) -> tuple[int, str] | None:
        _, _, begin, end, _, count = self._header
        slots, slot_count = self._slots, self._sizes.slots
        last, step = begin, max(count // SAMPLE, 1)
        for first in range(1, count, CHUNK_ENTRIES):
            position = self._sizes.entries_at + ENTRY_SIZE * first
            data = self._disk.pread(self._handle, ENTRY_SIZE * min(CHUNK_ENTRIES, count - first), position)
            for number, (value, offset, _, older) in enumerate(ENTRY.iter_unpack(data), first):
                slot = value % slot_count
                problem = ""
                if not last <= offset <= end:
                    problem = f"is for a record at {offset}, the previous one for {last}, the last one for {end}"
                elif value < 0 or older != slots[slot]:
                    problem = f"names {older} as the next older entry of slot {slot}, expected {slots[slot]}"
                elif number % step == 0 or number == count - 1:
                    problem = self._record_fault(value, offset)
                if problem:
                    return self._sizes.entries_at + ENTRY_SIZE * number, f"entry {number} {problem}"
                slots[slot], last = number, offset
        return None if last == end else (0, f"its header ends at offset {end}, its last entry is for {last}")

    def _record_fault(self, value: int, offset: int) -> str:
        if offset < self._log.start:
            return ""  # removed from the log
        if offset >= self._log_end:  # a growing log contains it by now
            return "" if self._is_running else f"is for a record at {offset}, the log ends at {self._log_end}"
        try:
            record, _ = read_record(self._log, offset)
        except NotARecord as fault:
            return f"is for {offset}, where no record begins: {fault}"
        if value in hash_record_keys(record) or is_replacement(record):
            return ""
        return f"is for a key with the hash {value}, which the record at {offset} does not have"

    def _slot_fault(self) -> tuple[int, str] | None:
        for first in range(0, self._sizes.slots, SLOTS_AT_ONCE):
            expected = self._slots[first : first + SLOTS_AT_ONCE]
            position = HEADER_SIZE + SLOT_SIZE * first
            stored = array("i", swap_byte_order(self._disk.pread(self._handle, SLOT_SIZE * len(expected), position)))
            if stored != expected:
                number = next(number for number, newest in enumerate(expected) if stored[number] != newest)
                problem = f"slot {first + number} names entry {stored[number]}, the newest is {expected[number]}"
                return position + SLOT_SIZE * number, problem
        return None
