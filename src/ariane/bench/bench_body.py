"""Bodies of benchmark messages: random bytes, in mode both preceded by what the consumer needs to measure.

    0  run id, 8 bytes   8  time of sending (monotonic, ns), 8 bytes   16  number of the sender, 2   18  sequence number, 6   24 …

Random bytes cannot be compressed, so brokers and networks carry what was requested.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

STAMP = struct.Struct(">8sqHHI")
STAMP_BYTES = STAMP.size


class Stamp(NamedTuple):
    """Header of a body."""

    sent_s: float  # when the message was due, by the monotonic clock of this machine, in seconds
    sender: int  # number of the sender
    sequence: int  # number of the message at its sender, from 0


class BodyFactory:
    """Makes bodies of one size.

    Args:
        size: Size in bytes; with a run id at least STAMP_BYTES.
        run_id: Eight bytes that identify this run; None for bodies without a header.
        sender: Number of the sender.
    """

    def __init__(self, size: int, run_id: bytes | None, sender: int) -> None:
        self._run_id = run_id
        self._sender = sender
        self._filling = os.urandom(size if run_id is None else size - STAMP_BYTES)

    def make(self, sent_s: float, sequence: int) -> bytes:
        if self._run_id is None:
            return self._filling
        high, low = divmod(sequence, 1 << 32)
        return STAMP.pack(self._run_id, round(sent_s * 1e9), self._sender, high, low) + self._filling


def parse_stamp(body: bytes, run_id: bytes) -> Stamp | None:
    """Return the header of a body; None if the message belongs to another run."""
    if len(body) < STAMP_BYTES:
        return None
    found, sent_ns, sender, high, low = STAMP.unpack_from(body)
    return Stamp(sent_ns / 1e9, sender, (high << 32) + low) if found == run_id else None
