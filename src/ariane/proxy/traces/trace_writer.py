"""Trace records of a server on their way to the trace topic: bounded, in batches, one trace message per client and batch.

    MessageTraces ─ record ─▶ pending of its client ─ every FLUSH_S ─▶ trace messages, sent in the name of the client
                                └ no room: dropped and counted

Readers take the client's address from the trace message that carries a record, so the records of two clients never share one.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ariane.clock import Clock
from ariane.errors import ArianeError
from ariane.model.trace_event import TraceEvent
from ariane.net.replies import Peer
from ariane.protocol import trace_codec
from ariane.protocol.trace_batches import TraceEntry, keys_text, next_batch

log = logging.getLogger("ariane.proxy")

FLUSH_S = 0.5
PENDING_MAX = 65_536  # records
PENDING_BYTES_MAX = 64 * 1024 * 1024  # of them and their keys; most records have some 250
BODY_MAX = 118_000  # bytes of records in a trace message, as in Java
KEYS_MAX = 30_000  # bytes of its keys: all properties together stay below 32,767
WARNING_INTERVAL_S = 60.0


class TraceMessage(NamedTuple):
    """A message for the trace topic."""

    body: bytes
    keys: tuple[str, ...]
    client: Peer
    """Whose messages the records are about."""


class TraceStore(Protocol):
    """Stores trace messages."""

    async def store(self, message: TraceMessage) -> None:
        """Store a message. Raise ArianeError if that failed; it is repeated later."""
        ...


@dataclass
class _Pending:
    """Records of one client."""

    client: Peer
    entries: deque[TraceEntry] = field(default_factory=deque)


class TraceWriter:
    """Collects records and writes them."""

    def __init__(self, store: TraceStore, clock: Clock) -> None:
        self.written = 0
        """Number of records in stored trace messages."""
        self.dropped = 0
        """Number of records for which there was no room, or that could not be stored before the server stopped."""
        self._store = store
        self._clock = clock
        self._pending: dict[bytes, _Pending] = {}  # by address
        self._count = 0  # of pending records
        self._bytes = 0  # of pending records and their keys
        self._warned_s = -WARNING_INTERVAL_S  # monotonic time of the last warning

    def add(self, client: Peer, event: TraceEvent) -> None:
        """Write a record soon."""
        self.add_entry(client, TraceEntry(trace_codec.encode(event).encode(), keys_text(event), 1))

    def add_entry(self, client: Peer, entry: TraceEntry) -> None:
        """Write encoded records soon."""
        if self._count >= PENDING_MAX or self._bytes >= PENDING_BYTES_MAX:
            self._drop(entry.records, "there was no room for them")
            return
        pending = self._pending.get(client.packed)
        if pending is None:
            pending = self._pending[client.packed] = _Pending(client)
        pending.entries.append(entry)
        self._count += entry.records
        self._bytes += _size(entry)

    async def flush(self) -> None:
        """Write what is pending. Records that cannot be stored stay pending."""
        for address, pending in list(self._pending.items()):
            while pending.entries:
                batch = next_batch(pending.entries, BODY_MAX, KEYS_MAX)
                try:
                    await self._store.store(TraceMessage(batch.body, batch.keys, pending.client))
                except ArianeError as error:
                    self._warn("Could not store trace records, retrying: %s", error)
                    return
                for _ in range(batch.entries):
                    self._bytes -= _size(pending.entries.popleft())
                self._count -= batch.records
                self.written += batch.records
            del self._pending[address]

    async def close(self) -> None:
        """Write what is pending at last."""
        await self.flush()
        if self._count:
            self._drop(self._count, "they could not be stored before the end")
            self._pending.clear()
            self._count = self._bytes = 0

    def _drop(self, count: int, reason: str) -> None:
        self.dropped += count
        self._warn("%d trace records are lost so far: %s", self.dropped, reason)

    def _warn(self, text: str, *facts: object) -> None:
        """Log a warning, at most one per WARNING_INTERVAL_S."""
        now_s = self._clock.monotonic()
        if now_s - self._warned_s >= WARNING_INTERVAL_S:
            self._warned_s = now_s
            log.warning(text, *facts)


def _size(entry: TraceEntry) -> int:
    return len(entry.text) + len(entry.keys)
