"""Asking all brokers, slaves included, how far groups are: a round of the collector. [no counterpart: consoles ask masters only]

    to         code  what                                         how many requests in a round
    name srv   106   which brokers there are                      1
    broker     28    what it says of itself                       1
    master     21    its topics                                   1 in TOPICS_EVERY rounds
    master     43    committed offsets of all groups              1, whatever their number
    master     202   ends of a topic's queues                     1 per topic
    master     315   TOPIC_PUT_NUMS                               1 per topic
    broker     315   GROUP_GET_NUMS; its _SIZE where it counted   1 or 2 per topic and group
    master     315   SNDBCK_PUT_NUMS                              1 per topic and group
    master     303   age of the oldest message not consumed       1 per topic and group that is behind

Nothing is pulled: a pull would count as consumption in the very statistics that are asked for, and 303 tells ages by the
broker's own clock. What `Limits` do not let in has its turn in the next rounds. Committed offsets are asked for before the ends,
so that a lag is never too small. How far a slave is behind its master is told by the ends of their logs (28).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ArianeError, ConfigError, ProtocolError, ReplyError
from ariane.metrics_collector.sample import (
    BrokerRuntime,
    GroupProgress,
    OmittedPart,
    Sample,
    StatsCounter,
    TopicQueueRanges,
)
from ariane.model.topic import AUTO_CREATE_TOPIC, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, is_system_topic, reply_topic
from ariane.net.connection_pool import ConnectionPool
from ariane.net.name_servers import NameServerClient
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import ConsumerOffsetTable, TopicRef
from ariane.protocol.requests.routing import MASTER_ID, KvTableBody, TopicTable
from ariane.protocol.requests.stats import (
    BrokerStatsData,
    ConsumeTimeSpans,
    QueryConsumeTimeSpan,
    TopicStats,
    ViewBrokerStats,
    by_queue,
)

T = TypeVar("T")

MAX_IN_FLIGHT = 16  # questions to one broker under way at once: it serves clients beside
TOPIC_REFRESH_ROUNDS = (
    12  # rounds after which the topics of a master are asked for again; earlier when a group has a new one
)
FORGET_MS = 600_000  # a broker that no name server names any more is asked for so long
FAULTS_MAX = 20  # in one sample, each of them FAULT_MAX characters
FAULT_MAX = 300
AGE_MAX_MS = 20 * 365 * 86_400_000  # more is Java's answer for a message that is not there: now - (-1)
SIZE_OF = {"GROUP_GET_NUMS": "GROUP_GET_SIZE"}


class PollLimits(NamedTuple):
    """What a round asks of one broker at most."""

    topics: int = 500
    pairs: int = 500
    """Pairs of topic and group: their offsets are told and their counters asked."""
    ages: int = 50


DEFAULT_LIMITS = PollLimits()


class PolledBroker(NamedTuple):
    """A broker, as the name server names it."""

    cluster: str
    broker: str
    broker_id: int
    addr: str


Pair = tuple[str, str]
"""Topic and group."""


class _MasterState:
    """What is remembered of a broker name between rounds."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self.topics_round: int | None = None
        self.missing: frozenset[str] = frozenset()
        """Topics that groups have offsets of and that are not there."""
        self.pairs: tuple[Pair, ...] = ()
        """The pairs of this round, whose counters slaves are asked for, too."""
        self.left_pairs = 0
        self.turns: dict[str, int] = {}

    def turn(self, what: str, items: Sequence[T], most: int) -> list[T]:
        """The next `most` of the items, in turn."""
        taken, self.turns[what] = take_round_robin(items, most, self.turns.get(what, 0))
        return taken


def take_round_robin(items: Sequence[T], most: int, first: int) -> tuple[list[T], int]:
    """`most` of the items from `first` on, round and round, and where the next turn begins."""
    if len(items) <= most:
        return list(items), 0
    first %= len(items)
    twice = [*items, *items]
    return twice[first : first + most], (first + most) % len(items)


class _PollRequests:
    """Asks one broker, a few questions at once, and counts them."""

    def __init__(self, peers: ConnectionPool, addr: str, timeout_ms: float) -> None:
        self.asked = 0
        self.faults: list[str] = []
        self._peers = peers
        self._addr = addr
        self._timeout_ms = timeout_ms
        self._limit = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def request(self, code: RequestCode, header: msgspec.Struct | None = None) -> Command:
        async with self._limit:
            self.asked += 1
            return await self._peers.request(self._addr, code, header, timeout_ms=self._timeout_ms)

    async def ask(self, code: RequestCode, header: msgspec.Struct | None = None) -> Command:
        """ReplyError for any answer but success."""
        answer = await self.request(code, header)
        if answer.code != ResponseCode.SUCCESS:
            raise ReplyError(answer.code, answer.remark, self._addr)
        return answer

    def refused(self, what: str, why: object) -> None:
        """A question has no answer: the sample says so, and goes on without."""
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(f"{what}: {why}"[:FAULT_MAX])
        elif len(self.faults) == FAULTS_MAX:
            self.faults.append("and others")


class BrokerPoller:
    """`await sampler.round()`: one sample per broker. The first of `name_servers` that answers is taken."""

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
        for key, most in limits._asdict().items():
            if most < 1:
                raise ConfigError(f"{key} in a round", most, "give at least 1, or nothing would ever have its turn")
        self._peers = peers
        self._name_servers = NameServerClient(peers, name_servers, timeout_ms=timeout_ms)
        self._collector = collector
        self._interval_ms = interval_ms
        self._limits = limits
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._number = 0
        self._places: dict[tuple[str, int], tuple[PolledBroker, int]] = {}
        self._masters: dict[str, _MasterState] = {}
        self.dropped = 0
        """Samples that were thrown away; told in the next ones."""

    async def poll(self) -> list[Sample]:
        """Ask every broker. One that does not answer is a sample that says why. Raises the name server's fault only while
        no broker is known."""
        self._number += 1
        now_ms = self._clock.now_ms()
        named, why = await self._named()
        for place in named:
            self._places[place.broker, place.broker_id] = place, now_ms
        silent = [key for key, (_, seen_ms) in self._places.items() if now_ms - seen_ms > FORGET_MS and not why]
        for key in silent:
            del self._places[key]
        for broker in self._masters.keys() - {broker for broker, _ in self._places}:
            del self._masters[broker]
        places = [place for place, _ in self._places.values()]
        masters = [place for place in places if place.broker_id == MASTER_ID]
        slaves = [place for place in places if place.broker_id != MASTER_ID]
        # Slaves are asked for the groups that their master has just told.
        samples = await asyncio.gather(*(self._sample(place, now_ms) for place in masters))
        return samples + await asyncio.gather(*(self._sample(place, now_ms) for place in slaves))

    async def _named(self) -> tuple[list[PolledBroker], str | None]:
        """Return the brokers of the first name server that responds; if none does, no brokers and the reason."""
        try:
            table = (await self._name_servers.fetch_cluster()).broker_addr_table
        except ArianeError as error:
            if not self._places:
                raise
            return [], str(error)
        return [
            PolledBroker(broker.cluster, name, broker_id, addr)
            for name, broker in sorted(table.items())
            for broker_id, addr in sorted(broker.broker_addrs.items())
        ], None

    async def _sample(self, place: PolledBroker, now_ms: int) -> Sample:
        questions = _PollRequests(self._peers, place.addr, self._timeout_ms)
        master = self._masters.setdefault(place.broker, _MasterState())
        began = self._clock.monotonic()
        try:
            runtime = await self._runtime(questions)
            if place.broker_id == MASTER_ID:
                topics, groups, left = await self._offsets(questions, place, master)
            else:
                topics, groups, left = (), (), OmittedPart(groups=master.left_pairs, counters=master.left_pairs)
            counters = await self._counters(questions, master.pairs, [one.topic for one in topics], place.broker_id)
        except ArianeError as error:
            return self._away(place, now_ms, self._took_ms(began), questions.asked, str(error))
        blank = self._away(place, now_ms, self._took_ms(began), questions.asked, None)
        return msgspec.structs.replace(
            blank,
            runtime=runtime,
            topics=topics,
            groups=groups,
            counters=counters,
            skipped=left,
            failed_requests=tuple(questions.faults),
        )

    def _took_ms(self, began: float) -> int:
        return round((self._clock.monotonic() - began) * 1000)

    def _away(self, place: PolledBroker, now_ms: int, took_ms: int, requests: int, why: str | None) -> Sample:
        """A sample that knows nothing but why."""
        return Sample(
            collector=self._collector,
            round=self._number,
            at_ms=now_ms,
            interval_ms=self._interval_ms,
            duration_ms=took_ms,
            requests=requests,
            cluster=place.cluster,
            broker=place.broker,
            broker_id=place.broker_id,
            addr=place.addr,
            error=why,
            dropped_samples=self.dropped,
        )

    async def _runtime(self, questions: _PollRequests) -> BrokerRuntime:
        answer = await questions.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = fastjson.decode(answer.body, KvTableBody).table

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
        self, questions: _PollRequests, place: PolledBroker, master: _MasterState
    ) -> tuple[tuple[TopicQueueRanges, ...], tuple[GroupProgress, ...], OmittedPart]:
        """The ends of queues, and where groups stand in them."""
        answer = await questions.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        at_ms = self._clock.now_ms()
        offsets = _pairs(fastjson.decode(answer.body, ConsumerOffsetTable).offset_table)
        await self._know_topics(questions, master, {topic for topic, _ in offsets})
        there = sorted(pair for pair in offsets if pair[0] in master.topics)
        pairs = master.turn("pairs", there, self._limits.pairs)
        consumed = {topic for topic, _ in pairs}
        others = [name for name in sorted(master.topics) if _is_told(name, place) and name not in consumed]
        # Those of groups are told with their groups; at most `topics` others.
        turn = master.turn("topics", others, self._limits.topics)
        names = sorted({*consumed, *turn})
        topics = {one.topic: one for one in await _all(self._ends(questions, name) for name in names)}
        behind = [pair for pair in pairs if pair[0] in topics and _is_behind(offsets[pair], topics[pair[0]])]
        asked = master.turn("ages", behind, self._limits.ages)
        ages = dict(await _all(self._ages(questions, pair) for pair in asked))
        groups = [_progress(pair, at_ms, offsets[pair], topics.get(pair[0]), ages.get(pair, {})) for pair in pairs]
        master.pairs, master.left_pairs = tuple(pairs), len(there) - len(pairs)
        left = OmittedPart(len(others) - len(turn), master.left_pairs, master.left_pairs, len(behind) - len(asked))
        return tuple(topics.values()), tuple(groups), left

    async def _know_topics(self, questions: _PollRequests, master: _MasterState, consumed: set[str]) -> None:
        """Ask for the master's topics when they were not asked for long, or when a group has one that is new."""
        strange = consumed - master.topics - master.missing
        is_known = master.topics_round is not None and self._number - master.topics_round < TOPIC_REFRESH_ROUNDS
        if is_known and not strange:
            return
        answer = await questions.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        master.topics = frozenset(fastjson.decode(answer.body, TopicTable).topic_config_table)
        master.missing = frozenset(consumed - master.topics)
        master.topics_round = self._number

    async def _ends(self, questions: _PollRequests, topic: str) -> TopicQueueRanges | None:
        answer = await questions.request(RequestCode.GET_TOPIC_STATS_INFO, TopicRef(topic))
        at_ms = self._clock.now_ms()
        if answer.code != ResponseCode.SUCCESS:
            questions.refused(f"ends of {topic}", f"code {answer.code}: {answer.remark}")
            return None
        try:
            table = by_queue(fastjson.decode(answer.body, TopicStats).offset_table)
        except ProtocolError as error:
            questions.refused(f"ends of {topic}", error)
            return None
        return TopicQueueRanges(
            topic, at_ms, tuple(sorted((q.queue_id, one.min_offset, one.max_offset) for q, one in table.items()))
        )

    async def _ages(self, questions: _PollRequests, pair: Pair) -> tuple[Pair, dict[int, int]] | None:
        """Queue → how long the message that the group wants next has been stored, where there is one."""
        answer = await questions.request(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan(*pair))
        what = f"ages of {pair[0]} for {pair[1]}"
        if answer.code != ResponseCode.SUCCESS:
            questions.refused(what, f"code {answer.code}: {answer.remark}")
            return None
        try:
            spans = fastjson.decode(answer.body, ConsumeTimeSpans).consume_time_span_set
        except ProtocolError as error:
            questions.refused(what, error)
            return None
        ages = {one.message_queue.queue_id: one.delay_time for one in spans if 0 <= one.delay_time < AGE_MAX_MS}
        return pair, ages

    async def _counters(
        self, questions: _PollRequests, pairs: Sequence[Pair], topics: Sequence[str], broker_id: int
    ) -> tuple[StatsCounter, ...]:
        wanted: list[tuple[str, str, str | None]] = [("GROUP_GET_NUMS", *pair) for pair in pairs]
        if broker_id == MASTER_ID:
            wanted += [("TOPIC_PUT_NUMS", topic, None) for topic in topics]
            wanted += [("SNDBCK_PUT_NUMS", *pair) for pair in pairs if not pair[0].startswith(RETRY_PREFIX)]
        counted = await _all(self._counter(questions, *one) for one in wanted)
        more = [(SIZE_OF[one.name], one.topic, one.group) for one in counted if one.sum and one.name in SIZE_OF]
        return (*counted, *await _all(self._counter(questions, *one) for one in more))

    async def _counter(self, questions: _PollRequests, name: str, topic: str, group: str | None) -> StatsCounter | None:
        key = topic if group is None else f"{topic}@{group}"
        answer = await questions.request(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats(name, key))
        at_ms = self._clock.now_ms()
        if answer.code == ResponseCode.SYSTEM_ERROR and "not exist" in (answer.remark or ""):
            return StatsCounter(name, topic, group, at_ms, 0, 0.0)  # it is made with the first that is counted
        if answer.code != ResponseCode.SUCCESS:
            questions.refused(f"{name} of {key}", f"code {answer.code}: {answer.remark}")
            return None
        try:
            minute = fastjson.decode(answer.body, BrokerStatsData).stats_minute
        except ProtocolError as error:
            questions.refused(f"{name} of {key}", error)
            return None
        return StatsCounter(name, topic, group, at_ms, minute.sum, minute.tps)


async def _all(answers: Iterable[Awaitable[T | None]]) -> list[T]:
    """The answers that are there. When a broker is lost, all of them end before that is raised."""
    got = await asyncio.gather(*answers, return_exceptions=True)
    if faults := [one for one in got if isinstance(one, BaseException)]:
        raise faults[0]
    return [one for one in got if one is not None and not isinstance(one, BaseException)]


def _is_told(topic: str, place: PolledBroker) -> bool:
    """Whether a topic that no group has offsets of is worth a question: not those that are there for the servers' sake."""
    return not is_system_topic(topic) and topic not in (
        AUTO_CREATE_TOPIC,
        place.broker,
        place.cluster,
        reply_topic(place.cluster),
    )


def _pairs(table: Mapping[str, dict[int, int]]) -> dict[Pair, dict[int, int]]:
    """Topic and group → queue → committed offset."""
    found: dict[Pair, dict[int, int]] = {}
    for key, offsets in table.items():
        topic, at, group = key.partition("@")
        if at and topic and group and not group.startswith(SYSTEM_GROUP_PREFIX):
            found[topic, group] = offsets
    return found


def _is_behind(offsets: Mapping[int, int], ends: TopicQueueRanges) -> bool:
    return any(queue in offsets and offsets[queue] < last for queue, _, last in ends.queues)


def _progress(
    pair: Pair, at_ms: int, offsets: Mapping[int, int], ends: TopicQueueRanges | None, ages: Mapping[int, int]
) -> GroupProgress:
    """Where a group stands, in the queues that it has offsets of."""
    known = {queue: (first, last) for queue, first, last in ends.queues} if ends else {}
    queues = []
    for queue, offset in sorted(offsets.items()):
        first, last = known.get(queue, (None, None))
        is_behind = last is not None and offset < last
        queues.append((queue, offset, first, last, ages.get(queue) if is_behind else None))
    return GroupProgress(pair[1], pair[0], at_ms, ends.at_ms if ends else None, tuple(queues))
