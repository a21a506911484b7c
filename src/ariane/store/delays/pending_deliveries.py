"""Pending deliveries in order of their due times: the newest in memory, the others in sorted runs on the disk.

    timers/<20 digits>   a run, written once, removed when it is exhausted:

    0   8 B  b"ariane01"
    8   u32  entries
    12  u32  CRC-32 of the entries
    16  i64  smallest number among them
    24  entries of 16 bytes, ascending:  due ms i64 | number i64

`number` is the number of the entry in the timer queue; the record is found through it. A run is read in blocks as its entries come
due, so a million pending deliveries cost a few hundred KB of memory. An entry may be in two runs after a crash: equal entries meet
at the head and count once. [TimerWheel, TimerLog of 5.x]
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from struct import Struct
from sys import byteorder
from typing import NamedTuple

from ariane.store.disk.files import OpenFiles, read_whole

Key = tuple[int, int]  # due ms, number

RUN_MIN = 16_384  # entries in memory that make a run: few enough to be sorted in a few ms
RUN_MAX = 65_536  # entries of one run; more wait for the next flush
BLOCK = 256  # entries per read of a run
MERGE_THRESHOLD = 64  # with this many runs, nearly exhausted ones are merged into a new one
MERGE_ENTRIES_MAX = RUN_MIN // 4

_MARK = b"ariane01"
_HEAD = Struct(">8sIIq")
_ENTRY_SIZE = 16
LOWEST_KEY: Key = (-(1 << 62), -1)


class CorruptRun(Exception):
    """A run is missing or damaged. Stays inside the store: the pending entries are read from the queue again."""


class DeliveryRun:
    """A file of entries, read up to some position."""

    def __init__(self, files: OpenFiles, path: str, count: int, lowest: int) -> None:
        self.path = path  # removed once all entries are delivered
        self.count = count  # entries in the file
        # Smallest number: shows without a read whether the run has entries below some number.
        self.lowest = lowest
        self._files = files  # bounds the number of open files
        self._position = 0  # entries before it are delivered
        # Entries of one read, and the position of the first of them.
        self._block: list[Key] = []
        self._block_at = 0  # number of the first entry in `_block`

    @property
    def remaining(self) -> int:
        return self.count - self._position

    def head(self) -> Key | None:
        index = self._position - self._block_at
        if index < len(self._block):
            return self._block[index]
        if self._position >= self.count:
            return None
        self._block, self._block_at = self._read(self._position, BLOCK), self._position
        return self._block[0]

    def advance(self) -> None:
        self._position += 1

    def skip_to(self, done: Key) -> None:
        """Skip all entries at or before `done`."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self._read(middle, 1)[0] <= done:
                low = middle + 1
            else:
                high = middle
        self._position, self._block, self._block_at = low, [], 0

    def iter_remaining(self) -> Iterator[Key]:
        number = self._position
        while number < self.count:
            block = self._read(number, RUN_MIN)
            yield from block
            number += len(block)

    def _read(self, number: int, count: int) -> list[Key]:
        count = min(count, self.count - number)
        handle = self._files.get(self.path)
        data = self._files.disk.pread(handle, count * _ENTRY_SIZE, _HEAD.size + number * _ENTRY_SIZE)
        if len(data) < count * _ENTRY_SIZE:
            raise OSError(5, "a run of timers was truncated", self.path)
        return _decode_entries(data)


class WrittenRun(NamedTuple):
    """A run that is being written."""

    number: int  # part of the file's name
    path: str
    content: bytes  # encoded entries, for a worker thread
    keys: list[Key]  # the same entries; the first is the run's head once it is durable
    merged: list[int]  # runs whose remaining entries it contains
    up_to: int  # it contains the entries in memory below this number


class PendingDeliveries:
    """All pending entries. `head` and `advance` go through them in order; `begin_write` and `end_write` move them to the disk."""

    def __init__(self, files: OpenFiles, directory: str) -> None:
        self.directory = directory  # of the runs
        self.runs: dict[int, DeliveryRun] = {}  # by number
        # Never reused, so that a leftover file is not read as a newer run.
        self.next_run = 0
        self._files = files  # bounds the number of open files
        self._disk = files.disk  # lists and removes runs
        # Heap of the entries that are in no run.
        self._in_memory: list[Key] = []
        # Heap of the next entry of each run.
        self._heads: list[tuple[Key, int]] = []
        # Greatest delivered entry: an equal one in a second run is a duplicate.
        self._last = LOWEST_KEY
        # The run in flight; its entries stay in memory until it is durable.
        self._writing: WrittenRun | None = None

    def __len__(self) -> int:
        """Return the number of entries; those in two runs count twice."""
        return len(self._in_memory) + sum(run.remaining for run in self.runs.values())

    # --- in order ---

    def push(self, key: Key) -> None:
        heappush(self._in_memory, key)

    def head(self) -> Key | None:
        """Return the entry that is due first; None if there is none."""
        while True:
            young = self._in_memory[0] if self._in_memory else None
            old = self._heads[0][0] if self._heads else None
            key = young if old is None or (young is not None and young <= old) else old
            if key is None or key != self._last:
                return key
            self._drop(key)

    def advance(self, key: Key) -> None:
        """Remove `key`, which is the head."""
        self._drop(key)
        self._last = max(self._last, key)

    @property
    def last(self) -> Key:
        """Greatest entry that was removed by `advance`."""
        return self._last

    def _drop(self, key: Key) -> None:
        if self._in_memory and self._in_memory[0] == key:
            heappop(self._in_memory)
            return
        _, number = heappop(self._heads)
        run = self.runs[number]
        run.advance()
        head = run.head()
        if head is not None:
            heappush(self._heads, (head, number))

    def below(self, number: int) -> Iterator[Key]:
        """Yield the entries with a lower number, in no order; runs without such entries are not read."""
        yield from [key for key in self._in_memory if key[1] < number]
        for run in list(self.runs.values()):
            if run.lowest < number:
                yield from (key for key in run.iter_remaining() if key[1] < number)

    # --- to the disk and back ---

    def load(self, numbers: list[int], next_run: int, done: Key) -> None:
        """Open these runs and skip the entries at or before `done`.

        Raises:
            CorruptRun: a run is missing or damaged.
        """
        for number in numbers:
            run = self._open_run(number)
            run.skip_to(done)
            head = run.head()
            if head is not None:
                self.runs[number] = run
                heappush(self._heads, (head, number))
        self.next_run = next_run
        self._last = done

    def clear(self) -> None:
        self.runs, self._in_memory, self._heads, self._last = {}, [], [], LOWEST_KEY

    def begin_write(self, up_to: int) -> WrittenRun | None:
        """Return the next run to write, of entries in memory below `up_to`; None while there are too few of them."""
        if self._writing is not None or len(self._in_memory) < RUN_MIN:
            return None
        keys = sorted(key for key in self._in_memory if key[1] < up_to)
        if len(keys) < RUN_MIN:
            return None
        if len(keys) > RUN_MAX:
            up_to = sorted(number for _, number in keys)[RUN_MAX]
            keys = [key for key in keys if key[1] < up_to]
        absorbed = self._runs_to_merge() if len(self.runs) >= MERGE_THRESHOLD else []
        if absorbed:
            keys = sorted([*keys, *(key for number in absorbed for key in self.runs[number].iter_remaining())])
        number = self.next_run
        self.next_run += 1
        self._writing = WrittenRun(number, self.path(number), _encode_run(keys), keys, absorbed, up_to)
        return self._writing

    def _runs_to_merge(self) -> list[int]:
        """Return runs with few remaining entries, as many as fit into one new run, the emptiest first."""
        selected: list[int] = []
        total = 0
        for number, run in sorted(self.runs.items(), key=lambda item: item[1].remaining):
            total += run.remaining
            if run.remaining > MERGE_ENTRIES_MAX or total > RUN_MIN:
                break
            selected.append(number)
        return selected

    def end_write(self, *, written: bool) -> None:
        """Use the run of `begin_write` if it and the state that lists it are durable; otherwise forget it."""
        writing, self._writing = self._writing, None
        if writing is not None and written:
            number, path, _, keys, absorbed, up_to = writing
            self._in_memory = [key for key in self._in_memory if key[1] >= up_to]
            heapify(self._in_memory)
            for absorbed_number in absorbed:
                self.runs.pop(absorbed_number, None)
            run = DeliveryRun(self._files, path, len(keys), min(key[1] for key in keys))
            run.skip_to(self._last)
            if run.head() is not None:
                self.runs[number] = run
            self._heads = [(head, number) for number, run in self.runs.items() if (head := run.head()) is not None]
            heapify(self._heads)

    def drop_exhausted(self) -> None:
        """Forget the runs without remaining entries."""
        for number in [number for number, run in self.runs.items() if run.head() is None]:
            del self.runs[number]

    def remove_other_files(self, numbers: list[int]) -> None:
        """Remove the files of all other runs."""
        for name in self._disk.listdir(self.directory):
            if name.isdecimal() and len(name) == 20 and int(name) not in numbers:
                path = f"{self.directory}/{name}"
                self._files.drop(path)
                self._disk.remove(path)

    def path(self, number: int) -> str:
        return f"{self.directory}/{number:020d}"

    def _open_run(self, number: int) -> DeliveryRun:
        path = self.path(number)
        data = read_whole(self._disk, path)
        if data is None:
            raise CorruptRun(f"{path} is missing")
        if len(data) < _HEAD.size:
            raise CorruptRun(f"{path} has {len(data)} bytes")
        mark, count, crc, lowest = _HEAD.unpack_from(data)
        entries = data[_HEAD.size :]
        if mark != _MARK or len(entries) != count * _ENTRY_SIZE or crc != zlib.crc32(entries):
            raise CorruptRun(f"{path} is damaged")
        return DeliveryRun(self._files, path, count, lowest)


def _encode_run(keys: list[Key]) -> bytes:
    flat = array("q", [value for key in keys for value in key])
    if byteorder == "little":
        flat.byteswap()
    entries = flat.tobytes()
    return _HEAD.pack(_MARK, len(keys), zlib.crc32(entries), min(number for _, number in keys)) + entries


def _decode_entries(data: bytes) -> list[Key]:
    flat = array("q", data)
    if byteorder == "little":
        flat.byteswap()
    return list(zip(flat[::2], flat[1::2], strict=True))
