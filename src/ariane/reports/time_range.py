"""Which part of the time that was asked for is known, and in steps of how many minutes it is told.

    since ······┃ known from           known until (as of) ┃······ until
    not known   ┃ partial │ whole │ whole │ … │ whole │ partial ┃   not known

What clients traced is known from when the broker stored the first trace: their own times may lie days before it, or after.

A step is whole when all of it is known. A whole step in which no client traced anything is not known either: nobody was there,
or what they told was lost. A step in which some did is zero for those who did not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ariane.reports import table_views
from ariane.reports.report import utc_time
from ariane.tables import TRACE_EVENTS, TableSchema
from ariane.tables.table_format import read_version

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MINUTE_MS = 60_000
# So long may a client hold back what it traced: half a second in Java, and the time of the send or the call itself.
TRACE_DELAY_MAX_MS = 10_000
# At most so many steps: more than a screen has columns, few enough for a page. The last one holds for any longer time.
BUCKETS_MAX = 720
BUCKET_MINUTES = (1, 5, 10, 30, 60, 360, 1440)


class TimeRange(NamedTuple):
    """The part of a time that a table knows, in whole minutes at its beginning. Empty (begin = end): nothing is known."""

    start_ms: int
    end_ms: int
    bucket_ms: int
    starts_inside: bool
    """Whether the table's rows begin in this span: its first minute may have begun earlier than they tell."""

    @property
    def seconds(self) -> float:
        return (self.end_ms - self.start_ms) / 1000

    @property
    def buckets(self) -> range:
        """When the steps begin, ms since the epoch; the last one may reach over the end."""
        first = self.start_ms // self.bucket_ms * self.bucket_ms
        return range(first, self.end_ms, self.bucket_ms)

    def is_complete_bucket(self, bucket_start_ms: int) -> bool:
        least_ms = self.start_ms + MINUTE_MS * self.starts_inside
        return bucket_start_ms >= least_ms and bucket_start_ms + self.bucket_ms <= self.end_ms


def covered_range(
    home: Path, table: TableSchema, since_ms: int, until_ms: int, as_of_ms: int | None, least_minutes: int = 1
) -> TimeRange:
    """What a table of traces knows of the time between two instants; its rows and the steps are no shorter than
    `least_minutes`."""
    first_ms = _first_ms(home, table)
    traced_ms = _first_ms(home, TRACE_EVENTS)
    if first_ms is not None and traced_ms is not None:
        row_ms = least_minutes * MINUTE_MS
        first_ms = max(first_ms, (traced_ms - TRACE_DELAY_MAX_MS) // row_ms * row_ms)
    floor_ms = since_ms // MINUTE_MS * MINUTE_MS
    if first_ms is None or as_of_ms is None:
        return TimeRange(floor_ms, floor_ms, MINUTE_MS, False)
    begin_ms = max(floor_ms, first_ms // MINUTE_MS * MINUTE_MS)
    end_ms = max(begin_ms, min(until_ms, as_of_ms))
    long = (minutes for minutes in BUCKET_MINUTES if minutes >= least_minutes)
    steps = (minutes for minutes in long if (end_ms - begin_ms) / (minutes * MINUTE_MS) <= BUCKETS_MAX)
    return TimeRange(begin_ms, end_ms, MINUTE_MS * next(steps, BUCKET_MINUTES[-1]), first_ms >= floor_ms)


def reported_buckets(sql: DuckDBPyConnection, table: TableSchema, span: TimeRange) -> set[int]:
    """The steps in which any client traced anything."""
    step = bucket_expression(table.time_column, span)
    question = f"SELECT DISTINCT {step} AS step FROM {table.name} WHERE {in_range(table.time_column, span)}"
    return {row["step"] for row in table_views.query(sql, question)}


def bucket_expression(time: str, span: TimeRange) -> str:
    """Expression: when the step of a time begins, ms since the epoch."""
    return f"(epoch_ms({time}) // {span.bucket_ms} * {span.bucket_ms})"


def in_range(time: str, span: TimeRange) -> str:
    """Condition: a time that is known."""
    return f"{time} >= to_timestamp({span.start_ms} / 1000) AND {time} < to_timestamp({span.end_ms} / 1000)"


def in_complete_minutes(time: str, span: TimeRange) -> str:
    """Condition: a time in a minute of which all is known."""
    first_ms = span.start_ms + MINUTE_MS * span.starts_inside
    last_ms = span.end_ms - MINUTE_MS
    return f"{time} >= to_timestamp({first_ms} / 1000) AND {time} <= to_timestamp({last_ms} / 1000)"


def report_title(name: str, since_ms: int, until_ms: int, **filters: str | None) -> str:
    """What was asked: the report, of what, and of which time."""
    of = "".join(f", {key} {value}" for key, value in filters.items() if value is not None)
    return f"{name}{of}, {utc_time(since_ms):%Y-%m-%d %H:%M} to {utc_time(until_ms):%Y-%m-%d %H:%M} UTC"


def start_warnings(span: TimeRange, since_ms: int) -> tuple[str, ...]:
    """Why an answer is not complete at its beginning."""
    if not span.starts_inside or span.start_ms <= since_ms:
        return ()
    return (_begin_at(span.start_ms),)


def late_start_warnings(home: Path, table: TableSchema, since_ms: int) -> tuple[str, ...]:
    """The same of a report that has no span: `table` begins after what was asked for, in another minute."""
    first_ms = _first_ms(home, table)
    return (_begin_at(first_ms),) if first_ms is not None and first_ms >= since_ms + MINUTE_MS else ()


def _first_ms(home: Path, table: TableSchema) -> int | None:
    """The earliest time in a table; None when there is none."""
    now = read_version(home, table)
    return min((file.first_ms for file in now.files if file.first_ms is not None), default=None) if now else None


def _begin_at(ms: int) -> str:
    return f"the tables begin at {utc_time(ms):%Y-%m-%d %H:%M} UTC: what was before is not known"


def range_note(span: TimeRange) -> str:
    """A sentence about the span, for the notes of a report."""
    if not span.seconds:
        return "Nothing of this time is known."
    return f"{utc_time(span.start_ms):%Y-%m-%d %H:%M:%S} to {utc_time(span.end_ms):%Y-%m-%d %H:%M:%S} UTC is known."


def bucket_name(span: TimeRange) -> str:
    minutes = span.bucket_ms // MINUTE_MS
    return "minute" if minutes == 1 else f"{minutes} minutes"


def series_name(pair: dict[str, Any]) -> str:
    """Topic and group of a line in a plot."""
    return " · ".join(pair[name] or "unknown" for name in ("topic", "client_group"))
