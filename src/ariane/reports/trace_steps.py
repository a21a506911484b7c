"""The steps of a message: sends, stored copies, deliveries, decisions. Both sources of traces are converted to them.

Times are ms since the epoch by the broker's clock as far as the offset of the client's clock is known (`error_ms`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

SUCCESS, FAILED, UNKNOWN = "success", "failed", "unknown"

# Results that clients report, by context code. [ConsumeReturnType]
CALL_RESULTS = {0: SUCCESS, 1: "timeout", 2: "exception", 3: "null", 4: FAILED}


class StepKind(Enum):
    """What happened. Simultaneous steps are listed in this order, which is the causal one."""

    SEND = "send"
    STORE = "store"
    DECISION = "decision"
    RECALL = "recall"
    AVAILABLE = "available"
    DELIVERY = "delivery"
    DEAD_LETTER = "dead letter"


class StepSource(Enum):
    """Where a step was found."""

    TRACE_TOPIC = "trace topic"
    TABLES = "pipeline tables"
    BROKER = "broker"


CAUSAL_ORDER = {kind: number for number, kind in enumerate(StepKind)}


class TraceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a message."""

    kind: StepKind
    """What happened."""
    start_ms: int
    """When it began: by the broker's clock if `error_ms` is not None, otherwise by the client's."""
    end_ms: int | None
    """When it ended; equal to `start_ms` for an instant; None if its end was not reported."""
    error_ms: int | None
    """Maximum error of the times by the broker's clock; 0: the broker's own time; None: offset of the client's clock unknown."""
    client_ms: int | None = None
    """Begin by the client's clock, as reported; None for steps of the broker."""
    result: str = ""
    """success, failed, timeout, exception, null or unknown; of a decision its transaction state; empty for steps of the broker."""
    group: str | None = None
    """Producer or consumer group; None for steps of the broker, and if an old client did not report it."""
    host: str | None = None
    """Address of the client or broker; None if unknown."""
    cost_ms: int | None = None
    """Duration that the client measured, or for which the broker held the message back; None if it has none."""
    retry_times: int | None = None
    """Number of earlier deliveries to the group; None for other steps, and if unknown."""
    request_id: str = ""
    """Joins the records of a delivery; empty for other steps."""
    topic: str | None = None
    """Topic that stores the record; of a send its target; None for other steps of clients."""
    position: str = ""
    """Broker, queue and offset of the record; empty if unknown."""
    offset_message_id: str = ""
    """Offset id of the record; empty if unknown."""
    from_check: bool = False
    """Whether a decision answers a check by the broker."""
    note: str = ""
    """A doubt about this step, for people; usually empty."""
    sources: frozenset[StepSource]
    """Where it was found; two if both sources agree."""

    @property
    def identities(self) -> frozenset[tuple[object, ...]]:
        """Names of the step: two steps of different sources are the same if they share one."""
        if self.kind in (StepKind.STORE, StepKind.AVAILABLE, StepKind.DEAD_LETTER):
            # The tables have exact times of records, or only the id of the record that the send created.
            exact = {("at", self.start_ms)} if self.error_ms == 0 else set()
            return frozenset(exact | ({("record", self.offset_message_id)} if self.offset_message_id else set()))
        if self.kind is StepKind.DELIVERY and self.request_id:
            return frozenset({("call", self.request_id)})
        return frozenset({(self.kind.value, self.group, self.client_ms)})

    @property
    def is_problem(self) -> bool:
        """Whether the step failed or led to a dead letter."""
        return self.kind is StepKind.DEAD_LETTER or self.result in (
            FAILED, "timeout", "exception", "null", "ROLLBACK_MESSAGE",
        )  # fmt: skip

    @property
    def last_ms(self) -> int:
        """Return its last known instant."""
        return self.start_ms if self.end_ms is None else max(self.start_ms, self.end_ms)


def in_order(steps: Iterable[TraceStep]) -> list[TraceStep]:
    """Return steps in chronological order, simultaneous ones in causal order."""
    return sorted(
        steps,
        key=lambda step: (step.start_ms, CAUSAL_ORDER[step.kind], step.group or "", step.host or "", step.last_ms),
    )
