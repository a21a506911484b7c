"""Commands that move the offsets of consumer groups. Reference: admin-and-dashboard 1.4."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import NamedTuple

from ariane.cli.mqadmin.command import TOPIC, CommandList, Option, Options, Output, lines
from ariane.cli.mqadmin.option_values import yes_or_no
from ariane.cli.mqadmin.value_text import boolean, number
from ariane.cluster.admin import Admin
from ariane.cluster.groups.offset_admin import LATEST, OffsetTarget, ResetResult

NAME_WIDTH = 32  # of broker names; longer ones are cut


class ResetTime(NamedTuple):
    """A time as it was written, and in ms; LATEST for `now`."""

    text: str
    ms: int


def reset_time(text: str) -> ResetTime:
    """Parse `now`, ms since the epoch, or `yyyy-MM-dd#HH:mm:ss:SSS` in local time.

    Raises:
        ValueError: the text is none of them.
    """
    if text == "now":
        return ResetTime(text, LATEST)
    if text.isascii() and text.removeprefix("-").isdigit():
        return ResetTime(text, int(text))
    try:
        return ResetTime(text, int(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").astimezone().timestamp() * 1000))
    except ValueError:
        raise ValueError("expected now, a time in ms, or yyyy-MM-dd#HH:mm:ss:SSS") from None


GROUP = Option("g", "group", "Consumer group.", metavar="NAME", is_required=True)

FORCE = Option("f", "force", "Move forwards, too; false: only backwards.", yes_or_no, "true", "BOOL")

COMMANDS = CommandList()


@COMMANDS.add(
    "resetOffsetByTime",
    GROUP,
    TOPIC,
    Option(
        "s", "timestamp", "now, a time in ms, or yyyy-MM-dd#HH:mm:ss:SSS.", reset_time, None, "TIME", is_required=True
    ),
    FORCE,
    Option("c", "cplus", "The connected clients are C++ clients.", is_flag=True),
    is_change=True,
)
async def reset_offset_by_time(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Move a group to a time: through its connected clients, or directly if it has none."""
    group, topic, time, is_forced = options.group, options.topic, options.timestamp, options.force
    target = OffsetTarget(time.ms)
    result = await admin.reset_offsets(group, topic, target, is_forced=is_forced, for_cpp=options.cplus)
    times = f"timestamp(string)[{time.text}], timestamp(long)[{time.ms}]"
    # The two forms of Java's tool: it prints the second one if no client is connected.
    named = f"group[{group}], topic[{topic}]" if result.online else f"consumerGroup[{group}], topic[{topic}]"
    title = f"rollback consumer offset by specified {named}, force[{boolean(is_forced)}], {times}"
    yield Output(lines([title, *_rows(result)]), result, is_plan=True)


@COMMANDS.add("skipAccumulatedMessage", GROUP, TOPIC, FORCE, is_change=True)
async def skip_accumulated_message(admin: Admin, options: Options) -> AsyncIterator[Output]:
    result = await admin.reset_offsets(options.group, options.topic, OffsetTarget(LATEST), is_forced=options.force)
    yield Output(lines(_rows(result)), result, is_plan=True)


def _rows(result: ResetResult) -> list[str]:
    if result.online:
        header = f"{'#brokerName':<40}  {'#queueId':<40}  {'#offset':<40}"
        return [header] + [
            f"{queue.broker[:NAME_WIDTH]:<40}  {queue.queue_id:<40}  {number(queue.new_offset):<40}"
            for queue in result.queues
        ]
    names = ("#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset", "#rollbackOffset")
    rows = [names] + [
        (
            queue.broker[:NAME_WIDTH],
            str(queue.queue_id),
            str(queue.broker_offset),
            number(queue.consumer_offset),
            str(queue.target_offset),
            number(queue.new_offset),
        )
        for queue in result.queues
    ]
    return ["  ".join(f"{cell:<20}" for cell in row) for row in rows]


@COMMANDS.add(
    "cloneGroupOffset",
    Option("s", "srcGroup", "Group whose offsets are copied.", metavar="NAME", is_required=True),
    Option("d", "destGroup", "Group that gets them.", metavar="NAME", is_required=True),
    TOPIC,
    Option("o", "offline", "Accepted for scripts written for Java's tool; no effect.", metavar="BOOL"),
    is_change=True,
)
async def clone_group_offset(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Copy the offsets of one topic to another group."""
    copied = await admin.clone_offsets(options.srcGroup, options.destGroup, [options.topic])
    text = f"clone group offset success. srcGroup[{options.srcGroup}], destGroup=[{options.destGroup}], topic[{options.topic}]"
    data = [
        {"broker": queue.broker, "queueId": queue.queue_id, "topic": queue.topic, "offset": offset}
        for queue, offset in copied
    ]
    yield Output(text, data)
