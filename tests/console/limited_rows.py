"""Tables of all reports with rows of a visible and a hidden topic, for tests of limits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ariane.clock import ms_of
from ariane.tables import (
    ALL_TABLES,
    CLOCKS,
    CONSUMPTION,
    DELAYS,
    HEALTH,
    LATENCIES,
    SAMPLES_BROKERS,
    SLOW_MESSAGES,
    TRAFFIC,
    TRANSACTIONS,
)
from tables_on_disk import put

HIDDEN_LAG = 987_654_321
Row = dict[str, Any]


def write_tables(
    home: Path, *, topics: tuple[str, str], groups: tuple[str, str], ids: Mapping[str, str], host: str
) -> None:
    """Write rows of all pairs of names; the second name of each kind is hidden, and so are rows of `host`."""
    at = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=20)
    (topic, hidden_topic), (group, hidden_group) = topics, groups
    rows: dict[str, list[Row]] = {
        HEALTH.name: [_problem(at, hidden_topic, ids["hidden"], host)],
        CLOCKS.name: [{"host": host, "minute": at, "messages": 9, "discarded": 9, "discarded_ids": [ids["hidden"]]}],
        SAMPLES_BROKERS.name: [{"sampled_at": at, "broker_id": 0, "broker": "broker-a", "addr": "10.0.0.1:10911"}],
    }
    for name, owner in (
        (topic, group), (topic, None), (topic, hidden_group), (hidden_topic, group), (hidden_topic, hidden_group),
        (None, group), (f"%RETRY%{group}", group),
    ):  # fmt: skip
        is_hidden = name != topic or owner == hidden_group
        client = {"topic": name, "client_group": owner, "client_host": host if is_hidden else "10.0.0.1"}
        pairs = _rows(at, client, ids["masked" if name == topic else "hidden"])
        pairs[CONSUMPTION.name]["lag"] = HIDDEN_LAG if is_hidden and owner != group else 3
        for table, row in pairs.items():
            if name is not None or table != CONSUMPTION.name:
                rows.setdefault(table, []).append(row)
    for table in (table for table in ALL_TABLES if table.name in rows):
        put(home, table, rows[table.name], as_of_ms=ms_of(datetime.now(UTC)), applied={"traces x": 1})


def _rows(at: datetime, client: Row, message_id: str) -> dict[str, Row]:
    """Return a row of each table. The keys of a message are those that the test plants."""
    topic, group = client["topic"], client["client_group"]
    keys = "SECRET-KEY" if topic == "orders" else "planted-key"
    costs = {"topic": topic, "client_group": group, "send_cost_ms": [(100, 5)], "send_cost_ms_max": 7}
    counts = {"messages": 90, "successes": 90, "failures": 0, "bytes": 900}
    message = {"message_id": message_id, "broker": "broker-a", "topic": topic, "keys": keys}
    return {
        TRAFFIC.name: {"minute": at, "direction": "out", **client, **costs, **counts},
        LATENCIES.name: {"window_start": at.replace(minute=at.minute // 10 * 10), **costs},
        SLOW_MESSAGES.name: {
            "measured_at": at, "measure": "send_cost_ms", "ms": 900, **client, "message_id": message_id, "keys": keys,
        },
        CONSUMPTION.name: {
            "window_start": at, "broker": "broker-a", "topic": topic, "consumer_group": group, "queues": 4, "seconds": 60.0,
            "flags": [],
        },
        DELAYS.name: {
            **message, "kind": "level", "level": 3, "scheduled_at": at, "state": "pending", "commit_log_offset": 1,
        },
        TRANSACTIONS.name: {
            **message, "producer_group": group, "half_stored_at": at, "half_count": 1, "checks": 1, "decision": "open",
            "last_copy_at": at,
        },
    }  # fmt: skip


def _problem(at: datetime, topic: str, message_id: str, host: str) -> Row:
    example = {"worst": 1, "message_id": message_id, "at": at, "detail": "planted-value"}
    return {
        "kind": "dead-letter", "minute": at, "topic": topic, "count": 3, "worst": 1, "host": host, "examples": [example],
    }  # fmt: skip
