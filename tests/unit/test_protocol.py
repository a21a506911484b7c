"""Frames, commands, sessions, records and small formats: known bytes, and the handling of invalid bytes."""

from __future__ import annotations

import base64
import sys
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import lz4.frame
import msgspec
import pytest
import zstandard

from ariane.errors import ConfigError, HeaderError, ProtocolError
from ariane.model import hashes, host, ids
from ariane.model.hashes import java_hash
from ariane.model.topic import DataVersion, SubscriptionGroupConfig
from ariane.protocol import command, fastjson, java_properties
from ariane.protocol.command import Command
from ariane.protocol.frame import FRAME_MAX, Frame, FrameReader
from ariane.protocol.records import batch, compression, properties, record
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.admin import ConsumerOffsetTable, SubscriptionGroupTable
from ariane.protocol.requests.clients import HeartbeatData
from ariane.protocol.requests.messaging import LONG_NAMES, QueueRef, SendMessage
from ariane.protocol.requests.routing import KvTableBody
from ariane.protocol.session import Session, TooManyRequests

JAVA_HEADER = (
    b'{"code":105,"extFields":{"topic":"T1"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":401}'
)
# code 0, version 401, opaque 9, flag 1, offset=3 (reference remoting-protocol 1.4)
JAVA_BINARY = bytes.fromhex("0000000191000000090000000100000000" + "0000000d00066f66667365740000000133")


def framed(header: bytes, body: bytes = b"", form: int = 0) -> bytes:
    length = 4 + len(header) + len(body)
    return length.to_bytes(4, "big") + (form << 24 | len(header)).to_bytes(4, "big") + header + body


def read(data: bytes) -> Command:
    (frame,) = FrameReader().feed(data)
    return command.decode(frame)


def test_a_frame_is_reassembled_from_any_fragments() -> None:
    stream = framed(JAVA_HEADER, b"body") + framed(JAVA_HEADER) + framed(JAVA_HEADER, b"x" * 1000)
    expected = list(FrameReader().feed(stream))
    assert [frame.body for frame in expected] == [b"body", b"", b"x" * 1000]
    for size in (1, 3, 7, 8, 9, 150, 1024):
        reader = FrameReader()
        pieces = [stream[position : position + size] for position in range(0, len(stream), size)]
        assert [frame for piece in pieces for frame in reader.feed(piece)] == expected
        assert reader.waiting == 0


@pytest.mark.parametrize(
    "start",
    [
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        (3).to_bytes(4, "big") + b"\0\0\0\0",
        (FRAME_MAX - 3).to_bytes(4, "big") + b"\0\0\0\0",
        (10).to_bytes(4, "big") + (7).to_bytes(4, "big"),
        (10).to_bytes(4, "big") + b"\x02\0\0\1",
    ],
)
def test_an_invalid_length_is_rejected_before_anything_is_buffered(start: bytes) -> None:
    reader = FrameReader()
    with pytest.raises(ProtocolError):
        list(reader.feed(start + b"x" * 100))
    assert reader.waiting <= 108


def test_the_largest_frame_is_accepted_and_a_larger_one_is_not_sent() -> None:
    body = bytes(FRAME_MAX - 8 - len(JAVA_HEADER))
    assert read(framed(JAVA_HEADER, body)).body == body
    with pytest.raises(ProtocolError, match="too large"):
        command.encode(1, opaque=1, flag=0, body=bytes(FRAME_MAX))


def test_the_json_header_round_trips_byte_for_byte_with_javas() -> None:
    result = read(framed(JAVA_HEADER))
    assert (result.code, result.opaque, result.flag, result.language, result.version) == (105, 7, 0, "JAVA", 401)
    assert result.field_map() == {"topic": "T1"}
    written = b"".join(command.encode(105, opaque=7, flag=0, fields={"topic": "T1"}))
    assert written[8:] == JAVA_HEADER.replace(b"JAVA", b"PYTHON")


def test_the_binary_header_of_java_is_decoded() -> None:
    result = read(framed(JAVA_BINARY, b"B", form=1))
    assert (result.code, result.version, result.opaque, result.is_response, result.field_map(), result.body) == (
        0,
        401,
        9,
        True,
        {"offset": "3"},
        b"B",
    )


@pytest.mark.parametrize("form", [0, 1])
def test_both_header_formats_carry_the_same_values(form: int) -> None:
    pieces = command.encode(
        11, opaque=-5, flag=2, fields={"a": "ä\x01b", "n": "5"}, remark="why “so”", body=b"x", form=form
    )
    result = read(b"".join(pieces))
    assert (result.code, result.opaque, result.is_one_way, result.remark, result.body) == (
        11,
        -5,
        True,
        "why “so”",
        b"x",
    )
    assert result.field_map() == {"a": "ä\x01b", "n": "5"}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"nonsense",
        JAVA_HEADER + b"x",
        b'{"opaque":4294967295}',
        b'{"code":"x"}',
        b"\xff\xfe",
    ],
)
def test_an_invalid_json_header_is_rejected(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        command.decode(Frame(0, header, b""))


@pytest.mark.parametrize("cut", range(len(JAVA_BINARY)))
def test_a_truncated_binary_header_is_rejected(cut: int) -> None:
    with pytest.raises(ProtocolError):
        command.decode(Frame(1, JAVA_BINARY[:cut], b""))


def test_a_binary_header_with_trailing_bytes_is_rejected() -> None:
    with pytest.raises(ProtocolError):
        command.decode(Frame(1, JAVA_BINARY + b"x", b""))


def test_headers_are_parsed_as_leniently_as_by_fastjson() -> None:
    result = command.decode(
        Frame(0, b"{code:34,'opaque':\"8\",language:'KLINGON',extFields:{n:5,b:true,o:{x:1},z:null}}", b"")
    )
    assert (result.code, result.opaque, result.language) == (34, 8, "KLINGON")
    assert result.field_map() == {"n": "5", "b": "true", "o": '{"x":1}'}


def test_a_typed_request_converts_texts_to_numbers_and_names_invalid_fields() -> None:
    assert decode_header(Command(30, fields={"topic": "T", "queueId": "3"}), QueueRef) == QueueRef("T", 3)
    assert encode_header(QueueRef("T", 3)) == {"topic": "T", "queueId": "3"}
    with pytest.raises(HeaderError, match="GET_MAX_OFFSET.*queueId"):
        decode_header(Command(30, fields={"topic": "T"}), QueueRef)
    with pytest.raises(HeaderError, match="queueId"):
        decode_header(Command(30, fields={"topic": "T", "queueId": "many"}), QueueRef)
    with pytest.raises(HeaderError, match="queueId"):
        decode_header(Command(30, fields={"topic": "T", "queueId": str(2**31)}), QueueRef)


def test_ext_fields_that_are_no_object_are_rejected_on_access() -> None:
    result = command.decode(Frame(0, b'{"code":30,"extFields":5}', b""))
    with pytest.raises(ProtocolError):
        decode_header(result, QueueRef)
    assert command.decode(Frame(0, b'{"code":30,"extFields":null}', b"")).field_map() == {}


def test_long_and_short_field_names_of_a_send_are_equivalent() -> None:
    request = SendMessage("P", "T", "TBW102", 4, 1, 0, 5, 0, "a\x01b", 0, False, None, True)
    short = encode_header(request)
    assert short["m"] == "true"
    long = {name: short[letter] for name, letter in LONG_NAMES.items() if letter in short}
    assert decode_header(Command(10, fields=long), SendMessage, LONG_NAMES) == request
    assert decode_header(Command(310, fields=short), SendMessage) == request


# --- fastjson ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{0:"a",-1:2}', {"0": "a", "-1": 2}),
        (b'{{"brokerName":"b","queueId":1}:5}', {'{"brokerName":"b","queueId":1}': 5}),
        (b"{a:'x',\"b\" : [1 , 2.5,true,null,]}", {"a": "x", "b": [1, 2.5, True, None]}),
        (b'"\\u00e4\\ud83d\\ude00\\/\\n"', "ä😀/\n"),
        (b"1.5E-7", 1.5e-7),
    ],
)
def test_the_json_dialect_of_fastjson_is_read(text: bytes, value: object) -> None:
    assert fastjson.read(text) == value


@pytest.mark.parametrize(
    "text", [b"", b"{", b"{a}", b'{"a":}', b'"x', b'"\\u12"', b"[1 2]", b"{} x", b"[" * 100 + b"]" * 100, b"\xff"]
)
def test_invalid_json_is_a_protocol_error(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        fastjson.read(text)


@pytest.mark.parametrize(
    "text", [b'{"password":a-secret}', b'{"password":"\\a-secret"}', b'{"password":"\\ua-secret"}']
)
def test_an_error_about_json_quotes_one_character(text: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"found '?\\?[au]") as error:
        fastjson.read(text)
    assert "a-s" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({0: "a"}, b'{0:"a"}'),
        ({"b": None, "a": [1, True]}, b'{"a":[1,true]}'),
        ("\x01\x7f\u2028é/", b'"\\u0001\\u007F\\u2028\xc3\xa9/"'),
        ([0.0, 0.25, 1e10, 1.5e-7, 12345678.0, float("nan")], b"[0.0,0.25,1.0E10,1.5E-7,1.2345678E7,null]"),
    ],
)
def test_the_json_dialect_of_fastjson_is_written(value: object, text: bytes) -> None:
    assert fastjson.write(value) == text


class Document(msgspec.Struct):
    table: Any = msgspec.UNSET
    name: str | None = "n"


NUMBERS = range(100)


@pytest.mark.parametrize(
    "table",
    [
        msgspec.UNSET,
        {},
        {"a": {}, "b": None, "c": [None, {}, []], "d": {1: "x"}},
        {f"k{number}": number for number in NUMBERS},
        {number: None if number % 2 else "x" for number in NUMBERS},
        {"a": {"b": {number: [number, {"c": "d"}] for number in NUMBERS}, "e": tuple(NUMBERS)}, "f": set(NUMBERS)},
        {f"k{number}": Document(tuple(NUMBERS)) for number in range(5)},
        [{key: list(NUMBERS) for key in ("a", "b")}] * 3,
        dict.fromkeys(NUMBERS),
    ],
)
def test_pieces_of_a_document_are_small_and_make_up_its_text(table: object) -> None:
    """Of a group with 2,000 queue locks the whole entry was one piece."""
    document = Document(table)
    pieces = list(fastjson.pieces(document))
    assert b"".join(pieces) == fastjson.write(document, pretty=True)
    assert all(piece.count(b",") <= fastjson.PIECE_VALUES for piece in pieces)


def test_bodies_are_matched_as_leniently_as_in_java() -> None:
    body = b"{clientId:'c1','consumer_data_set':[{groupname:\"G\",subscriptionDataSet:[{topic:'T',subVersion:\"5\"}]}],more:1}"
    data = fastjson.decode(body, HeartbeatData)
    assert (data.client_id, data.consumers[0].subscription_data_set[0].sub_version) == ("c1", 5)
    with pytest.raises(ProtocolError, match="HeartbeatData"):
        fastjson.decode(b'{"clientID":"c","consumerDataSet":null}', HeartbeatData)


# --- records and what is in them ---

HOST4, HOST6 = host.pack("127.0.0.1", 10911), host.pack("2001:db8::1", 10911)


def encoded(**more: object) -> bytes:
    values = {
        "queue_id": 1, "queue_offset": 2, "offset": 3, "born_ms": 4, "born_host": HOST4, "store_ms": 5, "store_host": HOST4,
        **more,
    }  # fmt: skip
    return record.encode(b"T", b"body", b"TAGS\x01a", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("born", "store"), [(HOST4, HOST4), (HOST6, HOST4), (HOST4, HOST6), (HOST6, HOST6)])
def test_a_record_round_trips_with_ipv4_and_ipv6_hosts(born: bytes, store: bytes) -> None:
    data = encoded(born_host=born, store_host=store, sys_flag=1, reconsume_times=7, prepared_offset=9, flag=-1)
    result = record.decode(b"before" + data + b"after", 6)
    assert result.size == len(data) == record.FIXED_SIZE + 4 + 1 + 6 + len(born) + len(store) - 16
    assert (result.born_host, result.store_host, result.flag, result.reconsume_times, result.prepared_offset) == (
        born,
        store,
        -1,
        7,
        9,
    )
    assert (result.topic, result.body, result.property_map(), result.crc_is_right()) == (
        "T",
        b"body",
        {"TAGS": "a"},
        True,
    )


def test_a_truncated_record_is_rejected() -> None:
    data = encoded()
    for cut in range(len(data)):
        with pytest.raises(ProtocolError):
            record.decode(data[:cut])


def test_a_modified_byte_is_rejected_or_changes_a_value_but_never_crashes() -> None:
    data = bytearray(encoded())
    for position in range(len(data)):
        data[position] ^= 0x80
        try:
            record.decode(bytes(data))
        except ProtocolError as error:
            assert str(error)
        data[position] ^= 0x80


def test_decoding_a_response_stops_at_the_first_invalid_record() -> None:
    data = encoded() * 2
    assert len(list(record.decode_all(data))) == 2
    with pytest.raises(ProtocolError):
        list(record.decode_all(data + b"rest"))


def test_properties_have_javas_text_format() -> None:
    text = properties.encode({"a": "1", "b": "2"})
    assert text == "a\x011\x02b\x012"
    assert properties.decode(text + "\x02") == {"a": "1", "b": "2"}
    assert properties.decode("\x01x\x02a\x01\x02b\x02c\x01d\x01e") == {"c": "d\x01e"}
    with pytest.raises(ProtocolError):
        properties.encode({"a": "x\x02b\x01y"})


def test_a_batch_round_trips_and_an_invalid_one_is_rejected_as_a_whole() -> None:
    entries = [batch.BatchEntry(5, b"one", "k\x01v"), batch.BatchEntry(0, b"", "")]
    data = batch.encode(entries)
    assert batch.decode(data) == entries
    for cut in range(1, len(data)):
        if cut != len(batch.encode(entries[:1])):
            with pytest.raises(ProtocolError):
                batch.decode(data[:cut])


def lz4_as_java(body: bytes) -> bytes:
    """A frame as LZ4FrameOutputStream of lz4-java writes it: independent blocks of 4 MiB, no content size, no checksums."""
    return lz4.frame.compress(body, block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False, store_size=False)


def zstd_as_java(body: bytes) -> bytes:
    """A frame as ZstdOutputStream of zstd-jni writes it: streamed, no content size, no checksum."""
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    return stream.compress(body) + stream.flush()


def ours(algorithm: compression.Algorithm) -> Callable[[bytes], bytes]:
    return lambda body: compression.compress(body, algorithm)[0]


COMPRESSORS = {
    "zlib": (ours("zlib"), compression.ZLIB_FLAGS),
    "zlib of older clients": (ours("zlib"), 0x1),
    "our LZ4": (ours("lz4"), 0x101),
    "our ZSTD": (ours("zstd"), 0x201),
    "LZ4": (lz4_as_java, 0x101),
    "LZ4 with size and checksums": (
        lambda body: lz4.frame.compress(body, content_checksum=True, block_checksum=True), 0x101,
    ),
    "ZSTD": (zstd_as_java, 0x201),
    "ZSTD 19 with size": (zstandard.ZstdCompressor(level=19).compress, 0x201),
}  # fmt: skip


@pytest.mark.parametrize(
    ("sys_flag", "stored"),
    [
        (0x301, "eF7LL0pJLVIwMTc0VChIzEyxVsgfFaBUAACoQGap"),
        (0x101, "BCJNGGBwcx0AAAD/Am9yZGVyIDQ3MTEgcGFpZDsgEQD/LFBhaWQ7IAAAAAA="),
        (0x201, "KLUv/QBYxQAAiG9yZGVyIDQ3MTEgcGFpZDsgAQCBSJ1L"),
    ],
    ids=["zlib", "LZ4", "ZSTD"],
)
def test_bodies_that_java_compressed_are_expanded(sys_flag: int, stored: str) -> None:
    """Written by DeflaterOutputStream, LZ4FrameOutputStream of lz4-java 1.11 and ZstdOutputStream of zstd-jni 1.5.7, level 5."""
    assert compression.decompress(base64.b64decode(stored), sys_flag) == b"order 4711 paid; " * 20


@pytest.mark.parametrize("how", COMPRESSORS)
def test_compressed_bodies_are_expanded_within_a_bound(how: str) -> None:
    compress, sys_flag = COMPRESSORS[how]
    for body in (b"x" * 100_000, Random(3).randbytes(3_000_000), b"a", b"ab" * 4_000_000):
        packed = compress(body)
        assert compression.decompress(packed, sys_flag) == body
        assert compression.decompress(packed, sys_flag, len(body)) == body
        with pytest.raises(ProtocolError, match=f"larger than {len(body) - 1} bytes"):
            compression.decompress(packed, sys_flag, len(body) - 1)
        assert compression.decompress(packed, 0) == packed
    packed = compress(Random(3).randbytes(5_000))
    for cut in (1, 5, 20, 2_500, len(packed) - 1):
        with pytest.raises(ProtocolError, match="broken|too early"):
            compression.decompress(packed[:-cut], sys_flag)
    with pytest.raises(ProtocolError, match="broken"):
        compression.decompress(b"none of these is a stream", sys_flag)


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"  # a frame of metadata, the same in both formats


@pytest.mark.parametrize("how", ["LZ4", "ZSTD"])
def test_all_frames_of_a_body_are_expanded(how: str) -> None:
    """A stream of frames is their concatenation, as lz4-java and zstd-jni read it."""
    compress, sys_flag = COMPRESSORS[how]
    first, second = Random(4).randbytes(700_000), b"b" * 3_000_000
    several = compress(first) + compress(b"") + SKIPPABLE + compress(second)
    assert compression.decompress(several, sys_flag) == first + second
    assert compression.decompress(SKIPPABLE + compress(first), sys_flag) == first
    with pytest.raises(ProtocolError, match=f"larger than {len(first + second) - 1} bytes"):
        compression.decompress(several, sys_flag, len(first + second) - 1)
    with pytest.raises(ProtocolError, match="broken|too early"):
        compression.decompress(several[:-1], sys_flag)
    with pytest.raises(ProtocolError, match="broken|too early"):
        compression.decompress(several + b"what is no frame", sys_flag)
    with pytest.raises(ProtocolError, match="1,024 frames"):
        compression.decompress(compress(b"") * 1_025, sys_flag)


@pytest.mark.parametrize("how", ["zlib", "LZ4", "ZSTD"])
def test_a_decompression_bomb_allocates_no_more_than_the_limit(how: str) -> None:
    """256 MiB compressed to a few bytes, expanded to at most 1 MiB: intermediate allocations are bounded, too."""
    compress, sys_flag = COMPRESSORS[how]
    if how == "ZSTD":  # blocks of one repeated byte: 4 bytes for 128 KiB
        block = (1 << 1 | (128 * 1024) << 3).to_bytes(3, "little") + b"x"
        bomb = zstandard.compress(b"")[:4] + bytes([0x00, 0x88]) + block * 2_048
    else:
        bomb = compress(bytes(256 * 1024 * 1024))
    assert len(bomb) < 2 * 1024 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="larger than 1048576 bytes"):
            compression.decompress(bomb, sys_flag, 1024 * 1024)
        assert tracemalloc.get_traced_memory()[1] < 40 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("module", "sys_flag"), [("lz4", 0x101), ("zstandard", 0x201)])
def test_a_missing_package_is_named(module: str, sys_flag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark executors run this code without the installation of this package."""
    for name in (module, f"{module}.frame"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"{module}: is not installed for .*: pip install {module}"):
        compression.decompress(b"x", sys_flag)


def test_an_unknown_algorithm_is_named() -> None:
    with pytest.raises(
        ProtocolError, match=r"algorithm 5 in the sysFlag: expected 0 or 3 \(zlib\), 1 \(LZ4\) or 2 \(ZSTD\)"
    ):
        compression.decompress(b"x", 0x501)


def test_message_ids_equal_javas() -> None:
    assert ids.offset_message_id(host.pack("127.0.0.1", 10911), 0) == "7F00000100002A9F0000000000000000"
    assert ids.parse_offset_message_id("7F00000100002A9F0000000000000010") == ("127.0.0.1:10911", 16)
    with pytest.raises(ProtocolError):
        ids.parse_offset_message_id("short")
    start = ids.month_start_ms(1_700_000_000_000)
    make = ids.unique_ids(lambda: start + 5, ip="10.0.0.1", pid=0x12345, process=b"\1\2\3\4")
    assert (make(), make()) == ("0A00000123450102030400000005" + "0000", "0A00000123450102030400000005" + "0001")


def test_unique_ids_restart_with_the_month() -> None:
    now = ids.month_start_ms(1_700_000_000_000) + 5
    make = ids.unique_ids(lambda: now, ip="10.0.0.1", pid=1, process=b"\1\2\3\4")
    make()
    now = ids.month_start_ms(now + 32 * 86_400_000) + 7
    assert make()[20:28] == "00000007"


def test_tag_hashes_equal_javas() -> None:
    assert (java_hash("TagA"), java_hash("TagB"), java_hash("")) == (2598919, 2598920, 0)
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("😀") == 55357 * 31 + 56832


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 1_023, 1_024, 1_025, 5_000])
@pytest.mark.parametrize("alphabet", ["abcXYZ09", "aéß漢😀\ud800"])
def test_the_hash_of_a_long_text_equals_the_iterative_hash(length: int, alphabet: str) -> None:
    text = "".join(Random(length).choices(alphabet, k=length))
    units = text.encode("utf-16-be", "surrogatepass")
    expected = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        expected = (31 * expected + (high << 8 | low)) & 0xFFFFFFFF
    assert java_hash(text) & 0xFFFFFFFF == expected


def test_only_hashes_of_short_texts_are_cached() -> None:
    """Pulls with tags of 10 MiB: the cache retained 65,536 of them."""
    hashes._cached_hash.cache_clear()
    for text in ("x" * 255, "y" * 256, "z" * 1_000_000):
        java_hash(text)
    assert hashes._cached_hash.cache_info().currsize == 1


def test_escaped_surrogates_are_joined_and_lone_ones_replaced() -> None:
    """A text with a lone surrogate can neither be stored nor sent."""
    read = java_properties.parse(r"a=\ud83d\ude00 \ud800x")
    assert read == {"a": "\U0001f600 \ufffdx"}
    assert java_properties.write(read).encode()


def test_large_tables_are_strict_json_as_java_prints_them() -> None:
    """Strict JSON is a hundred times faster; the text differs only in the quotes around queue ids."""
    groups = SubscriptionGroupTable(DataVersion(1, 2), {"G": SubscriptionGroupConfig(group_name="G")})
    assert msgspec.json.encode(groups) == fastjson.write(groups)
    values = KvTableBody({"T": 'broker-a:4;"b"'})
    assert msgspec.json.encode(values) == fastjson.write(values)
    offsets = ConsumerOffsetTable({"T@G": {0: 1, 7: 2}})
    assert msgspec.json.encode(offsets) == b'{"offsetTable":{"T@G":{"0":1,"7":2}}}'
    assert fastjson.decode(fastjson.write(offsets), ConsumerOffsetTable) == offsets


def test_properties_files_are_read_as_java_reads_them() -> None:
    text = "# c\n! c\n a = 1\nb:2\nc 3\nlong = x\\\n   y\nesc=\\u00e4\\t\\=\nempty\nk\\ e\\:y=v\n"
    read_back = {"a": "1", "b": "2", "c": "3", "long": "xy", "esc": "ä\t=", "empty": "", "k e:y": "v"}
    assert java_properties.parse(text) == read_back
    assert java_properties.parse(java_properties.write({"x": "1", "y": "a b"})) == {"x": "1", "y": "a b"}
    with pytest.raises(ProtocolError):
        java_properties.parse("a=\\u12")


# --- sessions ---


def test_a_session_tracks_pending_requests_and_their_deadlines() -> None:
    session: Session[str] = Session(pending_max=2)
    first, second = session.register("a", 10.0), session.register("b", 5.0)
    assert first != second
    with pytest.raises(TooManyRequests):
        session.register("c", 1.0)
    assert session.next_deadline() == 5.0
    assert session.pop_expired(5.0) == ["b"]
    assert session.resolve(second) is None
    assert session.resolve(first) == "a"
    assert session.resolve(first) is None
    session.register("d", 1.0)
    assert session.close() == ["d"]
    assert len(session) == 0
    assert session.next_deadline() is None


def test_expiry_examines_only_requests_that_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ariane.protocol.session.DEADLINES_SPARE", 10)
    session: Session[int] = Session()
    opaques = [session.register(number, float(number)) for number in range(1000)]
    for number in range(0, 1000, 2):
        assert session.resolve(opaques[number]) == number
    for number in range(1, 1000, 2):
        assert session.next_deadline() == number
        assert session.pop_expired(float(number)) == [number]
        assert len(session._deadlines) <= 1000 - number
    for number in range(1000):  # answered at once: nothing of them stays
        session.resolve(session.register(number, 5000.0 - number))
    assert len(session._deadlines) <= 11
