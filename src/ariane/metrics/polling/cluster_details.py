"""The detail round of a scrape: values that take a request per topic, group or client.

    code  at       value                                   requests    [flags of `PollScope`]
    203   masters  clients and subscriptions of a group    1 per group
    307   masters  rates of a client                       1 per client and group [client_rates]
    315   masters  TOPIC_PUT_NUMS, then TOPIC_PUT_SIZE     1 or 2 per topic
    315   masters  GROUP_GET_NUMS, then GROUP_GET_SIZE     1 or 2 per topic and group
    315   masters  SNDBCK_PUT_NUMS                         1 per topic and group that has returned messages [returned]
    315   masters  GROUP_GET_NUMS of retry topics          1 per group that has returned messages [retries]
    43    slaves   pairs of topic and group                1 [slaves]
    315   slaves   GROUP_GET_NUMS                          1 per topic and group [slaves]
    14    masters  where groups without an offset start    1 per queue with messages and without a committed offset
    303   masters  age of the oldest unconsumed message    1 per topic and group with a lag
    328   masters  producers                               1

Requests of one code are sent in batches to brokers that accept them (`protocol.request_batch`). A statistic of the size is only
requested if that of the number exists. An age is only requested if the oldest message is another one than before. Apache's exporter
pulls a message of each queue for the age; a pull would count as consumption in these very statistics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from ariane.clock import Clock
from ariane.cluster.servers.statistics_requests import StatisticsRequests, batch_max
from ariane.errors import ArianeError, ProtocolError
from ariane.metrics.polling.scraped_cluster import (
    ClientRates,
    ConnectedClient,
    GroupState,
    MinuteRate,
    Pair,
    PairProgress,
    ScrapedBroker,
    find_unknown_starts,
    iter_progress,
    list_pairs,
)
from ariane.metrics.polling.settled_rates import SettledRates, Statistic
from ariane.metrics.polling.wanted_statistics import (
    EXPORTER_SCOPE,
    PollScope,
    StatisticKey,
    is_nonzero,
    request_statistics,
    wanted_statistics,
)
from ariane.net.pools.requester import Requester
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import ClientConnection
from ariane.protocol.requests.brokers import ProducerTable
from ariane.protocol.requests.callbacks import ConsumeStatus, RunningInfoRequest
from ariane.protocol.requests.clients import BROADCASTING, GroupRef

log = logging.getLogger("ariane.metrics")

T = TypeVar("T")


class _OnlineConsumers(msgspec.Struct, frozen=True, rename="camel"):
    """The part of the response to 203 that is used here."""

    connection_set: tuple[ClientConnection, ...] = ()
    consume_type: str | int | None = None
    message_model: str | int | None = "CLUSTERING"
    subscription_table: dict[str, Any] = {}


class _ReportedRates(msgspec.Struct, frozen=True, rename="camel"):
    """The part of the response to 307 that is used here."""

    status_table: dict[str, ConsumeStatus] = {}


class MinuteRates(NamedTuple):
    """Statistics of one broker, as in `ScrapedBroker`."""

    rates: Mapping[Statistic, MinuteRate]
    lost: frozenset[Statistic]


class DetailTimes(NamedTuple):
    """Monotonic times at which the requests for each part of the details began; None: no part yet."""

    clients_s: float | None = None
    rates_s: float | None = None
    ages_s: float | None = None

    def oldest(self) -> float | None:
        """Return the time of the oldest part."""
        return min((part_s for part_s in self if part_s is not None), default=None)


class ClusterDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The results of detail rounds. Those of brokers by address; one that stopped responding is missing."""

    times: DetailTimes = DetailTimes()
    """When the parts were requested."""
    duration_s: float = 0.0
    """Of the last complete round."""
    groups: Mapping[str, GroupState] = {}
    """Clients and subscriptions of groups; missing: unknown."""
    statuses: tuple[ClientRates, ...] = ()
    """Rates that clients report."""
    starts: Mapping[str, Mapping[str, frozenset[int]]] = {}
    """As in `ScrapedBroker`, of masters."""
    rates: Mapping[str, MinuteRates] = {}
    """Of masters, and of slaves if the scope has them."""
    ages_ms: Mapping[str, Mapping[Pair, int]] = {}
    """As in `ScrapedBroker`, of masters."""
    producers: Mapping[str, Mapping[str, int] | None] = {}
    """The same."""


class KnownAge(NamedTuple):
    """An age that a broker reported, and the positions of the oldest unconsumed message in each queue."""

    positions: Mapping[int, int]
    age_ms: int
    asked_s: float


class DetailRounds:
    """Detail rounds, one after the other."""

    def __init__(self, peers: Requester, *, timeout_ms: float, clock: Clock, scope: PollScope = EXPORTER_SCOPE) -> None:
        self._peers = peers
        self._scope = scope  # what to request
        self._timeout_ms = timeout_ms
        self._clock = clock  # monotonic times of the parts
        self._brokers: Sequence[ScrapedBroker] = ()  # base values, replaced while a round is in flight
        self._observed_s = 0.0  # when their requests began
        self._groups: frozenset[str] = frozenset()  # groups of these brokers
        self._started_s = 0.0  # of the round in flight, or of the last one
        self._details = ClusterDetails()  # shown
        self._settled = SettledRates()  # which rates are still zero
        self._known_ages: dict[str, dict[Pair, KnownAge]] = {}  # by the address of the broker

    @property
    def duration_s(self) -> float | None:
        """Duration of the last complete round; None before its end."""
        return None if self._details.times == DetailTimes() else self._details.duration_s

    def observe(self, brokers: Sequence[ScrapedBroker], groups: frozenset[str], started_s: float) -> None:
        """Accept base values, whose requests began at a monotonic time. Rounds refer to the newest ones."""
        self._brokers, self._groups, self._observed_s = brokers, groups, started_s
        if self._scope.is_paced:
            self._settled.observe_offsets(brokers, self._clock.monotonic())

    def start(self) -> asyncio.Task[None]:
        """Start a round."""
        self._started_s = self._clock.monotonic()
        return asyncio.create_task(self._run())

    def current(self, age_max_s: float) -> ClusterDetails | None:
        """Return the newest details; None if there are none, or some of them are too old.

        Args:
            age_max_s: Maximum age of details, unless a round takes longer.
        """
        oldest_s = self._details.times.oldest()
        if oldest_s is None:
            return None
        # A round that takes minutes is the newest one until the next has ended, which takes as long again.
        now_s = self._clock.monotonic()
        elapsed_s = now_s - self._started_s if self._scope.is_paced else 0.0
        limit_s = max(age_max_s, 3 * self._details.duration_s, 3 * elapsed_s)
        return None if now_s - oldest_s > limit_s else self._details

    async def _run(self) -> None:
        details = self._details
        for part in (self._with_clients, self._with_rates, self._with_ages):
            details = await part(details)
            if self._scope.is_paced:
                self._details = details
        self._details = msgspec.structs.replace(details, duration_s=self._clock.monotonic() - self._started_s)

    def _masters(self) -> dict[str, ScrapedBroker]:
        return {broker.addr: broker for broker in self._brokers if broker.is_master and broker.is_up}

    def _requests(self, broker: ScrapedBroker) -> StatisticsRequests:
        accepted = batch_max(broker.runtime)
        return StatisticsRequests(self._peers, broker.addr, timeout_ms=self._timeout_ms, batch_max=accepted)

    async def _with_clients(self, details: ClusterDetails) -> ClusterDetails:
        """Return the details with the state of the groups about which a master responded, and the rates of their clients."""
        started_s, masters = self._clock.monotonic(), self._masters()
        requests = {addr: self._requests(broker) for addr, broker in masters.items()}
        names = sorted(self._groups)
        columns = await asyncio.gather(*(_groups_at(request, names) for request in requests.values()))
        states: dict[str, GroupState] = {}
        homes: dict[str, str] = {}
        for addr, column in zip(requests, columns, strict=True):
            for group, state in column.items():
                if state.clients:
                    # The rates of a client (307) are relayed by a broker to which it is connected.
                    homes.setdefault(group, addr)
                states[group] = _merged(states.get(group), state)
        if self._scope.is_paced:
            self._settled.observe_groups(states, self._clock.monotonic())
        statuses = await _statuses(requests, states, homes) if self._scope.client_rates else ()
        starts = await _responsive({addr: _starts(requests[addr], broker, states) for addr, broker in masters.items()})
        times = details.times._replace(clients_s=started_s)
        return msgspec.structs.replace(details, times=times, groups=states, statuses=statuses, starts=starts)

    async def _with_rates(self, details: ClusterDetails) -> ClusterDetails:
        """Return the details with the rates of all brokers."""
        polled = [broker for broker in self._brokers if broker.is_up and (broker.is_master or self._scope.slaves)]
        # Zeros that are not requested are those of the time of the offsets.
        started_s = self._observed_s if any(map(self._may_skip, polled)) else self._clock.monotonic()
        rounds = {broker.addr: self._rates(broker, details.groups) for broker in polled}
        return msgspec.structs.replace(
            details, times=details.times._replace(rates_s=started_s), rates=await _responsive(rounds)
        )

    def _may_skip(self, broker: ScrapedBroker) -> bool:
        # A broker that accepts batches reports all rates for less than it costs to find out which ones are zero.
        return self._scope.is_paced and not batch_max(broker.runtime)

    async def _rates(self, broker: ScrapedBroker, groups: Mapping[str, GroupState]) -> MinuteRates:
        requests = self._requests(broker)
        if broker.is_master:
            wanted = wanted_statistics(broker, list(list_pairs(broker, groups)), self._scope)
        else:
            # Slaves copy the offsets of their master, which may not respond.
            pairs = await requests.committed_offsets()
            wanted = [StatisticKey(f"{topic}@{group}", ("GROUP_GET_NUMS",)) for topic, group in pairs]
        skipped: list[Statistic] = []
        if self._may_skip(broker):
            skipped = [statistic.first for statistic in wanted if self._settled.is_zero(broker, statistic.first)]
            wanted = [statistic for statistic in wanted if not self._settled.is_zero(broker, statistic.first)]
        asked_s = self._clock.monotonic()
        rates, lost = await request_statistics(requests, wanted)
        if self._may_skip(broker):
            zeros = (
                statistic.first
                for statistic in wanted
                if statistic.first not in lost and not is_nonzero(rates.get(statistic.first))
            )
            self._settled.observe_zeros(broker.addr, zeros, skipped, asked_s)
        return MinuteRates(rates, lost)

    async def _with_ages(self, details: ClusterDetails) -> ClusterDetails:
        """Return the details with the ages of all masters, and their producers."""
        started_s, masters = self._clock.monotonic(), self._masters()
        ages = await _responsive(
            {
                addr: self._ages(msgspec.structs.replace(broker, starts=details.starts.get(addr, {})), details.groups)
                for addr, broker in masters.items()
            }
        )
        producers = await _responsive({addr: _producers(self._requests(broker)) for addr, broker in masters.items()})
        times = details.times._replace(ages_s=started_s)
        self._known_ages = {addr: known for addr, known in self._known_ages.items() if addr in masters}
        return msgspec.structs.replace(details, times=times, ages_ms=ages, producers=producers)

    async def _ages(self, broker: ScrapedBroker, groups: Mapping[str, GroupState]) -> dict[Pair, int]:
        """Return the ages of the oldest messages that groups have not consumed; without those of messages that were removed."""
        progress = ((pair.topic, pair.group, _next_positions(pair)) for pair in iter_progress(broker, groups))
        lagging = {(topic, group): positions for topic, group, positions in progress if positions}
        before, asked_s = self._known_ages.get(broker.addr, {}), self._clock.monotonic()
        # While the oldest message remains the same, its age grows with the time: the broker need not be asked again.
        current = {
            pair: before[pair]
            for pair, positions in lagging.items()
            if pair in before and before[pair].positions == positions
        }
        reported = await self._requests(broker).all_oldest_ages([pair for pair in lagging if pair not in current])
        for pair, ages in reported.items():
            # The oldest message is only known if every lagging queue has an age.
            if ages and lagging[pair].keys() <= ages.keys():
                current[pair] = KnownAge(lagging[pair], max(ages[queue] for queue in lagging[pair]), asked_s)
        self._known_ages[broker.addr] = current
        return {pair: age.age_ms + round((asked_s - age.asked_s) * 1000) for pair, age in current.items()}


async def _responsive(rounds: Mapping[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
    """Return the results of the brokers that responded, by address."""
    results = {}
    for addr, result in zip(rounds, await asyncio.gather(*rounds.values(), return_exceptions=True), strict=True):
        if isinstance(result, ArianeError):
            log.warning("Broker %s stopped responding: %s", addr, result)
        elif isinstance(result, BaseException):
            raise result
        else:
            results[addr] = result
    return results


async def _groups_at(requests: StatisticsRequests, groups: Sequence[str]) -> dict[str, GroupState]:
    """Return the states of groups. A group whose request failed stays unknown, the others are reported."""
    headers = [GroupRef(group) for group in groups]
    responses = await requests.request_many(RequestCode.GET_CONSUMER_CONNECTION_LIST, headers)
    states = {}
    for group, response in zip(groups, responses, strict=True):
        state = None if isinstance(response, ArianeError) else _group_state(requests, group, response)
        if state is not None:
            states[group] = state
    return states


async def _statuses(
    requests: Mapping[str, StatisticsRequests], groups: Mapping[str, GroupState], homes: Mapping[str, str]
) -> tuple[ClientRates, ...]:
    rates = await asyncio.gather(
        *(
            _client_rates(requests[homes[group]], group, client)
            for group, state in groups.items()
            if group in homes
            for client in state.clients
        )
    )
    return tuple(status for statuses in rates for status in statuses)


def _group_state(requests: StatisticsRequests, group: str, response: Command) -> GroupState | None:
    if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return GroupState()
    if response.code != ResponseCode.SUCCESS:
        requests.record_failure(f"consumers of {group}", f"code {response.code}: {response.remark}")
        return None
    try:
        body = fastjson.decode(response.body, _OnlineConsumers)
    except ProtocolError as error:
        requests.record_failure(f"consumers of {group}", error)
        return None
    clients = (
        ConnectedClient(connection.client_addr, connection.client_id, connection.language, connection.version)
        for connection in body.connection_set
    )
    return GroupState(
        tuple(sorted(clients, key=lambda client: client[:2])),
        body.message_model in BROADCASTING,
        frozenset(body.subscription_table),
        body.consume_type,
    )


def _merged(first: GroupState | None, second: GroupState) -> GroupState:
    """Return the union of what two brokers know of a group: a client has a connection, and so an address, to each of them."""
    if first is None or not first.clients:
        return second
    ids = {client.client_id for client in first.clients}
    more = tuple(client for client in second.clients if client.client_id not in ids)
    return GroupState(first.clients + more, first.is_broadcasting, first.topics | second.topics, first.consume_type)


async def _client_rates(requests: StatisticsRequests, group: str, client: ConnectedClient) -> list[ClientRates]:
    """Return the rates that a client reports; none if it does not respond."""
    subject = f"rates of {client.client_id} in {group}"
    try:
        response = await requests.request(
            RequestCode.GET_CONSUMER_RUNNING_INFO, RunningInfoRequest(group, client.client_id)
        )
        if response.code != ResponseCode.SUCCESS:
            requests.record_failure(subject, f"code {response.code}: {response.remark}")
            return []
        table = fastjson.decode(response.body, _ReportedRates).status_table
    except ArianeError as error:
        requests.record_failure(subject, error)
        return []
    return [ClientRates(client, group, topic, status) for topic, status in table.items()]


async def _starts(
    requests: StatisticsRequests, broker: ScrapedBroker, groups: Mapping[str, GroupState]
) -> dict[str, frozenset[int]]:
    """Return the queues by topic that a group without a committed offset starts at 0."""
    queues = find_unknown_starts(broker, list_pairs(broker, groups), groups)
    answers = await requests.all_starts_first([(*queue, group) for queue, group in queues.items()])
    starts: dict[str, set[int]] = {}
    for (topic, queue_id), is_first in zip(queues, answers, strict=True):
        if is_first:
            starts.setdefault(topic, set()).add(queue_id)
    return {topic: frozenset(ids) for topic, ids in starts.items()}


def _next_positions(progress: PairProgress) -> dict[int, int]:
    """Return the position of the next message for a group in each queue with a known lag."""
    first = {queue_id: low for queue_id, low, _ in progress.ranges}
    return {
        queue_id: max(offset, first[queue_id])
        for queue_id, offset, last in progress.positions()
        if offset is not None and offset < last
    }


async def _producers(requests: StatisticsRequests) -> dict[str, int] | None:
    response = await requests.request(RequestCode.GET_ALL_PRODUCER_INFO)
    if response.code != ResponseCode.SUCCESS:
        requests.record_failure("producers", f"code {response.code}: {response.remark}")
        return None
    return {group: len(producers) for group, producers in fastjson.decode(response.body, ProducerTable).data.items()}
