"""Polls the cluster in the background, while someone asks for snapshots.

poll_brokers   106, 28 of all servers        every INTERVAL_S ─┐    and 319 of name servers once a minute
poll_base      topics, offsets, groups, …    every INTERVAL_S, ┼─→ LiveSnapshot ─→ Subscriber
               in a large cluster as often as the budget allows┘
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.console.live.blocked_queues import OffsetObserver
from ariane.console.live.live_snapshot import LiveSnapshot
from ariane.console.live.name_server_reports import NameServerReports
from ariane.console.live.replication_delay import ReplicationObserver
from ariane.console.live.snapshot_builder import (
    broker_rows,
    broker_sets,
    group_rows,
    history_values,
    name_server_rows,
    topic_rows,
    totals,
)
from ariane.errors import ArianeError
from ariane.metrics.polling.cluster_poller import ClusterPoller, PolledCluster
from ariane.metrics.polling.scraped_cluster import ScrapedBroker
from ariane.metrics.polling.wanted_statistics import PollScope
from ariane.net.pools.requester import Requester

log = logging.getLogger("ariane.console")

INTERVAL_S = 5.0
IDLE_S = 30.0  # polling stops when no snapshot was requested for this long
BROKER_TIMEOUT_MS = 1_000.0
BASE_TIMEOUT_MS = 5_000.0  # some responses of a large cluster have several MB
DETAIL_WAIT_S = 0.3
SCOPE = PollScope(
    client_rates=False, returned=False, retries=True, slaves=True, remember_s=600.0, group_sizes=False, is_paced=True
)


class Subscriber(Protocol):
    """Receives snapshots in the thread that polls."""

    def publish(self, snapshot: LiveSnapshot, *, is_base: bool, round_s: float) -> None:
        """Accept a snapshot.

        Args:
            is_base: Whether its topics and groups are new, and not only its brokers.
            round_s: Duration of the polls.
        """
        ...


class ClusterWatch:
    """Polls the cluster while it is wanted, and publishes snapshots.

    Args:
        peers: Sends the requests for brokers.
        paced: Sends all others.
    """

    def __init__(
        self,
        *,
        peers: Requester,
        paced: Requester,
        name_servers: Sequence[str],
        subscriber: Subscriber,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._subscriber = subscriber
        # Two pollers: that of brokers must not wait for the requests of the other.
        self._brokers = ClusterPoller(
            peers, name_servers, timeout_ms=BROKER_TIMEOUT_MS, scope=SCOPE, clock=clock, detail_wait_s=DETAIL_WAIT_S
        )
        # Topics, groups, and everything else.
        self._base = ClusterPoller(
            paced, name_servers, timeout_ms=BASE_TIMEOUT_MS, scope=SCOPE, clock=clock, detail_wait_s=DETAIL_WAIT_S
        )
        self._reports = NameServerReports(peers, name_servers, timeout_ms=BROKER_TIMEOUT_MS, clock=clock)
        self._observer = ReplicationObserver()  # positions of masters over time
        self._offsets = OffsetObserver()  # offsets of groups over time
        self._latest = LiveSnapshot(as_of_ms=0)  # both polls replace their part of it
        self._wanted = asyncio.Event()  # cleared after IDLE_S
        self._wanted_s = float("-inf")  # monotonic time of the last request for a snapshot

    def want(self) -> None:
        """Poll for the next IDLE_S."""
        self._wanted_s = self._clock.monotonic()
        self._wanted.set()

    async def run(self) -> None:
        """Poll until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._repeat(self.poll_brokers))
                tasks.create_task(self._repeat(self.poll_base))
        finally:
            await self._brokers.close()
            await self._base.close()

    async def poll_brokers(self) -> None:
        """Poll all brokers for their runtime information, and publish a snapshot with it."""
        now_ms, started_s = self._clock.now_ms(), self._clock.monotonic()
        (brokers, name_servers), _ = await asyncio.gather(self._brokers.poll_brokers(), self._reports.refresh())
        self._publish(self._with_brokers(self._latest, brokers, name_servers, now_ms), False, started_s)

    async def poll_base(self) -> None:
        """Poll everything, and publish a snapshot with it."""
        now_ms, started_s = self._clock.now_ms(), self._clock.monotonic()
        polled = await self._base.poll(None)
        snapshot = self._with_rows(self._latest, polled, now_ms)
        if snapshot.as_of_ms == 0:
            snapshot = self._with_brokers(snapshot, polled.snapshot.brokers, polled.name_servers, now_ms)
        self._publish(snapshot, True, started_s)

    def _with_brokers(
        self, snapshot: LiveSnapshot, brokers: Sequence[ScrapedBroker], name_servers: Mapping[str, bool], now_ms: int
    ) -> LiveSnapshot:
        rows = broker_rows(brokers, self._observer, now_ms)
        servers = name_server_rows(name_servers, self._reports.by_addr)
        silent = [f"Name server {row.addr} did not respond" for row in servers if not row.is_up]
        silent += [f"Broker {row.broker} {row.addr} did not respond: {row.reason}" for row in rows if not row.is_up]
        return msgspec.structs.replace(
            snapshot,
            as_of_ms=now_ms,
            name_servers=servers,
            brokers=rows,
            broker_sets=broker_sets(brokers),
            unavailable=tuple(silent),
        )

    def _with_rows(self, snapshot: LiveSnapshot, polled: PolledCluster, now_ms: int) -> LiveSnapshot:
        if not any(polled.name_servers.values()) and not polled.snapshot.brokers:
            return snapshot  # nothing is known about the cluster: what is known from before stays
        topics = topic_rows(polled.snapshot)
        by_topic = {row.topic: row for row in topics}
        groups = group_rows(polled.snapshot, by_topic, self._offsets.observe(polled.snapshot, now_ms))
        silent = {
            broker.addr: f"Broker {broker.name} {broker.addr} did not respond about topics and groups: {broker.reason}"
            for broker in polled.snapshot.brokers
            if not broker.is_up
        }
        return msgspec.structs.replace(
            snapshot,
            base_as_of_ms=now_ms,
            base_unavailable=silent,
            rates_as_of_ms=self._wall_ms(polled.times.rates_s),
            clients_as_of_ms=self._wall_ms(polled.times.clients_s),
            ages_as_of_ms=self._wall_ms(polled.times.ages_s),
            topics=topics,
            groups=groups,
            topic_index=by_topic,
            group_index={row.group: row for row in groups},
        )

    def _wall_ms(self, monotonic_s: float | None) -> int | None:
        if monotonic_s is None:
            return None
        return self._clock.now_ms() - round((self._clock.monotonic() - monotonic_s) * 1000)

    def _publish(self, snapshot: LiveSnapshot, is_base: bool, started_s: float) -> None:
        sums = totals(snapshot.brokers, snapshot.groups)
        self._latest = msgspec.structs.replace(snapshot, totals=sums)
        now_ms, history = self._clock.now_ms(), self._latest.history
        if self._latest.is_loaded and history.is_due(now_ms):
            history.record(now_ms, history_values(self._latest.brokers, self._latest.groups, sums))
        round_s = self._clock.monotonic() - started_s
        self._subscriber.publish(self._latest, is_base=is_base, round_s=round_s)

    async def _repeat(self, poll: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._wait_wanted()
            started_s = self._clock.monotonic()
            try:
                await poll()
            except ArianeError as error:
                log.warning("Cannot poll the cluster, retrying: %s", error)
            except Exception:
                # The console goes on with the values that it has: pages show their time.
                log.exception("Polling the cluster failed, retrying")
            await self._clock.sleep(max(0.0, started_s + INTERVAL_S - self._clock.monotonic()))

    async def _wait_wanted(self) -> None:
        if self._clock.monotonic() - self._wanted_s > IDLE_S:
            self._wanted.clear()
        await self._wanted.wait()
