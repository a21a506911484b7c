"""The part of a requested time range that the tables cover, and its time buckets.

    since ······┃ first trace                        as of ┃······ until
    unknown     ┃ partial │ complete │ … │ complete │ partial ┃  unknown

Traces are covered from the time when the broker stored the first one: client clocks may be days off in either direction.

A bucket is complete if the whole of it is covered. A complete bucket in which no client traced anything is unknown, too: either
no client ran, or its traces were lost. In a bucket with traces of any client, clients without traces count as zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ariane.reports.report import utc_time
from ariane.reports.tables import table_views
from ariane.reports.texts import ZONE, Moment, Text, text
from ariane.tables import TRACE_EVENTS, TableSchema
from ariane.tables.table_home import Home
from ariane.tables.table_store import read_version

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MINUTE_MS = 60_000
# Longest delay between an event and its trace: half a second in Java, plus the duration of the send or call itself.
TRACE_DELAY_MAX_MS = 10_000
# More buckets than a screen has columns, but few enough for a page. The longest bucket serves any longer time range.
BUCKETS_MAX = 720
BUCKET_MINUTES = (1, 5, 10, 30, 60, 360, 1440)


class TimeRange(NamedTuple):
    """The covered part of a requested time range, starting at a full minute. Empty (start = end) if nothing is covered."""

    start_ms: int
    end_ms: int
    bucket_ms: int
    starts_inside: bool
    """Whether the table starts within the requested range: its first minute is then incomplete."""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return (self.end_ms - self.start_ms) / 1000

    @property
    def buckets(self) -> range:
        """Start times of the buckets, ms since the epoch. The last bucket may extend beyond the end."""
        first = self.start_ms // self.bucket_ms * self.bucket_ms
        return range(first, self.end_ms, self.bucket_ms)

    def is_complete_bucket(self, bucket_start_ms: int) -> bool:
        """Return whether the covered range includes the whole bucket."""
        complete_from_ms = self.start_ms + MINUTE_MS * self.starts_inside
        return bucket_start_ms >= complete_from_ms and bucket_start_ms + self.bucket_ms <= self.end_ms


def covered_range(
    home: Home, table: TableSchema, since_ms: int, until_ms: int, as_of_ms: int | None, least_minutes: int = 1
) -> TimeRange:
    """Return the part of a time range that a table of traces covers.

    Args:
        table: the table that the report reads.
        as_of_ms: time up to which the table is complete; None without data.
        least_minutes: duration of the table's rows, and minimum duration of a bucket.
    """
    first_ms = _first_ms(home, table)
    traced_ms = _first_ms(home, TRACE_EVENTS)
    if first_ms is not None and traced_ms is not None:
        row_ms = least_minutes * MINUTE_MS
        # Rows before the first trace come from clients whose clocks are slow.
        first_ms = max(first_ms, (traced_ms - TRACE_DELAY_MAX_MS) // row_ms * row_ms)
    floor_ms = since_ms // MINUTE_MS * MINUTE_MS
    if first_ms is None or as_of_ms is None:
        return TimeRange(floor_ms, floor_ms, MINUTE_MS, False)
    begin_ms = max(floor_ms, first_ms // MINUTE_MS * MINUTE_MS)
    end_ms = max(begin_ms, min(until_ms, as_of_ms))
    # A bucket shorter than a row of the table would be empty between rows.
    candidates = (minutes for minutes in BUCKET_MINUTES if minutes >= least_minutes)
    fitting = (minutes for minutes in candidates if (end_ms - begin_ms) / (minutes * MINUTE_MS) <= BUCKETS_MAX)
    return TimeRange(begin_ms, end_ms, MINUTE_MS * next(fitting, BUCKET_MINUTES[-1]), first_ms >= floor_ms)


def reported_buckets(sql: DuckDBPyConnection, table: TableSchema, span: TimeRange) -> set[int]:
    """Return the start times (ms) of the buckets in which any client traced anything."""
    step = bucket_expression(table.time_column, span)
    statement = f"SELECT DISTINCT {step} AS step FROM {table.name} WHERE {in_range(table.time_column, span)}"
    return {row["step"] for row in table_views.query(sql, statement)}


def bucket_expression(time: str, span: TimeRange) -> str:
    """Return the SQL expression for the start of the bucket of a time, ms since the epoch."""
    return f"(epoch_ms({time}) // {span.bucket_ms} * {span.bucket_ms})"


def in_range(time: str, span: TimeRange) -> str:
    """Return the SQL condition that a time is covered."""
    return f"{time} >= to_timestamp({span.start_ms} / 1000) AND {time} < to_timestamp({span.end_ms} / 1000)"


def in_complete_minutes(time: str, span: TimeRange) -> str:
    """Return the SQL condition that a time is in a completely covered minute."""
    first_ms = span.start_ms + MINUTE_MS * span.starts_inside
    last_ms = span.end_ms - MINUTE_MS
    return f"{time} >= to_timestamp({first_ms} / 1000) AND {time} <= to_timestamp({last_ms} / 1000)"


def report_title(name: Text, since_ms: int, until_ms: int, *, topic: str | None, group: str | None) -> Text:
    """Return the title of a report with its filters and time range."""
    title = name
    if topic is not None:
        title = text("%(title)s, topic %(topic)s", title=title, topic=topic)
    if group is not None:
        title = text("%(title)s, group %(group)s", title=title, group=group)
    since, until = (Moment(utc_time(ms), "%Y-%m-%d %H:%M") for ms in (since_ms, until_ms))
    return text("%(title)s, %(since)s to %(until)s %(zone)s", title=title, since=since, until=until, zone=ZONE)


def start_warnings(span: TimeRange, since_ms: int) -> tuple[Text, ...]:
    """Return a warning if the covered range starts after the requested one."""
    if not span.starts_inside or span.start_ms <= since_ms:
        return ()
    return (_start_warning(span.start_ms),)


def late_start_warnings(home: Home, table: TableSchema, since_ms: int) -> tuple[Text, ...]:
    """Return a warning if the table starts at least a minute after the requested range, for reports without buckets."""
    first_ms = _first_ms(home, table)
    return (_start_warning(first_ms),) if first_ms is not None and first_ms >= since_ms + MINUTE_MS else ()


def _first_ms(home: Home, table: TableSchema) -> int | None:
    """Return the earliest time in a table; None without rows."""
    version = read_version(home, table)
    return (
        min((file.first_ms for file in version.files if file.first_ms is not None), default=None) if version else None
    )


def _start_warning(ms: int) -> Text:
    return text(
        "the tables start at %(start)s %(zone)s: no data before",
        start=Moment(utc_time(ms), "%Y-%m-%d %H:%M"),
        zone=ZONE,
    )


def range_note(span: TimeRange) -> Text:
    """Return a sentence about the covered range, for the note of a table."""
    if not span.seconds:
        return text("No data for this time range.")
    start, end = (Moment(utc_time(ms), "%Y-%m-%d %H:%M:%S") for ms in (span.start_ms, span.end_ms))
    return text("Data covers %(start)s to %(end)s %(zone)s.", start=start, end=end, zone=ZONE)


def bucket_name(span: TimeRange) -> Text:
    """Return the duration of a bucket in words."""
    minutes = span.bucket_ms // MINUTE_MS
    return text("minute") if minutes == 1 else text("%(count)s minutes", count=minutes)


def busiest_note(shown: int, count: int) -> str:
    """Return the note of a plot that shows only some of the series."""
    if count <= shown:
        return ""
    return text("The %(shown)s busiest; the table contains %(omitted)s more.", shown=shown, omitted=count - shown)


def series_name(pair: dict[str, Any]) -> str:
    """Return the name of a series: topic and group."""
    return " · ".join(pair[name] or "unknown" for name in ("topic", "client_group"))
