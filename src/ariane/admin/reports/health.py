"""What is wrong with messages: duplicates, disorder, clocks, what was never consumed, who does not trace, dead letters."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ariane.admin.asking import asked, between, rows
from ariane.admin.published import current
from ariane.admin.report import Field, Report, Sheet, Value
from ariane.admin.status import freshness
from ariane.tables import HEALTH, MESSAGES, TRACE_EVENTS
from ariane.tables import health as kinds

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_MAX = 20  # of a sheet, the worst ones
NEVER_AFTER_MS = 600_000  # so old has a message to be before it counts as never consumed
# How long before the asked time consumptions tell which group consumes which topic: a group may stand still for long.
SUBSCRIBED_MS = 86_400_000


class _Kind(NamedTuple):
    """A kind of finding and its sheet. `worst` is the field of the worst value, `by` what tells the rows apart."""

    kind: str
    title: str
    by: tuple[str, ...]
    worst: Field
    note: str


NAMES = {"consumer_group": "group", "host": "client", "cause": "cause", "topic": "topic"}

KINDS = (
    _Kind(
        kinds.CONSUMED_TWICE,
        "Consumed twice",
        ("consumer_group", "topic"),
        Field("most times"),
        "One group reported success for two calls of its listener with the same message. Delivery is at least once: make the "
        "listener idempotent by the unique id. Many at once: consumers that come and go (rebalancing before offsets are "
        "stored), or a listener that is slower than its time-out. Members of a broadcasting group consume each message each: "
        "that is no fault.",
    ),
    _Kind(
        kinds.STORED_TWICE,
        "Stored twice",
        ("topic", "host"),
        Field("most copies"),
        "A producer sent again what a broker had stored, because its answer did not come in time. Consumers get both, with "
        "one unique id: drop the second by it. Look at the send time-out and at the broker's flush times.",
    ),
    _Kind(
        kinds.OUT_OF_ORDER,
        "Out of order",
        ("consumer_group", "topic", "cause"),
        Field("worst by", "ms"),
        "The first delivery of a message began before that of an earlier one of the same key and queue. It matters where the "
        "group relies on order: use an orderly listener there. Two clients: a queue changed hands, or their clocks differ.",
    ),
    _Kind(
        kinds.CLOCK_AHEAD,
        "Producers' clocks ahead of the broker's",
        ("host", "topic"),
        Field("at least", "ms"),
        "These messages were born later than they were stored. A search by unique key that begins at the time in the id "
        "does not find them. Set the client's clock (NTP); until then search with an earlier beginning, or by "
        "`ariane trace --id`. Clocks that are less ahead than a send takes are not seen.",
    ),
    _Kind(
        kinds.DEAD_LETTER,
        "Dead letters",
        ("consumer_group", "topic", "cause"),
        Field("most retries"),
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
    never_after_ms: int = NEVER_AFTER_MS,
) -> Report:
    """Findings about messages stored between two instants, worst first."""
    fresh = freshness(home, HEALTH, now_ms)
    gaps = list(fresh.gaps)
    for table, lost in ((MESSAGES, "clocks, disorder and dead letters"), (TRACE_EVENTS, "consumption")):
        if current(home, table) is None:
            gaps.append(f"no {table.name} in {home}: nothing is known of {lost}")
    asked_ms = (since_ms, until_ms)
    with asked(home, between(HEALTH, since_ms - SUBSCRIBED_MS, until_ms)) as sql:
        sheets = [_found(sql, kind, asked_ms, topic, group) for kind in KINDS]
        known_ms = min(now_ms, fresh.as_of_ms) if fresh.as_of_ms is not None else now_ms
        old_ms = (since_ms, min(until_ms, known_ms - never_after_ms))
        sheets.insert(4, _never_consumed(sql, old_ms, since_ms - SUBSCRIBED_MS, topic, group, never_after_ms))
        sheets += [_untraced_producers(sql, asked_ms, topic), _untraced_groups(sql, asked_ms, topic, group)]
    as_of = None if fresh.as_of_ms is None else _time(fresh.as_of_ms)
    return Report("Health of messages", as_of, tuple(dict.fromkeys(gaps)), tuple(sheets))


def _found(
    sql: DuckDBPyConnection, kind: _Kind, asked_ms: tuple[int, int], topic: str | None, group: str | None
) -> Sheet:
    names = ", ".join(kind.by)
    found = rows(
        sql,
        f"""SELECT {names}, sum(count)::BIGINT AS messages, max(worst) AS worst, max(minute) AS last,
                   arg_max(examples[1].message_id, examples[1].worst) AS example
            FROM health WHERE kind = $1 AND minute BETWEEN $2 AND $3
              AND ($4 IS NULL OR topic = $4) AND ($5 IS NULL OR consumer_group IS NULL OR consumer_group = $5)
            GROUP BY {names} ORDER BY messages DESC, worst DESC, {names}""",
        [kind.kind, *map(_time, asked_ms), topic, group],
    )
    fields = (*(Field(NAMES[name]) for name in kind.by), Field("messages"), kind.worst, Field("last"), Field("example"))
    return _sheet(f"{kind.title}: {_total(found)}", fields, found, kind.note)


def _never_consumed(
    sql: DuckDBPyConnection,
    asked_ms: tuple[int, int],
    since_ms: int,
    topic: str | None,
    group: str | None,
    after_ms: int,
) -> Sheet:
    """Stored, less consumed: for every group that has consumed of a topic and tag, then or in the day before."""
    found = rows(
        sql,
        """WITH stored AS (
             SELECT topic, cause AS tag, minute, count, examples, string_split(coalesce(consumer_group, ''), ' ') AS groups
             FROM health WHERE kind = 'stored' AND topic IS NOT NULL AND ($4 IS NULL OR topic = $4)),
           takes AS (
             SELECT DISTINCT topic, tag, unnest(groups) AS consumer_group FROM stored WHERE minute BETWEEN $3 AND $2),
           missed AS (
             SELECT topic, consumer_group, count, minute, examples
             FROM stored JOIN takes USING (topic) WHERE stored.tag IS NOT DISTINCT FROM takes.tag
               AND consumer_group NOT IN ('', '?') AND ($5 IS NULL OR consumer_group = $5)
               AND NOT list_contains(groups, consumer_group) AND NOT list_contains(groups, '?')
           UNION ALL
             SELECT topic, NULL, count, minute, examples FROM stored
             WHERE groups = [''] AND $5 IS NULL AND NOT EXISTS (
               FROM takes WHERE takes.topic = stored.topic AND takes.consumer_group != ''))
        SELECT topic, consumer_group, sum(count)::BIGINT AS messages, min(minute) AS first, max(minute) AS last,
               arg_max(examples[1].message_id, minute) AS example
        FROM missed WHERE minute BETWEEN $1 AND $2 GROUP BY ALL ORDER BY messages DESC, topic, consumer_group""",
        [*map(_time, asked_ms), _time(since_ms), topic, group],
    )
    note = (
        f"Stored at least {after_ms // 60_000} minutes before the end of what is known, and no trace of a consumption in a "
        "group that consumes messages of that topic and tag (or has in the day before). Without a group: no consumption of "
        "the topic is known at all. A group that stands still or lags shows here first (`ariane report lag`); one that "
        "filters by SQL, or that skipped ahead, never gets them; clients that lose their traces look the same."
    )
    fields = (Field("topic"), Field("group"), Field("messages"), Field("first"), Field("last"), Field("example"))
    return _sheet(f"Never consumed: {_total(found)}", fields, found, note)


def _untraced_producers(sql: DuckDBPyConnection, asked_ms: tuple[int, int], topic: str | None) -> Sheet:
    found = rows(
        sql,
        """SELECT host, topic, sum(count) FILTER (cause = 'untraced')::BIGINT AS untraced, sum(count)::BIGINT AS messages,
                  round(100 * untraced / messages, 2) AS share
           FROM health WHERE kind = 'sent' AND minute BETWEEN $1 AND $2 AND ($3 IS NULL OR topic = $3)
           GROUP BY ALL HAVING untraced > 0 ORDER BY untraced DESC, host, topic""",
        [*map(_time, asked_ms), topic],
    )
    note = (
        "Messages that brokers stored and whose send left no trace. 100 %: the producer does not trace (enableMsgTrace). "
        "Less: it loses traces; Java 4.9.4 does from about 1,000 messages a second on. Java's one-way sends are never traced."
    )
    fields = (Field("client"), Field("topic"), Field("without trace"), Field("messages"), Field("share", "%"))
    return _sheet(f"Producers that do not trace: {len(found)}", fields, found, note)


def _untraced_groups(sql: DuckDBPyConnection, asked_ms: tuple[int, int], topic: str | None, group: str | None) -> Sheet:
    found = rows(
        sql,
        """SELECT consumer_group, topic, sum(count)::BIGINT AS records, max(minute) AS last
           FROM health WHERE kind = 'retried' AND minute BETWEEN $1 AND $2
             AND ($3 IS NULL OR topic = $3) AND ($4 IS NULL OR consumer_group = $4)
             AND consumer_group NOT IN (
               SELECT unnest(string_split(consumer_group, ' ')) FROM health WHERE kind = 'stored'
                 AND consumer_group IS NOT NULL)
           GROUP BY ALL ORDER BY records DESC, consumer_group""",
        [*map(_time, asked_ms), topic, group],
    )
    note = (
        "Groups that are known by messages in their retry or dead-letter topics, and that left no trace of a consumption, then "
        "or in the day before. A group that never failed and does not trace cannot be seen here."
    )
    fields = (Field("group"), Field("topic"), Field("records sent back"), Field("last"))
    return _sheet(f"Groups that do not trace: {len(found)}", fields, found, note)


def _sheet(title: str, fields: tuple[Field, ...], found: list[dict[str, Any]], note: str) -> Sheet:
    shown: tuple[tuple[Value, ...], ...] = tuple(tuple(row.values()) for row in found[:ROWS_MAX])
    return Sheet(title, fields, shown, note, max(0, len(found) - ROWS_MAX))


def _total(found: list[dict[str, Any]]) -> str:
    return f"{sum(row['messages'] for row in found):,}"


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
