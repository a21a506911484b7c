"""What is wrong with messages: duplicates, disorder, clocks, what was never consumed, who does not trace, dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ariane.reports import time_range
from ariane.reports.pipeline_status import freshness
from ariane.reports.report import Column, Report, Table, Value, utc_time
from ariane.reports.table_views import files_between, open_views, query
from ariane.tables import HEALTH, MESSAGES, TRACE_EVENTS
from ariane.tables import health as kinds
from ariane.tables.table_format import read_version

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_MAX = 20  # of a sheet, the worst ones
UNCONSUMED_AFTER_MS = 600_000  # so old has a message to be before it counts as never consumed
# How long before the asked time consumptions tell which group consumes which topic: a group may stand still for long.
SUBSCRIBED_MS = 86_400_000


class _ProblemKind(NamedTuple):
    """A kind of finding and its sheet. `worst` is the field of the worst value, `by` what tells the rows apart."""

    kind: str
    title: str
    by: tuple[str, ...]
    worst: Column
    note: str


NAMES = {"consumer_group": "group", "host": "client", "cause": "cause", "topic": "topic"}

KINDS = (
    _ProblemKind(
        kinds.CONSUMED_TWICE,
        "Consumed twice",
        ("consumer_group", "topic"),
        Column("most times"),
        "One group reported success for two calls of its listener with the same message. Delivery is at least once: make the "
        "listener idempotent by the unique id. Many at once: consumers that come and go (rebalancing before offsets are "
        "stored), or a listener that is slower than its time-out. Members of a broadcasting group consume each message each: "
        "that is no fault.",
    ),
    _ProblemKind(
        kinds.STORED_TWICE,
        "Stored twice",
        ("topic", "host"),
        Column("most copies"),
        "A producer sent again what a broker had stored, because its answer did not come in time. Consumers get both, with "
        "one unique id: drop the second by it. Look at the send time-out and at the broker's flush times.",
    ),
    _ProblemKind(
        kinds.OUT_OF_ORDER,
        "Out of order",
        ("consumer_group", "topic", "cause"),
        Column("worst by", "ms"),
        "The first delivery of a message began before that of an earlier one of the same key and queue. It matters where the "
        "group relies on order: use an orderly listener there. Two clients: a queue changed hands, or their clocks differ.",
    ),
    _ProblemKind(
        kinds.CLOCK_AHEAD,
        "Producers' clocks ahead of the broker's",
        ("host", "topic"),
        Column("at least", "ms"),
        "These messages were born later than they were stored. A search by unique key that begins at the time in the id "
        "does not find them. Set the client's clock (NTP); until then search with an earlier beginning, or by "
        "`ariane trace --id`. Clocks that are less ahead than a send takes are not seen.",
    ),
    _ProblemKind(
        kinds.DEAD_LETTER,
        "Dead letters",
        ("consumer_group", "topic", "cause"),
        Column("most retries"),
        "Messages that a group gave up, by the result of its last attempt. Mend the listener, then send them again: "
        "`ariane replay --from-topic '%DLQ%<group>' --result FILE`.",
    ),
)


def report(
    home: Path,
    *,
    since_ms: int,
    until_ms: int,
    now_ms: int,
    topic: str | None = None,
    group: str | None = None,
    unconsumed_after_ms: int = UNCONSUMED_AFTER_MS,
) -> Report:
    """Findings about messages stored between two instants, worst first."""
    fresh = freshness(home, HEALTH, now_ms)
    gaps = [*fresh.warnings, *time_range.late_start_warnings(home, HEALTH, since_ms)]
    for table, lost in ((MESSAGES, "clocks, disorder and dead letters"), (TRACE_EVENTS, "consumption")):
        if read_version(home, table) is None:
            gaps.append(f"no {table.name} in {home}: nothing is known of {lost}")
    known_ms = min(now_ms, fresh.as_of_ms) if fresh.as_of_ms is not None else now_ms
    old_ms = min(until_ms, known_ms - unconsumed_after_ms)
    with open_views(home, files_between(HEALTH, since_ms - SUBSCRIBED_MS, until_ms)) as sql:
        _sum(sql, since_ms, until_ms, old_ms, topic)
        sheets = [_found(sql, kind, group) for kind in KINDS]
        sheets.insert(4, _never_consumed(sql, group, unconsumed_after_ms))
        sheets += [_untraced_producers(sql), _untraced_groups(sql, group)]
    return Report("Health of messages", utc_time(fresh.as_of_ms), tuple(dict.fromkeys(gaps)), tuple(sheets))


def _sum(sql: DuckDBPyConnection, since_ms: int, until_ms: int, old_ms: int, topic: str | None) -> None:
    """The table `sums`, in one pass: all that is asked follows from it but the examples, which are much more.

    `old…`: of messages that are old enough to be consumed. Of the day before, there is only who consumes what.
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


def _found(sql: DuckDBPyConnection, kind: _ProblemKind, group: str | None) -> Table:
    names = ", ".join(kind.by)
    found = query(
        sql,
        f"""SELECT {names}, sum(count)::BIGINT AS messages, max(worst) AS worst, max(last) AS last,
                   arg_max({{'topic': topic, 'consumer_group': consumer_group, 'host': host, 'cause': cause,
                             'minute': worst_at}}, worst) AS example
            FROM sums WHERE kind = $1 AND ($2 IS NULL OR consumer_group IS NULL OR consumer_group = $2)
            GROUP BY {names} ORDER BY messages DESC, worst DESC, {names}""",
        [kind.kind, group],
    )
    fields = (
        *(Column(NAMES[name]) for name in kind.by),
        Column("messages"),
        kind.worst,
        Column("last"),
        Column("example"),
    )
    return _sheet(f"{kind.title}: {_total(found)}", fields, _with_examples(sql, kind.kind, found), kind.note)


def _with_examples(sql: DuckDBPyConnection, kind: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With a message in place of the row that `example` names, for what is shown."""
    shown = found[:ROWS_MAX]
    if not shown:
        return found
    # Named by their minutes and topics, the rows are found without reading the examples of others.
    minutes = ", ".join(f"TIMESTAMPTZ '{minute.isoformat()}'" for minute in {row["example"]["minute"] for row in shown})
    there = query(
        sql,
        f"""SELECT topic, consumer_group, host, cause, minute, arg_min(examples[1].message_id, -examples[1].worst) AS worst,
                   min(examples[1].message_id) AS any_one
            FROM health WHERE kind = $1 AND minute IN ({minutes}) AND (topic IS NULL OR list_contains($2, topic))
            GROUP BY topic, consumer_group, host, cause, minute""",
        [kind, sorted({row["example"]["topic"] for row in shown} - {None})],
    )
    names = ("topic", "consumer_group", "host", "cause", "minute")
    ids = {tuple(row[name] for name in names): row["worst"] or row["any_one"] for row in there}
    return [
        {**row, "example": ids.get(tuple(row["example"][name] for name in names)) if number < ROWS_MAX else None}
        for number, row in enumerate(found)
    ]


def _never_consumed(sql: DuckDBPyConnection, group: str | None, after_ms: int) -> Table:
    """Stored, less consumed: for every group that has consumed of a topic and tag, then or in the day before."""
    found = query(
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
    note = (
        f"Stored at least {after_ms // 60_000} minutes before the end of what is known, and no trace of a consumption in a "
        "group that consumes messages of that topic and tag (or has in the day before). Without a group: no consumption of "
        "the topic is known at all. A group that stands still or lags shows here first (`ariane report lag`); one that "
        "filters by SQL, or that skipped ahead, never gets them; clients that lose their traces look the same."
    )
    fields = (Column("topic"), Column("group"), Column("messages"), Column("first"), Column("last"), Column("example"))
    return _sheet(f"Never consumed: {_total(found)}", fields, _with_examples(sql, kinds.STORED, found), note)


def _untraced_producers(sql: DuckDBPyConnection) -> Table:
    found = query(
        sql,
        """SELECT host, topic, sum(count) FILTER (cause = 'untraced')::BIGINT AS untraced, sum(count)::BIGINT AS messages,
                  round(100 * untraced / messages, 2) AS share
           FROM sums WHERE kind = 'sent' GROUP BY host, topic HAVING untraced > 0 ORDER BY untraced DESC, host, topic""",
    )
    note = (
        "Messages that brokers stored and whose send left no trace. 100 %: the producer does not trace (enableMsgTrace). "
        "Less: it loses traces; Java 4.9.4 does from about 1,000 messages a second on. Java's one-way sends are never traced."
    )
    fields = (Column("client"), Column("topic"), Column("without trace"), Column("messages"), Column("share", "%"))
    return _sheet(f"Producers that do not trace: {len(found)}", fields, found, note)


def _untraced_groups(sql: DuckDBPyConnection, group: str | None) -> Table:
    found = query(
        sql,
        """SELECT consumer_group, topic, sum(count)::BIGINT AS records, max(last) AS last
           FROM sums WHERE kind = 'retried' AND ($1 IS NULL OR consumer_group = $1) AND consumer_group NOT IN (
               SELECT unnest(string_split(consumer_group, ' ')) FROM sums
               WHERE kind = 'stored' AND consumer_group IS NOT NULL)
           GROUP BY consumer_group, topic ORDER BY records DESC, consumer_group, topic""",
        [group],
    )
    note = (
        "Groups that are known by messages in their retry or dead-letter topics, and that left no trace of a consumption, then "
        "or in the day before. A group that never failed and does not trace cannot be seen here."
    )
    fields = (Column("group"), Column("topic"), Column("records sent back"), Column("last"))
    return _sheet(f"Groups that do not trace: {len(found)}", fields, found, note)


def _sheet(title: str, fields: tuple[Column, ...], found: list[dict[str, Any]], note: str) -> Table:
    shown: tuple[tuple[Value, ...], ...] = tuple(tuple(row.values()) for row in found[:ROWS_MAX])
    return Table(title, fields, shown, note, max(0, len(found) - ROWS_MAX))


def _total(found: list[dict[str, Any]]) -> str:
    return f"{sum(row['messages'] for row in found):,}"
