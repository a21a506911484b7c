"""Delayed messages: pending ones by due time, how many are due when, and the cancellation of one.

Admin.list_delayed ─→ pending messages, the first due first, up to a limit
                        ├─→ one page of them
                        └─→ DueBucket…: a histogram of their due times; if the limit was reached, of those up to the last one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from ariane.cluster.messages.delayed_messages import DelayedFilter, DelayedMessage
from ariane.console.areas.admin_results import result_of, texts_of
from ariane.console.areas.confirmation import DeletionForm, check_confirmed
from ariane.console.services import ConsoleServices
from ariane.console.texts.translation import gettext as _
from ariane.console.web.form_fields import parse_duration_ms
from ariane.console.web.paging import ListQuery, Page, paginate, sort_keys
from ariane.console.web.view_model import ChangeResult, DryRunForm, PartialView, View

READ_DEFAULT = 500
READ_MAX = 10_000
BUCKETS_MAX = 40  # bars of the histogram; more are too narrow on a phone
BUCKET_WIDTHS_MS = tuple(
    1_000 * seconds
    for seconds in (1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_592_000)
)


class DelayedQuery(ListQuery):
    """Which pending delayed messages to return."""

    topic: str = ""
    """Only messages that are delivered to this topic; redeliveries are delivered to the retry topic of their group."""
    due: str = Field("", max_length=20)
    """Only messages that are due within this time from now: `10m`, `2h`."""
    limit: int = Field(READ_DEFAULT, ge=1, le=READ_MAX)
    """Messages to read from the brokers, the first due."""


class DelayedRow(View):
    """A pending delayed message."""

    due_ms: int
    """When the broker delivers it, in milliseconds since the epoch by its clock."""
    topic: str
    """Topic to which it is delivered."""
    level: int | None
    """Delay level; null for a message with a delivery time."""
    message_id: str
    """Unique key."""
    offset_message_id: str
    """Id that the broker gave it."""
    keys: list[str]
    """Business keys."""
    tag: str
    """Tag; empty without one."""
    stored_ms: int
    """When the broker stored it, in milliseconds since the epoch."""
    stored_size: int
    """Size of the stored record in bytes."""
    broker: str
    stored_in: str
    """Topic that stores it until it is due."""
    can_cancel: bool
    """Whether it has a delivery time: a message with a delay level cannot be cancelled."""


class DueBucket(View):
    """Messages that are due in one interval."""

    start_ms: int
    """Start of the interval, in milliseconds since the epoch."""
    messages: int


class DelayedView(PartialView):
    """Pending delayed messages."""

    topic: str
    """Topic that was asked for; empty: all."""
    due: str
    """Time range that was asked for; empty: all."""
    pending: int
    """Messages that were read."""
    is_truncated: bool
    """Whether more are pending than the limit: then only the first due were read."""
    limit: int
    """Limit of messages that are read."""
    next_due_ms: int | None
    """When the next message is due; null if none is pending or a broker did not respond."""
    messages: Page[DelayedRow]
    """Messages that were read."""
    bucket_ms: int
    """Length of an interval of `buckets`."""
    buckets: list[DueBucket]
    """Number of messages by due time, for all messages that were read; without gaps."""

    @property
    def due_chart(self) -> dict[str, Any]:
        """Number of messages by due time, as the page draws it."""
        points = [[bucket.start_ms, bucket.messages] for bucket in self.buckets]
        return {"unit": "number", "series": [{"name": _("Messages due"), "type": "bar", "points": points}]}


class CancelDelayedForm(DeletionForm, DryRunForm):
    """Cancellation of a pending delayed message; `confirm` is the id of the message."""


COLUMNS = sort_keys(
    "topic", "level", due=lambda row: (row.due_ms, row.message_id), stored="stored_ms", size="stored_size"
)


async def delayed_list(services: ConsoleServices, query: DelayedQuery) -> DelayedView:
    """Return pending delayed messages of all masters."""
    as_of_ms = services.clock.now_ms()
    due_until_ms = as_of_ms + parse_duration_ms(query.due, "due") if query.due.strip() else None
    admin = services.admin()
    pending = await admin.list_delayed(DelayedFilter(due_until_ms, query.topic or None), limit=query.limit)
    rows = [_row(delayed) for delayed in pending.messages]
    bucket_ms, buckets = due_buckets([row.due_ms for row in rows])
    return DelayedView.of(
        query,
        pending,
        as_of_ms=as_of_ms,
        unavailable=texts_of(pending.unavailable),
        pending=len(rows),
        next_due_ms=rows[0].due_ms if rows and not pending.unavailable else None,
        messages=paginate(
            rows, query, name=lambda row: f"{row.message_id} {' '.join(row.keys)} {row.topic}", columns=COLUMNS,
            sort="due",
        ),
        bucket_ms=bucket_ms,
        buckets=buckets,
    )  # fmt: skip


async def delayed_message(services: ConsoleServices, message_id: str) -> DelayedRow:
    """Return one pending delayed message.

    Raises:
        NotFound: no pending delayed message has this id: it was delivered or cancelled, or never existed.
    """
    return _row(await services.admin().find_delayed(message_id))


async def cancel_delayed(services: ConsoleServices, message_id: str, form: CancelDelayedForm) -> ChangeResult:
    """Cancel a pending message with a delivery time, so that it is never delivered.

    Raises:
        NotFound: no pending delayed message has this id.
        ArianeError: it has a delay level, or its broker does not support cancelling.
        ReplyError: the broker rejected the request, for example because the message was delivered meanwhile.
    """
    if not form.is_dry_run:
        check_confirmed(form, message_id, label="the id of the message, ", done="cancelled")
    admin = services.admin(is_dry_run=form.is_dry_run)
    delayed = await admin.cancel_delayed(message_id, trace_topic=services.settings.trace_topic)
    return result_of(admin, f"{form.verb('cancel', 'cancelled')} delayed message {message_id} of topic {delayed.topic}")


def due_buckets(due_ms: Sequence[int]) -> tuple[int, list[DueBucket]]:
    """Return the length of an interval in ms, and the number of times in each interval from the first to the last one.

    The length is the shortest of `BUCKET_WIDTHS_MS` that results in at most `BUCKETS_MAX` intervals, or a multiple of the
    longest one.
    """
    if not due_ms:
        return BUCKET_WIDTHS_MS[0], []
    first, last = min(due_ms), max(due_ms)
    fitting = (width for width in BUCKET_WIDTHS_MS if last // width - first // width < BUCKETS_MAX)
    longest = BUCKET_WIDTHS_MS[-1]
    width = next(fitting, 0) or longest * -(-(last - first) // (longest * (BUCKETS_MAX - 1)))
    counts = Counter(time // width for time in due_ms)
    numbers = range(first // width, last // width + 1)
    return width, [DueBucket(start_ms=number * width, messages=counts[number]) for number in numbers]


def _row(delayed: DelayedMessage) -> DelayedRow:
    message = delayed.message
    return DelayedRow.of(
        delayed,
        message,
        message.queue,
        tag=message.tags,
        stored_ms=message.store_ms,
        stored_in=message.queue.topic,
        can_cancel=delayed.level is None,
    )
