"""Delivery rates of a consumer group, server by server: masters and slaves, over the last minute and the last hour.

    STORED     masters               messages stored for the group
    DELIVERED  masters and slaves    messages delivered to the group

A slave counts the messages that it delivers. While slaves serve the reads, the masters' counters are 0: only the sum is the
group's rate. [StatsAllSubCommand, ConsumerProgressSubCommand]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ariane.cluster.connection import BrokerServer, BrokerUnavailable, masterless_brokers
from ariane.cluster.servers.broker_statistics import DELIVERED, STORED, BrokerStatisticOperations
from ariane.protocol.requests.stats import BrokerStatsData


class WindowRates(NamedTuple):
    """Messages per second over the last minute and hour. `hour` is None while a server has not sampled the hour yet."""

    minute: float
    hour: float | None


class ServerRates(NamedTuple):
    """One server's part of a group's traffic; the values are None if it did not respond."""

    server: BrokerServer
    stored: WindowRates | None  # put into the group's topics; 0 for a slave, which only copies
    delivered: WindowRates | None  # sent to members of the group


class GroupRates(NamedTuple):
    """A group's traffic, server by server.

    Attributes:
        group: Its name.
        topics: Topics whose statistics were added.
        servers: All masters and slaves, sorted.
        unavailable: Servers that did not respond, and brokers without a master.
    """

    group: str
    topics: tuple[str, ...]
    servers: tuple[ServerRates, ...]
    unavailable: tuple[BrokerUnavailable, ...]

    @property
    def stored(self) -> WindowRates | None:
        """Messages stored per second, over all masters; None if one is unknown."""
        return self._sum(rates.stored for rates in self.servers if rates.server.is_master)

    @property
    def delivered(self) -> WindowRates | None:
        """Messages delivered per second, over masters and slaves; None if one is unknown."""
        return self._sum(rates.delivered for rates in self.servers)

    def _sum(self, parts: Iterable[WindowRates | None]) -> WindowRates | None:
        # A registered broker without a master has statistics that no request returns.
        return None if any(not missing.addr for missing in self.unavailable) else add_rates(parts)


class GroupRateOperations(BrokerStatisticOperations):
    """Delivery rates of consumer groups."""

    async def group_rates(self, group: str, topics: Sequence[str]) -> GroupRates:
        """Return the traffic of a group in these topics, for each master and slave.

        Args:
            group: Consumer group.
            topics: The topics that it consumes (`GroupLag.queues` names them).

        Raises:
            ServerUnavailable: no broker is registered.
        """
        servers = await self.select_brokers(with_slaves=True)

        async def ask(server: BrokerServer) -> tuple[WindowRates, WindowRates]:
            stored, delivered = WindowRates(0.0, 0.0), WindowRates(0.0, 0.0)
            for topic in topics:
                if server.is_master:
                    stored = _plus(stored, _window_rates(await self.broker_statistic(server, STORED, topic)))
                part = await self.broker_statistic(server, DELIVERED, f"{topic}@{group}")
                delivered = _plus(delivered, _window_rates(part))
            return stored, delivered

        answers = await self.ask_all(servers, ask)
        rates = dict(answers.values)
        return GroupRates(
            group,
            tuple(topics),
            tuple(ServerRates(server, *rates.get(server, (None, None))) for server in servers),
            (*masterless_brokers(servers), *answers.unavailable),
        )


def add_rates(parts: Iterable[WindowRates | None]) -> WindowRates | None:
    """Return the sum of rates; None if one is unknown, or without any."""
    total: WindowRates | None = None
    for part in parts:
        if part is None:
            return None
        total = part if total is None else _plus(total, part)
    return total


def _plus(first: WindowRates, second: WindowRates) -> WindowRates:
    hour = None if first.hour is None or second.hour is None else first.hour + second.hour
    return WindowRates(first.minute + second.minute, hour)


def _window_rates(data: BrokerStatsData) -> WindowRates:
    minute, hour = data.stats_minute, data.stats_hour
    # The hour is sampled every ten minutes. Before the second sample it lacks what the last minute already has.
    return WindowRates(minute.tps, None if hour.sum < minute.sum else hour.tps)
