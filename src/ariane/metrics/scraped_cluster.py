"""State of a cluster at the time of a scrape. Pure values; `cluster_poller` and `broker_source` fill them.

    ScrapedCluster ─┬─ ScrapedBroker       one per broker, slaves included; without values if it did not respond
                     ├─ GroupState        one per consumer group whose clients are known; absent: unknown
                     └─ ClientRates    one per client, group and topic

Unknown values are None or missing from their mapping, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from ariane.model.topic import DLQ_PREFIX
from ariane.protocol.requests.callbacks import ConsumeStatus
from ariane.protocol.requests.routing import MASTER_ID

Pair = tuple[str, str]
"""Topic and group."""

QueueRange = tuple[int, int, int]
"""Queue id, min offset, max offset."""


class MinuteRate(NamedTuple):
    """A statistic over the last minute."""

    sum: int
    per_s: float


class ScrapedBroker(msgspec.Struct, frozen=True, kw_only=True):
    """One broker."""

    cluster: str
    """Value of the label `cluster`."""
    name: str
    """Broker name, which a master and its slaves share."""
    broker_id: int
    """0: master."""
    addr: str
    """ip:port as registered with the name servers."""
    is_up: bool
    """Whether the broker responded."""
    runtime: Mapping[str, str] = {}
    """Runtime information (request 28), as texts by RocketMQ's key."""
    topics: Mapping[str, tuple[QueueRange, ...]] = {}
    """Queues of each topic; of masters only, as the following ones."""
    offsets: Mapping[Pair, Mapping[int, int]] = {}
    """Committed offsets by queue."""
    producers: Mapping[str, int] | None = None
    """Number of connected producers of each group; None: unknown."""
    rates: Mapping[tuple[str, str], MinuteRate] = {}
    """Statistics by RocketMQ's name and key."""
    ages_ms: Mapping[Pair, int] = {}
    """Age of the oldest message that a group has not consumed, for groups with a lag."""
    expected_topics: frozenset[str] | None = frozenset()
    """Topics of a master that did not respond, as far as they are known; None: unknown."""

    @property
    def is_master(self) -> bool:
        """Whether the broker is the master of its name."""
        return self.broker_id == MASTER_ID


class ConnectedClient(NamedTuple):
    """A client of a group: its address as the broker sees it, and its id."""

    addr: str
    client_id: str


class GroupState(NamedTuple):
    """A consumer group: its connected clients, whether it broadcasts, and the topics that it subscribes to."""

    clients: tuple[ConnectedClient, ...] = ()
    is_broadcasting: bool = False
    topics: frozenset[str] = frozenset()


class ClientRates(NamedTuple):
    """Rates of one client in one topic, as the client reports them."""

    client: ConnectedClient
    group: str
    topic: str
    status: ConsumeStatus


class ScrapedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all brokers that name servers list."""

    brokers: tuple[ScrapedBroker, ...]
    groups: Mapping[str, GroupState] = {}
    statuses: tuple[ClientRates, ...] = ()

    def masters(self) -> Iterator[ScrapedBroker]:
        """Yield the masters that responded."""
        return (broker for broker in self.brokers if broker.is_master and broker.is_up)

    def is_partial(self, topic: str) -> bool:
        """Return whether a master that did not respond has, or may have, queues of a topic."""
        return any(
            broker.expected_topics is None or topic in broker.expected_topics
            for broker in self.brokers
            if broker.is_master and not broker.is_up
        )


class GroupQueue(NamedTuple):
    """A queue of a group. `offset` is None if the group has committed none there."""

    queue_id: int
    max_offset: int
    offset: int | None

    @property
    def lag(self) -> int | None:
        """Messages that are not consumed yet; None if unknown."""
        if self.offset is None:
            return 0 if self.max_offset == 0 else None
        return max(0, self.max_offset - self.offset)


class GroupProgressAt(NamedTuple):
    """Progress of a group in a topic on one broker."""

    broker: ScrapedBroker
    topic: str
    group: str
    queues: tuple[GroupQueue, ...]

    @property
    def lag(self) -> int | None:
        """Messages that are not consumed yet; None if a queue's lag is unknown."""
        lags = [queue.lag for queue in self.queues]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def reported_lag(self) -> int:
        """The lag as brokers report it (208): a queue without a committed offset counts from 0."""
        return sum(queue.max_offset - max(0, queue.offset or 0) for queue in self.queues)

    @property
    def offset(self) -> int:
        """Sum of the committed offsets, as brokers report them: 0 without one."""
        return sum(max(0, queue.offset or 0) for queue in self.queues)


def list_pairs(broker: ScrapedBroker, groups: Mapping[str, GroupState]) -> Iterator[Pair]:
    """Yield the pairs of topic and group of a broker, without dead letter topics.

    These are the pairs with committed offsets and those of subscriptions. As in RocketMQ, the offsets of an online group in a
    topic that it does not subscribe to any more are ignored.
    """
    for topic, group in broker.offsets:
        state = groups.get(group)
        is_stale = state is not None and bool(state.topics) and topic not in state.topics
        if topic in broker.topics and not topic.startswith(DLQ_PREFIX) and not is_stale:
            yield topic, group
    for group, state in groups.items():
        for topic in state.topics:
            if topic in broker.topics and (topic, group) not in broker.offsets and not topic.startswith(DLQ_PREFIX):
                yield topic, group


def progress(snapshot: ScrapedCluster) -> Iterator[GroupProgressAt]:
    """Yield the progress of all groups on all masters."""
    for broker in snapshot.masters():
        for topic, group in list_pairs(broker, snapshot.groups):
            offsets = broker.offsets.get((topic, group), {})
            queues = tuple(
                GroupQueue(queue_id, last, offsets.get(queue_id)) for queue_id, _, last in broker.topics[topic]
            )
            yield GroupProgressAt(broker, topic, group, queues)
