"""Rates and lag of a consumer group, or of a whole cluster, over a time range: sums of the table `consumption`.

    minute, broker, topic, group ─→ minutes ─→ buckets: mean rates, largest lag

A sum is unknown in a minute in which a broker, topic or group lacks a value although it has rows before and after. The newest
minute is excluded because it is incomplete.
"""

from __future__ import annotations

from collections.abc import Mapping

from ariane.reports.tables.plot_buckets import bucket_ms
from ariane.reports.tables.table_views import files_between, open_views, query
from ariane.tables import CONSUMPTION
from ariane.tables.table_home import Home
from ariane.tables.table_store import read_version

# Name → which rows, their value, and how minutes of a bucket are combined.
_SUMS = {
    "tps_in": ("consumer_group IS NULL", "produced_tps", "avg"),
    "tps_out": ("consumer_group IS NOT NULL", "delivered_master_tps + delivered_slaves_tps", "avg"),
    "tps_slaves": ("consumer_group IS NOT NULL", "delivered_slaves_tps", "avg"),
    "lag": ("consumer_group IS NOT NULL", "lag", "max"),
}
Series = list[tuple[int, float | None]]


def first_ms(home: Home) -> int | None:
    """Return the time of the oldest row of the table; None without rows."""
    version = read_version(home, CONSUMPTION)
    times = [file.first_ms for file in version.files if file.first_ms is not None] if version is not None else []
    return min(times, default=None)


def history(home: Home, since_ms: int, until_ms: int, group: str | None = None) -> Mapping[str, Series]:
    """Return series by name: tps_in, tps_out, tps_slaves, lag. Values are None where they are unknown.

    Args:
        group: The consumer group; None: all. `tps_in` is that of all topics.
    """
    bucket = bucket_ms(since_ms, until_ms)
    with open_views(home, files_between(CONSUMPTION, since_ms, until_ms)) as sql:
        return {
            name: [
                (row["ms"], row["value"])
                for row in query(sql, _statement(name, bucket), [since_ms, until_ms, group, group])
            ]
            for name in _SUMS
        }


def _statement(name: str, bucket: int) -> str:
    condition, value, combine = _SUMS[name]
    return f"""
        WITH wanted AS (
            SELECT epoch_ms(window_start) AS ms, broker, topic, consumer_group, {value} AS value FROM consumption
            WHERE {condition} AND window_start BETWEEN make_timestamptz($1 * 1000) AND make_timestamptz($2 * 1000)
            AND ({name == "tps_in"} OR $3::VARCHAR IS NULL OR consumer_group = $4)
        ), spans AS (
            SELECT min(ms) AS first_at, max(ms) AS last_at FROM wanted GROUP BY broker, topic, consumer_group
        ), events AS (
            SELECT ms, count(value) AS known, sum(value) AS value, 0 AS change FROM wanted GROUP BY ms
            UNION ALL SELECT first_at, NULL, NULL, count(*) FROM spans GROUP BY first_at
            UNION ALL SELECT last_at + 60000, NULL, NULL, -count(*) FROM spans GROUP BY last_at
        ), minutes AS (
            SELECT ms, known, value, sum(change) OVER (ORDER BY ms RANGE UNBOUNDED PRECEDING) AS expected FROM events
        )
        SELECT ms // {bucket} * {bucket} AS ms, CASE WHEN bool_and(known = expected) THEN {combine}(value)::DOUBLE END AS value
        FROM minutes WHERE known IS NOT NULL AND ms < (SELECT max(ms) FROM wanted) GROUP BY 1 ORDER BY 1
    """
