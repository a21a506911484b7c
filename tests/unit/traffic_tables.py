"""Published tables traffic and slow_messages written without Spark, for tests of the reports."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tables_on_disk
from ariane.clock import ms_of
from ariane.reports.tables.pipeline_status import SourceStatus, write_status
from ariane.tables import LATENCIES, SLOW_MESSAGES, TRAFFIC, TableSchema
from ariane.tables.declarations.traffic import EXCLUSION_REASONS
from ariane.tables.histogram import histogram_of
from ariane.tables.time_buckets import bucket_of_time

T0_MS = 1_700_000_040_000  # a whole minute
HISTOGRAMS = ("send_cost_ms", "queueing_ms", "consume_cost_ms")


def at(seconds: float = 0) -> datetime:
    return datetime.fromtimestamp(T0_MS / 1000, UTC) + timedelta(seconds=seconds)


def ms(seconds: float) -> int:
    return T0_MS + int(seconds * 1000)


def sent(minute: int, messages: int, **other: Any) -> dict[str, Any]:
    """A partial row of sends; `send` are their costs."""
    costs = other.pop("send", [5] * messages)
    row = dict.fromkeys(TRAFFIC.column_names) | {
        "minute": at(60 * minute), "direction": "out", "topic": "orders", "client_group": "shop", "client_host": "10.0.0.1",
        "messages": messages, "successes": messages, "failures": 0, "bytes": 100 * messages, "send_cost_ms": histogram_of(costs),
        "send_cost_ms_max": max(costs, default=None), "send_cost_missing": 0,
    }  # fmt: skip
    return row | other


def consumed(minute: int, messages: int, **other: Any) -> dict[str, Any]:
    """A partial row of consumptions; `queueing` and `cost` are their times."""
    queueing, cost = other.pop("queueing", [20] * messages), other.pop("cost", [7] * messages)
    row = dict.fromkeys(TRAFFIC.column_names) | {
        "minute": at(60 * minute), "direction": "in", "topic": "orders", "client_group": "billing", "client_host": "10.0.0.2",
        "messages": messages, "successes": messages, "failures": 0, "queueing_ms": histogram_of(queueing),
        "consume_cost_ms": histogram_of(cost), "queueing_ms_max": max(queueing, default=None),
        "consume_cost_ms_max": max(cost, default=None), "consume_cost_missing": 0,
        **{f"queueing_{reason}": 0 for reason in EXCLUSION_REASONS},
    }  # fmt: skip
    return row | other


def slow(seconds: float, took_ms: int, message_id: str, **other: Any) -> dict[str, Any]:
    return {
        "measured_at": at(seconds), "measure": "queueing_ms", "ms": took_ms, "topic": "orders", "client_group": "billing",
        "client_host": "10.0.0.2", "message_id": message_id, "keys": f"order-{message_id}",
    } | other  # fmt: skip


def put(home: Path, table: TableSchema, rows: Iterable[dict[str, Any]], as_of_s: float) -> None:
    """Publish rows, as of some seconds after the tests' epoch; the pipeline says it is up to date."""
    by_bucket: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        maps = {name: list(row[name].items()) for name in HISTOGRAMS if row.get(name) is not None}
        by_bucket.setdefault(bucket_of_time(ms_of(row[table.time_column])), []).append(row | maps)
    for bucket, some in by_bucket.items() or [("2023-11-14T2210", [])]:
        tables_on_disk.put(home, table, some, bucket=bucket, as_of_ms=ms(as_of_s), applied={"traces x": 1})
    write_status(home, SourceStatus("traces", ms(as_of_s), 1, 10, 0, None))


def both(home: Path, traffic: Iterable[dict[str, Any]], slow: Iterable[dict[str, Any]], as_of_s: float) -> None:
    traffic = list(traffic)
    put(home, TRAFFIC, traffic, as_of_s)
    put(home, SLOW_MESSAGES, slow, as_of_s)
    put(home, LATENCIES, map(_latencies, traffic), as_of_s)


def _latencies(row: dict[str, Any]) -> dict[str, Any]:
    begin = row["minute"].replace(minute=row["minute"].minute // 10 * 10)
    return {"window_start": begin} | {name: row[name] for name in LATENCIES.column_names if name != "window_start"}
