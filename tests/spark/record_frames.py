"""Stored records as small data frames, as a broker writes them for delays and transactions; for the pipeline tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ariane.model.topic import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from ariane.pipeline.tables import messages
from ariane.spark.records.record_columns import COLUMNS
from ariane.tables import MESSAGES, RECORD_POSITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T0_MS = 1_700_000_000_000  # 2023-11-14 22:13:20
T0 = datetime.fromtimestamp(T0_MS / 1000, UTC)
NOVEMBER_MS = 1_698_796_800_000
NAMES = (*MESSAGES.column_names, "body")
SCHEMA = ", ".join(f"{name} {COLUMNS[name][1]}" for name in NAMES)
Row = dict[str, Any]


def at(ms: int) -> datetime:
    """Return the time `ms` after the tests' epoch."""
    return T0 + timedelta(milliseconds=ms)


def unique_id(number: int, ms: int = 0) -> str:
    """Return the id of a message created `ms` after the epoch."""
    return f"7F0000010001AABBCCDD{T0_MS + ms - NOVEMBER_MS:08X}{number:04X}"


class Log:
    """A broker's commit log, which assigns offsets to records."""

    def __init__(self, broker: str = "broker-a") -> None:
        self.broker = broker
        self.rows: list[Row] = []
        self._next: dict[tuple[str, int], int] = {}

    def put(
        self, topic: str, message_id: str | None, ms: int, own: Mapping[str, str] = {}, *, queue_id: int = 0,
        body: bytes = b"body", born: int = 0, sys_flag: int = 0, prepared: int = 0, reconsume_times: int = 0,
    ) -> Row:  # fmt: skip
        """Add a record stored `ms` after the epoch."""
        offset = 1000 * (len(self.rows) + 1)
        number = self._next.get((topic, queue_id), 0)
        self._next[topic, queue_id] = number + 1
        properties = dict(own) | ({"UNIQ_KEY": message_id} if message_id else {})
        row = {
            "topic": topic, "broker": self.broker, "queue_id": queue_id, "queue_offset": number,
            "commit_log_offset": offset, "message_id": message_id or f"OFF-{offset}", "offset_message_id": f"OFF-{offset}",
            "keys": properties.get("KEYS"), "tags": properties.get("TAGS"), "properties": properties, "body": body,
            "body_length": len(body), "born_timestamp": at(born), "store_timestamp": at(ms), "born_host": "10.0.0.9:5000",
            "store_host": "10.0.0.1:10911", "reconsume_times": reconsume_times, "sys_flag": sys_flag,
            "prepared_transaction_offset": prepared,
        }  # fmt: skip
        self.rows.append(row)
        return row

    # --- delays ---

    def level(self, message_id: str, ms: int, level: int, topic: str = "T", **more: Any) -> Row:
        own = {"DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": "0", "KEYS": "K"}
        return self.put(SCHEDULE_TOPIC, message_id, ms, own, queue_id=level - 1, **more)

    def timer(self, message_id: str, ms: int, due_ms: int, topic: str = "T", **more: Any) -> Row:
        due = str(T0_MS + due_ms)
        own = {"TIMER_DELIVER_MS": due, "TIMER_OUT_MS": due, "REAL_TOPIC": topic, "REAL_QID": "0"}
        return self.put(TIMER_TOPIC, message_id, ms, own, born=ms, **more)

    def deliver(self, waits: Row, ms: int, *, by_java: bool = False) -> Row:
        properties = dict(waits["properties"])
        topic = properties["REAL_TOPIC"]
        if waits["topic"] == TIMER_TOPIC:
            for name in ("REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS"):
                properties.pop(name)
        row = self.put(
            topic, waits["message_id"], ms, properties, sys_flag=waits["sys_flag"],
            prepared=0 if by_java else ~waits["commit_log_offset"], reconsume_times=waits["reconsume_times"],
        )  # fmt: skip
        row["born_timestamp"] = waits["born_timestamp"]
        return row

    def moved(self, waits: Row, ms: int) -> Row:
        row = self.put(TIMER_TOPIC, waits["message_id"], ms, waits["properties"], prepared=~waits["commit_log_offset"])
        row["born_timestamp"] = waits["born_timestamp"]
        return row

    def cancel(self, waits: Row, ms: int) -> Row:
        about = {"TIMER_CANCELS": str(waits["queue_offset"]), "TIMER_DEL_UNIQKEY": waits["message_id"]}
        return self.put(TIMER_TOPIC, None, ms, about, queue_id=1, body=b"")

    def recall_at_apache(self, waits: Row, ms: int) -> Row:
        about = waits["properties"] | {
            "TIMER_DEL_UNIQKEY": f"{waits['properties']['REAL_TOPIC']}+{waits['message_id']}"
        }
        return self.put(TIMER_TOPIC, waits["message_id"], ms, about)

    # --- transactions ---

    def half(self, message_id: str, ms: int, **own: str) -> Row:
        table = {"TRAN_MSG": "true", "PGROUP": "P", "REAL_TOPIC": "T", "REAL_QID": "0", "KEYS": "K", **own}
        return self.put(HALF_TOPIC, message_id, ms, table)

    def copy(self, half: Row, ms: int, checks: int, *, by_java: bool = False) -> Row:
        root = half["properties"].get("TRAN_PREPARED_QUEUE_OFFSET", str(half["queue_offset"]))
        properties = {**half["properties"], "TRANSACTION_CHECK_TIMES": str(checks)}
        if not by_java:
            properties["TRAN_PREPARED_QUEUE_OFFSET"] = root
        return self.put(HALF_TOPIC, half["message_id"], ms, properties)

    def op(self, *halves: Row, ms: int) -> Row:
        body = ",".join(str(half["queue_offset"]) for half in halves).encode()
        return self.put(OP_HALF_TOPIC, None, ms, {"TAGS": "d", "WAIT": "true"}, body=body)

    def commit(self, half: Row, ms: int) -> Row:
        prepared = half["commit_log_offset"]
        return self.put("T", half["message_id"], ms, half["properties"], sys_flag=8, prepared=prepared)

    def aside(self, half: Row, ms: int) -> Row:
        properties = {name: text for name, text in half["properties"].items() if name != "TRAN_PREPARED_QUEUE_OFFSET"}
        return self.put(CHECK_MAX_TIME_TOPIC, half["message_id"], ms, properties)


def frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """Return records as the source returns them."""
    return spark.createDataFrame(list(rows), SCHEMA)


def arrow_table(rows: Iterable[Row], names: Iterable[str] = NAMES) -> pa.Table:
    """Return these columns of records in Arrow, as the source returns them."""
    lists = [{**row, "properties": list(row["properties"].items())} for row in rows]
    return pa.Table.from_pylist(lists, pa.schema([(name, COLUMNS[name][0]) for name in names]))


class Tables:
    """Base tables built from records at once or batch by batch."""

    def __init__(self, spark: SparkSession, batches: Iterable[Iterable[Row]], names: Sequence[str] = NAMES) -> None:
        parts = [messages.decode(arrow_table(batch, names)) for batch in batches]
        self.messages, self.places = (
            spark.createDataFrame(pa.concat_tables(part[table.name] for part in parts))
            for table in (MESSAGES, RECORD_POSITIONS)
        )
        self.marks = messages.position_marks(self.places, self.places)
