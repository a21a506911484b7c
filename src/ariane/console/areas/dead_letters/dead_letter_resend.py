"""Resends dead letters to their original topics, with an outcome per message. Dry run first.

    ids, or all that match a filter ─→ dead letters ─→ replay with the group's journal ─→ outcome of each

The copies get new unique keys and are received by all groups of the topic; the dead letters stay stored. The journal skips those
that this console has resent before, so that a repeated click sends nothing twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from ariane.cluster.admin import Admin
from ariane.cluster.connection import gather_bounded
from ariane.cluster.messages.message_sending import to_original
from ariane.cluster.messages.replay import ReplayOutcome, build_message
from ariane.console.areas.dead_letters.dead_letter_list import record_id
from ariane.console.areas.dead_letters.dead_letter_selection import DeadLetterFilter, all_matching, check_group_name
from ariane.console.areas.dead_letters.resend_journal import RepeatingJournal, open_journal, read_outcomes
from ariane.console.services import ConsoleServices
from ariane.console.web.view_model import ChangeForm, View
from ariane.errors import ArianeError, MessageRefused, UsageError
from ariane.model.message import ReceivedMessage
from ariane.model.topic import topic_name_fault

IDS_MAX = 1_000
LOOKUPS_AT_ONCE = 16

ResendState = Literal["sent", "failed", "unsent", "skipped", "planned"]
STATE_TITLES: dict[ResendState, str] = {
    "sent": "sent", "planned": "would be sent", "skipped": "resent before", "failed": "failed", "unsent": "not sent",
}  # fmt: skip


class ResendForm(ChangeForm):
    """Which dead letters to resend."""

    ids: list[str] = Field(default_factory=list, max_length=IDS_MAX)
    """Offset ids or unique keys of dead letters."""
    is_matching: bool = False
    """Instead of `ids`: all dead letters that match the filter below, at most 10,000."""
    key: str = ""
    """Filter: business key or unique key."""
    tag: str = ""
    """Filter: tag."""
    text: str = ""
    """Filter: text that the body contains."""
    since: str = ""
    """Filter: became dead at this time or later (`2h`, a date and time, or ms)."""
    until: str = ""
    """Filter: became dead before this time."""
    topic: str = ""
    """Target topic; empty: the original topic of each."""
    is_repeated: bool = False
    """Resend those, too, that this console has resent before."""
    is_dry_run: bool = False
    """Return what would be sent."""


class ResendRow(View):
    """Outcome of one dead letter."""

    message_id: str
    """Its unique key."""
    offset_message_id: str
    state: ResendState
    """sent; failed: see `error`; unsent: servers became unavailable before; skipped: resent before; planned: of a dry run."""
    topic: str | None
    """Topic of the copy."""
    new_message_id: str | None
    """Unique key of the copy."""
    error: str | None
    """Why it was not sent; null if it was."""


class ResendView(View):
    """Outcome of a resend."""

    notice: str
    """Numbers, for people."""
    group: str
    is_dry_run: bool
    """Whether nothing was sent."""
    rows: list[ResendRow]
    """Outcome of each dead letter."""


async def resend_dead_letters(services: ConsoleServices, group: str, form: ResendForm) -> ResendView:
    """Send copies of dead letters. In a dry run, return what would be sent.

    Raises:
        UsageError: no dead letter is selected, too many match, or the topic is invalid.
        NotFound: no dead letter has one of the ids, or none matches.
        RouteNotFound: the target topic does not exist.
        ServerUnavailable: a broker did not respond, or another resend of the group is running; nothing was sent.
    """
    check_group_name(group)
    if form.topic and (reason := topic_name_fault(form.topic)):
        raise UsageError("topic", form.topic, reason)
    admin = services.admin(is_dry_run=form.is_dry_run)
    if form.topic:
        await admin.routing.fetch_route(form.topic)
    messages = await _selected_letters(services, admin, group, form)
    resend = _plan if form.is_dry_run else _send
    rows = await resend(services, admin, group, messages, form)
    return ResendView(notice=summary(rows), group=group, is_dry_run=form.is_dry_run, rows=rows)


async def _selected_letters(
    services: ConsoleServices, admin: Admin, group: str, form: ResendForm
) -> list[ReceivedMessage]:
    if form.is_matching:
        selection = DeadLetterFilter(key=form.key, tag=form.tag, text=form.text, since=form.since, until=form.until)
        return await all_matching(services, admin, group, selection)
    if not form.ids:
        raise UsageError("ids", None, "no dead letter is selected; select at least one")
    lookups = (admin.find_dead_letter(group, message_id) for message_id in dict.fromkeys(form.ids))
    messages = await gather_bounded(lookups, LOOKUPS_AT_ONCE)
    # An offset id and a unique key may name the same dead letter.
    return list({record_id(message): message for message in messages}.values())


async def _plan(
    services: ConsoleServices, admin: Admin, group: str, messages: Sequence[ReceivedMessage], form: ResendForm
) -> list[ResendRow]:
    outcomes = await asyncio.to_thread(read_outcomes, services.settings.data_dir, group)
    faults: dict[str, str | None] = {}  # topic to the reason why it accepts no message; asked once per topic
    rows = []
    for message in messages:
        before = outcomes.get(record_id(message))
        if before is not None and before.state == "ok" and not form.is_repeated:
            rows.append(_row(message, "skipped", before))
            continue
        try:
            topic = build_message(to_original(message), form.topic or None, "").topic
        except MessageRefused as error:
            rows.append(_row(message, "failed", error=str(error)))
            continue
        if topic not in faults:
            faults[topic] = await _route_fault(admin, topic)
        fault = faults[topic]
        rows.append(_row(message, "failed" if fault else "planned", topic=topic, error=fault))
    return rows


async def _send(
    services: ConsoleServices, admin: Admin, group: str, messages: Sequence[ReceivedMessage], form: ResendForm
) -> list[ResendRow]:
    async with open_journal(services.settings.data_dir, group) as opened:
        before = await asyncio.to_thread(read_outcomes, services.settings.data_dir, group)
        journal = RepeatingJournal(opened) if form.is_repeated else opened
        outcomes = await admin.resend_all(messages, topic=form.topic or None, journal=journal)
    after = {outcome.record_id: outcome for outcome in outcomes}
    rows = []
    for message in messages:
        outcome = after.get(record_id(message))
        if outcome is None:
            rows.append(_row(message, "skipped", before.get(record_id(message))))
        else:
            rows.append(_row(message, _state(outcome), outcome))
    return rows


async def _route_fault(admin: Admin, topic: str) -> str | None:
    try:
        await admin.routing.fetch_route(topic)
    except ArianeError as error:
        return str(error)
    return None


def _state(outcome: ReplayOutcome) -> ResendState:
    return "sent" if outcome.state == "ok" else "failed" if outcome.state == "failed" else "unsent"


def _row(
    message: ReceivedMessage,
    state: ResendState,
    outcome: ReplayOutcome | None = None,
    *,
    topic: str | None = None,
    error: str | None = None,
) -> ResendRow:
    return ResendRow(
        message_id=message.message_id,
        offset_message_id=message.offset_message_id,
        state=state,
        topic=topic if outcome is None else outcome.topic,
        new_message_id=None if outcome is None else outcome.message_id,
        error=error if outcome is None else outcome.error,
    )


def summary(rows: Sequence[ResendRow]) -> str:
    """Return the numbers of each outcome as a text."""
    counts = Counter(row.state for row in rows)
    return ", ".join(f"{counts[state]:,} {title}" for state, title in STATE_TITLES.items() if counts[state])
