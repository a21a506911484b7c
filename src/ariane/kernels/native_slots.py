"""The native implementation of `IndexSlots`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ariane.kernels.index_slots import SLOT_SIZE, ContinuedChains, EntryBounds, LinkedKeys, PythonIndexSlots


class NativeIndexSlots:
    """Slots in memory of native code. [IndexSlots]

    If that code fails, which only a bug of it can cause, a Python table continues. The failed call may have linked some keys; then
    the table names entries that do not exist, as a damaged one does, and the file is rebuilt.
    """

    def __init__(self, module: Any, count: int, on_failure: Callable[[RuntimeError], None]) -> None:
        self._slots: Any = module.IndexSlots(count)
        self._count = count
        self._on_failure = on_failure

    def newest(self, slot: int) -> int:
        """Return the number of the newest entry of a slot. [IndexSlots.newest]"""
        return int(self._slots.newest(slot))

    def link(self, keys: bytes, seconds: Sequence[tuple[int, int]], number: int) -> LinkedKeys:
        """Link new entries, one per key. [IndexSlots.link]"""
        try:
            return LinkedKeys._make(self._slots.link(keys, seconds, number))
        except RuntimeError as error:
            self._replace(error)
            return self.link(keys, seconds, number)

    def continue_chains(self, entries: bytes, number: int, bounds: EntryBounds) -> ContinuedChains:
        """Make entries of the file the newest of their slots. [IndexSlots.continue_chains]"""
        try:
            return ContinuedChains._make(self._slots.continue_chains(entries, number, bounds))
        except RuntimeError as error:
            self._replace(error)
            return self.continue_chains(entries, number, bounds)

    def load(self, position: int, data: bytes) -> None:
        """Set the slots from byte `position` of the table on. [IndexSlots.load]"""
        self._slots.load(position, data)

    def dump(self, position: int, size: int) -> bytes:
        """Return bytes of the table. [IndexSlots.dump]"""
        return bytes(self._slots.dump(position, size))

    def _replace(self, error: RuntimeError) -> None:
        table = PythonIndexSlots(self._count)
        table.load(0, self._slots.dump(0, SLOT_SIZE * self._count))
        self._slots = table
        self._on_failure(error)
