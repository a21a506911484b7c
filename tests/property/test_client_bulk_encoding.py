"""Bulk encodings of the sending client: headers and trace records have the bytes of the general encoders."""

from __future__ import annotations

from string import printable

from hypothesis import given
from hypothesis import strategies as st

from ariane.client.instance.instants import Instant
from ariane.client.instance.send_types import SendResult, SendStatus
from ariane.client.instance.settings import ProducerSettings
from ariane.client.sending import send_codec
from ariane.client.sending.send_headers import SendHeaders
from ariane.client.tracing.trace_records import events_of_stored, texts_of_stored
from ariane.model.message import TRANSACTION_PREPARED, Message, MessageQueue
from ariane.model.trace_event import ConsumeEndEvent, ConsumeStartEvent, PublishEvent
from ariane.protocol import command, trace_codec
from ariane.protocol.trace_batches import next_batch, to_entries

SETTINGS = ProducerSettings()
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=12)
WORDS = st.text(st.sampled_from(printable.split(" ")[0] + "é中"), min_size=1, max_size=6)
MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["T", "orders", "%RETRY%g"]),
    body=st.binary(min_size=1, max_size=20),
    tags=TEXTS,
    keys=st.lists(WORDS, max_size=3),
    properties=st.dictionaries(WORDS.map("p".__add__), TEXTS.filter(bool), max_size=2),
    flag=st.sampled_from([0, 0, 7]),
    delay_level=st.sampled_from([0, 0, 0, 3]),
    wait_stored=st.booleans(),
)
# What a broker says is not checked by the client: it may contain separators.
FOREIGN = st.sampled_from(["", "R", "127.0.0.1:10911", "a\x01b", "c\x02", "7F000001"])


@given(MESSAGES, TEXTS.filter(bool), st.integers(0, 70_000), st.integers(0, 2**42))
def test_headers_of_sends_have_the_bytes_of_their_fields(message, group, queue_id, born_ms):
    prepared = send_codec.prepare(message, "ID", SETTINGS)
    headers = SendHeaders(group, SETTINGS)
    texts = send_codec.request_fields(prepared, group, queue_id, born_ms, SETTINGS)
    for _ in range(2):  # the second time from a template
        fields = headers.fields(prepared, queue_id, born_ms)
        assert command.field_texts(fields) == texts
        ours = command.encode(prepared.code, opaque=7, flag=0, fields=fields, body=prepared.body)
        assert ours == command.encode(prepared.code, opaque=7, flag=0, fields=texts, body=prepared.body)


@st.composite
def stored_sends(draw):
    messages = draw(st.lists(MESSAGES, min_size=1, max_size=3))
    if len(messages) == 1:
        prepared = send_codec.prepare(messages[0], draw(st.sampled_from(["ID", "an id"])), SETTINGS)
        if draw(st.booleans()):
            prepared = send_codec.msgspec.structs.replace(
                prepared, sys_flag=draw(st.sampled_from([0, 1, TRANSACTION_PREPARED]))
            )
    else:
        plain = [Message(topic="T", body=message.body, tags=message.tags, keys=message.keys) for message in messages]
        prepared = send_codec.prepare_batch(plain, iter("abc").__next__, SETTINGS)
    result = SendResult(
        status=draw(st.sampled_from(SendStatus)),
        message_id="ID",
        offset_message_id=draw(FOREIGN),
        queue=MessageQueue("T", "a", 0),
        queue_offset=1,
        transaction_id=None,
        region=draw(FOREIGN),
        trace_on=draw(st.sampled_from([True, True, True, False])),
    )
    started, ended = draw(st.integers(0, 2**42)), draw(st.integers(-5, 5000))
    return (prepared, draw(FOREIGN), started, 1.0, started + ended, 1.0 + draw(st.floats(0, 5)), result)


@given(st.lists(stored_sends(), max_size=5), st.sampled_from(["TRACES", "ord"]))
def test_trace_records_of_sends_have_the_bytes_of_their_events(sends, trace_topic):
    texts, keys = texts_of_stored(sends, "g", trace_topic)
    events = [event for send in sends for event in events_of_stored(send, "g", trace_topic)]
    assert texts == [trace_codec.encode(event) for event in events]
    assert [tuple(key.split()) for key in keys] == [trace_codec.keys(event) for event in events]
    batch = next_batch(to_entries(texts, keys), 10**6, 10**6)
    assert batch.body == "".join(texts).encode()
    assert batch.keys == tuple(dict.fromkeys(key for event in events for key in trace_codec.keys(event)))


@given(st.integers(0, 5), st.integers(-20, 20), st.floats(-0.02, 0.02))
def test_the_cost_of_a_send_is_that_of_its_two_instants(start, wall_ms, elapsed_s):
    started, ended = Instant(start, 0.0), Instant(start + wall_ms, elapsed_s)
    elapsed_ms = elapsed_s * 1000
    cost = ended.ms_since(started)
    assert cost == wall_ms or (cost - 1 < elapsed_ms <= cost and abs(elapsed_ms - wall_ms) >= 1)


EVENTS = st.one_of(
    st.builds(
        ConsumeStartEvent, region=FOREIGN, group=FOREIGN, request_id=FOREIGN, message_id=FOREIGN, keys=FOREIGN | TEXTS
    ),
    st.builds(ConsumeEndEvent, request_id=FOREIGN, message_id=FOREIGN, keys=FOREIGN | TEXTS, group=FOREIGN),
    st.builds(
        PublishEvent, region=FOREIGN, group=FOREIGN, topic=FOREIGN, message_id=FOREIGN, tags=FOREIGN, keys=FOREIGN,
        store_host=FOREIGN, offset_message_id=FOREIGN,
    ),
)  # fmt: skip


@given(EVENTS)
def test_common_records_have_the_bytes_of_the_general_layout(event):
    fields = [trace_codec.RECORD_TYPES[type(event)], *map(trace_codec._text, trace_codec._LAYOUTS[type(event)](event))]
    assert trace_codec.encode(event) == "\x01".join(field.translate(trace_codec._SAFE) for field in fields) + "\x02"
