"""Messages in flight of a consumer group: delivered by POP (clients of RocketMQ 5), and not acknowledged."""

from __future__ import annotations

from pydantic import Field

from ariane.cluster.groups.in_flight_messages import IN_FLIGHT_MAX
from ariane.console.areas.admin_results import texts_of
from ariane.console.services import ConsoleServices
from ariane.console.web.paging import ListQuery, Page, paginate, sort_keys
from ariane.console.web.view_model import PartialView, View

LIMIT = 200


class InFlightQuery(ListQuery):
    """Which messages in flight to return."""

    topic: str = ""
    """Only messages of this topic."""
    limit: int = Field(LIMIT, ge=1, le=IN_FLIGHT_MAX)
    """Messages to read from each broker, the first ones of each queue."""


class InFlightRow(View):
    """A message that was delivered and not acknowledged."""

    topic: str
    broker: str
    queue_id: int
    """Number of the queue on that broker."""
    offset: int
    """Offset in the queue."""
    message_id: str | None
    """Unique key; null if the message was removed."""
    attempts: int
    """Deliveries so far."""
    taken_ms: int
    """Time of the last delivery, which its receipt handle contains: only this delivery can be acknowledged."""
    visible_ms: int
    """From then on it is delivered again, in milliseconds since the epoch by the broker's clock."""
    client_id: str | None
    """Client of the delivery; null if it is not connected any more, or unknown."""
    client_addr: str | None
    """Address of the client; null after a restart of the broker, and for old deliveries."""


class InFlightView(PartialView):
    """Messages in flight of a consumer group."""

    group: str
    topic: str
    """Topic that was asked for; empty: all."""
    total: int
    """Messages in flight at the brokers that responded."""
    omitted: int
    """Those that were not read because of the limit."""
    limit: int
    """Limit of messages that are read from each broker."""
    messages: Page[InFlightRow]
    """Messages that were read."""


COLUMNS = sort_keys(
    "attempts", queue=lambda row: (row.topic, row.broker, row.queue_id, row.offset), taken="taken_ms",
    visible="visible_ms", client=lambda row: row.client_id or row.client_addr,
)  # fmt: skip


async def group_in_flight(services: ConsoleServices, group: str, query: InFlightQuery) -> InFlightView:
    """Return the messages in flight of a group.

    Raises:
        NotFound: no broker has the group.
    """
    found = await services.admin().in_flight_messages(group, query.topic or None, limit=query.limit)
    rows = [InFlightRow.of(message) for message in found.messages]
    return InFlightView.of(
        query,
        found,
        as_of_ms=services.clock.now_ms(),
        unavailable=texts_of(found.unavailable),
        group=group,
        omitted=max(0, found.total - len(rows)),
        messages=paginate(rows, query, name=_searched_text, columns=COLUMNS, sort="queue"),
    )


def _searched_text(row: InFlightRow) -> str:
    # Numbers are padded: rows with equal values are sorted by this text.
    place = f"{row.topic} {row.broker} {row.queue_id:06} {row.offset:020}"
    return f"{place} {row.message_id or ''} {row.client_id or ''} {row.client_addr or ''}"
