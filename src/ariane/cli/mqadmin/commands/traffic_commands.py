"""The command on the traffic of topics. Reference: admin-and-dashboard 1.3."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from ariane.cli.mqadmin.command import CommandList, Option, Options, Output, lines
from ariane.cli.mqadmin.value_text import UNKNOWN, number
from ariane.cluster.admin import Admin
from ariane.cluster.groups.topic_traffic import TopicTraffic, Traffic

ROW = "{:<64}  {:<64} {:>12} {:>11} {:>11} {:>14} {:>14}"


COMMANDS = CommandList()


@COMMANDS.add(
    "statsAll",
    Option("a", "activeTopic", "Omit topics without messages today.", is_flag=True),
    Option("t", "topic", "Only this topic.", metavar="NAME"),
)
async def stats_all(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print messages per second and per day, and lag, of topics and their consumer groups."""
    report = await admin.fetch_traffic(options.topic)
    header = ROW.format(
        "#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour"
    )
    shown = [topic for topic in report.topics if not options.activeTopic or _is_active(topic)]
    rows = [row for topic in shown for row in _rows(topic, only_active=options.activeTopic)]
    yield Output(lines([header, *rows]), shown, report.unavailable)


def _is_active(topic: TopicTraffic) -> bool:
    return _has_messages(topic.stored) or any(_has_messages(group.received) for group in topic.groups)


def _has_messages(traffic: Traffic | None) -> bool:
    """Return whether there were messages today; unknown counts as yes."""
    return traffic is None or traffic.messages_24h > 0


def _rows(topic: TopicTraffic, *, only_active: bool) -> Iterator[str]:
    stored = topic.stored
    if not topic.groups:
        yield ROW.format(topic.topic, "", 0, _tps(stored), "", _messages(stored), "NO_CONSUMER")
    for group in topic.groups:
        if only_active and not _has_messages(stored) and not _has_messages(group.received):
            continue
        yield ROW.format(
            topic.topic, group.group, number(group.lag), _tps(stored), _tps(group.received), _messages(stored),
            _messages(group.received),
        )  # fmt: skip


def _tps(traffic: Traffic | None) -> str:
    return UNKNOWN if traffic is None else f"{traffic.tps:.2f}"


def _messages(traffic: Traffic | None) -> str:
    return UNKNOWN if traffic is None else str(traffic.messages_24h)
