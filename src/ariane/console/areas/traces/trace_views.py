"""View models of the area Trace."""

from __future__ import annotations

from ariane.console.web.form_fields import Name
from ariane.console.web.view_model import PartialView, View
from ariane.reports.trace_steps import StepKind, StepSource


class TraceForm(View):
    """Which traces to search."""

    q: Name = ""
    """Unique key, offset id or business key."""
    topic: Name = ""
    """Topic of the message; empty: any. Also finds messages by key that were not traced."""
    trace_topic: Name = ""
    """Topic with the traces; empty: that of the settings."""


class TraceStepView(View):
    """A step of a message."""

    number: int
    """Number in the order of time, from 1."""
    kind: StepKind
    """What happened."""
    start_ms: int
    """When it began, ms since the epoch: by the broker's clock if `error_ms` is known, otherwise by the client's."""
    end_ms: int | None
    """When it ended; null: its end was not reported."""
    elapsed_ms: int
    """Time since the first step."""
    error_ms: int | None
    """Maximum error of the times by the broker's clock; null: the offset of the client's clock is unknown."""
    cost_ms: int | None
    """Duration that the client measured, or for which the broker held the message back; null: none or unknown."""
    result: str
    """success, failed, timeout, exception, null, unknown; of a decision its transaction state; empty for steps of brokers."""
    group: str | None
    """Producer or consumer group; null: none or unknown."""
    host: str | None
    """Address of the client or broker; null: unknown."""
    attempt: int | None
    """Number of the delivery to the group, from 1; null for other steps, and if unknown."""
    topic: str | None
    """Topic that stores the record, or to which the message was sent; null: none or unknown."""
    position: str
    """Broker, queue and offset of the record; empty: none or unknown."""
    offset_message_id: str
    """Offset id of the record; empty: none or unknown."""
    from_check: bool
    """Whether a decision answers a check by the broker."""
    note: str
    """A doubt about the step; empty: none."""
    is_problem: bool
    """Whether it failed, or the message became a dead letter."""
    sources: list[StepSource]
    """Where it was found."""


class ClockView(View):
    """Bounds of the offset of a client's clock."""

    host: str
    """IP address of the client."""
    source: StepSource
    """TABLES: from all messages of the minutes; TRACE_TOPIC: from this message alone."""
    lower_ms: int | None
    """Lower bound of broker's clock − client's clock; null: unbounded."""
    upper_ms: int | None
    """Upper bound; null: unbounded."""
    offset_ms: int | None
    """Estimate; null: unknown, times of this client are not corrected."""
    error_ms: int | None
    """Maximum error of the estimate; null: unknown."""
    is_contradiction: bool
    """Whether the records contradict each other."""
    ahead_ms: int | None
    """The client's clock was ahead of the broker's by at least this; null: not proved, or by less than a second."""
    behind_ms: int | None
    """It was behind by at least this; null: not proved, or by less than a second."""


class TraceSourceView(View):
    """A source of traces, and how complete it is."""

    source: StepSource
    """Which source."""
    name: str
    """Trace topic, or directory of the tables."""
    steps: int
    """Number of steps that it has."""
    as_of_ms: int | None
    """Time up to which it is complete, ms since the epoch; null: unknown."""
    warnings: list[str]
    """Why steps may be missing."""


class TracedGroupRow(View):
    """A consumer group in a trace."""

    group: str
    """Name; empty: unknown, old clients do not report it."""
    attempts: int
    """Number of deliveries."""
    result: str
    """Result of the last one."""
    is_dead: bool
    """Whether the message became a dead letter of the group."""
    first_wait_ms: int | None
    """Time from the first record that consumers can read to the first delivery; null: unknown."""


class TraceView(PartialView):
    """The trace of one message."""

    message_id: str
    """Unique key of the message."""
    topic: str
    """Topic that it was sent to; empty: unknown."""
    tag: str
    """Tag; empty: none or unknown."""
    keys: list[str]
    """Business keys."""
    trace_topic: str
    """Trace topic that was read."""
    duration_ms: int | None
    """Time from the first to the last step; null without steps."""
    sources: list[TraceSourceView]
    """Where the steps come from."""
    groups: list[TracedGroupRow]
    """Consumer groups of the listed steps, by name."""
    steps: list[TraceStepView]
    """Steps in the order of time, at most the first 2,000."""
    omitted_steps: int
    """Number of later steps that are not listed."""
    clocks: list[ClockView]
    """Clocks of the clients of the listed steps."""


class TracedMessageRow(View):
    """A message in the result of a search for traces."""

    message_id: str
    """Unique key."""
    topic: str
    """Topic; empty: unknown."""
    keys: list[str]
    """Business keys."""
    tag: str
    """Tag; empty: none or unknown."""
    at_ms: int | None
    """Time of its first known trace or record, ms since the epoch; null: unknown."""
    sources: list[StepSource]
    """Where it was found."""


class TracedListView(PartialView):
    """Messages that match a search for traces."""

    trace_topic: str
    """Trace topic that was searched."""
    warnings: list[str]
    """Why messages may be missing."""
    items: list[TracedMessageRow]
    """Messages, newest first."""
    omitted: int
    """Number of older messages that are not listed."""
