"""One message: its record, its copies, who consumed it, and the ways to send it again.

message_details    the record, its body and properties
message_consumers  state in each group, with times from live traces; retries, dead letters and other copies
resend             a copy to a topic             consume_directly   the stored record to one client, now
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from ariane.cluster.admin import Admin
from ariane.cluster.messages.message_query import PENDING_TOPICS, QueryResult
from ariane.cluster.messages.message_search import MessageFilter
from ariane.cluster.messages.message_tracking import BROADCAST_REASON, MessageTrack, TrackState
from ariane.console.areas.messages.body_encoding import BodyEncoding
from ariane.console.areas.messages.message_body import (
    BodyFormat,
    BodyView,
    MessagePropertyRow,
    body_view,
    property_rows,
)
from ariane.console.areas.messages.message_lookup import query_all_topics, query_index
from ariane.console.areas.messages.message_rows import MessageRow, RowWithCopies, message_row
from ariane.console.areas.record_lookup import view_record
from ariane.console.areas.traces.trace_sources import (
    GROUPS_MAX,
    build_live_trace,
    find_copies,
    groups_of,
    read_trace_topic,
)
from ariane.console.services import ConsoleServices
from ariane.console.web.form_fields import check_topic
from ariane.console.web.view_model import ChangeForm, ChangeResult, PartialView, View
from ariane.errors import ArianeError, NotFound, ReplyError, ServerUnavailable, UsageError
from ariane.model.message import (
    RETRY_TOPIC,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    ReceivedMessage,
)
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, group_name_fault, group_of_topic
from ariane.reports.trace_steps import SUCCESS, StepKind, TraceStep

CONSUME_TIMEOUT_MS = 5_000.0  # a third of the time that a listener may take


class MessageDetailsView(PartialView):
    """A stored message."""

    unavailable: list[str]
    """Servers that did not respond, with the reason: there may be older or newer records of this message."""
    row: MessageRow
    """Ids, position and times."""
    commit_log_offset: int
    """Offset in the broker's commit log."""
    born_host: str
    """Address of the producer."""
    store_host: str
    """Address of the broker."""
    flag: int
    """The producer's flag."""
    sys_flag: int
    """RocketMQ's flags, without compression."""
    transaction: str
    """Part in a transaction: half message, committed, rolled back; empty without one."""
    group: str
    """Consumer group of a retry or dead letter; empty otherwise."""
    properties: list[MessagePropertyRow]
    """All properties, those of the application first."""
    body: BodyView
    records: list[MessageRow]
    """All records of the topic with this unique key, if it was looked up by the key; the first is shown."""


class ConsumerRow(View):
    """A message in one consumer group."""

    group: str
    state: TrackState
    """Inferred from the group's offset and subscription, or from traces."""
    reason: str
    """Why the state is unknown, or a remark about it; empty otherwise."""
    attempts: int | None
    """Number of traced deliveries; null: no trace."""
    delivered_ms: int | None
    """Begin of the last traced delivery, ms since the epoch; null: no trace."""
    error_ms: int | None
    """Maximum error of that time by the broker's clock; null: unknown."""
    cost_ms: int | None
    """Duration of that delivery; null: unknown."""
    result: str
    """Its result: success, failed, timeout, exception, null, unknown; empty: no trace."""
    host: str
    """Address of the client; empty: no trace."""


class MessageConsumersView(PartialView):
    """Who consumed a message, and where copies of it are stored."""

    message_id: str
    """Unique key of the message."""
    trace_topic: str
    """Trace topic that was read."""
    trace_fault: str
    """Why no traces were read; empty if they were."""
    consumers: list[ConsumerRow]
    """Each group that consumes the topic or was traced."""
    copies: list[MessageRow]
    """Other records with this unique key: retries, dead letters, delayed and half messages, repeated sends."""
    groups_omitted: int
    """Groups whose retries and dead letters were not looked up, because there are too many."""

    @property
    def copy_rows(self) -> list[RowWithCopies]:
        """The copies as the page lists them: each in a row."""
        return [RowWithCopies(row, []) for row in self.copies]


class ResendMessageForm(ChangeForm):
    """Sends a copy of a stored message."""

    topic: Annotated[str, Field(max_length=127)] = ""
    """Target topic; empty: the original topic of the message."""
    dry_run: bool = False
    """Only check and report what would be sent."""


class ConsumeDirectlyForm(ChangeForm):
    """Lets one client of a group consume a stored message now."""

    group: Annotated[str, Field(min_length=1, max_length=255)]
    """Consumer group."""
    client_id: Annotated[str, Field(max_length=255)] = ""
    """Client of the group; empty: the first one that is online."""
    dry_run: bool = False
    """Only find the client and report what would be done."""


async def find_message(services: ConsoleServices, admin: Admin, message_id: str, topic: str = "") -> QueryResult:
    """Return the record with an offset id, or the records with a unique key; without a topic, all topics are searched.

    Raises:
        NotFound: no broker has such a message.
        ServerUnavailable: those that responded have none.
    """
    check_topic(topic)
    record = await view_record(admin, message_id)
    if record is not None:
        return QueryResult([record])
    if topic:
        matches = await query_index(admin, topic, message_id, MessageFilter())
        matches = matches._replace(messages=[message for message in matches.messages if _is_id(message, message_id)])
    else:
        result = await query_all_topics(services, admin, message_id)
        matches = result.found._replace(
            messages=[candidate for candidate in result.found.messages if _is_id(candidate, message_id)]
        )
        if not matches.messages and result.next_topic:
            scope = f"{message_id} in {result.searched:,} of {result.total:,} topics; name its topic to search that one"
            raise NotFound("message", scope)
    if not matches.messages:
        raise matches.not_found("message", message_id)
    # Copies of it are in topics of the broker and of groups; the application's topic has the message itself.
    return matches._replace(messages=sorted(matches.messages, key=_is_copy))


async def message_details(
    services: ConsoleServices,
    message_id: str,
    topic: str = "",
    body_format: BodyFormat | None = None,
    encoding: BodyEncoding | None = None,
) -> MessageDetailsView:
    """Return a message. Its body is in `encoding`; None: UTF-8, or a guess if it is not."""
    async with services.admin() as admin:
        result = await find_message(services, admin, message_id, topic)
    message = result.messages[0]
    return MessageDetailsView.of(
        message,
        as_of_ms=services.clock.now_ms(),
        unavailable=[str(broker) for broker in result.unavailable],
        row=message_row(message),
        transaction=_transaction(message),
        group=group_of_topic(message.queue.topic),
        properties=property_rows(message),
        body=body_view(message, body_format, encoding),
        records=[message_row(record) for record in result.messages] if len(result.messages) > 1 else [],
    )


async def message_body(services: ConsoleServices, message_id: str, topic: str = "") -> ReceivedMessage:
    """Return a message for the download of its body."""
    async with services.admin() as admin:
        return (await find_message(services, admin, message_id, topic)).messages[0]


async def message_consumers(
    services: ConsoleServices, message_id: str, topic: str = "", trace_topic: str = ""
) -> MessageConsumersView:
    """Return who consumed a message, and its copies. Without a trace topic, that of the settings is read."""
    trace_topic = trace_topic or services.settings.trace_topic
    async with services.admin() as admin:
        message = (await find_message(services, admin, message_id, topic)).messages[0]
        unique_key = message.message_id
        tracks, traced = await asyncio.gather(_tracks(admin, message), read_trace_topic(admin, unique_key, trace_topic))
        groups = sorted({track.group for track in tracks[0]} | set(groups_of(traced.carried, unique_key)))
        topics = {message.queue.topic, message.topic, message.properties.get(RETRY_TOPIC, message.topic)}
        copies = await find_copies(admin, unique_key, topics, groups)
    trace = await build_live_trace(unique_key, traced.carried, copies.messages)
    deliveries = [step for step in trace.steps if step.kind is StepKind.DELIVERY]
    unavailable = dict.fromkeys([*tracks[1], *traced.unavailable, *(str(broker) for broker in copies.unavailable)])
    return MessageConsumersView(
        as_of_ms=services.clock.now_ms(),
        unavailable=list(unavailable),
        message_id=unique_key,
        trace_topic=trace_topic,
        trace_fault=traced.fault,
        consumers=consumer_rows(tracks[0], deliveries),
        copies=[message_row(copy) for copy in copies.messages if copy.offset_message_id != message.offset_message_id],
        groups_omitted=max(0, len(groups) - GROUPS_MAX),
    )


def consumer_rows(tracks: Iterable[MessageTrack], deliveries: Sequence[TraceStep]) -> list[ConsumerRow]:
    """Return a row for each group: its state by offsets, corrected by traces, which are a proof."""
    by_group = {track.group: track for track in tracks}
    traced: dict[str, list[TraceStep]] = {}
    for step in deliveries:
        traced.setdefault(step.group or "", []).append(step)
    rows = []
    for group in sorted({*by_group, *(name for name in traced if name)}):
        track = by_group.get(group, MessageTrack(group, TrackState.UNKNOWN))
        steps = traced.get(group, [])
        last = max(steps, key=lambda step: step.start_ms, default=None)
        state, reason = track.state, track.reason or ""
        if any(step.result == SUCCESS for step in steps):
            # Of a broadcasting group, traces prove it for those clients alone.
            state, reason = TrackState.CONSUMED, reason if reason == BROADCAST_REASON else ""
        elif state is TrackState.NOT_ONLINE:
            reason = ""  # the broker's remark repeats the state
        rows.append(
            ConsumerRow(
                group=group,
                state=state,
                reason=reason,
                attempts=len(steps) or None,
                delivered_ms=last.start_ms if last else None,
                error_ms=last.error_ms if last else None,
                cost_ms=last.cost_ms if last else None,
                result=last.result if last else "",
                host=(last.host or "") if last else "",
            )
        )
    return rows


async def resend(services: ConsoleServices, message_id: str, form: ResendMessageForm, topic: str = "") -> ChangeResult:
    """Send a copy of a message under a new unique key.

    Raises:
        MessageRefused: the message cannot be sent as it is.
        NotFound, ServerUnavailable, RouteNotFound: as `find_message`, or the target topic does not exist.
        ReplyError, ConnectionLost, RequestTimeout: not acknowledged; the copy may be stored.
    """
    check_topic(form.topic)
    async with services.admin(is_dry_run=form.dry_run) as admin:
        message = (await find_message(services, admin, message_id, topic)).messages[0]
        result = await admin.resend(message, form.topic or None)
        changes = [f"{change.summary} ({change.addr})" for change in admin.changes]
    if result is None:
        return ChangeResult(notice=f"Would {changes[0]}", changes=changes, is_dry_run=True)
    queue = result.queue
    notice = f"Sent a copy as {result.message_id} to {queue.topic}, {queue.broker} queue {queue.queue_id}"
    return ChangeResult(notice=notice, changes=changes)


async def consume_directly(
    services: ConsoleServices, message_id: str, form: ConsumeDirectlyForm, topic: str = ""
) -> ChangeResult:
    """Let one client consume a message now. Offsets do not change, and a failure is not retried.

    Raises:
        NotFound, ServerUnavailable, RouteNotFound: as `find_message`, or no client of the group is online.
        ReplyError: the client did not accept the message, or did not respond.
    """
    if fault := group_name_fault(form.group):
        raise UsageError("group", form.group, f"{fault}; enter the name of a consumer group")
    async with services.admin(is_dry_run=form.dry_run) as admin:
        message = (await find_message(services, admin, message_id, topic)).messages[0]
        admin.timeout_ms = CONSUME_TIMEOUT_MS
        try:
            client_id = form.client_id or await admin.find_client(message, form.group)
        except ReplyError as error:
            raise NotFound("online client of group", f"{form.group}: {error.remark or error}") from error
        result = await admin.consume_directly(message, form.group, client_id)
        changes = [f"{change.summary} ({change.addr})" for change in admin.changes]
    if result is None:
        return ChangeResult(notice=f"Would {changes[0]}", changes=changes, is_dry_run=True)
    outcome = result.consume_result or "no result"
    remark = f": {result.remark}" if result.remark else ""
    if not result.is_success:
        raise ServerUnavailable(f"{client_id} did not accept the message: {outcome}{remark}")
    return ChangeResult(
        notice=f"{client_id} consumed the message in {result.spent_time_mills:,} ms: {outcome}{remark}", changes=changes
    )


async def _tracks(admin: Admin, message: ReceivedMessage) -> tuple[list[MessageTrack], list[str]]:
    try:
        result = await admin.track(message)
    except ArianeError as error:
        return [], [f"Consumer groups are unknown: {error}"]
    return result.tracks, [str(broker) for broker in result.unavailable]


def _is_id(message: ReceivedMessage, message_id: str) -> bool:
    """Return whether a text is the unique key of a message; ids of clients are hex digits in either case."""
    return message.message_id.upper() == message_id.upper()


def _is_copy(message: ReceivedMessage) -> bool:
    """Return whether a record is a retry, a dead letter, or pending."""
    stored_in = message.queue.topic
    return stored_in in PENDING_TOPICS or stored_in.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _transaction(message: ReceivedMessage) -> str:
    kind = message.sys_flag & TRANSACTION_MASK
    if not kind:
        return ""
    return {TRANSACTION_PREPARED: "half message", TRANSACTION_COMMIT: "committed"}.get(kind, "rolled back")
