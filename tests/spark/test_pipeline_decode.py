"""Trace messages to trace_events: the same as the Python decoder, and no client input fails the query."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import pyarrow as pa
import trace_frames as frames

from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    MessageType,
    PublishEvent,
    RecallEvent,
    TraceEvent,
)
from ariane.pipeline.tables import trace_decoding
from ariane.protocol import trace_codec
from ariane.tables import TRACE_EVENTS, TRACE_REJECTS, arrow_types
from table_contract_checks import check_rows

END = EndTransactionEvent(
    timestamp_ms=frames.T0_MS, region="r", group="P", topic="T", message_id="M", tags="a", keys="k", store_host="h:1",
    message_type=MessageType.COMMIT, transaction_id="X", state="ROLLBACK_MESSAGE", from_check=True,
)  # fmt: skip


RECALL = RecallEvent(timestamp_ms=frames.T0_MS, region="r", group="P", topic="T", message_id="M", success=True)


def decoded(*bodies: bytes) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return events and rejects of these trace messages, in order."""
    messages = [frames.message(body, offset) for offset, body in enumerate(bodies)]
    tables = trace_decoding.decode(frames.messages(messages))
    events, rejects = (tables[table.name].to_pylist() for table in (TRACE_EVENTS, TRACE_REJECTS))
    check_rows(events)
    check_rows(rejects)
    return events, rejects


def of_row(row: dict[str, Any]) -> TraceEvent:
    """Return the event of a row in the types of the Python decoder."""
    ms = None if row["event_time"] is None else round(row["event_time"].timestamp() * 1000)
    text = {name: value or "" for name, value in row.items() if isinstance(value, str) or value is None}
    about = {"message_id": text["message_id"], "keys": text.get("keys", ""), "group": text.get("client_group", "")}
    place = {
        "timestamp_ms": ms, "region": text.get("region", ""), "topic": text.get("topic", ""), "tags": text.get("tags", ""),
        "store_host": text.get("store_host", ""), "message_type": row["message_type"],
    }  # fmt: skip
    if row["type"] == "Pub":
        return PublishEvent(
            **about, **place, body_length=row["body_length"], cost_ms=row["cost_ms"], success=row["success"],
            offset_message_id=text.get("offset_message_id", ""),
        )  # fmt: skip
    if row["type"] == "SubBefore":
        return ConsumeStartEvent(
            **about, timestamp_ms=ms, region=place["region"], request_id=text.get("request_id", ""),
            retry_times=row["retry_times"],
        )  # fmt: skip
    if row["type"] == "Recall":
        return RecallEvent(
            timestamp_ms=ms, region=place["region"], group=about["group"], topic=place["topic"], message_id="M",
            success=row["success"],
        )  # fmt: skip
    if row["type"] == "SubAfter":
        code = row["context_code"] if row["context_code"] is not None else (0 if row["success"] else 4)
        return ConsumeEndEvent(
            **about, request_id=text.get("request_id", ""), cost_ms=row["cost_ms"], success=row["success"],
            context_code=code, timestamp_ms=ms,
        )  # fmt: skip
    return EndTransactionEvent(
        **about, **place, transaction_id=text.get("transaction_id", ""), state=text.get("transaction_state", ""),
        from_check=row["from_check"],
    )  # fmt: skip


def test_the_columns_match_the_table_schemas() -> None:
    for body in (b"", b"Pub"):
        tables = trace_decoding.decode(frames.messages([frames.message(body, 0)]))
        for table in (TRACE_EVENTS, TRACE_REJECTS):
            expected = arrow_types.arrow_schema(table).append(pa.field("bucket", pa.string()))
            assert tables[table.name].schema.equals(expected)


def test_columns_and_single_events_are_decoded_alike() -> None:
    """Complete, truncated and corrupted records: both decoders return the same events and reject the same records."""
    chance = random.Random(20231114)
    complete: list[TraceEvent] = [
        frames.pub("M"), frames.before("M", "R", 5), frames.after("M", "R", 9, code=4), END, RECALL
    ]  # fmt: skip
    bodies = []
    for _ in range(300):
        texts = []
        for event in chance.choices(complete, k=chance.randint(1, 4)):
            fields = trace_codec.encode(event)[:-1].split("\x01")
            if chance.random() < 0.4:
                fields = fields[: chance.randint(1, len(fields))]
            if chance.random() < 0.3:  # not the message id: the plain decoder takes a record without one
                position = chance.randrange(len(fields))
                if fields[position] != "M":
                    fields[position] = chance.choice(["", "null", "x", "-1.5", "true", "12", "Grüße"])
            if "M" in fields and chance.random() < 0.2:
                fields += ["10.1.1.1@7", "later"][: chance.randint(1, 2)]
            if fields[0] == "SubAfter" and len(fields) == 9 and chance.random() < 0.5:
                fields[7:] = ["\x00"]  # its end is lost, see below
            texts.append("\x01".join(fields))
        text = "\x02".join(texts) + chance.choice(["\x02", ""])
        bodies.append(text.replace("\x00\x02", "").replace("\x00", "").encode())

    events, rejects = decoded(*bodies)

    plain = [trace_codec.decode(body) for body in bodies]
    output = [event for result, _ in plain for event in result]
    assert [row["record"] for row in rejects] == [reject.text for _, result in plain for reject in result]
    assert [(row["type"], row["message_id"]) for row in events] == [
        (trace_codec.RECORD_TYPES[type(body)], "M") for body in output
    ]
    hosts = [getattr(body, "client_host", "") or "10.0.0.9:5000" for body in output]
    assert [row["client_host"] for row in events] == hosts
    bare = [_without_host(body) if isinstance(body, PublishEvent | ConsumeStartEvent) else body for body in output]
    assert [of_row(row) for row in events] == bare
    assert len(events) > 300
    assert len(rejects) > 50


def _without_host(event: PublishEvent | ConsumeStartEvent) -> TraceEvent:
    return type(event)(**{name: getattr(event, name) for name in event.__struct_fields__ if name != "client_host"})


def test_a_row_contains_the_position_of_its_record() -> None:
    (_, row), _ = decoded(frames.body([frames.pub("A"), frames.pub("B", 5)]))
    assert (row["message_id"], row["event_time"], row["trace_stored_at"]) == ("B", frames.at(5), frames.STORED)
    assert (row["trace_broker"], row["trace_queue_id"], row["trace_queue_offset"], row["record_index"]) == (
        "broker-a",
        0,
        0,
        1,
    )


MALFORMED = {
    "Reply\x011\x01r": "unknown record type Reply",
    "Recall\x011\x01r": "Recall with 3 fields is too short",
    "Recall\x01x\x01r\x01P\x01T\x01M\x01true": "Recall with an invalid or out-of-range time",
    "SubAfter\x01R\x01,\x011\x01true\x01k\x010": "SubAfter without a message id",
    "Pub\x011\x01r": "Pub with 3 fields is too short",
    "SubBefore\x01soon\x01r\x01G\x01R\x01M\x010\x01k": "SubBefore with an invalid or out-of-range time",
    "SubBefore\x0199999999999999999\x01r\x01G\x01R\x01M\x010\x01k": "SubBefore with an invalid or out-of-range time",
    "SubBefore\x011\x01r\x01G\x01R\x01M\x0199999999999\x01k": "SubBefore with an invalid or out-of-range number",
    # Python refuses to convert a text of so many digits.
    f"SubBefore\x011\x01r\x01G\x01R\x01M\x01{'9' * 5_000}\x01k": "SubBefore with an invalid or out-of-range number",
    "SubBefore\x011\x01r\x01G\x01R\x01null\x010\x01k": "SubBefore without a message id",
    "{}": "unknown record type {}",
    # A row per id, each with all other texts: terabytes.
    f"Pub\x011\x01r\x01P\x01T\x01{'M,' * 2_000}M\x01t\x01{'k' * 5_000}\x01h\x015\x013\x010\x01o\x01true": (
        "Pub with long texts and too many message ids"
    ),
}


def test_a_malformed_record_is_rejected_with_a_reason_and_affects_no_other() -> None:
    good = trace_codec.encode(frames.pub("A"))
    events, rejects = decoded(*((good + record + "\x02" + good).encode() for record in MALFORMED))
    places = [(row["trace_queue_offset"], row["record_index"]) for row in events]
    assert places == [(offset, index) for offset in range(len(MALFORMED)) for index in (0, 2)]
    assert [(row["record"], row["reason"]) for row in rejects] == list(MALFORMED.items())
    assert [(row["trace_queue_offset"], row["record_index"]) for row in rejects] == [
        (offset, 1) for offset in range(len(MALFORMED))
    ]
    assert {row["trace_broker"] for row in rejects} == {"broker-a"}


def test_invalid_utf8_does_not_fail_the_query() -> None:
    """A Java client with a different platform charset."""
    latin = trace_codec.encode(frames.pub("A", keys="Grüße")).encode("latin-1")
    events, rejects = decoded(latin, b"\xff\xfe\x00", b"")
    assert [row["keys"] for row in events] == ["Gr\ufffd\ufffde"]
    assert [row["record"] for row in rejects] == ["\ufffd\ufffd\x00"]


def test_a_record_of_many_ids_has_a_row_for_each() -> None:
    ids, offset_ids = (",".join(f"{name}{number}" for number in range(40_000)) for name in ("M", "O"))
    text = f"Pub|1|r|P|T|{ids}|t|k|10.0.0.1:10911|5|3|0|{offset_ids}|true;".replace("|", "\x01").replace(";", "\x02")
    events, rejects = decoded(text.encode())
    assert rejects == []
    assert [(row["message_id"], row["offset_message_id"]) for row in events] == [
        (f"M{number}", f"O{number}") for number in range(40_000)
    ]
