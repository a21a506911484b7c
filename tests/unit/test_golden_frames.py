"""Frames of real 4.9.4 peers are decoded, converted to typed requests, and encoded to the same bytes."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ariane.nameserver import registration
from ariane.protocol import command, fastjson, trace_codec
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.frame import FrameReader
from ariane.protocol.records import batch, record
from ariane.protocol.requests import admin, clients, decode_header, encode_header, messaging, routing

DATA = Path(__file__).parents[1] / "data"
INDEX = json.loads((DATA / "frames" / "index.json").read_text())

# The header of each request, and the bodies of requests and answers, that this version knows.
HEADERS: dict[int, type[msgspec.Struct]] = {
    11: messaging.PullMessage,
    14: messaging.QueryConsumerOffset,
    15: messaging.UpdateConsumerOffset,
    17: admin.CreateTopic,
    30: messaging.QueueRef,
    31: messaging.QueueRef,
    35: clients.UnregisterClient,
    38: clients.GroupRef,
    40: clients.GroupRef,
    100: routing.PutKv,
    103: routing.RegisterBroker,
    104: routing.BrokerRef,
    105: routing.RouteRequest,
    215: admin.TopicRef,
    216: routing.DeleteTopicRoute,
    310: messaging.SendMessage,
    320: messaging.SendMessage,
}
REQUEST_BODIES: dict[int, type[msgspec.Struct]] = {
    34: clients.HeartbeatData,
    41: clients.LockBatch,
    42: clients.LockBatch,
    103: routing.RegisterBrokerBody,
}
ANSWER_BODIES: dict[int, type[msgspec.Struct]] = {
    38: clients.ConsumerList,
    41: clients.LockBatchResponse,
    105: routing.TopicRoute,
    106: routing.ClusterInfo,
    206: routing.TopicList,
}
ANSWER_HEADERS: dict[tuple[int, int], type[msgspec.Struct]] = {
    (11, 0): messaging.PullMessageResponse,
    (11, 19): messaging.PullMessageResponse,
    (14, 0): messaging.OffsetResponse,
    (30, 0): messaging.OffsetResponse,
    (31, 0): messaging.OffsetResponse,
    (310, 0): messaging.SendMessageResponse,
    (320, 0): messaging.SendMessageResponse,
}

BY_NAME = [pytest.param(entry, id=entry["file"]) for entry in INDEX]


def read(entry: dict[str, Any]) -> Command:
    (frame,) = FrameReader().feed((DATA / "frames" / entry["file"]).read_bytes())
    return command.decode(frame)


@pytest.mark.parametrize("entry", BY_NAME)
def test_every_frame_round_trips(entry: dict[str, Any]) -> None:
    result = read(entry)
    assert result.is_response == entry["kind"].startswith("answer")
    assert result.is_one_way == (entry["kind"] == "one-way")
    assert result.language == "JAVA"
    form = 1 if entry["form"] == "binary" else 0
    written = command.encode(
        result.code,
        opaque=result.opaque,
        flag=result.flag,
        fields=None if result.fields is None else result.field_map(),
        remark=result.remark,
        body=result.body,
        form=form,
    )
    original = (DATA / "frames" / entry["file"]).read_bytes()
    encoded = b"".join(written)
    if form:  # the language byte is ours; HashMap order of the entries is Java's and kept
        assert (encoded[:10], encoded[11:]) == (original[:10], original[11:])
    else:
        (repeated,) = FrameReader().feed(encoded)
        (first,) = FrameReader().feed(original)
        assert json.loads(repeated.header) == {**json.loads(first.header), "language": "PYTHON", "version": 401}


@pytest.mark.parametrize(
    "entry",
    [
        param
        for param in BY_NAME
        if param.values[0]["code"] in HEADERS and not param.values[0]["kind"].startswith("answer")
    ],
)
def test_typed_requests_retain_all_fields(entry: dict[str, Any]) -> None:
    result = read(entry)
    known = encode_header(decode_header(result, HEADERS[result.code]))
    sent = {name: value for name, value in result.field_map().items() if name in known}
    assert {name: known[name] for name in sent} == sent
    unknown = result.field_map().keys() - known.keys()
    assert unknown <= {"ReqT"}  # which kind of client asks: of no meaning to a 4.9.4 server


@pytest.mark.parametrize(
    "entry",
    [
        param
        for param in BY_NAME
        if (param.values[0]["code"], param.values[0]["kind"]) in {(code, f"answer-{rc}") for code, rc in ANSWER_HEADERS}
    ],
)
def test_responses_are_typed(entry: dict[str, Any]) -> None:
    result = read(entry)
    assert decode_header(result, ANSWER_HEADERS[entry["code"], result.code]) is not None


def bodies() -> list[Any]:
    results = []
    for entry in INDEX:
        table = ANSWER_BODIES if entry["kind"] == "answer-0" else REQUEST_BODIES
        if entry["code"] in table and "compressed" not in entry["file"] and not entry["kind"].startswith("answer-1"):
            results.append(pytest.param(entry, table[entry["code"]], id=entry["file"]))
    return results


@pytest.mark.parametrize(("entry", "kind"), bodies())
def test_bodies_round_trip_in_javas_format(entry: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    body = read(entry).body
    value = fastjson.decode(body, kind)
    if body:
        # Member for member; the order of maps and sets is Java's hash order.
        assert _plain(fastjson.read(fastjson.write(value))) == _plain(fastjson.read(body))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return sorted(map(_plain, value), key=repr) if isinstance(value, list) else value


def test_pulled_records_are_decoded_with_checksums() -> None:
    result = [read(entry) for entry in INDEX if entry["code"] == 11 and entry["kind"] == "answer-0"]
    records = [item for answer in result for item in record.decode_all(answer.body)]
    assert len(records) >= 2
    assert all(item.crc_is_right() for item in records)
    for item in records:
        repeated = record.encode(
            item.topic.encode(), item.body, item.properties.encode(), queue_id=item.queue_id, queue_offset=item.queue_offset,
            offset=item.offset, born_ms=item.born_ms, born_host=item.born_host, store_ms=item.store_ms,
            store_host=item.store_host, flag=item.flag, sys_flag=item.sys_flag, reconsume_times=item.reconsume_times,
            prepared_offset=item.prepared_offset,
        )  # fmt: skip
        assert record.decode(repeated) == item


def test_batches_equal_javas() -> None:
    (request,) = [
        read(entry)
        for entry in INDEX
        if entry["code"] == 320 and entry["kind"] == "request" and entry["form"] == "json"
    ]
    entries = batch.decode(request.body)
    assert len(entries) == 2
    assert batch.encode(entries) == request.body


@pytest.mark.parametrize("compressed", [False, True])
def test_registrations_are_decoded_in_both_formats(compressed: bool) -> None:
    registrations = [e for e in INDEX if e["code"] == RequestCode.REGISTER_BROKER and e["kind"] == "request"]
    request = read(next(e for e in registrations if ("compressed" in e["file"]) == compressed))
    header = decode_header(request, routing.RegisterBroker)
    assert (header.compressed, zlib.crc32(request.body) & 0x7FFFFFFF) == (compressed, header.body_crc32)
    body = registration.decode(header, request.body, request.version)
    topics = body.topic_config_serialize_wrapper.topic_config_table
    assert topics["TBW102"].perm == 7
    assert topics["BenchmarkTest"].write_queue_nums == 1024


def test_traces_of_java_clients_are_decoded_without_rejects() -> None:
    events = []
    for path in sorted((DATA / "trace").iterdir()):
        body = path.read_bytes()
        result, rejects = trace_codec.decode(body)
        assert rejects == []
        assert "".join(map(trace_codec.encode, result)).encode() == body
        events += result
    assert {type(event).__name__ for event in events} == {
        "PublishEvent",
        "ConsumeStartEvent",
        "ConsumeEndEvent",
    }
