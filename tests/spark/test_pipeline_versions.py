"""A trace record of every kind of client, byte for byte as its version writes it, and the decoded event."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_frames as frames

from ariane.pipeline.tables import trace_decoding
from ariane.tables import TRACE_EVENTS, TRACE_REJECTS

NOW = str(frames.T0_MS)
PUB = f"Pub|{NOW}|r|P|T|M|tag|k1 k2|10.0.0.1:10911|17|3|0"
PUB_EVENT = {
    "type": "Pub", "event_time": frames.at(0), "region": "r", "client_group": "P", "topic": "T", "message_id": "M",
    "tags": "tag", "keys": "k1 k2", "store_host": "10.0.0.1:10911", "body_length": 17, "cost_ms": 3, "message_type": 0,
    "success": True, "client_host": "10.0.0.9:5000",
}  # fmt: skip
BEFORE = f"SubBefore|{NOW}|null|G|R|M|2|k1"
BEFORE_EVENT = {
    "type": "SubBefore", "event_time": frames.at(0), "client_group": "G", "request_id": "R", "message_id": "M",
    "retry_times": 2, "keys": "k1", "client_host": "10.0.0.9:5000",
}  # fmt: skip
AFTER = "SubAfter|R|M|7|false|k1"
AFTER_EVENT = {
    "type": "SubAfter", "request_id": "R", "message_id": "M", "cost_ms": 7, "success": False, "keys": "k1",
    "client_host": "10.0.0.9:5000",
}  # fmt: skip
CODED_EVENT = AFTER_EVENT | {"context_code": 2}
TIMED = {"context_code": 2, "event_time": frames.at(0), "client_group": "G"}
END = f"EndTransaction|{NOW}|r|P|T|M|tag|k1|10.0.0.1:10911|2|X|UNKNOW|true"
END_EVENT = {
    "type": "EndTransaction", "event_time": frames.at(0), "region": "r", "client_group": "P", "topic": "T",
    "message_id": "M", "tags": "tag", "keys": "k1", "store_host": "10.0.0.1:10911", "message_type": 2,
    "transaction_id": "X", "transaction_state": "UNKNOW", "from_check": True, "client_host": "10.0.0.9:5000",
}  # fmt: skip
RECALL_EVENT = {
    "type": "Recall", "event_time": frames.at(0), "region": "r", "client_group": "P", "topic": "T", "message_id": "M",
    "success": True, "client_host": "10.0.0.9:5000",
}  # fmt: skip
OFFSET = {"offset_message_id": "OFF"}

# Who writes it: the text with | for 0x01 and ; for 0x02, and the events.
GOLDEN: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "before 4.4, Pub of 12 fields, no success": (f"{PUB};", [PUB_EVENT]),
    "before 4.4, Pub of 13 fields, no offset id": (f"{PUB}|false;", [PUB_EVENT | {"success": False}]),
    "Java 4.4.0 to 4.7.1, 4.9.1": (
        f"{PUB}|OFF|true;{BEFORE};{AFTER}|2;",
        [PUB_EVENT | OFFSET, BEFORE_EVENT, CODED_EVENT],
    ),
    "Java 4.8.0 tells the client": (
        f"{PUB}|OFF|true|10.1.1.1@7;{BEFORE}|10.1.1.1@7;{AFTER}|2|{NOW}|G;",
        [
            PUB_EVENT | OFFSET | {"client_host": "10.1.1.1@7"},
            BEFORE_EVENT | {"client_host": "10.1.1.1@7"},
            AFTER_EVENT | TIMED,
        ],
    ),
    "Java 4.9.0, 4.9.2 to 5.3.3, and ours": (
        f"{PUB}|OFF|true;{BEFORE};{AFTER}|2|{NOW}|G;{END};",
        [PUB_EVENT | OFFSET, BEFORE_EVENT, AFTER_EVENT | TIMED, END_EVENT],
    ),
    "Java 5.x, messages in order": (
        f"{PUB[:-1]}4|OFF|true;",
        [PUB_EVENT | OFFSET | {"message_type": 4}],
    ),
    "Java 4.9.5 to 5.3.0, CLOUD: no end after a SubAfter": (
        f"{AFTER}|2|{AFTER}|2|{BEFORE};{AFTER}|2|",
        [CODED_EVENT, CODED_EVENT, BEFORE_EVENT, CODED_EVENT],
    ),
    "Java 5.3.1, CLOUD: the end is back": (
        f"{AFTER}|2|;{PUB}|OFF|true;",
        [CODED_EVENT, PUB_EVENT | OFFSET],
    ),
    "Java 5.3.2 takes messages back": (f"Recall|{NOW}|r|P|T|M|true;", [RECALL_EVENT]),
    "Java, a batch": (
        f"{PUB.replace('|M|', '|M1,M2|')}|OFF1,OFF2|true;",
        [PUB_EVENT | {"message_id": f"M{n}", "offset_message_id": f"OFF{n}"} for n in (1, 2)],
    ),
    "Java, a batch that one record holds": (
        f"{PUB.replace('|M|', '|M1,M2|')}|OFF|true;",
        [PUB_EVENT | {"message_id": f"M{n}", "offset_message_id": "OFF"} for n in (1, 2)],
    ),
    "Java, absent texts": (
        f"Pub|{NOW}|null|P|T|M|null|null|10.0.0.1:10911|17|3|0|null|true;",
        [PUB_EVENT | {"region": None, "tags": None, "keys": None}],
    ),
    "Go v2": (
        f"{PUB}|OFF|true|10.2.2.2;{BEFORE.replace('null', '')}|10.2.2.2;{AFTER}|2|{NOW}|G;",
        [
            PUB_EVENT | OFFSET | {"client_host": "10.2.2.2"},
            BEFORE_EVENT | {"client_host": "10.2.2.2"},
            AFTER_EVENT | TIMED,
        ],
    ),
    "C++": (
        f"{PUB}|OFF|true;{BEFORE[:-2]}dKey;{AFTER[:-2]}dKey;",
        [PUB_EVENT | OFFSET, BEFORE_EVENT | {"keys": None}, AFTER_EVENT | {"keys": None}],
    ),
    "a tag that is called like a record": (
        f"{PUB.replace('|tag|', '|SubAfter|')}|OFF|true;{AFTER[:-2]}Pub|2|{NOW}|G;",
        [PUB_EVENT | OFFSET | {"tags": "SubAfter"}, AFTER_EVENT | TIMED | {"keys": "Pub"}],
    ),
    "the end of the last record is missing": (f"{PUB}|OFF|true;{BEFORE}", [PUB_EVENT | OFFSET, BEFORE_EVENT]),
}


def test_trace_records_of_every_version_are_decoded() -> None:
    bodies = [text.replace("|", "\x01").replace(";", "\x02").encode() for text, _ in GOLDEN.values()]
    messages = [frames.message(body, offset) for offset, body in enumerate(bodies)]
    decoded = trace_decoding.decode(frames.messages(messages))
    result: list[list[dict[str, Any]]] = [[] for _ in bodies]
    for row in decoded[TRACE_EVENTS.name].to_pylist():
        result[row["trace_queue_offset"]].append(row)
    assert decoded[TRACE_REJECTS.name].num_rows == 0
    position = ("trace_broker", "trace_queue_id", "trace_queue_offset", "record_index", "trace_stored_at", "bucket")
    for (who, (_, expected)), rows in zip(GOLDEN.items(), result, strict=True):
        reported = [
            {name: value for name, value in row.items() if name not in position and value is not None} for row in rows
        ]
        assert reported == [{name: value for name, value in item.items() if value is not None} for item in expected], (
            who
        )


def test_concatenated_records_have_their_own_index() -> None:
    body = f"{AFTER}|2|{AFTER}|2|".replace("|", "\x01").encode()
    rows = trace_decoding.decode(frames.messages([frames.message(body, 0)]))[TRACE_EVENTS.name]
    assert rows["record_index"].to_pylist() == [0, 1]
