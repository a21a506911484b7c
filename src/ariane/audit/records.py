"""Records of a server's audit log: their bounds, and what a line says without being decoded. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

NAME_MAX = 255  # characters of account, certificate, address and request
TEXT_MAX = 1_000  # characters of resource and reason
# Most characters of the fields of an `AuditRecord`.
LIMITS = {
    **dict.fromkeys(("request", "account", "certificate", "address"), NAME_MAX),
    **dict.fromkeys(("resource", "reason"), TEXT_MAX),
}

_NUMBER = re.compile(rb'\{"number":(\d+),')


class RequestAccount(NamedTuple):
    """The account of a request, and how it is proven: "signature", "certificate", or empty: not at all."""

    account: str
    proof: str = ""


def number_of(line: bytes) -> int:
    """Return the number of a line's record without decoding it; 0 for a line that a crash tore."""
    match = _NUMBER.match(line)
    return int(match[1]) if match else 0
