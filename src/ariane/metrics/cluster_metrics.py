"""Metrics of topics, groups, clients and brokers. [rocketmq-exporter: RMQMetricsCollector, MetricsCollectTask]

rocketmq_…   names, labels and values of Apache's rocketmq-exporter
ariane_…     values that it does not have: state of brokers, lag by queue; unknown values are absent

Deviations from Apache's exporter, where its value is wrong: `cluster` is the cluster of the broker, not the first one that the
name server lists; a value that the broker does not know is absent instead of -1 or 0; a number of bytes keeps its unit; the
addresses of clients that have left are not repeated; a sum over brokers is absent while a broker with a part of it does not
respond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ariane.metrics.families import Metric, MetricSample, MetricTable
from ariane.metrics.polling.runtime_values import number
from ariane.metrics.polling.scraped_cluster import ScrapedCluster
from ariane.metrics.runtime_metrics import RUNTIME_METRICS
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX

Samples = Iterator[MetricSample]
Reader = Callable[[ScrapedCluster], Samples]

_TOPIC = ("cluster", "broker", "topic")
_GROUP_AT_BROKER = ("cluster", "broker", "topic", "group")
_GROUP = ("group", "topic", "countOfOnlineConsumers", "msgModel")
_CLIENT = ("clientAddr", "clientId", "group", "topic")
# Spelt as by Apache's exporter, so that its dashboards work.
_BROKER = ("cluster", "brokerIP", "broker")
_ARIANE_BROKER = ("cluster", "broker", "broker_id", "addr")

BROADCASTING, CLUSTERING = "0", "1"  # values of msgModel


# --- topics ---


def _topic_sums(is_wanted: Callable[[str], bool], prefix: str = "") -> Reader:
    """Return a reader of the sums of max offsets of some topics, whose label is the name without `prefix`."""

    def samples(snapshot: ScrapedCluster) -> Samples:
        for broker in snapshot.masters():
            for topic, queues in broker.topics.items():
                if is_wanted(topic):
                    labels = (broker.cluster, broker.name, topic.removeprefix(prefix))
                    yield labels, sum(last for _, _, last in queues)

    return samples


def _is_ordinary(topic: str) -> bool:
    return not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _stored_messages(snapshot: ScrapedCluster) -> Samples:
    for broker in snapshot.masters():
        for topic, queues in broker.topics.items():
            yield (broker.cluster, broker.name, topic), sum(last - first for _, first, last in queues)


def _producers(snapshot: ScrapedCluster) -> Samples:
    for broker in snapshot.masters():
        for group, count in (broker.producers or {}).items():
            yield (broker.cluster, broker.name, group), count


def _topic_rates(statistic: str) -> Reader:
    def samples(snapshot: ScrapedCluster) -> Samples:
        for broker in snapshot.masters():
            for topic in broker.topics:
                rate = broker.rates.get((statistic, topic))
                if rate is not None and _is_ordinary(topic):
                    yield (broker.cluster, broker.name, topic), round(rate.per_s, 2)

    return samples


# --- groups ---


def _group_rates(statistic: str) -> Reader:
    def samples(snapshot: ScrapedCluster) -> Samples:
        for progress in snapshot.progress:
            rate = progress.broker.rates.get((statistic, f"{progress.topic}@{progress.group}"))
            if rate is not None and not progress.topic.startswith(RETRY_PREFIX):
                yield (
                    (progress.broker.cluster, progress.broker.name, progress.topic, progress.group),
                    round(rate.per_s, 2),
                )

    return samples


def _sent_back(snapshot: ScrapedCluster) -> Samples:
    for progress in snapshot.progress:
        rate = progress.broker.rates.get(("SNDBCK_PUT_NUMS", f"{progress.topic}@{progress.group}"))
        if rate is not None and not progress.topic.startswith(RETRY_PREFIX):
            yield (progress.broker.cluster, progress.broker.name, progress.topic, progress.group), rate.sum


def _lags(is_retry: bool) -> Reader:
    """Return a reader of the lag of clustering groups, summed over brokers."""

    def samples(snapshot: ScrapedCluster) -> Samples:
        totals: dict[tuple[str, str], int] = {}
        unknown: set[str] = set()  # topics whose queues a broker did not report
        for progress in snapshot.progress:
            if progress.topic.startswith(RETRY_PREFIX) == is_retry:
                key = (progress.group, progress.topic)
                totals[key] = totals.get(key, 0) + progress.reported_lag
                if not progress.ranges:
                    unknown.add(progress.topic)
        for (group, topic), lag in totals.items():
            state = snapshot.groups.get(group)
            # A sum without one of the brokers would look as if the group had caught up.
            is_partial = topic in unknown or snapshot.is_partial(topic)
            if state is not None and not state.is_broadcasting and not is_partial:
                yield (group, topic, str(len(state.clients)), CLUSTERING), lag

    return samples


def _consumers(snapshot: ScrapedCluster) -> Samples:
    """Yield the connected consumers of every group that has offsets or subscriptions."""
    for group in dict.fromkeys(progress.group for progress in snapshot.progress):
        state = snapshot.groups.get(group)
        if state is not None:
            addrs = ",".join(client.addr for client in state.clients)
            yield (addrs, ",".join(client.client_id for client in state.clients), group), len(state.clients)


def _group_consumers(snapshot: ScrapedCluster) -> Samples:
    for (_, _, group), count in _consumers(snapshot):
        yield (group,), count


def _offset_sums(snapshot: ScrapedCluster) -> Samples:
    for progress in snapshot.progress:
        yield (progress.broker.cluster, progress.broker.name, progress.topic, progress.group), progress.offset


def _ages(snapshot: ScrapedCluster) -> Samples:
    """Yield the age of the next message, 0 for groups without a lag."""
    for progress in snapshot.progress:
        state = snapshot.groups.get(progress.group)
        age_ms = 0 if progress.lag.total == 0 else progress.broker.ages_ms.get((progress.topic, progress.group))
        if age_ms is not None and state is not None and not state.is_broadcasting:
            yield (progress.broker.cluster, progress.broker.name, progress.topic, progress.group), age_ms


def _group_lags(snapshot: ScrapedCluster) -> Samples:
    for progress in snapshot.progress:
        if (lag := progress.lag.total) is not None:
            yield (progress.broker.cluster, progress.broker.name, progress.topic, progress.group), lag


def _queue_lags(snapshot: ScrapedCluster) -> Samples:
    for progress in snapshot.progress:
        for queue_id, lag in progress.queue_lags():
            yield (progress.broker.cluster, progress.broker.name, progress.topic, progress.group, str(queue_id)), lag


def _queue_offsets(snapshot: ScrapedCluster) -> Samples:
    for progress in snapshot.progress:
        for queue_id, offset in progress.offsets.items():
            yield (progress.broker.cluster, progress.broker.name, progress.topic, progress.group, str(queue_id)), offset


# --- clients ---


def _client(field: str) -> Reader:
    def samples(snapshot: ScrapedCluster) -> Samples:
        for consumer in snapshot.statuses:
            labels = (consumer.client.addr, consumer.client.client_id, consumer.group, consumer.topic)
            yield labels, getattr(consumer.status, field)

    return samples


# --- brokers ---


def _broker_rates(statistic: str) -> Reader:
    def samples(snapshot: ScrapedCluster) -> Samples:
        for broker in snapshot.masters():
            if rate := broker.rates.get((statistic, broker.cluster)):
                yield (broker.cluster, broker.addr, broker.name), round(rate.per_s, 2)

    return samples


def _slave_distances(snapshot: ScrapedCluster) -> Samples:
    ends = {broker.name: number(broker.runtime, "commitLogMaxOffset") for broker in snapshot.masters()}
    for broker in snapshot.brokers:
        end, master_end = number(broker.runtime, "commitLogMaxOffset"), ends.get(broker.name)
        if not broker.is_master and broker.is_up and end is not None and master_end is not None:
            yield (broker.cluster, broker.addr, broker.name), master_end - end


def _up(snapshot: ScrapedCluster) -> Samples:
    for broker in snapshot.brokers:
        yield (broker.cluster, broker.name, str(broker.broker_id), broker.addr), int(broker.is_up)


def _delayed(snapshot: ScrapedCluster) -> Samples:
    for broker in snapshot.masters():
        for key, text in broker.runtime.items():
            if key.startswith("scheduleMessageOffset_"):
                next_offset, _, end = text.partition(",")
                if next_offset.isdigit() and end.isdigit():
                    level = key.removeprefix("scheduleMessageOffset_")
                    yield (broker.cluster, broker.name, level), max(0, int(end) - int(next_offset))


CLUSTER_METRICS: MetricTable = {
    Metric("rocketmq_producer_tps", "gauge", "Messages stored per second, over the last minute.", _TOPIC, "1/s"):
        _topic_rates("TOPIC_PUT_NUMS"),
    Metric("rocketmq_producer_message_size", "gauge", "Bytes stored per second, over the last minute.", _TOPIC, "bytes/s"):
        _topic_rates("TOPIC_PUT_SIZE"),
    Metric("rocketmq_producer_offset", "gauge", "Sum of the max offsets of a topic's queues.", _TOPIC):
        _topic_sums(_is_ordinary),
    Metric("rocketmq_topic_retry_offset", "gauge", "Sum of the max offsets of a retry topic's queues.", _TOPIC):
        _topic_sums(lambda topic: topic.startswith(RETRY_PREFIX)),
    Metric("rocketmq_topic_dlq_offset", "gauge", "Dead letters of a group: sum of the max offsets of their queues.",
           ("cluster", "broker", "group")):
        _topic_sums(lambda topic: topic.startswith(DLQ_PREFIX), DLQ_PREFIX),
    Metric("rocketmq_producer_count", "gauge", "Connected producers.", ("cluster", "broker", "group")): _producers,
    Metric("rocketmq_group_diff", "gauge", "Messages that a group has not consumed yet; queues without a committed offset count"
           " from 0.", _GROUP, "messages"): _lags(is_retry=False),
    Metric("rocketmq_group_retrydiff", "gauge", "Messages of its retry topic that a group has not consumed yet.", _GROUP,
           "messages"): _lags(is_retry=True),
    Metric("rocketmq_group_count", "gauge", "Connected consumers of a group, with their addresses and ids.",
           ("caddr", "localaddr", "group")): _consumers,
    Metric("rocketmq_consumer_tps", "gauge", "Messages delivered to a group per second, over the last minute.",
           _GROUP_AT_BROKER, "1/s"): _group_rates("GROUP_GET_NUMS"),
    Metric("rocketmq_consumer_message_size", "gauge", "Bytes delivered to a group per second, over the last minute.",
           _GROUP_AT_BROKER, "bytes/s"): _group_rates("GROUP_GET_SIZE"),
    Metric("rocketmq_consumer_offset", "gauge", "Sum of the committed offsets of a group.", _GROUP_AT_BROKER): _offset_sums,
    Metric("rocketmq_send_back_nums", "gauge", "Messages that consumers returned for a retry in the last minute.",
           _GROUP_AT_BROKER, "messages"): _sent_back,
    Metric("rocketmq_group_get_latency_by_storetime", "gauge", "Age of the oldest message that a group has not consumed.",
           _GROUP_AT_BROKER, "ms"): _ages,
    Metric("rocketmq_client_consume_fail_msg_count", "gauge", "Messages whose consumption failed in the last hour.", _CLIENT,
           "messages"): _client("consume_failed_msgs"),
    Metric("rocketmq_client_consume_fail_msg_tps", "gauge", "Messages per second whose consumption failed.", _CLIENT, "1/s"):
        _client("consume_failed_tps"),
    Metric("rocketmq_client_consume_ok_msg_tps", "gauge", "Messages per second that were consumed.", _CLIENT, "1/s"):
        _client("consume_ok_tps"),
    Metric("rocketmq_client_consume_rt", "gauge", "Mean duration of a listener call.", _CLIENT, "ms"): _client("consume_rt"),
    Metric("rocketmq_client_consumer_pull_rt", "gauge", "Mean duration of a pull, waits included.", _CLIENT, "ms"):
        _client("pull_rt"),
    Metric("rocketmq_client_consumer_pull_tps", "gauge", "Messages pulled per second.", _CLIENT, "1/s"): _client("pull_tps"),
    Metric("rocketmq_broker_tps", "gauge", "Messages stored per second, over the last minute.", _BROKER, "1/s"):
        _broker_rates("BROKER_PUT_NUMS"),
    Metric("rocketmq_broker_qps", "gauge", "Messages delivered per second, over the last minute.", _BROKER, "1/s"):
        _broker_rates("BROKER_GET_NUMS"),
    Metric("rocketmq_broker_commitlog_diff", "gauge", "Bytes of commit log that a slave does not have yet.", _BROKER, "bytes"):
        _slave_distances,
    **RUNTIME_METRICS,
    Metric("ariane_topic_stored_messages", "gauge", "Messages in a topic's queues that have not expired.", _TOPIC, "messages"):
        _stored_messages,
    Metric("ariane_group_consumers", "gauge", "Connected consumers of a group.", ("group",)): _group_consumers,
    Metric("ariane_group_lag_messages", "gauge", "Messages that a group has not consumed yet; absent if that of a"
           " queue is unknown.", _GROUP_AT_BROKER, "messages"): _group_lags,
    Metric("ariane_group_queue_lag_messages", "gauge", "Messages of a queue that a group has not consumed yet.",
           (*_GROUP_AT_BROKER, "queue"), "messages"): _queue_lags,
    Metric("ariane_group_queue_offset", "gauge", "Committed offset of a group in a queue.", (*_GROUP_AT_BROKER, "queue")):
        _queue_offsets,
    Metric("ariane_delay_level_pending_messages", "gauge", "Delayed messages of a delay level that are not delivered yet.",
           ("cluster", "broker", "level"), "messages"): _delayed,
}  # fmt: skip

EXPORTER_METRICS: MetricTable = {
    Metric("ariane_broker_up", "gauge", "Whether a broker that a name server lists responded to this scrape.", _ARIANE_BROKER):
        _up,
    **CLUSTER_METRICS,
}  # fmt: skip
