"""Metrics of a broker under the names and labels of the OpenTelemetry export of RocketMQ 5. Pure. [BrokerMetricsManager]

Names are those of its Prometheus exporter, which appends the unit. Counters begin with the start of the broker, as in 5.x. Omitted
are those whose values this broker does not have: histograms of sizes and latencies, revives of POP, thread pools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from ariane.metrics.families import Metric, MetricSample, MetricTable
from ariane.metrics.polling.scraped_cluster import Pair, PairProgress
from ariane.model.topic import RETRY_PREFIX, SYSTEM_GROUP_PREFIX, TopicConfig, is_system_topic
from ariane.model.topic_attributes import MESSAGE_TYPE
from ariane.protocol.versions import version_name

CONSUME_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push"}
REMOTING = "remoting"  # 5.x: of gRPC clients, too

_NODE = ("cluster", "node_type", "node_id")
_LAG = (*_NODE, "consumer_group", "topic", "is_retry", "is_system")
_IN = (*_NODE, "topic", "message_type", "is_system")
_OUT = (*_NODE, "topic", "consumer_group", "is_system", "is_retry")
_STORAGE = (*_NODE, "storage_type", "storage_medium")


class CountedClient(NamedTuple):
    """A connected client."""

    group: str
    language: str
    version: int
    consume_type: str
    """Empty of a producer."""


class BrokerTotals(msgspec.Struct, frozen=True, kw_only=True):
    """State of one broker."""

    node: tuple[str, str, str]
    """Values of the labels that all metrics have."""
    permission: int
    topics: Mapping[str, TopicConfig]
    groups: int
    clients: tuple[CountedClient, ...]
    received: Mapping[str, tuple[int, int]]
    """Messages and bytes by topic, since the start."""
    delivered: Mapping[Pair, tuple[int, int]]
    """Messages and bytes by topic and group, since the start."""
    progress: tuple[PairProgress, ...]
    ages_ms: Mapping[Pair, int]
    """Age of the oldest message that a group has not consumed; missing: unknown."""
    in_flight: Mapping[Pair, int]
    """Messages that were delivered by POP and not acknowledged."""
    log_bytes: int
    unflushed_bytes: int
    undispatched_bytes: int
    reserve_ms: int | None
    """Age of the oldest message in the commit log; None: there is none."""


Samples = Iterator[MetricSample]
Reader = Callable[[BrokerTotals], Samples]


def _value(field: str, *labels: str) -> Reader:
    def samples(broker: BrokerTotals) -> Samples:
        value = getattr(broker, field)
        if value is not None:
            yield (*broker.node, *labels), value

    return samples


def _topic_count(broker: BrokerTotals) -> Samples:
    yield broker.node, len(broker.topics)


def _connections(*, of_consumers: bool) -> Reader:
    def samples(broker: BrokerTotals) -> Samples:
        clients = (client for client in broker.clients if bool(client.consume_type) == of_consumers)
        for labels, count in Counter(_client_labels(clients)).items():
            yield (*broker.node, *labels), count

    return samples


def _client_labels(clients: Iterable[CountedClient]) -> Iterator[tuple[str, ...]]:
    for group, language, version, consume_type in clients:
        program = language.lower(), version_name(version).lower()
        if consume_type:
            mode = CONSUME_MODES.get(consume_type, consume_type.lower())
            yield group, *program, mode, REMOTING, _text(group.startswith(SYSTEM_GROUP_PREFIX))
        else:
            yield *program, REMOTING


def _received(column: int) -> Reader:
    def samples(broker: BrokerTotals) -> Samples:
        for topic, counts in broker.received.items():
            config = broker.topics.get(topic)
            kind = (None if config is None else config.attribute(MESSAGE_TYPE)) or "NORMAL"
            yield (*broker.node, topic, kind.lower(), _text(is_system_topic(topic))), counts[column]

    return samples


def _delivered(column: int) -> Reader:
    def samples(broker: BrokerTotals) -> Samples:
        for (topic, group), counts in broker.delivered.items():
            yield (*broker.node, topic, group, _is_system(topic, group), _is_retry(topic)), counts[column]

    return samples


def _progress(value: Callable[[BrokerTotals, PairProgress], int | None]) -> Reader:
    def samples(broker: BrokerTotals) -> Samples:
        for progress in broker.progress:
            number = value(broker, progress)
            if number is not None:
                topic, group = progress.topic, progress.group
                yield (*broker.node, group, topic, _is_retry(topic), _is_system(topic, group)), number

    return samples


def _lag_ms(broker: BrokerTotals, progress: PairProgress) -> int | None:
    return 0 if progress.lag.total == 0 else broker.ages_ms.get((progress.topic, progress.group))


def _in_flight(broker: BrokerTotals, progress: PairProgress) -> int:
    return broker.in_flight.get((progress.topic, progress.group), 0)


def _ready(broker: BrokerTotals, progress: PairProgress) -> int | None:
    return None if progress.lag.total is None else max(0, progress.lag.total - _in_flight(broker, progress))


def _is_system(topic: str, group: str) -> str:
    return _text(is_system_topic(topic) or group.startswith(SYSTEM_GROUP_PREFIX))


def _is_retry(topic: str) -> str:
    return _text(topic.startswith(RETRY_PREFIX))


def _text(value: bool) -> str:
    return "true" if value else "false"


OPENTELEMETRY_METRICS: MetricTable = {
    Metric("rocketmq_broker_permission", "gauge", "Permission of the broker: 4 (read) + 2 (write).", _NODE): _value("permission"),
    Metric("rocketmq_topic_number", "gauge", "Topics.", _NODE): _topic_count,
    Metric("rocketmq_consumer_group_number", "gauge", "Consumer groups with a configuration.", _NODE): _value("groups"),
    Metric("rocketmq_messages_in_total", "counter", "Messages stored. The type is the one that the topic declares; 5.x counts"
           " that of each message.", _IN): _received(0),
    Metric("rocketmq_throughput_in_total", "counter", "Bytes of messages stored.", _IN, "bytes"): _received(1),
    Metric("rocketmq_messages_out_total", "counter", "Messages delivered.", _OUT): _delivered(0),
    Metric("rocketmq_throughput_out_total", "counter", "Bytes of messages delivered.", _OUT, "bytes"): _delivered(1),
    Metric("rocketmq_producer_connections", "gauge", "Connected producers.",
           (*_NODE, "language", "version", "protocol_type")): _connections(of_consumers=False),
    Metric("rocketmq_consumer_connections", "gauge", "Connected consumers.",
           (*_NODE, "consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system")):
        _connections(of_consumers=True),
    Metric("rocketmq_consumer_lag_messages", "gauge", "Messages that a group has not consumed yet; absent if that of a queue is"
           " unknown.", _LAG, "messages"): _progress(lambda _, progress: progress.lag.total),
    Metric("rocketmq_consumer_lag_latency_milliseconds", "gauge", "Age of the oldest message that a group has not consumed;"
           " absent if it is unknown.", _LAG, "ms"): _progress(_lag_ms),
    Metric("rocketmq_consumer_inflight_messages", "gauge", "Messages that were delivered by POP and not acknowledged.", _LAG,
           "messages"): _progress(_in_flight),
    Metric("rocketmq_consumer_ready_messages", "gauge", "Messages that are not consumed and not in flight.", _LAG, "messages"):
        _progress(_ready),
    Metric("rocketmq_storage_size_bytes", "gauge", "Size of the commit log.", _STORAGE, "bytes"):
        _value("log_bytes", "local", "disk"),
    Metric("rocketmq_storage_flush_behind_bytes", "gauge", "Bytes of commit log that are not flushed.", _STORAGE, "bytes"):
        _value("unflushed_bytes", "local", "disk"),
    Metric("rocketmq_storage_dispatch_behind_bytes", "gauge", "Bytes of commit log without consume queue entries.", _STORAGE,
           "bytes"): _value("undispatched_bytes", "local", "disk"),
    Metric("rocketmq_storage_message_reserve_time_milliseconds", "gauge", "Age of the oldest message in the commit log.",
           _STORAGE, "ms"): _value("reserve_ms", "local", "disk"),
}  # fmt: skip
