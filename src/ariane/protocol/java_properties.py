"""Java properties text: broker.conf, namesrv.conf, and the bodies of the codes 25, 26, 318 and 319. [java.util.Properties]

    key = value      key: value      key value      # comment      ! comment      a line ends with \\ to go on in the next

Backslash escapes (`\\t \\n \\f \\r \\uXXXX`, any other character stands for itself) are read as Java reads them. Written is what
RocketMQ writes: `key=value` and a line feed, without escapes. Reference: remoting-protocol 8.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ariane.errors import ProtocolError

BODY_MAX = 64 * 1024  # of a request; all keys of a broker take some 10 KiB

_ESCAPED = {"t": "\t", "n": "\n", "f": "\f", "r": "\r"}
_BLANK = " \t\f"
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_PHYSICAL = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_HEX = re.compile("[0-9a-fA-F]{4}")


def parse(text: str) -> dict[str, str]:
    """Keys and values; the last of equal keys wins. ProtocolError at a malformed `\\u` escape."""
    properties = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None
        properties[_unescaped(match[1])] = _unescaped(match[2])
    return properties


def parse_body(body: bytes) -> dict[str, str]:
    """Return the keys and values of a request's body (codes 25 and 318).

    Raises:
        ProtocolError: the body is larger than BODY_MAX, not UTF-8, or not a properties text.
    """
    if len(body) > BODY_MAX:
        raise ProtocolError(f"a properties text of {len(body)} bytes, at most {BODY_MAX} are accepted")
    try:
        return parse(body.decode())
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a properties text that is not UTF-8: {error}") from None


def write(properties: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def edit(text: str, changes: Mapping[str, str]) -> str:
    """`text` with other values for some keys: every other line, comments too, stays as it is and where it is. A key that is
    not there yet comes at the end; of equal keys the last one, which counts, is changed."""
    pieces = list(_lines(text))
    places = {_key(line): number for number, (_, line) in enumerate(pieces) if line is not None}
    raws = [raw for raw, _ in pieces]
    if raws and not raws[-1].endswith(("\r", "\n")):
        raws[-1] += "\n"
    for key, value in changes.items():
        entry = f"{key}={_escaped(value)}\n"
        if key in places:
            raws[places[key]] = entry
        else:
            raws.append(entry)
    return "".join(raws)


def _logical_lines(text: str) -> Iterator[str]:
    """Lines with their continuations joined; without blank lines and comments."""
    return (line for _, line in _lines(text) if line is not None)


def _lines(text: str) -> Iterator[tuple[str, str | None]]:
    """Each piece of the text as it stands there, and the logical line that it makes; None for blank lines and comments."""
    raw, joined = "", ""
    going_on = False
    for piece in _PHYSICAL.findall(text):
        line = piece.rstrip("\r\n").lstrip(_BLANK)
        if not going_on and (not line or line[0] in "#!"):
            yield piece, None
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        going_on = backslashes % 2 == 1
        raw += piece
        joined += line[:-1] if going_on else line
        if not going_on:
            yield raw, joined
            raw, joined = "", ""
    if raw:
        yield raw, joined or None


def _key(line: str) -> str:
    match = _KEY.match(line)
    assert match is not None
    return _unescaped(match[1])


def _escaped(value: str) -> str:
    """`value` so that it is read back as it is: no line end in it begins another key."""
    text = (
        value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")
    )
    return "\\" + text if text.startswith(" ") else text


def _unescaped(text: str) -> str:
    parts = []
    at = 0
    while (slash := text.find("\\", at)) >= 0:
        parts.append(text[at:slash])
        escape = text[slash + 1 : slash + 2]
        at = slash + 2
        if escape == "u":
            digits = text[at : at + 4]
            if not _HEX.fullmatch(digits):
                raise ProtocolError(f"malformed \\uxxxx escape in a properties text: \\u{digits}")
            parts.append(chr(int(digits, 16)))
            at += 4
        else:
            parts.append(_ESCAPED.get(escape, escape))
    parts.append(text[at:])
    joined = "".join(parts)
    if joined.isascii():
        return joined
    # Two \u escapes write a character beyond U+FFFF as two halves: they are joined, and half of one alone is replaced.
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
