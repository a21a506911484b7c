"""Which statistics a detail round requests of a broker (315), and their requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ariane.cluster.servers.statistics_requests import NOT_COUNTED, StatisticsRequests
from ariane.metrics.polling.scraped_cluster import MinuteRate, Pair, ScrapedBroker
from ariane.metrics.polling.settled_rates import Statistic
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, dlq_topic, retry_topic


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
    group_sizes: bool = True
    """Request the bytes per second that groups receive."""
    is_paced: bool = False
    """Rounds take long: results are shown as soon as a part is complete, and rates that are certainly zero are not requested."""


EXPORTER_SCOPE = PollScope()


class StatisticKey(NamedTuple):
    """A key, and names of statistics. Each name is requested only if the statistic before it exists."""

    key: str
    names: tuple[str, ...]

    @property
    def first(self) -> Statistic:
        """The first statistic: the others are zero if it is."""
        return self.names[0], self.key


def wanted_statistics(broker: ScrapedBroker, pairs: Iterable[Pair], scope: PollScope) -> list[StatisticKey]:
    """Return the statistics of a master and its pairs of topic and group."""
    wanted = [StatisticKey(broker.cluster, (name,)) for name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS")]
    for topic in broker.topics:
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            wanted.append(StatisticKey(topic, ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")))
    group_names = ("GROUP_GET_NUMS", "GROUP_GET_SIZE") if scope.group_sizes else ("GROUP_GET_NUMS",)
    for topic, group in pairs:
        if topic.startswith(RETRY_PREFIX):
            if scope.retries and any(last for _, _, last in broker.topics.get(topic, ())):
                wanted.append(StatisticKey(f"{topic}@{group}", ("GROUP_GET_NUMS",)))
            continue
        wanted.append(StatisticKey(f"{topic}@{group}", group_names))
        returned = broker.topics.get(retry_topic(group), ()) + broker.topics.get(dlq_topic(group), ())
        # Without a message in the retry or dead-letter topic nothing was sent back, which spares a request per pair.
        if scope.returned and any(last for _, _, last in returned):
            wanted.append(StatisticKey(f"{topic}@{group}", ("SNDBCK_PUT_NUMS",)))
    return wanted


async def request_statistics(
    requests: StatisticsRequests, wanted: Sequence[StatisticKey]
) -> tuple[dict[Statistic, MinuteRate], frozenset[Statistic]]:
    """Return the statistics that exist, and those whose request was rejected."""
    rates: dict[Statistic, MinuteRate] = {}
    lost: set[Statistic] = set()
    for number in range(max((len(statistic.names) for statistic in wanted), default=0)):
        # Where the number does not exist, the size does not either.
        names = [
            (statistic.names[number], statistic.key)
            for statistic in wanted
            if len(statistic.names) > number and (number == 0 or (statistic.names[number - 1], statistic.key) in rates)
        ]
        for statistic, item in (await requests.minute_statistics(names)).items():
            if item is None:
                lost.add(statistic)
            elif item is not NOT_COUNTED:
                rates[statistic] = MinuteRate(item.sum, item.tps)
    return rates, frozenset(lost)


def is_nonzero(rate: MinuteRate | None) -> bool:
    """Return whether a statistic exists and counted something."""
    return rate is not None and (rate.sum != 0 or rate.per_s != 0)
