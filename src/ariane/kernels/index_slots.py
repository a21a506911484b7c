"""Slots of an index file: the newest entry of each chain. New keys are linked to them, whole batches at once.

    keys     hash u32 | offset i64                                                (`INDEX_KEY`)
    entries  hash i32 | offset i64 | seconds i32 | number of the older entry i32  20 bytes, as in the file

A table has millions of slots. Its memory comes as zeros from the operating system: pages without a slot in use take none.
[IndexFile.putKey]
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import repeat
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from operator import ge
from struct import Struct
from typing import NamedTuple, Protocol

from ariane.protocol.records.queue_entry import INDEX_KEY

ENTRY = Struct(">iqii")
SLOT_SIZE, ENTRY_SIZE = 4, ENTRY.size
OFFSET_END = (1 << 63) - 1
_KEY_WORDS, _ENTRY_WORDS = INDEX_KEY.size // 4, ENTRY_SIZE // 4


class LinkedKeys(NamedTuple):
    """Entries of keys that were linked to slots."""

    entries: bytes  # of all keys, or of those before the first whose slot names an entry that does not exist
    slots_used: int  # slots that were empty before


class ContinuedChains(NamedTuple):
    """Entries of a file that continue the chains of their slots."""

    length: int  # number of these entries
    slots_used: int  # slots that were empty before
    last_offset: int  # of the last entry, or that of the bounds


class EntryBounds(NamedTuple):
    """Which entries are valid, in addition to the chain."""

    last_offset: int = 0  # of the entry before: offsets never fall
    offset_end: int = OFFSET_END  # offsets are less than this one
    allows_zeros: bool = True  # whether an entry of zeros can be one: a file ends with zeros


class IndexSlots(Protocol):
    """Slots of one index file. Entries are numbered from 1; a slot of 0 is empty."""

    def newest(self, slot: int) -> int:
        """Return the number of the newest entry of a slot, 0 for none."""
        ...

    def link(self, keys: bytes, seconds: Sequence[tuple[int, int]], number: int) -> LinkedKeys:
        """Link new entries, one per key, and make each the newest of its slot.

        Args:
            keys: `INDEX_KEY` by `INDEX_KEY`.
            seconds: Times of the entries as runs `(keys, seconds)`, of all keys together.
            number: Of the first entry. Slots name lower numbers, otherwise they are damaged: then this key and all
                after it are not linked.
        """
        ...

    def continue_chains(self, entries: bytes, number: int, bounds: EntryBounds) -> ContinuedChains:
        """Make entries of the file, the first with this `number`, the newest of their slots.

        Stops before the first that is out of bounds, has a negative hash, or does not name the newest entry of its slot.
        """
        ...

    def load(self, position: int, data: bytes) -> None:
        """Set the slots from byte `position` of the table on to `data`, which has the byte order of the file."""
        ...

    def dump(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes of the table in the byte order of the file; nothing after its end."""
        ...


class PythonIndexSlots:
    """Slots in a block of memory. [IndexSlots]"""

    def __init__(self, count: int) -> None:
        # Neither a bytearray nor an `array`: they write their zeros, and so occupy all of their memory.
        table = mmap(-1, SLOT_SIZE * count, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        self._slots = memoryview(table).cast("i")
        self._count = count

    def newest(self, slot: int) -> int:
        """Return the number of the newest entry of a slot. [IndexSlots.newest]"""
        return int(self._slots[slot])

    def link(self, keys: bytes, seconds: Sequence[tuple[int, int]], number: int) -> LinkedKeys:
        """Link new entries, one per key. [IndexSlots.link]"""
        slots, slot_count = self._slots, self._count
        key_words = _words(keys)
        times = array("I")
        for count, value in seconds:
            times.extend(repeat(value, count))
        if len(times) * INDEX_KEY.size != len(keys):
            raise ValueError(f"Invalid seconds of {len(times)} keys: expected those of {len(keys)} bytes of keys")
        hashes = _in_file_order(key_words[::_KEY_WORDS])
        older: list[int] = []
        next_number = number
        numbers = [value % slot_count for value in hashes]
        for slot in numbers:
            older.append(slots[slot])
            slots[slot] = next_number
            next_number += 1
        if older and (min(older) < 0 or any(map(ge, older, range(number, next_number)))):
            valid = next(at for at, entry in enumerate(older) if not 0 <= entry < number + at)
            for slot, entry in zip(reversed(numbers[valid:]), reversed(older[valid:]), strict=True):
                slots[slot] = entry
            del older[valid:], key_words[_KEY_WORDS * valid :]
        entry_words = array("I", bytes(ENTRY_SIZE * len(older)))
        for word in range(_KEY_WORDS):
            entry_words[word::_ENTRY_WORDS] = key_words[word::_KEY_WORDS]
        entry_words[_KEY_WORDS::_ENTRY_WORDS] = _in_file_order(times[: len(older)])
        entry_words[_KEY_WORDS + 1 :: _ENTRY_WORDS] = _in_file_order(array("I", older))
        return LinkedKeys(entry_words.tobytes(), older.count(0))

    def continue_chains(self, entries: bytes, number: int, bounds: EntryBounds) -> ContinuedChains:
        """Make entries of the file the newest of their slots. [IndexSlots.continue_chains]"""
        slots, slot_count = self._slots, self._count
        last, offset_end, allows_zeros = bounds
        count = slots_used = 0
        for value, offset, seconds, older in ENTRY.iter_unpack(entries):
            slot = value % slot_count
            if value < 0 or not last <= offset < offset_end or slots[slot] != older:
                break
            if not (allows_zeros or value or offset or seconds or older):
                break
            slots[slot] = number + count
            last = offset
            slots_used += not older
            count += 1
        return ContinuedChains(count, slots_used, last)

    def load(self, position: int, data: bytes) -> None:
        """Set the slots from byte `position` of the table on. [IndexSlots.load]"""
        if data.strip(b"\0"):  # zeros are not written, they would take memory
            self._slots.cast("B")[position : position + len(data)] = _in_file_order(_words(data)).tobytes()

    def dump(self, position: int, size: int) -> bytes:
        """Return bytes of the table. [IndexSlots.dump]"""
        data = bytes(self._slots.cast("B")[position : position + size])
        return _in_file_order(_words(data)).tobytes() if data.strip(b"\0") else data


def _words(data: bytes) -> array[int]:
    """Return 32-bit numbers in the byte order of the machine from `data`, which has the same order."""
    words = array("I")
    words.frombytes(data)
    return words


def _in_file_order(words: array[int]) -> array[int]:
    """Convert numbers between the byte order of the machine and that of the file."""
    if sys.byteorder == "little":
        words.byteswap()
    return words
