"""The one hash that both sides of the protocol must agree on: Java's `String.hashCode`, used for tags and index keys."""

from __future__ import annotations

from functools import lru_cache
from operator import mul

_POWERS_COUNT = 512  # longer texts are rare: they take the loop
_POWERS: tuple[int, ...] = tuple(int(pow(31, exponent, 1 << 32)) for exponent in reversed(range(_POWERS_COUNT)))


def string_hash(text: str) -> int:
    """Signed 32-bit hash over the UTF-16 units of `text` (reference: remoting-protocol 10.6)."""
    if text.isascii() and 0 < len(text) <= _POWERS_COUNT:
        h: int = sum(map(mul, text.encode(), _POWERS[-len(text) :])) & 0xFFFFFFFF
    else:
        h = 0
        units = text.encode("utf-16-be", "surrogatepass")
        for i in range(0, len(units), 2):
            h = (31 * h + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


java_hash = lru_cache(maxsize=65536)(string_hash)
"""`string_hash` for texts that come again, such as tags."""
