"""The part of the report `lag` that covers all minutes of the time range, not only the last one.

    consumption: minute, broker, topic, group → by_minute: minute, topic, group, summed over brokers → rows of the two tables

A sum is unknown if a broker that had the group before has no value. The newest minute is excluded because it is incomplete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ariane.reports.report import Column, Table, table_of
from ariane.reports.tables.table_views import query
from ariane.reports.texts import text

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SUMMED = ("produced_tps", "consumed_tps", "delivered_master_tps", "delivered_slaves_tps", "lag")


def create_by_minute(sql: DuckDBPyConnection, topic: str | None, group: str | None) -> None:
    """Create the table `by_minute` from the view `minutes`.

    `misleads`: whether the TPS of the masters, which consoles show, differed from the group's.
    One broker with active slaves is enough.
    """
    # A sum over only some of the brokers would look like a drop of the rate.
    sums = ", ".join(f"CASE WHEN count({name}) = any_value(brokers) THEN sum({name}) END AS {name}" for name in SUMMED)
    sql.execute(
        f"""
        CREATE TEMP TABLE by_minute AS
        WITH wanted AS (
            SELECT * FROM minutes WHERE (? IS NULL OR topic = ?) AND (? IS NULL OR consumer_group = ?)
        ), whole AS (
            SELECT * FROM wanted
            WHERE window_start < (SELECT max(window_start) FROM minutes) OR (SELECT count(DISTINCT window_start) FROM minutes) = 1
        ), seen AS (
            SELECT consumer_group, topic, broker, min(window_start) AS first_at FROM whole GROUP BY ALL
        ), expected AS (
            SELECT consumer_group, topic, window_start, count(*) AS brokers
            FROM (SELECT DISTINCT consumer_group, topic, window_start FROM whole) JOIN seen USING (consumer_group, topic)
            WHERE first_at <= window_start GROUP BY ALL
        )
        SELECT consumer_group, topic, window_start, {sums}, max(seconds) AS seconds, max(oldest_age_ms) AS oldest_age_ms,
               list_distinct(flatten(list(coalesce(flags, [])))) AS flags,
               coalesce(bool_or(whole.delivered_slaves_tps > 0), false) OR coalesce(
                   count(whole.delivered_master_tps) = any_value(brokers) AND sum(whole.delivered_master_tps) = 0
                   AND sum(whole.consumed_tps) > 0, false) AS misleads
        FROM whole JOIN expected USING (consumer_group, topic, window_start) GROUP BY consumer_group, topic, window_start
        """,
        [topic, topic, group, group],
    )


def misleading_tps(sql: DuckDBPyConnection, rows_max: int) -> Table:
    """Return the groups whose TPS consoles showed wrongly in any minute, with the worst of these minutes."""
    results = query(
        sql,
        """
        SELECT consumer_group, topic, count(*) FILTER (misleads) AS misled, count(*) AS minutes,
               max(window_start) FILTER (misleads) AS last_at,
               first(by_minute ORDER BY delivered_slaves_tps DESC NULLS LAST, consumed_tps DESC NULLS LAST, window_start)
                   FILTER (misleads) AS worst
        FROM by_minute GROUP BY consumer_group, topic HAVING misled > 0
        ORDER BY misled DESC, consumer_group, topic
        """,
    )
    columns = {
        "consumer_group": Column("group"),
        "topic": Column("topic"),
        "misled": Column("minutes"),
        "minutes": Column("of"),
        "last_at": Column("last"),
        "window_start": Column("worst"),
        "delivered_master_tps": Column("TPS in consoles", "/s"),
        "consumed_tps": Column("consumed", "/s"),
        "delivered_slaves_tps": Column("by slaves", "/s"),
        "lag": Column("lag"),
    }
    note = text(
        "Consoles and consumerProgress query masters only: their TPS excludes deliveries by slaves. Minutes: affected ones, of all "
        "with data of the group. Rates and lag: of the worst minute."
    )
    rows = [{**row["worst"], **row} for row in results]
    return table_of(text("Misleading TPS in consoles"), columns, rows, note, rows_max)


def groups_over_range(sql: DuckDBPyConnection, rows_max: int) -> Table:
    """Return each group's mean rates, maximum lag and remarks over all minutes."""
    results = query(
        sql,
        """
        WITH remarks AS (
            SELECT consumer_group, topic, flag || ' (' || count(*) || ' min)' AS remark
            FROM (SELECT consumer_group, topic, unnest(flags) AS flag FROM by_minute) GROUP BY consumer_group, topic, flag
        ), by_group AS (
            SELECT consumer_group, topic, string_agg(remark, ', ' ORDER BY remark) AS remarks FROM remarks GROUP BY ALL
        )
        SELECT consumer_group, topic, count(*) AS minutes,
               sum(produced_tps * seconds) / sum(seconds) FILTER (produced_tps IS NOT NULL) AS produced,
               sum(consumed_tps * seconds) / sum(seconds) FILTER (consumed_tps IS NOT NULL) AS consumed,
               100 * sum(delivered_slaves_tps) FILTER (delivered_master_tps IS NOT NULL)
               / nullif(sum(delivered_master_tps + delivered_slaves_tps), 0) AS share,
               max(lag) AS greatest, arg_max(window_start, lag) AS greatest_at, max(oldest_age_ms) AS oldest,
               coalesce(any_value(remarks), '') AS remarks
        FROM by_minute LEFT JOIN by_group USING (consumer_group, topic) GROUP BY consumer_group, topic
        ORDER BY greatest IS NOT NULL, greatest DESC, consumer_group, topic
        """,
    )
    columns = {
        "consumer_group": Column("group"),
        "topic": Column("topic"),
        "minutes": Column("minutes"),
        "produced": Column("in", "/s"),
        "consumed": Column("consumed", "/s"),
        "share": Column("by slaves", "%"),
        "greatest": Column("max lag"),
        "greatest_at": Column("at"),
        "oldest": Column("oldest", "ms"),
        "remarks": Column("remarks"),
    }
    note = text("Mean rates and maximum values of all complete minutes with data of the group.")
    return table_of(text("Groups over the time range"), columns, results, note, rows_max)
