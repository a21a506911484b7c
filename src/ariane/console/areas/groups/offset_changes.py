"""Moves of consumer groups within a topic: reset to a time or an offset, or to the end. Dry run first.

Several groups are moved one after another; one that fails does not stop the others.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ariane.cluster.groups.offset_admin import EARLIEST, LATEST, OffsetTarget, ResetResult
from ariane.console.services import ConsoleServices
from ariane.console.texts import preferences
from ariane.console.web.form_fields import OptionalInt, parse_time_ms, without_blanks
from ariane.console.web.view_model import DryRunForm, View
from ariane.errors import ArianeError, UsageError
from ariane.model.topic import group_name_fault

GROUPS_MAX = 100  # of one request; they are moved one after another


class ResetTargetForm(DryRunForm):
    """Where consumer groups continue in a topic."""

    to: Literal["time", "earliest", "latest", "offset"] = "time"
    """Target: a time, the first or the end of each queue, or an offset of every queue. `latest` skips all pending messages."""
    time: str = ""
    """Target time: a duration before now (`2h`), a date and time (in the reader's time zone unless it has an offset; of
    programs UTC), or ms since the epoch."""
    offset: OptionalInt = Field(None, ge=0)
    """Target offset; offsets outside of a queue become its first or its end. Possible only without connected clients."""
    is_forced: bool = True
    """Move forwards, too: messages in between are skipped."""
    is_cpp: bool = False
    """The connected clients are C++ clients of an Apache broker, to which it sends another form."""
    is_dry_run: bool = False
    """Return the offsets before and after without changing them."""


class ResetOffsetsForm(ResetTargetForm):
    """Where the named consumer groups continue in a topic."""

    groups: Annotated[tuple[str, ...], BeforeValidator(without_blanks)] = Field(min_length=1, max_length=GROUPS_MAX)
    """Consumer groups to move; blank names are ignored."""


class QueueResetRow(View):
    """A queue before and after a reset."""

    broker: str
    queue_id: int
    """Number of the queue on that broker."""
    max_offset: int
    """Offset after the last message of the queue."""
    before: int | None
    """Offset that the group has committed; null: none."""
    target: int
    """Offset of the target in this queue."""
    after: int | None
    """Where the group continues; null: as before, without a committed offset."""
    messages: int | None
    """Messages delivered again if positive, skipped if negative; null: unknown."""


class GroupResetView(View):
    """Result of a reset of one group."""

    group: str
    error: str | None
    """Why it failed; null if it did not."""
    queues: list[QueueResetRow]
    """Queues of the topic."""
    online_brokers: list[str]
    """Brokers that send the new offsets to connected clients, which continue there at once."""
    messages_again: int | None
    """Messages that are delivered again; null: unknown."""
    messages_skipped: int | None
    """Messages that are skipped; null: unknown."""


class ResetOffsetsView(View):
    """Result of a reset."""

    notice: str
    """What was done, for people."""
    topic: str
    """Topic in which the groups were moved."""
    is_dry_run: bool
    """Whether nothing was changed."""
    time_ms: int | None
    """Target time in milliseconds since the epoch, if the target is a time."""
    groups: list[GroupResetView]
    """Result of each group."""


async def reset_offsets(services: ConsoleServices, topic: str, form: ResetOffsetsForm) -> ResetOffsetsView:
    """Move consumer groups within a topic.

    Raises:
        UsageError: the time or the offset is missing or invalid, or a name is not that of a group, which need not exist yet.
        ArianeError: the only group failed; with several groups, the result has the error of each.
    """
    target = _target(form, services.clock.now_ms())
    groups = list(dict.fromkeys(form.groups))
    for group in groups:
        # Brokers store the offsets of any name; one with @ gets those of another topic and group.
        if reason := group_name_fault(group):
            raise UsageError("groups", group, f"{reason}; no group was moved")
    views = []
    for group in groups:
        try:
            admin = services.admin(is_dry_run=form.is_dry_run)
            result = await admin.reset_offsets(group, topic, target, is_forced=form.is_forced, for_cpp=form.is_cpp)
            views.append(_group_view(group, result))
        except ArianeError as error:
            if len(groups) == 1:
                raise
            views.append(_failed(group, str(error)))
    moved = [view.group for view in views if view.error is None]
    failed = f"; {len(views) - len(moved)} of {len(views)} groups failed" if len(moved) < len(views) else ""
    verb = form.verb("move", "moved")
    return ResetOffsetsView(
        notice=f"{verb} {', '.join(moved) or 'no group'} in topic {topic}{failed}",
        topic=topic,
        is_dry_run=form.is_dry_run,
        time_ms=target.time_ms if form.to == "time" else None,
        groups=views,
    )


def _target(form: ResetTargetForm, now_ms: int) -> OffsetTarget:
    match form.to:
        case "earliest":
            return OffsetTarget(EARLIEST)
        case "latest":
            return OffsetTarget(LATEST)
        case "offset":
            if form.offset is None:
                raise UsageError("offset", None, "missing; specify the offset, or another target")
            return OffsetTarget(offset=form.offset)
    if not form.time:
        raise UsageError("time", None, "missing; specify a time, for example 2h, or another target")
    return OffsetTarget(parse_time_ms(form.time, now_ms, "time", zone=preferences.current().zone))


def _group_view(group: str, result: ResetResult) -> GroupResetView:
    rows = [
        QueueResetRow.of(
            queue,
            max_offset=queue.broker_offset,
            before=queue.consumer_offset,
            target=queue.target_offset,
            after=queue.new_offset,
            messages=_distance(queue.consumer_offset, queue.new_offset),
        )
        for queue in result.queues
    ]
    distances = [row.messages for row in rows if row.messages is not None]
    is_known = len(distances) == len(rows)
    return GroupResetView(
        group=group,
        error=None,
        queues=rows,
        online_brokers=sorted(result.online),
        messages_again=sum(distance for distance in distances if distance > 0) if is_known else None,
        messages_skipped=-sum(distance for distance in distances if distance < 0) if is_known else None,
    )


def _distance(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else before - after


def _failed(group: str, error: str) -> GroupResetView:
    return GroupResetView(
        group=group, error=error, queues=[], online_brokers=[], messages_again=None, messages_skipped=None
    )
