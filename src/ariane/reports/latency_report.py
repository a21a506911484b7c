"""Report `latency`: duration of sends, queueing and consumption by topic and group, and the slowest messages.

Reads the tables `traffic` and `slow_messages`, which are computed from message traces, with the clients' clocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ariane.reports.report import Column, Line, Plot, Report, Table, Value, first_rows, table_of, utc_time
from ariane.reports.tables import histogram_sql, table_views, time_range
from ariane.reports.tables.pipeline_status import freshness
from ariane.reports.texts import Text, sentences, text
from ariane.reports.tps_report import LINES_MAX, NARROWED, ROWS_MAX
from ariane.tables import CLOCKS, LATENCIES, SLOW_MESSAGES, TRAFFIC
from ariane.tables.declarations.traffic import EXCLUSION_COUNTERS, LATENCY_WINDOW_MINUTES, SLOWEST_PER_BUCKET
from ariane.tables.table_home import Home

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

QUANTILES = (0.5, 0.9, 0.99)
# Longer ranges read the histograms of ten minutes: those per minute and host are more than ten times as many.
MINUTES_MAX = 120
HOUR_MS = 60 * time_range.MINUTE_MS
NAMES = ("p50", "p90", "p99")


class LatencyMeasure(NamedTuple):
    """A measured duration: histogram column, title, the counted events, and its definition."""

    column: str
    title: Text
    events: Text
    meaning: Text


MEASURES = (
    LatencyMeasure(
        "send_cost_ms", text("Send"), text("sends"), text("From the call of send to the broker's response.")
    ),
    LatencyMeasure(
        "queueing_ms",
        text("Queueing"),
        text("listener calls"),
        text("From the broker's response to the first call of the listener; compares the clocks of two hosts."),
    ),
    LatencyMeasure(
        "consume_cost_ms",
        text("Consumption"),
        text("listener calls"),
        text("Duration of the listener call; for batches, the mean per message."),
    ),
)


def report(
    home: Home, *, since_ms: int, until_ms: int, now_ms: int, topic: str | None = None, group: str | None = None
) -> Report:
    """Return the report for a time range, optionally of one topic or one producer or consumer group."""
    is_long = until_ms - since_ms > MINUTES_MAX * time_range.MINUTE_MS
    source = LATENCIES if is_long else TRAFFIC
    if is_long:  # start at a row of that table
        since_ms -= since_ms % (LATENCY_WINDOW_MINUTES * time_range.MINUTE_MS)
    table_freshness, slow = freshness(home, source, now_ms), freshness(home, SLOW_MESSAGES, now_ms)
    span = time_range.covered_range(
        home, source, since_ms, until_ms, table_freshness.as_of_ms, LATENCY_WINDOW_MINUTES if is_long else 1
    )
    # This part of the report is per hour.
    clocks_since_ms = span.start_ms - span.start_ms % HOUR_MS
    tables = (table_views.files_between(table, span.start_ms, until_ms) for table in (source, SLOW_MESSAGES))
    with table_views.open_views(home, *tables, table_views.files_between(CLOCKS, clocks_since_ms, until_ms)) as sql:
        columns = ", ".join((*(f"{measure.column}, {measure.column}_max" for measure in MEASURES), *EXCLUSION_COUNTERS))
        sql.execute(
            f"""CREATE TEMP TABLE selected AS
            SELECT {time_range.bucket_expression(source.time_column, span)} AS bucket_at, topic, client_group, {columns}
            FROM {source.name} WHERE {time_range.in_range(source.time_column, span)} AND {NARROWED}""",
            [topic, group],
        )
        parts: list[Table | Plot] = []
        for measure in MEASURES:
            parts += (_percentiles(sql, measure, span), _plot(sql, measure, span))
        parts.append(_slowest(sql, span, topic, group))
        parts += _not_counted(sql)
        parts += _contradicting(sql, clocks_since_ms, until_ms)
    gaps = tuple(dict.fromkeys((*table_freshness.warnings, *slow.warnings, *time_range.start_warnings(span, since_ms))))
    return Report(
        time_range.report_title(text("Latency"), since_ms, until_ms, topic=topic, group=group),
        utc_time(table_freshness.as_of_ms),
        gaps,
        tuple(parts),
    )


def _percentiles(sql: DuckDBPyConnection, measure: LatencyMeasure, span: time_range.TimeRange) -> Table:
    by = ("topic", "client_group")
    quantiles_of = {
        _pair(row): row
        for row in table_views.query(sql, histogram_sql.quantiles("selected", by, measure.column, QUANTILES))
    }
    reasons = [name for name, (column, *_) in EXCLUSION_COUNTERS.items() if column == measure.column]
    # Counters are null in files of an older schema: the number of uncounted messages is then unknown.
    missing = " + ".join(f"sum({name})" for name in reasons)
    # Also groups without any percentile: all their events may be excluded, and the report has to say so.
    totals = table_views.query(
        sql,
        f"SELECT topic, client_group, max({measure.column}_max) AS most, ({missing})::BIGINT AS missing "
        f"FROM selected GROUP BY ALL HAVING most IS NOT NULL OR missing > 0",
    )
    rows = [_row(row, quantiles_of.get(_pair(row))) for row in totals]
    rows.sort(key=lambda row: (-(row[5] if isinstance(row[5], float) else -1.0), str(row[0] or ""), str(row[1] or "")))
    fields = (
        Column("topic"), Column("group"), Column("messages"), *(Column(name, "ms") for name in NAMES), Column("max", "ms"),
        Column("not included"),
    )  # fmt: skip
    total = sum(row[-1] for row in rows if isinstance(row[-1], int))
    missing_note = text(
        "%(count)s %(events)s are not included: see table Not included.", count=total, events=measure.events
    )
    note = sentences(
        measure.meaning,
        text("Highest p99 first; percentiles are within 1 %, max is exact."),
        time_range.range_note(span) if measure is MEASURES[0] else None,
        missing_note if total else None,
    )
    return first_rows(measure.title, fields, rows, note, ROWS_MAX)


def _pair(row: dict[str, Any]) -> tuple[Any, Any]:
    return row["topic"], row["client_group"]


def _row(totals: dict[str, Any], quantiles_of_pair: dict[str, Any] | None) -> tuple[Value, ...]:
    """Return the row of a topic and group; percentiles are unknown if no message is included."""
    quantiles = (quantiles_of_pair[f"q{number}"] if quantiles_of_pair else None for number in range(len(QUANTILES)))
    return (
        *_pair(totals),
        quantiles_of_pair["count"] if quantiles_of_pair else 0,
        *quantiles,
        totals["most"],
        totals["missing"],
    )


def _not_counted(sql: DuckDBPyConnection) -> list[Table]:
    """Return the table of sends and calls that no percentile includes, with reasons; no table if all are included."""
    titles = {measure.column: measure.title for measure in MEASURES}
    totals = ", ".join(f"sum({name})::BIGINT AS {name}" for name in EXCLUSION_COUNTERS)
    (row,) = table_views.query(sql, f"SELECT {totals} FROM selected")
    rows = tuple(
        (titles[column], row[name], reason, meaning)
        for name, (column, reason, meaning) in EXCLUSION_COUNTERS.items()
        if row[name]
    )
    if not rows:
        return []
    note = text("Sends and listener calls that are in none of the percentiles above.")
    return [
        Table(
            text("Not included"), (Column("measure"), Column("count"), Column("reason"), Column("meaning")), rows, note
        )
    ]


def _contradicting(sql: DuckDBPyConnection, since_ms: int, until_ms: int) -> list[Table]:
    """Return the hosts with messages that contradict the clock offset of the majority; no table without any."""
    results = table_views.query(
        sql,
        f"""SELECT host, date_trunc('hour', minute) AS hour, sum(messages)::BIGINT AS messages, sum(discarded)::BIGINT AS discarded,
        if(bool_or(lower_ms > upper_ms), 'partly unknown: no majority, or set', 'estimated') AS clock,
        min(discarded_ids[1]) AS example
        FROM clocks WHERE minute >= to_timestamp({since_ms} / 1000) AND minute < to_timestamp({until_ms} / 1000)
        GROUP BY ALL HAVING sum(discarded) > 0 OR bool_or(lower_ms > upper_ms) ORDER BY sum(discarded) DESC, host, hour""",
    )
    if not results:
        return []
    columns = {
        "host": Column("host"),
        "hour": Column("hour"),
        "messages": Column("messages"),
        "discarded": Column("discarded"),
        "clock": Column("clock"),
        "example": Column("message id"),
    }
    note = text(
        "Messages whose trace records contradict the clock offset on which most records of the host agree. They are not used "
        "to estimate the offset (docs/journeys.md, Clocks). All topics and groups."
    )
    return [table_of(text("Discarded clock records"), columns, results, note, ROWS_MAX)]


def _plot(sql: DuckDBPyConnection, measure: LatencyMeasure, span: time_range.TimeRange) -> Plot:
    """Return the plot of the p99 of the busiest groups. A bucket without a message has no point."""
    sql.execute(
        f"""CREATE OR REPLACE TEMP TABLE busiest AS
        SELECT topic, client_group, sum(list_sum(map_values({measure.column}))) AS messages
        FROM selected WHERE {measure.column} IS NOT NULL GROUP BY ALL"""
    )
    pairs = table_views.query(sql, "SELECT * FROM busiest ORDER BY messages DESC, topic, client_group")
    of_them = f"""(
        SELECT bucket_at, selected.topic, selected.client_group, {measure.column}, {measure.column}_max
        FROM selected
        JOIN (SELECT * FROM busiest ORDER BY messages DESC, topic, client_group LIMIT {LINES_MAX}) AS pair
        ON selected.topic IS NOT DISTINCT FROM pair.topic AND selected.client_group IS NOT DISTINCT FROM pair.client_group)"""
    results = table_views.query(
        sql, histogram_sql.quantiles(of_them, ("bucket_at", "topic", "client_group"), measure.column, (QUANTILES[-1],))
    )
    values = {(row["bucket_at"], row["topic"], row["client_group"]): row["q0"] for row in results}
    lines = tuple(
        Line(
            time_range.series_name(pair),
            tuple(
                (utc_time(bucket_at), values.get((bucket_at, pair["topic"], pair["client_group"])))
                for bucket_at in span.buckets
            ),
        )
        for pair in pairs[:LINES_MAX]
    )
    title = text("%(measure)s: p99 by %(bucket)s", measure=measure.title, bucket=time_range.bucket_name(span))
    return Plot(title, "ms", lines, time_range.busiest_note(LINES_MAX, len(pairs)))


def _slowest(sql: DuckDBPyConnection, span: time_range.TimeRange, topic: str | None, group: str | None) -> Table:
    results = table_views.query(
        sql,
        f"""SELECT * FROM slow_messages WHERE {time_range.in_range("measured_at", span)} AND {NARROWED}
        QUALIFY row_number() OVER (PARTITION BY measure ORDER BY ms DESC, message_id, client_group) <= {SLOWEST_PER_BUCKET}""",
        [topic, group],
    )
    titles = {measure.column: measure.title for measure in MEASURES}
    order = list(titles)
    results.sort(key=lambda row: (order.index(row["measure"]), -row["ms"], row["message_id"]))
    names = ("ms", "measured_at", "topic", "client_group", "client_host", "message_id", "keys")
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (titles[row["measure"]], *(row[name] for name in names)) for row in results
    )
    fields = (
        Column("measure"), Column("duration", "ms"), Column("at"), Column("topic"), Column("group"), Column("host"),
        Column("message id"), Column("keys"),
    )  # fmt: skip
    note = text(
        "The %(count)s slowest of each measure. `ariane trace --id ID` prints the timeline of a message.",
        count=SLOWEST_PER_BUCKET,
    )
    return Table(text("Slowest messages"), fields, rows, note)
