"""Merges the steps of two sources: the trace topic is newest, the pipeline's tables know clocks better and keep more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from ariane.reports.trace_steps import UNKNOWN, StepKind, TraceStep, in_order


def merge_steps(live: Iterable[TraceStep], tables: Iterable[TraceStep]) -> list[TraceStep]:
    """Return the steps of both sources in order; one that both have is in the result once, with both sources.

    Every step of either source is in the result: steps of one source are never merged with each other.
    """
    merged = list(live)
    # Steps of kinds that are never the same have no identity in common.
    by_identity: dict[tuple[object, ...], deque[int]] = {}
    for index, step in enumerate(merged):
        for identity in step.identities:
            by_identity.setdefault(identity, deque()).append(index)
    unmatched = set(range(len(merged)))
    for step in tables:
        twins = [_first(by_identity[identity], unmatched) for identity in step.identities if identity in by_identity]
        twin = min((index for index in twins if index is not None), default=None)
        if twin is None:
            merged.append(step)
        else:
            unmatched.remove(twin)
            merged[twin] = _combine(merged[twin], step)
    return in_order(merged)


def _first(indices: deque[int], unmatched: set[int]) -> int | None:
    """Return the first index that is unmatched, and drop those before it."""
    while indices and indices[0] not in unmatched:
        indices.popleft()
    return indices[0] if indices else None


def _combine(live: TraceStep, other: TraceStep) -> TraceStep:
    """Return the live step with what the other one knows better."""
    facts = {
        name: value
        for name in ("end_ms", "group", "host", "cost_ms", "retry_times", "topic", "position", "offset_message_id")
        if getattr(live, name) in (None, "") and (value := getattr(other, name)) not in (None, "")
    }
    if other.error_ms is not None and (live.error_ms is None or other.error_ms < live.error_ms):
        facts |= {"start_ms": other.start_ms, "end_ms": other.end_ms, "error_ms": other.error_ms}
        if live.kind is StepKind.DELIVERY and other.end_ms is None and live.end_ms is not None:
            facts["end_ms"] = other.start_ms + live.end_ms - live.start_ms
    elif facts.get("end_ms") is not None and other.end_ms is not None:
        # Both ends of a step are by the same clock, so the other source contributes the duration only.
        facts["end_ms"] = live.start_ms + other.end_ms - other.start_ms
    if live.result in ("", UNKNOWN) and other.result:
        facts["result"] = other.result
    note = live.note
    if live.end_ms is None and other.end_ms is not None:
        note = other.note
    return msgspec.structs.replace(live, **facts, note=note, sources=live.sources | other.sources)
