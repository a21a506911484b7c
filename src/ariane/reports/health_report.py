"""Report `health`: duplicates, disorder, clock errors, unconsumed messages, dead letters, and clients without traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ariane.reports.report import Column, Report, Table, table_of, utc_time
from ariane.reports.tables import time_range
from ariane.reports.tables.pipeline_status import freshness
from ariane.reports.tables.table_contents import no_data
from ariane.reports.tables.table_views import files_between, open_views, query
from ariane.reports.texts import Text, text
from ariane.tables import HEALTH, MESSAGES, TRACE_EVENTS
from ariane.tables.declarations import health as kinds
from ariane.tables.table_home import Home
from ariane.tables.table_store import read_version

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_MAX = 20  # per table: the worst findings
UNCONSUMED_AFTER_MS = 600_000  # minimum age of a message that counts as never consumed
# Consumptions of this time before the range show which group consumes which topic: a group may be idle for long.
SUBSCRIBED_MS = 86_400_000


class _ProblemKind(NamedTuple):
    """A kind of finding and its table. `worst` is the column of the worst value, `by` the key of the rows."""

    kind: str
    title: Text
    by: tuple[str, ...]
    worst: Column
    note: Text


NAMES = {
    "consumer_group": Column("group"),
    "host": Column("client"),
    "cause": Column("cause"),
    "topic": Column("topic"),
}

KINDS = (
    _ProblemKind(
        kinds.CONSUMED_TWICE,
        text("Consumed twice"),
        ("consumer_group", "topic"),
        Column("most times"),
        text(
            "A group reported success twice for the same message. Delivery is at least once: make the listener idempotent by the "
            "unique id. Frequent causes: rebalancing before offsets are committed, or a listener slower than its timeout. "
            "In a broadcasting group every member consumes every message; that is not a fault."
        ),
    ),
    _ProblemKind(
        kinds.STORED_TWICE,
        text("Stored twice"),
        ("topic", "host"),
        Column("most copies"),
        text(
            "A producer resent a message that the broker had stored, because the response was late. Consumers receive both copies "
            "with the same unique id: drop the second one. Check the send timeout and the broker's flush times."
        ),
    ),
    _ProblemKind(
        kinds.OUT_OF_ORDER,
        text("Out of order"),
        ("consumer_group", "topic", "cause"),
        Column("worst by", "ms"),
        text(
            "A message was delivered before an earlier one of the same key and queue. If the group relies on order, use an orderly "
            "listener. Two clients: the queue was reassigned, or their clocks differ."
        ),
    ),
    _ProblemKind(
        kinds.CLOCK_AHEAD,
        text("Producers' clocks ahead of the broker's"),
        ("host", "topic"),
        Column("at least", "ms"),
        text(
            "The producer's timestamp is later than the store time. A search by unique key that starts at the time in the id does "
            "not find these messages. Synchronize the client's clock (NTP); until then search from an earlier time, or with "
            "`ariane trace --id`. Errors shorter than the duration of a send are not detected."
        ),
    ),
    _ProblemKind(
        kinds.DEAD_LETTER,
        text("Dead letters"),
        ("consumer_group", "topic", "cause"),
        Column("most retries"),
        text(
            "Messages that exceeded the retry limit of a group, by the result of the last attempt. Fix the listener, then resend: "
            "`ariane replay --from-topic '%DLQ%<group>' --result FILE`."
        ),
    ),
)


def report(
    home: Home,
    *,
    since_ms: int,
    until_ms: int,
    now_ms: int,
    topic: str | None = None,
    group: str | None = None,
) -> Report:
    """Return the report about messages stored in a time range, most frequent findings first."""
    table_freshness = freshness(home, HEALTH, now_ms)
    warnings = [*table_freshness.warnings, *time_range.late_start_warnings(home, HEALTH, since_ms)]
    for table, lost in (
        (MESSAGES, text("clock errors, disorder and dead letters")),
        (TRACE_EVENTS, text("consumption")),
    ):
        if read_version(home, table) is None:
            warnings.append(text("%(missing)s; unknown without them: %(lost)s", missing=no_data(table), lost=lost))
    # Traces reach the tables later than messages: a message that they do not cover yet is not missing.
    covered_ms = min(now_ms, table_freshness.as_of_ms) if table_freshness.as_of_ms is not None else now_ms
    old_ms = min(until_ms, covered_ms - UNCONSUMED_AFTER_MS)
    with open_views(home, files_between(HEALTH, since_ms - SUBSCRIBED_MS, until_ms)) as sql:
        _sum(sql, since_ms, until_ms, old_ms, topic)
        tables = [_findings_table(sql, kind, group) for kind in KINDS]
        tables.insert(4, _never_consumed(sql, group))
        tables += [_untraced_producers(sql), _untraced_groups(sql, group)]
    return Report(
        text("Health of messages"), utc_time(table_freshness.as_of_ms), tuple(dict.fromkeys(warnings)), tuple(tables)
    )


def _sum(sql: DuckDBPyConnection, since_ms: int, until_ms: int, old_ms: int, topic: str | None) -> None:
    """Create the table `sums` in one pass; all tables are computed from it, except the examples, which are much larger.

    Columns `old…`: of messages old enough to be consumed. The day before the range only shows who consumes what.
    """
    sql.execute(
        """CREATE TEMP TABLE sums AS
           SELECT kind, topic, consumer_group, host, cause,
                  sum(count) FILTER (minute >= $1)::BIGINT AS count,
                  max(worst) FILTER (minute >= $1) AS worst,
                  max(minute) FILTER (minute >= $1) AS last,
                  coalesce(arg_max(minute, worst) FILTER (minute >= $1), last) AS worst_at,
                  sum(count) FILTER (minute BETWEEN $1 AND $3)::BIGINT AS old,
                  min(minute) FILTER (minute BETWEEN $1 AND $3) AS old_first,
                  max(minute) FILTER (minute BETWEEN $1 AND $3) AS old_last
           FROM health
           WHERE minute BETWEEN $4 AND $2 AND (minute >= $1 OR kind = 'stored') AND ($5 IS NULL OR topic = $5)
           GROUP BY ALL""",
        [utc_time(since_ms), utc_time(until_ms), utc_time(old_ms), utc_time(since_ms - SUBSCRIBED_MS), topic],
    )


def _findings_table(sql: DuckDBPyConnection, kind: _ProblemKind, group: str | None) -> Table:
    names = ", ".join(kind.by)
    findings = query(
        sql,
        f"""SELECT {names}, sum(count)::BIGINT AS messages, max(worst) AS worst, max(last) AS last,
                   arg_max({{'topic': topic, 'consumer_group': consumer_group, 'host': host, 'cause': cause,
                             'minute': worst_at}}, worst) AS example
            FROM sums WHERE kind = $1 AND ($2 IS NULL OR consumer_group IS NULL OR consumer_group = $2)
            GROUP BY {names} ORDER BY messages DESC, worst DESC, {names}""",
        [kind.kind, group],
    )
    columns = {
        **{name: NAMES[name] for name in kind.by},
        "messages": Column("messages"),
        "worst": kind.worst,
        "last": Column("last"),
        "example": Column("example"),
    }
    title = _counted(kind.title, _total(findings))
    return table_of(title, columns, _with_examples(sql, kind.kind, findings), kind.note, ROWS_MAX)


def _with_examples(sql: DuckDBPyConnection, kind: str, findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace the key in `example` by a message id, for the rows that are shown."""
    # Examples are read for these rows only: their column is larger than all others together.
    shown = findings[:ROWS_MAX]
    if not shown:
        return findings
    # Minutes and topics select the rows without reading the examples of all others.
    minutes = ", ".join(f"TIMESTAMPTZ '{minute.isoformat()}'" for minute in {row["example"]["minute"] for row in shown})
    examples = query(
        sql,
        f"""SELECT topic, consumer_group, host, cause, minute, arg_min(examples[1].message_id, -examples[1].worst) AS worst,
                   min(examples[1].message_id) AS any_one
            FROM health WHERE kind = $1 AND minute IN ({minutes}) AND (topic IS NULL OR list_contains($2, topic))
            GROUP BY topic, consumer_group, host, cause, minute""",
        [kind, sorted({row["example"]["topic"] for row in shown} - {None})],
    )
    names = ("topic", "consumer_group", "host", "cause", "minute")
    ids = {tuple(row[name] for name in names): row["worst"] or row["any_one"] for row in examples}
    return [
        {**row, "example": ids.get(tuple(row["example"][name] for name in names)) if number < ROWS_MAX else None}
        for number, row in enumerate(findings)
    ]


def _never_consumed(sql: DuckDBPyConnection, group: str | None) -> Table:
    """Return the messages stored but not consumed, per group that consumed the topic and tag within the last day."""
    findings = query(
        sql,
        """WITH stored AS (
             SELECT *, cause AS tag, string_split(coalesce(consumer_group, ''), ' ') AS groups
             FROM sums WHERE kind = 'stored' AND topic IS NOT NULL),
           takes AS (SELECT DISTINCT topic, tag, unnest(groups) AS by_group FROM stored),
           missed AS (
             SELECT stored.*, by_group
             FROM stored JOIN takes ON stored.topic = takes.topic AND stored.tag IS NOT DISTINCT FROM takes.tag
             WHERE by_group NOT IN ('', '?') AND ($1 IS NULL OR by_group = $1)
               AND NOT list_contains(groups, by_group) AND NOT list_contains(groups, '?')
           UNION ALL
             SELECT stored.*, NULL FROM stored
             WHERE consumer_group IS NULL AND $1 IS NULL
               AND topic NOT IN (SELECT topic FROM takes WHERE by_group != ''))
        SELECT topic, by_group, sum(old)::BIGINT AS messages, min(old_first) AS first, max(old_last) AS last,
               arg_max({'topic': topic, 'consumer_group': consumer_group, 'host': host, 'cause': cause,
                        'minute': old_last}, old_last) AS example
        FROM missed WHERE old > 0 GROUP BY topic, by_group ORDER BY messages DESC, topic, by_group""",
        [group],
    )
    note = text(
        "Stored at least %(minutes)s minutes before the as-of time, without a trace of consumption by a group "
        "that consumed this topic and tag within the last day. Without a group: the topic has no known consumer. Causes: a "
        "stopped or lagging group (`ariane report lag`), SQL filters, offsets that were set forward, lost traces.",
        minutes=UNCONSUMED_AFTER_MS // 60_000,
    )
    columns = {
        "topic": Column("topic"),
        "by_group": Column("group"),
        "messages": Column("messages"),
        "first": Column("first"),
        "last": Column("last"),
        "example": Column("example"),
    }
    title = _counted(text("Never consumed"), _total(findings))
    return table_of(title, columns, _with_examples(sql, kinds.STORED, findings), note, ROWS_MAX)


def _untraced_producers(sql: DuckDBPyConnection) -> Table:
    findings = query(
        sql,
        """SELECT host, topic, sum(count) FILTER (cause = 'untraced')::BIGINT AS untraced, sum(count)::BIGINT AS messages,
                  round(100 * untraced / messages, 2) AS share
           FROM sums WHERE kind = 'sent' GROUP BY host, topic HAVING untraced > 0 ORDER BY untraced DESC, host, topic""",
    )
    note = text(
        "Stored messages without a trace of their send. 100 %: tracing is off (enableMsgTrace). Less: traces are lost; Java "
        "4.9.4 loses them from about 1,000 messages per second. One-way sends of Java clients are never traced."
    )
    columns = {
        "host": Column("client"),
        "topic": Column("topic"),
        "untraced": Column("without trace"),
        "messages": Column("messages"),
        "share": Column("share", "%"),
    }
    return table_of(_counted(text("Producers without traces"), len(findings)), columns, findings, note, ROWS_MAX)


def _untraced_groups(sql: DuckDBPyConnection, group: str | None) -> Table:
    findings = query(
        sql,
        """SELECT consumer_group, topic, sum(count)::BIGINT AS records, max(last) AS last
           FROM sums WHERE kind = 'retried' AND ($1 IS NULL OR consumer_group = $1) AND consumer_group NOT IN (
               SELECT unnest(string_split(consumer_group, ' ')) FROM sums
               WHERE kind = 'stored' AND consumer_group IS NOT NULL)
           GROUP BY consumer_group, topic ORDER BY records DESC, consumer_group, topic""",
        [group],
    )
    note = text(
        "Groups with messages in their retry or dead-letter topics, but without a trace of consumption within the last day. A "
        "group without traces that never failed cannot be detected."
    )
    columns = {
        "consumer_group": Column("group"),
        "topic": Column("topic"),
        "records": Column("records sent back"),
        "last": Column("last"),
    }
    return table_of(_counted(text("Groups without traces"), len(findings)), columns, findings, note, ROWS_MAX)


def _total(findings: list[dict[str, Any]]) -> int:
    return int(sum(row["messages"] for row in findings))


def _counted(title: Text, count: int) -> Text:
    return text("%(title)s: %(count)s", title=title, count=count)
