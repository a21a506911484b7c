"""Open transactions: which half messages are undecided, by queue offset. Pure: no record, clock or disk is read.

A half message is identified by its root, the queue offset of its first copy. Each check of a transaction appends a copy, as in
Java, and the newest copy represents the half message. END_TRANSACTION may name any copy, and ends the root once. The tables:

    open            queue offset of a newest copy → 1
    newest copies   root → queue offset of its newest copy, if it has one    (in neither table: ended, discarded or unknown)
    ops             for each op message from `op_low` on, the copy that it ends; dropped once that is below every open half

Tables are stored in pieces of 512 offsets, and a piece is dropped when it is empty: where half messages are dense, an open one
costs 1 to 9 bytes. Completed transactions are in no table, so later END_TRANSACTION requests for them are no-ops.
[TransactionalMessageServiceImpl, the removal map and the done list]
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterator
from typing import NamedTuple

PIECE_OFFSETS = 512


class CheckDecision(enum.Enum):
    """The result of a round of checks for one open half message."""

    WAIT = enum.auto()
    CHECK = enum.auto()
    DISCARD = enum.auto()


class HalfMessageState(NamedTuple):
    """The facts that decide whether the transaction of a half message is checked."""

    first_ms: int
    """The broker's time when the first copy was stored."""
    checks: int
    """Checks so far."""
    immunity_s: str | None
    """Age at the first check that the message asks for, in s; None or not a number: the broker's setting applies."""


def decide_check(half: HalfMessageState, now_ms: int, time_out_ms: int, checks_max: int) -> CheckDecision:
    """Decide what a round of checks does with a half message.

    The immunity only delays the first check: a half message that was checked once is checked in every round.

    Args:
        time_out_ms: Age at the first check, for messages without an immunity of their own.
        checks_max: Checks after which a half message is discarded.
    """
    if half.checks >= checks_max:
        return CheckDecision.DISCARD
    return (
        CheckDecision.WAIT if half.checks == 0 and now_ms < first_check_ms(half, time_out_ms) else CheckDecision.CHECK
    )


def first_check_ms(half: HalfMessageState, time_out_ms: int) -> int:
    """Return the time of the first check of a half message."""
    seconds = half.immunity_s
    is_number = seconds is not None and seconds.isascii() and seconds.isdecimal() and len(seconds) <= 12
    return half.first_ms + (int(seconds) * 1000 if is_number and seconds is not None else time_out_ms)


class OpenTransactions:
    """The tables of open half messages.

    Args:
        low: No half message below this queue offset is open.
        op_low: Queue offset of the first op message that may still be needed.
    """

    def __init__(self, low: int = 0, op_low: int = 0) -> None:
        self.count = 0
        """Number of open half messages."""
        self._low = self._next = low  # open half messages are between `_low` and `_next`
        self._op_low = op_low  # queue offset of the op message that `_ops` starts with
        self._open = _SparseTable("B")  # the tables of the module's docstring
        # A check stores a copy of the half message: queue offset of the newest one.
        self._newest_copies = _SparseTable("q")
        self._ops = array("q")  # by op message from `_op_low` on: the copy that it ends
        self._deferred_until: dict[int, int] = {}  # number of a piece → ms until which rounds skip it

    # --- changes ---

    def add_half(self, offset: int, root: int | None = None) -> None:
        """Add a stored half message: a first copy at `offset`, or a newer copy of `root`."""
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
        # The new copy may be due before the others of its piece.
        self._deferred_until.pop(offset // PIECE_OFFSETS, None)

    def complete(self, root: int) -> None:
        """Remove a half message that was committed, rolled back or discarded."""
        newest = self.newest_copy(root)
        if newest is not None:
            self._open.clear(newest)
            self.count -= 1
        self._newest_copies.clear(root)

    def add_op(self, op_offset: int, half_offset: int) -> None:
        """Add the op message at `op_offset`, which ends the copy at `half_offset` (-1: it ends none)."""
        # Op messages that cannot be read leave a gap; -1 keeps the array aligned with the offsets of the queue.
        gap = op_offset - self._op_low - len(self._ops)
        self._ops.extend([-1] * gap)
        self._ops.append(half_offset)

    # --- queries ---

    def newest_copy(self, root: int) -> int | None:
        """Return the queue offset of the newest copy of a half message, None if it is not open."""
        # A half message without a check has no entry: its first copy is the newest one.
        offset = self._newest_copies.get(root) or root
        return offset if self._open.get(offset) else None

    def is_open(self, offset: int) -> bool:
        """Return whether the newest copy of an open half message is stored at `offset`."""
        return bool(self._open.get(offset))

    def trim(self) -> tuple[int, int]:
        """Return the offsets of the half queue and the op queue from which a start can rebuild the tables.

        Drops everything below these offsets.
        """
        self._low = next(self._open.offsets(self._low, self._next), self._next)
        # An op message is needed as long as the copy that it ends would be read again: without it, that would be open.
        obsolete = 0
        while obsolete < len(self._ops) and self._ops[obsolete] < self._low:
            obsolete += 1
        del self._ops[:obsolete]
        self._op_low += obsolete
        for number in [piece for piece in self._deferred_until if piece < self._low // PIECE_OFFSETS]:
            del self._deferred_until[number]
        return self._low, self._op_low

    # --- rounds of checks ---

    def open_batches(self, stop: int, now_ms: int, wake_below: int = 0) -> Iterator[list[int]]:
        """Yield the offsets of the open half messages below `stop`, in order and a few hundred at a time.

        Half messages may be added and completed between the batches. Deferred pieces are skipped, except those below
        `wake_below`.
        """
        number = self._low // PIECE_OFFSETS
        while number * PIECE_OFFSETS < stop:
            if self._deferred_until.get(number, now_ms) <= now_ms or number * PIECE_OFFSETS < wake_below:
                self._deferred_until.pop(number, None)
                start = number * PIECE_OFFSETS
                offsets = list(self._open.offsets(start, min(start + PIECE_OFFSETS, stop)))
                if offsets:
                    yield offsets
            number += 1

    def defer(self, offset: int, until_ms: int, stop: int) -> None:
        """Skip the piece around `offset` until `until_ms`: no half message in it is due before.

        A piece that extends beyond `stop` is not deferred, because its half messages from `stop` on were not examined.
        """
        if (offset // PIECE_OFFSETS + 1) * PIECE_OFFSETS <= stop:
            self._deferred_until[offset // PIECE_OFFSETS] = until_ms


class OpenTransactionsBuilder:
    """Rebuilds the tables from the queues: first from every op message from `op_low` on, then from every half from `low` on."""

    def __init__(self, halves: OpenTransactions) -> None:
        self._halves = halves
        self._ended = _SparseTable("B")
        self.unmarked: list[int] = []
        """Copies that the op message of another copy ended. Each needs an op message of its own before that one is dropped."""

    def add_op(self, op_offset: int, half_offsets: list[int]) -> None:
        self._halves.add_op(op_offset, max(half_offsets, default=-1))
        for offset in half_offsets:
            if offset >= 0:
                self._ended.set(offset, 1)

    def add_half(self, offset: int, root: int) -> None:
        # All op messages were read before the first half message, so an end is known when its half message is read.
        if self._ended.get(offset):
            self._halves.complete(root)
            self._ended.set(root, 1)
        elif self._ended.get(root):
            self.unmarked.append(offset)
        else:
            self._halves.add_half(offset, root)


class _SparseTable:
    """A sparse table of numbers by offset; an absent number is 0."""

    def __init__(self, kind: str) -> None:
        self._kind = kind  # type code of the arrays
        self._pieces: dict[int, array[int]] = {}  # by number: offset // PIECE_OFFSETS
        self._used: dict[int, int] = {}  # numbers that are not 0, by piece; at 0 the piece is dropped

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
        """Yield the offsets from `start` to `stop` whose number is not 0."""
        while start < stop:
            number, index = divmod(start, PIECE_OFFSETS)
            piece = self._pieces.get(number)
            if piece is not None:
                for position in range(index, min(PIECE_OFFSETS, index + stop - start)):
                    if piece[position]:
                        yield number * PIECE_OFFSETS + position
            start = (number + 1) * PIECE_OFFSETS
