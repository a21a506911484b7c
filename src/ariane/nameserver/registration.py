"""What a broker says of itself in REGISTER_BROKER: the body in its three forms. [RegisterBrokerBody]

plain        RegisterBrokerBody as JSON
compressed   one zlib stream of: i32+n DataVersion JSON | i32 topics | per topic i32+n `name read write perm filter`
             | i32+n filter servers JSON
old          brokers below version 37 (V3_0_11) send the bare topic table
"""

from __future__ import annotations

import zlib
from struct import Struct

from ariane.errors import ProtocolError
from ariane.model.topic import DataVersion, TopicConfig, topic_name_fault
from ariane.protocol import fastjson
from ariane.protocol.requests.routing import RegisterBroker, RegisterBrokerBody, TopicTable

FULL_BODY_VERSION = 37
EXPANDED_MAX = 64 * 1024 * 1024  # a hundred thousand topics take 15 MiB
TOPICS_MAX = 200_000

_I32 = Struct(">i")


def decode(header: RegisterBroker, body: bytes, version: int) -> RegisterBrokerBody:
    """The body of a registration. ProtocolError when its checksum, form or topics are wrong."""
    if header.body_crc32 and zlib.crc32(body) & 0x7FFFFFFF != header.body_crc32:
        raise ProtocolError("crc32 not match")
    if not body:
        return RegisterBrokerBody()
    if version < FULL_BODY_VERSION:
        registered = RegisterBrokerBody(topic_config_serialize_wrapper=fastjson.decode(body, TopicTable))
    elif header.compressed:
        registered = _decode_compressed(body)
    else:
        registered = fastjson.decode(body, RegisterBrokerBody)
    topics = registered.topic_config_serialize_wrapper.topic_config_table
    if len(topics) > TOPICS_MAX:
        raise ProtocolError(f"{len(topics)} topics in one registration, at most {TOPICS_MAX} are taken")
    for name in topics:
        if fault := topic_name_fault(name):
            raise ProtocolError(f"registration refused: {fault}")
    return registered


def _decode_compressed(body: bytes) -> RegisterBrokerBody:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, EXPANDED_MAX)
    except zlib.error as error:
        raise ProtocolError(f"the compressed registration is broken: {error}") from None
    if stream.unconsumed_tail or not stream.eof:
        raise ProtocolError(f"the compressed registration does not end within {EXPANDED_MAX} bytes")
    version, at = _piece(data, 0, "data version")
    count, at = _number(data, at, "number of topics")
    topics = {}
    for _ in range(count):
        text, at = _piece(data, at, "topic")
        words = text.decode("utf-8", "replace").split(" ")
        if len(words) != 5 or not all(word.isdigit() for word in words[1:4]):
            raise ProtocolError(f"a topic of the compressed registration is {text!r}: five words are needed")
        name, read, write, perm, filter_type = words
        topics[name] = TopicConfig(
            topic_name=name,
            read_queue_nums=int(read),
            write_queue_nums=int(write),
            perm=int(perm),
            topic_filter_type=filter_type,
        )
    filters, at = _piece(data, at, "filter servers")
    servers = fastjson.read(filters)
    table = TopicTable(fastjson.decode(version, DataVersion), topics)
    return RegisterBrokerBody(tuple(map(str, servers or ())), table)


def _number(data: bytes, at: int, what: str) -> tuple[int, int]:
    if at + 4 > len(data):
        raise ProtocolError(f"the compressed registration ends before its {what}")
    (number,) = _I32.unpack_from(data, at)
    if number < 0:
        raise ProtocolError(f"the compressed registration has a negative {what}")
    return number, at + 4


def _piece(data: bytes, at: int, what: str) -> tuple[bytes, int]:
    size, at = _number(data, at, f"{what} length")
    if at + size > len(data):
        raise ProtocolError(f"the compressed registration ends within its {what}")
    return data[at : at + size], at + size
