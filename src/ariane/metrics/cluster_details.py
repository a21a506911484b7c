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
    303   masters  age of the oldest unconsumed message    1 per topic and group with a lag
    328   masters  producers                               1

A statistic of the size is only requested if that of the number exists. Apache's exporter pulls a message of each queue for the
age; a pull would count as consumption in these very statistics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ariane.clock import Clock
from ariane.cluster.statistics_requests import NOT_COUNTED, StatisticsRequests
from ariane.errors import ArianeError, ProtocolError
from ariane.metrics.scraped_cluster import (
    ClientRates,
    ConnectedClient,
    GroupState,
    MinuteRate,
    Pair,
    ScrapedBroker,
    list_pairs,
)
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, dlq_topic, retry_topic
from ariane.net.name_servers import Requester
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.admin import ClientConnection
from ariane.protocol.requests.brokers import ProducerTable
from ariane.protocol.requests.callbacks import ConsumeStatus, RunningInfoRequest
from ariane.protocol.requests.clients import GroupRef

log = logging.getLogger("ariane.metrics")

_BROADCASTING = ("BROADCASTING", 0)


class _OnlineConsumers(msgspec.Struct, frozen=True, rename="camel"):
    """The part of the response to 203 that is used here."""

    connection_set: tuple[ClientConnection, ...] = ()
    consume_type: str | int | None = None
    message_model: str | int | None = "CLUSTERING"
    subscription_table: dict[str, Any] = {}


class _ReportedRates(msgspec.Struct, frozen=True, rename="camel"):
    """The part of the response to 307 that is used here."""

    status_table: dict[str, ConsumeStatus] = {}


class BrokerDetails(NamedTuple):
    """Details of one master, as in `ScrapedBroker`; of a slave only the rates."""

    producers: Mapping[str, int] | None
    rates: Mapping[tuple[str, str], MinuteRate]
    ages_ms: Mapping[Pair, int]
    lost_rates: frozenset[tuple[str, str]]


class ClusterDetails(NamedTuple):
    """The result of a detail round."""

    started_s: float
    """Monotonic time."""
    duration_s: float
    brokers: Mapping[str, BrokerDetails]
    """Details by the address of the broker; one that stopped responding is missing."""
    groups: Mapping[str, GroupState]
    statuses: tuple[ClientRates, ...]


class PollScope(NamedTuple):
    """What a poll requests beyond what every reader of snapshots needs."""

    client_rates: bool = True
    """Ask each client for its rates."""
    returned: bool = True
    """Request the rate of messages that groups sent back."""
    retries: bool = False
    """Request the rate at which groups receive from their retry topics."""
    slaves: bool = False
    """Request the rates of groups at slaves, too, which may serve their reads."""
    remember_s: float = 0.0
    """Time for which a broker that no name server lists any more is still polled."""


EXPORTER_SCOPE = PollScope()


class DetailRound:
    """One detail round."""

    def __init__(self, peers: Requester, *, timeout_ms: float, clock: Clock, scope: PollScope = EXPORTER_SCOPE) -> None:
        self._peers = peers
        self._scope = scope
        self._timeout_ms = timeout_ms
        self._clock = clock

    async def run(self, brokers: Sequence[ScrapedBroker], groups: frozenset[str]) -> ClusterDetails:
        """Return the details of the brokers that responded and of `groups`."""
        started_s = self._clock.monotonic()
        masters = {broker.addr: broker for broker in brokers if broker.is_master and broker.is_up}
        requests = {addr: StatisticsRequests(self._peers, addr, timeout_ms=self._timeout_ms) for addr in masters}
        states, homes = await self._groups(requests, groups)
        statuses = await self._statuses(requests, states, homes) if self._scope.client_rates else ()
        rounds = {addr: self._broker(requests[addr], broker, states) for addr, broker in masters.items()}
        if self._scope.slaves:
            slaves = [broker.addr for broker in brokers if broker.is_up and not broker.is_master]
            rounds |= {addr: self._slave(addr) for addr in slaves}
        responses = await asyncio.gather(*rounds.values(), return_exceptions=True)
        details = {}
        for addr, response in zip(rounds, responses, strict=True):
            if isinstance(response, ArianeError):
                log.warning("Broker %s stopped responding: %s", addr, response)
            elif isinstance(response, BaseException):
                raise response
            else:
                details[addr] = response
        duration_s = self._clock.monotonic() - started_s
        return ClusterDetails(started_s, duration_s, details, states, statuses)

    async def _groups(
        self, requests: Mapping[str, StatisticsRequests], groups: frozenset[str]
    ) -> tuple[dict[str, GroupState], dict[str, str]]:
        """Return the state of the groups about which a master responded, and a master that has their consumers."""
        names = sorted(groups)
        columns = await asyncio.gather(*(self._groups_at(one, names) for one in requests.values()))
        states: dict[str, GroupState] = {}
        homes: dict[str, str] = {}
        for addr, column in zip(requests, columns, strict=True):
            for group, state in column.items():
                if state.clients:
                    # The rates of a client (307) are relayed by a broker to which it is connected.
                    homes.setdefault(group, addr)
                states[group] = _merged(states.get(group), state)
        return states, homes

    async def _groups_at(self, requests: StatisticsRequests, groups: Iterable[str]) -> dict[str, GroupState]:
        async def state_of(group: str) -> tuple[str, GroupState | None]:
            return group, await _group_state(requests, group)

        responses = await asyncio.gather(*map(state_of, groups), return_exceptions=True)
        found = {}
        for response in responses:
            # A group whose request failed stays unknown, the others are reported.
            if isinstance(response, BaseException):
                if not isinstance(response, ArianeError):
                    raise response
            elif response[1] is not None:
                found[response[0]] = response[1]
        return found

    async def _statuses(
        self,
        requests: Mapping[str, StatisticsRequests],
        groups: Mapping[str, GroupState],
        homes: Mapping[str, str],
    ) -> tuple[ClientRates, ...]:
        found = await asyncio.gather(
            *(
                _client_rates(requests[homes[group]], group, client)
                for group, state in groups.items()
                if group in homes
                for client in state.clients
            )
        )
        return tuple(status for statuses in found for status in statuses)

    async def _broker(
        self, requests: StatisticsRequests, broker: ScrapedBroker, groups: Mapping[str, GroupState]
    ) -> BrokerDetails:
        pairs = list(list_pairs(broker, groups))
        wanted = _wanted_statistics(broker, pairs, self._scope)
        rates, lost = await _all_statistics(requests, wanted)
        lagging = [pair for pair in pairs if _lagging_queues(broker, pair)]
        ages = await asyncio.gather(*(_age(requests, broker, pair) for pair in lagging))
        return BrokerDetails(
            await _producers(requests),
            rates,
            {pair: age for pair, age in zip(lagging, ages, strict=True) if age is not None},
            lost,
        )

    async def _slave(self, addr: str) -> BrokerDetails:
        requests = StatisticsRequests(self._peers, addr, timeout_ms=self._timeout_ms)
        # Slaves copy the offsets of their master, which may not respond.
        pairs = await requests.committed_offsets()
        wanted = [StatisticKey(f"{topic}@{group}", ("GROUP_GET_NUMS",)) for topic, group in pairs]
        rates, lost = await _all_statistics(requests, wanted)
        return BrokerDetails(None, rates, {}, lost)


class StatisticKey(NamedTuple):
    """A key, and names of statistics. Each name is requested only if the statistic before it exists."""

    key: str
    names: tuple[str, ...]


def _wanted_statistics(broker: ScrapedBroker, pairs: Iterable[Pair], scope: PollScope) -> list[StatisticKey]:
    wanted = [StatisticKey(broker.cluster, (name,)) for name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS")]
    for topic in broker.topics:
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            wanted.append(StatisticKey(topic, ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")))
    for topic, group in pairs:
        if topic.startswith(RETRY_PREFIX):
            if scope.retries and any(last for _, _, last in broker.topics[topic]):
                wanted.append(StatisticKey(f"{topic}@{group}", ("GROUP_GET_NUMS",)))
            continue
        wanted.append(StatisticKey(f"{topic}@{group}", ("GROUP_GET_NUMS", "GROUP_GET_SIZE")))
        returned = broker.topics.get(retry_topic(group), ()) + broker.topics.get(dlq_topic(group), ())
        # Without a message in the retry or dead-letter topic nothing was sent back, which spares a request per pair.
        if scope.returned and any(last for _, _, last in returned):
            wanted.append(StatisticKey(f"{topic}@{group}", ("SNDBCK_PUT_NUMS",)))
    return wanted


async def _all_statistics(
    requests: StatisticsRequests, wanted: Iterable[StatisticKey]
) -> tuple[dict[tuple[str, str], MinuteRate], frozenset[tuple[str, str]]]:
    """Return the statistics that exist, and those whose request was rejected."""
    tables = await asyncio.gather(*(_statistics(requests, one) for one in wanted))
    results = {key: rate for table in tables for key, rate in table.items()}
    found = {key: rate for key, rate in results.items() if rate is not None}
    return found, frozenset(results.keys() - found.keys())


async def _statistics(requests: StatisticsRequests, wanted: StatisticKey) -> dict[tuple[str, str], MinuteRate | None]:
    """Return the statistics of a key that exist; None instead of one whose request was rejected."""
    found: dict[tuple[str, str], MinuteRate | None] = {}
    for name in wanted.names:
        item = await requests.minute_statistic(name, wanted.key)
        # Where the number does not exist, the size does not either.
        if item is NOT_COUNTED:
            break
        found[name, wanted.key] = None if item is None else MinuteRate(item.sum, item.tps)
        if item is None:
            break
    return found


async def _group_state(requests: StatisticsRequests, group: str) -> GroupState | None:
    response = await requests.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupRef(group))
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
        ConnectedClient(one.client_addr, one.client_id, one.language, one.version) for one in body.connection_set
    )
    return GroupState(
        tuple(sorted(clients, key=lambda client: client[:2])),
        body.message_model in _BROADCASTING,
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


def _lagging_queues(broker: ScrapedBroker, pair: Pair) -> set[int]:
    offsets = broker.offsets.get(pair, {})
    return {queue for queue, _, last in broker.topics[pair[0]] if queue in offsets and offsets[queue] < last}


async def _age(requests: StatisticsRequests, broker: ScrapedBroker, pair: Pair) -> int | None:
    """Return the age of the oldest message that a group has not consumed; None if one of them is not in the log any more."""
    ages = await requests.oldest_ages(*pair)
    # The oldest message is only known if every lagging queue has an age.
    if not ages or not _lagging_queues(broker, pair) <= ages.keys():
        return None
    return max(ages.values())


async def _producers(requests: StatisticsRequests) -> dict[str, int] | None:
    response = await requests.request(RequestCode.GET_ALL_PRODUCER_INFO)
    if response.code != ResponseCode.SUCCESS:
        requests.record_failure("producers", f"code {response.code}: {response.remark}")
        return None
    return {group: len(one) for group, one in fastjson.decode(response.body, ProducerTable).data.items()}
