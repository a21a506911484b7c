"""Report `transactions`: decisions and their duration, checks, open and discarded transactions.

Reads the table `transactions`; times are by the brokers' clocks, answers of producers are from their traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ariane.reports.report import Column, Plot, Report, Table, table_of, utc_time
from ariane.reports.tables import plot_buckets, time_range
from ariane.reports.tables.pipeline_status import freshness
from ariane.reports.tables.table_views import open_views, query, whole_table
from ariane.reports.texts import Text, text
from ariane.tables import MESSAGES, TRANSACTIONS
from ariane.tables.declarations.transactions import COMMIT, DISCARDED, OPEN, ROLLBACK, UNKNOWN
from ariane.tables.table_home import Home

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

DECISIONS = {
    COMMIT: Column("committed"),
    ROLLBACK: Column("rolled back"),
    UNKNOWN: Column("ended, decision unknown"),
    DISCARDED: Column("discarded"),
    OPEN: Column("open"),
}
COUNTS = ", ".join(f"count(*) FILTER (WHERE decision = '{decision}') AS {decision}" for decision in DECISIONS)
# Brokers check every minute by default: a transaction without a check for this long has ended, or has a longer immunity time.
UNCHECKED_MS = 600_000
# Columns that are counted: reading the ids of a million rows would take longer than all other columns.
COUNTED = "topic, producer_group, half_stored_at, decision, decision_ms, checks, commits, reported_state, from_check"
ROWS_MAX = 50  # pairs of topic and group: the busiest
IDS_MAX = 20  # of open transactions the oldest, of discarded ones the newest
# Columns that identify a transaction, in both lists.
_ID_COLUMNS = {
    "message_id": Column("message id"),
    "topic": Column("topic"),
    "producer_group": Column("group"),
    "broker": Column("broker"),
    "half_stored_at": Column("stored"),
}
# Name and upper bound of the age in ms; the last class has no bound.
AGES: tuple[tuple[Text, int | None], ...] = (
    (text("to 10 s"), 10_000),
    (text("to 1 min"), 60_000),
    (text("to 10 min"), 600_000),
    (text("to 1 h"), 3_600_000),
    (text("to 1 day"), 86_400_000),
    (text("older"), None),
)


def report(
    home: Home, *, since_ms: int, until_ms: int, now_ms: int, topic: str | None = None, group: str | None = None
) -> Report:
    """Return the report about transactions with a half message stored in a time range, and about all open ones.

    `topic` selects the target topic, `group` the producer group.
    """
    table_freshness = freshness(home, TRANSACTIONS, now_ms)
    with open_views(home, whole_table(TRANSACTIONS)) as sql:
        condition = "".join(
            f" AND {name} = ?" for name, value in (("topic", topic), ("producer_group", group)) if value is not None
        )
        values = [value for value in (topic, group) if value is not None]
        stored = f"BETWEEN to_timestamp({since_ms} / 1000.0) AND to_timestamp({until_ms} / 1000.0)"
        inside = f"coalesce(half_stored_at, decided_at) {stored}"
        sql.execute(
            f"CREATE TEMP TABLE selected AS SELECT {COUNTED} FROM transactions WHERE {inside}{condition}", values
        )
        sql.execute(
            f"""CREATE TEMP TABLE discarded AS SELECT * FROM transactions
            WHERE decision = 'discarded' AND {inside}{condition}""",
            values,
        )
        # Compared with the as-of time, not with now: a pipeline that lags has not seen the latest checks.
        is_silent = (
            "false"
            if table_freshness.as_of_ms is None
            else f"epoch_ms(last_copy_at) < {table_freshness.as_of_ms - UNCHECKED_MS}"
        )
        sql.execute(
            f"""CREATE TEMP TABLE open_transactions AS SELECT *, {is_silent} AS is_silent,
            if(half_stored_at IS NULL, NULL, greatest({now_ms} - epoch_ms(half_stored_at), 0)) AS age_ms
            FROM transactions WHERE decision = 'open'{condition}""",
            values,
        )
        parts = (_decisions(sql), _times(sql), _plot(sql), _checks(sql), _ages(sql), _oldest(sql), _discarded(sql))
    warnings = (*table_freshness.warnings, *time_range.late_start_warnings(home, MESSAGES, since_ms))
    return Report(text("Transactions"), utc_time(table_freshness.as_of_ms), warnings, parts)


def _decisions(sql: DuckDBPyConnection) -> Table:
    rows = query(
        sql,
        f"""SELECT topic, producer_group, count(*) AS total, {COUNTS},
        count(*) FILTER (WHERE decision IN ('open', 'discarded') AND reported_state = 'UNKNOW') AS unknown_at_end,
        count(*) FILTER (WHERE commits > 1) AS twice
        FROM selected GROUP BY ALL ORDER BY total DESC, topic, producer_group""",
    )
    columns = {
        "topic": Column("topic"),
        "producer_group": Column("group"),
        "total": Column("transactions"),
        **DECISIONS,
        "unknown_at_end": Column("last answer UNKNOWN"),
        "twice": Column("committed twice"),
    }
    note = text(
        "Half messages stored in this time range. Discarded: the check limit was exceeded. Last answer: of the producers of open "
        "and discarded transactions, from traces."
    )
    return table_of(text("Decisions"), columns, rows, note, ROWS_MAX)


def _times(sql: DuckDBPyConnection) -> Table:
    quantiles = ", ".join(f"quantile_disc(decision_ms, {q}) AS p{q * 100:.0f}" for q in (0.5, 0.9, 0.99))
    rows = query(
        sql,
        f"""SELECT decision, coalesce(checks > 0, false) AS is_checked, count(*) AS count, {quantiles}, max(decision_ms) AS most,
        count(*) FILTER (WHERE from_check) AS from_check, count(*) FILTER (WHERE decision_ms IS NULL) AS unknown
        FROM selected WHERE decision != 'open' GROUP BY ALL ORDER BY decision, is_checked""",
    )
    columns = {
        "decision": Column("decision"),
        "is_checked": Column("checked"),
        "count": Column("transactions"),
        "p50": Column("p50", "ms"),
        "p90": Column("p90", "ms"),
        "p99": Column("p99", "ms"),
        "most": Column("max", "ms"),
        "from_check": Column("decided by a check"),
        "unknown": Column("time unknown"),
    }
    note = text(
        "From the store time of the half message to that of the commit, op message or discarded copy, by the broker's clock."
    )
    return table_of(text("Time to decision"), columns, rows, note)


def _plot(sql: DuckDBPyConnection) -> Plot:
    title, unit = text("Transactions by decision"), ""
    (span,) = query(
        sql, "SELECT epoch_ms(min(half_stored_at)) AS first, epoch_ms(max(half_stored_at)) AS last FROM selected"
    )
    if span["first"] is None:
        return Plot(title, unit, (), text("No half message in this time range."))
    bucket = plot_buckets.bucket_ms(span["first"], span["last"])
    rows = query(
        sql,
        f"""SELECT epoch_ms(half_stored_at) // {bucket} * {bucket} AS bucket, decision, count(*) AS count
        FROM selected WHERE half_stored_at IS NOT NULL GROUP BY ALL""",
    )
    first, last = (span[name] // bucket * bucket for name in ("first", "last"))
    starts = {row["bucket"] for row in rows}
    lines = []
    for decision in DECISIONS:
        counts = {row["bucket"]: float(row["count"]) for row in rows if row["decision"] == decision}
        if counts:
            # A bucket with other decisions has zero of this one.
            lines.append(
                plot_buckets.series(decision, {start: counts.get(start, 0.0) for start in starts}, first, last, bucket)
            )
    return Plot(
        title,
        unit,
        tuple(lines),
        text("By store time of the half message, per %(minutes)s min.", minutes=bucket // 60_000),
    )


def _checks(sql: DuckDBPyConnection) -> Table:
    rows = query(
        sql, f"SELECT checks, count(*) AS total, {COUNTS} FROM selected GROUP BY ALL ORDER BY checks NULLS LAST"
    )
    columns = {"checks": Column("checks"), "total": Column("transactions"), **DECISIONS}
    note = text("Number of checks per transaction. A check counts even if no producer of the group was connected.")
    return table_of(text("Checks"), columns, rows, note)


def _ages(sql: DuckDBPyConnection) -> Table:
    cases = " ".join(
        f"WHEN age_ms <= {upper_ms} THEN {number}" for number, (_, upper_ms) in enumerate(AGES) if upper_ms is not None
    )
    rows = query(
        sql,
        f"""SELECT CASE WHEN age_ms IS NULL THEN {len(AGES)} {cases} ELSE {len(AGES) - 1} END AS age, count(*) AS count,
        count(*) FILTER (WHERE is_silent) AS silent, count(*) FILTER (WHERE checks > 0) AS checked, max(checks) AS most_checks,
        count(*) FILTER (WHERE reported_state = 'UNKNOW') AS unknown FROM open_transactions GROUP BY ALL ORDER BY age""",
    )
    ages = [*(name for name, _ in AGES), text("unknown")]
    names = ("count", "silent", "checked", "most_checks", "unknown")
    table_rows = tuple((ages[row["age"]], *(row[name] for name in names)) for row in rows)
    fields = (
        Column("age"),
        Column("open"),
        Column(text("no check for %(minutes)s min", minutes=UNCHECKED_MS // 60_000)),
        Column("checked"),
        Column("max checks"),
        Column("last answer UNKNOWN"),
    )
    note = text(
        "All transactions without a known decision; age as of now. Transactions that the broker no longer checks have ended, or "
        "have a long immunity time: rollbacks on Java brokers are visible only in the producers' traces."
    )
    return Table(text("Open by age"), fields, table_rows, note)


def _oldest(sql: DuckDBPyConnection) -> Table:
    columns = {
        **_ID_COLUMNS,
        "age_ms": Column("age", "ms"),
        "checks": Column("checks"),
        "last_copy_at": Column("last check"),
        "reported_state": Column("last answer"),
        "offset_message_id": Column("offset id"),
    }
    note = text("Check that producers of the group are connected, and what their transaction listeners return.")
    return _transactions(sql, text("Oldest open"), "open_transactions", "half_stored_at NULLS FIRST", columns, note)


def _discarded(sql: DuckDBPyConnection) -> Table:
    columns = {
        **_ID_COLUMNS,
        "decided_at": Column("discarded"),
        "checks": Column("checks"),
        "reported_state": Column("last answer"),
    }
    note = text("Stored in TRANS_CHECK_MAX_TIME_TOPIC; resuming one makes the broker check it again. Newest first.")
    return _transactions(sql, text("Discarded"), "discarded", "decided_at DESC", columns, note)


def _transactions(
    sql: DuckDBPyConnection, title: Text, view: str, order: str, columns: dict[str, Column], note: Text
) -> Table:
    """Return the first IDS_MAX transactions of a temporary table, one row each, and the number of the omitted ones."""
    ((count,),) = sql.execute(f"SELECT count(*) FROM {view}").fetchall()
    rows = query(sql, f"SELECT * FROM {view} ORDER BY {order}, message_id, broker LIMIT {IDS_MAX}")
    return table_of(title, columns, rows, note)._replace(omitted_rows=count - len(rows))
