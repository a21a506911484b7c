"""Report `delay`: punctuality of delayed messages by level and delivery time; pending and overdue messages.

Reads the table `delays`; all times are by the brokers' clocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ariane.model.topic import dlq_topic, retry_topic
from ariane.reports.report import Column, Plot, Report, Table, Value, first_rows, table_of, utc_time
from ariane.reports.tables import plot_buckets, time_range
from ariane.reports.tables.pipeline_status import freshness
from ariane.reports.tables.table_views import open_views, query, whole_table
from ariane.reports.texts import ZONE, Moment, Text, text
from ariane.tables import DELAYS, MESSAGES
from ariane.tables.declarations.delays import LEVEL, RETRY, TIME
from ariane.tables.table_home import Home

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

OVERDUE_MS = 10_000  # brokers check due messages at least every 100 ms: a longer delay is a fault
HOURS_MAX = 48  # of pending messages: the next hours
IDS_MAX = 20  # of overdue messages: the oldest
HOUR_MS = 3_600_000

# Columns that are counted: reading the ids of a million rows would take longer than all other columns.
COUNTED = "kind, level, state, scheduled_at, lateness_ms"

# Name and upper bound in ms (inclusive); the lower bound is that of the previous class.
DISTANCES: tuple[tuple[Text, int | None], ...] = (
    (text("more than 1 s early"), -1001),
    (text("up to 1 s early"), -1),
    (text("0 to 100 ms late"), 100),
    (text("to 1 s late"), 1000),
    (text("to 10 s late"), 10_000),
    (text("to 1 min late"), 60_000),
    (text("to 10 min late"), 600_000),
    (text("later"), None),
)


def report(
    home: Home, *, since_ms: int, until_ms: int, now_ms: int, topic: str | None = None, group: str | None = None
) -> Report:
    """Return the report about deliveries due in a time range, and about all pending ones.

    `topic` selects the target topic, `group` the consumer group whose retries are delayed.
    """
    table_freshness = freshness(home, DELAYS, now_ms)
    with open_views(home, whole_table(DELAYS)) as sql:
        condition = ""
        values: list[object] = []
        if topic is not None:
            condition += " AND topic = ?"
            values.append(topic)
        if group is not None:
            condition += " AND topic IN (?, ?)"
            values += [retry_topic(group), dlq_topic(group)]
        stored = f"BETWEEN to_timestamp({since_ms} / 1000.0) AND to_timestamp({until_ms} / 1000.0)"
        # A delivery without its original record has no due time: the delivery itself decides about the range.
        inside = f"coalesce(scheduled_at, delivered_at) {stored}"
        sql.execute(f"CREATE TEMP TABLE due AS SELECT {COUNTED} FROM delays WHERE {inside}{condition}", values)
        sql.execute(f"CREATE TEMP TABLE pending AS SELECT * FROM delays WHERE state = 'pending'{condition}", values)
        parts: list[Table | Plot] = [_deliveries(sql), _distances(sql), _plot(sql)]
        if table_freshness.as_of_ms is not None:
            parts += [_pending(sql, table_freshness.as_of_ms), _overdue(sql, table_freshness.as_of_ms)]
    warnings = (*table_freshness.warnings, *time_range.late_start_warnings(home, MESSAGES, since_ms))
    return Report(text("Delayed messages"), utc_time(table_freshness.as_of_ms), warnings, tuple(parts))


def _deliveries(sql: DuckDBPyConnection) -> Table:
    side = {"early": ("lateness_ms < 0", "-lateness_ms"), "late": ("lateness_ms >= 0", "lateness_ms")}
    sides = ", ".join(
        f"""count(*) FILTER (WHERE {condition}) AS {name}, quantile_disc({ms}, 0.5) FILTER (WHERE {condition}) AS {name}_p50,
        quantile_disc({ms}, 0.99) FILTER (WHERE {condition}) AS {name}_p99, max({ms}) FILTER (WHERE {condition}) AS {name}_max"""
        for name, (condition, ms) in side.items()
    )
    results = query(
        sql,
        f"""SELECT kind, level, count(*) FILTER (WHERE state = 'delivered') AS delivered,
        count(*) FILTER (WHERE state = 'pending') AS pending, count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
        count(*) FILTER (WHERE state = 'delivered' AND lateness_ms IS NULL) AS unknown, {sides}
        FROM due GROUP BY ALL ORDER BY kind, level""",
    )
    columns = {
        "kind": Column("kind"),
        "level": Column("level"),
        "delivered": Column("delivered"),
        "pending": Column("pending"),
        "cancelled": Column("cancelled"),
        "early": Column("early"),
        "early_p50": Column("p50 early", "ms"),
        "early_p99": Column("p99 early", "ms"),
        "early_max": Column("max early", "ms"),
        "late": Column("on time or late"),
        "late_p50": Column("p50 late", "ms"),
        "late_p99": Column("p99 late", "ms"),
        "late_max": Column("max late", "ms"),
        "unknown": Column("unknown"),
    }
    note = text(
        "Messages due in this time range. Late: stored in the target topic after the due time, by the broker's clock. Kind level: "
        "due after the delay of the level; retry: redelivery to a consumer group, where the level counts the failures. "
        "Unknown: delivered, but the original record is in no table."
    )
    return table_of(text("Deliveries"), columns, results, note)


def _distances(sql: DuckDBPyConnection) -> Table:
    cases = " ".join(
        f"WHEN lateness_ms <= {upper_ms} THEN {number}"
        for number, (_, upper_ms) in enumerate(DISTANCES)
        if upper_ms is not None
    )
    results = query(
        sql,
        f"""SELECT CASE {cases} ELSE {len(DISTANCES) - 1} END AS distance, kind, count(*) AS count
        FROM due WHERE lateness_ms IS NOT NULL GROUP BY ALL""",
    )
    counts = {(row["distance"], row["kind"]): row["count"] for row in results}
    kinds = (LEVEL, TIME, RETRY)
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (name, *(counts.get((number, kind), 0) for kind in kinds)) for number, (name, _) in enumerate(DISTANCES)
    )
    return Table(
        text("Deviation from the due time"), (Column("deviation"), *map(Column, kinds)), rows if results else ()
    )


def _plot(sql: DuckDBPyConnection) -> Plot:
    title, unit, note = text("p99 of lateness"), "ms", text("By due time. Early deliveries count as negative.")
    (span,) = query(
        sql,
        "SELECT epoch_ms(min(scheduled_at)) AS first, "
        "epoch_ms(max(scheduled_at)) AS last FROM due WHERE lateness_ms IS NOT NULL",
    )
    if span["first"] is None:
        return Plot(title, unit, (), text("No message due in this time range was delivered."))
    bucket = plot_buckets.bucket_ms(span["first"], span["last"])
    results = query(
        sql,
        f"""SELECT epoch_ms(scheduled_at) // {bucket} * {bucket} AS bucket, kind, quantile_disc(lateness_ms, 0.99) AS p99
        FROM due WHERE lateness_ms IS NOT NULL GROUP BY ALL""",
    )
    first, last = (span[name] // bucket * bucket for name in ("first", "last"))
    lines = []
    for kind in (LEVEL, TIME, RETRY):
        if values := {row["bucket"]: float(row["p99"]) for row in results if row["kind"] == kind}:
            lines.append(plot_buckets.series(kind, values, first, last, bucket))
    return Plot(title, unit, tuple(lines), note)


def _pending(sql: DuckDBPyConnection, as_of_ms: int) -> Table:
    # Overdue messages have a table of their own.
    results = query(
        sql,
        f"""SELECT epoch_ms(scheduled_at) // {HOUR_MS} * {HOUR_MS} AS hour, count(*) FILTER (WHERE kind = 'level') AS level,
        count(*) FILTER (WHERE kind = 'time') AS time, count(*) FILTER (WHERE kind = 'retry') AS retry, count(*) AS total
        FROM pending WHERE scheduled_at IS NULL OR epoch_ms(scheduled_at) >= {as_of_ms - OVERDUE_MS}
        GROUP BY ALL ORDER BY hour NULLS FIRST""",
    )
    rows = [(utc_time(row["hour"]), *(row[name] for name in ("level", "time", "retry", "total"))) for row in results]
    fields = (Column("due from"), Column("level"), Column("time"), Column("retry"), Column("total"))
    note = text(
        "All pending messages by hour of their due time; hours without messages are omitted. Without an hour: unknown delay level "
        "(--delay-levels)."
    )
    return first_rows(text("Pending by due hour"), fields, rows, note, HOURS_MAX)


def _overdue(sql: DuckDBPyConnection, as_of_ms: int) -> Table:
    question = f"FROM pending WHERE epoch_ms(scheduled_at) < {as_of_ms - OVERDUE_MS}"
    # The total, because only the oldest are listed.
    ((count,),) = sql.execute(f"SELECT count(*) {question}").fetchall()
    results = query(
        sql,
        f"""SELECT *, {as_of_ms} - epoch_ms(scheduled_at) AS overdue_ms {question}
        ORDER BY scheduled_at, message_id, commit_log_offset LIMIT {IDS_MAX}""",
    )
    columns = {
        "message_id": Column("message id"),
        "kind": Column("kind"),
        "level": Column("level"),
        "topic": Column("topic"),
        "broker": Column("broker"),
        "scheduled_at": Column("due"),
        "overdue_ms": Column("overdue", "ms"),
    }
    note = text(
        "Due %(seconds)s s or more before the as-of time, %(as_of)s %(zone)s. Oldest first. The broker is late or stopped, or "
        "could not deliver the message (see its log).",
        seconds=OVERDUE_MS // 1000,
        as_of=Moment(utc_time(as_of_ms), "%Y-%m-%d %H:%M:%S"),
        zone=ZONE,
    )
    return table_of(text("Overdue"), columns, results, note)._replace(omitted_rows=count - len(results))
