"""Report `tps`: messages sent and consumed per second and failures, by topic, group and client host.

Reads the table `traffic`, which is computed from message traces: clients without traces, and lost traces, are not included.
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

ROWS_MAX = 100  # per table; the number of omitted rows is shown
LINES_MAX = 6  # per plot: more cannot be distinguished
DIRECTIONS = {"out": "sent", "in": "consumed"}
NARROWED = "($1::VARCHAR IS NULL OR topic = $1) AND ($2::VARCHAR IS NULL OR client_group = $2)"
SUMS = "sum(messages)::BIGINT AS messages, sum(successes)::BIGINT AS successes, sum(failures)::BIGINT AS failures"


def report(
    home: Path, *, since_ms: int, until_ms: int, now_ms: int, topic: str | None = None, group: str | None = None
) -> Report:
    """Return the report for a time range, optionally of one topic or one producer or consumer group."""
    table_freshness = freshness(home, TRAFFIC, now_ms)
    span = time_range.covered_range(home, TRAFFIC, since_ms, until_ms, table_freshness.as_of_ms)
    with table_views.open_views(home, table_views.files_between(TRAFFIC, since_ms, until_ms)) as sql:
        sql.execute(
            f"""CREATE TEMP TABLE selected AS
            SELECT minute, {time_range.bucket_expression("minute", span)} AS bucket_at, direction, topic, client_group, client_host,
                messages, successes, failures, bytes
            FROM traffic WHERE {time_range.in_range("minute", span)} AND {NARROWED}""",
            [topic, group],
        )
        # Of all topics and groups: a bucket in which another client traced has a true zero for the selected ones.
        reported = time_range.reported_buckets(sql, TRAFFIC, span)
        excluded = _excluded_note(sql, span, since_ms, until_ms, topic, group)
        parts: list[Table | Plot] = []
        for direction in DIRECTIONS:
            parts += (_by_group(sql, span, direction, excluded), _plot(sql, span, reported, direction))
        parts += (_by_host(sql, span, direction) for direction in DIRECTIONS)
        parts.append(_by_bucket(sql, span, reported))
    return Report(
        time_range.report_title("Throughput", since_ms, until_ms, topic=topic, group=group),
        utc_time(table_freshness.as_of_ms),
        (*table_freshness.warnings, *time_range.start_warnings(span, since_ms)),
        tuple(parts),
    )


def _by_group(sql: DuckDBPyConnection, span: time_range.TimeRange, direction: str, excluded: str) -> Table:
    by = "topic, client_group"
    peaks = table_views.query(
        sql,
        f"""SELECT {by}, max(messages) AS peak FROM (
            SELECT {by}, minute, {SUMS} FROM selected
            WHERE direction = $1 AND {time_range.in_complete_minutes("minute", span)} GROUP BY ALL
        ) GROUP BY ALL""",
        [direction],
    )
    peak = {(row["topic"], row["client_group"]): row["peak"] / 60 for row in peaks}
    results = table_views.query(
        sql,
        f"""SELECT {by}, count(DISTINCT client_host) AS hosts, {SUMS}, sum(bytes)::BIGINT AS bytes
        FROM selected WHERE direction = $1 GROUP BY ALL ORDER BY messages DESC, topic, client_group""",
        [direction],
    )
    # Producers count bytes, listeners do not; listener calls may be unfinished, sends may not.
    is_out = direction == "out"
    rows = tuple(
        (
            row["topic"], row["client_group"], row["hosts"], row["messages"], _rate(row["messages"], span),
            peak.get((row["topic"], row["client_group"])), *_outcome(row),
            _rate(row["bytes"], span) if is_out else row["messages"] - row["successes"] - row["failures"],
        )
        for row in results[:ROWS_MAX]
    )  # fmt: skip
    fields = (
        Column("topic"), Column("group"), Column("hosts"), Column("messages"), Column("mean", "/s"), Column("peak", "/s"),
        Column("OK", "%"), Column("failed"), Column("bytes", "B/s") if is_out else Column("open"),
    )  # fmt: skip
    note = f"{time_range.range_note(span)} Mean: over this time. Peak: the best complete minute."
    if not is_out:
        note += " OK: share of the finished calls. Open: no end was traced."
    title = f"{DIRECTIONS[direction].capitalize()} by topic and group"
    return Table(title, fields, rows, note + excluded, max(0, len(results) - ROWS_MAX))


def _by_host(sql: DuckDBPyConnection, span: time_range.TimeRange, direction: str) -> Table:
    results = table_views.query(
        sql,
        f"""SELECT client_host, topic, client_group, {SUMS} FROM selected WHERE direction = $1 GROUP BY ALL
        ORDER BY messages DESC, client_host, topic, client_group""",
        [direction],
    )
    rows = tuple(
        (
            row["client_host"], row["topic"], row["client_group"], row["messages"], _rate(row["messages"], span),
            *_outcome(row),
        )
        for row in results[:ROWS_MAX]
    )  # fmt: skip
    fields = (
        Column("host"), Column("topic"), Column("group"), Column("messages"), Column("mean", "/s"), Column("OK", "%"),
        Column("failed"),
    )  # fmt: skip
    title = f"{DIRECTIONS[direction].capitalize()} by client host"
    return Table(title, fields, rows, omitted_rows=max(0, len(results) - ROWS_MAX))


def _by_bucket(sql: DuckDBPyConnection, span: time_range.TimeRange, reported: set[int]) -> Table:
    """Return the totals of all topics and groups per time bucket."""
    results = table_views.query(sql, f"SELECT bucket_at, direction, {SUMS} FROM selected GROUP BY ALL")
    counts = {(row["bucket_at"], row["direction"]): row for row in results}
    rows: list[tuple[Value, ...]] = []
    for bucket in reversed(span.buckets):
        cells: list[Value] = [utc_time(bucket), span.is_complete_bucket(bucket)]
        for direction in DIRECTIONS:
            row = counts.get((bucket, direction), {"messages": 0, "successes": 0, "failures": 0})
            is_reported = bucket in reported
            cells.append(row["messages"] if is_reported else None)
            cells.append(
                row["messages"] / (span.bucket_ms / 1000) if is_reported and span.is_complete_bucket(bucket) else None
            )
            cells.append(_outcome(row)[0])
        rows.append(tuple(cells))
    fields = [Column("start"), Column("complete")]
    for direction, name in DIRECTIONS.items():
        fields += [Column(name), Column(f"TPS {direction}", "/s"), Column(f"OK {direction}", "%")]
    note = "Incomplete: the covered time starts or ends within the bucket, so no rate is computed."
    return Table(f"By {time_range.bucket_name(span)}, newest first", tuple(fields), tuple(rows), note)


def _plot(sql: DuckDBPyConnection, span: time_range.TimeRange, reported: set[int], direction: str) -> Plot:
    pairs = table_views.query(
        sql,
        f"SELECT topic, client_group, {SUMS} FROM selected WHERE direction = $1 GROUP BY ALL "
        "ORDER BY messages DESC, topic, client_group",
        [direction],
    )
    results = table_views.query(
        sql,
        f"SELECT bucket_at, topic, client_group, {SUMS} FROM selected WHERE direction = $1 GROUP BY ALL",
        [direction],
    )
    counts = {(row["bucket_at"], row["topic"], row["client_group"]): row["messages"] for row in results}
    lines = []
    for pair in pairs[:LINES_MAX]:
        points = tuple(
            (
                utc_time(bucket),
                counts.get((bucket, pair["topic"], pair["client_group"]), 0) / (span.bucket_ms / 1000)
                if bucket in reported and span.is_complete_bucket(bucket)
                else None,
            )
            for bucket in span.buckets
        )
        lines.append(Line(time_range.series_name(pair), points))
    omitted = len(pairs) - LINES_MAX
    note = f"The {LINES_MAX} busiest; the table above contains {omitted} more." if omitted > 0 else ""
    return Plot(f"{DIRECTIONS[direction].capitalize()} by {time_range.bucket_name(span)}", "/s", tuple(lines), note)


def _excluded_note(
    sql: DuckDBPyConnection,
    span: time_range.TimeRange,
    since_ms: int,
    until_ms: int,
    topic: str | None,
    group: str | None,
) -> str:
    """Return sentences about messages outside the covered time, whose clients' clocks are wrong."""
    note = ""
    first_ms = since_ms // time_range.MINUTE_MS * time_range.MINUTE_MS
    for begin_ms, end_ms, direction in ((first_ms, span.start_ms, "before"), (span.end_ms, until_ms, "after")):
        (row,) = table_views.query(
            sql,
            f"""SELECT coalesce(sum(messages), 0)::BIGINT AS count FROM traffic
            WHERE minute >= to_timestamp({begin_ms} / 1000) AND minute < to_timestamp({end_ms} / 1000) AND {NARROWED}""",
            [topic, group],
        )
        if row["count"]:
            note += f" {row['count']:,} messages excluded: their clients' clocks are {direction} this time."
    return note


def _outcome(row: dict[str, Any]) -> tuple[float | None, int]:
    """Return the percentage of finished calls that succeeded, and the number of failures."""
    # Calls without a traced end are neither: counting them as failures would blame every call in progress.
    ended = row["successes"] + row["failures"]
    return 100 * row["successes"] / ended if ended else None, row["failures"]


def _rate(count: int | None, span: time_range.TimeRange) -> float | None:
    return None if count is None or not span.seconds else count / span.seconds
