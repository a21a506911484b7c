r"""Formats the messages that `ariane cat` prints: as their bodies, by a format string, as JSON or as hexadecimal bytes. Pure.

%t topic     %p queue id    %o offset      %s body         %S body size in bytes       %% percent sign
%b broker    %k keys        %g tag         %i unique id    %I offset id                %r number of redeliveries
%T stored (ms since the epoch)    %B born (ms)    %D stored (2026-11-22T05:00:00.123Z)
%h properties of the application, NAME=VALUE joined by ","       %{NAME} value of a property
\n \t \r \0 \\ \xHH
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from ariane.cli.messages.message_input import parse_escapes
from ariane.cli.output.value_format import escape_control
from ariane.cluster.messages.replay import DROPPED_PROPERTIES
from ariane.errors import UsageError
from ariane.model.message import ReceivedMessage
from ariane.model.quantities import count_text

Formatter = Callable[[ReceivedMessage], bytes]

HEX_WIDTH = 16  # bytes per line

_FIELD = re.compile(r"%(?:\{([^}]*)\}|(.?))", re.DOTALL)


def body_format(delimiter: bytes, key_delimiter: bytes = b"") -> Formatter:
    """Return a formatter of bodies, each followed by `delimiter` and, with `key_delimiter`, preceded by the keys."""

    def format_body(message: ReceivedMessage) -> bytes:
        keys = " ".join(message.keys).encode() + key_delimiter if key_delimiter else b""
        return b"".join((keys, message.body, delimiter))

    return format_body


def compile_format(text: str) -> Formatter:
    """Return a formatter for a format string.

    Raises:
        UsageError: the text contains an unknown field or escape.
    """
    parts: list[bytes | Formatter] = []
    at = 0
    for match in _FIELD.finditer(text):
        parts.append(parse_escapes(text[at : match.start()], "--format"))
        parts.append(_field(match, text))
        at = match.end()
    parts.append(parse_escapes(text[at:], "--format"))

    def format_fields(message: ReceivedMessage) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)

    return format_fields


def json_format(message: ReceivedMessage) -> bytes:
    """Return a message as a line of JSON. `ariane cat -P --json` sends the same message again."""
    application, system = _split_properties(message.properties)
    fields: dict[str, Any] = {
        "topic": message.queue.topic,
        "broker": message.queue.broker,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "stored_at": format_time(message.store_ms),
        "born_at": format_time(message.born_ms),
        "born_host": message.born_host,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "keys": list(message.keys),
        "tags": message.tags,
        "properties": application,
        "system_properties": system,
        "flag": message.flag,
        "reconsume_times": message.reconsume_times,
    }
    if message.body_error:
        fields["body_error"] = message.body_error
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode()
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"


def hex_format(message: ReceivedMessage) -> bytes:
    """Return a message as a line about it and lines of its bytes: position, hexadecimal digits, characters."""
    about = [
        f"{message.queue.topic} {message.queue.broker}:{message.queue.queue_id} offset {message.queue_offset}",
        format_time(message.store_ms),
        *([f"keys {' '.join(message.keys)}"] if message.keys else []),
        *([f"tag {message.tags}"] if message.tags else []),
        count_text(len(message.body), "byte"),
    ]
    lines = [escape_control("  ".join(map(str, about)))]
    for start in range(0, len(message.body), HEX_WIDTH):
        row = message.body[start : start + HEX_WIDTH]
        digits = f"{row[:8].hex(' ')}  {row[8:].hex(' ')}"
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {digits:<{3 * HEX_WIDTH}}  |{shown}|")
    return ("\n".join(lines) + "\n").encode(errors="backslashreplace")


def format_time(ms: int) -> str | int:
    """Return a time in UTC, as precise as it is; the number itself if it is not a time: producers may send any."""
    try:
        at = datetime.fromtimestamp(ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return ms
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def _split_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the properties of the application, and those of clients and brokers, which cannot be sent again."""
    application = {name: value for name, value in properties.items() if name not in DROPPED_PROPERTIES}
    system = {
        name: value for name, value in properties.items() if name in DROPPED_PROPERTIES and name not in ("KEYS", "TAGS")
    }
    return application, system


def _field(match: re.Match[str], text: str) -> bytes | Formatter:
    name, letter = match[1], match[2]
    if name is not None:
        if not name:
            raise UsageError("--format", text, "%{} names no property; expected %{NAME}")
        return lambda message: _encode(message.properties.get(name, ""))
    if letter == "%":
        return b"%"
    if letter == "s":
        return lambda message: message.body
    value = _VALUES.get(letter)
    if value is None:
        expected = " ".join(f"%{field}" for field in (*_VALUES, "s"))
        raise UsageError("--format", text, f"unknown field %{letter}; expected {expected} %{{NAME}} or %%")
    return lambda message: _encode(value(message))


def _encode(value: object) -> bytes:
    return str(value).encode(errors="backslashreplace")


def _format_properties(message: ReceivedMessage) -> str:
    return ",".join(f"{name}={value}" for name, value in _split_properties(message.properties)[0].items())


_VALUES: dict[str, Callable[[ReceivedMessage], object]] = {
    "t": lambda message: message.queue.topic,
    "b": lambda message: message.queue.broker,
    "p": lambda message: message.queue.queue_id,
    "o": lambda message: message.queue_offset,
    "k": lambda message: " ".join(message.keys),
    "g": lambda message: message.tags,
    "S": lambda message: len(message.body),
    "T": lambda message: message.store_ms,
    "B": lambda message: message.born_ms,
    "D": lambda message: format_time(message.store_ms),
    "h": _format_properties,
    "i": lambda message: message.message_id,
    "I": lambda message: message.offset_message_id,
    "r": lambda message: message.reconsume_times,
}
