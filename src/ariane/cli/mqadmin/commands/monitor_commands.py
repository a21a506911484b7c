"""Monitoring of all consumer groups: lag, subscriptions, blocked queues, and offsets that brokers moved. [MonitorService]

Java's command writes its findings into a log file; here each round is printed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from ariane.cli.mqadmin.command import CommandList, Options, Output, lines
from ariane.cli.mqadmin.running_info_text import blocked_text
from ariane.cli.mqadmin.value_text import number, time_ms
from ariane.clock import SYSTEM_CLOCK
from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerUnavailable
from ariane.cluster.groups.consumer_status import (
    BlockedQueue,
    GroupSummary,
    InconsistentTopic,
    find_blocked,
    find_inconsistent,
    is_settled,
)
from ariane.errors import NotFound
from ariane.model.message import MessageQueue
from ariane.model.topic import OFFSET_MOVED_TOPIC

ROUND_S = 60.0  # between rounds, as Java's service
PREFIX = "[MONITOR]"


class GroupFindings(NamedTuple):
    """State of a consumer group in one round.

    Attributes:
        group: Name of the group.
        clients: Number of its clients; None if unknown.
        lag: Messages that it has not consumed; None if unknown.
        max_queue_lag: The same of the queue with most; None if unknown.
        max_age_ms: Age of the oldest message that it has not consumed; None if it has none, or unknown.
        inconsistent: Topics to which its clients are not subscribed alike.
        blocked: Queues that a client owns and does not consume.
        unavailable: Brokers and clients that did not respond.
    """

    group: str
    clients: int | None
    lag: int | None
    max_queue_lag: int | None
    max_age_ms: int | None
    inconsistent: list[InconsistentTopic]
    blocked: list[BlockedQueue]
    unavailable: tuple[BrokerUnavailable, ...]


class MovedOffsetReader:
    """Reads the events that brokers store when they move the offset of a group, from the time of the first call on."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._offsets: dict[MessageQueue, int] | None = None  # next offset to read; None before the first call

    async def read_new(self) -> list[str]:
        """Return the bodies of new events, JSON texts; an empty list from the first call."""
        located = {at.queue: at for at in await self._admin.locate_queues(OFFSET_MOVED_TOPIC)}
        is_first, offsets = self._offsets is None, self._offsets or {}
        bodies = []
        for queue, at in located.items():
            low, stop = await self._admin.queue_bounds(at)
            # A queue that appears later is read from its begin: its broker started meanwhile.
            offset = stop if is_first else max(offsets.get(queue, low), low)
            while offset < stop:
                page = await self._admin.pull(at, offset)
                bodies += [record.body.decode(errors="replace") for record in page.records]
                offset = max(page.next_offset, offset + 1)
            offsets[queue] = offset
        self._offsets = offsets
        return bodies


COMMANDS = CommandList()


@COMMANDS.add("startMonitoring")
async def start_monitoring(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the state of all consumer groups every minute, until interrupted."""
    moved = MovedOffsetReader(admin)
    while True:
        findings = [
            await _examine(admin, summary)
            for summary in await admin.summarize_groups(await admin.groups_with_retry_topic())
        ]
        now_ms = SYSTEM_CLOCK.now_ms()
        events = await moved.read_new()
        data = {"timeMs": now_ms, "groups": findings, "movedOffsets": events}
        unavailable = tuple(dict.fromkeys(missing for group in findings for missing in group.unavailable))
        yield Output(_text(now_ms, findings, events), data, unavailable)
        await asyncio.sleep(ROUND_S)


async def _examine(admin: Admin, summary: GroupSummary) -> GroupFindings:
    lag, now_ms = summary.lag, SYSTEM_CLOCK.now_ms()
    ages = await admin.unconsumed_ages(lag)
    known_ages = [age for age in ages.by_queue.values() if age is not None]
    queue_lags = [queue.lag for queue in lag.queues]
    inconsistent: list[InconsistentTopic] = []
    blocked: list[BlockedQueue] = []
    unavailable = (*summary.unavailable, *ages.unavailable)
    if summary.connections is not None and summary.connections.connections:
        try:
            clients = await admin.consumer_states(lag.group, summary.connections)
        except NotFound:
            pass  # the last client has gone since: nothing is left to examine
        else:
            unavailable += clients.unavailable
            blocked = [queue for state in clients.states.values() for queue in find_blocked(state, now_ms)]
            if clients.states and is_settled(clients.states, now_ms):
                inconsistent = find_inconsistent(lag.group, clients.states)
    return GroupFindings(
        group=lag.group,
        clients=summary.clients,
        lag=lag.total,
        max_queue_lag=None if lag.total is None else max((value or 0 for value in queue_lags), default=0),
        max_age_ms=max(known_ages, default=None),
        inconsistent=inconsistent,
        blocked=blocked,
        unavailable=tuple(dict.fromkeys(unavailable)),
    )


def _text(now_ms: int, findings: list[GroupFindings], events: list[str]) -> str:
    rows = [f"{PREFIX} {time_ms(now_ms)} {len(findings)} consumer groups"]
    for group in findings:
        facts = {
            "clients": group.clients,
            "lag": group.lag,
            "maxQueueLag": group.max_queue_lag,
            "maxDelayMs": group.max_age_ms if group.lag else 0 if group.lag == 0 else None,
        }
        rows.append(
            f"{PREFIX} group={group.group} " + " ".join(f"{name}={number(value)}" for name, value in facts.items())
        )
        for topic in group.inconsistent:
            shown = ", ".join(f"{client} {expression or 'none'}" for client, expression in topic.expressions.items())
            rows.append(f"{PREFIX} group={group.group} different subscriptions to {topic.topic}: {shown}")
        rows += [f"{PREFIX} group={group.group} {blocked_text(queue).strip()}" for queue in group.blocked]
    rows += [f"{PREFIX} offset moved: {event}" for event in events]
    return lines(rows)
