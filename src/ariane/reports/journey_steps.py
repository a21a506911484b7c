"""Steps of a message from the pipeline's tables: rows of `journeys`, with times corrected by the table `clocks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from ariane.clock import ms_of
from ariane.model.topic import DLQ_PREFIX
from ariane.reports.trace_steps import (
    FAILED,
    SUCCESS,
    UNKNOWN,
    StepKind,
    StepSource,
    TraceStep,
    in_order,
)

TABLES_SOURCE = frozenset({StepSource.TABLES})
HALF_MESSAGE = 1  # message type of a transaction


def journey_steps(rows: Iterable[Mapping[str, Any]]) -> list[TraceStep]:
    """Return the steps of one message from its rows of JOURNEYS, one row per consumer group."""
    # A dict as an ordered set: the rows of several groups repeat the steps of the producer and the broker.
    steps: dict[TraceStep, None] = {}
    for row in rows:
        steps |= dict.fromkeys(row_steps(row))
    return in_order(steps)


def row_steps(row: Mapping[str, Any]) -> Iterator[TraceStep]:
    """Yield the steps of the producer and the broker, and those of one consumer group, each in the order of the row."""
    yield from _producer_steps(row)
    yield from _broker_steps(row)
    yield from _deliveries(row)


def _producer_steps(row: Mapping[str, Any]) -> Iterable[TraceStep]:
    shift_ms, error_ms = row["producer_clock_ms"], row["producer_clock_error_ms"]
    error_ms = None if shift_ms is None else error_ms
    group, host = row["producer_group"], row["producer_host"]
    if row["sent_at"] is not None:
        sent_ms = ms_of(row["sent_at"])
        cost_ms = row["send_cost_ms"]
        yield TraceStep(
            kind=StepKind.SEND,
            start_ms=sent_ms + (shift_ms or 0),
            end_ms=sent_ms + (shift_ms or 0) + max(0, cost_ms or 0),
            error_ms=error_ms,
            client_ms=sent_ms,
            result=SUCCESS if row["sent_ok"] else FAILED,
            group=group,
            host=host,
            cost_ms=cost_ms,
            topic=row["topic"],
            offset_message_id=row["offset_message_id"] or "",
            note=f"{row['sends']} sends were traced" if row["sends"] and row["sends"] > 1 else "",
            sources=TABLES_SOURCE,
        )
    moments = [
        (StepKind.DECISION, transaction["decided_at"], transaction["state"], transaction)
        for transaction in row["transactions"] or ()
    ]
    if row["recalled_at"] is not None:
        moments.append((StepKind.RECALL, row["recalled_at"], SUCCESS, {"host": host, "from_check": False}))
    for kind, moment, result, facts in moments:
        yield TraceStep(
            kind=kind,
            start_ms=ms_of(moment) + (shift_ms or 0),
            end_ms=ms_of(moment) + (shift_ms or 0),
            error_ms=error_ms,
            client_ms=ms_of(moment),
            result=result or UNKNOWN,
            group=group,
            host=facts["host"],
            from_check=bool(facts["from_check"]),
            sources=TABLES_SOURCE,
        )


def _broker_steps(row: Mapping[str, Any]) -> Iterable[TraceStep]:
    host = row["store_host"]
    if row["stored_at"] is not None:
        error_ms: int | None = 0
        if not row["stored_exact"]:
            # An estimated store time is the arrival of the response: the record was stored up to the duration of the send earlier.
            is_bounded = row["producer_clock_error_ms"] is not None and row["send_cost_ms"] is not None
            error_ms = row["producer_clock_error_ms"] + row["send_cost_ms"] if is_bounded else None
        yield _record_step(
            StepKind.STORE,
            row["stored_at"],
            error_ms=error_ms,
            host=host,
            offset_message_id=row["offset_message_id"] or "",
            topic=None if row["message_type"] == HALF_MESSAGE or row["delay_ms"] else row["topic"],
            note="" if row["stored_exact"] else "estimated from the producer's clock",
        )
    if row["available_at"] is not None and row["delay_ms"]:
        yield _record_step(
            StepKind.AVAILABLE, row["available_at"], host=host, topic=row["topic"], cost_ms=row["delay_ms"]
        )
    if row["dead_lettered_at"] is not None:
        group = row["consumer_group"]
        topic = f"{DLQ_PREFIX}{group}"
        yield _record_step(StepKind.DEAD_LETTER, row["dead_lettered_at"], host=host, topic=topic, group=group)


def _record_step(kind: StepKind, at: datetime, *, error_ms: int | None = 0, **facts: Any) -> TraceStep:
    return TraceStep(kind=kind, start_ms=ms_of(at), end_ms=ms_of(at), error_ms=error_ms, sources=TABLES_SOURCE, **facts)


def _deliveries(row: Mapping[str, Any]) -> Iterable[TraceStep]:
    attempts = row["deliveries"] or ()
    for number, attempt in enumerate(attempts):
        began, ended, cost_ms = attempt["started_at"], attempt["ended_at"], attempt["cost_ms"]
        if began is None and ended is None:
            continue
        shift_ms = attempt["clock_ms"] or 0
        client_ms = ms_of(began) if began is not None else ms_of(ended) - max(0, cost_ms or 0)
        notes = ["its begin was not reported"] if began is None else []
        if number == 0 and row["clock_skew"]:
            notes.append("contradictory clocks")
        if number == 0 and row["attempts"] and row["attempts"] > len(attempts):
            notes.append(f"{row['attempts'] - len(attempts):,} attempts in between are not in the table")
        yield TraceStep(
            kind=StepKind.DELIVERY,
            start_ms=client_ms + shift_ms,
            end_ms=None if ended is None else max(client_ms, ms_of(ended)) + shift_ms,
            error_ms=None if attempt["clock_ms"] is None else attempt["clock_error_ms"],
            client_ms=client_ms,
            result=attempt["result"] or UNKNOWN,
            group=row["consumer_group"],
            host=attempt["host"],
            cost_ms=cost_ms,
            retry_times=attempt["retry_times"],
            request_id=attempt["request_id"] or "",
            note=", ".join(notes),
            sources=TABLES_SOURCE,
        )
