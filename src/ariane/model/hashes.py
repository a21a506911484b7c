"""Java's `String.hashCode`, the one hash that both sides of the protocol must agree on: used for tags and index keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from operator import mul

_CHUNK = 512  # UTF-16 units per step of the computation
_POWERS: tuple[int, ...] = tuple(int(pow(31, exponent, 1 << 32)) for exponent in reversed(range(_CHUNK)))
_CHUNK_POWER = int(pow(31, _CHUNK, 1 << 32))

CACHED_LENGTH_MAX = 255  # characters: clients choose tags, so only short ones are cached
CACHED_MAX = 65_536


def string_hash(text: str) -> int:
    """Return the signed 32-bit hash over the UTF-16 units of `text` (reference: remoting-protocol 10.6)."""
    units: Sequence[int] = text.encode() if text.isascii() else _utf16(text)
    first = len(units) if len(units) < _CHUNK else len(units) % _CHUNK
    h: int = sum(map(mul, units, _POWERS[_CHUNK - first :])) & 0xFFFFFFFF
    if first < len(units):
        for start in range(first, len(units), _CHUNK):
            h = (h * _CHUNK_POWER + sum(map(mul, units[start : start + _CHUNK], _POWERS))) & 0xFFFFFFFF
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


def _utf16(text: str) -> Sequence[int]:
    return memoryview(text.encode(f"utf-16-{sys.byteorder[0]}e", "surrogatepass")).cast("H")


_cached_hash = lru_cache(maxsize=CACHED_MAX)(string_hash)


def java_hash(text: str) -> int:
    """Return `string_hash` of a text that recurs, such as a tag; hashes of short texts are cached."""
    return _cached_hash(text) if len(text) <= CACHED_LENGTH_MAX else string_hash(text)
