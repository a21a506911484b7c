"""Plain pulls: frames become requests, and numbers become the headers of responses with messages.

    frame → parse_pull → request                    found_header ← numbers of a queue, opaque

A pull is plain if its header is in a form that clients write, strictly JSON or ROCKETMQ; `PullHandler` serves all others.
"""

from __future__ import annotations

import msgspec

from ariane.errors import ProtocolError
from ariane.protocol import command as commands
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import RESPONSE, Int32
from ariane.protocol.frame import BINARY_FORM, FRAME_MAX, JSON_FORM, PREFIX, PREFIX_SIZE, Frame, prefix
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import PullMessage

PULL_CODES = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
FOUND = "FOUND"  # remark of responses with messages


class _PullCommand(
    msgspec.Struct,
    forbid_unknown_fields=True,
    gc=False,
    rename={"fields": "extFields", "form": "serializeTypeCurrentRPC"},
):
    """A JSON header of a pull, decoded in one pass with its fields."""

    code: Int32  # again: it may occur twice
    fields: PullMessage  # of both codes
    flag: Int32  # response and one-way bits
    opaque: Int32  # repeated by the response
    language: str | None = None  # ignored, as all below
    remark: None = None  # of responses
    form: str | None = None  # the frame's first byte is authoritative
    version: Int32 = 0  # of the client


_decode_json = msgspec.json.Decoder(_PullCommand, strict=False).decode


# A pull that expects a response: request, opaque (which the response repeats), form of the header, end of the frame in the data.
ParsedPull = tuple[PullMessage, int, int, int]


# The numbers in the header of a response with messages, in its order: end and first offset of the queue, where the consumer
# continues, broker that the group should pull from next, opaque.
FoundNumbers = tuple[int, int, int, int, int]


def parse_pull(data: bytes, position: int, header_max: int) -> ParsedPull | None:
    """Return the pull at `position`; None if the frame is incomplete, not a pull, or not plain.

    Args:
        data: Received frames; the last may be incomplete.
        position: Start of a frame.
        header_max: Bytes of a plain header.
    """
    if len(data) - position < PREFIX_SIZE:
        return None
    length, form_and_header = PREFIX.unpack_from(data, position)
    header_size, form = form_and_header & 0xFFFFFF, form_and_header >> 24
    end, start = position + 4 + length, position + PREFIX_SIZE
    if not 4 <= length <= FRAME_MAX - 4 or end > len(data) or header_size > min(length - 4, header_max):
        return None
    header = data[start : start + header_size]
    if form == JSON_FORM:
        try:
            command = _decode_json(header)
        except fastjson.UNREADABLE:
            return None
        if command.flag or command.code not in PULL_CODES:
            return None
        return command.fields, command.opaque, form, end
    return _parse_binary(header, end) if form == BINARY_FORM else None


def _parse_binary(header: bytes, end: int) -> ParsedPull | None:
    try:
        command = commands.decode(Frame(BINARY_FORM, header, b""))
        if command.flag or command.code not in PULL_CODES:
            return None
        return decode_header(command, PullMessage), command.opaque, BINARY_FORM, end
    except ProtocolError:
        return None


def found_header(numbers: FoundNumbers, form: int, body_size: int) -> bytes:
    """Return the frame of a response without its records, which have `body_size` bytes.

    Raises:
        ProtocolError: the frame exceeds what peers accept.
    """
    header = _JSON_FOUND % numbers if form == JSON_FORM else _encode_found(numbers, form)[PREFIX_SIZE:]
    return prefix(form, len(header), body_size) + header


def _encode_found(numbers: FoundNumbers, form: int) -> bytes:
    names = ("maxOffset", "minOffset", "nextBeginOffset", "suggestWhichBrokerId")
    fields = dict(zip(names, map(str, numbers), strict=False))
    code, opaque = ResponseCode.SUCCESS, numbers[-1]
    return commands.encode(code, opaque=opaque, flag=RESPONSE, fields=fields, remark=FOUND, form=form)[0]


def _found_texts() -> list[bytes]:
    """Return the parts of the JSON header of a response that surround its numbers."""
    marks = (-5, -4, -3, -2, -1)
    texts, rest = [], _encode_found(marks, JSON_FORM)[PREFIX_SIZE:]
    for mark in marks:
        text, _, rest = rest.partition(b"%d" % mark)
        texts.append(text)
    return [*texts, rest]


FOUND_TEXTS = _found_texts()
_JSON_FOUND = b"%d".join(text.replace(b"%", b"%%") for text in FOUND_TEXTS)
