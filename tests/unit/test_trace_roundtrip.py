"""Any event round-trips through its text, alone and among others; any bytes are decoded without an exception."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ariane.model.trace_event import ConsumeEndEvent, ConsumeStartEvent, EndTransactionEvent, PublishEvent, TraceEvent
from ariane.protocol import trace_codec

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",))).filter(
    lambda text: text != "null"
)
TIME = st.integers(0, 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)

PUBS = st.builds(
    PublishEvent, timestamp_ms=TIME, region=TEXT, group=TEXT, topic=TEXT, message_id=TEXT, tags=TEXT, keys=TEXT, store_host=TEXT,
    body_length=INT, cost_ms=INT, message_type=INT, offset_message_id=TEXT, success=st.booleans(), client_host=st.just(""),
)  # fmt: skip
BEFORES = st.builds(
    ConsumeStartEvent, timestamp_ms=TIME, region=TEXT, group=TEXT, request_id=TEXT, message_id=TEXT, retry_times=INT, keys=TEXT,
    client_host=st.just(""),
)  # fmt: skip
AFTERS = st.builds(
    ConsumeEndEvent, request_id=TEXT, message_id=TEXT, cost_ms=INT, success=st.booleans(), keys=TEXT, context_code=INT,
    timestamp_ms=TIME, group=TEXT,
)  # fmt: skip
ENDS = st.builds(
    EndTransactionEvent, timestamp_ms=TIME, region=TEXT, group=TEXT, topic=TEXT, message_id=TEXT, tags=TEXT, keys=TEXT,
    store_host=TEXT, message_type=INT, transaction_id=TEXT, state=TEXT, from_check=st.booleans(),
)  # fmt: skip
EVENTS = PUBS | BEFORES | AFTERS | ENDS


@given(st.lists(EVENTS, max_size=5), st.booleans())
def test_events_round_trip_with_and_without_the_last_separator(events: list[TraceEvent], is_ended: bool) -> None:
    text = "".join(map(trace_codec.encode, events))
    body = (text if is_ended else text[:-1]).encode()
    assert trace_codec.decode(body) == (events, [])


@given(EVENTS)
def test_a_record_has_all_its_fields(event: TraceEvent) -> None:
    fields = trace_codec.encode(event)[:-1].split("\x01")
    assert (
        len(fields)
        == {PublishEvent: 14, ConsumeStartEvent: 8, ConsumeEndEvent: 9, EndTransactionEvent: 13}[type(event)]
    )
    assert all(fields)


@given(
    st.lists(EVENTS, max_size=3),
    st.binary(max_size=80).filter(lambda data: b"\x02" not in data),
    st.lists(EVENTS, max_size=3),
)
def test_bytes_between_records_hide_none(before: list[TraceEvent], junk: bytes, after: list[TraceEvent]) -> None:
    body = (
        "".join(map(trace_codec.encode, before)).encode()
        + junk
        + b"\x02"
        + "".join(map(trace_codec.encode, after)).encode()
    )
    events, rejects = trace_codec.decode(body)
    assert events[: len(before)] == before
    assert events[len(events) - len(after) :] == after
    assert len(events) + len(rejects) == len(before) + len(after) + (1 if junk else 0)


@given(EVENTS)
def test_keys_are_the_message_id_and_the_business_keys(event: TraceEvent) -> None:
    keys = trace_codec.keys(event)
    assert " ".join(keys).split() == [*event.message_id.split(), *event.keys.split()]
    # A key that holds white space, or an empty one, would make the client refuse the whole batch.
    assert all(key.split() == [key] for key in keys)
