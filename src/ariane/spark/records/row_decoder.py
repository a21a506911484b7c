"""Decodes records to columns one by one: for buffers with IPv6 hosts, and as the reference for `arrow_decoder` in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from ariane.errors import ProtocolError
from ariane.model import host, ids
from ariane.model.message import (
    CHECK_TIMES,
    COMPRESSED,
    DELAY,
    KEYS,
    ORIGIN_MESSAGE_ID,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    START_DELIVER_TIME,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRAN_MSG,
    UNIQ_KEY,
)
from ariane.model.topic import HALF_TOPIC
from ariane.protocol.records import compression
from ariane.protocol.records.record import Record
from ariane.spark.records import bodies, record_columns

_TIME = pa.timestamp("us", tz="UTC")

# A producer may send any 64-bit time; one that µs cannot represent becomes null instead of a wrong time.
MS_MAX = (2**63 - 1) // 1000
_INT_MAX = 2**31 - 1

# By bits 2 and 3 of sysFlag. Brokers clear them in the half topic, whose messages are prepared nevertheless.
TRANSACTION_STATES = ("none", "prepared", "commit", "rollback")
PREPARED = TRANSACTION_STATES.index("prepared")

# Properties with a delivery time → ms per unit if relative to the store time, None if ms since the epoch. The first one present
# wins: TIMER_OUT_MS is the broker's decision, the others are requests of a producer.
DELIVERY_PROPERTIES = {
    TIMER_OUT_MS: None,
    START_DELIVER_TIME: None,
    TIMER_DELAY_SEC: 1000,
    TIMER_DELAY_MS: 1,
    TIMER_DELIVER_MS: None,
}
_DIGITS_MAX = 15


def decode_columns(records: list[Record], broker: str | None, kinds: Mapping[str, pa.DataType]) -> list[pa.Array]:
    """Decode the columns of `kinds` (name → Arrow type).

    Raises:
        ProtocolError: a body cannot be expanded, and `body_error` is not among the columns.
        BatchTooLarge: the expanded bodies exceed the limit of a batch.
    """
    maps = [record.property_map() for record in records]
    decoded = []
    for name, kind in kinds.items():
        if name == "broker":
            decoded.append(pa.array([broker] * len(records), kind))
        elif name in ("body", *record_columns.DERIVED_COLUMNS):
            bodies_and_errors = _bodies(records, tolerant=record_columns.ERROR_COLUMN in kinds)
            values: list[Any] = [pair[name == record_columns.ERROR_COLUMN] for pair in bodies_and_errors]
            if name == record_columns.LENGTH_COLUMN:
                values = [None if body is None else len(body) for body in values]
            decoded.append(pa.array(values, kind))
        elif kind == _TIME:
            decoded.append(
                timestamps([_TIMES[name](record, properties) for record, properties in zip(records, maps, strict=True)])
            )
        else:
            decoded.append(
                pa.array(
                    [_VALUES[name](record, properties) for record, properties in zip(records, maps, strict=True)], kind
                )
            )
    return decoded


def parse_integer(text: str | None) -> int | None:
    """Return a non-negative 32-bit integer, or None if the text is anything else."""
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= 10):
        return None
    value = int(text)
    return value if value <= _INT_MAX else None


def delivery_time_ms(properties: Mapping[str, str | None], store_ms: int) -> int | None:
    """Return the delivery time in ms since the epoch according to the properties, or None."""
    for name, unit in DELIVERY_PROPERTIES.items():
        text = properties.get(name)
        if text is not None and text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
            return int(text) if unit is None else store_ms + int(text) * unit
    return None


def timestamps(ms: list[int | None]) -> pa.Array:
    sayable = [None if value is None or abs(value) >= MS_MAX else value * 1000 for value in ms]
    return pa.array(sayable, pa.int64()).cast(_TIME)


def _bodies(records: list[Record], *, tolerant: bool) -> list[tuple[bytes | None, str | None]]:
    decoded, size = [], 0
    for record in records:
        decoded.append(_body(record, tolerant=tolerant))
        if record.sys_flag & COMPRESSED:
            size += len(decoded[-1][0] or b"")
            bodies.check_size(size)
    return decoded


def _body(record: Record, *, tolerant: bool) -> tuple[bytes | None, str | None]:
    try:
        return compression.decompress(record.body, record.sys_flag), None
    except ProtocolError as error:
        if tolerant:
            return None, str(error)
        raise bodies.locate_error(error, record.queue_id, record.queue_offset) from None


def _transaction_state(record: Record) -> str:
    state = record.sys_flag >> 2 & 3
    return TRANSACTION_STATES[PREPARED if not state and record.topic == HALF_TOPIC else state]


_ValueOf = Callable[[Record, dict[str, str]], Any]

_TIMES: dict[str, _ValueOf] = {
    "born_timestamp": lambda record, properties: record.born_ms,
    "store_timestamp": lambda record, properties: record.store_ms,
    "deliver_at": lambda record, properties: delivery_time_ms(properties, record.store_ms),
}

_VALUES: dict[str, _ValueOf] = {
    "topic": lambda record, properties: record.topic,
    "queue_id": lambda record, properties: record.queue_id,
    "queue_offset": lambda record, properties: record.queue_offset,
    "commit_log_offset": lambda record, properties: record.offset,
    "message_id": lambda record, properties: (
        properties.get(UNIQ_KEY) or ids.offset_message_id(record.store_host, record.offset)
    ),
    "offset_message_id": lambda record, properties: ids.offset_message_id(record.store_host, record.offset),
    "keys": lambda record, properties: properties.get(KEYS),
    "tags": lambda record, properties: properties.get(TAGS),
    "properties": lambda record, properties: list(properties.items()),
    "born_host": lambda record, properties: host.text(record.born_host),
    "store_host": lambda record, properties: host.text(record.store_host),
    "reconsume_times": lambda record, properties: record.reconsume_times,
    "sys_flag": lambda record, properties: record.sys_flag,
    "flag": lambda record, properties: record.flag,
    "unique_key": lambda record, properties: properties.get(UNIQ_KEY),
    "store_size": lambda record, properties: record.size,
    "delay_level": lambda record, properties: parse_integer(properties.get(DELAY)),
    "real_topic": lambda record, properties: properties.get(REAL_TOPIC),
    "real_queue_id": lambda record, properties: parse_integer(properties.get(REAL_QID)),
    "transaction_state": lambda record, properties: _transaction_state(record),
    "transaction_id": lambda record, properties: (
        properties.get(UNIQ_KEY) if properties.get(TRAN_MSG) == "true" else None
    ),
    "prepared_transaction_offset": lambda record, properties: record.prepared_offset,
    "check_times": lambda record, properties: parse_integer(properties.get(CHECK_TIMES)),
    "producer_group": lambda record, properties: properties.get(PGROUP),
    "retry_topic": lambda record, properties: properties.get(RETRY_TOPIC),
    "origin_message_id": lambda record, properties: properties.get(ORIGIN_MESSAGE_ID),
}
