"""Tables of the pipeline with an hour of rows for every report, written without Spark. Names contain markup."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import hostile_texts

from ariane.clock import ms_of
from ariane.reports.tables.pipeline_status import SourceStatus, write_status
from ariane.tables import (
    CONSUMPTION,
    DELAYS,
    HEALTH,
    LATENCIES,
    SAMPLES_BROKERS,
    SAMPLES_COUNTERS,
    SAMPLES_QUEUES,
    SLOW_MESSAGES,
    TRAFFIC,
    TRANSACTIONS,
    TableSchema,
)
from ariane.tables.declarations.traffic import EXCLUSION_REASONS
from ariane.tables.histogram import histogram_of
from ariane.tables.time_buckets import bucket_of_time
from tables_on_disk import put

MINUTES = 60
TOPICS = ("orders", hostile_texts.TOPIC)


def write_tables(home: Path) -> None:
    """Write the tables of all reports, complete until now."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    minutes = [now - timedelta(minutes=number) for number in range(MINUTES, 0, -1)]
    traffic = [
        row for minute in minutes for topic in TOPICS for row in (_sent(minute, topic), _consumed(minute, topic))
    ]
    _write(home, TRAFFIC, traffic, now)
    _write(home, LATENCIES, [_latencies(row) for row in traffic], now)
    _write(home, SLOW_MESSAGES, [_slow(minute) for minute in minutes[-5:]], now)
    _write(home, SAMPLES_BROKERS, [_broker(minute) for minute in minutes], now)
    _write(home, SAMPLES_QUEUES, [], now)
    _write(home, SAMPLES_COUNTERS, [], now)
    samples = {table.name: 1 for table in (SAMPLES_BROKERS, SAMPLES_QUEUES, SAMPLES_COUNTERS)}
    _write(home, CONSUMPTION, [_consumption(number, minute) for number, minute in enumerate(minutes)], now, samples)
    _write(home, HEALTH, [_problem(kind, now) for kind in ("duplicate-sent", "clock-ahead", "dead-letter")], now)
    _write(home, DELAYS, [_delay(number, now) for number in range(20)], now)
    _write(home, TRANSACTIONS, [_transaction(number, now) for number in range(20)], now)
    for source in ("traces", "samples", "messages"):
        write_status(home, SourceStatus(source, ms_of(now), 1, 10, 0, None))


def _write(
    home: Path, table: TableSchema, rows: Iterable[dict[str, Any]], now: datetime, applied: dict[str, int] | None = None
) -> None:
    by_bucket: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        complete = dict.fromkeys(table.column_names) | row
        complete |= {key: list(value.items()) for key, value in row.items() if isinstance(value, dict)}
        by_bucket.setdefault(bucket_of_time(ms_of(row[table.time_column])), []).append(complete)
    for bucket, some in by_bucket.items() or [(bucket_of_time(ms_of(now)), [])]:
        put(home, table, some, bucket=bucket, as_of_ms=ms_of(now), applied=applied or {"traces x": 1, "messages x": 1})


def _sent(minute: datetime, topic: str) -> dict[str, Any]:
    costs = [3, 5, 8, 40 + minute.minute]
    return {
        "minute": minute, "direction": "out", "topic": topic, "client_group": "shop", "client_host": "10.0.0.1",
        "messages": 100 + minute.minute, "successes": 100, "failures": minute.minute, "bytes": 10_000,
        "send_cost_ms": histogram_of(costs), "send_cost_ms_max": max(costs), "send_cost_missing": 0,
    }  # fmt: skip


def _consumed(minute: datetime, topic: str) -> dict[str, Any]:
    return {
        "minute": minute, "direction": "in", "topic": topic, "client_group": "billing", "client_host": "10.0.0.2",
        "messages": 90, "successes": 88, "failures": 2, "queueing_ms": histogram_of([20, 30, 900]),
        "consume_cost_ms": histogram_of([7, 9, 11]), "queueing_ms_max": 900, "consume_cost_ms_max": 11,
        "consume_cost_missing": 0, **{f"queueing_{reason}": 0 for reason in EXCLUSION_REASONS},
    }  # fmt: skip


def _latencies(row: dict[str, Any]) -> dict[str, Any]:
    start = row["minute"].replace(minute=row["minute"].minute // 10 * 10)
    return {"window_start": start} | {name: row.get(name) for name in LATENCIES.column_names if name != "window_start"}


def _slow(minute: datetime) -> dict[str, Any]:
    return {
        "measured_at": minute, "measure": "queueing_ms", "ms": 900, "topic": "orders", "client_group": "billing",
        "client_host": "10.0.0.2", "message_id": hostile_texts.IMAGE_WITHOUT_SPACES, "keys": hostile_texts.SCRIPT,
    }  # fmt: skip


def _broker(minute: datetime) -> dict[str, Any]:
    return {
        "sampled_at": minute, "broker_id": 0, "collector": "host", "stored_at": minute, "broker": "broker-a",
        "cluster": "DefaultCluster", "addr": "10.0.0.1:10911", "interval_ms": 5000, "booted_at": minute - timedelta(days=1),
        "put_total": 10 * minute.minute, "get_total": 20 * minute.minute, "log_max": 1000, "skipped_groups": 0,
        "dropped_samples": 0, "failed_requests": [],
    }  # fmt: skip


def _consumption(number: int, minute: datetime) -> dict[str, Any]:
    return {
        "window_start": minute, "broker": "broker-a", "topic": "orders", "consumer_group": hostile_texts.GROUP, "queues": 4,
        "seconds": 60.0, "produced_tps": 5.0, "consumed_tps": 10.0, "delivered_master_tps": 4.0, "delivered_slaves_tps": 6.0,
        "lag": 6_000 - 90 * number, "lag_change": -90, "oldest_age_ms": 4000, "removed": 0, "drain_s": 120.0, "flags": [],
    }  # fmt: skip


def _problem(kind: str, now: datetime) -> dict[str, Any]:
    at = now - timedelta(minutes=10)
    example = {
        "worst": 1200,
        "message_id": hostile_texts.IMAGE_WITHOUT_SPACES,
        "at": at,
        "detail": hostile_texts.SCRIPT,
    }
    return {
        "kind": kind,
        "minute": at,
        "topic": TOPICS[1],
        "count": 3,
        "worst": 1200,
        "host": "10.0.0.7",
        "examples": [example],
    }


def _delay(number: int, now: datetime) -> dict[str, Any]:
    due = now - timedelta(minutes=number)
    return {
        "message_id": f"M{number}", "broker": "broker-a", "topic": TOPICS[number % 2], "kind": "level", "level": 3,
        "scheduled_at": due, "delivered_at": due + timedelta(milliseconds=number), "lateness_ms": number, "state": "delivered",
        "commit_log_offset": number,
    }  # fmt: skip


def _transaction(number: int, now: datetime) -> dict[str, Any]:
    stored = now - timedelta(minutes=number)
    decision = ("commit", "rollback", "open")[number % 3]
    return {
        "message_id": f"T{number}", "broker": "broker-a", "topic": "payments", "producer_group": hostile_texts.GROUP,
        "half_stored_at": stored, "half_count": 1, "checks": number % 4, "decision": decision,
        "decision_ms": None if decision == "open" else 20 * number, "commits": 1 if decision == "commit" else 0,
        "last_copy_at": stored, "decided_at": None if decision == "open" else stored, "offset_message_id": f"OFF-{number}",
    }  # fmt: skip
