"""How long `ariane trace` takes among N journeys.

    python benches/journeys.py [--rows 100000000] [--days 7] [--asks 5] [--json] [--out FILE] [--dir DIR] [--keep]

Writes `journeys` (a file per ten minutes) and `message_keys` (a file per day, two terms a message) as the pipeline publishes
them, straight with pyarrow, and asks by id, by key, and for a topic of the last ten minutes: as a command, process start
included, and within a process that has asked once. Medians. 100 M journeys take about 9 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ariane.reports import trace_lookup
from ariane.reports.tables.table_views import sql_type
from ariane.tables import JOURNEYS, MESSAGE_KEYS, TableSchema
from ariane.tables.table_format import CURRENT, DataFile, TableVersion
from ariane.tables.time_buckets import BUCKET_MS, bucket_of_time

DAY_MS = 86_400_000
PREFIX = "0A00000200010A0B0C0D"
TOPICS = 20
# Rows that a row group of `Table.group_bytes` holds when Spark writes these columns, about.
GROUP_ROWS = {"journeys": 50_000, "message_keys": 16_384}
HEX = np.array([f"{n:02X}" for n in range(256)], dtype="S2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--asks", type=int, default=5, help="of each kind")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dir", type=Path, help="where the tables go (default: the temporary directory)")
    parser.add_argument("--keep", action="store_true", help="leave the tables there, and use those that are there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as made:
        home = options.dir if options.keep and options.dir else Path(made)
        began = time.monotonic()
        if not (home / MESSAGE_KEYS.name / CURRENT).exists():
            write(home, options.rows, options.days)
        made_s = time.monotonic() - began
        size = sum(path.stat().st_size for path in home.rglob("*.parquet"))
        result = {"rows": options.rows, "days": options.days, "made_s": round(made_s), "gb": round(size / 1e9, 2)}
        print(json.dumps(result), flush=True)
        result |= measured(home, options.rows, options.asks)
    for name, value in result.items():
        print(f"{name:24} {value}")
    if options.json:
        print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def write(home: Path, rows: int, days: int) -> None:
    """Both tables; the last bucket ends now."""
    end = int(time.time() * 1000) // BUCKET_MS * BUCKET_MS + BUCKET_MS
    begin = end - days * DAY_MS
    buckets = (end - begin) // BUCKET_MS
    files: dict[str, list[DataFile]] = {JOURNEYS.name: [], MESSAGE_KEYS.name: []}
    keys: list[pa.Table] = []
    for bucket in range(buckets):
        first, last = rows * bucket // buckets, rows * (bucket + 1) // buckets
        bucket_ms = begin + bucket * BUCKET_MS
        numbers = np.arange(first, last)
        ids, sent_ms = unique_ids(bucket_ms, numbers - first, last - first)
        files[JOURNEYS.name].append(
            put(home, JOURNEYS, bucket_of_time(bucket_ms), journeys(ids, sent_ms, numbers), sent_ms)
        )
        keys.append(terms(ids, sent_ms, numbers, bucket_of_time(bucket_ms)))
        if bucket == buckets - 1 or bucket_of_time(bucket_ms)[:10] != bucket_of_time(bucket_ms + BUCKET_MS)[:10]:
            day = pa.concat_tables(keys)
            day = pa.concat_tables([day.filter(pc.starts_with(day["term"], start)) for start in ("0A", "order")])
            files[MESSAGE_KEYS.name].append(put(home, MESSAGE_KEYS, bucket_of_time(bucket_ms)[:10], day, sent_ms))
            keys = []
    for table in (JOURNEYS, MESSAGE_KEYS):
        there = tuple(files[table.name])
        now = TableVersion(1, table.schema, sum(file.rows for file in there), end, there)
        (home / table.name / CURRENT).write_bytes(msgspec.json.encode(now))


def unique_ids(bucket_ms: int, at: Any, count: int) -> tuple[pa.Array, Any]:
    """Ids in their order, and when they were made."""
    sent_ms = bucket_ms + at * BUCKET_MS // max(count, 1)
    month = datetime.fromtimestamp(bucket_ms / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    since = sent_ms - int(month.timestamp() * 1000)
    digits = np.stack([*(since >> shift & 0xFF for shift in (24, 16, 8, 0)), at >> 8 & 0xFF, at & 0xFF], 1)
    text = HEX[digits].reshape(len(at), 6).view("S12").ravel()
    return pc.binary_join_element_wise(PREFIX, pa.array(text).cast(pa.string()), ""), sent_ms


def journeys(ids: pa.Array, sent_ms: Any, numbers: Any) -> pa.Table:
    """A send and a consumption each."""
    count = len(ids)

    def at(ms: int) -> pa.Array:
        return pa.array((sent_ms + ms) * 1000).cast(pa.timestamp("us", tz="UTC"))

    def all_of(value: Any) -> pa.Array:
        return pa.repeat(pa.scalar(value), count)

    waited = pa.array(numbers * 7919 % 1000)
    topics = pc.binary_join_element_wise("topic-", pa.array(numbers % TOPICS).cast(pa.string()), "")
    delivery = {
        "request_id": ids, "started_at": at(9), "ended_at": at(16), "cost_ms": all_of(7), "result": all_of("success"),
        "retry_times": all_of(0), "host": all_of("10.0.0.3:1"), "clock_ms": all_of(0), "clock_error_ms": all_of(3),
        "started_corrected_at": at(9), "ended_corrected_at": at(16),
    }  # fmt: skip
    known = {
        "message_id": ids, "consumer_group": all_of("G"), "topic": topics, "keys": business_keys(numbers), "tags": all_of("a"),
        "message_type": all_of(0), "producer_group": all_of("P"), "producer_host": all_of("10.0.0.2:1"),
        "store_host": all_of("10.0.0.1:10911"), "offset_message_id": offset_ids(numbers), "sent_at": at(0),
        "sent_corrected_at": at(0), "send_cost_ms": all_of(3), "stored_at": at(2), "stored_exact": all_of(True),
        "available_at": at(2), "delay_ms": all_of(0), "sends": all_of(1), "sent_ok": all_of(True), "delivered_at": at(9),
        "delivered_corrected_at": at(9), "queueing_ms": waited, "consume_cost_ms": all_of(7), "consumed_at": at(16),
        "attempts": all_of(1), "consumed_times": all_of(1), "result": all_of("success"), "clock_skew": all_of(False),
    }  # fmt: skip
    columns = []
    schema = arrow_schema(JOURNEYS)
    for field in schema:
        if field.name == "deliveries":
            kinds = list(field.type.value_type)
            parts = [
                delivery[kind.name].cast(kind.type) if kind.name in delivery else pa.nulls(count, kind.type)
                for kind in kinds
            ]
            attempts = pa.StructArray.from_arrays(parts, fields=kinds)
            columns.append(
                pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), attempts, type=field.type)
            )
        elif field.name in known:
            columns.append(known[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def terms(ids: pa.Array, sent_ms: Any, numbers: Any, bucket: str) -> pa.Table:
    """The broker's id and the business key of each message."""
    at = pa.array(sent_ms * 1000).cast(pa.timestamp("us", tz="UTC"))
    buckets = pa.repeat(pa.scalar(bucket), len(ids))
    parts = (
        pa.Table.from_arrays([term, ids, buckets, at], MESSAGE_KEYS.column_names)
        for term in (offset_ids(numbers), business_keys(numbers))
    )
    return pa.concat_tables(parts)


def business_keys(numbers: Any) -> pa.Array:
    text = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 10, "0")
    return pc.binary_join_element_wise("order-", text, "")


def offset_ids(numbers: Any) -> pa.Array:
    text = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 16, "0")
    return pc.binary_join_element_wise("0A00000100002A9F", text, "")


def arrow_schema(table: TableSchema) -> pa.Schema:
    nulls = ", ".join(f'NULL::{sql_type(column.type)} AS "{column.name}"' for column in table.columns)
    with duckdb.connect() as sql:
        sql.execute("SET TimeZone = 'UTC'")
        return sql.sql(f"SELECT {nulls}").to_arrow_table().schema


def put(home: Path, table: TableSchema, bucket: str, rows: pa.Table, times_ms: Any) -> DataFile:
    path = home / table.name / "v=00000001" / f"bucket={bucket}" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, compression="zstd", row_group_size=GROUP_ROWS[table.name])
    name = path.relative_to(home / table.name).as_posix()
    first, last = (int(times_ms[0]), int(times_ms[-1])) if len(times_ms) else (None, None)
    return DataFile(name, bucket, rows.num_rows, path.stat().st_size, 1, first, last)


def measured(home: Path, rows: int, asks: int) -> dict[str, Any]:
    """Seconds of each kind of question: as a command, and within a process."""
    now_ms = int(time.time() * 1000)
    picked = [f"order-{rows * (2 * n + 1) // (2 * asks):010}" for n in range(asks)]
    ids = [trace_lookup.find_journeys(home, key=key).rows[0]["message_id"] for key in picked]
    kinds: dict[str, tuple[Callable[[int], trace_lookup.LookupResult], Callable[[int], list[str]]]] = {
        "id": (lambda n: trace_lookup.find_journeys(home, message_id=ids[n]), lambda n: ["--id", ids[n]]),
        "key": (lambda n: trace_lookup.find_journeys(home, key=picked[n]), lambda n: ["--key", picked[n]]),
        "key_unknown": (lambda n: trace_lookup.find_journeys(home, key=f"nobody-{n}"), lambda n: ["--key", f"nobody-{n}"]),
        "topic_10m": (
            lambda n: trace_lookup.journeys_of_topic(
                home, trace_lookup.TopicSelection(f"topic-{n}", now_ms - 600_000, now_ms), is_slowest_first=True
            ),
            lambda n: ["--topic", f"topic-{n}", "--since", "10m", "--slowest"],
        ),
    }  # fmt: skip
    result = {}
    for name, (ask, words) in kinds.items():
        result[f"{name}_s"] = took(lambda n, ask=ask: ask(n), asks)
        result[f"{name}_command_s"] = took(lambda n, words=words: command(home, words(n)), asks)
    return result


def took(work: Callable[[int], object], asks: int) -> float:
    spent = []
    for number in range(asks):
        began = time.perf_counter()
        work(number)
        spent.append(time.perf_counter() - began)
    return round(statistics.median(spent), 3)


def command(home: Path, words: list[str]) -> None:
    line = [sys.executable, "-m", "ariane.cli", "trace", "--home", str(home), *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode and "nobody" not in words[-1]:
        raise SystemExit(done.stderr or done.stdout)


if __name__ == "__main__":
    main()
