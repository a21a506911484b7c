"""Message ids: the broker's offset id and the client's unique id (UNIQ_KEY).

    offset id    store IP (4|16)  port (4)  commit-log offset (8)                                    32 | 56 hex digits
    unique id    IP (4|16)  pid (2)  process constant (4)  ms since the month began (4)  counter (2) 32 | 56 hex digits
    recall handle of 5.x   base64url of `v1 topic brokerName deliveryTime uniqueKey`

The first two have the same length, so only the context distinguishes them.
[MessageDecoder, MessageClientIDSetter, RecallMessageHandle]
"""

from __future__ import annotations

import base64
import binascii
import itertools
import os
import secrets
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address

from ariane.errors import ProtocolError
from ariane.model import host


def offset_message_id(store_host: bytes, offset: int) -> str:
    """Return the id of the record at commit-log `offset` of the broker whose packed address is `store_host`."""
    return f"{_hex(store_host)}{offset:016X}"


@lru_cache(maxsize=1024)
def _hex(store_host: bytes) -> str:
    return store_host.hex().upper()


def parse_offset_message_id(text: str) -> tuple[str, int]:
    """Return `(host:port, commit-log offset)` of an offset id. Raise ProtocolError if it is malformed."""
    if len(text) not in (32, 56):
        raise ProtocolError(f"Invalid message id {text!r}: expected 32 or 56 hex digits")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise ProtocolError(f"Invalid message id {text!r}: expected hex digits only") from None
    return host.text(raw[:-8]), int.from_bytes(raw[-8:], "big")


def month_start_ms(now_ms: int) -> int:
    """Return the start of the current month in the local time zone, which Java's unique ids count from."""
    now = datetime.fromtimestamp(now_ms / 1000).astimezone()
    return int(datetime(now.year, now.month, 1).astimezone().timestamp() * 1000)


def unique_ids(
    now_ms: Callable[[], int],
    *,
    ip: str,
    pid: int | None = None,
    process: bytes | None = None,
) -> Callable[[], str]:
    """Return a generator function of unique ids for this process.

    The counter wraps at 65,536: ids of one process are distinct below that many per millisecond.

    Args:
        now_ms: Wall clock.
        ip: Address of this machine.
        pid: Process id; a parameter for tests.
        process: 4 bytes that distinguish processes with the same pid; a parameter for tests.
    """
    prefix = (
        (
            ip_address(ip).packed
            + ((pid if pid is not None else os.getpid()) & 0xFFFF).to_bytes(2, "big")
            + (process if process is not None else secrets.token_bytes(4))
        )
        .hex()
        .upper()
    )
    counter = itertools.count()
    start = month_start_ms(now_ms())
    next_month = start + 32 * 86_400_000
    formatted_ms, head = -1, ""  # what the ids of one millisecond begin with

    def make() -> str:
        nonlocal start, next_month, formatted_ms, head
        now = now_ms()
        if now != formatted_ms:
            if now >= next_month or now - start > 28 * 86_400_000:
                start = month_start_ms(now)
            formatted_ms, head = now, f"{prefix}{max(now - start, 0) & 0xFFFFFFFF:08X}"
        return f"{head}{next(counter) & 0xFFFF:04X}"

    return make


RECALL_VERSION = "v1"


def recall_handle(topic: str, broker: str, due_ms: int, unique_key: str) -> str:
    """Return the handle that cancels a delayed message, as clients of 5.x receive it in the response to their send."""
    text = f"{RECALL_VERSION} {topic} {broker} {due_ms} {unique_key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def recalled_key(name: str) -> str:
    """Return the unique key in a recall handle, or `name` itself if it is not a handle."""
    parts = _recall_parts(name)
    return parts[3] if parts else name


def recall_broker(name: str) -> str:
    """Return the broker in a recall handle, empty if it is not a handle."""
    parts = _recall_parts(name)
    return parts[1] if parts else ""


def _recall_parts(name: str) -> list[str]:
    try:
        text = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
    except (binascii.Error, ValueError):
        return []
    version, *parts = text.split(" ")
    return parts if version == RECALL_VERSION and len(parts) == 4 else []
