"""Open transactions compared with a complete model, and the time of transaction checks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ariane.broker.state.open_transactions import (
    PIECE_OFFSETS,
    CheckDecision,
    HalfMessageState,
    OpenTransactions,
    OpenTransactionsBuilder,
    decide_check,
    first_check_ms,
)

STOP = 1 << 40


class Queues:
    """The two queues as on disk, the open transactions by the rules, and an `OpenTransactions` with the same input."""

    def __init__(self, spread: int) -> None:
        self.spread = spread  # gaps between two half messages, so that few of them fill many pieces
        self.halves = OpenTransactions()
        self.roots: dict[int, int] = {}
        self.ops: list[int] = []
        self.open: dict[int, int] = {}
        self.saved = (0, 0)
        self.next = 0

    def store(self, root: int | None = None) -> None:
        offset = self.next
        self.next += 1 + self.spread
        self.roots[offset] = offset if root is None else root
        self.open[self.roots[offset]] = offset
        self.halves.add_half(offset, root)

    def end(self, root: int) -> None:
        newest = self.open.pop(root)
        self.halves.add_op(len(self.ops), newest)
        self.ops.append(newest)
        self.halves.complete(root)

    def restart(self) -> None:
        low, op_low = self.saved
        self.halves = OpenTransactions(low, op_low)
        rebuild = OpenTransactionsBuilder(self.halves)
        for number in range(op_low, len(self.ops)):
            rebuild.add_op(number, [self.ops[number]])
        for offset, root in sorted(self.roots.items()):
            if offset >= low:
                rebuild.add_half(offset, root)
        assert rebuild.unmarked == []

    def check(self) -> None:
        assert self.halves.count == len(self.open)
        for offset, root in self.roots.items():
            assert self.halves.newest_copy(root) == self.open.get(root)
            assert self.halves.is_open(offset) == (self.open.get(root) == offset)
        pieces = list(self.halves.open_batches(STOP if self.next > 1 << 30 else self.next + 1, 0))
        assert [item for piece in pieces for item in piece] == sorted(self.open.values())
        assert all(len(piece) <= PIECE_OFFSETS for piece in pieces)


@settings(deadline=None)
@given(
    spread=st.sampled_from([0, 1, 300, 700]),
    steps=st.lists(st.tuples(st.sampled_from(["store", "copy", "end", "save", "restart"]), st.integers(0, 1000))),
)
def test_open_transactions_equal_the_model_after_any_events_and_restarts(
    spread: int, steps: list[tuple[str, int]]
) -> None:
    queues = Queues(spread)
    for what, which in steps:
        roots = sorted(queues.open)
        if what == "store":
            queues.store()
        elif what == "save":
            queues.saved = queues.halves.trim()
            assert queues.saved[0] == min(queues.open.values(), default=queues.saved[0])
        elif what == "restart":
            queues.restart()
        elif roots:
            root = roots[which % len(roots)]
            queues.store(root) if what == "copy" else queues.end(root)
        queues.check()


def test_progress_passes_ended_half_messages_but_no_op_message_still_needed() -> None:
    queues = Queues(0)
    for _ in range(4):
        queues.store()
    for root in (3, 0, 1):
        queues.end(root)
    assert queues.halves.trim() == (2, 0)  # the op message of 3 is first, and 3 follows 2, which is open
    queues.store(2)
    assert queues.halves.trim() == (4, 3)
    queues.end(2)
    assert queues.halves.trim() == (5, 4)


def test_an_op_of_another_copy_ends_a_half_message_and_is_returned() -> None:
    """Java writes such an op when a half message was copied during its immunity time."""
    halves = OpenTransactions(5, 0)
    rebuild = OpenTransactionsBuilder(halves)
    rebuild.add_op(0, [2])
    rebuild.add_half(5, 2)
    rebuild.add_half(6, 6)
    assert (halves.newest_copy(2), halves.newest_copy(6), rebuild.unmarked) == (None, 6, [5])


def test_several_offsets_in_one_op_message_end_all_of_them() -> None:
    halves = OpenTransactions()
    rebuild = OpenTransactionsBuilder(halves)
    rebuild.add_op(0, [0, 2])
    rebuild.add_op(1, [-1])
    for offset in range(4):
        rebuild.add_half(offset, offset)
    assert [offset for offset in range(4) if halves.is_open(offset)] == [1, 3]
    assert halves.trim() == (1, 0)


def test_deferred_half_messages_are_not_scanned_before_their_time() -> None:
    halves = OpenTransactions()
    for offset in range(2 * PIECE_OFFSETS):
        halves.add_half(offset)
    halves.defer(0, 100, 2 * PIECE_OFFSETS)
    assert [piece[0] for piece in halves.open_batches(2 * PIECE_OFFSETS, 99)] == [PIECE_OFFSETS]
    assert [piece[0] for piece in halves.open_batches(2 * PIECE_OFFSETS, 100)] == [0, PIECE_OFFSETS]
    halves.defer(PIECE_OFFSETS, 100, 2 * PIECE_OFFSETS - 1)
    assert [piece[0] for piece in halves.open_batches(2 * PIECE_OFFSETS, 100)] == [0, PIECE_OFFSETS]
    halves.defer(PIECE_OFFSETS, 100, 2 * PIECE_OFFSETS)
    halves.add_half(2 * PIECE_OFFSETS - 1)
    assert [piece[0] for piece in halves.open_batches(2 * PIECE_OFFSETS, 0)] == [0, PIECE_OFFSETS]


def test_memory_of_ended_transactions_is_released() -> None:
    halves = OpenTransactions()
    for offset in range(10 * PIECE_OFFSETS):
        halves.add_half(offset)
        halves.add_half(10 * PIECE_OFFSETS + offset, offset)
        halves.add_op(offset, 10 * PIECE_OFFSETS + offset)
        halves.complete(offset)
    assert halves.trim() == (20 * PIECE_OFFSETS, 10 * PIECE_OFFSETS)
    assert not halves._open._pieces and not halves._newest_copies._pieces and not halves._ops


@pytest.mark.parametrize(
    ("half", "now_ms", "expected"),
    [
        (HalfMessageState(1000, 0, None), 6999, CheckDecision.WAIT),
        (HalfMessageState(1000, 0, None), 7000, CheckDecision.CHECK),
        (HalfMessageState(1000, 0, "2"), 2999, CheckDecision.WAIT),
        (HalfMessageState(1000, 0, "2"), 3000, CheckDecision.CHECK),
        (HalfMessageState(1000, 0, "60"), 7000, CheckDecision.WAIT),
        (HalfMessageState(1000, 0, "soon"), 6999, CheckDecision.WAIT),
        (HalfMessageState(1000, 0, "-1"), 7000, CheckDecision.CHECK),
        (HalfMessageState(1000, 0, "9" * 5000), 7000, CheckDecision.CHECK),
        (HalfMessageState(1000, 1, "60"), 0, CheckDecision.CHECK),
        (HalfMessageState(1000, 14, None), 9000, CheckDecision.CHECK),
        (HalfMessageState(1000, 15, None), 9000, CheckDecision.DISCARD),
        (HalfMessageState(1000, 99, "60"), 0, CheckDecision.DISCARD),
    ],
)
def test_a_transaction_check_is_due_after_the_immunity_time(
    half: HalfMessageState, now_ms: int, expected: CheckDecision
) -> None:
    assert decide_check(half, now_ms, 6000, 15) is expected
    assert (first_check_ms(half, 6000) <= now_ms or half.checks > 0) == (expected is not CheckDecision.WAIT)
