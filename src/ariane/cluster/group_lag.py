"""Lag of consumer groups, queried from all masters concurrently.

Brokers without a response are in `unavailable`, and totals without them are None: unknown is never zero.
[ConsumerProgressSubCommand]
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ariane.cluster.connection import BrokerServer, BrokerUnavailable, ClusterConnection
from ariane.net.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.messaging import QueryConsumerOffset
from ariane.protocol.requests.stats import ConsumeStats, GetConsumeStats, GroupOffset, by_queue

STATS_TIMEOUT_MS = 15_000  # three times the default, as in Java's tools: the broker visits every queue
CONCURRENT_QUEUES = 64  # requests in flight to one broker for single queues


class QueueLag(NamedTuple):
    """One queue of a group.

    `consumer_offset` and `lag` are None if the group has committed no offset and would not start at 0. `consumed_ms` is the
    store time of the last consumed message; None without one, or if it was deleted.
    """

    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int | None
    consumed_ms: int | None

    @property
    def lag(self) -> int | None:
        """Messages not consumed yet; None if unknown."""
        return None if self.consumer_offset is None else self.broker_offset - self.consumer_offset


class GroupLag(NamedTuple):
    """A consumer group, summed over all brokers."""

    group: str
    queues: tuple[QueueLag, ...]
    reported_tps: float
    unavailable: tuple[BrokerUnavailable, ...]

    @property
    def total(self) -> int | None:
        """Messages not consumed yet; None if a broker or queue is unknown, or no broker has the group."""
        lags = [queue.lag for queue in self.queues]
        return None if self.unavailable or not lags or None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def consume_tps(self) -> float | None:
        """Messages consumed per second in the last minute; None if a broker did not respond."""
        return None if self.unavailable else self.reported_tps


async def group_lag(peers: ConnectionPool, namesrv: str, group: str, topic: str | None = None) -> GroupLag:
    """Return the lag of a group in one topic, or in all topics for which it has offsets."""

    async def ask(server: BrokerServer) -> tuple[float, list[QueueLag]]:
        addr = server.addr
        header = GetConsumeStats(group, topic)
        answer = await peers.request_ok(addr, RequestCode.GET_CONSUME_STATS, header, timeout_ms=STATS_TIMEOUT_MS)
        stats = fastjson.decode(answer.body, ConsumeStats)
        limit = asyncio.Semaphore(CONCURRENT_QUEUES)
        queues = by_queue(stats.offset_table).items()
        offsets = await asyncio.gather(
            *(_committed(peers, addr, group, queue.topic, queue.queue_id, one, limit) for queue, one in queues)
        )
        return stats.consume_tps, [
            QueueLag(queue.topic, queue.broker, queue.queue_id, one.broker_offset, offset, _time(one.last_timestamp))
            for (queue, one), offset in zip(queues, offsets, strict=True)
        ]

    answers = await ClusterConnection(namesrv, peers=peers).ask_brokers(ask)
    queues = sorted(queue for _, (_, found) in answers.values for queue in found)
    return GroupLag(group, tuple(queues), sum(tps for _, (tps, _) in answers.values), answers.unavailable)


async def _committed(
    peers: ConnectionPool,
    addr: str,
    group: str,
    topic: str,
    queue_id: int,
    offset: GroupOffset,
    limit: asyncio.Semaphore,
) -> int | None:
    """Return the committed offset of a group; None if it has committed none.

    Statistics report 0 for offsets that were never committed, too: an offset of 0 is therefore queried individually.
    """
    if offset.consumer_offset > 0 or offset.broker_offset == 0:
        return offset.consumer_offset
    async with limit:
        header = QueryConsumerOffset(group, topic, queue_id)
        answer = await peers.request(addr, RequestCode.QUERY_CONSUMER_OFFSET, header)
    return 0 if answer.code == ResponseCode.SUCCESS else None


def _time(ms: int) -> int | None:
    return ms if ms > 0 else None
