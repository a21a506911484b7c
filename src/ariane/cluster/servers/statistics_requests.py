"""Requests for the statistics of one broker, a few at a time: used by the collector and by the Prometheus exporter.

    code  result                                        method
    28    runtime information, as texts by key          runtime_table()
    21    settings of the topics                        topic_configs()
    43    committed offsets of all groups               committed_offsets()
    202   queues of a topic: id, min and max offset     queue_ranges(topic); 30, 31 for those that are only read
    14    where a group without an offset starts         starts_first(topic, queue_id, group)
    303   age of the oldest unconsumed message          oldest_ages(topic, group)
    315   a statistic over the last minute              minute_statistic(name, key)

`request_many` sends any number of requests with one code: in batches to a broker of ours that supports them
(`protocol.request_batch`), one by one to others. A method that asks about one topic, group or statistic returns None if the broker
rejects the request, and records the reason in `faults`. A broker that does not respond raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from ariane.cluster.lag import oldest_age_ms
from ariane.cluster.servers.broker_statistics import is_uncounted
from ariane.errors import ArianeError, ProtocolError, ReplyError, RequestTimeout
from ariane.model.topic import TopicConfig
from ariane.net.pools.requester import Requester
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.request_batch import REQUESTS_KEY, REQUESTS_MAX, decode_responses, encode_requests
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.admin import ConsumerOffsetTable, TopicRef
from ariane.protocol.requests.messaging import OffsetResponse, QueryConsumerOffset, QueueRef
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

Pair = tuple[str, str]
"""Topic and group."""

QueueRanges = tuple[tuple[int, int, int], ...]
"""Queue id, min offset and max offset of the queues of a topic."""

NOT_COUNTED = BrokerStatsItem()
"""A statistic that the broker does not have: it creates one with the first event. Compare with `is`."""


class StatisticsRequests:
    """Sends and counts requests to one broker.

    Args:
        peers: Sends the requests.
        addr: Address of the broker.
        timeout_ms: Time limit of one request.
        in_flight: Maximum number of requests in flight.
        batch_max: Requests of a batch, from `batch_max`; 0: the broker does not support them. `runtime_table` sets it, too.
    """

    def __init__(
        self,
        peers: Requester,
        addr: str,
        *,
        timeout_ms: float,
        in_flight: int = MAX_IN_FLIGHT,
        batch_max: int = 0,
    ) -> None:
        self.count = 0  # requests sent, to show the load that polling causes
        self.faults: list[str] = []  # reasons of requests that failed, while the others went on
        self._peers = peers
        self._addr = addr
        self._timeout_ms = timeout_ms
        self._in_flight = in_flight
        self._limit = asyncio.Semaphore(in_flight)  # protects the broker's request queue
        self._batch_max = batch_max

    async def request(self, code: RequestCode, header: msgspec.Struct | None = None, body: bytes = b"") -> Command:
        """Return the response, whatever its code."""
        async with self._limit:
            self.count += 1
            return await self._peers.request(self._addr, code, header, body, timeout_ms=self._timeout_ms)

    async def request_many(self, code: RequestCode, headers: Sequence[msgspec.Struct]) -> list[Command | ArianeError]:
        """Return the response to each header, whatever its code; errors from the first request on that was not answered."""
        responses: list[Command | ArianeError] = []
        try:
            while self._batch_max and len(responses) < len(headers):
                responses += await self._batch(code, headers[len(responses) : len(responses) + self._batch_max])
        except ArianeError as error:
            return responses + [error] * (len(headers) - len(responses))
        return responses + await self._each(code, headers[len(responses) :])

    async def _batch(self, code: RequestCode, headers: Sequence[msgspec.Struct]) -> list[Command]:
        """Return the responses to the first of some requests; none if the broker does not support batches any more."""
        answer = await self.request(RequestCode.REQUEST_BATCH, None, encode_requests(code, map(encode_header, headers)))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._batch_max = 0
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise ReplyError(answer.code, answer.remark, self._addr)
        return decode_responses(answer.body, len(headers))

    async def _each(self, code: RequestCode, headers: Sequence[msgspec.Struct]) -> list[Command | ArianeError]:
        """Send requests one by one, until one is not answered: the broker would not answer the others either."""
        responses: dict[int, Command | ArianeError] = {}
        failure: ArianeError | None = None
        numbers = iter(range(len(headers)))

        async def send() -> None:
            nonlocal failure
            for number in numbers:
                if failure is not None:
                    responses[number] = failure
                    continue
                try:
                    responses[number] = await self._request_twice(code, headers[number])
                except ArianeError as error:
                    responses[number] = failure = error

        # A few tasks for all: one per request would cost more than the request itself.
        await asyncio.gather(*(send() for _ in range(min(self._in_flight, len(headers)))))
        return [responses[number] for number in range(len(headers))]

    async def _request_twice(self, code: RequestCode, header: msgspec.Struct) -> Command:
        try:
            return await self.request(code, header)
        except RequestTimeout:
            # A pause of a busy machine must not cost a round of thousands of requests.
            return await self.request(code, header)

    async def _answered(self, code: RequestCode, headers: Sequence[msgspec.Struct]) -> list[Command]:
        """Return the responses of `request_many`. Raise the error if one is missing."""
        responses = []
        for response in await self.request_many(code, headers):
            if isinstance(response, ArianeError):
                raise response
            responses.append(response)
        return responses

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
        answer = await self.request_ok(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = fastjson.decode(answer.body, KvTableBody).table
        self._batch_max = batch_max(table)
        return table

    async def topic_configs(self) -> dict[str, TopicConfig]:
        """Return the settings of all topics of a master, by name."""
        answer = await self.request_ok(RequestCode.GET_ALL_TOPIC_CONFIG)
        return fastjson.decode(answer.body, TopicTable).topic_config_table

    async def committed_offsets(self) -> dict[Pair, dict[int, int]]:
        """Return (topic, group) → queue id → committed offset."""
        answer = await self.request_ok(RequestCode.GET_ALL_CONSUMER_OFFSET)
        return split_pairs(fastjson.decode(answer.body, ConsumerOffsetTable).offset_table)

    async def queue_ranges(self, topic: str, read_queues: int = 0) -> QueueRanges | None:
        """Return id, min and max offset of each queue of a topic.

        Args:
            topic: Name of the topic.
            read_queues: Number of queues that consumers read. While a topic shrinks, the broker lists those that producers use.
        """
        return (await self.all_queue_ranges({topic: read_queues}))[topic]

    async def all_queue_ranges(self, topics: Mapping[str, int]) -> dict[str, QueueRanges | None]:
        """Return `queue_ranges` of each topic, from topics with their numbers of queues that consumers read."""
        answers = await self._answered(RequestCode.GET_TOPIC_STATS_INFO, [TopicRef(topic) for topic in topics])
        ranges = {topic: self._queue_ranges(topic, answer) for topic, answer in zip(topics, answers, strict=True)}
        others = [
            QueueRef(topic, queue_id)
            for topic, queues in ranges.items()
            if queues is not None
            for queue_id in range(len(queues), topics[topic])
        ]
        if others:
            bounds = await asyncio.gather(
                *(self._each(code, others) for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET))
            )
            for queue, first, last in zip(others, *bounds, strict=True):
                ranges[queue.topic] = self._extended(queue, ranges[queue.topic], first, last)
        return ranges

    def _queue_ranges(self, topic: str, answer: Command) -> QueueRanges | None:
        stats = self._decode(answer, TopicStats, f"offsets of {topic}")
        if stats is None:
            return None
        try:
            table = by_queue(stats.offset_table)
        except ProtocolError as error:
            self.record_failure(f"offsets of {topic}", error)
            return None
        return tuple(sorted((queue.queue_id, item.min_offset, item.max_offset) for queue, item in table.items()))

    def _extended(
        self, queue: QueueRef, ranges: QueueRanges | None, *answers: Command | ArianeError
    ) -> QueueRanges | None:
        """Return the queues of a topic with one more; None if one of the answers with its bounds is not a success."""
        offsets = []
        for answer in answers:
            if isinstance(answer, ArianeError):
                raise answer
            if answer.code != ResponseCode.SUCCESS:
                self.record_failure(
                    f"offsets of {queue.topic}-{queue.queue_id}", f"code {answer.code}: {answer.remark}"
                )
                return None
            offsets.append(decode_header(answer, OffsetResponse).offset)
        first, last = offsets
        return None if ranges is None else (*ranges, (queue.queue_id, first, last))

    async def oldest_ages(self, topic: str, group: str) -> dict[int, int] | None:
        """Return queue id → age in ms of the next message for the group, for queues that have one."""
        return (await self.all_oldest_ages([(topic, group)]))[topic, group]

    async def all_oldest_ages(self, pairs: Sequence[Pair]) -> dict[Pair, dict[int, int] | None]:
        """Return `oldest_ages` of each pair."""
        headers = [QueryConsumeTimeSpan(*pair) for pair in pairs]
        answers = await self._answered(RequestCode.QUERY_CONSUME_TIME_SPAN, headers)
        return {pair: self._oldest_ages(*pair, answer) for pair, answer in zip(pairs, answers, strict=True)}

    def _oldest_ages(self, topic: str, group: str, answer: Command) -> dict[int, int] | None:
        spans = self._decode(answer, ConsumeTimeSpans, f"ages of {topic} for {group}")
        if spans is None:
            return None
        ages = {item.message_queue.queue_id: oldest_age_ms(item) for item in spans.consume_time_span_set}
        return {queue_id: age for queue_id, age in ages.items() if age is not None}

    async def starts_first(self, topic: str, queue_id: int, group: str) -> bool | None:
        """Return whether a group without a committed offset starts at 0; None if this one has committed an offset meanwhile."""
        return (await self.all_starts_first([(topic, queue_id, group)]))[0]

    async def all_starts_first(self, queues: Sequence[tuple[str, int, str]]) -> list[bool | None]:
        """Return `starts_first` of each topic, queue and group."""
        headers = [QueryConsumerOffset(group, topic, queue_id) for topic, queue_id, group in queues]
        answers = await self._answered(RequestCode.QUERY_CONSUMER_OFFSET, headers)
        return [self._starts_first(*queue, answer) for queue, answer in zip(queues, answers, strict=True)]

    def _starts_first(self, topic: str, queue_id: int, group: str, answer: Command) -> bool | None:
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return False
        if answer.code != ResponseCode.SUCCESS:
            self.record_failure(f"start of {group} in {topic}-{queue_id}", f"code {answer.code}: {answer.remark}")
            return None
        return True if decode_header(answer, OffsetResponse).offset == 0 else None

    async def minute_statistic(self, name: str, key: str) -> BrokerStatsItem | None:
        """Return the last minute of a statistic; NOT_COUNTED if the broker does not have it."""
        return (await self.minute_statistics([(name, key)]))[name, key]

    async def minute_statistics(
        self, wanted: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], BrokerStatsItem | None]:
        """Return `minute_statistic` of each name and key."""
        headers = [ViewBrokerStats(*statistic) for statistic in wanted]
        answers = await self._answered(RequestCode.VIEW_BROKER_STATS_DATA, headers)
        return {
            statistic: self._minute_statistic(*statistic, answer)
            for statistic, answer in zip(wanted, answers, strict=True)
        }

    def _minute_statistic(self, name: str, key: str, answer: Command) -> BrokerStatsItem | None:
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


def batch_max(runtime: Mapping[str, str]) -> int:
    """Return how many requests a broker with this runtime information accepts in a batch; 0 if it supports none."""
    text = runtime.get(REQUESTS_KEY, "")
    return min(int(text), REQUESTS_MAX) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def split_pairs(table: Mapping[str, dict[int, int]]) -> dict[Pair, dict[int, int]]:
    """Return the offsets of `topic@group` keys by (topic, group)."""
    pairs: dict[Pair, dict[int, int]] = {}
    for key, offsets in table.items():
        topic, at, group = key.partition("@")
        if at and topic and group:
            pairs[topic, group] = offsets
    return pairs
