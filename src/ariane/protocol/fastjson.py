"""The JSON dialect of the Java side, both ways: fastjson 1.2.69's.

It differs from JSON in what it prints for maps whose keys are no strings: `{0:"a"}`, `{{"brokerName":"b",…}:5}`, with
members in alphabetical order, null members left out. It reads more than that: unquoted and single-quoted names, both forms
of such keys, and it matches names ignoring case, `_` and `-`.

Strict JSON goes through msgspec (`decode` tries it first); only what is not falls through to the reader below.
Reference: remoting-protocol 9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from math import isnan
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from ariane.errors import ProtocolError

T = TypeVar("T")

DEPTH_MAX = 64  # nesting no message of the protocol comes near; keeps hostile input from exhausting the stack

_WORD = re.compile(r"[A-Za-z_$][\w$.\-]*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_SPACE = re.compile(r"\s*")
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_MUST_ESCAPE = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def decode(data: bytes, kind: type[T]) -> T:
    """`data` as a value of `kind` (a msgspec Struct), as liberally as Java takes it. ProtocolError says what is wrong."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # no strict JSON, or not of this shape: the liberal reader decides
    try:
        return msgspec.convert(_with_names_of(kind, read(data)), kind, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the body is no {kind.__name__}: {error}") from None


def read(data: bytes) -> Any:
    """Python values of `data`. Map keys become strings: a number's digits, an object's JSON text."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"JSON that is not UTF-8: {error}") from None
    value, at = _value(text, _skip(text, 0), 0)
    at = _skip(text, at)
    if at != len(text):
        raise ProtocolError(f"JSON with something behind its end: {text[at : at + 20]!r}")
    return value


def write(value: Any, *, pretty: bool = False) -> bytes:
    """`value` (Structs, dicts, sequences, scalars) as Java prints it; `pretty` is the form of the config files."""
    return _text(value, "\n" if pretty else "").encode()


def _with_names_of(kind: Any, value: Any) -> Any:
    """`value` with its members renamed to those of the Structs in `kind` that they match ignoring case, `_` and `-`."""
    inner = get_args(kind)
    if isinstance(value, list) and inner:
        return [_with_names_of(inner[0], item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(inner) == 2 and get_origin(kind) is dict:
        return {key: _with_names_of(inner[1], item) for key, item in value.items()}
    kinds = [one for one in (kind, *inner) if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    if not kinds:
        return value
    fields = msgspec.structs.fields(kinds[0])
    exact = {field.encode_name for field in fields}
    alike = {_folded(field.encode_name): field for field in fields}
    renamed = {}
    for name, member in value.items():
        field = alike.get(_folded(name))
        if field is not None and (name in exact or field.encode_name not in value):
            renamed[field.encode_name] = _with_names_of(field.type, member)
    return renamed


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


# --- reading -----------------------------------------------------------------------------------------------------------


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _fail(text: str, at: int, expected: str) -> ProtocolError:
    found = repr(text[at : at + 20]) if at < len(text) else "the end"
    return ProtocolError(f"JSON at {at}: expected {expected}, found {found}")


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > DEPTH_MAX:
        raise ProtocolError(f"JSON nested deeper than {DEPTH_MAX}")
    first = text[at : at + 1]
    if first == "{":
        return _object(text, at + 1, depth)
    if first == "[":
        return _array(text, at + 1, depth)
    if first in ('"', "'") and first:
        return _string(text, at)
    number = _NUMBER.match(text, at)
    if number:
        digits = number.group()
        return (float(digits) if number.group(1) or number.group(2) else int(digits)), number.end()
    word = _WORD.match(text, at)
    if word:
        name = word.group()
        constants = {"true": True, "false": False, "null": None, "Infinity": float("inf"), "NaN": None}
        if name in constants:
            return constants[name], word.end()
    raise _fail(text, at, "a value")


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    at = _skip(text, at)
    while text[at : at + 1] != "}":
        name, at = _name(text, at, depth)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise _fail(text, at, "':'")
        members[name], at = _value(text, _skip(text, at + 1), depth + 1)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "}":
            raise _fail(text, at, "',' or '}'")
    return members, at + 1


def _name(text: str, at: int, depth: int) -> tuple[str, int]:
    word = _WORD.match(text, at)
    if word:
        return word.group(), word.end()
    key, at = _value(text, at, depth + 1)
    return key if isinstance(key, str) else _text(key, ""), at


def _array(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    items = []
    at = _skip(text, at)
    while text[at : at + 1] != "]":
        item, at = _value(text, at, depth + 1)
        items.append(item)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise _fail(text, at, "',' or ']'")
    return items, at + 1


def _string(text: str, at: int) -> tuple[str, int]:
    quote = text[at]
    parts = []
    start = at = at + 1
    while True:
        char = text[at : at + 1]
        if not char:
            raise _fail(text, at, "the end of a string")
        if char == quote:
            parts.append(text[start:at])
            joined = "".join(parts)
            return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), at + 1
        if char != "\\":
            at += 1
            continue
        parts.append(text[start:at])
        escape = text[at + 1 : at + 2]
        if escape == "u":
            digits = text[at + 2 : at + 6]
            if not re.fullmatch("[0-9a-fA-F]{4}", digits):
                raise _fail(text, at, "four hex digits behind \\u")
            parts.append(chr(int(digits, 16)))
            at += 6
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
            at += 2
        else:
            raise _fail(text, at, "an escape")
        start = at


# --- writing -----------------------------------------------------------------------------------------------------------


def _text(value: Any, newline: str) -> str:
    if isinstance(value, str):
        return _quoted(value.value if isinstance(value, Enum) else value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, bytes):
        return _quoted(value.decode())
    if isinstance(value, msgspec.Struct):
        return _braced([(name, getattr(value, field)) for name, field in _members(type(value))], newline)
    if isinstance(value, Mapping):
        return _braced([(_key(key), member) for key, member in value.items()], newline)
    if isinstance(value, Sequence | set | frozenset):
        inner = newline + "\t" if newline else ""
        items = ",".join(f"{inner}{_text(item, inner)}" for item in value)
        return f"[{items}{newline}]" if items else "[]"
    raise TypeError(f"{type(value).__name__} has no JSON form")


@cache
def _members(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Quoted names and fields of a struct, in the order in which they are written; asking for them evaluates annotations."""
    return sorted((_quoted(field.encode_name), field.name) for field in msgspec.structs.fields(kind))


def _key(key: Any) -> str:
    return _text(key, "")


def _braced(members: list[tuple[str, Any]], newline: str) -> str:
    inner = newline + "\t" if newline else ""
    text = ",".join(
        f"{inner}{name}:{_text(member, inner)}"
        for name, member in members
        if member is not None and member is not msgspec.UNSET
    )
    return f"{{{text}{newline}}}" if text else "{}"


def _quoted(text: str) -> str:
    return f'"{_MUST_ESCAPE.sub(lambda match: _escaped(match.group()), text)}"'


def _escaped(char: str) -> str:
    return _SHORT.get(char) or f"\\u{ord(char):04X}"


def _java_double(value: float) -> str:
    """As Java's Double.toString: plain within 1e-3 … 1e7, else with E; NaN prints as null."""
    if isnan(value):
        return "null"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = repr(value)
        if "e" not in text:
            return text
        return f"{value:.17f}".rstrip("0")
    mantissa, _, exponent = f"{value:e}".partition("e")
    digits = repr(value)
    if "e" in digits:
        mantissa, _, exponent = digits.partition("e")
    else:
        mantissa = repr(value / 10 ** int(exponent))
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
