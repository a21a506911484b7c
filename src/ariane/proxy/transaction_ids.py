"""Ids of transactions: the message id, and where the half message is stored. A commit needs nothing that a restart would lose.

    <message id>:<offset in the half queue>:<offset in the commit log>:<broker>

5.3.3 gives the message id, and remembers the offsets for 30 seconds. Clients return the id without looking at it.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote

from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode


class HalfMessageRef(NamedTuple):
    """A half message."""

    message_id: str
    queue_offset: int
    log_offset: int
    broker: str
    """Empty: the only one."""


def transaction_id(message_id: str, queue_offset: int, log_offset: int, broker: str) -> str:
    """Return the id of a transaction."""
    return f"{message_id}:{queue_offset}:{log_offset}:{quote(broker, safe='')}"


def parse_transaction_id(text: str) -> HalfMessageRef:
    """Return the half message of a transaction. Raise CallRefused if the text is not an id of this server."""
    if not text.strip():
        raise CallRefused(StatusCode.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
    message_id, *offsets = text.rsplit(":", 3)
    broker = unquote(offsets.pop()) if offsets else ""
    if len(offsets) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in offsets):
        text = f"Invalid transaction id {text[:120]!r}: expected that of a sent message"
        raise CallRefused(StatusCode.INVALID_TRANSACTION_ID, text)
    return HalfMessageRef(message_id, int(offsets[0]), int(offsets[1]), broker)
