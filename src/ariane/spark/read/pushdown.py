"""Filters that Spark pushes down, as what they leave to be read. Pure, but for the classes of Spark's filters.

Equality and In of topic, broker and queue_id leave whole queues out; ranges of queue_offset cut them; ranges of
store_timestamp become times, which the planner looks up. Spark is given all filters back and applies them again, so what is
not understood here costs reading, never a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ariane.clock import EPOCH
from ariane.model.message import MessageQueue
from ariane.spark.read.offset_ranges import OffsetRange

_MS = timedelta(milliseconds=1)


class PushedFilters(NamedTuple):
    """What filters leave. None: everything."""

    topics: frozenset[Any] | None = None
    brokers: frozenset[Any] | None = None
    queue_ids: frozenset[Any] | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    first_ms: int | None = None
    """Store times from here on …"""
    end_ms: int | None = None
    """… and before this."""

    def has(self, queue: MessageQueue) -> bool:
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
        )

    def cut(self, part: OffsetRange) -> OffsetRange:
        """What of a range is wanted; it may be empty."""
        start = part.start if self.first_offset is None else min(max(part.start, self.first_offset), part.end)
        end = part.end if self.end_offset is None else max(min(part.end, self.end_offset), start)
        return OffsetRange(part.queue, start, end)


def wanted(filters: Iterable[Filter]) -> PushedFilters:
    """What all `filters` leave together."""
    left = PushedFilters()
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) == 1:
            left = _with(left, attribute[0], one)
    return left


_SETS = {"topic": "topics", "broker": "brokers", "queue_id": "queue_ids"}


def _with(left: PushedFilters, column: str, one: Any) -> PushedFilters:
    if column in _SETS:
        if isinstance(one, EqualTo | EqualNullSafe | In):
            values = frozenset(one.value if isinstance(one, In) else (one.value,))
            before = getattr(left, _SETS[column])
            return _replaced(left, {_SETS[column]: values if before is None else before & values})
        return left
    if column == "queue_offset":
        return _between(left, "first_offset", "end_offset", one, _whole)
    if column == "store_timestamp":
        return _between(left, "first_ms", "end_ms", one, _ms)
    return left


Bound = Callable[[Any, bool], int | None]


def _between(left: PushedFilters, first: str, end: str, one: Any, bound: Bound) -> PushedFilters:
    """`bound(value, beyond)` is the first whole number that is at the value, or beyond it."""
    lows, highs = [], []
    if isinstance(one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        lows = [getattr(left, first), bound(one.value, isinstance(one, GreaterThan))]
    if isinstance(one, EqualTo | EqualNullSafe | LessThan | LessThanOrEqual):
        highs = [getattr(left, end), bound(one.value, not isinstance(one, LessThan))]
    changes: dict[str, Any] = {}
    if any(low is not None for low in lows):
        changes[first] = max(low for low in lows if low is not None)
    if any(high is not None for high in highs):
        changes[end] = min(high for high in highs if high is not None)
    return _replaced(left, changes)


def _replaced(left: PushedFilters, changes: dict[str, Any]) -> PushedFilters:
    return left._replace(**changes)


def _whole(value: Any, beyond: bool) -> int | None:
    return value + beyond if isinstance(value, int) and not isinstance(value, bool) else None


def _ms(value: Any, beyond: bool) -> int | None:
    """Store times are whole ms: the first at `value`, or the first beyond it."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - EPOCH
    return since // _MS + 1 if beyond else -(-since // _MS)
