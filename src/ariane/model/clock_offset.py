"""Offset of a broker's clock from a client's, as bounds, and the text in which trace messages carry it.

    CLOCK_OFFSETS = 10.0.0.1:10911 -1203 -1198,10.0.0.2:10911 -1201 -1195

A property of the trace message: per broker address the bounds of (broker's clock - client's clock) in ms, for the records of that
message. Readers of traces decode the body only, so those that do not know the property ignore it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PROPERTY = "CLOCK_OFFSETS"
ENTRY_END, FIELD_END = ",", " "
# Characters of the text: together with the greatest `TraceSettings.keys_max` it has to fit into the properties of a message.
TEXT_MAX = 500
BOUND_MAX_MS = 1 << 53  # of a greater number a time could not be computed


class ClockOffset(NamedTuple):
    """Bounds of broker's clock - client's clock.

    Attributes:
        lower_ms: Lower bound.
        upper_ms: Upper bound.
    """

    lower_ms: int
    upper_ms: int

    @property
    def offset_ms(self) -> int:
        """The estimate: the middle of the bounds."""
        return (self.lower_ms + self.upper_ms) // 2

    @property
    def error_ms(self) -> int:
        """Maximum error of the estimate."""
        return self.upper_ms - self.offset_ms


def to_text(offsets: Iterable[tuple[str, ClockOffset]]) -> str:
    """Return the property's value, with as many of the first entries as fit into TEXT_MAX."""
    text = ""
    for addr, (lower_ms, upper_ms) in offsets:
        entry = f"{addr}{FIELD_END}{lower_ms}{FIELD_END}{upper_ms}"
        longer = f"{text}{ENTRY_END}{entry}" if text else entry
        if len(longer) > TEXT_MAX:
            break
        text = longer
    return text


def of_text(text: str) -> dict[str, ClockOffset]:
    """Return the offsets by broker address; entries that cannot be read are ignored, and a text that no client writes.

    A text has at most TEXT_MAX characters: each record of its message is compared with all entries.
    """
    offsets: dict[str, ClockOffset] = {}
    if len(text) > TEXT_MAX:
        return offsets
    for entry in text.split(ENTRY_END):
        fields = entry.split(FIELD_END)
        try:
            addr, lower_ms, upper_ms = fields[0], int(fields[1]), int(fields[2])
        except (ValueError, IndexError):
            continue
        if -BOUND_MAX_MS <= lower_ms <= upper_ms <= BOUND_MAX_MS:
            offsets[addr] = ClockOffset(lower_ms, upper_ms)
    return offsets


def to_broker(offsets: Mapping[str, ClockOffset], addr: str) -> ClockOffset | None:
    """Return the offset to the broker `addr`; otherwise, as the brokers' clocks should agree, what holds for all of them.

    Returns:
        None if the brokers' clocks do not agree, or no offset is known.
    """
    if addr in offsets or not offsets:
        return offsets.get(addr)
    lower_ms = max(offset.lower_ms for offset in offsets.values())
    upper_ms = min(offset.upper_ms for offset in offsets.values())
    return ClockOffset(lower_ms, upper_ms) if lower_ms <= upper_ms else None
