"""The key index's part of `check`: names, headers, chains, and whether the records have the keys of their entries.

All entries of a file are read in order, so the chain of each slot can be followed as it grew: the memory of one file's slots is
enough. Records are read for a sample of the entries only. [no counterpart in Java]
"""

from __future__ import annotations

from collections.abc import Iterator

from ariane.kernels.implementation import index_slots
from ariane.kernels.index_slots import ENTRY, ENTRY_SIZE, SLOT_SIZE, EntryBounds
from ariane.kernels.scanned_record import NotARecord
from ariane.store.check.check_report import NOTE, WARNING, CheckFinding
from ariane.store.disk.files import Disk, OpenFiles
from ariane.store.disk.segments import Segments
from ariane.store.index.index_builder import hash_record_keys
from ariane.store.index.index_file import (
    CHUNK_ENTRIES,
    HEADER,
    HEADER_SIZE,
    SLOT,
    IndexHeader,
    IndexSizes,
)
from ariane.store.index.key_index import NAME_DIGITS
from ariane.store.log.corrupt_ranges import is_replacement
from ariane.store.log.record_scanner import read_record

SAMPLE = 1000  # entries of a file whose records are read
SLOTS_AT_ONCE = 1 << 20  # bytes of slots that are compared at once
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
        self._slots = index_slots(sizes.slots)

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
        bounds, step = EntryBounds(begin, end + 1), max(count // SAMPLE, 1)
        for first in range(1, count, CHUNK_ENTRIES):
            size = min(CHUNK_ENTRIES, count - first)
            data = self._disk.pread(self._handle, ENTRY_SIZE * size, self._sizes.entries_at + ENTRY_SIZE * first)
            continued = self._slots.continue_chains(data, first, bounds)
            bounds = bounds._replace(last_offset=continued.last_offset)
            stop = first + continued.length
            sample = sorted({*range(-(-first // step) * step, stop, step), *range(max(first, count - 1), stop)})
            for number in sample:
                value, offset, _, _ = ENTRY.unpack_from(data, ENTRY_SIZE * (number - first))
                problem = self._record_fault(value, offset)
                if problem:
                    return self._position(number), f"entry {number} {problem}"
            if continued.length < size:
                entry = ENTRY.unpack_from(data, ENTRY_SIZE * continued.length)
                return self._position(stop), f"entry {stop} {self._chain_fault(entry, bounds.last_offset)}"
        last = bounds.last_offset
        return None if last == end else (0, f"its header ends at offset {end}, its last entry is for {last}")

    def _position(self, number: int) -> int:
        return self._sizes.entries_at + ENTRY_SIZE * number

    def _chain_fault(self, entry: tuple[int, int, int, int], last: int) -> str:
        """Return why an entry cannot follow one for the record at `last`."""
        value, offset, _, older = entry
        end, slot = self._header.end_offset, value % self._sizes.slots
        if not last <= offset <= end:
            return f"is for a record at {offset}, the previous one for {last}, the last one for {end}"
        return f"names {older} as the next older entry of slot {slot}, expected {self._slots.newest(slot)}"

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
        size = SLOT_SIZE * self._sizes.slots
        for first in range(0, size, SLOTS_AT_ONCE):
            expected = self._slots.dump(first, SLOTS_AT_ONCE)
            stored = self._disk.pread(self._handle, len(expected), HEADER_SIZE + first)
            if stored != expected:
                pairs = zip(SLOT.iter_unpack(expected), SLOT.iter_unpack(stored), strict=True)
                number, newest, actual = next(
                    (number, newest, actual) for number, ((newest,), (actual,)) in enumerate(pairs) if newest != actual
                )
                position = HEADER_SIZE + first + SLOT_SIZE * number
                return position, f"slot {first // SLOT_SIZE + number} names entry {actual}, the newest is {newest}"
        return None
