"""`ariane dead-letter`: browses the dead letters of a consumer group and resends them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.admin.admin_session import AdminSession, ChangeSession, table
from ariane.cli.admin.group_command import GroupArgument
from ariane.cli.admin.message_command import LIMIT, LIMIT_MAX, FilterOptions, Limit, search_topic
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import number_option, path_option, topic_option
from ariane.cli.output.help_format import create_app
from ariane.cli.output.message_table import message_lines
from ariane.errors import NotFound, RouteNotFound, UsageError
from ariane.model.topic import dlq_topic

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.messages.message_search import MessageFilter
    from ariane.cluster.messages.replay import ReplayOutcome
    from ariane.model.message import ReceivedMessage
    from ariane.reports.report import Table

app = create_app("Browse dead letters of a consumer group and resend them.")

FAILED = 1


@app.command("list", "ariane dead-letter list billing", "ariane dead-letter list billing --since 1d --text refused")
def list_(
    group: GroupArgument,
    *,
    filters: FilterOptions,
    limit: Limit = LIMIT,
    session: AdminSession,
) -> None:
    """List the newest dead letters of a group."""
    selection = filters.parse()
    try:
        search_topic(session, dlq_topic(group), selection, limit, is_dead_letter=True)
    except RouteNotFound:  # brokers create the topic with the first dead letter
        empty = {"messages": [], "matching": 0, "unavailable": []}
        session.show(empty, f"Group {group} has no dead letters: topic {dlq_topic(group)} does not exist.")


@app.command("show", "ariane dead-letter show billing ID")
def show(
    group: GroupArgument,
    message_id: Annotated[
        str, typer.Argument(parser=shared_options.non_blank, metavar="ID", help="Unique key or offset id.")
    ],
    session: AdminSession,
) -> None:
    """Print a dead letter with its properties and body."""
    message = session.read(lambda admin: admin.find_dead_letter(group, message_id))
    session.show(message, *message_lines(message))


@app.command(
    "resend",
    "ariane dead-letter resend billing ID --dry-run",
    "ariane dead-letter resend billing --since 1d --result resent.jsonl",
    "ariane dead-letter resend billing --key ORDER-17 --topic orders2",
)
def resend(
    group: GroupArgument,
    *,
    message_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Unique keys or offset ids; without any, all that match the filters."),
    ] = None,
    filters: FilterOptions,
    limit: Annotated[
        int,
        number_option(
            minimum=1, maximum=LIMIT_MAX, help="Maximum number of messages; more matching ones are an error."
        ),
    ] = LIMIT_MAX,
    topic: Annotated[
        str | None, topic_option("-t", "--topic", help="Target topic.  [default: the original topic of each]")
    ] = None,
    result: Annotated[
        Path | None,
        path_option(
            metavar="FILE",
            help="File for the outcomes (.jsonl or .parquet); messages that it contains as sent are skipped.",
        ),
    ] = None,
    session: ChangeSession,
) -> None:
    """Send copies of dead letters to their original topics, and print the outcome of each.

    All groups of the topic receive the copies. The dead letters stay where they are: with --result, another run skips them.
    """
    from ariane.reports.replay.replay_result import SUFFIXES, ResultFile

    selection = filters.parse()
    if message_ids and filters != FilterOptions():
        raise UsageError("ID", " ".join(message_ids), "not together with filters; specify ids or filters")
    if result is not None and result.suffix not in SUFFIXES:
        raise UsageError("--result", str(result), f"expected a file name that ends in {' or '.join(SUFFIXES)}")
    with contextlib.nullcontext() if result is None or session.is_dry_run else ResultFile(result) as journal:

        async def work(admin: Admin) -> tuple[int, list[ReplayOutcome]]:
            messages = (
                [await admin.find_dead_letter(group, message_id) for message_id in message_ids]
                if message_ids
                else await _matching(admin, group, selection, limit)
            )
            return len(messages), await admin.resend_all(messages, topic=topic, journal=journal)

        count, outcomes = session.run(work)
    sent = sum(outcome.state == "ok" for outcome in outcomes)
    skipped = f", {count - len(outcomes):,} sent before" if count > len(outcomes) else ""
    summary = f"{sent:,} sent, {len(outcomes) - sent:,} not sent{skipped}."
    session.show(outcomes, *([_outcome_table(outcomes)] if outcomes else []), summary)
    if sent < len(outcomes):
        raise typer.Exit(FAILED)


async def _matching(admin: Admin, group: str, selection: MessageFilter, limit: int) -> list[ReceivedMessage]:
    """Return all dead letters that match.

    Raises:
        UsageError: more match than the limit: none is skipped silently.
        ServerUnavailable: a broker did not respond.
        NotFound: none matches.
    """
    from ariane.errors import ServerUnavailable

    result = await admin.search(dlq_topic(group), selection, limit=limit)
    if result.unavailable:
        reasons = ", ".join(f"{broker.broker} {broker.addr}: {broker.reason}" for broker in result.unavailable)
        raise ServerUnavailable(f"cannot read all dead letters of {group}: {reasons}")
    if not result.messages:
        raise NotFound("dead letter", f"of {group} that matches")
    if result.matching is None or result.matching > limit:
        raise UsageError("--limit", str(limit), "more dead letters match; narrow the filters or raise --limit")
    return result.messages


def _outcome_table(outcomes: list[ReplayOutcome]) -> Table:
    rows = tuple(
        (
            outcome.source_message_id,
            "sent" if outcome.state == "ok" else outcome.state,
            outcome.topic or "",
            outcome.error or outcome.message_id or "",
        )
        for outcome in outcomes
    )
    return table(("message id", "outcome", "topic", "new id or reason"), rows)
