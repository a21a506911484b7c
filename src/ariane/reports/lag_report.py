"""`ariane report lag`: how far groups are behind, how fast they really are, who serves them, when they will be done.

All by minutes of `consumption`. A group's numbers are those of its last whole minute; a sum that lacks a broker is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ariane.clock import ms_of
from ariane.reports import lag_history, time_range
from ariane.reports.pipeline_status import freshness
from ariane.reports.report import Column, Line, Plot, Report, Table, Value, utc_time
from ariane.reports.table_views import files_between, open_views, query
from ariane.tables import CONSUMPTION, SAMPLES_BROKERS
from ariane.tables.samples import WINDOW_MS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_MAX = 200  # of a sheet; how many more there are is said
LINES_MAX = 5  # groups and topics in the plots, those with the greatest lag
POINTS_MAX = 1_440  # of a line: a day of minutes; longer times are plotted in longer steps
SILENT_MS = 60_000  # a collector that has not sampled for so long is taken for stopped, unless its interval is as long
RECENT_MS = 600_000  # brokers are told as they were at most so long ago


class GroupSnapshot(NamedTuple):
    """A group in a topic over all brokers, in one minute. None is what is not known."""

    group: str
    topic: str
    minute: datetime
    lag: int | None
    lag_change: int | None
    produced_tps: float | None
    consumed_tps: float | None
    master_tps: float | None
    slaves_tps: float | None
    oldest_age_ms: int | None
    drain_s: float | None
    flags: tuple[str, ...]

    @property
    def slaves_share(self) -> float | None:
        """Percent of what was handed out; None when nothing was."""
        if self.master_tps is None or self.slaves_tps is None or not self.master_tps + self.slaves_tps:
            return None
        return 100 * self.slaves_tps / (self.master_tps + self.slaves_tps)


def report(
    home: Path, *, since_ms: int, until_ms: int, now_ms: int, topic: str | None = None, group: str | None = None
) -> Report:
    """The groups between two instants, of one topic or group or of all."""
    fresh = freshness(home, CONSUMPTION, now_ms)
    since_ms = since_ms // WINDOW_MS * WINDOW_MS
    minutes, brokers = (
        files_between(CONSUMPTION, since_ms, until_ms),
        files_between(SAMPLES_BROKERS, min(since_ms, until_ms - RECENT_MS), until_ms),
    )
    with open_views(home, minutes, brokers) as sql:
        sql.execute(
            "CREATE VIEW minutes AS SELECT * FROM consumption WHERE consumer_group IS NOT NULL "
            f"AND window_start BETWEEN make_timestamptz({since_ms * 1000}) AND make_timestamptz({until_ms * 1000})"
        )
        latest = _latest(sql, topic, group)
        groups = sum_brokers(latest)
        lag_history.create_by_minute(sql, topic, group)
        history = (lag_history.misleading_tps(sql, ROWS_MAX), lag_history.groups_over_range(sql, ROWS_MAX))
        states, gaps = _brokers(sql, since_ms, min(until_ms, now_ms))
        plots = _plots(sql, groups[:LINES_MAX], len(groups), since_ms, until_ms)
    parts: tuple[Table | Plot, ...] = (_groups(groups), *history, _by_broker(latest), states, *plots)
    return Report(
        "Lag and true TPS of groups",
        utc_time(fresh.as_of_ms),
        (*fresh.warnings, *time_range.late_start_warnings(home, CONSUMPTION, since_ms), *gaps),
        parts,
    )


def sum_brokers(latest: Iterable[dict[str, Any]]) -> list[GroupSnapshot]:
    """One value per group and topic, of its brokers' rows; what needs a look first: unknown lags, then great ones."""
    together: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in latest:
        together[row["consumer_group"], row["topic"]].append(row)
    groups = [_summed(*key, members) for key, members in together.items()]
    return sorted(groups, key=lambda one: (one.lag is not None, -(one.lag or 0), one.group, one.topic))


def _summed(group: str, topic: str, members: Sequence[dict[str, Any]]) -> GroupSnapshot:
    def total(name: str) -> Any:
        values = [row[name] for row in members]
        return None if None in values else sum(values)

    drains = [row["drain_s"] for row in members]
    return GroupSnapshot(
        group,
        topic,
        max(row["window_start"] for row in members),
        total("lag"),
        total("lag_change"),
        total("produced_tps"),
        total("consumed_tps"),
        total("delivered_master_tps"),
        total("delivered_slaves_tps"),
        max((row["oldest_age_ms"] for row in members if row["oldest_age_ms"] is not None), default=None),
        # The group is done when it is done at the last broker.
        None if None in drains else max(drains),
        tuple(sorted({flag for row in members for flag in row["flags"] or ()})),
    )


def _latest(sql: DuckDBPyConnection, topic: str | None, group: str | None) -> list[dict[str, Any]]:
    """Rows of each group's last whole minute, of every broker on which it was seen: nulls where it was not seen then."""
    sql.execute(
        """
        CREATE TEMP TABLE places AS
        WITH newest AS (SELECT max(window_start) AS newest_at FROM minutes)
        SELECT consumer_group, topic, broker, max(window_start) AS last_at,
               max(window_start) FILTER (WHERE window_start < newest_at) AS whole_at
        FROM minutes, newest WHERE (? IS NULL OR topic = ?) AND (? IS NULL OR consumer_group = ?)
        GROUP BY consumer_group, topic, broker
        """,
        [topic, topic, group, group],
    )
    sql.execute(
        """
        CREATE TEMP TABLE chosen AS
        SELECT consumer_group, topic, coalesce(max(whole_at), max(last_at)) AS window_start
        FROM places GROUP BY consumer_group, topic
        """
    )
    first = sql.execute("SELECT min(window_start) FROM chosen").fetchone()
    return query(
        sql,
        """
        SELECT consumer_group, topic, broker, window_start, queues, lag, lag_change, produced_tps, consumed_tps,
               delivered_master_tps, delivered_slaves_tps, oldest_age_ms, drain_s,
               CASE WHEN queues IS NULL AND flags IS NULL THEN ['no sample in this minute'] ELSE flags END AS flags
        FROM places JOIN chosen USING (consumer_group, topic)
             LEFT JOIN (SELECT * FROM minutes WHERE window_start >= ?) AS late
             USING (consumer_group, topic, broker, window_start)
        ORDER BY consumer_group, topic, broker
        """,
        [first[0] if first else None],
    )


def _cut(title: str, fields: tuple[Column, ...], all_rows: Sequence[tuple[Value, ...]], note: str = "") -> Table:
    return Table(title, fields, tuple(all_rows[:ROWS_MAX]), note, max(0, len(all_rows) - ROWS_MAX))


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _groups(groups: Sequence[GroupSnapshot]) -> Table:
    fields = (
        Column("group"), Column("topic"), Column("minute"), Column("lag"), Column("change"), Column("in", "/s"),
        Column("confirmed", "/s"), Column("by slaves", "%"), Column("oldest", "ms"), Column("done in", "ms"), Column("in doubt"),
    )  # fmt: skip
    note = (
        "In the group's last whole minute. Confirmed is what committed offsets say: the true TPS. By slaves is the share of what "
        "was handed out. Done in: if rates stay as they are; unknown when the lag does not shrink."
    )
    found = [
        (
            one.group, one.topic, one.minute, one.lag, one.lag_change, one.produced_tps, one.consumed_tps, one.slaves_share,
            one.oldest_age_ms, _ms(one.drain_s), ", ".join(one.flags),
        )
        for one in groups
    ]  # fmt: skip
    return _cut("Groups", fields, found, note)


def _by_broker(latest: Sequence[dict[str, Any]]) -> Table:
    fields = (
        Column("group"), Column("topic"), Column("broker"), Column("queues"), Column("lag"), Column("in", "/s"),
        Column("confirmed", "/s"), Column("by master", "/s"), Column("by slaves", "/s"), Column("share of the group", "%"),
    )  # fmt: skip
    whole = {(one.group, one.topic): one.consumed_tps for one in sum_brokers(latest)}
    found = []
    for row in latest:
        total, own = whole[row["consumer_group"], row["topic"]], row["consumed_tps"]
        share = 100 * own / total if total and own is not None else None
        names = ("consumer_group", "topic", "broker", "queues", "lag", "produced_tps", "consumed_tps")
        served = (row["delivered_master_tps"], row["delivered_slaves_tps"])
        found.append((*(row[name] for name in names), *served, share))
    return _cut("By broker", fields, found, "In the group's last whole minute.")


def _brokers(sql: DuckDBPyConnection, since_ms: int, until_ms: int) -> tuple[Table, list[str]]:
    """The brokers at their last sample, rates since the one before, how often they were away; and why samples may be missing."""
    found = query(
        sql,
        f"""
        WITH once AS (
            SELECT DISTINCT ON (collector, broker, broker_id, sampled_at) * FROM samples_brokers
            WHERE sampled_at <= make_timestamptz({until_ms * 1000})
              AND sampled_at >= make_timestamptz({min(since_ms, until_ms - RECENT_MS) * 1000})
        ), paired AS (
            SELECT *, lag(sampled_at) OVER pair AS at_0, lag(put_total) OVER pair AS put_0, lag(get_total) OVER pair AS get_0,
                   lag(booted_at) OVER pair AS booted_0
            FROM once WINDOW pair AS (PARTITION BY collector, broker, broker_id ORDER BY sampled_at)
        ), last AS (
            SELECT broker, broker_id, arg_max(paired, sampled_at) AS p, bool_or(skipped_groups > 0) AS full_rounds,
                   max(dropped_samples) AS dropped, 100 * count(error) / count(*) AS away_share
            FROM paired GROUP BY broker, broker_id
        )
        SELECT broker, broker_id, p.addr, p.sampled_at, p.error, p.interval_ms, p.log_max,
               dropped, full_rounds AS "full", away_share,
               CASE WHEN p.booted_at = p.booted_0 AND p.put_total >= p.put_0
                    THEN (p.put_total - p.put_0) / (epoch(p.sampled_at) - epoch(p.at_0)) END AS put_tps,
               CASE WHEN p.booted_at = p.booted_0 AND p.get_total >= p.get_0
                    THEN (p.get_total - p.get_0) / (epoch(p.sampled_at) - epoch(p.at_0)) END AS get_tps
        FROM last ORDER BY broker, broker_id
        """,
    )
    ends = {row["broker"]: row["log_max"] for row in found if row["broker_id"] == 0}
    told = []
    for row in found:
        end, own = ends.get(row["broker"]), row["log_max"]
        is_slave = row["broker_id"] != 0
        to_copy = max(0, end - own) if is_slave and end is not None and own is not None else None
        role = f"slave {row['broker_id']}" if is_slave else "master"
        state = row["error"] or "answers"
        told.append(
            (
                row["broker"],
                role,
                row["addr"],
                row["sampled_at"],
                state,
                row["away_share"],
                row["put_tps"],
                row["get_tps"],
                to_copy,
            )
        )
    fields = (
        Column("broker"), Column("role"), Column("address"), Column("sampled"), Column("state"), Column("away", "%"),
        Column("stored", "/s"), Column("handed out", "/s"), Column("to copy", "B"),
    )  # fmt: skip
    note = (
        "Rates are those between the last two samples, over all topics and readers. Away: the share of the samples of this time "
        "in which the broker did not answer. To copy: what a slave's log lacks."
    )
    return _cut("Brokers", fields, told, note), [*_silences(sql, since_ms, until_ms), *_missing(found, until_ms)]


def _silences(sql: DuckDBPyConnection, since_ms: int, until_ms: int) -> list[str]:
    """Why samples are missing between others: nobody sampled any broker for some time."""
    found = query(
        sql,
        f"""
        WITH rounds AS (
            SELECT sampled_at, max(interval_ms) AS interval_ms FROM samples_brokers
            WHERE sampled_at BETWEEN make_timestamptz({since_ms * 1000}) AND make_timestamptz({until_ms * 1000})
            GROUP BY sampled_at
        )
        SELECT *, epoch_ms(sampled_at) - epoch_ms(before_at) AS silent_ms
        FROM (SELECT *, lag(sampled_at) OVER (ORDER BY sampled_at) AS before_at FROM rounds)
        WHERE epoch_ms(sampled_at) - epoch_ms(before_at) > greatest({SILENT_MS}, 3 * coalesce(interval_ms, 0))
        ORDER BY silent_ms DESC, sampled_at
        """,
    )
    if not found:
        return []
    longest = found[0]
    more = f", and {len(found) - 1} more times" if len(found) > 1 else ""
    return [
        f"no samples from {longest['before_at']:%m-%d %H:%M:%S} to {longest['sampled_at']:%m-%d %H:%M:%S} UTC{more}"
    ]


def _missing(brokers: Sequence[dict[str, Any]], until_ms: int) -> list[str]:
    """Why samples may be missing."""
    if not brokers:
        return [f"no samples of the last {RECENT_MS // 60_000} minutes: is `ariane collect` running?"]
    gaps = []
    newest = max(row["sampled_at"] for row in brokers)
    silent_ms = until_ms - ms_of(newest)
    if silent_ms > max(SILENT_MS, *(3 * (row["interval_ms"] or 0) for row in brokers)):
        gaps.append(f"no samples since {newest:%H:%M:%S} UTC: is `ariane collect` running?")
    if dropped := max(row["dropped"] or 0 for row in brokers):
        gaps.append(f"the collector has thrown away {dropped:,} samples, as no broker took them")
    if any(row["full"] for row in brokers):
        gaps.append("groups take turns: there are more than the collector asks for in a round (--groups-max)")
    return gaps


def _plots(
    sql: DuckDBPyConnection, groups: Sequence[GroupSnapshot], known: int, since_ms: int, until_ms: int
) -> tuple[Plot, ...]:
    """Lag and rates of some groups over time; a minute without samples is a hole."""
    step = max(1, -((since_ms - until_ms) // WINDOW_MS // POINTS_MAX)) * WINDOW_MS
    # Read once, for a day of minutes is much.
    sql.execute("CREATE TEMP TABLE plotted AS SELECT * FROM minutes WHERE false")
    if groups:
        pairs = ", ".join("(?, ?)" for _ in groups)
        sql.execute(
            f"INSERT INTO plotted SELECT * FROM minutes WHERE (consumer_group, topic) IN ({pairs})",
            [name for one in groups for name in (one.group, one.topic)],
        )
    lags, tps = [], []
    for one in groups:
        points = _points(sql, one, step)
        name = f"{one.group} · {one.topic}"
        lags.append(Line(name, tuple((at, lag) for at, lag, _, _ in points)))
        tps.append(Line(f"{name} in", tuple((at, produced) for at, _, produced, _ in points)))
        tps.append(Line(f"{name} confirmed", tuple((at, consumed) for at, _, _, consumed in points)))
    shown = f"The {len(groups)} of {known} with the greatest lag. " if known > len(groups) else ""
    note = f"{shown}One point in {step // 60_000} min: the greatest lag, the mean of rates."
    return Plot("Lag", "", tuple(lags), note), Plot("Messages in and confirmed", "/s", tuple(tps), note)


Point = tuple[datetime, float | None, float | None, float | None]


def _points(sql: DuckDBPyConnection, one: GroupSnapshot, step_ms: int) -> list[Point]:
    """Time, lag, rate in, rate confirmed: of all brokers together, or unknown."""
    found = query(
        sql,
        f"""
        WITH wanted AS (SELECT * FROM plotted WHERE consumer_group = $1 AND topic = $2
        ), places AS (SELECT broker, min(window_start) AS first_at FROM wanted GROUP BY broker
        ), summed AS (
            SELECT window_start, count(lag) AS lags, sum(lag) AS lag, count(produced_tps) AS producing,
                   sum(produced_tps) AS produced, count(consumed_tps) AS consuming, sum(consumed_tps) AS consumed
            FROM wanted GROUP BY window_start
        ), each AS (
            SELECT window_start, CASE WHEN lags = n THEN lag END AS lag, CASE WHEN producing = n THEN produced END AS produced,
                   CASE WHEN consuming = n THEN consumed END AS consumed
            FROM summed, LATERAL (SELECT count(*) AS n FROM places WHERE first_at <= window_start)
        )
        SELECT time_bucket(INTERVAL {step_ms} MILLISECONDS, window_start) AS bucket_at,
               max(lag)::DOUBLE AS lag, avg(produced) AS produced, avg(consumed) AS consumed
        FROM each GROUP BY 1 ORDER BY 1
        """,
        [one.group, one.topic],
    )
    points: list[Point] = []
    for row in found:
        while points and row["bucket_at"] - points[-1][0] > timedelta(milliseconds=step_ms):
            points.append((points[-1][0] + timedelta(milliseconds=step_ms), None, None, None))
        points.append((row["bucket_at"], row["lag"], row["produced"], row["consumed"]))
    return points
