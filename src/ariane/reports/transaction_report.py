"""Report `transactions`: from half messages to their decisions, how often brokers had to ask, what is open or given up.

Of the table `transactions`, so by the brokers' clocks; what producers answered comes from their traces.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ariane.reports import plot_buckets, time_range
from ariane.reports.pipeline_status import freshness
from ariane.reports.report import Column, Plot, Report, Table, utc_time
from ariane.reports.table_views import open_views, query, whole_table
from ariane.tables import MESSAGES, TRANSACTIONS
from ariane.tables.transactions import COMMIT, DISCARDED, OPEN, ROLLBACK, UNKNOWN

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

DECISIONS = (COMMIT, ROLLBACK, UNKNOWN, DISCARDED, OPEN)
# Brokers ask every minute, unless told otherwise: what was left alone for so long is ended, or too young by its own immunity.
SILENT_MS = 600_000
# What is counted: the ids of a million rows take longer to read than all else.
COUNTED = "topic, producer_group, half_stored_at, decision, decision_ms, checks, commits, reported_state, from_check"
ROWS_MAX = 50  # topics and groups, the busiest
IDS_MAX = 20  # of the open ones, the oldest
# Name, and up to which age (ms); the last has no bound.
AGES: tuple[tuple[str, int | None], ...] = (
    ("to 10 s", 10_000),
    ("to 1 min", 60_000),
    ("to 10 min", 600_000),
    ("to 1 h", 3_600_000),
    ("to 1 day", 86_400_000),
    ("older", None),
)


def report(
    home: Path, *, since_ms: int, until_ms: int, now_ms: int, topic: str | None = None, group: str | None = None
) -> Report:
    """Transactions whose half message was stored between two instants; open ones of any age. `topic`: where a commit puts them,
    `group`: of their producers."""
    fresh = freshness(home, TRANSACTIONS, now_ms)
    with open_views(home, whole_table(TRANSACTIONS)) as sql:
        narrowed = "".join(
            f" AND {name} = ?" for name, wanted in (("topic", topic), ("producer_group", group)) if wanted is not None
        )
        values = [wanted for wanted in (topic, group) if wanted is not None]
        stored = f"BETWEEN to_timestamp({since_ms} / 1000.0) AND to_timestamp({until_ms} / 1000.0)"
        inside = f"coalesce(half_stored_at, decided_at) {stored}"
        sql.execute(f"CREATE TEMP TABLE chosen AS SELECT {COUNTED} FROM transactions WHERE {inside}{narrowed}", values)
        sql.execute(
            f"""CREATE TEMP TABLE discarded AS SELECT * FROM transactions
            WHERE decision = 'discarded' AND {inside}{narrowed}""",
            values,
        )
        is_silent = "false" if fresh.as_of_ms is None else f"epoch_ms(last_copy_at) < {fresh.as_of_ms - SILENT_MS}"
        sql.execute(
            f"""CREATE TEMP TABLE waiting AS SELECT *, {is_silent} AS is_silent,
            if(half_stored_at IS NULL, NULL, greatest({now_ms} - epoch_ms(half_stored_at), 0)) AS age_ms
            FROM transactions WHERE decision = 'open'{narrowed}""",
            values,
        )
        parts = (_ends(sql), _times(sql), _plot(sql), _checks(sql), _ages(sql), _oldest(sql), _given_up(sql))
    gaps = (*fresh.warnings, *time_range.late_start_warnings(home, MESSAGES, since_ms))
    return Report("Transactions", utc_time(fresh.as_of_ms), gaps, parts)


def _ends(sql: DuckDBPyConnection) -> Table:
    counts = ", ".join(f"count(*) FILTER (WHERE decision = '{decision}') AS {decision}" for decision in DECISIONS)
    found = query(
        sql,
        f"""SELECT topic, producer_group, count(*) AS all_of_them, {counts},
        count(*) FILTER (WHERE decision IN ('open', 'discarded') AND reported_state = 'UNKNOW') AS unknown_at_end,
        count(*) FILTER (WHERE commits > 1) AS twice
        FROM chosen GROUP BY ALL ORDER BY all_of_them DESC, topic, producer_group""",
    )
    names = ("topic", "producer_group", "all_of_them", *DECISIONS, "unknown_at_end", "twice")
    fields = (
        Column("topic"),
        Column("group"),
        Column("transactions"),
        Column("committed"),
        Column("rolled back"),
        Column("ended, not known how"),
        Column("given up"),
        Column("open"),
        Column("last answer: unknown"),
        Column("committed twice"),
    )
    note = (
        "Of half messages that were stored in this time. Last answer: what producers of open ones and of those given up said at "
        "the end, as far as they trace."
    )
    listed = tuple(tuple(row[name] for name in names) for row in found[:ROWS_MAX])
    return Table("How they ended", fields, listed, note, max(0, len(found) - ROWS_MAX))


def _times(sql: DuckDBPyConnection) -> Table:
    quantiles = ", ".join(f"quantile_disc(decision_ms, {q}) AS p{q * 100:.0f}" for q in (0.5, 0.9, 0.99))
    found = query(
        sql,
        f"""SELECT decision, coalesce(checks > 0, false) AS is_checked, count(*) AS count, {quantiles}, max(decision_ms) AS most,
        count(*) FILTER (WHERE from_check) AS from_check, count(*) FILTER (WHERE decision_ms IS NULL) AS unknown
        FROM chosen WHERE decision != 'open' GROUP BY ALL ORDER BY decision, is_checked""",
    )
    names = ("decision", "is_checked", "count", "p50", "p90", "p99", "most", "from_check", "unknown")
    fields = (
        Column("decision"),
        Column("was checked"),
        Column("transactions"),
        Column("p50", "ms"),
        Column("p90", "ms"),
        Column("p99", "ms"),
        Column("max", "ms"),
        Column("traced as answers to a check"),
        Column("time unknown"),
    )
    note = "From when the half message was stored to when its commit, op message or copy put aside was: by the broker's clock."
    return Table("Half to decision", fields, tuple(tuple(row[name] for name in names) for row in found), note)


def _plot(sql: DuckDBPyConnection) -> Plot:
    title, unit = "Transactions by decision", ""
    (span,) = query(
        sql, "SELECT epoch_ms(min(half_stored_at)) AS first, epoch_ms(max(half_stored_at)) AS last FROM chosen"
    )
    if span["first"] is None:
        return Plot(title, unit, (), "No half message of this time is known.")
    step = plot_buckets.bucket_ms(span["first"], span["last"])
    found = query(
        sql,
        f"""SELECT epoch_ms(half_stored_at) // {step} * {step} AS step, decision, count(*) AS count
        FROM chosen WHERE half_stored_at IS NOT NULL GROUP BY ALL""",
    )
    first, last = (span[name] // step * step for name in ("first", "last"))
    there = {row["step"] for row in found}
    lines = []
    for decision in DECISIONS:
        counts = {row["step"]: float(row["count"]) for row in found if row["decision"] == decision}
        if counts:
            # Where others are known, none of this decision is none.
            lines.append(plot_buckets.series(decision, {at: counts.get(at, 0.0) for at in there}, first, last, step))
    return Plot(title, unit, tuple(lines), f"By when the half message was stored, in steps of {step // 60_000} min.")


def _checks(sql: DuckDBPyConnection) -> Table:
    counts = ", ".join(f"count(*) FILTER (WHERE decision = '{decision}') AS {decision}" for decision in DECISIONS)
    found = query(
        sql, f"SELECT checks, count(*) AS all_of_them, {counts} FROM chosen GROUP BY ALL ORDER BY checks NULLS LAST"
    )
    names = ("checks", "all_of_them", *DECISIONS)
    fields = (
        Column("checks"),
        Column("transactions"),
        Column("committed"),
        Column("rolled back"),
        Column("ended, not known how"),
        Column("given up"),
        Column("open"),
    )
    note = "How often brokers asked, or would have: a round counts also when no producer of the group was connected."
    return Table("Check-backs", fields, tuple(tuple(row[name] for name in names) for row in found), note)


def _ages(sql: DuckDBPyConnection) -> Table:
    cases = " ".join(
        f"WHEN age_ms <= {most} THEN {number}" for number, (_, most) in enumerate(AGES) if most is not None
    )
    found = query(
        sql,
        f"""SELECT CASE WHEN age_ms IS NULL THEN {len(AGES)} {cases} ELSE {len(AGES) - 1} END AS age, count(*) AS count,
        count(*) FILTER (WHERE is_silent) AS silent, count(*) FILTER (WHERE checks > 0) AS checked, max(checks) AS most_checks,
        count(*) FILTER (WHERE reported_state = 'UNKNOW') AS unknown FROM waiting GROUP BY ALL ORDER BY age""",
    )
    ages = [*(name for name, _ in AGES), "unknown"]
    names = ("count", "silent", "checked", "most_checks", "unknown")
    listed = tuple((ages[row["age"]], *(row[name] for name in names)) for row in found)
    fields = (
        Column("age"),
        Column("open"),
        Column(f"not asked about for {SILENT_MS // 60_000} min"),
        Column("asked about"),
        Column("most checks"),
        Column("last answer: unknown"),
    )
    note = (
        "All of which no end is known, whenever they were sent; their age is as of now. What brokers do not ask about any more is "
        "ended, or immune for that long: Java brokers do not show rollbacks, only traces of their producers tell of them."
    )
    return Table("Open by age", fields, listed, note)


def _oldest(sql: DuckDBPyConnection) -> Table:
    ((count,),) = sql.execute("SELECT count(*) FROM waiting").fetchall()
    names = (
        "message_id",
        "topic",
        "producer_group",
        "broker",
        "half_stored_at",
        "age_ms",
        "checks",
        "last_copy_at",
        "reported_state",
        "offset_message_id",
    )
    found = query(sql, f"SELECT * FROM waiting ORDER BY half_stored_at NULLS FIRST, message_id, broker LIMIT {IDS_MAX}")
    fields = (
        Column("message id"),
        Column("topic"),
        Column("group"),
        Column("broker"),
        Column("stored"),
        Column("age", "ms"),
        Column("checks"),
        Column("newest copy"),
        Column("last answer"),
        Column("broker's id"),
    )
    note = "Look at whether producers of the group are connected, and what they know of it."
    listed = tuple(tuple(row[name] for name in names) for row in found)
    return Table("Oldest open", fields, listed, note, count - len(found))


def _given_up(sql: DuckDBPyConnection) -> Table:
    ((count,),) = sql.execute("SELECT count(*) FROM discarded").fetchall()
    names = (
        "message_id",
        "topic",
        "producer_group",
        "broker",
        "half_stored_at",
        "decided_at",
        "checks",
        "reported_state",
    )
    found = query(sql, f"SELECT * FROM discarded ORDER BY decided_at DESC, message_id, broker LIMIT {IDS_MAX}")
    fields = (
        Column("message id"),
        Column("topic"),
        Column("group"),
        Column("broker"),
        Column("stored"),
        Column("given up"),
        Column("checks"),
        Column("last answer"),
    )
    note = "They lie in TRANS_CHECK_MAX_TIME_TOPIC; resuming one has its broker ask anew. Newest first."
    listed = tuple(tuple(row[name] for name in names) for row in found)
    return Table("Given up", fields, listed, note, count - len(found))
