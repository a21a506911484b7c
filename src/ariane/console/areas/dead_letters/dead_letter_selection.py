"""Selections of a group's dead letters: a filter, and all that match it, as far as they fit into memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerUnavailable
from ariane.cluster.messages.message_query import QueryResult
from ariane.cluster.messages.message_search import MessageFilter
from ariane.console.areas.messages.message_lookup import INDEX_MATCHES_MAX, query_index
from ariane.console.areas.messages.message_scan import ScanBudget, TopicScan
from ariane.console.services import ConsoleServices
from ariane.console.texts import preferences
from ariane.console.web.form_fields import parse_time_range
from ariane.console.web.view_model import View
from ariane.errors import NotFound, ServerUnavailable, UsageError
from ariane.model.message import ReceivedMessage
from ariane.model.topic import dlq_topic, group_name_fault

READ_MAX = 10_000  # dead letters that one request resends or exports
BODIES_MAX_BYTES = 256 * 1024 * 1024  # of their bodies, which are in memory together


class DeadLetterFilter(View):
    """Selection of dead letters."""

    key: str = ""
    """Business key or unique key."""
    tag: str = ""
    text: str = ""
    """Text that the body contains."""
    since: str = ""
    """Became dead at this time or later: a duration before now (`2h`), a date and time (UTC unless it has an offset), or ms."""
    until: str = ""
    """Became dead before this time, in the same forms."""


class BodyBudget:
    """Keeps messages until their bodies exceed a number of bytes; later ones without their bodies."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max

    @property
    def is_exceeded(self) -> bool:
        """Whether a message was kept without its body."""
        return self._bytes_left < 0

    def keep(self, message: ReceivedMessage) -> ReceivedMessage:
        """Return the message, without its body if the budget is exceeded."""
        self._bytes_left -= len(message.body)
        return msgspec.structs.replace(message, body=b"", properties={}) if self.is_exceeded else message


def check_group_name(group: str) -> None:
    """Check a name before it becomes that of a topic and of a file.

    Raises:
        UsageError: it is not a valid group.
    """
    if reason := group_name_fault(group):
        raise UsageError("group", group, reason)


def message_filter(selection: DeadLetterFilter, now_ms: int) -> MessageFilter:
    """Return the filter of a search; dates without an offset are in the time zone of the reader."""
    since_ms, until_ms = parse_time_range(selection.since, selection.until, now_ms, zone=preferences.current().zone)
    return MessageFilter(
        key=selection.key.strip() or None,
        tag=selection.tag.strip() or None,
        text=selection.text or None,
        since_ms=since_ms,
        until_ms=until_ms,
    )


async def query_key(
    admin: Admin, topic: str, wanted: MessageFilter, messages_max: int = INDEX_MATCHES_MAX
) -> tuple[QueryResult, list[ReceivedMessage]]:
    """Look up the key of a selection in the brokers' indexes, at most `messages_max` messages per broker.

    Return the brokers' answers, and the selected messages, oldest first.
    """
    result = await query_index(admin, topic, wanted.key or "", wanted, messages_max)
    # The index compared the key, also in the other spelling of a unique key.
    others = msgspec.structs.replace(wanted, key=None)
    return result, sorted(filter(others.accepts, result.messages), key=lambda message: message.store_ms)


async def all_matching(
    services: ConsoleServices, admin: Admin, group: str, selection: DeadLetterFilter
) -> list[ReceivedMessage]:
    """Return all dead letters that match, oldest first.

    Raises:
        UsageError: a time is invalid, or more match than can be read: none is omitted silently.
        NotFound: none matches.
    """
    wanted = message_filter(selection, services.clock.now_ms())
    if wanted.key is None:
        messages = await _scan_all(services, admin, group, wanted)
    else:
        found, messages = await query_key(admin, dlq_topic(group), wanted, READ_MAX)
        _check_available(group, found.unavailable)
        if (
            found.truncated
            or len(messages) > READ_MAX
            or sum(len(message.body) for message in messages) > BODIES_MAX_BYTES
        ):
            raise _too_many()
    if not messages:
        raise NotFound("dead letter", f"of {group} that matches")
    return messages


async def _scan_all(
    services: ConsoleServices, admin: Admin, group: str, wanted: MessageFilter
) -> list[ReceivedMessage]:
    """Read the dead letters page by page, so that the reading ends soon after the budgets are exceeded."""
    messages: list[ReceivedMessage] = []  # newest first
    bytes_left = BODIES_MAX_BYTES
    while True:
        # A page also reads matches of the next one and drops them, so each page has its own count of bytes.
        bodies = BodyBudget(bytes_left)
        scan = TopicScan(
            reader=admin, clock=services.clock, selection=wanted, budget=ScanBudget(matches=READ_MAX), keep=bodies.keep
        )
        page = await scan.run(dlq_topic(group))
        _check_available(group, page.unavailable)
        messages += page.messages
        if bodies.is_exceeded or page.omitted or len(messages) > READ_MAX:
            raise _too_many()
        if page.complete_since_ms is None:
            return messages[::-1]
        bytes_left -= sum(len(message.body) for message in page.messages)
        wanted = msgspec.structs.replace(wanted, until_ms=page.complete_since_ms)


def _check_available(group: str, unavailable: Sequence[BrokerUnavailable]) -> None:
    if unavailable:
        raise ServerUnavailable(f"cannot read all dead letters of {group}: {'; '.join(map(str, unavailable))}")


def _too_many() -> UsageError:
    reason = f"more than {READ_MAX:,} dead letters or {BODIES_MAX_BYTES // 2**20} MiB match; restrict the time range"
    return UsageError("filter", None, reason)
