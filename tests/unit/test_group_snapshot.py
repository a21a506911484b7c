"""State of all groups as `ariane doctor` reads it: which are asked again, and what stays unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ariane.clock import SystemClock
from ariane.cluster.connection import BrokerServer
from ariane.cluster.diagnosis.findings import Backlog, ConsumerGroupState
from ariane.cluster.diagnosis.group_snapshot import GroupSnapshotOperations
from ariane.cluster.groups.group_admin import GroupConnections, GroupNames
from ariane.cluster.groups.group_lag import GroupLag, QueueLag, Subscriptions, UnconsumedAges
from ariane.errors import ServerUnavailable
from ariane.protocol.requests.admin import ClientConnection

MINUTE_MS = 60_000
MASTER = BrokerServer("C", "a", 0, "a:1")


class InstantClock(SystemClock):
    """A clock whose waits take no time."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def lag_of(group: str, broker_offset: int, consumer_offset: int | None) -> GroupLag:
    return GroupLag(group, (QueueLag("T", "a", 0, broker_offset, consumer_offset, None),), 1.0, True, ())


class ScriptedGroups(GroupSnapshotOperations):
    """Groups with scripted lags and clients.

    Attributes:
        lags: Lags of a group, one per measurement.
        ages: Age of the oldest message of a group.
        online: Groups with one client, and their message models.
    """

    def __init__(
        self, lags: Mapping[str, Sequence[GroupLag]], ages: Mapping[str, int], online: Mapping[str, str]
    ) -> None:
        super().__init__("ns:1")
        self.lags = {group: list(some) for group, some in lags.items()}
        self.ages = ages
        self.online = online

    async def list_groups(self, **_: Any) -> GroupNames:
        return GroupNames(tuple(sorted(self.lags)), ())

    async def list_topics(self) -> list[str]:
        return ["T"]

    async def consumer_connections(
        self, group: str, servers: Sequence[BrokerServer] | None = None
    ) -> GroupConnections | None:
        if group not in self.online:
            return None
        client = ClientConnection("10.0.0.7:1", "c1", "JAVA", 399)
        model = self.online[group]
        return GroupConnections(group, (client,), {"c1": MASTER}, frozenset({"a"}), None, model, None, {}, ())

    async def group_lag(
        self,
        group: str,
        topic: str | None = None,
        *,
        cluster: str | None = None,
        subscriptions: Subscriptions | None = None,
    ) -> GroupLag:
        some = self.lags[group]
        return some.pop(0) if len(some) > 1 else some[0]

    async def unconsumed_ages(self, lag: GroupLag) -> UnconsumedAges:
        return UnconsumedAges({queue.queue: self.ages.get(lag.group) for queue in lag.queues}, ())

    async def consumer_states(self, *_: Any, **__: Any) -> Any:
        class NoStates:
            states: Mapping[str, Any] = {}

        return NoStates


def states_of(groups: GroupSnapshotOperations) -> tuple[Mapping[str, ConsumerGroupState] | None, list[float]]:
    clock = InstantClock()
    return asyncio.run(groups.group_states([MASTER], clock)), clock.waits


def test_all_groups_are_counted_and_only_late_ones_are_measured_again() -> None:
    lags = {
        "offline": [lag_of("offline", 10, 7)],
        "idle": [lag_of("idle", 10, 10)],
        "burst": [lag_of("burst", 9_000, 10)],
        "late": [lag_of("late", 1_000, 100), lag_of("late", 1_200, 110)],
        "broadcast": [lag_of("broadcast", 10, 0)],
    }
    ages = {"offline": 90 * MINUTE_MS, "burst": 5_000, "late": 2 * MINUTE_MS}
    online = {"idle": "CLUSTERING", "burst": "CLUSTERING", "late": "CLUSTERING", "broadcast": "BROADCASTING"}
    states, waits = states_of(ScriptedGroups(lags, ages, online))
    assert states is not None
    assert {name: (state.clients, state.backlog) for name, state in states.items()} == {
        "broadcast": (1, None),
        "burst": (1, Backlog(8_990, False, 5_000)),
        "idle": (1, None),
        "late": (1, Backlog(900, False, 2 * MINUTE_MS, growth=190, arrived=200)),
        "offline": (0, Backlog(3, False, 90 * MINUTE_MS)),
    }
    assert waits == [10.0]


def test_nothing_waits_without_a_late_group() -> None:
    _, waits = states_of(ScriptedGroups({"idle": [lag_of("idle", 10, 10)]}, {}, {"idle": "CLUSTERING"}))
    assert waits == []


def test_groups_that_cannot_be_listed_are_unknown() -> None:
    class Silent(ScriptedGroups):
        async def list_groups(self, **_: Any) -> GroupNames:
            raise ServerUnavailable("no broker is registered")

    states, _ = states_of(Silent({}, {}, {}))
    assert states is None
