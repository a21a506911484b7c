"""Java properties: broker.conf, namesrv.conf, and the bodies of the codes 25, 26, 318 and 319. [java.util.Properties]

    key = value      key: value      key value      # comment      ! comment      a \\ at the end continues a line

Backslash escapes (`\\t \\n \\f \\r \\uXXXX`, any other character stands for itself) are read as Java reads them. Texts are
written as RocketMQ writes them: `key=value` and a line feed, without escapes. Reference: remoting-protocol 8.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ariane.errors import ProtocolError

BODY_MAX = 64 * 1024  # bytes of a request; all keys of a broker take about 10 KiB

_ESCAPED = {"t": "\t", "n": "\n", "f": "\f", "r": "\r"}
_BLANK = " \t\f"
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_PHYSICAL = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_HEX = re.compile("[0-9a-fA-F]{4}")


def parse(text: str) -> dict[str, str]:
    """Return keys and values. The last of equal keys wins.

    Raises:
        ProtocolError: a `\\u` escape is malformed.
    """
    properties = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None
        properties[_unescaped(match[1])] = _unescaped(match[2])
    return properties


def parse_body(body: bytes) -> dict[str, str]:
    """Return the keys and values of a request's body (codes 25 and 318).

    Raises:
        ProtocolError: the body is larger than BODY_MAX, not UTF-8, or has a malformed escape.
    """
    if len(body) > BODY_MAX:
        raise ProtocolError(f"the properties have {len(body)} bytes: expected at most {BODY_MAX}")
    try:
        return parse(body.decode())
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the properties are not UTF-8: {error}") from None


def write(properties: Mapping[str, str]) -> str:
    """Return the text of keys and values, in their order."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def edit(text: str, changes: Mapping[str, str]) -> str:
    """Return the text with other values for some keys.

    All other lines, comments included, stay unchanged and in order. New keys are appended. Of equal keys the last one, which
    counts, is changed.
    """
    pieces = list(_lines(text))
    positions = {_key(line): number for number, (_, line) in enumerate(pieces) if line is not None}
    raws = [raw for raw, _ in pieces]
    if raws and not raws[-1].endswith(("\r", "\n")):
        raws[-1] += "\n"
    for key, value in changes.items():
        entry = f"{key}={_escaped(value)}\n"
        if key in positions:
            raws[positions[key]] = entry
        else:
            raws.append(entry)
    return "".join(raws)


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the logical lines: continuations are joined, blank lines and comments omitted."""
    return (line for _, line in _lines(text) if line is not None)


def _lines(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield each piece of the text unchanged, with its logical line; None for blank lines and comments."""
    raw, joined = "", ""
    is_continued = False
    for piece in _PHYSICAL.findall(text):
        line = piece.rstrip("\r\n").lstrip(_BLANK)
        if not is_continued and (not line or line[0] in "#!"):
            yield piece, None
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        is_continued = backslashes % 2 == 1
        raw += piece
        joined += line[:-1] if is_continued else line
        if not is_continued:
            yield raw, joined
            raw, joined = "", ""
    if raw:
        yield raw, joined or None


def _key(line: str) -> str:
    match = _KEY.match(line)
    assert match is not None
    return _unescaped(match[1])


def _escaped(value: str) -> str:
    """Return the value with escapes, so that a line end in it does not start another key."""
    text = (
        value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")
    )
    return "\\" + text if text.startswith(" ") else text


def _unescaped(text: str) -> str:
    parts = []
    offset = 0
    while (slash := text.find("\\", offset)) >= 0:
        parts.append(text[offset:slash])
        escape = text[slash + 1 : slash + 2]
        offset = slash + 2
        if escape == "u":
            digits = text[offset : offset + 4]
            if not _HEX.fullmatch(digits):
                raise ProtocolError(f"malformed \\uxxxx escape in properties: \\u{digits}")
            parts.append(chr(int(digits, 16)))
            offset += 4
        else:
            parts.append(_ESCAPED.get(escape, escape))
    parts.append(text[offset:])
    joined = "".join(parts)
    if joined.isascii():
        return joined
    # Two \u escapes write a character beyond U+FFFF as a surrogate pair. Pairs are joined, and lone surrogates replaced.
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
