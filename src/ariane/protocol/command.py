"""Commands: a header and a body, in both header forms. [RemotingCommand, RocketMQSerializable]

JSON form, as Java prints it:
    {"code":105,"extFields":{"topic":"T1"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":401}
ROCKETMQ form:
    code i16 | language u8 | version i16 | opaque i32 | flag i32 | remark i32+n | extFields i32+n: (key i16+n, value i32+n)*

The extFields of a JSON header stay encoded until `requests.decode_header` decodes them into the Struct of the code: a fully
validated header costs one pass.

HEADER_MAX bounds the header of a request. The largest legal one carries 32,767 bytes of properties, and JSON may write
each as six (`\\u0001` between two properties): 192 KiB, plus the other fields. Responses may have larger headers: that of a
batch contains the id of each message. Headers that are not strict JSON, which no Java client writes, have at most
LIBERAL_HEADER_MAX.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import Annotated, Any

import msgspec

from ariane.errors import ProtocolError
from ariane.protocol import fastjson
from ariane.protocol.codes import VERSION
from ariane.protocol.frame import BINARY_FORM, JSON_FORM, Frame, OversizedFrame, prefix

RESPONSE = 1  # flag bit 0
ONE_WAY = 2  # flag bit 1

LANGUAGES = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
)
OUR_LANGUAGE = "PYTHON"

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

HEADER_MAX = 256 * 1024
LIBERAL_HEADER_MAX = 64 * 1024

# A field of a command in strict JSON. Quotes in texts are escaped there, so texts contain no such field.
_OUTLINE = re.compile(rb'"(code|flag|opaque|version)"\s*:\s*(-?[0-9]{1,10})(?=[\s,}])')
_BINARY_START = Struct(">hBhiii")
_HEADER_END = b'"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
_I16 = Struct(">h")
_I32 = Struct(">i")


class CommandHeader(msgspec.Struct, rename={"fields": "extFields", "form": "serializeTypeCurrentRPC"}):
    """A JSON header. `fields` holds the extFields as raw JSON, empty if there are none."""

    code: Int32 = 0  # request code, or response code
    fields: msgspec.Raw = msgspec.Raw()
    flag: Int32 = 0  # bit 0 response, bit 1 one-way
    language: str | None = "JAVA"  # of the sender; a text, because new clients bring new names
    opaque: Int32 = 0  # number of the request, which the response repeats
    remark: str | None = None  # error text of a response
    form: str | None = None  # form of the header, repeated by Java within JSON; the frame's first byte is authoritative
    version: Int32 = 0  # of RocketMQ, as a number; responses of brokers depend on the client's


class _Outline(msgspec.Struct):
    """The fields that the response to a refused request needs."""

    code: Int32
    opaque: Int32
    flag: Int32 = 0
    version: Int32 = 0


Fields = Mapping[str, str] | msgspec.Raw
"""extFields: as texts, or as JSON."""


class Command(msgspec.Struct, eq=False):
    """A received request or response."""

    code: int  # request code, or response code
    opaque: int = 0  # number of the request, which the response repeats
    flag: int = 0  # bit 0 response, bit 1 one-way
    remark: str | None = None  # error text of a response; None if there is none
    fields: Fields | None = None  # header fields, undecoded: the handler of the code decides on their type
    body: bytes = b""  # bytes after the header; b"" without a body
    language: str | None = OUR_LANGUAGE  # of the sender; None if a binary header has an unknown number
    version: int = VERSION  # of the sender, as a number of RocketMQ
    form: int = JSON_FORM  # JSON or binary header; a response uses the form of its request

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & ONE_WAY)

    def field_map(self) -> dict[str, str]:
        """Return the extFields as texts. Numbers, booleans and objects become their JSON text; null is dropped."""
        return field_texts(self.fields)

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "one-way" if self.is_one_way else "request"
        return f"<{kind} code={self.code} opaque={self.opaque} fields={self.field_map()} body={len(self.body)} B>"


def field_texts(fields: Fields | None) -> dict[str, str]:
    """Return extFields as `Command.field_map` does."""
    if fields is None:
        return {}
    if not isinstance(fields, msgspec.Raw):
        return dict(fields)
    try:
        return _decode_texts(fields) or {}
    except fastjson.UNREADABLE:
        return _texts(fastjson.read(bytes(fields), LIBERAL_HEADER_MAX))


_decode_json = msgspec.json.Decoder(CommandHeader).decode
_decode_texts = msgspec.json.Decoder(dict[str, str] | None).decode
_encode_json = msgspec.json.Encoder().encode


def decode(frame: Frame) -> Command:
    """Return the command of a frame. Raise ProtocolError if its header is invalid."""
    if frame.form == BINARY_FORM:
        return _decode_binary(frame)
    try:
        header = _decode_json(frame.header)
    except fastjson.UNREADABLE:
        header = _liberal_header(frame.header)
    return Command(  # positional arguments: called once per frame
        header.code, header.opaque, header.flag, header.remark, header.fields or None, frame.body, header.language,
        header.version, JSON_FORM,
    )  # fmt: skip


def outline(frame: OversizedFrame) -> Command:
    """Return a command without extFields and body: enough to refuse it, at a cost that does not depend on its size.

    The fields of a JSON header are read from its ends, which precede and follow the extFields of all known clients.

    Raises:
        ProtocolError: the fields are at neither end of the header.
    """
    if frame.form == BINARY_FORM:
        if len(frame.head) < _BINARY_START.size:
            raise ProtocolError(f"Invalid ROCKETMQ header: {frame.header_size} bytes")
        code, _, version, opaque, flag, _ = _BINARY_START.unpack_from(frame.head)
        return Command(code, opaque, flag, version=version, form=BINARY_FORM)
    head = frame.head.partition(b'"extFields"')[0]
    values = {**dict(_OUTLINE.findall(frame.tail)), **dict(_OUTLINE.findall(head))}
    fields = {name.decode(): int(value) for name, value in values.items()}
    try:
        header = msgspec.convert(fields, _Outline)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"Invalid header of {frame.header_size} bytes: {error} at either end") from None
    return Command(header.code, header.opaque, header.flag, version=header.version)


def encode(
    code: int,
    *,
    opaque: int,
    flag: int,
    fields: Fields | None = None,
    remark: str | None = None,
    body: bytes | Sequence[bytes] = b"",
    form: int = JSON_FORM,
    language: str = OUR_LANGUAGE,
) -> list[bytes]:
    """Return a frame as pieces to be written in order; the pieces of a body are not joined."""
    header = (
        _binary_header(code, opaque, flag, field_texts(fields), remark)
        if form == BINARY_FORM
        else _json_header(code, opaque, flag, fields, remark, language)
    )
    if isinstance(body, bytes):
        start = prefix(form, len(header), len(body)) + header
        return [start, body] if body else [start]
    return [prefix(form, len(header), sum(map(len, body))) + header, *body]


def _json_header(code: int, opaque: int, flag: int, fields: Fields | None, remark: str | None, language: str) -> bytes:
    if isinstance(fields, msgspec.Raw) and remark is None:  # a send: the same bytes in half the time
        return b'{"code":%d,"extFields":%b,"flag":%d,"language":"%b","opaque":%d,%b' % (
            code, fields, flag, language.encode(), opaque, _HEADER_END,
        )  # fmt: skip
    header: dict[str, Any] = {"code": code}
    if fields is not None:
        header["extFields"] = fields
    header["flag"] = flag
    header["language"] = language
    header["opaque"] = opaque
    if remark is not None:
        header["remark"] = remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = VERSION
    return _encode_json(header)


def _binary_header(code: int, opaque: int, flag: int, fields: Mapping[str, str] | None, remark: str | None) -> bytes:
    text = remark.encode() if remark else b""
    entries: list[bytes] = []
    for name, value in (fields or {}).items():
        key, data = name.encode(), value.encode()
        entries += (_I16.pack(len(key)), key, _I32.pack(len(data)), data)
    packed = b"".join(entries)
    try:
        start = _BINARY_START.pack(code, LANGUAGES.index(OUR_LANGUAGE), VERSION, opaque, flag, len(text))
    except StructError:
        raise ProtocolError(f"Code {code} does not fit into the ROCKETMQ header form: expected at most 32767") from None
    return b"".join((start, text, _I32.pack(len(packed)), packed))


def _decode_binary(frame: Frame) -> Command:
    data = frame.header
    if len(data) < _BINARY_START.size + 4:
        raise ProtocolError(f"Invalid ROCKETMQ header: {len(data)} bytes, expected at least {_BINARY_START.size + 4}")
    code, language, version, opaque, flag, remark_size = _BINARY_START.unpack_from(data)
    position = _BINARY_START.size
    remark = _piece(data, position, remark_size, "remark")
    position += remark_size
    if position + 4 > len(data):
        raise ProtocolError("Invalid ROCKETMQ header: it ends before its extFields")
    (fields_size,) = _I32.unpack_from(data, position)
    position += 4
    if fields_size < 0 or position + fields_size != len(data):
        raise ProtocolError(f"Invalid extFields length {fields_size} at {position} in a header of {len(data)} bytes")
    fields: dict[str, str] = {}
    while position < len(data):
        if position + 2 > len(data):
            raise ProtocolError("Invalid extFields: they end within a key length")
        (size,) = _I16.unpack_from(data, position)
        key = _piece(data, position + 2, size, "extField name")
        position += 2 + size
        if position + 4 > len(data):
            raise ProtocolError("Invalid extFields: they end within a value length")
        (size,) = _I32.unpack_from(data, position)
        value = _piece(data, position + 4, size, f"extField {key}")
        position += 4 + size
        if key and value:  # of length zero, which Java reads as null
            fields[key] = value
    return Command(
        code,
        opaque=opaque,
        flag=flag,
        remark=remark or None,
        fields=fields or None,
        body=frame.body,
        language=LANGUAGES[language] if language < len(LANGUAGES) else None,
        version=version,
        form=BINARY_FORM,
    )


def _piece(data: bytes, position: int, size: int, name: str) -> str:
    if size < 0 or position + size > len(data):
        raise ProtocolError(f"Invalid {name}: {size} bytes do not fit into a header of {len(data)} bytes")
    try:
        return data[position : position + size].decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"Invalid {name}: not UTF-8") from None


def _liberal_header(data: bytes) -> CommandHeader:
    """Return a header that is not strict JSON, or has other types, as fastjson would read it."""
    value = fastjson.read(data, LIBERAL_HEADER_MAX)
    if not isinstance(value, dict):
        raise ProtocolError("Invalid header: not a JSON object")
    fields = value.pop("extFields", None)
    if not isinstance(value.get("language"), str):
        value["language"] = None
    try:
        header = msgspec.convert(value, CommandHeader, strict=False)
    except fastjson.UNREADABLE as error:
        raise ProtocolError(f"Invalid header: {error}") from None
    if fields is not None:
        header.fields = msgspec.Raw(_encode_json(_texts(fields)))
    return header


def _texts(fields: Any) -> dict[str, str]:
    if not isinstance(fields, dict):
        raise ProtocolError("Invalid extFields: not a JSON object")
    return {
        name: value if isinstance(value, str) else fastjson.write(value).decode()
        for name, value in fields.items()
        if value is not None
    }
