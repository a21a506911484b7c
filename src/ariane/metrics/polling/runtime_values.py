"""Numbers in the texts of a broker's runtime information (request 28)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

SIZE = r"(?<![\d.])(\d{1,30}(?:\.\d+)?) ([KMGTPE]i)?B"
_UNITS = {"": 1} | {f"{letter}i": 1 << (10 * power) for power, letter in enumerate("KMGTPE", 1)}


def number(table: Mapping[str, str], key: str) -> float | None:
    """Return the number of a key; None if it is missing, not a finite number, or -1 for unknown."""
    text = table.get(key, "")
    # Text such as "inf", or an integer of 400 digits, would fail wherever it is rounded, charted or exported.
    if finite(text) is None:
        return None
    value = int(text) if text.lstrip("-").isdecimal() else float(text)
    # Brokers write -1 for a time or position that they do not know yet.
    return None if value == -1 else value


def finite(text: str) -> float | None:
    """Return the number of a text; None if it is not a number, or not a finite one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def size(text: str) -> float | None:
    """Return the bytes of a text such as `1.5 KiB`."""
    parts = re.search(SIZE, text)
    return None if parts is None else float(parts[1]) * _UNITS[parts[2] or ""]
