"""A sample: the responses of one broker in one round of the collector, as a JSON message. docs/collector.md has the layout.

    {"schema":2,"collector":"host-a","round":17,"part":0,"at_ms":…,"cluster":…,"broker":"broker-a","broker_id":0,…,
     "topics":[{"topic":"T","at_ms":…,"queues":[[0,0,812],…]}],            queue, min, max
     "groups":[{"group":"G","topic":"T","at_ms":…,"bounds_at_ms":…,
                "queues":[[0,700,0,812,4100],…]}],                         queue, committed, min, max, age of the oldest in ms
     "counters":[{"name":"GROUP_GET_NUMS","topic":"T","group":"G","at_ms":…,"sum":600,"tps":10.0}]}

Unknown values are null. A sample of many topics is split into several messages with different topics and groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")

SCHEMA = 2
ENTRIES_MAX = 500  # per list and message: about 100 KB with 8 queues each, well below a broker's limit of 4 MB
QUEUES_MAX = 20_000  # of all entries of a message together, for topics with many queues


class BrokerRuntime(msgspec.Struct, frozen=True):
    """Runtime information of a broker (28); None: not reported."""

    at_ms: int  # when the response arrived
    boot_ms: int | None  # start of the broker, by its own clock; a change explains counters that went back
    put_total: int | None  # messages stored since the start, despite Java's key msgPutTotalTodayNow
    get_total: int | None  # messages delivered since the start, pulls of tools included
    log_min: int | None  # first offset of the commit log, in bytes
    log_max: int | None  # end of the commit log; a slave's is compared with its master's for the backlog of replication
    dispatch_behind_bytes: int | None  # bytes of the log that consume queues do not cover yet: invisible to consumers


class TopicQueueRanges(msgspec.Struct, frozen=True):
    """Queues of a topic: id, min offset, max offset."""

    topic: str
    at_ms: int
    queues: tuple[tuple[int, int, int], ...]


class GroupProgress(msgspec.Struct, frozen=True):
    """Progress of a group in the queues of a topic: id, committed, min and max offset, age of the oldest unconsumed message (ms).

    The committed offset is 0 in a queue without one that the group starts at 0, and None where that is unknown.
    `at_ms` is the time of the response with the committed offsets, `bounds_at_ms` of the one with min and max offsets.
    """

    group: str
    topic: str
    at_ms: int
    bounds_at_ms: int | None
    queues: tuple[tuple[int, int | None, int | None, int | None, int | None], ...]


class StatsCounter(msgspec.Struct, frozen=True):
    """Last minute of a statistic (315); zeros if the broker does not have it yet, because it creates it with the first count."""

    name: str  # statistic of RocketMQ, for example GROUP_GET_NUMS
    topic: str  # first part of the statistic's key
    group: str | None  # second part of the key; None for statistics of topics
    at_ms: int  # when the response arrived; the broker's own minute ends up to ten seconds earlier
    sum: int  # messages (NUMS) or bytes (SIZE) of the last minute
    tps: float  # per second of the last minute, as the broker computes it


class OmittedPart(msgspec.Struct, frozen=True):
    """Numbers of items that a round has skipped because of its limits."""

    topics: int = 0
    groups: int = 0
    counters: int = 0
    ages: int = 0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The responses of one broker in one round."""

    schema: int = SCHEMA  # readers reject samples of another number
    collector: str  # name of the collector: rates compare samples of the same one only
    round: int  # counts from 1 at each start of the collector
    part: int = 0  # 0 for the first message of a split sample
    at_ms: int  # start of the round, by the collector's clock
    interval_ms: int  # intended time between rounds
    duration_ms: int  # time that the requests to this broker took
    requests: int  # number of requests to this broker, rejected ones included
    cluster: str  # as listed by the name server, like the following three
    broker: str  # broker name, which a master shares with its slaves
    broker_id: int  # 0 is the master
    addr: str  # host and port that were polled
    error: str | None = None  # why the broker could not be polled; all lists are then empty. None: it responded
    runtime: BrokerRuntime | None = None  # None if `error` is set
    topics: tuple[TopicQueueRanges, ...] = ()  # bounds of queues, of masters only
    # Progress of groups, of masters only: slaves have committed offsets of up to ten seconds ago.
    groups: tuple[GroupProgress, ...] = ()
    counters: tuple[StatsCounter, ...] = ()  # statistics of the last minute, of masters and slaves
    # What the limits excluded from this round, so that nothing is missing silently.
    skipped: OmittedPart = OmittedPart()
    dropped_samples: int = 0  # messages that the collector dropped since its start because no broker accepted them
    failed_requests: tuple[str, ...] = ()  # requests that the broker rejected, with reasons; bounded by FAULTS_MAX


def encode_messages(sample: Sample) -> list[bytes]:
    topics = _split(sample.topics, lambda item: len(item.queues))
    groups = _split(sample.groups, lambda item: len(item.queues))
    counters = _split(sample.counters, lambda item: 1)
    return [
        msgspec.json.encode(
            msgspec.structs.replace(
                sample,
                part=part,
                topics=_part(topics, part),
                groups=_part(groups, part),
                counters=_part(counters, part),
            )
        )
        for part in range(max(1, len(topics), len(groups), len(counters)))
    ]


def _part(pieces: list[tuple[T, ...]], number: int) -> tuple[T, ...]:
    return pieces[number] if number < len(pieces) else ()


def _split(entries: tuple[T, ...], queues: Callable[[T], int]) -> list[tuple[T, ...]]:
    """Split entries into parts that fit into a message."""
    pieces: list[list[T]] = []
    count = 0
    for entry in entries:
        more = queues(entry)
        if not pieces or len(pieces[-1]) == ENTRIES_MAX or count + more > QUEUES_MAX:
            pieces.append([])
            count = 0
        pieces[-1].append(entry)
        count += more
    return [tuple(piece) for piece in pieces]
