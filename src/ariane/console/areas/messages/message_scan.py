"""Reads a topic backwards in time for messages that no index finds: by text, tag or time only. Bounded, and honest about it.

    queues ─→ the queues with the newest unread messages ─→ windows of offsets, read concurrently ─→ matches
                      ↑ until enough messages matched, or the budget is spent ────────────────────────┘

A page ends at an instant: every queue was read down to it, and the next page continues before it. So pages are in the order of
time, and no message is on two pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ariane.clock import Clock
from ariane.cluster.connection import BrokerUnavailable, gather_bounded
from ariane.cluster.messages.message_query import to_message
from ariane.cluster.messages.message_search import MessageFilter
from ariane.cluster.messages.queue_reading import ALL_TAGS, QueuePage, QueueServer
from ariane.errors import ArianeError
from ariane.model.message import ReceivedMessage

WINDOW_MESSAGES = 256  # offsets of a queue that are read together
WINDOW_TAGGED = 2_048  # the same if the broker skips messages with other tags
PULL_MESSAGES = 32  # default maximum per pull of a broker
CONCURRENT_QUEUES = 8  # windows in memory
CONCURRENT_OPENS = 64  # requests for the bounds of queues
MATCHES_MAX = 5_000  # matches in memory; beyond it, the page ends
SAME_MS_MAX = 2  # a page has at most this many times its size, if that many messages were stored in the same ms


class QueueReader(Protocol):
    """Reads queues; `Admin` does."""

    async def locate_queues(self, topic: str) -> list[QueueServer]: ...

    async def exact_time_bounds(self, at: QueueServer, begin_ms: int | None, end_ms: int | None) -> tuple[int, int]: ...

    async def pull(self, at: QueueServer, offset: int, *, count: int, tags: str = ALL_TAGS) -> QueuePage: ...


class ScanBudget(NamedTuple):
    """Limits of one page.

    Attributes:
        matches: Messages of a page.
        messages: Messages to read.
        seconds: Time to spend.
    """

    matches: int = 50
    messages: int = 20_000
    seconds: float = 2.0


class ScanResult(NamedTuple):
    """One page of matches.

    Attributes:
        messages: Newest first.
        read: Number of messages that were examined.
        unread: Older messages of the range that were not examined, in the queues of brokers that responded.
        complete_since_ms: Every message stored at this time or later was examined; None: all of the range.
        omitted: Matches that were stored in the same ms as the last of a full page and are not on any page.
        unavailable: Brokers that did not respond.
    """

    messages: list[ReceivedMessage]
    read: int
    unread: int
    complete_since_ms: int | None
    omitted: int
    unavailable: tuple[BrokerUnavailable, ...]


class _Cursor:
    """What is left of a queue: offsets from `first` to `upper`, read from the end."""

    def __init__(self, at: QueueServer, first: int, upper: int) -> None:
        self.at = at
        self.first = first  # first offset of the range
        self.upper = upper  # offsets from here on were examined
        self.oldest_ms: int | None = None  # no unread message is younger; None: unknown

    @property
    def unread(self) -> int:
        return max(0, self.upper - self.first)


class TopicScan:
    """A search for messages of one topic."""

    def __init__(
        self,
        *,
        reader: QueueReader,
        clock: Clock,
        selection: MessageFilter,
        budget: ScanBudget,
        keep: Callable[[ReceivedMessage], ReceivedMessage] = lambda message: message,
    ) -> None:
        self._reader = reader  # reads the queues
        self._clock = clock  # for the time that the budget allows
        self._selection = selection  # which messages match
        self._budget = budget  # limits of this page
        self._keep = keep  # shortens a match: bodies of thousands of messages do not fit into memory
        self._matches: list[ReceivedMessage] = []  # in the order of reading, also those of later pages
        self._read = 0  # messages that were examined
        self._unavailable: dict[str, BrokerUnavailable] = {}  # by broker

    async def run(self, topic: str) -> ScanResult:
        """Read until a page is full or the budget is spent.

        Raises:
            RouteNotFound: the topic does not exist, or is not readable.
        """
        deadline_s = self._clock.monotonic() + self._budget.seconds
        located = await self._reader.locate_queues(topic)
        opened = [
            cursor for cursor in await gather_bounded(map(self._open, located), CONCURRENT_OPENS) if cursor is not None
        ]
        cursors = self._readable(opened)
        until_ms = self._selection.until_ms
        while cursors:
            boundary_ms = _boundary_ms(cursors)
            is_spent = self._read >= self._budget.messages or self._clock.monotonic() >= deadline_s
            # A page that covers no time would be repeated without end: read on, whatever the budget.
            has_progress = boundary_ms is not None and (until_ms is None or boundary_ms < until_ms)
            if has_progress and (is_spent or self._is_full(boundary_ms)):
                break
            newest_first = sorted(cursors, key=lambda cursor: (cursor.oldest_ms is not None, -(cursor.oldest_ms or 0)))
            await asyncio.gather(*map(self._read_window, newest_first[:CONCURRENT_QUEUES]))
            cursors = self._readable(cursors)
        return self._result(cursors)

    def _readable(self, cursors: Sequence[_Cursor]) -> list[_Cursor]:
        return [cursor for cursor in cursors if cursor.unread and cursor.at.server.broker not in self._unavailable]

    def _is_full(self, boundary_ms: int | None) -> bool:
        if len(self._matches) >= MATCHES_MAX:
            return True
        complete = sum(boundary_ms is None or message.store_ms >= boundary_ms for message in self._matches)
        return complete >= self._budget.matches

    def _result(self, unread: Sequence[_Cursor]) -> ScanResult:
        boundary_ms = _boundary_ms(unread)
        # Matches before the boundary are found again by the next page, in order with those of the other queues.
        complete = [message for message in self._matches if boundary_ms is None or message.store_ms >= boundary_ms]
        complete.sort(
            key=lambda message: (message.store_ms, message.queue.broker, message.commit_log_offset), reverse=True
        )
        omitted = 0
        if len(complete) > self._budget.matches:
            # The next page begins before an instant, so messages of one ms are not separated.
            boundary_ms = complete[self._budget.matches - 1].store_ms
            page = [message for message in complete if message.store_ms >= boundary_ms]
            omitted = max(0, len(page) - self._budget.matches * SAME_MS_MAX)
            complete = page[: self._budget.matches * SAME_MS_MAX]
        older = sum(cursor.unread for cursor in unread)
        return ScanResult(complete, self._read, older, boundary_ms, omitted, tuple(self._unavailable.values()))

    async def _open(self, at: QueueServer) -> _Cursor | None:
        """Return the range of a queue; None if its broker does not respond."""
        selection = self._selection
        try:
            first, stop = await self._reader.exact_time_bounds(at, selection.since_ms, selection.until_ms)
            cursor = _Cursor(at, first, stop)
            if cursor.unread:
                # Queues without recent messages are then not read at all.
                page = await self._reader.pull(at, stop - 1, count=1)
                cursor.oldest_ms = max((stored.store_ms for stored in page.records), default=None)
        except ArianeError as error:
            self._fail(at, error)
            return None
        return cursor

    async def _read_window(self, cursor: _Cursor) -> None:
        """Examine the newest messages of a queue that were not examined yet."""
        size = WINDOW_MESSAGES if self._selection.tag is None else WINDOW_TAGGED
        if self._selection.is_by_position:
            size = min(size, self._budget.matches)
        start = max(cursor.first, cursor.upper - size)
        tags = self._selection.tag or ALL_TAGS
        oldest_ms: int | None = None
        try:
            offset = start
            while offset < cursor.upper:
                page = await self._reader.pull(
                    cursor.at, offset, count=min(PULL_MESSAGES, cursor.upper - offset), tags=tags
                )
                for stored in page.records:
                    if stored.queue_offset >= cursor.upper:
                        continue
                    oldest_ms = min(stored.store_ms, stored.store_ms if oldest_ms is None else oldest_ms)
                    message = to_message(stored, cursor.at.queue.broker)
                    if self._selection.accepts(message):
                        self._matches.append(self._keep(message))
                # A page without a message that matches the tag still advances.
                offset = max(page.next_offset, offset + 1)
            if tags != ALL_TAGS:
                # The broker sent matching messages only, and the boundary needs the time of the first one.
                page = await self._reader.pull(cursor.at, start, count=1)
                times = [stored.store_ms for stored in page.records]
                oldest_ms = min(times + ([] if oldest_ms is None else [oldest_ms]), default=oldest_ms)
        except ArianeError as error:
            self._fail(cursor.at, error)
            return
        self._read += cursor.upper - start
        cursor.upper = start
        if oldest_ms is not None:
            cursor.oldest_ms = oldest_ms

    def _fail(self, at: QueueServer, error: ArianeError) -> None:
        self._unavailable[at.server.broker] = BrokerUnavailable(at.server.broker, at.server.addr, str(error))


def _boundary_ms(unread: Sequence[_Cursor]) -> int | None:
    """Return the time from which on all messages were examined; None if nothing is unread, or a queue's times are unknown."""
    times = [cursor.oldest_ms for cursor in unread]
    present = [ms for ms in times if ms is not None]
    # An unread message may have the same time as the oldest that was examined.
    return max(present) + 1 if present and len(present) == len(times) else None
