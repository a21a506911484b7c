"""Report `tps`: messages sent and consumed per second, by topic, group and host, and how many of them failed.

Of the table `traffic`, so of what clients traced: clients without traces, and traces that clients lost, are not in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ariane.reports import table_views, time_range
from ariane.reports.pipeline_status import freshness
from ariane.reports.report import Column, Line, Plot, Report, Table, Value, utc_time
from ariane.tables import TRAFFIC

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_MAX = 100  # of a sheet; how many more there are is said
LINES_MAX = 6  # of a plot: more are not told apart
DIRECTIONS = {"out": "sent", "in": "consumed"}
NARROWED = "($1::VARCHAR IS NULL OR topic = $1) AND ($2::VARCHAR IS NULL OR client_group = $2)"
SUMS = "sum(messages)::BIGINT AS messages, sum(successes)::BIGINT AS successes, sum(failures)::BIGINT AS failures"


def report(
    home: Path, *, since_ms: int, until_ms: int, now_ms: int, topic: str | None = None, group: str | None = None
) -> Report:
    """Throughput between two instants; `topic` and `group` (of producers or consumers) narrow it."""
    fresh = freshness(home, TRAFFIC, now_ms)
    span = time_range.covered_range(home, TRAFFIC, since_ms, until_ms, fresh.as_of_ms)
    with table_views.open_views(home, table_views.files_between(TRAFFIC, since_ms, until_ms)) as sql:
        sql.execute(
            f"""CREATE TEMP TABLE asked AS
            SELECT minute, {time_range.bucket_expression("minute", span)} AS step, direction, topic, client_group, client_host,
                messages, successes, failures, bytes
            FROM traffic WHERE {time_range.in_range("minute", span)} AND {NARROWED}""",
            [topic, group],
        )
        heard = time_range.reported_buckets(sql, TRAFFIC, span)
        beyond = _beyond(sql, span, since_ms, until_ms, topic, group)
        parts: list[Table | Plot] = []
        for direction in DIRECTIONS:
            parts += (_by_group(sql, span, direction, beyond), _plot(sql, span, heard, direction))
        parts += (_by_host(sql, span, direction) for direction in DIRECTIONS)
        parts.append(_by_step(sql, span, heard))
    return Report(
        time_range.report_title("Throughput", since_ms, until_ms, topic=topic, group=group),
        utc_time(fresh.as_of_ms),
        (*fresh.warnings, *time_range.start_warnings(span, since_ms)),
        tuple(parts),
    )


def _by_group(sql: DuckDBPyConnection, span: time_range.TimeRange, direction: str, beyond: str) -> Table:
    by = "topic, client_group"
    peaks = table_views.query(
        sql,
        f"""SELECT {by}, max(messages) AS peak FROM (
            SELECT {by}, minute, {SUMS} FROM asked
            WHERE direction = $1 AND {time_range.in_complete_minutes("minute", span)} GROUP BY ALL
        ) GROUP BY ALL""",
        [direction],
    )
    peak = {(row["topic"], row["client_group"]): row["peak"] / 60 for row in peaks}
    found = table_views.query(
        sql,
        f"""SELECT {by}, count(DISTINCT client_host) AS hosts, {SUMS}, sum(bytes)::BIGINT AS bytes
        FROM asked WHERE direction = $1 GROUP BY ALL ORDER BY messages DESC, topic, client_group""",
        [direction],
    )
    is_out = direction == "out"
    rows = tuple(
        (
            row["topic"], row["client_group"], row["hosts"], row["messages"], _rate(row["messages"], span),
            peak.get((row["topic"], row["client_group"])), *_outcome(row),
            _rate(row["bytes"], span) if is_out else row["messages"] - row["successes"] - row["failures"],
        )
        for row in found[:ROWS_MAX]
    )  # fmt: skip
    fields = (
        Column("topic"), Column("group"), Column("hosts"), Column("messages"), Column("mean", "/s"), Column("peak", "/s"),
        Column("ok", "%"), Column("failed"), Column("bytes", "B/s") if is_out else Column("open"),
    )  # fmt: skip
    note = f"{time_range.range_note(span)} Mean: over all of that time. Peak: the best whole minute."
    if not is_out:
        note += " Ok: of those that ended. Open: no end is known."
    title = f"{DIRECTIONS[direction].capitalize()} by topic and group"
    return Table(title, fields, rows, note + beyond, max(0, len(found) - ROWS_MAX))


def _by_host(sql: DuckDBPyConnection, span: time_range.TimeRange, direction: str) -> Table:
    found = table_views.query(
        sql,
        f"""SELECT client_host, topic, client_group, {SUMS} FROM asked WHERE direction = $1 GROUP BY ALL
        ORDER BY messages DESC, client_host, topic, client_group""",
        [direction],
    )
    rows = tuple(
        (
            row["client_host"], row["topic"], row["client_group"], row["messages"], _rate(row["messages"], span),
            *_outcome(row),
        )
        for row in found[:ROWS_MAX]
    )  # fmt: skip
    fields = (
        Column("host"), Column("topic"), Column("group"), Column("messages"), Column("mean", "/s"), Column("ok", "%"),
        Column("failed"),
    )  # fmt: skip
    title = f"{DIRECTIONS[direction].capitalize()} by client host"
    return Table(title, fields, rows, omitted_rows=max(0, len(found) - ROWS_MAX))


def _by_step(sql: DuckDBPyConnection, span: time_range.TimeRange, heard: set[int]) -> Table:
    """All topics and groups together, step by step."""
    found = table_views.query(sql, f"SELECT step, direction, {SUMS} FROM asked GROUP BY ALL")
    there = {(row["step"], row["direction"]): row for row in found}
    rows: list[tuple[Value, ...]] = []
    for step in reversed(span.buckets):
        cells: list[Value] = [utc_time(step), span.is_complete_bucket(step)]
        for direction in DIRECTIONS:
            row = there.get((step, direction), {"messages": 0, "successes": 0, "failures": 0})
            is_known = step in heard
            cells.append(row["messages"] if is_known else None)
            cells.append(
                row["messages"] / (span.bucket_ms / 1000) if is_known and span.is_complete_bucket(step) else None
            )
            cells.append(_outcome(row)[0])
        rows.append(tuple(cells))
    fields = [Column("from"), Column("whole")]
    for direction, name in DIRECTIONS.items():
        fields += [Column(name), Column(f"tps {direction}", "/s"), Column(f"ok {direction}", "%")]
    note = "Not whole: the time that is known begins or ends in it, so nothing is said per second."
    return Table(f"By {time_range.bucket_name(span)}, the newest first", tuple(fields), tuple(rows), note)


def _plot(sql: DuckDBPyConnection, span: time_range.TimeRange, heard: set[int], direction: str) -> Plot:
    pairs = table_views.query(
        sql,
        f"SELECT topic, client_group, {SUMS} FROM asked WHERE direction = $1 GROUP BY ALL "
        "ORDER BY messages DESC, topic, client_group",
        [direction],
    )
    found = table_views.query(
        sql, f"SELECT step, topic, client_group, {SUMS} FROM asked WHERE direction = $1 GROUP BY ALL", [direction]
    )
    there = {(row["step"], row["topic"], row["client_group"]): row["messages"] for row in found}
    lines = []
    for pair in pairs[:LINES_MAX]:
        points = tuple(
            (
                utc_time(step),
                there.get((step, pair["topic"], pair["client_group"]), 0) / (span.bucket_ms / 1000)
                if step in heard and span.is_complete_bucket(step)
                else None,
            )
            for step in span.buckets
        )
        lines.append(Line(time_range.series_name(pair), points))
    left = len(pairs) - LINES_MAX
    note = f"The {LINES_MAX} busiest; {left} more are in the table above." if left > 0 else ""
    return Plot(f"{DIRECTIONS[direction].capitalize()} by {time_range.bucket_name(span)}", "/s", tuple(lines), note)


def _beyond(
    sql: DuckDBPyConnection,
    span: time_range.TimeRange,
    since_ms: int,
    until_ms: int,
    topic: str | None,
    group: str | None,
) -> str:
    """Sentences about messages that were asked for and lie beyond what is known, by their clients' clocks."""
    said = ""
    first_ms = since_ms // time_range.MINUTE_MS * time_range.MINUTE_MS
    for begin_ms, end_ms, where in ((first_ms, span.start_ms, "behind"), (span.end_ms, until_ms, "ahead of")):
        (row,) = table_views.query(
            sql,
            f"""SELECT coalesce(sum(messages), 0)::BIGINT AS count FROM traffic
            WHERE minute >= to_timestamp({begin_ms} / 1000) AND minute < to_timestamp({end_ms} / 1000) AND {NARROWED}""",
            [topic, group],
        )
        if row["count"]:
            said += f" {row['count']:,} messages are left out: clocks of their clients are {where} what is known."
    return said


def _outcome(row: dict[str, Any]) -> tuple[float | None, int]:
    """The share that succeeded of those that ended, in per cent; how many failed."""
    ended = row["successes"] + row["failures"]
    return 100 * row["successes"] / ended if ended else None, row["failures"]


def _rate(count: int | None, span: time_range.TimeRange) -> float | None:
    return None if count is None or not span.seconds else count / span.seconds
