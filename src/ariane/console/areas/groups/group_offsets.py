"""Changes of a consumer group's offsets: reset in one of its topics, and copying them to another group. Dry run first."""

from __future__ import annotations

from pydantic import Field

from ariane.console.areas.admin_results import texts_of
from ariane.console.areas.groups.group_progress import GroupQueueRow
from ariane.console.areas.groups.group_traffic import read_topics
from ariane.console.areas.groups.offset_changes import (
    ResetOffsetsForm,
    ResetOffsetsView,
    ResetTargetForm,
    reset_offsets,
)
from ariane.console.services import ConsoleServices
from ariane.console.web.view_model import DryRunForm, PartialView, View
from ariane.errors import NotFound, UsageError
from ariane.model.topic import group_name_fault, retry_topic


class GroupResetForm(ResetTargetForm):
    """Where a consumer group continues in one of its topics."""

    topic: str = Field(min_length=1)
    """Topic whose offsets are moved."""


class CloneOffsetsForm(DryRunForm):
    """Copy of a group's offsets to another group."""

    destination: str = Field(min_length=1)
    """Group that gets the offsets; it need not exist yet."""
    topic: str = ""
    """Only this topic; empty: all topics of the group but its retry topic."""
    is_forced: bool = False
    """Copy them although clients of the destination are connected, which may commit their own offsets over them."""
    is_dry_run: bool = False
    """Return the offsets without copying them."""


class ClonedOffsetRow(GroupQueueRow):
    """An offset that is copied."""

    offset: int


class CloneOffsetsView(View):
    """Outcome of a copy."""

    notice: str
    """What was done, for people."""
    group: str
    """Group whose offsets were copied."""
    destination: str
    """Group that got them."""
    is_dry_run: bool
    """Whether nothing was changed."""
    offsets: list[ClonedOffsetRow]


class GroupOffsetsView(PartialView):
    """Topics of a group, for the forms of its offsets."""

    group: str
    topics: list[str]
    """Topics for which the group has offsets or a subscription."""
    is_online: bool | None
    """Whether clients are connected; null: unknown."""

    @property
    def topic_options(self) -> list[tuple[str, str]]:
        """The topics as options of a form."""
        return [(topic, topic) for topic in self.topics]


async def group_offsets(services: ConsoleServices, group: str) -> GroupOffsetsView:
    """Return what the forms of a group's offsets need."""
    as_of_ms = services.clock.now_ms()
    admin = services.admin()
    lag, connections, topics = await read_topics(admin, group)
    # Without a response of every broker an empty list of clients says nothing.
    is_online = False if connections is None else bool(connections.connections) or None
    return GroupOffsetsView(
        as_of_ms=as_of_ms,
        unavailable=texts_of(lag.unavailable),
        group=group,
        topics=topics,
        is_online=is_online,
    )


async def reset_group(services: ConsoleServices, group: str, form: GroupResetForm) -> ResetOffsetsView:
    """Move a group within one topic."""
    # A reset of an unknown group would create its offsets.
    await services.admin().check_group(group)
    values = form.model_dump(exclude={"topic"})
    return await reset_offsets(services, form.topic, ResetOffsetsForm(groups=(group,), **values))


async def clone_group(services: ConsoleServices, group: str, form: CloneOffsetsForm) -> CloneOffsetsView:
    """Copy the offsets of a group to another group.

    Raises:
        UsageError: the destination is not a valid group, or the group itself.
        NotFound: the group has no committed offset.
        ServerUnavailable: a broker did not respond, or the destination has connected clients; nothing was changed.
    """
    if reason := group_name_fault(form.destination):
        raise UsageError("destination", form.destination, reason)
    if form.destination == group:
        raise UsageError("destination", group, "is the group itself; expected another group")
    topics = [form.topic] if form.topic else await _topics_with_offsets(services, group)
    admin = services.admin(is_dry_run=form.is_dry_run)
    copied = await admin.clone_offsets(group, form.destination, topics, only_offline=not form.is_forced)
    rows = [ClonedOffsetRow.of(item, item.queue) for item in copied]
    verb = form.verb("copy", "copied")
    notice = f"{verb} {len(rows)} offset{'' if len(rows) == 1 else 's'} of {group} to {form.destination}"
    return CloneOffsetsView.of(form, notice=notice, group=group, offsets=rows)


async def _topics_with_offsets(services: ConsoleServices, group: str) -> list[str]:
    """Return the topics for which a group has committed offsets, without its retry topic: that belongs to the group alone."""
    lag = await services.admin().group_lag(group)
    topics = {queue.topic for queue in lag.queues if queue.consumer_offset is not None} - {retry_topic(group)}
    if not topics:
        raise NotFound("committed offset of consumer group", group)
    return sorted(topics)
