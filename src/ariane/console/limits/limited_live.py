"""The polled state of the cluster as an account sees it."""

from __future__ import annotations

import msgspec

from ariane.console.limits.access import Access, current_access
from ariane.console.live.live_cluster import WAIT_S, SnapshotSource
from ariane.console.live.live_snapshot import GroupRow, LiveSnapshot, TopicRow

SNAPSHOTS_MAX = 16  # of different limits; older ones are computed again


class LimitedLive:
    """Snapshots for the sender of the request in progress.

    Args:
        live: Snapshots of everything.
    """

    def __init__(self, live: SnapshotSource) -> None:
        self._live = live
        self._limited: dict[Access, tuple[LiveSnapshot, LiveSnapshot]] = {}  # by access: of everything, and limited

    async def snapshot(self, wait_s: float = WAIT_S) -> LiveSnapshot:
        """Return the newest snapshot as the sender of the request may see it."""
        snapshot, access = await self._live.snapshot(wait_s), current_access()
        if not access.is_limited:
            return snapshot
        former = self._limited.pop(access, None)
        limited = former[1] if former is not None and former[0] is snapshot else limit_snapshot(snapshot, access)
        self._limited[access] = snapshot, limited
        while len(self._limited) > SNAPSHOTS_MAX:
            del self._limited[next(iter(self._limited))]
        return limited


def limit_snapshot(snapshot: LiveSnapshot, access: Access) -> LiveSnapshot:
    """Return a snapshot without hidden topics and groups. Totals of the cluster and its brokers stay as they are."""
    topics = tuple(_limit_topic(row, access) for row in snapshot.topics if access.sees_topic(row.topic))
    groups = tuple(_limit_group(row, access) for row in snapshot.groups if access.sees_group(row.group))
    return msgspec.structs.replace(
        snapshot,
        topics=topics,
        groups=groups,
        topic_index={row.topic: row for row in topics},
        group_index={row.group: row for row in groups},
    )


def _limit_topic(row: TopicRow, access: Access) -> TopicRow:
    return msgspec.structs.replace(row, groups=tuple(filter(access.sees_group, row.groups)))


def _limit_group(row: GroupRow, access: Access) -> GroupRow:
    blocked = row.blocked and tuple(queue for queue in row.blocked if access.sees_topic(queue.topic))
    return msgspec.structs.replace(row, topics=tuple(filter(access.sees_topic, row.topics)), blocked=blocked)
