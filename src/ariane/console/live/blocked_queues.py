"""Finds queues that the clients of a group do not consume, from the offsets of successive polls.

    ScrapedCluster of each poll ─→ observe ─→ queues with a lag whose offset has not moved for BLOCKED_MS, by group

The state that each client reports (307) costs a request per client: for lists of 10,000 groups it would be minutes old. The offsets
are in every poll, also if a client does not respond. The offset at which a push consumer continues moves
with every message that it consumes, or that its filter skips. Groups that poll for messages (pull) may pause, and are not observed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from ariane.cluster.groups.consumer_status import BLOCKED_MS
from ariane.console.live.live_snapshot import BlockedOffset
from ariane.metrics.polling.scraped_cluster import GroupState, ScrapedCluster

PUSH_TYPES = ("CONSUME_PASSIVELY", 1)  # by name, or by number from clients that send enumerations so

Blocked = Mapping[str, tuple[BlockedOffset, ...]]
"""Blocked queues by group."""


class _Position(NamedTuple):
    """The offset at which a group continues in a queue, and the time of the first poll that found it there with a lag."""

    offset: int
    since_ms: int


class OffsetObserver:
    """Remembers the offsets of queues with a lag, of online groups only: the others need none."""

    def __init__(self) -> None:
        # By broker name, topic and group, then by queue id.
        self._positions: dict[tuple[str, str, str], dict[int, _Position]] = {}
        self._started_ms: int | None = None  # time of the first poll

    def observe(self, cluster: ScrapedCluster, now_ms: int) -> Blocked | None:
        """Return the blocked queues by group, with the offsets of this poll; None in the first minute: they are unknown."""
        if self._started_ms is None:
            self._started_ms = now_ms
        positions: dict[tuple[str, str, str], dict[int, _Position]] = {}
        blocked: defaultdict[str, list[BlockedOffset]] = defaultdict(list)
        for progress in cluster.progress:
            if not progress.lag.minimum or not is_observed(cluster.groups.get(progress.group)):
                continue
            key = progress.broker.name, progress.topic, progress.group
            before = self._positions.get(key, {})
            current = positions[key] = {}
            for queue_id, offset, last in progress.positions():
                if offset is None or offset >= last:
                    continue
                position = before.get(queue_id)
                if position is None or position.offset != offset:
                    position = _Position(offset, now_ms)
                current[queue_id] = position
                if now_ms - position.since_ms >= BLOCKED_MS:
                    queue = BlockedOffset(progress.topic, progress.broker.name, queue_id, position.since_ms)
                    blocked[progress.group].append(queue)
        self._positions = positions
        if now_ms - self._started_ms < BLOCKED_MS:
            return None
        return {group: tuple(sorted(queues)) for group, queues in blocked.items()}


def is_observed(state: GroupState | None) -> bool:
    """Return whether a group has push consumers that share its queues."""
    return state is not None and bool(state.clients) and not state.is_broadcasting and is_push(state)


def is_push(state: GroupState) -> bool:
    """Return whether the clients of a group consume by a listener, and not by polling."""
    return state.consume_type in PUSH_TYPES
