"""Addresses that need no signature, as plain_acl.yml lists them. [RemoteAddressStrategyFactory]

    (empty)                         nobody
    *   *.*.*.*   *:*:*:*:*:*:*:*   everybody
    1.2.3.4   fe80::1               that address
    1.2.3.4,1.2.3.5                 any of them
    1.2.3.{4,5,6}                   braces in the last part
    1.2.3.*   1.2.*.*               all from the first * on
    1.2.3.1-20   1.2.1-5.*          a range in one part, behind it only *

A pattern becomes one (low, high) for each part of an address: four for IPv4, eight (hexadecimal) for IPv6.
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

PATTERNS_MAX = 10_000


def split_patterns(text: str) -> list[str]:
    """The patterns of a list that is joined by commas; those inside braces join nothing."""
    return [one.strip() for one in _OUTSIDE_BRACES.split(text) if one.strip()]


def parse_patterns(text: str) -> tuple[Pattern, ...]:
    """The patterns of a text. ConfigError says which is none."""
    found: list[Pattern] = []
    for one in split_patterns(text):
        if one in _ALL_FORMS:
            found += ALL_ADDRESSES
        elif braces := _BRACES.match(one):
            found += [_pattern(braces[1] + last.strip(), one) for last in braces[2].split(",")]
        else:
            found.append(_pattern(one, one))
    if len(found) > PATTERNS_MAX:
        raise ConfigError("whiteRemoteAddress", f"{len(found)} patterns", f"use at most {PATTERNS_MAX}")
    return tuple(found)


def matches(patterns: tuple[Pattern, ...], ip: str) -> bool:
    """Whether one of the patterns holds the address."""
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
    address = ip_address(ip.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    data = address.packed
    if len(data) == 4:
        return tuple(data)
    return tuple(int.from_bytes(data[at : at + 2], "big") for at in range(0, 16, 2))


def _pattern(text: str, shown: str) -> Pattern:
    v6 = ":" in text
    base, most, count = (16, 0xFFFF, 8) if v6 else (10, 255, 4)
    texts = _v6_parts(text) if v6 else text.split(".")
    ranges = [_range(part, base, most) for part in texts]
    if len(ranges) != count or None in ranges:
        raise ConfigError(
            "whiteRemoteAddress", shown, "it is no address pattern: use 1.2.3.4, 1.2.3.*, 1.2.3.1-20 or 1.2.3.{4,5}"
        )
    wide = [number for number, part in enumerate(texts) if part == "*" or "-" in part]
    if wide and any(part != "*" for part in texts[wide[0] + 1 :]):
        raise ConfigError("whiteRemoteAddress", shown, "behind a * or a range only * may follow")
    return tuple(one for one in ranges if one is not None)


def _v6_parts(text: str) -> list[str]:
    """The parts of an IPv6 text, `::` filled up."""
    if "::" not in text:
        return text.split(":")
    left, _, right = text.partition("::")
    before, after = (side.split(":") if side else [] for side in (left, right))
    return [*before, *["0"] * (8 - len(before) - len(after)), *after]


def _range(part: str, base: int, most: int) -> tuple[int, int] | None:
    if part == "*":
        return (0, most)
    low, _, high = part.partition("-")
    digits = re.compile(r"[0-9a-fA-F]{1,4}\Z" if base == 16 else r"[0-9]{1,3}\Z")
    if not digits.match(low) or ("-" in part and not digits.match(high)):
        return None
    first = int(low, base)
    last = int(high, base) if high else first
    return (first, last) if first <= last <= most else None
