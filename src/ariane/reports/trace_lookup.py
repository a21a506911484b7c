"""Finds journeys of messages by id, key or topic, and lists the events of their steps. Reads Parquet files, without Spark.

id     → candidate buckets (`tables.time_buckets.candidate_buckets`)     → journeys of these buckets
key    → message_keys, sorted by term → ids and their buckets            → journeys of these buckets
topic  → journeys of the files that overlap the time range, newest or slowest first
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ariane.errors import StoreError
from ariane.reports.journey_steps import row_steps
from ariane.reports.report import utc_time
from ariane.reports.tables import table_contents, table_views
from ariane.reports.trace_steps import SUCCESS, StepKind, TraceStep
from ariane.tables import JOURNEYS, MESSAGE_KEYS, MESSAGES, TRACE_EVENTS, table_format, table_store
from ariane.tables.table_home import Home
from ariane.tables.time_buckets import MAX_AHEAD_MS, bucket_start_ms, candidate_buckets

STAGES = (
    "send failed", "sent", "stored", "decided", "recalled", "available", "delivered", "consumed", "dead-lettered",
)  # fmt: skip
EVENTS = {StepKind.RECALL: "recalled", StepKind.AVAILABLE: "available", StepKind.DEAD_LETTER: "dead-lettered"}
LIMIT = 20
# Files are selected by store time, rows without one by another time: the largest accepted difference between the two.
SLACK_MS = 3_600_000
GROUP_PAGE_MESSAGES = 1000  # messages of a key per query, if only those of a group are requested
NAMES_MAX = 20  # topics listed in the error if a topic has no messages

# Time from the availability of the message to the end of the last attempt.
TOOK_MS = "queueing_ms + greatest(0, epoch_ms(consumed_at) - epoch_ms(delivered_at))"
AT = "coalesce(stored_at, sent_corrected_at, sent_at, available_at, delivered_at)"


class LookupResult(NamedTuple):
    """Matching journeys, as rows with the columns of JOURNEYS. For their freshness see `pipeline_status.freshness`.

    `omitted` counts the messages (for a topic: journeys) beyond the limit, matching or not examined.
    """

    rows: list[dict[str, Any]]
    omitted: int = 0


class TimelineEvent(NamedTuple):
    """An event of a message, or of one of its deliveries."""

    at: datetime  # by the broker's clock if `error_ms` is known, otherwise by the client's
    error_ms: int | None
    """Maximum error of `at` by the broker's clock; None if `at` is by a client clock of unknown offset."""
    event: str  # sent, stored, available, delivered, consumed, …: the first column of a timeline
    host: str | None  # address of the broker or client where it happened; None if the trace does not have it
    group: str | None  # consumer group; None for events of the producer and the broker
    message_id: str  # unique id of the message; several messages may share a key
    keys: str | None  # space-separated, as the producer set them
    tags: str | None  # the message's only tag, despite RocketMQ's plural
    duration: timedelta | None  # of the send or the call, or the delay before the event; None if it has none
    note: str  # result, error or doubt, for people; may be empty


def find_journeys(
    home: Home,
    *,
    key: str | None = None,
    message_id: str | None = None,
    group: str | None = None,
    topic: str | None = None,
    limit: int = LIMIT,
) -> LookupResult:
    """Return the journeys of messages with a business key (newest first), or with an id (unique or offset id).

    At most `limit` messages; with `group` only those that the group consumed, with `topic` only those of the topic, or of an
    unknown one: the trace of a send names it.

    Raises:
        StoreError: no journeys are published yet.
    """
    if (key is None) == (message_id is None):
        raise ValueError("expected exactly one of key and message_id")
    version = _published(home)
    wanted = _Narrowing(group, topic)
    # A unique id contains its time, which leads to the few buckets that may have it; other terms need the table of
    # keys.
    if message_id is not None:
        rows = _journeys(home, {message_id}, _candidate_buckets(home, message_id, version), wanted)
        if rows:
            return LookupResult(rows)
    term = key if key is not None else message_id or ""
    # Only the journeys show which of these messages a group consumed, and their topics.
    candidates, count = _resolve_term(home, term, limit if wanted.is_all else None)
    return _newest_journeys(home, candidates, count, wanted, limit)


class _Narrowing(NamedTuple):
    """Selection of journeys; None selects all."""

    group: str | None
    topic: str | None

    @property
    def is_all(self) -> bool:
        return self == (None, None)


class TopicSelection(NamedTuple):
    """Messages of a topic that were stored in a time range; with a group, only their consumption by it."""

    topic: str
    since_ms: int
    until_ms: int
    group: str | None = None


def journeys_of_topic(
    home: Home, selection: TopicSelection, *, is_slowest_first: bool = False, limit: int = LIMIT
) -> LookupResult:
    """Return the journeys of a topic's messages, newest or slowest first.

    Each row has `took_ms`, the time from the availability of the message to the end of the last attempt.

    Raises:
        StoreError: no journeys are published, or none of the topic in this range. Lists the topics with journeys.
    """
    _published(home)
    topic, since_ms, until_ms, group = selection
    between = table_views.files_between(JOURNEYS, since_ms - SLACK_MS, until_ms + SLACK_MS)
    condition = f"topic = $1 AND {AT} BETWEEN $2 AND $3" + (" AND consumer_group = $4" if group is not None else "")
    values: list[object] = [topic, utc_time(since_ms), utc_time(until_ms), *(() if group is None else (group,))]
    order = f"{TOOK_MS} DESC NULLS LAST" if is_slowest_first else f"{AT} DESC"
    with table_views.open_views(home, between) as sql:
        (count,) = table_views.query(sql, f"SELECT count(*) AS journeys FROM journeys WHERE {condition}", values)
        if not count["journeys"] and group is None:
            _raise_no_messages(topic, sql, values[1:3])
        question = f"SELECT *, {TOOK_MS} AS took_ms FROM journeys WHERE {condition} ORDER BY {order} LIMIT {int(limit)}"
        rows = table_views.query(sql, question, values)
    return LookupResult(rows, count["journeys"] - len(rows))


def timeline(rows: Iterable[Mapping[str, Any]]) -> list[TimelineEvent]:
    """Return the events of messages in chronological order, simultaneous ones in causal order.

    Times are by the broker's clock where the client's clock offset is known, otherwise by the client's clock.
    """
    # A dict as an ordered set: journeys of several groups share the events of the producer and the broker.
    events: dict[TimelineEvent, None] = {}
    for row in rows:
        events |= dict.fromkeys(_events(row))
    return sorted(
        events,
        key=lambda event: (event.at, STAGES.index(event.event.split(":")[0]), event.message_id, event.group or ""),
    )


# --- queries -----------------------------------------------------------------------------------------------------------


def _published(home: Home) -> table_format.TableVersion:
    version = table_store.read_version(home, JOURNEYS)
    if version is None:
        command = f"ariane pipeline run trace -n 127.0.0.1:9876 --home {shlex.quote(str(home))}"
        raise StoreError(
            f"no journeys in {home} yet: wait for the first round of a pipeline that runs there, or run `{command}` "
            f"with the address of your name server ({table_contents.PIPELINE_NEEDS})"
        )
    return version


def _candidate_buckets(home: Home, message_id: str, version: table_format.TableVersion) -> set[str]:
    """Return the buckets that may contain the journeys of a message."""
    starts = [start for file in version.files if (start := bucket_start_ms(file.bucket)) is not None]
    as_of_times = [
        source.as_of_ms
        for table in (TRACE_EVENTS, MESSAGES)
        if (source := table_store.read_version(home, table)) is not None
    ]
    times = [ms for ms in (*starts, *as_of_times, version.as_of_ms) if ms is not None]
    if not times:
        return {file.bucket for file in version.files}
    return candidate_buckets(message_id, min(times) - MAX_AHEAD_MS, max(times))


def _resolve_term(home: Home, term: str, limit: int | None) -> tuple[list[tuple[str, list[str]]], int]:
    """Return ids and buckets of the newest `limit` messages with a key or offset id, and the number of all of them."""
    with table_views.open_views(home, table_views.whole_table(MESSAGE_KEYS)) as sql:
        results = table_views.query(
            sql,
            "SELECT message_id, list(DISTINCT journey_bucket) AS buckets, max(first_traced_at) AS first_traced_at, "
            "count(*) OVER () AS messages "
            "FROM message_keys WHERE term = $1 GROUP BY message_id ORDER BY first_traced_at DESC, message_id"
            + ("" if limit is None else f" LIMIT {int(limit)}"),
            [term],
        )
    return [(row["message_id"], row["buckets"]) for row in results], results[0]["messages"] if results else 0


def _newest_journeys(
    home: Home, candidates: list[tuple[str, list[str]]], count: int, wanted: _Narrowing, limit: int
) -> LookupResult:
    """Return the journeys of the first `limit` messages of `count`, of those that are wanted."""
    # Most candidates may not match, and a query of a few ids costs almost as much as one of many.
    page = limit if wanted.is_all else max(limit, GROUP_PAGE_MESSAGES)
    rows: list[dict[str, Any]] = []
    ids: list[str] = []
    examined = 0
    while examined < len(candidates) and len(ids) < limit:
        page_buckets = dict(candidates[examined : examined + page])
        examined += len(page_buckets)
        page_rows = _journeys(
            home, set(page_buckets), {bucket for buckets in page_buckets.values() for bucket in buckets}, wanted
        )
        matching = {row["message_id"] for row in page_rows} if not wanted.is_all else set(page_buckets)
        ids += [message_id for message_id in page_buckets if message_id in matching]
        rows += page_rows
    selected_ids = set(ids[:limit])
    rows = sorted((row for row in rows if row["message_id"] in selected_ids), key=lambda row: row["message_id"])
    return LookupResult(rows, len(ids) - len(selected_ids) + count - examined)


def _journeys(home: Home, ids: set[str], buckets: set[str], wanted: _Narrowing) -> list[dict[str, Any]]:
    """Return the journeys of messages from the given buckets."""
    parameters = ", ".join(f"${number}" for number in range(1, len(ids) + 1))
    condition = f"message_id IN ({parameters})"
    values = sorted(ids)
    if wanted.group is not None:
        values.append(wanted.group)
        condition += f" AND consumer_group = ${len(values)}"
    if wanted.topic is not None:
        values.append(wanted.topic)
        condition += f" AND (topic IS NULL OR topic = ${len(values)})"
    with table_views.open_views(home, table_views.files_of_buckets(JOURNEYS, buckets)) as sql:
        return table_views.query(
            sql, f"SELECT * FROM journeys WHERE {condition} ORDER BY message_id, consumer_group NULLS FIRST", values
        )


def _raise_no_messages(topic: str, sql: Any, between: list[object]) -> None:
    """Raise StoreError with the topics that have journeys in the time range."""
    statement = f"SELECT DISTINCT topic FROM journeys WHERE topic IS NOT NULL AND {AT} BETWEEN $1 AND $2 ORDER BY topic"
    names = [row["topic"] for row in table_views.query(sql, statement, between)]
    topics = ", ".join(names[:NAMES_MAX]) + (f" and {len(names) - NAMES_MAX:,} more" if len(names) > NAMES_MAX else "")
    raise StoreError(
        f"no traced messages of topic {topic} in this time range; "
        + (
            f"topics with traces: {topics}"
            if names
            else f"widen --since, or run `ariane pipeline run trace` ({table_contents.PIPELINE_NEEDS})"
        )
    )


# --- the timeline ------------------------------------------------------------------------------------------------------


def _events(row: Mapping[str, Any]) -> Iterable[TimelineEvent]:
    """Yield the events of a journey: one of each step, two of a delivery that ended."""
    is_first_delivery = True
    for step in row_steps(row):
        duration_ms, note = step.cost_ms, ""
        match step.kind:
            case StepKind.SEND:
                event = "sent" if step.result == SUCCESS else "send failed"
                note = f"{row['sends']} sends" if row["sends"] and row["sends"] > 1 else ""
            case StepKind.DECISION:
                event, note = f"decided: {step.result}", "broker check" if step.from_check else ""
            case StepKind.STORE:
                event, note = "stored", step.offset_message_id
            case StepKind.DELIVERY:
                event, duration_ms = "delivered", row["queueing_ms"] if is_first_delivery else None
                notes = [f"retry {step.retry_times}"] if step.retry_times else []
                note = ", ".join(notes + (_doubts(row) if is_first_delivery else []))
                is_first_delivery = False
            case _:
                event = EVENTS[step.kind]
        yield _event(row, step, event, step.start_ms, duration_ms, note)
        if step.kind is StepKind.DELIVERY and step.end_ms is not None:
            event = "consumed" if step.result == SUCCESS else f"consumed: {step.result}"
            yield _event(row, step, event, step.end_ms, step.cost_ms)


def _event(
    row: Mapping[str, Any], step: TraceStep, event: str, at_ms: int, duration_ms: int | None, note: str = ""
) -> TimelineEvent:
    about = (row["message_id"], row["keys"], row["tags"])
    duration = None if duration_ms is None else timedelta(milliseconds=duration_ms)
    return TimelineEvent(utc_time(at_ms), step.error_ms, event, step.host, step.group, *about, duration, note)


def _doubts(row: Mapping[str, Any]) -> list[str]:
    """Return the doubts about the deliveries of a journey."""
    omitted = row["attempts"] - len(row["deliveries"])
    doubts = ["contradictory clocks"] if row["clock_skew"] else []
    return doubts + ([f"{omitted:,} attempts in between omitted"] if omitted > 0 else [])
