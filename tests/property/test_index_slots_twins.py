"""Both implementations of `IndexSlots` and a table in a dict give the same entries, slots and refusals.

keys, entries, bytes of slots ─┬→ PythonIndexSlots ──┐
                               ├→ ariane_native ─────┼→ the same
                               └→ dict ──────────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from mmap import PAGESIZE
from pathlib import Path
from struct import Struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.kernels.implementation import select
from ariane.kernels.index_slots import ENTRY, ENTRY_SIZE, SLOT_SIZE, EntryBounds, IndexSlots, PythonIndexSlots
from ariane.kernels.native import NativeUnavailable, load_native
from ariane.kernels.native_slots import NativeIndexSlots
from ariane.protocol.records.queue_entry import INDEX_KEY

SLOT = Struct(">i")


def native_module() -> Any:
    try:
        return load_native()
    except NativeUnavailable:
        return None


def native_slots(count: int) -> IndexSlots:
    slots = select("native").index_slots(count)
    assert isinstance(slots, NativeIndexSlots)
    return slots


IMPLEMENTATIONS = [
    pytest.param(PythonIndexSlots, id="python"),
    pytest.param(
        native_slots,
        id="native",
        marks=pytest.mark.skipif(native_module() is None, reason="ariane_native is not installed, or an earlier build"),
    ),
]
both = pytest.mark.parametrize("create", IMPLEMENTATIONS)
Create = Callable[[int], IndexSlots]

HASHES = st.integers(0, 12) | st.integers(0, 0x7FFFFFFF)
KEYS = st.lists(st.tuples(HASHES, st.integers(0, 1 << 62)), max_size=40)
SECONDS = st.lists(st.integers(0, 0x7FFFFFFF), min_size=1, max_size=3)
STORED = st.sampled_from([0, 0, 0, 0, 0, 1, 4, 5, 40, 1000, -1, -(2**31), 2**31 - 1])


def runs(seconds: list[int], count: int) -> list[tuple[int, int]]:
    """Return runs of seconds of `count` keys, the last of them with all that are left."""
    result = [(min(position, 2), value) for position, value in enumerate(seconds[:-1])]
    taken = sum(size for size, _ in result)
    return [*result, (count - taken, seconds[-1])] if taken <= count else [(count, seconds[-1])]


@both
@given(
    count=st.integers(1, 20),
    stored=st.lists(STORED, max_size=20),
    batches=st.lists(st.tuples(KEYS, SECONDS), max_size=4),
)
def test_keys_are_linked_to_the_newest_entry_of_their_slot(
    create: Create, count: int, stored: list[int], batches: list[tuple[list[tuple[int, int]], list[int]]]
) -> None:
    slots, model = create(count), dict(enumerate(stored[:count]))
    slots.load(0, b"".join(map(SLOT.pack, model.values())))
    number = 5
    for keys, seconds in batches:
        times = runs(seconds, len(keys))
        every = [value for size, value in times for _ in range(size)]
        packed = b"".join([INDEX_KEY.pack(*key) for key in keys])
        entries, used = [], 0
        for (value, offset), at in zip(keys, every, strict=True):
            older = model.get(value % count, 0)
            if not 0 <= older < number + len(entries):
                break
            model[value % count] = number + len(entries)
            entries.append(ENTRY.pack(value, offset, at, older))
            used += not older
        assert slots.link(packed, times, number) == (b"".join(entries), used)
        number += len(entries)
    check_slots(slots, model, count)


def check_slots(slots: IndexSlots, model: dict[int, int], count: int) -> None:
    expected = [model.get(slot, 0) for slot in range(count)]
    assert [slots.newest(slot) for slot in range(count)] == expected
    dumped = b"".join([slots.dump(position, 8) for position in range(0, SLOT_SIZE * count + 16, 8)])
    assert dumped == b"".join(map(SLOT.pack, expected))


@both
@given(
    count=st.integers(1, 7),
    keys=st.lists(st.tuples(HASHES, st.integers(0, 9)), max_size=30),
    damages=st.lists(st.tuples(st.integers(0, 29), st.sampled_from(["zeros", "hash", "older", "offset"])), max_size=2),
    bounds=st.builds(EntryBounds, st.integers(0, 2), st.integers(5, 80), st.booleans()),
    split=st.integers(0, 30),
)
def test_chains_continue_up_to_the_first_invalid_entry(
    create: Create,
    count: int,
    keys: list[tuple[int, int]],
    damages: list[tuple[int, str]],
    bounds: EntryBounds,
    split: int,
) -> None:
    offsets = [3 * number + late for number, (_, late) in enumerate(keys)]  # not always ascending
    packed = b"".join([INDEX_KEY.pack(value, offset) for (value, _), offset in zip(keys, offsets, strict=True)])
    entries = [*ENTRY.iter_unpack(PythonIndexSlots(count).link(packed, [(len(keys), 0)], 1).entries)]
    for at, damage in damages:
        if at < len(entries):
            entries[at] = damaged(entries[at], damage)
    model: dict[int, int] = {}
    last, used, length = bounds.last_offset, 0, 0
    for value, offset, seconds, older in entries:
        is_zeros = not (value or offset or seconds or older)
        fits = value >= 0 and last <= offset < bounds.offset_end and model.get(value % count, 0) == older
        if not fits or (is_zeros and not bounds.allows_zeros):
            break
        length += 1
        model[value % count] = length
        last = offset
        used += not older
    data, slots = b"".join([ENTRY.pack(*entry) for entry in entries]), create(count)
    first = slots.continue_chains(data[: ENTRY_SIZE * split], 1, bounds)
    if first.length == split:
        bounds = bounds._replace(last_offset=first.last_offset)
        second = slots.continue_chains(data[ENTRY_SIZE * split :], 1 + split, bounds)
        first = second._replace(length=first.length + second.length, slots_used=first.slots_used + second.slots_used)
    assert first == (length, used, last)
    check_slots(slots, model, count)


def damaged(entry: tuple[int, int, int, int], damage: str) -> tuple[int, int, int, int]:
    value, offset, seconds, older = entry
    changed = {
        "zeros": (0, 0, 0, 0),
        "hash": (-1 - value, offset, seconds, older),
        "older": (value, offset, seconds, older + 1),
        "offset": (value, -offset - 1, seconds, older),
    }
    return changed[damage]


@both
def test_invalid_arguments_are_rejected(create: Create) -> None:
    slots, key = create(3), INDEX_KEY.pack(1, 2)
    for seconds in ([], [(2, 0)], [(1, 0), (1, 0)]):
        with pytest.raises(ValueError, match="expected"):
            slots.link(key, seconds, 1)
    for position, data in ((12, bytes(3) + b"\1"), (8, b"\1" * 8)):
        with pytest.raises(ValueError, match="."):
            slots.load(position, data)
    with pytest.raises(IndexError):
        slots.newest(3)


@both
def test_slots_that_are_never_used_take_no_memory(create: Create) -> None:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("needs /proc")
    before = int(statm.read_text().split()[1])
    slots = create(100_000_000)
    slots.load(0, bytes(1 << 20))
    slots.link(INDEX_KEY.pack(99_999_999, 5), [(1, 0)], 1)
    grown = (int(statm.read_text().split()[1]) - before) * PAGESIZE
    assert slots.newest(99_999_999) == 1
    assert grown < 100 << 20, "of 400 MB"


class _Failing:
    """A module whose table panics after it linked the first key."""

    def __init__(self, count: int) -> None:
        self._table = PythonIndexSlots(count)
        self.newest, self.load, self.dump = self._table.newest, self._table.load, self._table.dump

    IndexSlots: Any = None

    def link(self, keys: bytes, seconds: Any, number: int) -> None:
        self._table.link(keys[: INDEX_KEY.size], [(1, 0)], number)
        raise RuntimeError("panic")

    continue_chains = link


_Failing.IndexSlots = _Failing


def test_a_python_table_continues_after_a_panic() -> None:
    failures: list[RuntimeError] = []
    slots = NativeIndexSlots(_Failing, 4, failures.append)
    slots.load(0, SLOT.pack(0) + SLOT.pack(3))
    keys = INDEX_KEY.pack(1, 10) + INDEX_KEY.pack(2, 20)
    # The first key was linked: its slot names an entry that is not written.
    assert slots.link(keys, [(2, 0)], 5) == (b"", 0)
    assert slots.link(INDEX_KEY.pack(2, 20), [(1, 0)], 5) == (ENTRY.pack(2, 20, 0, 0), 1)
    assert list(map(str, failures)) == ["panic"]
