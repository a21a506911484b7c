"""The body of REGISTER_BROKER in its three forms. [RegisterBrokerBody]

plain        RegisterBrokerBody as JSON
compressed   one zlib stream of: i32+n DataVersion JSON | i32 topics | per topic i32+n `name read write perm filter`
             | i32+n filter servers JSON
old          brokers below version 37 (V3_0_11) send the topic table alone
"""

from __future__ import annotations

import zlib
from struct import Struct

import msgspec

from ariane.errors import ProtocolError
from ariane.model.topic import DataVersion, TopicConfig
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import LIBERAL_BODY_MAX, decode_json_body, rules
from ariane.protocol.requests.routing import RegisterBroker, RegisterBrokerBody, TopicTable

FULL_BODY_VERSION = 37
EXPANDED_MAX = 32 * 1024 * 1024  # 200,000 topics take 30 MiB with the longest names
TOPICS_MAX = 200_000
NUMBER_MAX = 10  # digits of a number in the compressed form: a Java int

_CODE = RequestCode.REGISTER_BROKER

_I32 = Struct(">i")


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    data_version: DataVersion = DataVersion()


class _RegistrationOutline(msgspec.Struct, frozen=True, rename="camel"):
    """A RegisterBrokerBody without its topics: decoding skips them."""

    filter_server_list: tuple[str, ...] = ()
    topic_config_serialize_wrapper: _Version = _Version()


def outline(header: RegisterBroker, body: bytes, version: int) -> RegisterBrokerBody | None:
    """Return the body without its topics, at a fraction of the cost of `decode`; None if only `decode` can read it."""
    if version < FULL_BODY_VERSION or header.compressed:
        return None
    try:
        read = msgspec.json.decode(body, type=_RegistrationOutline, strict=False)
    except fastjson.UNREADABLE:
        return None
    outlined = RegisterBrokerBody(read.filter_server_list, TopicTable(read.topic_config_serialize_wrapper.data_version))
    rules.check(outlined)
    return outlined


def expanded_size(header: RegisterBroker, body: bytes, enough: int) -> int:
    """Return the number of bytes that `decode` reads: the expanded size of a compressed body, counted up to `enough` + 1."""
    if not header.compressed:
        return len(body)
    try:
        return len(zlib.decompressobj().decompress(body, enough + 1))
    except zlib.error:
        return 0  # `decode` refuses it


def decode(header: RegisterBroker, body: bytes, version: int) -> RegisterBrokerBody:
    """Return the decoded body of a registration.

    Raises:
        ProtocolError: its checksum, form or topics are invalid.
    """
    if header.body_crc32 and zlib.crc32(body) & 0x7FFFFFFF != header.body_crc32:
        raise ProtocolError("crc32 not match")
    if not body:
        return RegisterBrokerBody()
    if version < FULL_BODY_VERSION:
        registered = RegisterBrokerBody(topic_config_serialize_wrapper=decode_json_body(_CODE, body, TopicTable))
    elif header.compressed:
        registered = _decode_compressed(body)
    else:
        registered = decode_json_body(_CODE, body, RegisterBrokerBody)
    topics = registered.topic_config_serialize_wrapper.topic_config_table
    if len(topics) > TOPICS_MAX:
        raise ProtocolError(f"{len(topics)} topics in one registration: expected at most {TOPICS_MAX}")
    rules.check(registered)
    return registered


def _decode_compressed(body: bytes) -> RegisterBrokerBody:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, EXPANDED_MAX)
    except zlib.error as error:
        raise ProtocolError(f"cannot decompress the registration: {error}") from None
    if stream.unconsumed_tail or not stream.eof:
        raise ProtocolError(f"the compressed registration expands to more than {EXPANDED_MAX} bytes, or is incomplete")
    version, position = _piece(data, 0, "data version")
    count, position = _number(data, position, "number of topics")
    if count > TOPICS_MAX:
        raise ProtocolError(f"{count} topics in one registration: expected at most {TOPICS_MAX}")
    topics = {}
    for _ in range(count):
        text, position = _piece(data, position, "topic")
        words = text.decode("utf-8", "replace").split(" ", 5)[:5]  # 5.x adds the attributes, which no route has
        if len(words) != 5 or not all(map(_is_number, words[1:4])):
            shown = text[:160]
            raise ProtocolError(
                f"invalid topic {shown!r} in the compressed registration: expected a name, three numbers and a filter type"
            )
        name, read, write, perm, filter_type = words
        topics[name] = TopicConfig(
            topic_name=name,
            read_queue_nums=int(read),
            write_queue_nums=int(write),
            perm=int(perm),
            topic_filter_type=filter_type,
        )
    filters, position = _piece(data, position, "filter servers")
    servers = fastjson.read(filters, LIBERAL_BODY_MAX)
    if servers is not None and not (isinstance(servers, list) and all(isinstance(server, str) for server in servers)):
        raise ProtocolError("invalid filter servers in the compressed registration: expected a list of addresses")
    table = TopicTable(decode_json_body(_CODE, version, DataVersion), topics)
    return RegisterBrokerBody(tuple(servers or ()), table)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= NUMBER_MAX


def _number(data: bytes, position: int, name: str) -> tuple[int, int]:
    if position + 4 > len(data):
        raise ProtocolError(f"the compressed registration ends before its {name}")
    (number,) = _I32.unpack_from(data, position)
    if number < 0:
        raise ProtocolError(f"the compressed registration has a negative {name}")
    return number, position + 4


def _piece(data: bytes, position: int, name: str) -> tuple[bytes, int]:
    size, position = _number(data, position, f"{name} length")
    if position + size > len(data):
        raise ProtocolError(f"the compressed registration ends within its {name}")
    return data[position : position + size], position + size
