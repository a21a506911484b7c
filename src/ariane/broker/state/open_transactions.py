"""Which half messages are open, by their place in the half queue: pure, it reads no record, no clock and no disk.

A half message is known by its root, the queue offset of its first copy. Each check-back appends a copy (Java does, and counts
on the copy), and the newest copy stands for it; an end that names any copy ends the root, once. So:

    open    queue offset of a newest copy → 1
    moved   root → queue offset of its newest copy, once it has one      (neither: ended, put aside, or never there)
    ops     what each op message from `op_low` on ended: it may be forgotten once that lies below every open half

Kept in pieces of 512 offsets, each dropped when nothing in it is open: an open half costs 1 to 9 bytes where they are dense,
and what was ended costs nothing. That an ended half is in no table is what makes every later end of it do nothing, for ever.
[TransactionalMessageServiceImpl, the removal map and the done list]
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterator
from typing import NamedTuple

PIECE_OFFSETS = 512


class CheckDecision(enum.Enum):
    """What a round of checks does with an open half."""

    WAIT = enum.auto()
    CHECK = enum.auto()
    DISCARD = enum.auto()


class HalfMessageState(NamedTuple):
    """What decides about an open half. `first_ms`: the broker's time when its first copy was stored; `immunity_s`: the
    message's own wish, None or not a number when it has none."""

    first_ms: int
    checks: int
    immunity_s: str | None


def decide_check(half: HalfMessageState, now_ms: int, time_out_ms: int, checks_max: int) -> CheckDecision:
    """A half that was asked about once is past its immunity, whatever the clock says."""
    if half.checks >= checks_max:
        return CheckDecision.DISCARD
    return (
        CheckDecision.WAIT if half.checks == 0 and now_ms < first_check_ms(half, time_out_ms) else CheckDecision.CHECK
    )


def first_check_ms(half: HalfMessageState, time_out_ms: int) -> int:
    """When the first question about a half is due."""
    seconds = half.immunity_s
    is_number = seconds is not None and seconds.isascii() and seconds.isdecimal() and len(seconds) <= 12
    return half.first_ms + (int(seconds) * 1000 if is_number and seconds is not None else time_out_ms)


class OpenTransactions:
    """`low`: no half below it is open. `op_low`: the op message that `ops` begins with."""

    def __init__(self, low: int = 0, op_low: int = 0) -> None:
        self.count = 0
        """Open halves."""
        self._low = self._next = low
        self._op_low = op_low
        self._open = _SparseTable("B")
        self._newest_copies = _SparseTable("q")
        self._ops = array("q")
        self._deferred_until: dict[int, int] = {}

    # --- what happens ---

    def add_half(self, offset: int, root: int | None = None) -> None:
        """A first copy lies at `offset`, or a newer one of `root`."""
        root = offset if root is None else root
        before = self.newest_copy(root)
        if before is None:
            self.count += 1
        else:
            self._open.clear(before)
        self._open.set(offset, 1)
        if root != offset:
            self._newest_copies.set(root, offset)
        self._next = max(self._next, offset + 1)
        self._deferred_until.pop(offset // PIECE_OFFSETS, None)

    def complete(self, root: int) -> None:
        """The half is committed, rolled back or put aside."""
        newest = self.newest_copy(root)
        if newest is not None:
            self._open.clear(newest)
            self.count -= 1
        self._newest_copies.clear(root)

    def add_op(self, op_offset: int, half_offset: int) -> None:
        """An op message at `op_offset` ends the copy at `half_offset` (-1: it ends nothing)."""
        gap = op_offset - self._op_low - len(self._ops)
        self._ops.extend([-1] * gap)
        self._ops.append(half_offset)

    # --- what is so ---

    def newest_copy(self, root: int) -> int | None:
        """The newest copy of an open half; None when it is not open."""
        offset = self._newest_copies.get(root) or root
        return offset if self._open.get(offset) else None

    def is_open(self, offset: int) -> bool:
        """Whether the copy at `offset` is the newest one of an open half."""
        return bool(self._open.get(offset))

    def trim(self) -> tuple[int, int]:
        """From where on half and op queue have to be read to know all this again. Forgets the ops before."""
        self._low = next(self._open.offsets(self._low, self._next), self._next)
        past = 0
        while past < len(self._ops) and self._ops[past] < self._low:
            past += 1
        del self._ops[:past]
        self._op_low += past
        for number in [one for one in self._deferred_until if one < self._low // PIECE_OFFSETS]:
            del self._deferred_until[number]
        return self._low, self._op_low

    # --- going over them ---

    def open_batches(self, stop: int, now_ms: int, wake_below: int = 0) -> Iterator[list[int]]:
        """The open halves below `stop` in order, some hundred at a time, without those that rest (but for what lies below
        `wake_below`). Halves may be stored and ended meanwhile."""
        number = self._low // PIECE_OFFSETS
        while number * PIECE_OFFSETS < stop:
            if self._deferred_until.get(number, now_ms) <= now_ms or number * PIECE_OFFSETS < wake_below:
                self._deferred_until.pop(number, None)
                begin = number * PIECE_OFFSETS
                offsets = list(self._open.offsets(begin, min(begin + PIECE_OFFSETS, stop)))
                if offsets:
                    yield offsets
            number += 1

    def defer(self, offset: int, until_ms: int, stop: int) -> None:
        """Nothing below `stop` of the piece around `offset` is due before `until_ms`. What lies behind that was not looked
        at, so such a piece does not rest."""
        if (offset // PIECE_OFFSETS + 1) * PIECE_OFFSETS <= stop:
            self._deferred_until[offset // PIECE_OFFSETS] = until_ms


class OpenTransactionsBuilder:
    """Tells `halves` what the queues hold: first every op message from `op_low` on, then every half from `low` on."""

    def __init__(self, halves: OpenTransactions) -> None:
        self._halves = halves
        self._ended = _SparseTable("B")
        self.unmarked: list[int] = []
        """Copies that are ended by the op message of another copy: they need one of their own before that is forgotten."""

    def add_op(self, op_offset: int, ended: list[int]) -> None:
        self._halves.add_op(op_offset, max(ended, default=-1))
        for offset in ended:
            if offset >= 0:
                self._ended.set(offset, 1)

    def add_half(self, offset: int, root: int) -> None:
        if self._ended.get(offset):
            self._halves.complete(root)
            self._ended.set(root, 1)
        elif self._ended.get(root):
            self.unmarked.append(offset)
        else:
            self._halves.add_half(offset, root)


class _SparseTable:
    """A sparse table of numbers by offset; 0 is nothing."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._pieces: dict[int, array[int]] = {}
        self._used: dict[int, int] = {}

    def get(self, offset: int) -> int:
        piece = self._pieces.get(offset // PIECE_OFFSETS)
        return piece[offset % PIECE_OFFSETS] if piece is not None else 0

    def set(self, offset: int, value: int) -> None:
        number = offset // PIECE_OFFSETS
        piece = self._pieces.get(number)
        if piece is None:
            piece = self._pieces[number] = array(self._kind, bytes(PIECE_OFFSETS * array(self._kind).itemsize))
            self._used[number] = 0
        if not piece[offset % PIECE_OFFSETS]:
            self._used[number] += 1
        piece[offset % PIECE_OFFSETS] = value

    def clear(self, offset: int) -> None:
        number = offset // PIECE_OFFSETS
        piece = self._pieces.get(number)
        if piece is not None and piece[offset % PIECE_OFFSETS]:
            piece[offset % PIECE_OFFSETS] = 0
            self._used[number] -= 1
            if not self._used[number]:
                del self._pieces[number], self._used[number]

    def offsets(self, start: int, stop: int) -> Iterator[int]:
        """Where something is, from `start` up to `stop`."""
        while start < stop:
            number, at = divmod(start, PIECE_OFFSETS)
            piece = self._pieces.get(number)
            if piece is not None:
                for within in range(at, min(PIECE_OFFSETS, at + stop - start)):
                    if piece[within]:
                        yield number * PIECE_OFFSETS + within
            start = (number + 1) * PIECE_OFFSETS
