"""Ids of transactions: the message id, and where the half message is stored. A commit needs nothing that a restart would lose.

    <message id>:<offset in the half queue>:<offset in the commit log>

5.3.3 gives the message id, and remembers the offsets for 30 seconds. Clients return the id without looking at it.
"""

from __future__ import annotations

from typing import NamedTuple

from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode


class HalfMessageRef(NamedTuple):
    """A half message."""

    message_id: str
    queue_offset: int
    log_offset: int


def transaction_id(message_id: str, queue_offset: int, log_offset: int) -> str:
    """Return the id of a transaction."""
    return f"{message_id}:{queue_offset}:{log_offset}"


def parse_transaction_id(text: str) -> HalfMessageRef:
    """Return the half message of a transaction. Raise CallRefused if the text is not an id of this server."""
    if not text.strip():
        raise CallRefused(StatusCode.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
    message_id, *offsets = text.rsplit(":", 2)
    if len(offsets) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in offsets):
        text = f"Invalid transaction id {text[:120]!r}: expected that of a sent message"
        raise CallRefused(StatusCode.INVALID_TRANSACTION_ID, text)
    return HalfMessageRef(message_id, int(offsets[0]), int(offsets[1]))
