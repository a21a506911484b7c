"""`ariane delayed`: lists the delayed messages that are pending on the brokers, and cancels one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.admin.admin_session import AdminSession, ChangeSession, table
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import number_option
from ariane.cli.options.time_options import parse_duration_ms
from ariane.cli.output.help_format import create_app
from ariane.cli.output.message_table import message_lines, time_text
from ariane.cli.output.value_format import format_duration
from ariane.clock import SYSTEM_CLOCK, utc_of

if TYPE_CHECKING:
    from ariane.cluster.messages.delayed_messages import DelayedMessage
    from ariane.reports.report import Table

app = create_app("List pending delayed messages and cancel them.")

LIMIT = 20
LIMIT_MAX = 100_000

MessageId = Annotated[
    str, typer.Argument(parser=shared_options.non_blank, metavar="ID", help="Unique key or offset id of the message.")
]


@app.command("list", "ariane delayed list --due 1h", "ariane delayed list --topic orders --limit 1000 --json")
def list_(
    *,
    due: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Due within this time from now (10m, 1h).",
            rich_help_panel=shared_options.FILTERS,
        ),
    ] = None,
    topic: shared_options.Topic = None,
    limit: Annotated[
        int, number_option(minimum=1, maximum=LIMIT_MAX, help="Maximum number of messages, the first due.")
    ] = LIMIT,
    session: AdminSession,
) -> None:
    """List pending delayed messages, the first due first.

    Includes redeliveries: their topic is the retry topic of the group. Bodies are not read: see `ariane delayed show`.
    """
    from ariane.cluster.messages.delayed_messages import DelayedFilter

    due_until_ms = None if due is None else SYSTEM_CLOCK.now_ms() + parse_duration_ms(due, "--due")
    pending = session.read(lambda admin: admin.list_delayed(DelayedFilter(due_until_ms, topic), limit=limit))
    if not pending.messages:
        remark = "No delayed message is pending." if due is None and topic is None else "No pending message matches."
    else:
        more = "; more are pending, raise --limit to see them" if pending.is_truncated else ""
        remark = f"{len(pending.messages):,} pending{more}."
    session.show(pending, *([_table(pending.messages)] if pending.messages else []), remark)
    session.finish(pending.unavailable)


@app.command("show", "ariane delayed show ID", "ariane delayed show ID --json")
def show(message_id: MessageId, session: AdminSession) -> None:
    """Print a pending delayed message with its due time, properties and body."""
    delayed = session.read(lambda admin: admin.find_delayed(message_id))
    level = "" if delayed.level is None else f", delay level {delayed.level}"
    due = f"Due         {time_text(delayed.due_ms)} ({_remaining(delayed.due_ms)}{level})"
    session.show(delayed, due, f"Target      {delayed.topic}", *message_lines(delayed.message))


@app.command("cancel", "ariane delayed cancel ID", "ariane delayed cancel ID --dry-run")
def cancel(message_id: MessageId, session: ChangeSession) -> None:
    """Cancel a pending message with a delivery time, so that it is never delivered.

    A message with a delay level cannot be cancelled.
    """
    delayed = session.run(lambda admin: admin.cancel_delayed(message_id))
    due = f"due {time_text(delayed.due_ms)} in {delayed.topic}"
    session.show(delayed, f"Cancelled {delayed.message.message_id}, {due}.")


def _table(messages: list[DelayedMessage]) -> Table:
    names = ("due (UTC)", "in", "topic", "message id", "keys", "level")
    rows = tuple(
        (
            utc_of(delayed.due_ms),
            _remaining(delayed.due_ms),
            delayed.topic,
            delayed.message.message_id,
            " ".join(delayed.message.keys),
            "-" if delayed.level is None else str(delayed.level),
        )
        for delayed in messages
    )
    return table(names, rows)


def _remaining(due_ms: int) -> str:
    """Return the time until a message is due, in its largest unit."""
    seconds = (due_ms - SYSTEM_CLOCK.now_ms()) / 1000
    return f"{'-' if seconds < 0 else ''}{format_duration(abs(seconds))}"
