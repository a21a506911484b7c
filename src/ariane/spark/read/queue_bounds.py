"""What the source reads from: the topics that the options choose, their queues, and where these begin and end now.

topics ─→ queues ─→ first and last offset of each          (all brokers' queues in a few round trips: `pull`)
                └─→ the offset of a time, found exactly     (the broker's nearest one is looked at: `first_at`)
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ariane.errors import ArianeError, ProtocolError
from ariane.model.message import MessageQueue
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, SEND_FORBIDDEN, is_system_topic, reply_topic
from ariane.protocol import record
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.routing import ClusterInfo
from ariane.spark.read import pull_client
from ariane.spark.read.offset_ranges import Positions, describe_bounds
from ariane.spark.read.source_options import SourceOptions, listed_topics

log = logging.getLogger("ariane.spark")

PROBE_MESSAGES = 8  # messages that are looked at for their store time at once
SAMPLE_MESSAGES = 8  # messages that an estimate of a queue's entries is made of
SAMPLED_QUEUES_MAX = 256  # queues that are asked for it; the others have the mean of these


class QueueBounds(NamedTuple):
    """First and last offsets of the queues that could be asked, and those of them for which a slave answered."""

    first: Positions
    end: Positions
    from_slaves: frozenset[MessageQueue] = frozenset()


def select_topics(cluster: pull_client.BlockingCluster, options: SourceOptions) -> list[str]:
    """The topics that are read: those that were listed, or those there are now that match the pattern."""
    listed = listed_topics(options)
    if listed:
        return list(listed)
    return matching_topics(options.topics_pattern, options.include_system_topics, cluster.topics(), cluster.brokers())


def matching_topics(
    pattern: str, include_system_topics: bool, topics: Sequence[str], brokers: ClusterInfo
) -> list[str]:
    """Those of the `known` topics that match. System topics are left out unless they are asked for; with them belong those
    that every broker and cluster has under its own name, for retries, dead letters and replies."""
    matches = re.compile(pattern).fullmatch
    if include_system_topics:
        return sorted(topic for topic in {*topics, *SEND_FORBIDDEN} if matches(topic))
    clusters = set(brokers.cluster_addr_table)
    broker_topics = {*clusters, *brokers.broker_addr_table, *map(reply_topic, clusters)}
    return sorted(topic for topic in set(topics) - broker_topics if not is_internal(topic) and matches(topic))


def is_internal(topic: str) -> bool:
    """Whether brokers or clients write to this topic by themselves."""
    return is_system_topic(topic.lower()) or is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def fetch_bounds(cluster: pull_client.BlockingCluster, queues: Sequence[MessageQueue]) -> QueueBounds:
    """The ends of all `queues`; servers that are away are waited for."""
    fetched: dict[MessageQueue, pull_client.OffsetBounds] = {}

    def fetch_missing() -> None:
        answers = cluster.queue_bounds([queue for queue in queues if queue not in fetched])
        fetched.update({queue: one for queue, one in answers.items() if isinstance(one, pull_client.OffsetBounds)})
        raise_first_error(answers)

    cluster.retry(f"ends of {_describe_topics(queues)}", fetch_missing)
    return _to_bounds(fetched)


def fetch_available_bounds(
    cluster: pull_client.BlockingCluster, queues: Sequence[MessageQueue]
) -> tuple[QueueBounds, dict[str, str]]:
    """The ends of those queues whose broker answers, and why the other brokers do not."""
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
        {queue: one.first for queue, one in fetched.items()},
        {queue: one.end for queue, one in fetched.items()},
        frozenset(queue for queue, one in fetched.items() if not one.from_master),
    )


def find_offsets_by_time(
    cluster: pull_client.BlockingCluster, times: Mapping[MessageQueue, int], bounds: QueueBounds
) -> Positions:
    """The first entry of each queue that was stored at its time (ms) or later, else the end of the queue.

    Brokers answer with an entry near the time, before or after it, and in a row of equal times with any of them. So they are
    asked for the time just before, and the store times around their answer are looked at, nearer and nearer. Where a
    broker's clock went back, store times do not ascend, and it is one of the places where they pass the time.
    """
    low = {queue: bounds.first[queue] for queue in times}  # every entry before is earlier
    high = {queue: bounds.end[queue] for queue in times}  # every entry from here on is not
    description = f"offsets by time of {_describe_topics(list(times))}"

    def search() -> Positions:
        wanted = {queue: max(0, ms - 1) for queue, ms in times.items() if low[queue] < high[queue]}
        answers = cluster.search_offsets(wanted)
        raise_first_error(answers)
        return {queue: one for queue, one in answers.items() if isinstance(one, int)}

    probes = {
        queue: max(low[queue], min(at, high[queue]) - 1) for queue, at in cluster.retry(description, search).items()
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
    answers = cluster.pull_each(offsets, PROBE_MESSAGES)
    raise_first_error(answers)
    probed = {queue: one for queue, one in answers.items() if isinstance(one, pull_client.PulledRecords)}
    for queue, one in probed.items():
        if not one.from_master and offsets[queue] >= one.max_offset:  # it is behind, which is no hole
            held = describe_bounds(one.min_offset, one.max_offset)
            raise pull_client.OffsetNotAvailable(
                f"{queue.broker} has nothing at {offsets[queue]} yet (it holds {held})"
            )
    return probed


def _narrow(
    queue: MessageQueue, ms: int, probe: int, pulled: pull_client.PulledRecords, low: Positions, high: Positions
) -> None:
    """Take over what the entries from `probe` on say."""
    before = low[queue], high[queue]
    for offset, stored_ms in _store_times(pulled):
        if not low[queue] <= offset < high[queue]:
            continue
        if stored_ms < ms:
            low[queue] = offset + 1
        else:
            high[queue] = offset
            break
    if pulled.min_offset > low[queue]:  # deleted meanwhile
        low[queue] = min(pulled.min_offset, high[queue])
    if (low[queue], high[queue]) == before:
        high[queue] = probe  # a hole: rather too early than too late


def _next_probe(low: int, high: int, previous: int, reach: int) -> int:
    """Near the side where it went on, further with each time, at most in the middle."""
    step = min(reach, (high - low) // 2)
    return low + step if previous < low else high - max(step, 1)


def _store_times(pulled: pull_client.PulledRecords) -> list[tuple[int, int]]:
    if pulled.code != ResponseCode.SUCCESS:
        return []
    return [(one.queue_offset, one.store_ms) for one in record.decode_all(pulled.body)]


def estimate_entry_sizes(cluster: pull_client.BlockingCluster, positions: Positions) -> dict[MessageQueue, float]:
    """About how many bytes an entry of each queue has, by a few from `at` on: of the first queues in their order, and the
    mean of these for the others and for those that do not answer."""
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
                log.warning("%s: its entries cannot be measured: %s", queue, error)
    mean = sum(sizes_by_queue.values()) / len(sizes_by_queue) if sizes_by_queue else 1.0
    return {queue: sizes_by_queue.get(queue, mean) for queue in queues}


def raise_first_error(answers: Mapping[MessageQueue, object]) -> None:
    """The first error among the answers, if there is one."""
    for one in answers.values():
        if isinstance(one, ArianeError):
            raise one


def _describe_topics(queues: Sequence[MessageQueue]) -> str:
    names = sorted({queue.topic for queue in queues})
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} topics more"
