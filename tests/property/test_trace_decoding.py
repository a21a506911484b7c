"""No trace message ends the pipeline, and none of its records is lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ariane.model import clock_offset
from ariane.model.message import UNIQ_KEY
from ariane.pipeline.tables import trace_decoding
from ariane.protocol.trace_codec import FIELD_END, RECORD_END
from ariane.tables import TRACE_EVENTS, TRACE_REJECTS

NUMBERS = st.one_of(
    st.integers().map(str), st.sampled_from(["", "null", "1.5", "9" * 5_000, "-9223372036854775809", "+7", " 7"])
)
IDS = st.sampled_from(["M", "M,,N", ","])
FIELDS = st.one_of(st.sampled_from(list(trace_decoding.FIELDS_MIN)), NUMBERS, IDS, st.text(max_size=40))
RECORDS = st.lists(FIELDS, min_size=1, max_size=16).map(FIELD_END.join)
TEXTS = st.lists(RECORDS, max_size=4).map(RECORD_END.join)
BODIES = st.one_of(st.none(), st.binary(max_size=40), TEXTS.map(str.encode))
NAMES = st.sampled_from([UNIQ_KEY, clock_offset.PROPERTY, "other"])
PROPERTIES = st.dictionaries(NAMES, st.one_of(FIELDS, st.sampled_from(["a 1 2", "a 1"])))
MESSAGES = st.fixed_dictionaries(
    {
        "body": BODIES, "broker": st.text(max_size=3), "queue_id": st.integers(0, 9),
        "store_timestamp": st.integers(-(2**63), 2**63 - 1), "born_host": st.text(max_size=3),
        "properties": st.one_of(st.none(), PROPERTIES.map(lambda table: list(table.items()))),
    }
)  # fmt: skip
SCHEMA = pa.schema(
    {
        "body": pa.binary(), "broker": pa.string(), "queue_id": pa.int32(), "queue_offset": pa.int64(),
        "store_timestamp": pa.timestamp("us", "UTC"), "born_host": pa.string(), "properties": pa.map_(pa.string(), pa.string()),
    }
)  # fmt: skip


@given(st.lists(MESSAGES, max_size=4))
def test_each_record_is_an_event_or_a_reject(messages: list[dict[str, Any]]) -> None:
    rows = [message | {"queue_offset": offset} for offset, message in enumerate(messages)]
    decoded = trace_decoding.decode(pa.table({name: [row[name] for row in rows] for name in SCHEMA.names}, SCHEMA))
    place = ("trace_queue_offset", "record_index")
    places = {tuple(row.values()) for table in decoded.values() for row in table.select(place).to_pylist()}
    counts = Counter(offset for offset, _ in places)
    for row in rows:
        records = [record for record in (row["body"] or b"").split(RECORD_END.encode()) if record]
        assert counts[row["queue_offset"]] >= len(records)  # more if some run together
        assert bool(counts[row["queue_offset"]]) == bool(records)
    assert decoded[TRACE_REJECTS.name]["reason"].null_count == 0
    assert decoded[TRACE_EVENTS.name]["message_id"].null_count == decoded[TRACE_EVENTS.name]["bucket"].null_count == 0
