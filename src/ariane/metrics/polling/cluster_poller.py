"""Polls a cluster for a scrape. [rocketmq-exporter: MetricsCollectTask, which polls by a timer instead]

    base round      in each scrape: brokers (106), runtime (28), topics (21, 202), committed offsets (43), groups (201)
    detail round    started by a scrape unless one is running: statistics (315), clients of groups (203, 307), producers (328),
                    ages of messages (303); a scrape waits for it at most `detail_wait_s` and then uses the one before

The base round has a request per topic, the detail round some per topic and group: with 10,000 groups a detail round takes longer
than a scrape may. So lags and the lists of brokers, topics and groups are always those of the scrape; a rate, which is an average
over a minute, may be one scrape older. Nothing is polled between scrapes.

All brokers are polled at the same time. A broker that does not respond in time is `is_up=False` in the snapshot, without values.
The web console polls in the same way, but less often in a large cluster; between these polls `poll_brokers` asks for 106 and 28.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.servers.statistics_requests import StatisticsRequests
from ariane.errors import ArianeError
from ariane.metrics.polling.cluster_details import ClusterDetails, DetailRounds, DetailTimes
from ariane.metrics.polling.pauses import Pauses
from ariane.metrics.polling.scraped_cluster import (
    ClientRates,
    GroupState,
    ScrapedBroker,
    ScrapedCluster,
    compute_progress,
)
from ariane.metrics.polling.wanted_statistics import EXPORTER_SCOPE, PollScope
from ariane.net.pools.name_servers import NameServerClient
from ariane.net.pools.requester import Requester
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import SubscriptionGroupTable
from ariane.protocol.requests.routing import MASTER_ID

log = logging.getLogger("ariane.metrics")

REQUEST_TIMEOUT_MS = 3000
BASE_TIMEOUT_S = 6.0  # together with the wait for details less than the 10 s that Prometheus waits by default
DETAIL_WAIT_S = 2.0
DETAIL_AGE_MAX_S = 120.0  # older details are unknown values, unless a detail round takes longer


class ListedBroker(NamedTuple):
    """A broker that a name server lists."""

    cluster: str
    name: str
    broker_id: int
    addr: str
    is_registered: bool = True
    """Whether a name server lists it; otherwise one did so before."""


class PolledCluster(NamedTuple):
    """The result of a scrape's polls."""

    snapshot: ScrapedCluster
    """Values of all brokers."""
    name_servers: Mapping[str, bool]
    base_s: float
    """Duration of the base round."""
    details_age_s: float | None
    """Time since the detail round started whose results the snapshot contains; None without results."""
    times: DetailTimes
    """Monotonic times of its parts."""
    requests: int
    """Requests of base rounds since the start."""
    failed_requests: int
    """Those of them that a broker rejected."""


class ClusterPoller:
    """Polls the brokers of a cluster.

    Args:
        peers: Sends the requests.
        name_servers: Addresses of the name servers; brokers of all of them are polled.
        detail_wait_s: Time that a scrape waits for its detail round.
        timeout_ms: Time limit of one request.
        scope: What to request, and how long to remember brokers.
        clock: Replaced by tests.
    """

    def __init__(
        self,
        peers: Requester,
        name_servers: Sequence[str],
        *,
        detail_wait_s: float = DETAIL_WAIT_S,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        scope: PollScope = EXPORTER_SCOPE,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._peers = peers
        self._name_servers = {
            addr: NameServerClient(peers, [addr], timeout_ms=timeout_ms) for addr in dict.fromkeys(name_servers)
        }
        self.detail_wait_s = detail_wait_s
        self._timeout_ms = timeout_ms
        self._scope = scope
        self._clock = clock
        # Brokers with the time when a name server last listed them, by name and id, to remember them for a while.
        self._listed: dict[tuple[str, int], tuple[ListedBroker, float]] = {}
        # Topics and groups of each master when it last responded.
        self._known_names: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._polling: asyncio.Task[PolledCluster] | None = None  # shared by concurrent scrapes
        # Requests the details, and has the newest ones.
        self._rounds = DetailRounds(peers, timeout_ms=timeout_ms, clock=clock, scope=scope)
        self._refreshing: asyncio.Task[None] | None = None  # the detail round in flight
        self._silent: set[str] = set()  # servers whose silence was logged: once, not at each scrape
        self._requests = 0  # of base rounds since the start
        self._failed = 0  # those that a broker rejected

    async def poll(self, base_timeout_s: float | None = BASE_TIMEOUT_S) -> PolledCluster:
        """Return the state of the cluster. Concurrent callers share one poll.

        Args:
            base_timeout_s: Time limit of the requests of one broker's base round; None: only that of each request.
        """
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(base_timeout_s))
        return await asyncio.shield(self._polling)

    async def poll_brokers(self) -> tuple[tuple[ScrapedBroker, ...], dict[str, bool]]:
        """Return all brokers with their runtime information alone, and whether each name server responded."""
        listed, name_servers = await self._list_brokers()
        return tuple(await asyncio.gather(*map(self._runtime_only, listed))), name_servers

    async def close(self) -> None:
        """Cancel the polls that are running."""
        tasks = [task for task in (self._polling, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll(self, base_timeout_s: float | None) -> PolledCluster:
        started = self._clock.monotonic()
        listed, name_servers = await self._list_brokers()
        brokers = await asyncio.gather(*(self._base(broker, base_timeout_s) for broker in listed))
        base_s = self._clock.monotonic() - started
        groups = frozenset[str]().union(*(broker.group_names for broker in brokers))
        self._rounds.observe(brokers, groups, started)
        details = await self._refreshed_details()
        times = DetailTimes() if details is None else details.times
        oldest_s = times.oldest()
        return PolledCluster(
            await _snapshot(brokers, groups, details),
            name_servers,
            base_s,
            None if oldest_s is None else self._clock.monotonic() - oldest_s,
            times,
            self._requests,
            self._failed,
        )

    async def _list_brokers(self) -> tuple[list[ListedBroker], dict[str, bool]]:
        """Return the brokers that any name server lists or listed recently, and which name servers responded."""
        responses = await asyncio.gather(
            *(client.fetch_cluster() for client in self._name_servers.values()), return_exceptions=True
        )
        listed: dict[tuple[str, int], ListedBroker] = {}
        is_up = {}
        for addr, response in zip(self._name_servers, responses, strict=True):
            is_up[addr] = not isinstance(response, BaseException)
            if isinstance(response, ArianeError):
                self._report_silence(f"Name server {addr}", response)
            elif isinstance(response, BaseException):
                raise response
            else:
                self._silent.discard(f"Name server {addr}")
                for name, broker in response.broker_addr_table.items():
                    for broker_id, broker_addr in broker.broker_addrs.items():
                        listed[name, broker_id] = ListedBroker(broker.cluster, name, broker_id, broker_addr)
        remembered = self._remembered(listed, is_known=any(is_up.values()))
        return [broker for _, broker in sorted((listed | remembered).items())], is_up

    def _remembered(
        self, found: Mapping[tuple[str, int], ListedBroker], *, is_known: bool
    ) -> dict[tuple[str, int], ListedBroker]:
        """Return brokers that are not in `found` and were recently. `is_known`: whether a name server responded."""
        if not self._scope.remember_s:
            return {}
        now_s = self._clock.monotonic()
        self._listed |= {key: (broker, now_s) for key, broker in found.items()}
        # While no name server responds, it is unknown who is registered: no broker is forgotten.
        expired = [key for key, (_, listed_s) in self._listed.items() if now_s - listed_s > self._scope.remember_s]
        for key in expired if is_known else ():
            del self._listed[key]
        others = {key: broker for key, (broker, _) in self._listed.items() if key not in found}
        return {key: broker._replace(is_registered=not is_known) for key, broker in others.items()}

    def _report_silence(self, server: str, reason: object) -> None:
        if server not in self._silent:
            self._silent.add(server)
            log.warning("%s does not respond: %s", server, reason)

    async def _runtime_only(self, target: ListedBroker) -> ScrapedBroker:
        requests = StatisticsRequests(self._peers, target.addr, timeout_ms=self._timeout_ms)
        try:
            return ScrapedBroker(**target._asdict(), is_up=True, runtime=await requests.runtime_table())
        except ArianeError as error:
            return ScrapedBroker(**target._asdict(), is_up=False, reason=str(error))

    async def _base(self, target: ListedBroker, timeout_s: float | None) -> ScrapedBroker:
        """Return the base values of a broker."""
        requests = StatisticsRequests(self._peers, target.addr, timeout_ms=self._timeout_ms)
        try:
            async with asyncio.timeout(timeout_s):
                if target.broker_id == MASTER_ID:
                    result = await self._master(target, requests)
                else:
                    runtime = await requests.runtime_table()
                    result = ScrapedBroker(**target._asdict(), is_up=True, runtime=runtime)
            self._silent.discard(f"Broker {target.name} ({target.addr})")
            return result
        except (ArianeError, TimeoutError) as error:
            reason = str(error) or f"not finished within {timeout_s or 0:g} s"
            self._report_silence(f"Broker {target.name} ({target.addr})", reason)
            topics, groups = self._known_names.get(target.name, (None, None))
            return ScrapedBroker(
                **target._asdict(), is_up=False, reason=reason, expected_topics=topics, expected_groups=groups
            )
        finally:
            self._requests += requests.count
            self._failed += len(requests.faults)

    async def _master(self, target: ListedBroker, requests: StatisticsRequests) -> ScrapedBroker:
        # Offsets are requested before the ends of queues, so that a lag is never too small.
        runtime, offsets, topics, groups = await asyncio.gather(
            requests.runtime_table(), requests.committed_offsets(), requests.topic_configs(), _groups(requests)
        )
        names = sorted(topics)
        groups |= {group for _, group in offsets}
        ranges = await requests.all_queue_ranges({name: topics[name].read_queue_nums for name in names})
        self._known_names[target.name] = frozenset(topics), groups
        return ScrapedBroker(
            **target._asdict(),
            is_up=True,
            runtime=runtime,
            topics={topic: queues for topic, queues in ranges.items() if queues is not None},
            topic_configs=topics,
            group_names=groups,
            offsets=offsets,
        )

    async def _refreshed_details(self) -> ClusterDetails | None:
        """Return the newest details that are available within the wait."""
        if self._refreshing is None:
            self._refreshing = self._rounds.start()
        duration_s = self._rounds.duration_s
        if duration_s is None or duration_s <= self.detail_wait_s:
            # A round that takes longer is not waited for: the scrape would be late, and without newer details.
            await asyncio.wait([self._refreshing], timeout=self.detail_wait_s)
        if self._refreshing.done():
            task, self._refreshing = self._refreshing, None
            task.result()  # raises what ended it
        return self._rounds.current(DETAIL_AGE_MAX_S)


async def _groups(requests: StatisticsRequests) -> frozenset[str]:
    response = await requests.request_ok(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return frozenset(fastjson.decode(response.body, SubscriptionGroupTable).subscription_group_table)


async def _snapshot(
    brokers: Sequence[ScrapedBroker], groups: frozenset[str], details: ClusterDetails | None
) -> ScrapedCluster:
    """Return a snapshot of the base values and details, without the details of groups that were deleted meanwhile."""
    states: dict[str, GroupState] = {}
    statuses: tuple[ClientRates, ...] = ()
    if details is not None:
        brokers = [_broker_with_details(broker, details) for broker in brokers]
        states = {group: state for group, state in details.groups.items() if group in groups}
        statuses = tuple(status for status in details.statuses if status.group in groups)
    progress = await compute_progress(brokers, states, Pauses())
    return ScrapedCluster(brokers=tuple(brokers), groups=states, statuses=statuses, progress=progress)


def _broker_with_details(broker: ScrapedBroker, details: ClusterDetails) -> ScrapedBroker:
    if not broker.is_up:
        return broker
    rates = details.rates.get(broker.addr)
    return msgspec.structs.replace(
        broker,
        producers=details.producers.get(broker.addr),
        rates={} if rates is None else rates.rates,
        lost_rates=frozenset() if rates is None else rates.lost,
        has_rates=rates is not None,
        ages_ms=details.ages_ms.get(broker.addr, {}),
        starts=details.starts.get(broker.addr, {}),
    )
