"""Report `tps`: messages sent and consumed per second and failures, by topic, group and client host.

Reads the table `traffic`, which is computed from message traces: clients without traces, and lost traces, are not included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ariane.reports.report import Column, Line, Plot, Report, Table, Value, first_rows, utc_time
from ariane.reports.tables import table_views, time_range
from ariane.reports.tables.pipeline_status import freshness
from ariane.reports.texts import Text, sentences, text
from ariane.tables import TRAFFIC
from ariane.tables.table_home import Home

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_MAX = 100  # per table; the number of omitted rows is shown
LINES_MAX = 6  # per plot: more cannot be distinguished
DIRECTIONS = {"out": "sent", "in": "consumed"}
BY_GROUP = {"out": text("Sent by topic and group"), "in": text("Consumed by topic and group")}
BY_HOST = {"out": text("Sent by client host"), "in": text("Consumed by client host")}
BUCKET_COLUMNS = {
    "out": (Column("sent"), Column("TPS out", "/s"), Column("OK out", "%")),
    "in": (Column("consumed"), Column("TPS in", "/s"), Column("OK in", "%")),
}
NARROWED = "($1::VARCHAR IS NULL OR topic = $1) AND ($2::VARCHAR IS NULL OR client_group = $2)"
SUMS = "sum(messages)::BIGINT AS messages, sum(successes)::BIGINT AS successes, sum(failures)::BIGINT AS failures"


def report(
    home: Home, *, since_ms: int, until_ms: int, now_ms: int, topic: str | None = None, group: str | None = None
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
        time_range.report_title(text("Throughput"), since_ms, until_ms, topic=topic, group=group),
        utc_time(table_freshness.as_of_ms),
        (*table_freshness.warnings, *time_range.start_warnings(span, since_ms)),
        tuple(parts),
    )


def _by_group(sql: DuckDBPyConnection, span: time_range.TimeRange, direction: str, excluded: Text | None) -> Table:
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
        for row in results
    )  # fmt: skip
    fields = (
        Column("topic"), Column("group"), Column("hosts"), Column("messages"), Column("mean", "/s"), Column("peak", "/s"),
        Column("OK", "%"), Column("failed"), Column("bytes", "B/s") if is_out else Column("open"),
    )  # fmt: skip
    note = sentences(
        time_range.range_note(span),
        text("Mean: over this time. Peak: the best complete minute."),
        None if is_out else text("OK: share of the finished calls. Open: no end was traced."),
        excluded,
    )
    return first_rows(BY_GROUP[direction], fields, rows, note, ROWS_MAX)


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
        for row in results
    )  # fmt: skip
    fields = (
        Column("host"), Column("topic"), Column("group"), Column("messages"), Column("mean", "/s"), Column("OK", "%"),
        Column("failed"),
    )  # fmt: skip
    return first_rows(BY_HOST[direction], fields, rows, "", ROWS_MAX)


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
    for direction in DIRECTIONS:
        fields += BUCKET_COLUMNS[direction]
    note = text("Incomplete: the covered time starts or ends within the bucket, so no rate is computed.")
    title = text("By %(bucket)s, newest first", bucket=time_range.bucket_name(span))
    return Table(title, tuple(fields), tuple(rows), note)


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
    bucket_name = time_range.bucket_name(span)
    titles = {
        "out": text("Sent by %(bucket)s", bucket=bucket_name),
        "in": text("Consumed by %(bucket)s", bucket=bucket_name),
    }
    return Plot(titles[direction], "/s", tuple(lines), time_range.busiest_note(LINES_MAX, len(pairs)))


def _excluded_note(
    sql: DuckDBPyConnection,
    span: time_range.TimeRange,
    since_ms: int,
    until_ms: int,
    topic: str | None,
    group: str | None,
) -> Text | None:
    """Return sentences about messages outside the covered time, whose clients' clocks are wrong."""
    first_ms = since_ms // time_range.MINUTE_MS * time_range.MINUTE_MS
    counts = []
    for begin_ms, end_ms in ((first_ms, span.start_ms), (span.end_ms, until_ms)):
        (row,) = table_views.query(
            sql,
            f"""SELECT coalesce(sum(messages), 0)::BIGINT AS count FROM traffic
            WHERE minute >= to_timestamp({begin_ms} / 1000) AND minute < to_timestamp({end_ms} / 1000) AND {NARROWED}""",
            [topic, group],
        )
        counts.append(row["count"])
    before, after = counts
    notes = (
        text("%(count)s messages excluded: their clients' clocks are before this time.", count=before)
        if before
        else None,
        text("%(count)s messages excluded: their clients' clocks are after this time.", count=after) if after else None,
    )
    return sentences(*notes) if any(notes) else None


def _outcome(row: dict[str, Any]) -> tuple[float | None, int]:
    """Return the percentage of finished calls that succeeded, and the number of failures."""
    # Calls without a traced end are neither: counting them as failures would blame every call in progress.
    ended = row["successes"] + row["failures"]
    return 100 * row["successes"] / ended if ended else None, row["failures"]


def _rate(count: int | None, span: time_range.TimeRange) -> float | None:
    return None if count is None or not span.seconds else count / span.seconds
