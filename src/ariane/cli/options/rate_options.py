"""Parses rates of messages: `500/s`, `30/m`."""

from __future__ import annotations

import re

from ariane.cli.options.shared_options import NAME_MAX
from ariane.errors import UsageError

RATE_MAX = 1e9  # messages per second: more than any cluster accepts


def parse_rate(text: str) -> float:
    """Return messages per second of `500/s`, `500` or `30/m`.

    Raises:
        UsageError: the text has another form, or the rate is not positive.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/(s|m))?", text.strip())
    if match is None or not 0 < float(match[1]) <= RATE_MAX:
        shown = text if len(text) <= NAME_MAX else f"{text[:40]}…"
        raise UsageError("--rate", shown, "expected messages per second (500/s) or per minute (30/m)")
    return float(match[1]) / (60 if match[2] == "m" else 1)
