"""Addresses whose requests need no signature, as plain_acl.yml lists them. [RemoteAddressStrategyFactory]

    (empty)                         no address
    *   *.*.*.*   *:*:*:*:*:*:*:*   every address
    1.2.3.4   fe80::1               this address
    1.2.3.4,1.2.3.5                 any of these
    1.2.3.{4,5,6}                   braces in the last part
    1.2.3.*   1.2.*.*               everything from the first * on
    1.2.3.1-20   1.2.1-5.*          a range in one part, followed only by *

A pattern is a (low, high) pair for each part of an address: four for IPv4, eight (hexadecimal) for IPv6.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from ariane.errors import ConfigError

Pattern = tuple[tuple[int, int], ...]

ALL_ADDRESSES: tuple[Pattern, ...] = (((0, 255),) * 4, ((0, 0xFFFF),) * 8)
_ALL_FORMS = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_OUTSIDE_BRACES = re.compile(r",(?![^{]*\})")
_BRACES = re.compile(r"(.*[.:])\{([^{}]+)\}\Z")

# Each request is compared with all patterns of the list.
PATTERNS_MAX = 10_000


def split_patterns(text: str) -> list[str]:
    """Return the patterns of a list that commas separate, except commas within braces."""
    return [pattern.strip() for pattern in _OUTSIDE_BRACES.split(text) if pattern.strip()]


def parse_patterns(text: str) -> tuple[Pattern, ...]:
    """Return the parsed patterns of a list.

    Raises:
        ConfigError: a pattern is invalid, or there are too many.
    """
    patterns: list[Pattern] = []
    for pattern in split_patterns(text):
        if pattern in _ALL_FORMS:
            patterns += ALL_ADDRESSES
        elif braces := _BRACES.match(pattern):
            patterns += [_pattern(braces[1] + last.strip(), pattern) for last in braces[2].split(",")]
        else:
            patterns.append(_pattern(pattern, pattern))
    if len(patterns) > PATTERNS_MAX:
        raise ConfigError("whiteRemoteAddress", f"{len(patterns)} patterns", f"expected at most {PATTERNS_MAX}")
    return tuple(patterns)


def matches(patterns: tuple[Pattern, ...], ip: str) -> bool:
    """Return whether one of the patterns matches an address."""
    if not patterns:
        return False
    parts = _parts(ip)
    return any(
        len(pattern) == len(parts)
        and all(low <= part <= high for (low, high), part in zip(pattern, parts, strict=True))
        for pattern in patterns
    )


@lru_cache(maxsize=4096)
def _parts(ip: str) -> tuple[int, ...]:
    # Link-local IPv6 addresses carry their interface after a %; a dual-stack socket shows IPv4 as ::ffff:1.2.3.4.
    address = ip_address(ip.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    data = address.packed
    if len(data) == 4:
        return tuple(data)
    return tuple(int.from_bytes(data[start : start + 2], "big") for start in range(0, 16, 2))


def _pattern(text: str, shown: str) -> Pattern:
    v6 = ":" in text
    base, highest, count = (16, 0xFFFF, 8) if v6 else (10, 255, 4)
    texts = _v6_parts(text) if v6 else text.split(".")
    ranges = [_range(part, base, highest) for part in texts]
    if len(ranges) != count or None in ranges:
        raise ConfigError(
            "whiteRemoteAddress", shown, "invalid address pattern: expected 1.2.3.4, 1.2.3.*, 1.2.3.1-20 or 1.2.3.{4,5}"
        )
    wildcards = [number for number, part in enumerate(texts) if part == "*" or "-" in part]
    if wildcards and any(part != "*" for part in texts[wildcards[0] + 1 :]):
        raise ConfigError("whiteRemoteAddress", shown, "invalid address pattern: only * may follow a * or a range")
    return tuple(part_range for part_range in ranges if part_range is not None)


def _v6_parts(text: str) -> list[str]:
    """Return the parts of an IPv6 address, with `::` expanded."""
    if "::" not in text:
        return text.split(":")
    left, _, right = text.partition("::")
    before, after = (side.split(":") if side else [] for side in (left, right))
    return [*before, *["0"] * (8 - len(before) - len(after)), *after]


def _range(part: str, base: int, highest: int) -> tuple[int, int] | None:
    """Return the bounds of a part, None if it is invalid."""
    if part == "*":
        return (0, highest)
    low, _, high = part.partition("-")
    digits = re.compile(r"[0-9a-fA-F]{1,4}\Z" if base == 16 else r"[0-9]{1,3}\Z")
    if not digits.match(low) or ("-" in part and not digits.match(high)):
        return None
    first = int(low, base)
    last = int(high, base) if high else first
    return (first, last) if first <= last <= highest else None
