"""Blocked queues in lists and alerts: offsets that stand still although clients are connected and messages are pending."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from ariane.console.alerts.alert_rules import AlertMetric
from ariane.console.alerts.readings import MetricReading, read_snapshot
from ariane.console.areas.groups.group_list import SORT_KEYS, is_selected, state_of
from ariane.console.live.blocked_queues import OffsetObserver
from ariane.console.live.live_snapshot import BlockedOffset, GroupRow, LiveSnapshot
from ariane.metrics.polling.pauses import Pauses
from ariane.metrics.polling.scraped_cluster import (
    ConnectedClient,
    GroupState,
    ScrapedBroker,
    ScrapedCluster,
    compute_progress,
)

CLIENT = ConnectedClient("10.0.0.9:5000", "10.0.0.9@1")
ONLINE = GroupState((CLIENT,), False, frozenset({"T"}), "CONSUME_PASSIVELY")
Found = dict[str, list[tuple[int, int]]]


class Polls:
    """Polls of a topic with three queues, whose last one has no committed offset at first; group G starts it at 0."""

    def __init__(self, state: GroupState = ONLINE) -> None:
        self.observer = OffsetObserver()
        self.state = state

    def at(self, second: int, offsets: Mapping[int, int], last: int = 20, state: GroupState | None = None) -> Found:
        """Return queue ids with the second since when they are blocked, by group."""
        broker = ScrapedBroker(
            cluster="c", name="a", broker_id=0, addr="a:1", is_up=True, offsets={("T", "G"): offsets},
            topics={"T": tuple((queue_id, 0, last) for queue_id in range(3))}, starts={"T": frozenset({2})},
        )  # fmt: skip
        groups = {"G": state or self.state}
        progress = asyncio.run(compute_progress([broker], groups, Pauses()))
        cluster = ScrapedCluster(brokers=(broker,), groups=groups, progress=progress)
        blocked = self.observer.observe(cluster, 1000 * second)
        if blocked is None:
            return {"unknown": []}
        return {group: [(item.queue_id, item.since_ms // 1000) for item in items] for group, items in blocked.items()}


def test_an_offset_that_stands_still_for_a_minute_is_blocked() -> None:
    polls = Polls()
    assert polls.at(0, {0: 1, 1: 5}) == {"unknown": []}
    assert polls.at(30, {0: 2, 1: 5}) == {"unknown": []}
    # Queue 0 has moved since, queue 1 has not, and queue 2 was never consumed.
    assert polls.at(60, {0: 3, 1: 5}) == {"G": [(1, 0), (2, 0)]}
    assert polls.at(80, {0: 3, 1: 20, 2: 1}) == {}
    assert polls.at(139, {0: 3, 1: 20, 2: 1}) == {"G": [(0, 60)]}
    assert polls.at(140, {0: 3, 1: 20, 2: 1}) == {"G": [(0, 60), (2, 80)]}


def test_a_queue_without_pending_messages_is_not_blocked() -> None:
    polls = Polls()
    for second in (0, 60, 120):
        assert not polls.at(second, {0: 20, 1: 20, 2: 20}).get("G")
    # Messages arrive: the time begins with the first poll that finds them.
    assert polls.at(180, {0: 20, 1: 20, 2: 20}, last=21) == {}
    assert polls.at(240, {0: 20, 1: 20, 2: 20}, last=25) == {"G": [(0, 180), (1, 180), (2, 180)]}


@pytest.mark.parametrize(
    "state",
    [
        GroupState(),
        GroupState((CLIENT,), True, frozenset({"T"}), "CONSUME_PASSIVELY"),
        GroupState((CLIENT,), False, frozenset({"T"}), "CONSUME_ACTIVELY"),
    ],
    ids=["offline", "broadcasting", "pull"],
)
def test_only_groups_with_push_consumers_are_observed(state: GroupState) -> None:
    polls = Polls(state)
    assert [polls.at(second, {0: 1, 1: 1}) for second in (0, 60, 120)] == [{"unknown": []}, {}, {}]
    # A client that has just connected gets its minute.
    assert polls.at(180, {0: 1, 1: 1}, state=ONLINE) == {}
    assert polls.at(240, {0: 1, 1: 1}, state=ONLINE) == {"G": [(0, 180), (1, 180), (2, 180)]}


QUEUES = (BlockedOffset("T", "a", 1, 5_000), BlockedOffset("T", "a", 2, 9_000))
ROWS = (
    GroupRow(group="blocked", clients=1, lag=41, blocked=QUEUES),
    GroupRow(group="moving", clients=1, lag=900, blocked=()),
    GroupRow(group="new", clients=1, lag=3),
    GroupRow(group="offline", clients=0, lag=7, blocked=()),
    GroupRow(group="silent", clients=1, lag=7, blocked=(), tps_is_partial=True),
)


def test_blocked_is_a_state_of_lists() -> None:
    assert [state_of(row) for row in ROWS] == ["blocked", "online", "online", "offline", "online"]
    assert [row.group for row in ROWS if is_selected(row, "blocked")] == ["blocked"]
    assert is_selected(ROWS[0], "online")  # its clients are connected
    by_state = sorted(ROWS, key=SORT_KEYS["state"])  # type: ignore[arg-type, return-value]
    assert [row.group for row in by_state][:2] == ["blocked", "offline"]


def test_blocked_queues_are_a_metric_of_alerts() -> None:
    readings = read_snapshot(LiveSnapshot(as_of_ms=1, base_as_of_ms=1, groups=ROWS))
    assert readings.values[AlertMetric.GROUP_BLOCKED] == {
        "blocked": MetricReading(2),
        "moving": MetricReading(0),
        "new": MetricReading(None),  # not observed for a minute yet
        "offline": MetricReading(0),
        "silent": MetricReading(0, is_minimum=True),
    }
