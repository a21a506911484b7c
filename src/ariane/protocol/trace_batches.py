"""Batches of trace records: which records and keys one trace message takes. Pure. [AsyncTraceDispatcher]

TraceEvent ─→ TraceEntry: its text (`trace_codec`) and keys ─→ TraceBatch: the body and the keys of one trace message
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from ariane.model.trace_event import TraceEvent
from ariane.protocol import trace_codec


def keys_text(event: TraceEvent) -> str:
    """Return the keys of a record, joined by spaces."""
    return " ".join(trace_codec.keys(event))


class TraceEntry(msgspec.Struct, frozen=True, gc=False):
    """Pending records: their texts, and the keys by which their trace message can be found."""

    text: bytes
    keys: str  # joined by spaces; the same key may be among them twice
    records: int


class TraceBatch(NamedTuple):
    """Contents of one trace message: the first `entries` pending entries with their records and keys."""

    entries: int
    records: int
    body: bytes
    keys: tuple[str, ...]
    dropped_keys: int


def to_entries(texts: Sequence[str], keys: Sequence[str]) -> list[TraceEntry]:
    """Return an entry for each record with its keys."""
    return [TraceEntry(text.encode(), key, 1) for text, key in zip(texts, keys, strict=True)]


def next_batch(entries: Iterable[TraceEntry], body_max: int, keys_max: int) -> TraceBatch:
    """Return as many of the first entries as fit into both limits, at least one.

    If a single entry has more keys than `keys_max`, the last ones are dropped; its ids come first.
    """
    texts: list[bytes] = []
    records = body_bytes = key_bytes = dropped_keys = 0
    keys: dict[str, None] = {}
    for entry in entries:
        new = dict.fromkeys(entry.keys.split())
        if not keys.keys().isdisjoint(new):
            new = {key: None for key in new if key not in keys}
        new_bytes = _size(new)
        if texts and (body_bytes + len(entry.text) > body_max or key_bytes + new_bytes > keys_max):
            break
        texts.append(entry.text)
        records += entry.records
        body_bytes += len(entry.text)
        if key_bytes + new_bytes <= keys_max:
            keys |= new
            key_bytes += new_bytes
            continue
        for key in new:
            size = _size([key])
            if key_bytes + size > keys_max:
                dropped_keys += 1
                continue
            keys[key] = None
            key_bytes += size
    return TraceBatch(len(texts), records, b"".join(texts), tuple(keys), dropped_keys)


def _size(keys: Collection[str]) -> int:
    """Return the bytes that keys take in a message, with the separator after each."""
    return len(" ".join(keys).encode()) + 1 if keys else 0
