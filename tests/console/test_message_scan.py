"""The bounded search through queues: order, completeness and honesty about what was not read."""

from __future__ import annotations

import asyncio
import bisect
import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queues_in_memory import Queues

from ariane.clock import SYSTEM_CLOCK
from ariane.cluster.messages.message_search import MessageFilter
from ariane.console.areas.messages import message_scan
from ariane.console.areas.messages.message_scan import ScanBudget, ScanResult, TopicScan


def scan(queues: Queues, selection: MessageFilter, **budget: float) -> ScanResult:
    limits = ScanBudget()._replace(seconds=60.0, **budget)  # type: ignore[arg-type]
    one = TopicScan(reader=queues, clock=SYSTEM_CLOCK, selection=selection, budget=limits)
    return asyncio.run(one.run("orders"))


def all_pages(queues: Queues, selection: MessageFilter, **budget: float) -> list[ScanResult]:
    """Read page after page, as a reader who clicks on "continue"."""
    pages = []
    until_ms = selection.until_ms
    while True:
        page = scan(queues, msgspec.structs.replace(selection, until_ms=until_ms), **budget)
        pages.append(page)
        if page.complete_since_ms is None:
            return pages
        assert until_ms is None or page.complete_since_ms < until_ms, "a page covered no time"
        until_ms = page.complete_since_ms


@given(st.lists(st.integers(0, 12), max_size=40).map(sorted), st.integers(-1, 14), st.integers(-1, 14))
def test_the_bounds_of_a_time_range_are_exact(times: list[int], begin_ms: int, end_ms: int) -> None:
    queues = Queues([(time_ms, b"", "") for time_ms in times])

    async def bounds() -> tuple[int, int]:
        (at,) = await queues.locate_queues("orders")
        return await queues.exact_time_bounds(at, begin_ms, end_ms)

    begin, end = bisect.bisect_left(times, begin_ms), bisect.bisect_left(times, end_ms)
    assert asyncio.run(bounds()) == (begin, max(begin, end))


messages = st.tuples(st.integers(0, 3), st.sampled_from([b"red", b"blue"]), st.sampled_from(["", "new"]))
queue_contents = st.lists(messages, max_size=30).map(
    lambda items: [
        (ms, body, tag)
        for ms, (_, body, tag) in zip(itertools.accumulate(gap for gap, *_ in items), items, strict=True)
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(queue_contents, min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 40),
    st.sampled_from([None, "red"]), st.sampled_from([None, "new"]), st.one_of(st.none(), st.integers(0, 60)),
    st.one_of(st.none(), st.integers(1, 60)),
)  # fmt: skip
def test_all_pages_together_have_every_match_once_and_in_order(
    contents: list[list[tuple[int, bytes, str]]], matches: int, budget: int, text: str | None, tag: str | None,
    since_ms: int | None, until_ms: int | None,
) -> None:  # fmt: skip
    queues = Queues(*contents)
    wanted = MessageFilter(text=text, tag=tag, since_ms=since_ms, until_ms=until_ms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_scan, "WINDOW_MESSAGES", 4)
        patch.setattr(message_scan, "WINDOW_TAGGED", 8)
        patch.setattr(message_scan, "SAME_MS_MAX", 1_000)
        pages = all_pages(queues, wanted, matches=matches, messages=budget)
    found = [(one.queue.queue_id, one.queue_offset) for page in pages for one in page.messages]
    expected = [
        (number, offset)
        for number, queue in enumerate(contents)
        for offset, (ms, body, its_tag) in enumerate(queue)
        if (text is None or text.encode() in body) and (tag is None or tag == its_tag)
        and (since_ms is None or ms >= since_ms) and (until_ms is None or ms < until_ms)
    ]  # fmt: skip
    assert sorted(found) == expected
    times = [one.store_ms for page in pages for one in page.messages]
    assert times == sorted(times, reverse=True)


def test_a_page_reports_what_was_not_read() -> None:
    queues = Queues([(ms, b"blue", "") for ms in range(10_000)])
    page = scan(queues, MessageFilter(text="red"), messages=1_000)
    assert (page.messages, page.read, page.unread) == ([], 1_024, 8_976)
    assert page.complete_since_ms == 10_000 - 1_024 + 1
    assert scan(queues, MessageFilter(text="red"), messages=100_000)[1:4] == (10_000, 0, None)


def test_the_newest_messages_are_found_without_reading_idle_queues() -> None:
    busy = [(ms, b"x", "") for ms in range(1_000_000, 1_000_100)]
    queues = Queues(busy, *([(ms, b"x", "") for ms in range(500)] for _ in range(30)))
    page = scan(queues, MessageFilter(), matches=20)
    assert [one.store_ms for one in page.messages] == list(range(1_000_099, 1_000_079, -1))
    # One pull for each queue's newest message, and two rounds of eight windows; the windows of all queues would be 31.
    assert queues.pulls <= 31 + 2 * 8


def test_a_broker_without_a_response_is_reported_and_the_others_are_read() -> None:
    queues = Queues([(1, b"x", "")], [(2, b"x", "")], broken="broker-b")
    page = scan(queues, MessageFilter())
    assert [one.store_ms for one in page.messages] == [1]
    assert [one.broker for one in page.unavailable] == ["broker-b"]


def test_messages_of_one_ms_that_do_not_fit_are_counted() -> None:
    queues = Queues([(7, b"x", "") for _ in range(100)])
    page = scan(queues, MessageFilter(), matches=10)
    assert (len(page.messages), page.omitted, page.unread) == (20, 80, 0)
