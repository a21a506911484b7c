"""Names of the versions that clients and servers send as numbers. [MQVersion]

The numbers count the releases and snapshots of RocketMQ from 3.0.0 on in Java's order, including versions that never existed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

HIGHER = "HIGHER_VERSION"  # every number after the list's last


def version_name(number: int) -> str:
    """Return the name of a version, for example `V4_9_4` of 401."""
    names = _names()
    return names[number] if 0 <= number < len(names) else HIGHER


def release_number(text: str) -> int | None:
    """Return the number of a release, for example 401 of `4.9.4`; None if the list does not have it."""
    return _numbers().get(f"V{text.removeprefix('v').replace('.', '_')}")


@cache
def _numbers() -> dict[str, int]:
    return {name: number for number, name in enumerate(_names())}


@cache
def _names() -> tuple[str, ...]:
    return tuple(_numbered())


def _numbered() -> Iterator[str]:
    yield from ("V3_0_0_SNAPSHOT", "V3_0_0_ALPHA1")
    yield from (f"V3_0_0_BETA{beta}" for beta in range(1, 6))
    for beta in range(6, 10):
        yield from _with_snapshot(f"V3_0_0_BETA{beta}")
    yield "V3_0_0_FINAL"
    for major, minor in ((major, minor) for major in (3, 4, 5) for minor in range(10)):
        # 3.0.1 to 3.0.15; 3.3 to 3.9 begin with patch 1.
        first = 1 if major == 3 and minor not in (1, 2) else 0
        last = 15 if (major, minor) == (3, 0) else 9
        for patch in range(first, last + 1):
            yield from _with_snapshot(f"V{major}_{minor}_{patch}")


def _with_snapshot(name: str) -> tuple[str, str]:
    return f"{name}_SNAPSHOT", name
