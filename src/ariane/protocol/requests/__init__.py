"""Typed requests: one frozen Struct per header class of the protocol, by area.

    messaging    send, pull, offsets, send back          (reference 4)
    clients      heartbeat, members, locks               (reference 5, 6)
    routing      requests to name servers                (reference 7)
    admin        topics and groups of a broker           (reference 8)
    callbacks    requests from brokers to clients        (reference 6)
    brokers      a broker as a whole                     (reference 8)
    rules        lengths, characters and ranges of all values from clients

    decode_header(command, PullMessage)        extFields -> Struct, checked by the rules
    encode_header(PullMessage(...))            Struct -> extFields
    decode_body(command, HeartbeatData)        JSON body -> Struct, checked by the rules

Members have Java's names on the wire. Numbers arrive as texts and are validated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from ariane.errors import HeaderError, ProtocolError
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, code_name
from ariane.protocol.command import Command
from ariane.protocol.frame import FRAME_MAX
from ariane.protocol.requests import rules

T = TypeVar("T", bound=msgspec.Struct)

# Bytes of the JSON body of a request. A heartbeat takes some 150 per subscription, a lock request some 150 per queue.
JSON_BODY_MAX = 4 * 1024 * 1024
# Codes whose bodies may be larger: a broker registers all its topics in one request.
BODY_MAX: dict[int, int] = {RequestCode.REGISTER_BROKER: FRAME_MAX}
# Bytes of a body that is not strict JSON. Java clients and brokers send none of these to a server.
LIBERAL_BODY_MAX = 64 * 1024


@lru_cache(maxsize=256)
def _json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind, strict=False)


def decode_header(command: Command, kind: type[T], names: Mapping[str, str] | None = None) -> T:
    """Decode the extFields of `command` into a `kind`.

    Args:
        names: Wire names of an older header form -> names of `kind`.

    Raises:
        HeaderError: a member is missing, has the wrong type, or breaks its rule (`rules`); names request and member.
    """
    request = _read(command, kind, names)
    try:
        for member, check in rules.checks(kind):
            check(getattr(request, member))
    except ProtocolError as error:
        raise HeaderError(f"request {code_name(command.code)}: {error}") from None
    return request


def _read(command: Command, kind: type[T], names: Mapping[str, str] | None) -> T:
    fields = command.fields
    try:
        if names is None and isinstance(fields, msgspec.Raw):
            try:
                decoder: msgspec.json.Decoder[T] = _json_decoder(kind)
                return decoder.decode(fields)
            except fastjson.UNREADABLE:
                pass  # bare numbers for texts, unquoted names: decoded from the texts below
        texts = command.field_map()
        if names is not None:
            # No other names: permissions are checked by the longer names, and a request may have both.
            texts = {names[name]: value for name, value in texts.items() if name in names}
        return msgspec.convert(texts, kind, strict=False)
    except fastjson.UNREADABLE as error:
        raise HeaderError(f"request {code_name(command.code)}: {error}") from None


def decode_body(command: Command, kind: type[T]) -> T:
    """Decode the JSON body of `command` into a `kind`.

    Raises:
        ProtocolError: the body cannot be decoded, is larger than the code allows, or breaks a rule (`rules`).
    """
    value = decode_json_body(command.code, command.body, kind)
    try:
        rules.check(value)
    except ProtocolError as error:
        raise ProtocolError(f"request {code_name(command.code)}: {error}") from None
    return value


def decode_json_body(code: int, body: bytes, kind: type[T]) -> T:
    """Decode the JSON body of a request with this code, as `decode_body` does, without the rules."""
    size_max = BODY_MAX.get(code, JSON_BODY_MAX)
    if len(body) > size_max:
        raise ProtocolError(
            f"request {code_name(code)}: body of {len(body)} bytes is too large, expected at most {size_max}"
        )
    try:
        return fastjson.decode(body, kind, liberal_max=LIBERAL_BODY_MAX)
    except ProtocolError as error:
        raise ProtocolError(f"request {code_name(code)}: {error}") from None


@lru_cache(maxsize=256)
def _members(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(kind))


def encode_header(header: msgspec.Struct) -> dict[str, str]:
    """Encode `header` as extFields: every member that is not None, in Java's text form."""
    texts = {}
    for name, wire_name in _members(type(header)):
        value: Any = getattr(header, name)
        if value is not None:
            texts[wire_name] = value if isinstance(value, str) else _text(value)
    return texts


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, int) else str(value)  # an enumeration prints its name
