"""Parses the input of `ariane cat -P`: splits bytes into records and builds a message of each. Pure.

bytes ─ RecordSplitter ─→ records ─ MessageTemplate.from_body ─→ Message      one body each, with --key-delimiter keys and body
                                  └ MessageTemplate.from_json ─→ Message      one JSON object each, as --json prints them
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ariane.cli.options.time_options import UNITS_MS, parse_time
from ariane.errors import MessageRefused, UsageError
from ariane.model.message import Message

# Fields of a JSON object that describe the message to send …
JSON_FIELDS = (
    "body", "body_base64", "keys", "tags", "properties", "flag", "delay", "delay_level", "deliver_at",
)  # fmt: skip
# … and those that `--json` prints in addition. They describe where a message was stored, so sending ignores them.
POSITION_FIELDS = frozenset(
    {
        "topic", "broker", "queue", "offset", "message_id", "offset_message_id", "born_at", "born_host", "stored_at",
        "reconsume_times", "system_properties", "body_error",
    }
)  # fmt: skip

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])")


def parse_escapes(text: str, option: str) -> bytes:
    r"""Return the bytes of a text with the escapes \n, \t, \r, \0, \\ and \xHH.

    Raises:
        UsageError: the text contains another escape.
    """
    parts, at = [], 0
    for match in _ESCAPE.finditer(text):
        code = match[1]
        if len(code) == 1 and code not in _ESCAPED:
            raise UsageError(option, text, f"unknown escape \\{code}; expected \\n, \\t, \\r, \\0, \\\\ or \\xHH")
        parts.append(text[at : match.start()].encode())
        parts.append(bytes([int(code[1:], 16)]) if len(code) > 1 else _ESCAPED[code].encode())
        at = match.end()
    if text[at:].endswith("\\"):
        raise UsageError(option, text, "ends with a single backslash; expected \\\\")
    return b"".join([*parts, text[at:].encode()])


def parse_delimiter(text: str, option: str) -> bytes:
    """Return the bytes of a delimiter. Raise UsageError if it is empty or has an unknown escape."""
    delimiter = parse_escapes(text, option)
    if not delimiter:
        raise UsageError(option, text, "empty delimiter; expected at least one character, for example \\n or \\0")
    return delimiter


def parse_duration_ms(text: str, option: str) -> int:
    """Return the ms of `10s`, `1.5m`, `2h` or `1d`.

    Raises:
        UsageError: the text has another form, or the duration is 0.
    """
    match = _DURATION.fullmatch(text)
    ms = int(float(match[1]) * UNITS_MS[match[2]]) if match else 0
    if not ms:
        raise UsageError(option, text, "expected a positive number followed by s, m, h or d, for example 10s")
    return ms


class RecordSplitter:
    """Splits a stream of bytes at a delimiter, which ends each record; it may be missing after the last one.

    A record has at most `size_max` bytes, and may arrive in any number of chunks.
    """

    def __init__(self, delimiter: bytes, *, size_max: int) -> None:
        self._delimiter = delimiter
        self._size_max = size_max
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterable[bytes]:
        """Yield the records that are complete with this chunk.

        Raises:
            MessageRefused: a record exceeds `size_max`.
        """
        rest, size = self._rest, len(self._delimiter)
        # The delimiter may begin in the previous chunk; everything before that was searched already.
        searched = max(0, len(rest) - size + 1)
        rest += chunk
        start = 0
        while (end := rest.find(self._delimiter, max(start, searched))) >= 0:
            yield self._checked(bytes(rest[start:end]))
            start = end + size
        del rest[:start]
        if len(rest) > self._size_max + size:
            self._checked(rest)

    def finish(self) -> bytes | None:
        """Return the record after the last delimiter; None if the input ended with a delimiter."""
        rest = bytes(self._rest)
        self._rest.clear()
        return self._checked(rest) if rest else None

    def _checked(self, record: bytes | bytearray) -> bytes:
        if len(record) > self._size_max:
            raise MessageRefused(f"more than {self._size_max:,} bytes without a delimiter: clients cannot send more")
        return bytes(record)


class MessageTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line sets for every message; a JSON object may set it differently for its own message."""

    topic: str  # topic to send to, whatever topic a JSON object names
    tags: str = ""  # tag
    keys: tuple[str, ...] = ()  # business keys
    properties: Mapping[str, str] = {}  # properties of the application
    delay_level: int = 0  # delay level; 0: none
    delay_ms: int = 0  # delay in ms from the time of sending; 0: none
    deliver_at_ms: int = 0  # delivery time in ms since the epoch; 0: immediately
    key_delimiter: bytes = b""  # separates the keys from the body; empty: the whole record is the body

    def from_body(self, record: bytes, now_ms: int) -> Message:
        """Return the message of a record that consists of a body, or of keys and a body.

        Raises:
            MessageRefused: the keys are not valid UTF-8.
        """
        keys, body = self.keys, record
        if self.key_delimiter:
            text, separator, rest = record.partition(self.key_delimiter)
            if separator:
                keys, body = (*keys, *_decode_keys(text).split()), rest
        return Message(
            topic=self.topic,
            body=body,
            tags=self.tags,
            keys=keys,
            properties=self.properties,
            delay_level=self.delay_level,
            deliver_at_ms=now_ms + self.delay_ms if self.delay_ms else self.deliver_at_ms,
        )

    def from_json(self, record: bytes, now_ms: int) -> Message:
        """Return the message of a JSON object.

        Raises:
            MessageRefused: the record is not a JSON object, or one of its fields is unknown or invalid.
        """
        fields = _parse_object(record)
        template = self._with_delay(fields, now_ms)
        keys = fields.get("keys", list(self.keys))
        if isinstance(keys, str):
            keys = keys.split()
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise MessageRefused(f"keys = {keys!r}: expected a list of texts")
        properties = _typed(fields, "properties", dict, {}, "an object of texts")
        if not all(isinstance(value, str) for value in properties.values()):
            raise MessageRefused(f"properties = {properties!r}: expected texts as values")
        message = template.from_body(b"", now_ms)
        return msgspec.structs.replace(
            message,
            body=_json_body(fields),
            keys=keys,
            tags=_typed(fields, "tags", str, self.tags, "a text"),
            properties={**self.properties, **properties},
            flag=_typed(fields, "flag", int, 0, "a whole number"),
        )

    def _with_delay(self, fields: Mapping[str, Any], now_ms: int) -> MessageTemplate:
        """Return this template with the delay of a JSON object, which replaces the one of the command line."""
        given = [name for name in ("delay", "delay_level", "deliver_at") if fields.get(name) is not None]
        if not given:
            return self
        if len(given) > 1:
            raise MessageRefused(f"both {' and '.join(given)}: expected one of them")
        delay_level = _typed(fields, "delay_level", int, 0, "a whole number")
        try:
            delay_ms = parse_duration_ms(str(fields["delay"]), "delay") if given == ["delay"] else 0
            deliver_at = fields.get("deliver_at")
            if isinstance(deliver_at, str):
                deliver_at = parse_time(deliver_at, now_ms, "deliver_at")
        except UsageError as error:
            raise MessageRefused(str(error)) from None
        if isinstance(deliver_at, bool) or not isinstance(deliver_at, int | None):
            raise MessageRefused(f"deliver_at = {deliver_at!r}: expected ms since the epoch or a date and time")
        return msgspec.structs.replace(self, delay_level=delay_level, delay_ms=delay_ms, deliver_at_ms=deliver_at or 0)


def _decode_keys(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise MessageRefused(f"keys {text!r}: expected UTF-8") from None


def _parse_object(record: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(record)
    except (ValueError, RecursionError) as error:
        raise MessageRefused(f"not a JSON object: {error}") from None
    if not isinstance(fields, dict):
        raise MessageRefused(f"a JSON value of type {type(fields).__name__}: expected an object with a field body")
    unknown = [name for name in fields if name not in JSON_FIELDS and name not in POSITION_FIELDS]
    if unknown:
        raise MessageRefused(f"unknown field {unknown[0]!r}: expected {', '.join(JSON_FIELDS)}")
    return fields


def _json_body(fields: Mapping[str, Any]) -> bytes:
    if ("body" in fields) == ("body_base64" in fields):
        raise MessageRefused("expected exactly one of the fields body (a text) and body_base64")
    if fields.get("body_error"):
        raise MessageRefused(
            "this body could not be decompressed when it was consumed; it cannot be sent again as it is"
        )
    if "body" in fields:
        try:
            return str(_typed(fields, "body", str, "", "a text; for other bytes use body_base64")).encode()
        except UnicodeEncodeError:
            raise MessageRefused(
                "body: contains a lone surrogate, which UTF-8 cannot encode; use body_base64"
            ) from None
    text = _typed(fields, "body_base64", str, "", "base64 as a text")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MessageRefused(f"body_base64: {error}") from None


def _typed(fields: Mapping[str, Any], name: str, kind: type, default: Any, expected: str) -> Any:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise MessageRefused(f"{name} = {value!r}: expected {expected}")
    return value
