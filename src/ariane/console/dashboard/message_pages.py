"""Pages of the messages of a topic that were stored in a time range.

    bounds of each queue ─→ share of each queue in a page ─→ messages, sorted by store time

The queues contribute to a page in turn, so that pages are roughly in the order of time without reading those before. The id of
a search is the time of its first page: later messages are not part of its pages, which would shift otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ariane.cluster.admin import Admin
from ariane.cluster.messages.message_query import to_message
from ariane.cluster.messages.queue_reading import QueueServer
from ariane.errors import UsageError
from ariane.model.message import ReceivedMessage

PAGE_MAX = 500
TASK_DIGITS = 16


class StoreTimes(NamedTuple):
    """Store times in ms, both included."""

    begin_ms: int
    end_ms: int


class QueueWindow(NamedTuple):
    """The offsets of a queue whose messages belong to a search: from `first` on, before `stop`."""

    at: QueueServer
    first: int
    stop: int


class StoredPage(NamedTuple):
    """A page. `total`: messages of all pages; `number`: of the page, from 0; `task`: id of the search."""

    messages: list[ReceivedMessage]
    total: int
    number: int
    size: int
    task: str


async def message_page(
    admin: Admin, topic: str, times: StoreTimes, *, number: int, size: int, task: str, now_ms: int
) -> StoredPage:
    """Return a page of a topic's messages.

    Args:
        number: Number of the page, from 1.
        task: Id of the search; empty for a new one, whose first page is returned whatever `number` is.

    Raises:
        UsageError: number, size or task cannot be used.
        RouteNotFound: the topic does not exist.
    """
    if not 1 <= size <= PAGE_MAX:
        raise UsageError("pageSize", size, f"expected 1 to {PAGE_MAX}")
    if number < 1:
        raise UsageError("pageNum", number, "expected 1 or more")
    started_ms = _parse_task(task) if task else now_ms
    page = number - 1 if task else 0
    end_ms = min(times.end_ms, started_ms)
    queues = await admin.locate_queues(topic)
    windows = await asyncio.gather(*(_window(admin, at, times.begin_ms, end_ms) for at in queues))
    sizes = [window.stop - window.first for window in windows]
    begins, ends = shares(sizes, page * size), shares(sizes, (page + 1) * size)
    parts = await asyncio.gather(
        *(
            _read(admin, window.at, window.first + begin, window.first + end)
            for window, begin, end in zip(windows, begins, ends, strict=True)
        )
    )
    messages = sorted((message for part in parts for message in part), key=_by_time)
    return StoredPage(messages, sum(sizes), page, size, f"{started_ms:0{TASK_DIGITS}X}")


def shares(sizes: Sequence[int], count: int) -> list[int]:
    """Return how many messages each queue contributes to the first `count`, taking one of each queue in turn."""
    low, high = 0, max(sizes, default=0)  # complete rounds
    while low < high:
        rounds = (low + high + 1) // 2
        if sum(min(size, rounds) for size in sizes) <= count:
            low = rounds
        else:
            high = rounds - 1
    taken = [min(size, low) for size in sizes]
    rest = count - sum(taken)
    for number, size in enumerate(sizes):
        if rest > 0 and size > low:
            taken[number] += 1
            rest -= 1
    return taken


async def _window(admin: Admin, at: QueueServer, begin_ms: int, end_ms: int) -> QueueWindow:
    return QueueWindow(at, *await admin.exact_time_bounds(at, begin_ms, end_ms + 1))


async def _read(admin: Admin, at: QueueServer, first: int, stop: int) -> list[ReceivedMessage]:
    messages = []
    async for page in admin.read_queue(at, first, stop):
        bounds = {"MIN_OFFSET": str(page.min_offset), "MAX_OFFSET": str(page.max_offset)}
        for stored in page.records:
            message = to_message(stored, at.queue.broker)
            # Java's consumers add the bounds of the queue to the properties.
            messages.append(msgspec.structs.replace(message, properties={**message.properties, **bounds}))
    return messages


def _by_time(message: ReceivedMessage) -> tuple[int, int, int]:
    return message.store_ms, message.queue.queue_id, message.queue_offset


def _parse_task(task: str) -> int:
    try:
        return int(task, 16)
    except ValueError:
        raise UsageError("taskId", task, "expected the id of an earlier page, or an empty text") from None
