"""Selects topics, and finds the first and end offset of their queues, and offsets by time.

topics ─→ queues ─→ first and end offset of each            (all brokers' queues in a few round trips: `pull_client`)
                └─→ first offset stored at or after a time   (searched around the broker's guess: `find_offsets_by_time`)
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ariane.errors import ArianeError, ProtocolError
from ariane.model.message import MessageQueue
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, SEND_FORBIDDEN, is_system_topic, reply_topic
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import record
from ariane.protocol.requests.routing import ClusterInfo
from ariane.spark.read import pull_client
from ariane.spark.read.offset_ranges import Positions, describe_bounds
from ariane.spark.read.source_options import SourceOptions, listed_topics

log = logging.getLogger("ariane.spark")

PROBE_MESSAGES = 8  # messages whose store times are compared in one step of the search
SAMPLE_MESSAGES = 8  # messages from which the mean entry size of a queue is estimated
SAMPLED_QUEUES_MAX = 256  # queues that are sampled at most; the others get the mean of these


class QueueBounds(NamedTuple):
    """First and end offsets of the queues that responded, and those among them that a slave reported."""

    first: Positions
    end: Positions
    from_slaves: frozenset[MessageQueue] = frozenset()


def select_topics(cluster: pull_client.BlockingCluster, options: SourceOptions) -> list[str]:
    """Return the topics to read: those that options list, or the existing ones that match the pattern."""
    listed = listed_topics(options)
    if listed:
        return list(listed)
    return matching_topics(options.topics_pattern, options.include_system_topics, cluster.topics(), cluster.brokers())


def matching_topics(
    pattern: str, include_system_topics: bool, topics: Sequence[str], brokers: ClusterInfo
) -> list[str]:
    """Return the topics that match `pattern`.

    System topics match only with `include_system_topics`. They include the topics named like a broker or cluster, and those
    for retries, dead letters and replies.
    """
    matches = re.compile(pattern).fullmatch
    if include_system_topics:
        return sorted(topic for topic in {*topics, *SEND_FORBIDDEN} if matches(topic))
    clusters = set(brokers.cluster_addr_table)
    broker_topics = {*clusters, *brokers.broker_addr_table, *map(reply_topic, clusters)}
    return sorted(topic for topic in set(topics) - broker_topics if not is_internal(topic) and matches(topic))


def is_internal(topic: str) -> bool:
    """Return whether brokers or clients write to this topic on their own."""
    return is_system_topic(topic.lower()) or is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def fetch_bounds(cluster: pull_client.BlockingCluster, queues: Sequence[MessageQueue]) -> QueueBounds:
    """Return the bounds of all `queues`; retries while servers are unavailable."""
    fetched: dict[MessageQueue, pull_client.OffsetBounds] = {}

    def fetch_missing() -> None:
        responses = cluster.queue_bounds([queue for queue in queues if queue not in fetched])
        fetched.update(
            {queue: bounds for queue, bounds in responses.items() if isinstance(bounds, pull_client.OffsetBounds)}
        )
        raise_first_error(responses)

    cluster.retry(f"queue bounds of {_describe_topics(queues)}", fetch_missing)
    return _to_bounds(fetched)


def fetch_available_bounds(
    cluster: pull_client.BlockingCluster, queues: Sequence[MessageQueue]
) -> tuple[QueueBounds, dict[str, str]]:
    """Return the bounds of the queues that can be reached now, and the reason for each broker that cannot."""
    fetched: dict[MessageQueue, pull_client.OffsetBounds] = {}
    unavailable: dict[str, str] = {}
    for queue, bounds in cluster.queue_bounds(queues).items():
        if isinstance(bounds, pull_client.OffsetBounds):
            fetched[queue] = bounds
        else:
            pull_client.raise_unless_transient(bounds)
            unavailable.setdefault(queue.broker, str(bounds))
    return _to_bounds(fetched), unavailable


def _to_bounds(fetched: Mapping[MessageQueue, pull_client.OffsetBounds]) -> QueueBounds:
    return QueueBounds(
        {queue: bounds.first for queue, bounds in fetched.items()},
        {queue: bounds.end for queue, bounds in fetched.items()},
        frozenset(queue for queue, bounds in fetched.items() if not bounds.from_master),
    )


def find_offsets_by_time(
    cluster: pull_client.BlockingCluster, times: Mapping[MessageQueue, int], bounds: QueueBounds
) -> Positions:
    """Return the offset of the first entry of each queue that was stored at its time (ms) or later, otherwise its end.

    Brokers return an entry near the time, before or after it, and any of several entries with equal times. The search therefore
    starts at the broker's result for the preceding ms and narrows an interval by the store times around it. If a broker's clock
    was set back, store times do not ascend, and the result is one of the offsets at which they pass the time.
    """
    low = {queue: bounds.first[queue] for queue in times}  # invariant: every entry below is earlier
    high = {queue: bounds.end[queue] for queue in times}  # invariant: this entry and the following ones are not earlier
    description = f"offsets by time of {_describe_topics(list(times))}"

    def search() -> Positions:
        searched = {queue: max(0, ms - 1) for queue, ms in times.items() if low[queue] < high[queue]}
        responses = cluster.search_offsets(searched)
        raise_first_error(responses)
        return {queue: offset for queue, offset in responses.items() if isinstance(offset, int)}

    probes = {
        queue: max(low[queue], min(position, high[queue]) - 1)
        for queue, position in cluster.retry(description, search).items()
    }
    reach = PROBE_MESSAGES
    while probes:
        for queue, pulled in cluster.retry(description, _pull_probes, cluster, probes).items():
            _narrow(queue, times[queue], probes[queue], pulled, low, high)
        probes = {
            queue: _next_probe(low[queue], high[queue], probes[queue], reach)
            for queue in probes
            if low[queue] < high[queue]
        }
        reach *= 4
    return {queue: high[queue] for queue in times}


def _pull_probes(
    cluster: pull_client.BlockingCluster, offsets: Positions
) -> dict[MessageQueue, pull_client.PulledRecords]:
    responses = cluster.pull_each(offsets, PROBE_MESSAGES)
    raise_first_error(responses)
    probed = {queue: pulled for queue, pulled in responses.items() if isinstance(pulled, pull_client.PulledRecords)}
    for queue, pulled in probed.items():
        if not pulled.from_master and offsets[queue] >= pulled.max_offset:  # the slave lags, so the entry is not lost
            bounds = describe_bounds(pulled.min_offset, pulled.max_offset)
            raise pull_client.OffsetNotAvailable(
                f"{queue.broker} does not have offset {offsets[queue]} yet (it holds {bounds})"
            )
    return probed


def _narrow(
    queue: MessageQueue, ms: int, probe: int, pulled: pull_client.PulledRecords, low: Positions, high: Positions
) -> None:
    """Narrow the interval of a queue by the store times of the entries pulled at `probe`."""
    before = low[queue], high[queue]
    for offset, stored_ms in _store_times(pulled):
        if not low[queue] <= offset < high[queue]:
            continue
        if stored_ms < ms:
            low[queue] = offset + 1
        else:
            high[queue] = offset
            break
    if pulled.min_offset > low[queue]:  # deleted in the meantime
        low[queue] = min(pulled.min_offset, high[queue])
    if (low[queue], high[queue]) == before:
        high[queue] = probe  # no entry there: continue below, because reading too early loses nothing


def _next_probe(low: int, high: int, previous: int, reach: int) -> int:
    """Return the next offset to probe: at growing distance from the previous one, at most in the middle of the interval."""
    step = min(reach, (high - low) // 2)
    return low + step if previous < low else high - max(step, 1)


def _store_times(pulled: pull_client.PulledRecords) -> list[tuple[int, int]]:
    if pulled.code != ResponseCode.SUCCESS:
        return []
    return [(entry.queue_offset, entry.store_ms) for entry in record.decode_all(pulled.body)]


def estimate_entry_sizes(cluster: pull_client.BlockingCluster, positions: Positions) -> dict[MessageQueue, float]:
    """Estimate the mean entry size in bytes of each queue from a few messages at its position.

    At most SAMPLED_QUEUES_MAX queues are sampled; the others, and those that do not respond, get the mean of these.
    """
    queues = sorted(positions)
    stride = max(1, -(-len(queues) // SAMPLED_QUEUES_MAX))
    sizes_by_queue: dict[MessageQueue, float] = {}
    for queue, pulled in cluster.pull_each(
        {queue: positions[queue] for queue in queues[::stride]}, SAMPLE_MESSAGES
    ).items():
        if isinstance(pulled, ArianeError):
            pull_client.raise_unless_transient(pulled)
        elif pulled.code == ResponseCode.SUCCESS and pulled.body:
            try:
                sizes_by_queue[queue] = len(pulled.body) / len(list(record.decode_all(pulled.body)))
            except ProtocolError as error:
                log.warning("%s: could not estimate the entry size: %s", queue, error)
    mean = sum(sizes_by_queue.values()) / len(sizes_by_queue) if sizes_by_queue else 1.0
    return {queue: sizes_by_queue.get(queue, mean) for queue in queues}


def raise_first_error(results: Mapping[MessageQueue, object]) -> None:
    """Raise the first error among the results, if any."""
    for result in results.values():
        if isinstance(result, ArianeError):
            raise result


def _describe_topics(queues: Sequence[MessageQueue]) -> str:
    names = sorted({queue.topic for queue in queues})
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more topics"
