"""Offset tracker: in whatever order messages are consumed, the commit offset passes no pending one."""

from __future__ import annotations

from client_script import message
from hypothesis import given
from hypothesis import strategies as st

from ariane.client.consuming.offset_tracker import OffsetTracker


def test_the_commit_offset_is_the_smallest_pending_offset():
    window = OffsetTracker(42)
    window.add([message(offset) for offset in range(42, 48)], 48)
    assert window.mark_consumed([message(43)]) == 42
    assert window.mark_consumed([message(42)]) == 44
    assert window.mark_consumed([message(47)]) == 44
    assert window.mark_consumed([message(44), message(45), message(46)]) == 48
    assert len(window) == 0
    assert window.bytes == 0


def test_filtered_messages_count_as_consumed():
    window = OffsetTracker(0)
    window.add([message(3)], 10)
    assert window.commit_offset == 3
    assert window.mark_consumed([message(3)]) == 10


def test_an_offset_added_twice_counts_once():
    window = OffsetTracker(0)
    window.add([message(0), message(1)], 2)
    window.mark_consumed([message(0)])
    window.add([message(0), message(1)], 2)
    assert len(window) == 1
    assert window.bytes == 100


def test_first_returns_pending_messages_in_order():
    window = OffsetTracker(0)
    window.add([message(offset) for offset in range(5)], 5)
    window.mark_consumed([message(1)])
    assert [sent_message.queue_offset for sent_message in window.first(3)] == [0, 2, 3]


def test_replace_changes_pending_messages_only():
    window = OffsetTracker(0)
    window.add([message(0), message(1)], 2)
    window.mark_consumed([message(0)])
    window.replace([message(0, reconsume_times=1), message(1, reconsume_times=1)])
    assert [(sent_message.queue_offset, sent_message.reconsume_times) for sent_message in window.first(9)] == [(1, 1)]


def test_full_by_count_by_bytes_and_by_span():
    window = OffsetTracker(0)
    window.add([message(0), message(10)], 11)
    limits = {"count_max": 2, "bytes_max": 200, "span_max": 10}
    assert not window.is_full(**limits)
    assert window.is_full(**(limits | {"count_max": 1}))
    assert window.is_full(**(limits | {"bytes_max": 199}))
    assert window.is_full(**(limits | {"span_max": 9}))
    assert not window.is_full(**(limits | {"span_max": None}))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40), st.randoms())
def test_no_pending_message_is_below_the_commit_offset(gaps, chance):
    window, offset, waiting, committed = OffsetTracker(0), 0, set(), 0
    for gap in gaps:
        offset += gap
        window.add([message(offset)], offset + 1)
        waiting.add(offset)
        while waiting and chance.random() < 0.5:
            done = chance.choice(sorted(waiting))
            waiting.discard(done)
            now = window.mark_consumed([message(done)])
            assert now >= committed
            committed = now
            assert all(other >= committed for other in waiting)
            assert committed == min(waiting, default=offset + 1)
    assert len(window) == len(waiting)
