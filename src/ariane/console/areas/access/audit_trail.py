"""The audit log: search, time range, pages, and export."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

from ariane.audit import record_lines
from ariane.console.areas.dead_letters.dead_letter_export import csv_cell, csv_text
from ariane.console.security.audit_log import AuditEntry, AuditQuery
from ariane.console.services import ConsoleServices
from ariane.console.texts import preferences
from ariane.console.texts.translation import gettext_noop
from ariane.console.web.form_fields import parse_time_range
from ariane.console.web.paging import ListQuery, Page
from ariane.console.web.view_model import View

OUTCOMES = (gettext_noop("done"), gettext_noop("dry run"), gettext_noop("refused"), gettext_noop("failed"))
EXPORT_FIELDS = (
    "time", "account", "role", "address", "method", "path", "target", "outcome", "status", "detail",
)  # fmt: skip


class AuditRow(View):
    """A request that changed something, or tried to."""

    time_ms: int
    """End of the request."""
    account: str
    """Account that sent it; empty without a log-in."""
    role: str
    address: str
    """Address that it came from."""
    method: str
    """HTTP method."""
    path: str
    """Path of the URL."""
    target: str
    """Names in the path, for example a topic."""
    outcome: str
    """`done`, `dry run`, `refused` (not permitted) or `failed`."""
    status: int
    """HTTP status."""
    detail: str
    """What was changed on which server, or why it failed."""


class TimeRangeQuery(ListQuery):
    """Which entries of a time range to return, newest first."""

    since: str = ""
    """Begin: a duration before now (2h, 7d), or a date and time. Empty: all."""
    until: str = ""
    """End; empty: now."""

    def bounds_ms(self, now_ms: int) -> tuple[int | None, int | None]:
        """Return begin and end in ms since the epoch; None where the text is empty."""
        return parse_time_range(self.since, self.until, now_ms, zone=preferences.current().zone)


class TimeRangeView(View):
    """Entries of a time range."""

    since: str
    """Begin of the time range, as in the query."""
    until: str
    """End of the time range, as in the query."""


class AuditTrailView(TimeRangeView):
    """A page of the audit log."""

    as_of_ms: int
    """When the log was read."""
    entries: Page[AuditRow]
    """Entries, newest first."""


async def audit_trail(services: ConsoleServices, query: TimeRangeQuery) -> AuditTrailView:
    """Return a page of the audit log, newest first."""
    selection = audit_query(services, query)
    offset = (query.page - 1) * query.size
    # In a thread: the log may have 80 MB.
    entries, total = await asyncio.to_thread(services.audit.page, selection, offset=offset, size=query.size)
    page = Page(
        items=[AuditRow.of(entry) for entry in entries], total=total, page=query.page,
        size=query.size, sort="time", order="desc", q=query.q,
    )  # fmt: skip
    return AuditTrailView.of(query, as_of_ms=services.clock.now_ms(), entries=page)


def audit_query(services: ConsoleServices, query: TimeRangeQuery) -> AuditQuery:
    """Return the search of a query."""
    return AuditQuery(query.q, *query.bounds_ms(services.clock.now_ms()))


def export_csv(services: ConsoleServices, selection: AuditQuery) -> Iterator[str]:
    """Yield the matching entries as lines of CSV, newest first. Blocks: iterate it in a thread."""
    yield csv_text(EXPORT_FIELDS, ())
    for entry in services.audit.read(selection):
        yield csv_text([csv_cell(_cell(entry, field)) for field in EXPORT_FIELDS], ())


def export_jsonl(services: ConsoleServices, selection: AuditQuery) -> Iterator[bytes]:
    """Yield the matching entries as lines of JSON, newest first. Blocks: iterate it in a thread."""
    for entry in services.audit.read(selection):
        yield record_lines.encode(entry)


def _cell(entry: AuditEntry, field: str) -> object:
    if field == "time":
        return datetime.fromtimestamp(entry.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return getattr(entry, field)
