"""Rates that need no request: the broker reported zero, and nothing that it counts happened since.

    offsets unmoved ├── SETTLED_S ──┤ broker reports 0 ├── offsets still unmoved: the rate is still 0

A broker samples its counters every 10 s, so an event shortly before a report may appear in the next one only: offsets must have
been unmoved for some time before. For topics this is exact, as each counted message moves the end of a queue; topics of the broker
itself are always requested. Messages that a group receives move no offset if it does not commit (it broadcasts, or its consumer
is stuck), at a slave as at a master. So a group's rate is only skipped while it has no clients. A proxy of 5.x hides clients:
rates of its brokers are always requested.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from ariane.metrics.polling.runtime_values import number
from ariane.metrics.polling.scraped_cluster import GroupState, Pair, ScrapedBroker
from ariane.model.topic import is_system_topic
from ariane.protocol.versions import version_name

Statistic = tuple[str, str]
"""Name and key."""

SETTLED_S = 30.0  # three samples


class _Unmoved:
    """Since when values are unchanged."""

    def __init__(self) -> None:
        self._since: dict[Hashable, tuple[object, float]] = {}  # value, and the time when it was first seen

    def observe(self, values: Iterable[tuple[Hashable, object]], now_s: float) -> None:
        """Replace all values."""
        before, self._since = self._since, {}
        for key, value in values:
            earlier = before.get(key)
            self._since[key] = earlier if earlier is not None and earlier[0] == value else (value, now_s)

    def since(self, key: Hashable) -> float:
        """Return the time; infinity for an unknown value."""
        earlier = self._since.get(key)
        return float("inf") if earlier is None else earlier[1]


class SettledRates:
    """Decides which rates a round requests. All times are monotonic."""

    def __init__(self) -> None:
        self._ends = _Unmoved()  # ends of the queues of a topic, by broker name and topic
        self._offsets = _Unmoved()  # committed offsets, by broker name and pair
        self._offline = _Unmoved()  # groups without clients
        self._zeros: dict[str, dict[Statistic, float]] = {}  # when a broker last reported zero, by address

    def observe_offsets(self, brokers: Iterable[ScrapedBroker], now_s: float) -> None:
        """Compare the offsets of the masters that responded with those of the last observation."""
        masters = [broker for broker in brokers if broker.is_master and broker.is_up]
        ends = (
            ((broker.name, topic), tuple(last for _, _, last in ranges))
            for broker in masters
            for topic, ranges in broker.topics.items()
        )
        self._ends.observe(ends, now_s)
        offsets = (((broker.name, pair), table) for broker in masters for pair, table in broker.offsets.items())
        self._offsets.observe(offsets, now_s)

    def observe_groups(self, groups: Mapping[str, GroupState], now_s: float) -> None:
        """Compare which groups have no clients with the last observation."""
        self._offline.observe(((name, True) for name, state in groups.items() if not state.clients), now_s)

    def observe_zeros(self, addr: str, zeros: Iterable[Statistic], skipped: Iterable[Statistic], now_s: float) -> None:
        """Remember the zeros that a broker reported, and those for which it was not asked."""
        before = self._zeros.get(addr, {})
        self._zeros[addr] = {key: before[key] for key in skipped} | dict.fromkeys(zeros, now_s)

    def is_zero(self, broker: ScrapedBroker, statistic: Statistic) -> bool:
        """Return whether a rate is certainly still zero."""
        reported_s = self._zeros.get(broker.addr, {}).get(statistic)
        if reported_s is None:
            return False
        name, key = statistic
        if name == "TOPIC_PUT_NUMS":
            return not is_system_topic(key) and reported_s - self._ends.since((broker.name, key)) >= SETTLED_S
        if name != "GROUP_GET_NUMS" or not _is_version_4(broker):
            return False
        topic, _, group = key.partition("@")
        pair: Pair = (topic, group)
        since_s = max(self._offsets.since((broker.name, pair)), self._offline.since(group))
        return reported_s - since_s >= SETTLED_S


def _is_version_4(broker: ScrapedBroker) -> bool:
    version = number(broker.runtime, "brokerVersion")
    return version is not None and version_name(int(version)).startswith("V4_")
