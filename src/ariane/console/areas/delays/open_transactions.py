"""Transactions: open half messages with their age and checks, those beyond the check limit, and checks on demand."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ariane.cluster.messages.transaction_admin import HalfMessage
from ariane.console.areas.admin_results import result_of, texts_of
from ariane.console.services import ConsoleServices
from ariane.console.web.form_fields import OptionalText
from ariane.console.web.paging import ListQuery, Page, paginate, sort_keys
from ariane.console.web.view_model import ChangeResult, DryRunForm, PartialView, View
from ariane.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC

READ_DEFAULT = 1_000
READ_MAX = 10_000

TransactionState = Literal["open", "discarded"]


class TransactionQuery(ListQuery):
    """Which transactions to return."""

    state: TransactionState = "open"
    """`open`: without a decision; `discarded`: half messages beyond the check limit, including those resumed since."""
    cluster: str = ""
    """Only brokers of this cluster."""
    group: str = ""
    """Only this producer group."""
    limit: int = Field(READ_DEFAULT, ge=1, le=READ_MAX)
    """Half messages to read per broker; totals count all of them."""


class TransactionRow(View):
    """A half message."""

    message_id: str
    """Unique key, the same in all copies of the half message."""
    offset_message_id: str
    """Id of the newest copy."""
    topic: str
    """Topic to which a commit delivers the message."""
    group: str
    """Producer group whose members the broker asks for a decision."""
    keys: list[str]
    """Business keys."""
    checks: int
    """Checks so far."""
    stored_ms: int | None
    """When the half message was stored first, in milliseconds since the epoch; null: unknown."""
    last_copy_ms: int
    """When its newest copy was stored: each check stores one."""
    born_ms: int
    """When the producer sent it, by the producer's clock."""
    stored_in: str
    """Topic that stores the half message."""
    age_ms: int | None
    """Time since it was stored first, by the clocks of the broker and this console; null: unknown."""
    immunity_s: str | None
    """Age in seconds before the first check, as the producer set it; null: the broker's setting applies."""
    body_size: int
    """Size of the body in bytes, as stored."""
    broker: str


class BrokerTransactions(View):
    """Half messages of one broker."""

    broker: str
    total: int
    """All of its half messages of this state."""
    read: int
    """Half messages that were read, at most the limit."""


class TransactionsView(PartialView):
    """Half messages of all brokers that responded."""

    state: TransactionState
    """State that was asked for."""
    cluster: str
    """Cluster that was asked for; empty: all."""
    group: str
    """Producer group that was asked for; empty: all."""
    limit: int
    """Half messages that are read per broker."""
    total: int | None
    """Half messages of this state; null if a broker did not respond."""
    is_truncated: bool
    """Whether a broker has more of them than the limit."""
    oldest_ms: int | None
    """Age of the oldest of those that were read, in milliseconds; null: none, or unknown."""
    brokers: list[BrokerTransactions]
    """Totals per broker."""
    transactions: Page[TransactionRow]
    """Half messages that were read."""


class ResumeChecksForm(DryRunForm):
    """Restart of the checks of a half message."""

    broker: OptionalText = None
    """Name of the broker, for an offset id that contains a former address of it."""


COLUMNS = sort_keys(
    "checks", "topic", "group", "broker", age="age_ms",
    stored=lambda row: row.last_copy_ms if row.stored_ms is None else row.stored_ms,
)  # fmt: skip


async def transaction_list(services: ConsoleServices, query: TransactionQuery) -> TransactionsView:
    """Return half messages of all masters."""
    as_of_ms = services.clock.now_ms()
    admin = services.admin()
    read = admin.list_open_transactions if query.state == "open" else admin.list_check_limit_exceeded
    result = await read(cluster=query.cluster or None, limit=query.limit)
    rows = [
        _row(half, query.state, as_of_ms)
        for broker in result.brokers
        for half in broker.messages
        if query.group in ("", half.group)
    ]  # fmt: skip
    brokers = [BrokerTransactions.of(broker, read=len(broker.messages)) for broker in result.brokers]
    ages = [row.age_ms for row in rows]
    present = [age for age in ages if age is not None]
    return TransactionsView.of(
        query,
        as_of_ms=as_of_ms,
        unavailable=texts_of(result.unavailable),
        total=None if result.unavailable else sum(broker.total for broker in brokers),
        is_truncated=any(broker.total > broker.read for broker in brokers),
        # A half message of unknown age may be older than all others.
        oldest_ms=max(present, default=None) if len(present) == len(ages) else None,
        brokers=brokers,
        transactions=paginate(
            rows, query, name=lambda row: f"{row.message_id} {' '.join(row.keys)} {row.topic} {row.group}",
            columns=COLUMNS, sort="stored",
        ),
    )  # fmt: skip


async def resume_checks(services: ConsoleServices, message_id: str, form: ResumeChecksForm) -> ChangeResult:
    """Make the broker check a half message again, with a reset check counter.

    An open one is checked in the next round. One that was discarded becomes an open transaction again; resuming it twice creates
    two.

    Raises:
        NotFound: no half message has this id.
        ReplyError: the broker rejected the request, for example because the transaction is decided.
    """
    admin = services.admin(is_dry_run=form.is_dry_run)
    await admin.resume_checks(message_id, broker=form.broker)
    return result_of(admin, f"{form.verb('resume', 'resumed')} the checks of half message {message_id}")


def _row(half: HalfMessage, state: TransactionState, now_ms: int) -> TransactionRow:
    return TransactionRow.of(
        half,
        message_id=half.unique_key,
        keys=half.keys.split(),
        stored_ms=half.first_stored_ms,
        last_copy_ms=half.stored_ms,
        stored_in=HALF_TOPIC if state == "open" else CHECK_MAX_TIME_TOPIC,
        # The clock of the broker may be ahead of this one.
        age_ms=None if half.first_stored_ms is None else max(0, now_ms - half.first_stored_ms),
    )
