"""Report `lag`: lag, true TPS and forecast of consumer groups, and which brokers serve them.

Reads the table `consumption`, one row per minute. Values of a group are those of its last complete minute; a sum is unknown if
a broker is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ariane.clock import ms_of
from ariane.cluster.lag import KEEPING_UP_S
from ariane.reports import lag_history
from ariane.reports.report import Column, Line, Plot, Report, Table, first_rows, utc_time
from ariane.reports.tables import time_range
from ariane.reports.tables.pipeline_status import freshness
from ariane.reports.tables.table_views import files_between, open_views, query
from ariane.reports.texts import ZONE, Moment, Text, sentences, text
from ariane.tables import CONSUMPTION, SAMPLES_BROKERS
from ariane.tables.declarations.samples import WINDOW_MS
from ariane.tables.table_home import Home

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_MAX = 200  # per table; the number of omitted rows is shown
LINES_MAX = 5  # pairs of group and topic per plot: those with the highest lag
POINTS_MAX = 1_440  # per series: one day of minutes; longer ranges have longer buckets
SILENT_MS = 60_000  # a collector without samples for this long is considered stopped, unless its interval is longer
RECENT_MS = 600_000  # maximum age of the state of a broker


class GroupSnapshot(NamedTuple):
    """A group in a topic in one minute, summed over all brokers. None means unknown."""

    group: str
    topic: str  # topic that the group consumes; %RETRY%<group> is a row of its own
    minute: datetime  # start of the minute that all values belong to
    lag: int | None  # messages between the committed and the max offsets
    # Lag at the end of the minute minus that of the minute before; negative while the group catches up.
    lag_change: int | None
    produced_tps: float | None  # messages per second that producers added to the queues
    consumed_tps: float | None  # messages per second by committed offsets: the true TPS
    master_tps: float | None  # messages per second that masters delivered, by their own counters
    slaves_tps: float | None  # the same of slaves; consoles omit it
    oldest_age_ms: int | None  # age of the oldest pending message, by the brokers' clocks
    drain_s: float | None  # seconds until the lag is 0 at these rates; None as well if the lag does not shrink
    flags: tuple[str, ...]  # reasons why a value is unknown or doubtful, as docs/collector.md lists them

    @property
    def slaves_share(self) -> float | None:
        """Percentage of deliveries by slaves; None without deliveries."""
        if self.master_tps is None or self.slaves_tps is None or not self.master_tps + self.slaves_tps:
            return None
        return 100 * (self.slaves_tps / (self.master_tps + self.slaves_tps))  # in this order never above 100


def report(
    home: Home, *, since_ms: int, until_ms: int, now_ms: int, topic: str | None = None, group: str | None = None
) -> Report:
    """Return the report for a time range, optionally of one topic or consumer group."""
    table_freshness = freshness(home, CONSUMPTION, now_ms)
    # The table has a row per minute, which is selected by its start.
    since_ms = since_ms // WINDOW_MS * WINDOW_MS
    # The last samples of a broker, which give its state, may be older than a short range.
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
        states, warnings = _brokers(sql, since_ms, min(until_ms, now_ms))
        plots = _plots(sql, groups[:LINES_MAX], len(groups), since_ms, until_ms)
    parts: tuple[Table | Plot, ...] = (_groups(groups), *history, _by_broker(latest), states, *plots)
    return Report(
        text("Lag and true TPS of consumer groups"),
        utc_time(table_freshness.as_of_ms),
        (*table_freshness.warnings, *time_range.late_start_warnings(home, CONSUMPTION, since_ms), *warnings),
        parts,
    )


def sum_brokers(latest: Iterable[dict[str, Any]]) -> list[GroupSnapshot]:
    """Return one snapshot per group and topic, summed over brokers: unknown lags first, then by descending lag."""
    by_group: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in latest:
        by_group[row["consumer_group"], row["topic"]].append(row)
    groups = [_summed(*key, members) for key, members in by_group.items()]
    # An unknown lag may hide the worst problem.
    return sorted(groups, key=lambda group: (group.lag is not None, -(group.lag or 0), group.group, group.topic))


def _summed(group: str, topic: str, members: Sequence[dict[str, Any]]) -> GroupSnapshot:
    def total(name: str) -> Any:
        values = [row[name] for row in members]
        return None if None in values else sum(values)

    drains = [_drain_s(row) for row in members]
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
        # The oldest of the known ages is a lower bound: one unknown broker does not hide it.
        max((row["oldest_age_ms"] for row in members if row["oldest_age_ms"] is not None), default=None),
        # The lag is consumed when the last broker's is.
        None if None in drains else max(seconds for seconds in drains if seconds is not None),
        tuple(sorted({flag for row in members for flag in row["flags"] or ()})),
    )


def _drain_s(row: dict[str, Any]) -> float | None:
    """Return the seconds until the lag at one broker is 0; None if unknown or if it does not shrink."""
    lag, consumed_tps = row["lag"], row["consumed_tps"]
    if lag and consumed_tps and lag <= consumed_tps * KEEPING_UP_S:
        # In balance: the difference of the rates is noise.
        seconds: float | None = lag / consumed_tps
    else:
        seconds = row["drain_s"]
    return seconds


def _latest(sql: DuckDBPyConnection, topic: str | None, group: str | None) -> list[dict[str, Any]]:
    """Return the rows of each group's last complete minute, for every broker that had the group: nulls if it has no row then."""
    sql.execute(
        """
        CREATE TEMP TABLE group_brokers AS
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
        CREATE TEMP TABLE snapshot_minutes AS
        SELECT consumer_group, topic, coalesce(max(whole_at), max(last_at)) AS window_start
        FROM group_brokers GROUP BY consumer_group, topic
        """
    )
    first = sql.execute("SELECT min(window_start) FROM snapshot_minutes").fetchone()
    return query(
        sql,
        """
        SELECT consumer_group, topic, broker, window_start, queues, lag, lag_change, produced_tps, consumed_tps,
               delivered_master_tps, delivered_slaves_tps, oldest_age_ms, drain_s,
               CASE WHEN queues IS NULL AND flags IS NULL THEN ['no data for this minute'] ELSE flags END AS flags
        FROM group_brokers JOIN snapshot_minutes USING (consumer_group, topic)
             LEFT JOIN (SELECT * FROM minutes WHERE window_start >= ?) AS late
             USING (consumer_group, topic, broker, window_start)
        ORDER BY consumer_group, topic, broker
        """,
        [first[0] if first else None],
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _groups(groups: Sequence[GroupSnapshot]) -> Table:
    fields = (
        Column("group"), Column("topic"), Column("minute"), Column("lag"), Column("change"), Column("in", "/s"),
        Column("consumed", "/s"), Column("by slaves", "%"), Column("oldest", "ms"), Column("ETA", "ms"), Column("remarks"),
    )  # fmt: skip
    note = text(
        "Last complete minute of the group. Consumed: by committed offsets, the true TPS. By slaves: share of deliveries. Oldest: "
        "age of the oldest pending message. ETA: time until the lag is 0 at these rates; unknown if the lag does not decrease."
    )
    rows = [
        (
            group.group, group.topic, group.minute, group.lag, group.lag_change, group.produced_tps, group.consumed_tps,
            group.slaves_share, group.oldest_age_ms, _ms(group.drain_s), ", ".join(group.flags),
        )
        for group in groups
    ]  # fmt: skip
    return first_rows(text("Groups"), fields, rows, note, ROWS_MAX)


def _by_broker(latest: Sequence[dict[str, Any]]) -> Table:
    fields = (
        Column("group"), Column("topic"), Column("broker"), Column("queues"), Column("lag"), Column("in", "/s"),
        Column("consumed", "/s"), Column("by master", "/s"), Column("by slaves", "/s"), Column("share of group", "%"),
    )  # fmt: skip
    totals = {(group.group, group.topic): group.consumed_tps for group in sum_brokers(latest)}
    rows = []
    for row in latest:
        total, consumed = totals[row["consumer_group"], row["topic"]], row["consumed_tps"]
        share = 100 * (consumed / total) if total and consumed is not None else None
        names = ("consumer_group", "topic", "broker", "queues", "lag", "produced_tps", "consumed_tps")
        served = (row["delivered_master_tps"], row["delivered_slaves_tps"])
        rows.append((*(row[name] for name in names), *served, share))
    return first_rows(text("By broker"), fields, rows, text("Last complete minute of the group."), ROWS_MAX)


def _brokers(sql: DuckDBPyConnection, since_ms: int, until_ms: int) -> tuple[Table, list[Text]]:
    """Return the brokers at their last sample with rates since the previous one, and reasons for missing samples."""
    results = query(
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
    ends = {row["broker"]: row["log_max"] for row in results if row["broker_id"] == 0}
    states = []
    for row in results:
        end, log_max = ends.get(row["broker"]), row["log_max"]
        is_slave = row["broker_id"] != 0
        to_copy = max(0, end - log_max) if is_slave and end is not None and log_max is not None else None
        role = f"slave {row['broker_id']}" if is_slave else "master"
        rates = (row["away_share"], row["put_tps"], row["get_tps"])
        states.append(
            (row["broker"], role, row["addr"], row["sampled_at"], row["error"] or "available", *rates, to_copy)
        )
    fields = (
        Column("broker"), Column("role"), Column("address"), Column("sampled"), Column("state"), Column("unavailable", "%"),
        Column("stored", "/s"), Column("delivered", "/s"), Column("replication lag", "B"),
    )  # fmt: skip
    note = text(
        "Rates between the last two samples, over all topics and groups. Unavailable: share of the samples in this time range "
        "in which the broker did not respond. Replication lag: bytes that the slave's commit log lacks."
    )
    return first_rows(text("Brokers"), fields, states, note, ROWS_MAX), [
        *_silences(sql, since_ms, until_ms),
        *_missing(results, until_ms),
    ]


def _silences(sql: DuckDBPyConnection, since_ms: int, until_ms: int) -> list[Text]:
    """Return a warning if no broker was sampled for some time within the range."""
    gaps = query(
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
    if not gaps:
        return []
    longest = gaps[0]
    begin, end = (Moment(longest[name], "%m-%d %H:%M:%S") for name in ("before_at", "sampled_at"))
    gap = text("no samples from %(begin)s to %(end)s %(zone)s", begin=begin, end=end, zone=ZONE)
    return [text("%(gap)s, and %(count)s more gaps", gap=gap, count=len(gaps) - 1) if len(gaps) > 1 else gap]


def _missing(brokers: Sequence[dict[str, Any]], until_ms: int) -> list[Text]:
    """Return the reasons why recent samples may be missing."""
    if not brokers:
        return [
            text(
                "no samples in the last %(minutes)s minutes: is `ariane collect` running?", minutes=RECENT_MS // 60_000
            )
        ]
    warnings = []
    newest = max(row["sampled_at"] for row in brokers)
    silent_ms = until_ms - ms_of(newest)
    # Three intervals: a single lost round is not a gap.
    if silent_ms > max(SILENT_MS, *(3 * (row["interval_ms"] or 0) for row in brokers)):
        since = Moment(newest, "%H:%M:%S")
        warnings.append(
            text("no samples since %(since)s %(zone)s: is `ariane collect` running?", since=since, zone=ZONE)
        )
    if dropped := max(row["dropped"] or 0 for row in brokers):
        warnings.append(text("the collector discarded %(count)s samples: no broker accepted them", count=dropped))
    if any(row["full"] for row in brokers):
        warnings.append(
            text("groups are sampled in turns: there are more than the collector polls per round (--groups-max)")
        )
    return warnings


def _plots(
    sql: DuckDBPyConnection, groups: Sequence[GroupSnapshot], group_count: int, since_ms: int, until_ms: int
) -> tuple[Plot, ...]:
    """Return the plots of lag and rates of some groups; minutes without samples are unknown."""
    step = max(1, -((since_ms - until_ms) // WINDOW_MS // POINTS_MAX)) * WINDOW_MS
    # Read once: a day of minutes is large.
    sql.execute("CREATE TEMP TABLE plotted AS SELECT * FROM minutes WHERE false")
    if groups:
        pairs = ", ".join("(?, ?)" for _ in groups)
        sql.execute(
            f"INSERT INTO plotted SELECT * FROM minutes WHERE (consumer_group, topic) IN ({pairs})",
            [name for group in groups for name in (group.group, group.topic)],
        )
    lags, tps = [], []
    for group in groups:
        points = _points(sql, group, step)
        name = f"{group.group} · {group.topic}"
        lags.append(Line(name, tuple((time, lag) for time, lag, _, _ in points)))
        tps.append(Line(text("%(name)s in", name=name), tuple((time, produced) for time, _, produced, _ in points)))
        tps.append(
            Line(text("%(name)s consumed", name=name), tuple((time, consumed) for time, _, _, consumed in points))
        )
    selection = text("The %(shown)s of %(count)s groups with the highest lag.", shown=len(groups), count=group_count)
    note = sentences(
        selection if group_count > len(groups) else None,
        text("One point per %(minutes)s min: maximum lag, mean rates.", minutes=step // 60_000),
    )
    return (
        Plot(text("Lag"), "", tuple(lags), note),
        Plot(text("Messages in and consumed"), "/s", tuple(tps), note),
    )


Point = tuple[datetime, float | None, float | None, float | None]


def _points(sql: DuckDBPyConnection, group: GroupSnapshot, step_ms: int) -> list[Point]:
    """Return time, lag, rate in and rate consumed over all brokers; None if a broker is missing."""
    results = query(
        sql,
        f"""
        WITH wanted AS (SELECT * FROM plotted WHERE consumer_group = $1 AND topic = $2
        ), group_brokers AS (SELECT broker, min(window_start) AS first_at FROM wanted GROUP BY broker
        ), summed AS (
            SELECT window_start, count(lag) AS lags, sum(lag) AS lag, count(produced_tps) AS producing,
                   sum(produced_tps) AS produced, count(consumed_tps) AS consuming, sum(consumed_tps) AS consumed
            FROM wanted GROUP BY window_start
        ), each AS (
            SELECT window_start, CASE WHEN lags = n THEN lag END AS lag, CASE WHEN producing = n THEN produced END AS produced,
                   CASE WHEN consuming = n THEN consumed END AS consumed
            FROM summed, LATERAL (SELECT count(*) AS n FROM group_brokers WHERE first_at <= window_start)
        )
        SELECT time_bucket(INTERVAL {step_ms} MILLISECONDS, window_start) AS bucket_at,
               max(lag)::DOUBLE AS lag, avg(produced) AS produced, avg(consumed) AS consumed
        FROM each GROUP BY 1 ORDER BY 1
        """,
        [group.group, group.topic],
    )
    points: list[Point] = []
    for row in results:
        # Buckets without rows get points of unknown value, so that no line is drawn across them.
        while points and row["bucket_at"] - points[-1][0] > timedelta(milliseconds=step_ms):
            points.append((points[-1][0] + timedelta(milliseconds=step_ms), None, None, None))
        points.append((row["bucket_at"], row["lag"], row["produced"], row["consumed"]))
    return points
