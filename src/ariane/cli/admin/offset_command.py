"""`ariane offset`: where consumer groups stand, and moves them to a time, an offset, the end, or where another group stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli.admin.admin_session import AdminSession, ChangeSession, table
from ariane.cli.admin.group_command import GroupArgument
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import flag_option, number_option, topic_option
from ariane.cli.options.time_options import parse_time
from ariane.cli.output.help_format import create_app
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import UsageError

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.groups.offset_admin import OffsetTarget, ResetResult

app = create_app("Print and move the offsets of consumer groups.")

TopicArgument = Annotated[str, typer.Argument(parser=shared_options.topic_name, metavar="TOPIC", help="Topic.")]


@app.command("show", "ariane offset show billing", "ariane offset show billing -t orders")
def show(
    group: GroupArgument,
    *,
    topic: Annotated[str | None, topic_option("-t", "--topic", help="Only this topic.")] = None,
    session: AdminSession,
) -> None:
    """Print the committed offsets of a consumer group."""
    from ariane.cli.mqadmin.commands.progress_commands import queue_data
    from ariane.reports.report import utc_time

    async def work(admin: Admin) -> Any:
        await admin.check_group(group)
        return await admin.group_lag(group, topic)

    lag = session.read(work)
    names = ("TOPIC", "BROKER", "QUEUE", "COMMITTED", "END", "LAG", "CONSUMED UNTIL")
    rows = tuple(
        (
            queue.topic,
            queue.broker,
            queue.queue_id,
            queue.consumer_offset,
            queue.broker_offset,
            queue.lag,
            utc_time(queue.consumed_ms) if queue.consumed_ms is not None else "-",
        )
        for queue in lag.queues
    )
    session.show([queue_data(queue) for queue in lag.queues], table(names, rows))
    session.finish(lag.unavailable)


@app.command(
    "reset",
    "ariane offset reset billing orders --to 1h --dry-run",
    "ariane offset reset billing orders --to 2026-01-31T10:00",
    "ariane offset reset billing orders --to earliest",
    "ariane offset reset billing orders --to-offset 4711",
)
def reset(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time: earliest, latest, a duration before now (30s, 10m, 2h), or UTC (2026-01-31T10:00).",
        ),
    ] = None,
    to_offset: Annotated[
        int | None,
        number_option(
            minimum=0, help="Offset in every queue, within its bounds; for groups without connected clients."
        ),
    ] = None,
    only_back: Annotated[
        bool, flag_option("--only-back", "Move no queue forwards, which would skip messages.")
    ] = False,
    session: ChangeSession,
) -> None:
    """Move a consumer group to a time or an offset in every queue of a topic.

    Connected clients get the new offsets at once and go on from there.
    """
    target = _target(to, to_offset)
    _print_reset(session, group, topic, target, is_forced=not only_back)


@app.command("skip", "ariane offset skip billing orders --dry-run")
def skip(group: GroupArgument, topic: TopicArgument, session: ChangeSession) -> None:
    """Move a consumer group to the end of a topic.

    Messages that it has not consumed are skipped.
    """
    from ariane.cluster.groups.offset_admin import LATEST, OffsetTarget

    _print_reset(session, group, topic, OffsetTarget(LATEST), is_forced=True)


@app.command("clone", "ariane offset clone billing audit orders")
def clone(
    source: Annotated[
        str, typer.Argument(parser=shared_options.group_name, metavar="SOURCE", help="Group whose offsets are copied.")
    ],
    destination: Annotated[
        str, typer.Argument(parser=shared_options.group_name, metavar="DESTINATION", help="Group that gets them.")
    ],
    topic: TopicArgument,
    session: ChangeSession,
) -> None:
    """Copy the offsets of a consumer group in a topic to another group.

    The destination must have no connected client, which would commit over the copied offsets.
    """

    async def work(admin: Admin) -> Any:
        await admin.check_group(source)
        return await admin.clone_offsets(source, destination, [topic], only_offline=True)

    copied = session.run(work)
    rows = tuple((queue.broker, queue.queue_id, offset) for queue, offset in copied)
    data = [{"broker": queue.broker, "queueId": queue.queue_id, "offset": offset} for queue, offset in copied]
    session.show(data, table(("BROKER", "QUEUE", "OFFSET"), rows))


def _target(to: str | None, to_offset: int | None) -> OffsetTarget:
    from ariane.cluster.groups.offset_admin import EARLIEST, LATEST, OffsetTarget

    if (to is None) == (to_offset is None):
        raise UsageError("reset", None, "specify exactly one of --to and --to-offset")
    if to is None:
        return OffsetTarget(offset=to_offset)
    if to in ("earliest", "latest"):
        return OffsetTarget(EARLIEST if to == "earliest" else LATEST)
    return OffsetTarget(parse_time(to, SYSTEM_CLOCK.now_ms(), "--to"))


def _print_reset(session: AdminSession, group: str, topic: str, target: OffsetTarget, *, is_forced: bool) -> None:
    """Reset, and print a row per queue; in a dry run the same rows, and nothing changes."""

    async def work(admin: Admin) -> ResetResult:
        await admin.check_group(group)
        return await admin.reset_offsets(group, topic, target, is_forced=is_forced)

    result = session.read(work)
    rows = tuple(
        (
            queue.broker,
            queue.queue_id,
            queue.consumer_offset,
            queue.new_offset,
            _moved(queue.consumer_offset, queue.new_offset),
            "clients" if queue.broker in result.online else "broker",
        )
        for queue in result.queues
    )
    names = ("BROKER", "QUEUE", "COMMITTED", "NEW", "MOVED", "THROUGH")
    verb = "Would move" if session.is_dry_run else "Moved"
    data = {"group": group, "topic": topic, "isDryRun": session.is_dry_run, **result._asdict()}
    session.show(data, f"{verb} {group} in {topic}:", table(names, rows))


def _moved(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
