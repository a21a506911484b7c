"""State of a cluster at the time of a scrape. Pure values; `cluster_poller` and `broker_source` fill them.

    ScrapedCluster ─┬─ ScrapedBroker       one per broker, slaves included; without values if it did not respond
                     ├─ GroupState        one per consumer group whose clients are known; absent: unknown
                     └─ ClientRates    one per client, group and topic

Unknown values are None or missing from their mapping, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from ariane.cluster.lag import LagSum, has_unknown_start, is_consumed_topic, next_offset, queue_lag, sum_lags
from ariane.metrics.polling.pauses import Pauses
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, TopicConfig
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
    name: str
    """Broker name, which a master and its slaves share."""
    broker_id: int
    """0: master."""
    addr: str
    """ip:port as registered with the name servers."""
    is_up: bool
    is_registered: bool = True
    """Whether a name server lists it; one that none lists any more is polled for some more time (`PollScope.remember_s`)."""
    reason: str = ""
    """Why it did not respond; empty if it did."""
    runtime: Mapping[str, str] = {}
    """Runtime information (request 28), as texts by RocketMQ's key."""
    topics: Mapping[str, tuple[QueueRange, ...]] = {}
    """Queues of each topic; of masters only, as the following ones."""
    topic_configs: Mapping[str, TopicConfig] = {}
    group_names: frozenset[str] = frozenset()
    """Groups that have a configuration or offsets."""
    offsets: Mapping[Pair, Mapping[int, int]] = {}
    """Committed offsets by queue."""
    starts: Mapping[str, frozenset[int]] = {}
    """Queues by topic that a group without a committed offset starts at 0, as the broker answered."""
    producers: Mapping[str, int] | None = None
    """Number of connected producers of each group; None: unknown."""
    rates: Mapping[tuple[str, str], MinuteRate] = {}
    """Statistics by RocketMQ's name and key; of slaves, too, if they were requested."""
    has_rates: bool = False
    """Whether all statistics were requested: then one that is not in `rates` was never counted, unless it is in `lost_rates`."""
    lost_rates: frozenset[tuple[str, str]] = frozenset()
    """Statistics whose request the broker rejected."""
    ages_ms: Mapping[Pair, int] = {}
    """Age of the oldest message that a group has not consumed, for groups with a lag."""
    expected_topics: frozenset[str] | None = frozenset()
    """Topics of a master that did not respond, as far as they are known; None: unknown."""
    expected_groups: frozenset[str] | None = frozenset()
    """Its groups, in the same way."""

    @property
    def is_master(self) -> bool:
        """Whether the broker is the master of its name."""
        return self.broker_id == MASTER_ID


class ConnectedClient(NamedTuple):
    """A client of a group: its address as the broker sees it, its id, its language, and the number of its version."""

    addr: str
    client_id: str
    language: str | None = None
    version: int | None = None


class GroupState(NamedTuple):
    """A consumer group: its connected clients, whether it broadcasts, and the topics that it subscribes to.

    `consume_type` is that of RocketMQ: CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (pull); None without clients.
    """

    clients: tuple[ConnectedClient, ...] = ()
    is_broadcasting: bool = False
    topics: frozenset[str] = frozenset()
    consume_type: str | int | None = None


class ClientRates(NamedTuple):
    """Rates of one client in one topic, as the client reports them."""

    client: ConnectedClient
    group: str
    topic: str
    status: ConsumeStatus


class PairProgress(msgspec.Struct, frozen=True, gc=False):
    """Progress of a group in a topic on one broker.

    There may be 10,000 of them, each with some queues. The queues are therefore no objects, and the garbage collector, whose
    passes would delay the broker's requests, does not visit the progress (`gc=False`; it is part of no cycle).
    """

    broker: ScrapedBroker
    """The master."""
    topic: str
    """May be the retry topic of the group."""
    group: str
    ranges: tuple[QueueRange, ...]
    """The queues of the topic that consumers read; none if the broker rejected the request for them."""
    offsets: Mapping[int, int]
    """Committed offsets by queue; missing: none."""
    starts: frozenset[int]
    """Queues that the group starts at 0 without a committed offset."""
    lag: LagSum
    """Messages that are not consumed yet."""
    reported_lag: int
    """The lag as brokers report it (208): a queue without a committed offset counts from 0."""
    offset: int
    """Sum of the committed offsets, as brokers report them: 0 without one."""

    def queue_lags(self) -> Iterator[tuple[int, int]]:
        """Yield queue id and lag of each queue whose lag is known."""
        for queue_id, offset, last in self.positions():
            lag = queue_lag(offset, last)
            if lag is not None:
                yield queue_id, lag

    def positions(self) -> Iterator[tuple[int, int | None, int]]:
        """Yield id, the offset at which the group continues (None: unknown), and max offset of each queue."""
        return _positions(self.ranges, self.offsets, self.starts)


class ScrapedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all brokers that name servers list."""

    brokers: tuple[ScrapedBroker, ...]
    groups: Mapping[str, GroupState] = {}
    statuses: tuple[ClientRates, ...] = ()
    progress: tuple[PairProgress, ...] = ()
    """Progress of all groups on all masters, as `iter_progress` computes it."""

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


def list_pairs(broker: ScrapedBroker, groups: Mapping[str, GroupState]) -> Iterator[Pair]:
    """Yield the pairs of topic and group of a broker whose lag counts (`is_consumed_topic`), without dead letter topics.

    A topic that was deleted has none. One whose queues are unknown, because the broker rejected the request, has.
    """
    offline = GroupState()

    def is_pair(topic: str, group: str, *, has_offsets: bool) -> bool:
        exists = (topic in broker.topics or topic in broker.topic_configs) and not topic.startswith(DLQ_PREFIX)
        return exists and is_consumed_topic(topic, group, groups.get(group, offline).topics, has_offsets=has_offsets)

    for topic, group in broker.offsets:
        if is_pair(topic, group, has_offsets=True):
            yield topic, group
    subscribed = ((topic, group) for group, state in groups.items() for topic in state.topics)
    retried = (
        (topic, topic.removeprefix(RETRY_PREFIX))
        for topic, ranges in broker.topics.items()
        if topic.startswith(RETRY_PREFIX) and any(last for _, _, last in ranges)
    )
    for topic, group in dict.fromkeys((*subscribed, *retried)):
        exists = group in groups or group in broker.group_names
        if exists and (topic, group) not in broker.offsets and is_pair(topic, group, has_offsets=False):
            yield topic, group


def find_unknown_starts(
    broker: ScrapedBroker, pairs: Iterable[Pair], groups: Mapping[str, GroupState]
) -> dict[tuple[str, int], str]:
    """Return the queues, as topic and id, for which only the broker can decide where a group without an offset starts.

    The value is a group without one. The answer is the same for all of them. The clients of a broadcasting group store its offsets.
    """
    return {
        (topic, queue_id): group
        for topic, group in pairs
        if not _is_broadcasting(groups, group)
        for queue_id, first, last in _read_queues(broker, topic) or ()
        if has_unknown_start(broker.offsets.get((topic, group), {}).get(queue_id), first, last)
    }


def iter_progress(broker: ScrapedBroker, groups: Mapping[str, GroupState]) -> Iterator[PairProgress]:
    """Yield the progress of all groups on a master. The caller may pause between them: there may be thousands."""
    for topic, group in list_pairs(broker, groups):
        ranges, offsets = _read_queues(broker, topic), broker.offsets.get((topic, group), {})
        starts = frozenset[int]() if _is_broadcasting(groups, group) else broker.starts.get(topic, frozenset())
        positions = _positions(ranges or (), offsets, starts)
        lag = sum_lags((queue_lag(offset, last) for _, offset, last in positions), is_partial=ranges is None)
        total = reported_lag = 0
        for queue_id, _, last in ranges or ():
            committed = max(0, offsets.get(queue_id, 0))
            total += committed
            reported_lag += last - committed
        yield PairProgress(broker, topic, group, ranges or (), offsets, starts, lag, reported_lag, total)


def _is_broadcasting(groups: Mapping[str, GroupState], group: str) -> bool:
    state = groups.get(group)
    return state is not None and state.is_broadcasting


def _read_queues(broker: ScrapedBroker, topic: str) -> tuple[QueueRange, ...] | None:
    """Return the queues that consumers read; None if the broker rejected the request for them."""
    ranges, config = broker.topics.get(topic), broker.topic_configs.get(topic)
    if ranges is None or config is None or len(ranges) <= config.read_queue_nums:
        return ranges
    return tuple(queue for queue in ranges if queue[0] < config.read_queue_nums)


def _positions(
    ranges: Iterable[QueueRange], offsets: Mapping[int, int], starts: frozenset[int]
) -> Iterator[tuple[int, int | None, int]]:
    for queue_id, first, last in ranges:
        yield queue_id, next_offset(offsets.get(queue_id), first, last, starts_first=queue_id in starts), last


async def compute_progress(
    brokers: Iterable[ScrapedBroker], groups: Mapping[str, GroupState], pauses: Pauses
) -> tuple[PairProgress, ...]:
    """Return the progress of all groups on the masters among `brokers` that responded."""
    pairs = []
    for broker in brokers:
        if broker.is_master and broker.is_up:
            for progress in iter_progress(broker, groups):
                pairs.append(progress)
                await pauses.add(1 + len(progress.ranges))
    return tuple(pairs)
