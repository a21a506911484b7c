"""Columns of a record. A module of its own: planners and processes of streams do not import decoders, which takes 0.1 CPU-s."""

from __future__ import annotations

import pyarrow as pa

ERROR_COLUMN = "body_error"
LENGTH_COLUMN = "body_length"  # of the expanded body
DERIVED_COLUMNS = (ERROR_COLUMN, LENGTH_COLUMN)  # only if a schema contains them

TIME = pa.timestamp("us", tz="UTC")

# column → Arrow type, Spark DDL
COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "topic": (pa.string(), "STRING"),
    "broker": (pa.string(), "STRING"),
    "queue_id": (pa.int32(), "INT"),
    "queue_offset": (pa.int64(), "BIGINT"),
    "commit_log_offset": (pa.int64(), "BIGINT"),
    "message_id": (pa.string(), "STRING"),
    "offset_message_id": (pa.string(), "STRING"),
    "keys": (pa.string(), "STRING"),
    "tags": (pa.string(), "STRING"),
    "properties": (pa.map_(pa.string(), pa.string()), "MAP<STRING, STRING>"),
    "body": (pa.binary(), "BINARY"),
    "born_timestamp": (TIME, "TIMESTAMP"),
    "store_timestamp": (TIME, "TIMESTAMP"),
    "born_host": (pa.string(), "STRING"),
    "store_host": (pa.string(), "STRING"),
    "reconsume_times": (pa.int32(), "INT"),
    "sys_flag": (pa.int32(), "INT"),
    "flag": (pa.int32(), "INT"),
    "unique_key": (pa.string(), "STRING"),
    "store_size": (pa.int32(), "INT"),
    "delay_level": (pa.int32(), "INT"),
    "deliver_at": (TIME, "TIMESTAMP"),
    "real_topic": (pa.string(), "STRING"),
    "real_queue_id": (pa.int32(), "INT"),
    "transaction_state": (pa.string(), "STRING"),
    "transaction_id": (pa.string(), "STRING"),
    "prepared_transaction_offset": (pa.int64(), "BIGINT"),
    "check_times": (pa.int32(), "INT"),
    "producer_group": (pa.string(), "STRING"),
    "retry_topic": (pa.string(), "STRING"),
    "origin_message_id": (pa.string(), "STRING"),
    ERROR_COLUMN: (pa.string(), "STRING"),
    LENGTH_COLUMN: (pa.int32(), "INT"),
}

# A body that cannot be expanded is an error unless the schema contains `body_error`: no user gets an unexplained null.
DDL = ", ".join(f"{name} {ddl}" for name, (_, ddl) in COLUMNS.items() if name not in DERIVED_COLUMNS)
