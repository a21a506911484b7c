"""Requests for the statistics of one broker, a few at a time: used by the collector and by the Prometheus exporter.

    code  result                                        method
    28    runtime information, as texts by key          runtime_table()
    21    names of the topics; their settings           topic_names(), topic_configs()
    43    committed offsets of all groups               committed_offsets()
    202   queues of a topic: id, min and max offset     queue_ranges(topic)
    303   age of the oldest unconsumed message          oldest_ages(topic, group)
    315   a statistic over the last minute              minute_statistic(name, key)

A method that asks about one topic, group or statistic returns None if the broker rejects the request, and records the reason in
`faults`. A broker that does not respond raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from ariane.cluster.broker_statistics import is_uncounted
from ariane.errors import ProtocolError, ReplyError
from ariane.model.topic import TopicConfig
from ariane.net.name_servers import Requester
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import ConsumerOffsetTable, TopicRef
from ariane.protocol.requests.routing import KvTableBody, TopicTable
from ariane.protocol.requests.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeTimeSpans,
    QueryConsumeTimeSpan,
    TopicStats,
    ViewBrokerStats,
    by_queue,
)

T = TypeVar("T")

MAX_IN_FLIGHT = 16  # requests in flight per broker, which serves clients at the same time
FAULTS_MAX = 20  # each truncated to FAULT_MAX characters
FAULT_MAX = 300
AGE_MAX_MS = 20 * 365 * 86_400_000  # Java returns now - (-1) for a message that is not stored any more

Pair = tuple[str, str]
"""Topic and group."""

NOT_COUNTED = BrokerStatsItem()
"""A statistic that the broker does not have: it creates one with the first event. Compare with `is`."""


class StatisticsRequests:
    """Sends and counts requests to one broker.

    Args:
        peers: Sends the requests.
        addr: Address of the broker.
        timeout_ms: Time limit of one request.
        in_flight: Maximum number of requests in flight.
    """

    def __init__(self, peers: Requester, addr: str, *, timeout_ms: float, in_flight: int = MAX_IN_FLIGHT) -> None:
        self.count = 0  # requests sent, to show the load that polling causes
        self.faults: list[str] = []  # reasons of requests that failed, while the others went on
        self._peers = peers
        self._addr = addr
        self._timeout_ms = timeout_ms
        self._limit = asyncio.Semaphore(in_flight)  # protects the broker's request queue

    async def request(self, code: RequestCode, header: msgspec.Struct | None = None) -> Command:
        """Return the response, whatever its code."""
        async with self._limit:
            self.count += 1
            return await self._peers.request(self._addr, code, header, timeout_ms=self._timeout_ms)

    async def request_ok(self, code: RequestCode, header: msgspec.Struct | None = None) -> Command:
        """Send a request and return the response.

        Raises:
            ReplyError: the broker rejected it.
        """
        answer = await self.request(code, header)
        if answer.code != ResponseCode.SUCCESS:
            raise ReplyError(answer.code, answer.remark, self._addr)
        return answer

    def record_failure(self, subject: str, reason: object) -> None:
        """Record a rejected request; the caller continues without its result."""
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(f"{subject}: {reason}"[:FAULT_MAX])
        elif len(self.faults) == FAULTS_MAX:
            self.faults.append("and others")

    async def runtime_table(self) -> dict[str, str]:
        """Return the runtime information as texts by key."""
        return fastjson.decode((await self.request_ok(RequestCode.GET_BROKER_RUNTIME_INFO)).body, KvTableBody).table

    async def topic_names(self) -> frozenset[str]:
        """Return the names of all topics of a master."""
        return frozenset(await self.topic_configs())

    async def topic_configs(self) -> dict[str, TopicConfig]:
        """Return the settings of all topics of a master, by name."""
        answer = await self.request_ok(RequestCode.GET_ALL_TOPIC_CONFIG)
        return fastjson.decode(answer.body, TopicTable).topic_config_table

    async def committed_offsets(self) -> dict[Pair, dict[int, int]]:
        """Return (topic, group) → queue id → committed offset."""
        answer = await self.request_ok(RequestCode.GET_ALL_CONSUMER_OFFSET)
        return split_pairs(fastjson.decode(answer.body, ConsumerOffsetTable).offset_table)

    async def queue_ranges(self, topic: str) -> tuple[tuple[int, int, int], ...] | None:
        """Return id, min and max offset of each queue of a topic."""
        answer = await self.request(RequestCode.GET_TOPIC_STATS_INFO, TopicRef(topic))
        stats = self._decode(answer, TopicStats, f"offsets of {topic}")
        if stats is None:
            return None
        try:
            table = by_queue(stats.offset_table)
        except ProtocolError as error:
            self.record_failure(f"offsets of {topic}", error)
            return None
        return tuple(sorted((queue.queue_id, item.min_offset, item.max_offset) for queue, item in table.items()))

    async def oldest_ages(self, topic: str, group: str) -> dict[int, int] | None:
        """Return queue id → age in ms of the next message for the group, for queues that have one."""
        answer = await self.request(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan(topic, group))
        spans = self._decode(answer, ConsumeTimeSpans, f"ages of {topic} for {group}")
        if spans is None:
            return None
        return {
            item.message_queue.queue_id: item.delay_time
            for item in spans.consume_time_span_set
            if 0 <= item.delay_time < AGE_MAX_MS
        }

    async def minute_statistic(self, name: str, key: str) -> BrokerStatsItem | None:
        """Return the last minute of a statistic; NOT_COUNTED if the broker does not have it."""
        answer = await self.request(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats(name, key))
        if is_uncounted(answer.code, answer.remark):
            return NOT_COUNTED
        data = self._decode(answer, BrokerStatsData, f"{name} of {key}")
        return None if data is None else data.stats_minute

    def _decode(self, answer: Command, kind: type[T], subject: str) -> T | None:
        if answer.code != ResponseCode.SUCCESS:
            self.record_failure(subject, f"code {answer.code}: {answer.remark}")
            return None
        try:
            return fastjson.decode(answer.body, kind)
        except ProtocolError as error:
            self.record_failure(subject, error)
            return None


def split_pairs(table: Mapping[str, dict[int, int]]) -> dict[Pair, dict[int, int]]:
    """Return the offsets of `topic@group` keys by (topic, group)."""
    found: dict[Pair, dict[int, int]] = {}
    for key, offsets in table.items():
        topic, at, group = key.partition("@")
        if at and topic and group:
            found[topic, group] = offsets
    return found
