"""Polls all brokers, slaves included, for the progress of consumer groups. [no counterpart: consoles poll masters only]

    target     code  result                                       requests per round
    name srv   106   list of brokers                              1
    broker     28    runtime information                          1
    master     21    its topics                                   1 in TOPIC_REFRESH_ROUNDS rounds
    master     43    committed offsets of all groups              1
    master     202   min and max offsets of a topic's queues      1 per topic
    master     14    where a group without an offset starts       1 per queue with messages and without a committed offset
    master     315   TOPIC_PUT_NUMS                               1 per topic
    broker     315   GROUP_GET_NUMS; its _SIZE if it is not 0     1 or 2 per topic and group
    master     315   SNDBCK_PUT_NUMS                              1 per topic and group
    master     303   age of the oldest unconsumed message         1 per topic and group with a lag

Nothing is pulled: a pull would count as consumption in these very statistics, and 303 returns ages by the broker's own clock.
Items beyond `PollLimits` are polled in the following rounds. Committed offsets are requested before the max offsets, so that a
lag is never too small. The backlog of a slave is the difference of the commit log ends (28).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.lag import has_unknown_start, next_offset, queue_lag
from ariane.cluster.servers.statistics_requests import Pair, StatisticsRequests
from ariane.errors import ArianeError, ConfigError
from ariane.metrics_collector.sample import (
    BrokerRuntime,
    GroupProgress,
    OmittedPart,
    Sample,
    StatsCounter,
    TopicQueueRanges,
)
from ariane.model.topic import (
    AUTO_CREATE_TOPIC,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    TopicConfig,
    is_system_topic,
    reply_topic,
    retry_topic,
)
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.name_servers import NameServerClient
from ariane.protocol.requests.routing import MASTER_ID

T = TypeVar("T")

TOPIC_REFRESH_ROUNDS = 12  # rounds between requests for the topics of a master; earlier if a group has a new topic
FORGET_MS = 600_000  # a broker that name servers no longer list is still polled for this time
SIZE_OF = {"GROUP_GET_NUMS": "GROUP_GET_SIZE"}


class PollLimits(NamedTuple):
    """Maximum number of items that a round requests from one broker."""

    topics: int = 500
    pairs: int = 500  # pairs of topic and group whose offsets are recorded and whose statistics are requested
    ages: int = 50


DEFAULT_LIMITS = PollLimits()


class PolledBroker(NamedTuple):
    """A broker as listed by the name server."""

    cluster: str
    broker: str
    broker_id: int
    addr: str


class _MasterState:
    """State of a broker name between rounds."""

    def __init__(self) -> None:
        # Topics of the last list (21), which is large and therefore requested rarely.
        self.topics: Mapping[str, TopicConfig] = {}
        self.topics_round: int | None = None  # round of that list; None before the first
        self.missing: frozenset[str] = frozenset()  # topics for which groups have offsets but which do not exist
        self.pairs: tuple[Pair, ...] = ()  # pairs of this round, whose statistics are also requested from slaves
        self.skipped_pairs = 0  # pairs that the limit left for following rounds; slaves report the same number
        self.turns: dict[str, int] = {}  # where the next round-robin turn starts, by kind of item: pairs, topics, ages

    def turn(self, subject: str, items: Sequence[T], limit: int) -> list[T]:
        """Return the next items, at most `limit`, in round-robin order."""
        selected, self.turns[subject] = take_round_robin(items, limit, self.turns.get(subject, 0))
        return selected


def take_round_robin(items: Sequence[T], limit: int, first: int) -> tuple[list[T], int]:
    """Return at most `limit` items starting at index `first`, wrapping around, and the index at which the next turn starts."""
    if len(items) <= limit:
        return list(items), 0
    first %= len(items)
    doubled = [*items, *items]
    return doubled[first : first + limit], (first + limit) % len(items)


class BrokerPoller:
    """Polls all brokers: `await poller.poll()` returns one sample per broker."""

    def __init__(
        self,
        peers: ConnectionPool,
        name_servers: Sequence[str],
        *,
        collector: str,
        interval_ms: int,
        limits: PollLimits = DEFAULT_LIMITS,
        timeout_ms: float = 3000,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        for key, limit in limits._asdict().items():
            if limit < 1:
                raise ConfigError(f"{key} in a round", limit, "expected at least 1")
        self._peers = peers  # connections to brokers and name servers
        # Lists the brokers at the start of each round.
        self._name_servers = NameServerClient(peers, name_servers, timeout_ms=timeout_ms)
        self._collector = collector  # name in the samples: separates collectors that poll the same cluster
        # Intended time between rounds; published, because readers derive from it when a collector has stopped.
        self._interval_ms = interval_ms
        self._limits = limits  # bounds of a round per broker; the rest is polled in the following rounds
        self._timeout_ms = timeout_ms  # per request
        # All times of samples are by this one clock, so that rates do not depend on the brokers' clocks.
        self._clock = clock
        self._number = 0  # rounds since the start; a gap in a collector's samples is a lost round
        # By broker name and id, with the time when a name server last listed it: brokers outlive their registration by
        # FORGET_MS.
        self._targets: dict[tuple[str, int], tuple[PolledBroker, int]] = {}
        self._masters: dict[str, _MasterState] = {}  # by broker name; slaves use the pairs of their master
        self.dropped = 0  # samples that were dropped; reported in the following samples

    async def poll(self) -> list[Sample]:
        """Poll every broker and return one sample each; the sample of a broker that does not respond contains the error.

        Raises:
            ArianeError: no name server responded, and no broker is known from an earlier round.
        """
        self._number += 1
        now_ms = self._clock.now_ms()
        brokers, reason = await self._list_brokers()
        for target in brokers:
            self._targets[target.broker, target.broker_id] = target, now_ms
        expired = [key for key, (_, seen_ms) in self._targets.items() if now_ms - seen_ms > FORGET_MS and not reason]
        for key in expired:
            del self._targets[key]
        for broker in self._masters.keys() - {broker for broker, _ in self._targets}:
            del self._masters[broker]
        targets = [target for target, _ in self._targets.values()]
        masters = [target for target in targets if target.broker_id == MASTER_ID]
        slaves = [target for target in targets if target.broker_id != MASTER_ID]
        # Slaves follow, because they are polled for the groups that their master has just returned.
        samples = await asyncio.gather(*(self._sample(target, now_ms) for target in masters))
        return samples + await asyncio.gather(*(self._sample(target, now_ms) for target in slaves))

    async def _list_brokers(self) -> tuple[list[PolledBroker], str | None]:
        """Return the brokers of the first name server that responds; if none does, no brokers and the reason."""
        try:
            table = (await self._name_servers.fetch_cluster()).broker_addr_table
        except ArianeError as error:
            if not self._targets:
                raise
            return [], str(error)
        return [
            PolledBroker(broker.cluster, name, broker_id, addr)
            for name, broker in sorted(table.items())
            for broker_id, addr in sorted(broker.broker_addrs.items())
        ], None

    async def _sample(self, target: PolledBroker, now_ms: int) -> Sample:
        """Return a sample; of a broker that does not respond, one with the error and without data."""
        requests = StatisticsRequests(self._peers, target.addr, timeout_ms=self._timeout_ms)
        master = self._masters.setdefault(target.broker, _MasterState())
        started = self._clock.monotonic()
        data: dict[str, Any]
        try:
            runtime = await self._runtime(requests)
            if target.broker_id == MASTER_ID:
                topics, groups, omitted = await self._offsets(requests, target, master)
            else:
                topics, groups = (), ()
                omitted = OmittedPart(groups=master.skipped_pairs, counters=master.skipped_pairs)
            counters = await self._counters(requests, master.pairs, [item.topic for item in topics], target.broker_id)
            data = {"runtime": runtime, "topics": topics, "groups": groups, "counters": counters, "skipped": omitted}
            data["failed_requests"] = tuple(requests.faults)
        except ArianeError as error:
            data = {"error": str(error)}
        return Sample(
            collector=self._collector,
            round=self._number,
            at_ms=now_ms,
            interval_ms=self._interval_ms,
            duration_ms=round((self._clock.monotonic() - started) * 1000),
            requests=requests.count,
            **target._asdict(),
            dropped_samples=self.dropped,
            **data,
        )

    async def _runtime(self, requests: StatisticsRequests) -> BrokerRuntime:
        table = await requests.runtime_table()

        def number(key: str) -> int | None:
            text = table.get(key, "")
            return int(text) if text.lstrip("-").isdigit() else None

        return BrokerRuntime(
            self._clock.now_ms(),
            boot_ms=number("bootTimestamp"),
            put_total=number("msgPutTotalTodayNow"),
            get_total=number("msgGetTotalTodayNow"),
            log_min=number("commitLogMinOffset"),
            log_max=number("commitLogMaxOffset"),
            dispatch_behind_bytes=number("dispatchBehindBytes"),
        )

    async def _offsets(
        self, requests: StatisticsRequests, target: PolledBroker, master: _MasterState
    ) -> tuple[tuple[TopicQueueRanges, ...], tuple[GroupProgress, ...], OmittedPart]:
        """Return the bounds of queues and the progress of groups in them."""
        committed = await requests.committed_offsets()
        at_ms = self._clock.now_ms()
        offsets = {pair: queues for pair, queues in committed.items() if not pair[1].startswith(SYSTEM_GROUP_PREFIX)}
        await self._refresh_topics(requests, master, {topic for topic, _ in offsets})
        retried = {(retry_topic(group), group): dict[int, int]() for _, group in offsets}
        offsets = retried | offsets
        existing_pairs = sorted(pair for pair in offsets if pair[0] in master.topics)
        pairs = master.turn("pairs", existing_pairs, self._limits.pairs)
        consumed = {topic for topic, _ in pairs}
        lone_topics = [
            name for name in sorted(master.topics) if _is_polled_alone(name, target) and name not in consumed
        ]
        # Topics of groups are always polled; the limit applies to the others.
        turn = master.turn("topics", lone_topics, self._limits.topics)
        names = sorted({*consumed, *turn})
        topics = {
            item.topic: item
            for item in await _gather_results(
                self._queue_ranges(requests, name, master.topics[name].read_queue_nums) for name in names
            )
        }
        starts = await _starts(requests, {pair: offsets[pair] for pair in pairs}, topics)
        positions = {pair: _positions(pair[0], offsets[pair], topics.get(pair[0]), starts) for pair in pairs}
        lagging = [pair for pair in pairs if any(position.lag for position in positions[pair])]
        polled = master.turn("ages", lagging, self._limits.ages)
        ages = dict(await _gather_results(self._ages(requests, pair) for pair in polled))
        groups = [_progress(pair, at_ms, positions[pair], topics.get(pair[0]), ages.get(pair, {})) for pair in pairs]
        master.pairs, master.skipped_pairs = tuple(pairs), len(existing_pairs) - len(pairs)
        omitted = OmittedPart(
            len(lone_topics) - len(turn), master.skipped_pairs, master.skipped_pairs, len(lagging) - len(polled)
        )
        return tuple(topics.values()), tuple(groups), omitted

    async def _refresh_topics(self, requests: StatisticsRequests, master: _MasterState, consumed: set[str]) -> None:
        """Request the master's topics if the last list is old, or if a group has a topic that is not in it."""
        new_topics = consumed - master.topics.keys() - master.missing
        is_recent = master.topics_round is not None and self._number - master.topics_round < TOPIC_REFRESH_ROUNDS
        if is_recent and not new_topics:
            return
        master.topics = await requests.topic_configs()
        master.missing = frozenset(consumed - master.topics.keys())
        master.topics_round = self._number

    async def _queue_ranges(
        self, requests: StatisticsRequests, topic: str, read_queues: int
    ) -> TopicQueueRanges | None:
        ranges = await requests.queue_ranges(topic, read_queues)
        return None if ranges is None else TopicQueueRanges(topic, self._clock.now_ms(), ranges)

    async def _ages(self, requests: StatisticsRequests, pair: Pair) -> tuple[Pair, dict[int, int]] | None:
        ages = await requests.oldest_ages(*pair)
        return None if ages is None else (pair, ages)

    async def _counters(
        self, requests: StatisticsRequests, pairs: Sequence[Pair], topics: Sequence[str], broker_id: int
    ) -> tuple[StatsCounter, ...]:
        requested: list[tuple[str, str, str | None]] = [("GROUP_GET_NUMS", *pair) for pair in pairs]
        if broker_id == MASTER_ID:
            requested += [("TOPIC_PUT_NUMS", topic, None) for topic in topics]
            requested += [("SNDBCK_PUT_NUMS", *pair) for pair in pairs if not pair[0].startswith(RETRY_PREFIX)]
        results = await _gather_results(self._counter(requests, *item) for item in requested)
        more = [(SIZE_OF[item.name], item.topic, item.group) for item in results if item.sum and item.name in SIZE_OF]
        return (*results, *await _gather_results(self._counter(requests, *item) for item in more))

    async def _counter(
        self, requests: StatisticsRequests, name: str, topic: str, group: str | None
    ) -> StatsCounter | None:
        key = topic if group is None else f"{topic}@{group}"
        # Zeros if the broker does not have the statistic yet: it creates one with the first event.
        minute = await requests.minute_statistic(name, key)
        return (
            None if minute is None else StatsCounter(name, topic, group, self._clock.now_ms(), minute.sum, minute.tps)
        )


async def _gather_results(responses: Iterable[Awaitable[T | None]]) -> list[T]:
    """Return the results that are not None. If a broker is lost, raise its error after all requests have ended."""
    results = await asyncio.gather(*responses, return_exceptions=True)
    if faults := [item for item in results if isinstance(item, BaseException)]:
        raise faults[0]
    return [item for item in results if item is not None and not isinstance(item, BaseException)]


def _is_polled_alone(topic: str, target: PolledBroker) -> bool:
    """Return whether a topic without groups is polled: topics that exist only for the servers are not."""
    return not is_system_topic(topic) and topic not in (
        AUTO_CREATE_TOPIC,
        target.broker,
        target.cluster,
        reply_topic(target.cluster),
    )


class _GroupPosition(NamedTuple):
    """The offset at which a group continues in a queue, and the bounds of the queue; None: unknown."""

    queue_id: int
    offset: int | None
    first: int | None
    last: int | None

    @property
    def lag(self) -> int | None:
        return None if self.last is None else queue_lag(self.offset, self.last)


async def _starts(
    requests: StatisticsRequests,
    offsets: Mapping[Pair, Mapping[int, int]],
    topics: Mapping[str, TopicQueueRanges],
) -> frozenset[tuple[str, int]]:
    """Return the queues, as topic and id, that groups without a committed offset start at 0."""
    queues = {
        (topic, queue_id): group
        for (topic, group), committed in offsets.items()
        for queue_id, first, last in (topics[topic].queues if topic in topics else ())
        if has_unknown_start(committed.get(queue_id), first, last)
    }
    answers = await asyncio.gather(*(requests.starts_first(*queue, group) for queue, group in queues.items()))
    return frozenset(queue for queue, is_first in zip(queues, answers, strict=True) if is_first)


def _positions(
    topic: str, offsets: Mapping[int, int], ends: TopicQueueRanges | None, starts: frozenset[tuple[str, int]]
) -> list[_GroupPosition]:
    """Return the positions of a group in all queues of a topic; in those with committed offsets if the queues are unknown."""
    if ends is None:
        return [_GroupPosition(queue_id, offset, None, None) for queue_id, offset in sorted(offsets.items())]
    return [
        _GroupPosition(
            queue_id,
            next_offset(offsets.get(queue_id), first, last, starts_first=(topic, queue_id) in starts),
            first,
            last,
        )
        for queue_id, first, last in ends.queues
    ]


def _progress(
    pair: Pair, at_ms: int, positions: Iterable[_GroupPosition], ends: TopicQueueRanges | None, ages: Mapping[int, int]
) -> GroupProgress:
    queues = tuple((*position, ages.get(position.queue_id) if position.lag else None) for position in positions)
    return GroupProgress(pair[1], pair[0], at_ms, ends.at_ms if ends else None, queues)
