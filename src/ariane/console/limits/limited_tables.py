"""Rows of the pipeline's tables that an account may see, for reports.

A row is visible if its topic is known and visible, and its group is visible, if it has one. Rows of retry and dead-letter topics
are visible only where they count messages: other tables do not contain the topic that such a message had before. The patterns of
the account are matched in Python, because regular expressions of SQL differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ariane.console.limits.access import MASK, Access, masks_property
from ariane.model.message import KEYS
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX
from ariane.reports.tables.table_views import RowSelection
from ariane.tables import (
    CLOCKS,
    CONSUMPTION,
    DELAYS,
    LATENCIES,
    SAMPLES_BROKERS,
    SLOW_MESSAGES,
    TRAFFIC,
    TRANSACTIONS,
    TableSchema,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class NameColumns(NamedTuple):
    """Which columns of a table name a topic and a group.

    Attributes:
        topic: Column of the topic.
        group: Column of the consumer or producer group; empty: none.
        counts_retries: Whether rows of retry topics contain no message, only numbers.
    """

    topic: str = "topic"
    group: str = ""
    counts_retries: bool = False


# A table without a row is refused to accounts with limits.
NAME_COLUMNS: dict[str, NameColumns | bool] = {
    TRAFFIC.name: NameColumns(group="client_group"),
    LATENCIES.name: NameColumns(group="client_group"),
    SLOW_MESSAGES.name: NameColumns(group="client_group"),
    CONSUMPTION.name: NameColumns(group="consumer_group", counts_retries=True),
    DELAYS.name: NameColumns(),
    TRANSACTIONS.name: NameColumns(group="producer_group"),
    SAMPLES_BROKERS.name: True,  # brokers, which all accounts see
    CLOCKS.name: False,  # examples are messages of any topic
}


def row_selection(access: Access) -> RowSelection | None:
    """Return the selection of the rows that an account sees, with masked keys; None: all rows as they are."""
    if access.is_full:
        return None

    def select(sql: DuckDBPyConnection, table: TableSchema, view: str) -> str:
        statement = f"SELECT * {_masked_keys(sql, table, view, access)} FROM {view}"
        if not access.is_limited:
            return statement
        columns = NAME_COLUMNS[table.name]
        if isinstance(columns, bool):
            return f"{statement} WHERE {columns}"

        def sees_topic(topic: str) -> bool:
            is_readable = columns.counts_retries or not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            return is_readable and access.sees_topic(topic)

        statement += f" WHERE {_is_in(sql, table, view, columns.topic, sees_topic)}"
        if columns.group:
            is_seen = _is_in(sql, table, view, columns.group, access.sees_group)
            statement += f" AND ({columns.group} IS NULL OR {is_seen})"
        return statement

    return select


def _masked_keys(sql: DuckDBPyConnection, table: TableSchema, view: str, access: Access) -> str:
    """Return the clause that replaces keys of messages by a mask; empty if the account sees all keys."""
    if "keys" not in table.column_names or not masks_property(access.masks, KEYS):
        return ""

    def shows_keys(topic: str) -> bool:
        return not masks_property(access.masked_by([topic]), KEYS)

    is_shown = _is_in(sql, table, view, "topic", shows_keys, name="shown")
    return f"REPLACE (CASE WHEN keys IS NULL OR {is_shown} THEN keys ELSE '{MASK}' END AS keys)"


def _is_in(
    sql: DuckDBPyConnection,
    table: TableSchema,
    view: str,
    column: str,
    is_seen: Callable[[str], bool],
    *,
    name: str = "seen",
) -> str:
    """Return the SQL condition that a column has one of the names for which `is_seen` is true."""
    names = sql.execute(f"SELECT DISTINCT {column} FROM {view} WHERE {column} IS NOT NULL").fetchall()
    target = f'"{name} {table.name} {column}"'
    sql.execute(
        f"CREATE TEMP TABLE {target} AS SELECT unnest(?::VARCHAR[]) AS name", [[n for (n,) in names if is_seen(n)]]
    )
    return f"coalesce({column} IN (SELECT name FROM {target}), false)"
