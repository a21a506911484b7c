"""Translates filters pushed down by Spark into topics, queues, offset ranges and time ranges to read.

Pure, except for Spark's filter classes. Equality and In on topic, broker and queue_id exclude whole queues; comparisons of
queue_offset shorten them. The source applies these exactly: Spark shows them as PushedFilters and does not apply them again.
Comparisons of store_timestamp become times, which the planner resolves to offsets, not exactly if store times do not ascend; Spark
gets them back and all others, and applies them to the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

# Spark 4.0 has no filter classes, so they are looked up when filters are pushed.
from pyspark.sql import datasource

from ariane.clock import EPOCH
from ariane.model.message import MessageQueue
from ariane.spark.read.offset_ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_ONE_MS = timedelta(milliseconds=1)


class PushedFilters(NamedTuple):
    """The combined restrictions of the pushed filters. None: unrestricted."""

    topics: frozenset[Any] | None = None  # names that rows may have; Any, because Spark passes values of its own types
    brokers: frozenset[Any] | None = None  # broker names that rows may have
    queue_ids: frozenset[Any] | None = None  # queue ids that rows may have
    first_offset: int | None = None  # inclusive lower bound of the queue offset
    end_offset: int | None = None  # exclusive upper bound of the queue offset
    first_ms: int | None = None
    """Inclusive lower bound of the store time."""
    end_ms: int | None = None
    """Exclusive upper bound of the store time."""

    def matches(self, queue: MessageQueue) -> bool:
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
        )

    def clip(self, offset_range: OffsetRange) -> OffsetRange:
        """Return the part of a range that the filters can match; it may be empty."""
        queue, start, end = offset_range
        if self.first_offset is not None:
            start = min(max(start, self.first_offset), end)
        if self.end_offset is not None:
            end = max(min(end, self.end_offset), start)
        return OffsetRange(queue, start, end)


def parse_filters(filters: Iterable[Filter]) -> PushedFilters:
    """Return the conjunction of all `filters`."""
    pushed = PushedFilters()
    for filter_ in filters:
        attribute: tuple[str, ...] = getattr(filter_, "attribute", ())
        if len(attribute) == 1:
            pushed = _add_filter(pushed, attribute[0], filter_)
    return pushed


_SETS = {"topic": "topics", "broker": "brokers", "queue_id": "queue_ids"}
_NEVER_NULL = (*_SETS, "queue_offset")  # columns of the position: equal for all rows of a queue, or ascending


def is_exact(filter_: Filter) -> bool:
    """Return whether the ranges to read contain no row that the filter excludes."""
    attribute: tuple[str, ...] = getattr(filter_, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in _NEVER_NULL:
        return False
    return isinstance(filter_, datasource.IsNotNull) or parse_filters([filter_]) != PushedFilters()


def _add_filter(pushed: PushedFilters, column: str, filter_: Any) -> PushedFilters:
    if column in _SETS:
        if isinstance(filter_, datasource.EqualTo | datasource.EqualNullSafe | datasource.In):
            values = frozenset(filter_.value if isinstance(filter_, datasource.In) else (filter_.value,))
            before = getattr(pushed, _SETS[column])
            return _replaced(pushed, {_SETS[column]: values if before is None else before & values})
        return pushed
    if column == "queue_offset":
        return _add_range(pushed, "first_offset", "end_offset", filter_, _integer_bound)
    if column == "store_timestamp":
        return _add_range(pushed, "first_ms", "end_ms", filter_, _time_bound_ms)
    return pushed


Bound = Callable[[Any, bool], int | None]


def _add_range(pushed: PushedFilters, low_field: str, high_field: str, filter_: Any, bound: Bound) -> PushedFilters:
    """Add a comparison. `bound(value, beyond)` returns the first integer that is ≥ the value, or > it if `beyond`."""
    lows, highs = [], []
    if isinstance(
        filter_, datasource.EqualTo | datasource.EqualNullSafe | datasource.GreaterThan | datasource.GreaterThanOrEqual
    ):
        lows = [getattr(pushed, low_field), bound(filter_.value, isinstance(filter_, datasource.GreaterThan))]
    if isinstance(
        filter_, datasource.EqualTo | datasource.EqualNullSafe | datasource.LessThan | datasource.LessThanOrEqual
    ):
        highs = [getattr(pushed, high_field), bound(filter_.value, not isinstance(filter_, datasource.LessThan))]
    changes: dict[str, Any] = {}
    if any(low is not None for low in lows):
        changes[low_field] = max(low for low in lows if low is not None)
    if any(high is not None for high in highs):
        changes[high_field] = min(high for high in highs if high is not None)
    return _replaced(pushed, changes)


def _replaced(pushed: PushedFilters, changes: dict[str, Any]) -> PushedFilters:
    return pushed._replace(**changes)


def _integer_bound(value: Any, is_exclusive: bool) -> int | None:
    return value + is_exclusive if isinstance(value, int) and not isinstance(value, bool) else None


def _time_bound_ms(value: Any, is_exclusive: bool) -> int | None:
    """Return the first store time (whole ms) that is ≥ `value`, or > it if `is_exclusive`."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - EPOCH
    return since // _ONE_MS + 1 if is_exclusive else -(-since // _ONE_MS)
