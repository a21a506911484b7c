"""Every decoder either decodes what a peer sends or raises ProtocolError, and raises nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.broker.replication import state_changes
from ariane.errors import ProtocolError
from ariane.model import host, ids
from ariane.model.topic import DataVersion, TopicConfig
from ariane.nameserver import registration
from ariane.protocol import command, fastjson, java_properties, trace_codec
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.frame import Frame, FrameReader, OversizedFrame
from ariane.protocol.records import batch, compression, member_stream, properties, record, replication
from ariane.protocol.requests import decode_header, decode_json_body
from ariane.protocol.requests.callbacks import reset_table, status_table
from ariane.protocol.requests.routing import RegisterBroker, RegisterBrokerBody, TopicTable
from hostile_values import NASTY, structs

KINDS = st.sampled_from(structs())


def mutated(seeds: Iterable[bytes]) -> st.SearchStrategy[bytes]:
    """Strategy: seeds with pieces removed, duplicated or replaced."""

    @st.composite
    def mutate(draw: st.DrawFn) -> bytes:
        data = draw(st.sampled_from(list(seeds)))
        for _ in range(draw(st.integers(0, 4))):
            position = draw(st.integers(0, len(data)))
            end = draw(st.integers(position, min(len(data), position + 40)))
            piece = draw(st.sampled_from(NASTY) | st.binary(max_size=8) | st.just(data[position:end] * 2))
            data = data[:position] + piece + data[end:]
        return data

    return mutate()


def read_or_refused(read: Callable[[], Any]) -> None:
    try:
        read()
    except ProtocolError as error:
        assert str(error)


def json_seeds(kind: type[msgspec.Struct]) -> list[bytes]:
    """Return objects with all members of a struct, as texts, numbers and nested values."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    values: list[Any] = ["1", 1, "x", [], {}, [{}], {"1": {}}, None]
    return [fastjson.write(dict.fromkeys(names, value)) for value in values] + [
        b'{{"brokerName":"b","queueId":0,"topic":"t"}:5,0:"a"}'
    ]


SEEDS = {kind: json_seeds(kind) for kind in structs()}


@given(KINDS.flatmap(lambda kind: st.tuples(st.just(kind), mutated(SEEDS[kind]) | st.binary(max_size=80))))
def test_hostile_headers_and_bodies_are_decoded_or_rejected(kind_and_data: tuple[type[msgspec.Struct], bytes]) -> None:
    kind, data = kind_and_data
    read_or_refused(lambda: decode_header(Command(11, fields=msgspec.Raw(data)), kind))
    read_or_refused(lambda: decode_json_body(RequestCode.HEART_BEAT, data, kind))
    read_or_refused(lambda: fastjson.decode(data, kind))
    read_or_refused(lambda: Command(11, fields=msgspec.Raw(data)).field_map())


NASTY_TEXT = st.sampled_from([one.decode("utf-8", "replace") for one in NASTY]) | st.text(max_size=20)


@given(KINDS.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(NASTY_TEXT, min_size=1, max_size=6))))
def test_hostile_header_texts_are_decoded_or_rejected(kind_and_texts: tuple[type[msgspec.Struct], list[str]]) -> None:
    kind, texts = kind_and_texts
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    fields = {name: texts[number % len(texts)] for number, name in enumerate(names)}
    read_or_refused(lambda: decode_header(Command(11, fields=fields), kind))


HEADERS = [
    b'{"code":105,"extFields":{"topic":"T1"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":401}',
    b"{code:1,extFields:{a:1,'b':null},opaque:2}",
    b"".join(command.encode(11, opaque=3, flag=0, fields={"a": "b", "c": "d"}, remark="r", form=1))[8:],
]


@given(mutated(HEADERS) | st.binary(max_size=200), st.sampled_from([0, 1]))
def test_hostile_frames_of_both_serializations_are_decoded_or_rejected(header: bytes, form: int) -> None:
    read_or_refused(lambda: command.decode(Frame(form, header, b"")).field_map())
    oversized = OversizedFrame(form, len(header), len(header))
    oversized.take(header, 0)
    read_or_refused(lambda: command.outline(oversized))


@given(mutated([b"".join(command.encode(11, opaque=3, flag=0, fields={"a": "b"}, body=b"body"))]), st.integers(1, 9))
def test_hostile_streams_are_decoded_or_rejected(data: bytes, step: int) -> None:
    reader = FrameReader()
    read_or_refused(
        lambda: [list(reader.feed(data[position : position + step])) for position in range(0, len(data), step)]
    )


RECORD = record.encode(
    b"T", b"body", b"a\x01b\x02", queue_id=1, queue_offset=2, offset=3, born_ms=4, born_host=b"\x7f\0\0\1\0\0\0\1", store_ms=5,
    store_host=b"\x7f\0\0\1\0\0\0\1",
)  # fmt: skip


@given(mutated([RECORD, RECORD * 2]) | st.binary(max_size=200))
def test_hostile_records_and_batches_are_decoded_or_rejected(data: bytes) -> None:
    read_or_refused(lambda: record.decode(data).property_map())
    read_or_refused(lambda: list(record.decode_all(data)))
    read_or_refused(lambda: record.property_map(data))
    read_or_refused(lambda: record.store_ms(data))
    read_or_refused(lambda: batch.decode(data))


@given(
    mutated([batch.encode([batch.BatchEntry(1, b"body", "a\x01b"), batch.BatchEntry(0, b"", "")])])
    | st.binary(max_size=100)
)
def test_hostile_batches_are_decoded_or_rejected(data: bytes) -> None:
    read_or_refused(lambda: batch.decode(data))


TRACES = [
    "\x01".join(("Pub", "1", "r", "g", "t", "m", "tags", "k", "h:1", "1", "2", "0", "o", "true")).encode() + b"\x02",
    "\x01".join(("SubBefore", "1", "r", "g", "req", "m", "0", "k")).encode() + b"\x02",
    "\x01".join(("SubAfter", "req", "m", "1", "true", "k", "0", "1", "g")).encode() + b"\x02",
    "\x01".join(
        ("EndTransaction", *["1", "r", "g", "t", "m", "tags", "k", "h:1", "2", "id", "COMMIT", "true"])
    ).encode()
    + b"\x02",
]


@given(mutated(TRACES) | st.binary(max_size=100))
def test_hostile_texts_are_parsed_or_rejected(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    read_or_refused(lambda: trace_codec.decode(data))
    read_or_refused(lambda: properties.decode(text))
    read_or_refused(lambda: java_properties.parse(text))
    read_or_refused(lambda: java_properties.parse_body(data))
    read_or_refused(lambda: host.parse(text))
    read_or_refused(lambda: ids.parse_offset_message_id(text))


@given(mutated([b"\0" * 8 + b"\0\0\0\4data" + b"\0" * 12]) | st.binary(max_size=100))
def test_hostile_replication_streams_are_decoded_or_rejected(data: bytes) -> None:
    read_or_refused(lambda: replication.ReplicationChunkReader().feed(data))
    read_or_refused(lambda: replication.AckReader().feed(data))


@given(
    mutated(
        [
            b"\0" * 8 + b"\0\0\0\4" + b"\0" * 16 + b"data",
            b'{"member":"a","incarnation":"1","end":5,"epochs":[[1,0,"a"]]}',
        ]
    )
)
def test_hostile_streams_of_members_are_decoded_or_rejected(data: bytes) -> None:
    read_or_refused(lambda: member_stream.MemberFrameReader().feed(data))
    read_or_refused(lambda: member_stream.MemberFrameReader(has_changes=True).feed(data))
    read_or_refused(lambda: member_stream.MemberReportReader().feed(data))
    read_or_refused(lambda: member_stream.MemberReportReader(has_changes=True).feed(data))
    read_or_refused(lambda: state_changes.decode(data))
    read_or_refused(lambda: member_stream.decode_greeting(data, member_stream.Hello))
    read_or_refused(lambda: member_stream.decode_greeting(data, member_stream.Welcome))


@given(mutated([zlib.compress(b"body" * 10), zlib.compress(b"")]), st.sampled_from([0, 1, 0x101, 0x201, 0x301, 0x701]))
def test_hostile_compressed_bodies_are_decoded_or_rejected(data: bytes, sys_flag: int) -> None:
    read_or_refused(lambda: compression.decompress(data, sys_flag, 1 << 20))


def piece(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def compressed(version: bytes, topic: bytes, servers: bytes) -> bytes:
    return piece(version) + (1).to_bytes(4, "big") + piece(topic) + piece(servers)


def registers(data: bytes, version: int, *, is_compressed: bool) -> None:
    header = RegisterBroker("a", "h:1", "C", "h:2", 0, is_compressed, 0)
    read_or_refused(lambda: registration.decode(header, data, version))
    read_or_refused(lambda: registration.outline(header, data, version))


@given(mutated([b'{"counter":1,"timestamp":1}']), mutated([b"T 4 4 6 SINGLE_TAG"]), mutated([b"[]", b'["h:1"]']))
def test_hostile_compressed_registrations_are_decoded_or_rejected(version: bytes, topic: bytes, servers: bytes) -> None:
    registers(zlib.compress(compressed(version, topic, servers)), 401, is_compressed=True)


@given(mutated([zlib.compress(compressed(b"{}", b"T 4 4 6 SINGLE_TAG", b"[]"))]))
def test_corrupted_compressed_registrations_are_decoded_or_rejected(data: bytes) -> None:
    registers(data, 401, is_compressed=True)


PLAIN = TopicTable(DataVersion(1, 1), {"T": TopicConfig(topic_name="T")})


@given(
    mutated([fastjson.write(RegisterBrokerBody(("h:1",), PLAIN)), fastjson.write(PLAIN)]), st.sampled_from([0, 36, 401])
)
def test_hostile_plain_registrations_are_decoded_or_rejected(data: bytes, version: int) -> None:
    registers(data, version, is_compressed=False)


@given(
    mutated(
        [
            b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5}}',
            b'{"offsetTable":[{"brokerName":"b","queueId":0,"topic":"t","offset":5}]}',
            b'{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5}}',
        ]
    )
)
def test_hostile_queue_tables_are_decoded_or_rejected(data: bytes) -> None:
    read_or_refused(lambda: reset_table(data))
    read_or_refused(lambda: status_table(data))


@pytest.mark.parametrize("piece", NASTY)
def test_each_hostile_value_is_decoded_or_rejected(piece: bytes) -> None:
    for kind in structs():
        for seed in SEEDS[kind][:2]:
            for data in (seed.replace(b'"1"', piece).replace(b"1", piece), seed.replace(b'"1"', b'"' + piece + b'"')):
                read_or_refused(lambda data=data, kind=kind: decode_header(Command(11, fields=msgspec.Raw(data)), kind))  # type: ignore[misc]
                read_or_refused(lambda data=data, kind=kind: decode_json_body(34, data, kind))  # type: ignore[misc]
