"""Durations and numbers of things as texts for people."""

from __future__ import annotations

# Unit and its length in milliseconds, longest first.
UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def duration_text(ms: float) -> str:
    """Return a duration with its two largest units, rounded down from whole seconds: `3 h 12 min`."""
    rest, sign = abs(ms), "-" if ms < 0 else ""
    if rest < 1_000:
        return f"{sign}{rest:.0f} ms"
    if rest < 60_000:
        return f"{sign}{rest / 1000:.1f} s".replace(".0 s", " s")
    rest = round(rest, -3)  # a clock that is 1 h 30 min ahead differs by some ms less, the time of a send
    parts: list[str] = []
    for unit, length in UNITS:
        count = int(rest // length)
        rest -= count * length
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return sign + " ".join(filter(None, parts))


def count_text(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 message`, `1,200 messages`. `plural`: if it is not the noun with an "s"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
