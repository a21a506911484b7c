"""The JSON dialect of the Java side in both directions: that of fastjson 1.2.69.

It differs from JSON in the output for maps whose keys are not strings: `{0:"a"}`, `{{"brokerName":"b",…}:5}`, with members in
alphabetical order and null members omitted. On input it also accepts unquoted and single-quoted names and both forms of such
keys, and matches names ignoring case, `_` and `-`.

Strict JSON is decoded by msgspec (`decode` tries it first); other input is decoded by the reader below, which is far slower. Its
work is linear in the size of the text, and the caller bounds that size (`liberal_max`).
Reference: remoting-protocol 9.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from math import isnan
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from ariane.errors import ProtocolError

T = TypeVar("T")

DEPTH_MAX = 64  # more nesting than any message of the protocol has; keeps hostile input from exhausting the stack
KEY_MAX = 4096  # characters of an object that is a key; a message queue takes some 400
DIGITS_MAX = 400  # characters of a number; the largest double has 309 digits
PIECE_VALUES = 64  # texts, numbers and the like of a piece: some 50 µs
LIBERAL_MAX = 16 * 1024 * 1024  # a whole frame: for responses and files; requests have bounds of their own

# Errors of msgspec for invalid input: apart from its own, ValueError for bytes that are not UTF-8 and for numbers of thousands
# of digits, RecursionError for deep nesting.
UNREADABLE = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)


def decode(data: bytes, kind: type[T], *, liberal_max: int = LIBERAL_MAX) -> T:
    """Return `data` as a value of `kind` (a msgspec Struct), as liberally as Java accepts it.

    Raises:
        ProtocolError: `data` is not JSON, not of this shape, or larger than `liberal_max` bytes and not strict JSON.
    """
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except UNREADABLE as error:
        if len(data) > liberal_max:
            raise ProtocolError(
                f"Invalid {kind.__name__} in the body: {error} ({len(data)} bytes; only up to {liberal_max} bytes may deviate from"
                " strict JSON)"
            ) from None
    try:
        return msgspec.convert(_with_names_of(kind, read(data, liberal_max)), kind, strict=False)
    except UNREADABLE as error:
        raise ProtocolError(f"Invalid {kind.__name__} in the body: {error}") from None


def read(data: bytes, liberal_max: int = LIBERAL_MAX) -> Any:
    """Return the Python values of `data`. Map keys become strings: a number's digits, an object's JSON text.

    Raises:
        ProtocolError: `data` is not JSON of this dialect, or larger than `liberal_max` bytes.
    """
    if len(data) > liberal_max:
        raise ProtocolError(f"Invalid JSON: {len(data)} bytes that are not strict JSON, expected at most {liberal_max}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"Invalid JSON: not UTF-8: {error}") from None
    return _Reader(text).document()


def write(value: Any, *, pretty: bool = False) -> bytes:
    """Return `value` (Structs, dicts, sequences, scalars) as Java prints it; `pretty` is the form of the config files."""
    return _text(value, "\n" if pretty else "").encode()


def pieces(value: msgspec.Struct) -> Iterator[bytes]:
    """Yield what `write(value, pretty=True)` returns, in pieces of at most PIECE_VALUES values: callers can yield between them."""
    return (text.encode() for text in _parts("", value, "\n"))


class _Names(NamedTuple):
    """Members of a Struct by their names on the wire."""

    exact: frozenset[str]
    alike: Mapping[str, tuple[str, Any]]  # normalized name: wire name, type


@cache
def _names_of(kind: type[msgspec.Struct]) -> _Names:
    fields = msgspec.structs.fields(kind)
    return _Names(
        frozenset(field.encode_name for field in fields),
        {_folded(field.encode_name): (field.encode_name, field.type) for field in fields},
    )


def _with_names_of(kind: Any, value: Any) -> Any:
    """Rename the members of `value` to those of the Structs in `kind` that they match ignoring case, `_` and `-`."""
    inner = get_args(kind)
    if isinstance(value, list) and inner:
        return [_with_names_of(inner[0], item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(inner) == 2 and get_origin(kind) is dict:
        return {key: _with_names_of(inner[1], item) for key, item in value.items()}
    kinds = [
        inner_type
        for inner_type in (kind, *inner)
        if isinstance(inner_type, type) and issubclass(inner_type, msgspec.Struct)
    ]
    if not kinds:
        return value
    names = _names_of(kinds[0])
    renamed = {}
    for name, member in value.items():
        field = names.alike.get(_folded(name))
        if field is not None and (name in names.exact or field[0] not in value):
            renamed[field[0]] = _with_names_of(field[1], member)
    return renamed


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


# --- reading -----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""[ \t\r\n\f\x08]*(?:
    (?P<mark>[{}\[\],:])
    | "(?P<double>[^"\\]*+)"
    | '(?P<single>[^'\\]*+)'
    | (?P<escaped>"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+')
    | (?P<float>-?[0-9]++(?:\.[0-9]++(?:[eE][+-]?[0-9]++)?|[eE][+-]?[0-9]++))
    | (?P<int>-?[0-9]++)
    | (?P<word>[A-Za-z_$][\w$.\-]*+)
    | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS = {"true": True, "false": False, "null": None, "Infinity": float("inf"), "NaN": None}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "0": "\0"}


class _Reader:
    """Reads one text token by token; each character belongs to one token, and each token is examined once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0  # position of the next token
        self._kind: str | None = None  # group of _TOKEN, or the mark itself; None if no token matches
        self._token = ""
        self._advance()

    def document(self) -> Any:
        value = self._value(0, False)
        if self._kind != "end":
            raise self._fault("the end")
        return value

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            self._kind, self._token = None, ""
            return
        kind = match.lastgroup
        self._token = token = match[match.lastindex or 0]
        self._kind = token if kind == "mark" else kind
        self._position = match.end()

    def _fault(self, expected: str) -> ProtocolError:
        position = self._position if self._kind is None else self._position - len(self._token)
        # One character: the text may be a password, and errors are logged.
        token = "the end" if self._kind == "end" else repr(self._text[position : position + 1])
        return ProtocolError(f"JSON at {position}: expected {expected}, found {token}")

    def _value(self, depth: int, in_key: bool) -> Any:
        kind, token = self._kind, self._token
        value: Any
        if kind in ("double", "single"):
            value = token
        elif kind in ("{", "["):
            if depth > DEPTH_MAX:
                raise ProtocolError(f"Invalid JSON: nested deeper than {DEPTH_MAX} levels")
            self._advance()
            return self._object(depth, in_key) if kind == "{" else self._array(depth, in_key)
        elif kind in ("int", "float"):
            if len(token) > DIGITS_MAX:
                raise ProtocolError(
                    f"Invalid JSON: a number has {len(token)} characters, expected at most {DIGITS_MAX}"
                )
            value = int(token) if kind == "int" else float(token)
        elif kind == "escaped":
            value = _unescaped(token[1:-1])
        elif kind == "word" and token in _CONSTANTS:
            value = _CONSTANTS[token]
        else:
            raise self._fault("a value")
        self._advance()
        return value

    def _object(self, depth: int, in_key: bool) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while self._kind != "}":
            name = self._name(depth, in_key)
            if self._kind != ":":
                raise self._fault("':'")
            self._advance()
            members[name] = self._value(depth + 1, in_key)
            if self._kind == ",":
                self._advance()
            elif self._kind != "}":
                raise self._fault("',' or '}'")
        self._advance()
        return members

    def _array(self, depth: int, in_key: bool) -> list[Any]:
        items = []
        while self._kind != "]":
            items.append(self._value(depth + 1, in_key))
            if self._kind == ",":
                self._advance()
            elif self._kind != "]":
                raise self._fault("',' or ']'")
        self._advance()
        return items

    def _name(self, depth: int, in_key: bool) -> str:
        """Read the name of a member. An object that is a name is stored as its text, so the names in it have to be plain:
        each further level would quote the levels below it once more."""
        if self._kind == "word":
            word = self._token
            self._advance()
            return word
        if self._kind not in ("{", "["):
            value = self._value(depth + 1, in_key)
            return value if isinstance(value, str) else _text(value, "")
        if in_key:
            raise ProtocolError("Invalid JSON: an object as a key within an object that is a key")
        start = self._position
        key = self._value(depth + 1, True)
        if self._position - start > KEY_MAX:
            raise ProtocolError(
                f"Invalid JSON: a key has {self._position - start} characters, expected at most {KEY_MAX}"
            )
        return _text(key, "")


def _unescaped(text: str) -> str:
    joined = _ESCAPE.sub(_character, text)
    if joined.isascii():
        return joined
    # \u escapes encode a character beyond U+FFFF as two surrogates: they are joined, and a lone surrogate is replaced.
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(escape: re.Match[str]) -> str:
    if escape[1]:
        return chr(int(escape[1], 16))
    if escape[2] in _ESCAPES:
        return _ESCAPES[escape[2]]
    expected = "four hex digits behind \\u" if escape[2] == "u" else "an escape"
    raise ProtocolError(f"JSON: expected {expected}, found \\{escape[2]}")


# --- writing -----------------------------------------------------------------------------------------------------------


_MUST_ESCAPE = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _text(value: Any, newline: str) -> str:
    write = _SCALARS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, msgspec.Struct):
        return _struct_text(value, newline)
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
    if isinstance(value, Mapping):
        # The pretty form has no line ends before names that are not texts: {0:"a",1:"b"↵}
        return _braced(
            [(_key(key), member) for key, member in value.items()], newline, all(isinstance(key, str) for key in value)
        )
    if isinstance(value, Sequence | set | frozenset):
        inner = newline + "\t" if newline else ""
        items = ",".join(f"{inner}{_text(item, inner)}" for item in value)
        return f"[{items}{newline}]" if items else "[]"
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _parts(before: str, value: Any, newline: str) -> Iterator[str]:
    """Yield `before` and the pretty text of a value."""
    if _room(value, PIECE_VALUES) > 0 or type(value) in _SCALARS:
        yield before + _text(value, newline)
        return
    inner = newline + "\t"
    if isinstance(value, msgspec.Struct):
        members = ((f"{inner}{name}:", getattr(value, field)) for name, field in _members(type(value)))
        opening, closing = "{", "}"
    elif isinstance(value, Mapping):
        # As in `_text`: no line ends before names that are not texts.
        start = inner if all(isinstance(key, str) for key in value) else ""
        members = ((f"{start}{_key(key)}:", member) for key, member in value.items())
        opening, closing = "{", "}"
    else:
        members = ((inner, item) for item in value)
        opening, closing = "[", "]"
    is_list, separator = opening == "[", opening
    for name, member in members:
        if is_list or (member is not None and member is not msgspec.UNSET):
            yield from _parts(f"{before}{separator}{name}", member, inner)
            before, separator = "", ","
    yield f"{before}{opening}{closing}" if separator == opening else f"{newline}{closing}"


def _room(value: Any, room: int) -> int:
    """Return how many of `room` values remain after those of a value; 0 or less if it has more."""
    if type(value) in _SCALARS:
        return room - 1
    if isinstance(value, msgspec.Struct):
        members: Iterable[Any] = (getattr(value, field) for _, field in _members(type(value)))
    elif isinstance(value, Mapping):
        members = value.values()
    elif isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        members = value
    else:
        return room - 1
    for member in members:
        if room <= 0:
            break
        room = _room(member, room)
    return room


def _struct_text(value: msgspec.Struct, newline: str) -> str:
    inner = newline + "\t" if newline else ""
    members = []
    for name, field in _members(type(value)):
        member = getattr(value, field)
        if member is None or member is msgspec.UNSET:
            continue
        write = _SCALARS.get(type(member))
        members.append(f"{inner}{name}:{_text(member, inner) if write is None else write(member)}")
    return f"{{{','.join(members)}{newline}}}" if members else "{}"


@cache
def _members(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Return quoted names and fields of a Struct in output order; cached because it evaluates annotations."""
    return sorted((_quoted(field.encode_name), field.name) for field in msgspec.structs.fields(kind))


def _key(key: Any) -> str:
    return _text(key, "")


def _braced(members: list[tuple[str, Any]], newline: str, has_text_names: bool = True) -> str:
    inner = newline + "\t" if newline else ""
    before = inner if has_text_names else ""
    text = ",".join(
        f"{before}{name}:{_text(member, inner)}"
        for name, member in members
        if member is not None and member is not msgspec.UNSET
    )
    return f"{{{text}{newline}}}" if text else "{}"


def _quoted(text: str) -> str:
    if _MUST_ESCAPE.search(text) is None:
        return f'"{text}"'
    return f'"{_MUST_ESCAPE.sub(lambda match: _escaped(match.group()), text)}"'


def _escaped(char: str) -> str:
    return _SHORT.get(char) or f"\\u{ord(char):04X}"


# What the members of a table are, nearly all of them.
_SCALARS: Mapping[type, Callable[[Any], str]] = {
    str: _quoted,
    int: str,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",
}


def _java_double(value: float) -> str:
    """Return a double as Java's Double.toString prints it: plain within 1e-3 … 1e7, else with E; NaN becomes null."""
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
