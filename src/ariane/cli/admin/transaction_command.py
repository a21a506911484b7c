"""`ariane transaction`: lists open and discarded transactions of the brokers, and resumes the checks of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.admin.admin_session import AdminSession, ChangeSession, ClusterName, changes_data, table
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import flag_option, number_option
from ariane.cli.output.help_format import create_app
from ariane.clock import utc_of

if TYPE_CHECKING:
    from ariane.cluster.messages.transaction_admin import HalfMessage
    from ariane.reports.report import Table

app = create_app("List open transactions and resume their checks.")

LIMIT = 20
LIMIT_MAX = 100_000


@app.command(
    "list",
    "ariane transaction list",
    "ariane transaction list --over-limit",
    "ariane transaction list --cluster DefaultCluster --json",
)
def list_(
    *,
    over_limit: Annotated[
        bool, flag_option("--over-limit", "Half messages discarded after transactionCheckMax checks instead.")
    ] = False,
    cluster: ClusterName = None,
    limit: Annotated[
        int, number_option(minimum=1, maximum=LIMIT_MAX, help="Maximum number of rows per broker.")
    ] = LIMIT,
    session: AdminSession,
) -> None:
    """List open transactions: half messages without a decision."""
    listed = session.read(
        lambda admin: (
            admin.list_check_limit_exceeded(cluster=cluster, limit=limit)
            if over_limit
            else admin.list_open_transactions(cluster=cluster, limit=limit)
        )
    )
    rows = [half for broker in listed.brokers for half in broker.messages]
    total = sum(broker.total for broker in listed.brokers)
    kind = "discarded half messages" if over_limit else "open transactions"
    omitted = f"; {total - len(rows):,} omitted, raise --limit to see them" if total > len(rows) else ""
    remark = f"{total:,} {kind}{omitted}." if rows else f"No {kind}."
    session.show(listed, *([_table(rows)] if rows else []), remark)
    session.finish(listed.unavailable)


@app.command("resume", "ariane transaction resume ID --dry-run", "ariane transaction resume ID")
def resume(
    message_id: Annotated[
        str,
        typer.Argument(
            parser=shared_options.non_blank, metavar="ID", help="Unique key or offset id of the half message."
        ),
    ],
    session: ChangeSession,
) -> None:
    """Make the broker check a half message again, with a reset check counter.

    Resuming a message twice creates two transactions.
    """
    changes = session.run(lambda admin: admin.resume_checks(message_id))
    session.show(changes_data(changes), f"Resumed the checks of {message_id} on {changes[0].addr}.")


def _table(messages: list[HalfMessage]) -> Table:
    names = ("stored (UTC)", "message id", "topic", "group", "keys", "checks")
    rows = (
        (
            utc_of(half.stored_ms if half.first_stored_ms is None else half.first_stored_ms),
            half.unique_key,
            half.topic,
            half.group,
            half.keys,
            half.checks,
        )
        for half in messages
    )
    return table(names, rows)
