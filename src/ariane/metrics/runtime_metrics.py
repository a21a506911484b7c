"""Metrics of a broker's runtime information (request 28), under the names of Apache's rocketmq-exporter. [BrokerRuntimeStats]

    key of the broker   text                              metric
    msgPutTotalTodayNow `9215`                            rocketmq_brokeruntime_msg_put_total_today_now
    putTps              `2.4 6.3 15.1`                    …_put_tps10, …_put_tps60, …_put_tps600
    putMessageDistributeTime  `[<=0ms]:533 [0~10ms]:11 …` …_pmdt_0ms, …_pmdt_0to10ms, …
    commitLogDirCapacity `Total : 252.0 GiB, Free : 65.5 GiB.`  …_commitlogdir_capacity_total, …_free

A text that is missing, or -1 where the broker does not know the value, yields no sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from ariane.metrics.families import Metric, MetricSample, MetricTable
from ariane.metrics.polling.runtime_values import SIZE, number, size
from ariane.metrics.polling.scraped_cluster import ScrapedCluster

Parser = Callable[[Mapping[str, str]], float | None]

PREFIX = "rocketmq_brokeruntime_"
LABELS = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")


def _number(key: str) -> Parser:
    return lambda table: number(table, key)


def _rate(key: str, position: int) -> Parser:
    """Return a parser of one of the rates over 10, 60 and 600 s."""

    def parse(table: Mapping[str, str]) -> float | None:
        # 5.x spells one of the keys correctly.
        text = table.get(key) or table.get(key.replace("Transfered", "Transferred"), "")
        parts = text.split(" ")
        try:
            return float(parts[position])
        except (IndexError, ValueError):
            return None

    return parse


def _put_time(label: str) -> Parser:
    def parse(table: Mapping[str, str]) -> float | None:
        count = re.search(rf"\[{re.escape(label)}\]:(\d+)", table.get("putMessageDistributeTime", ""))
        return None if count is None else int(count[1])

    return parse


def _capacity(name: str) -> Parser:
    def parse(table: Mapping[str, str]) -> float | None:
        part = re.search(rf"{name} : {SIZE}", table.get("commitLogDirCapacity", ""))
        return None if part is None else size(part[0])

    return parse


def _to_flush(table: Mapping[str, str]) -> float | None:
    return size(table.get("remainHowManyDataToFlush", ""))


def _metric(name: str, meaning: str, parser: Parser, unit: str = "") -> tuple[Metric, Parser]:
    return Metric(PREFIX + name, "gauge", meaning, LABELS, unit), parser


_PUT_TIMES = {
    "<=0ms": "0ms", "0~10ms": "0to10ms", "10~50ms": "10to50ms", "50~100ms": "50to100ms", "100~200ms": "100to200ms",
    "200~500ms": "200to500ms", "500ms~1s": "500to1s", "1~2s": "1to2s", "2~3s": "2to3s", "3~4s": "3to4s", "4~5s": "4to5s",
    "5~10s": "5to10s", "10s~": "10stomore",
}  # fmt: skip
_RATES = {
    "put": ("putTps", "Messages stored"),
    "getfound": ("getFoundTps", "Pulls that found messages"),
    "getmiss": ("getMissTps", "Pulls that found no message"),
    "gettotal": ("getTotalTps", "Pulls"),
    "gettransfered": ("getTransferedTps", "Messages delivered"),
}
_POOLS = {
    "send_threadpool_queue_size": ("sendThreadPoolQueueSize", "Requests waiting in the send pool."),
    "send_threadpoolqueue_capacity": ("sendThreadPoolQueueCapacity", "Capacity of the send pool's queue."),
    "pull_threadpoolqueue_size": ("pullThreadPoolQueueSize", "Requests waiting in the pull pool."),
    "pull_threadpoolqueue_capacity": ("pullThreadPoolQueueCapacity", "Capacity of the pull pool's queue."),
    "query_threadpoolqueue_size": ("queryThreadPoolQueueSize", "Requests waiting in the query pool."),
    "query_threadpool_queue_capacity": ("queryThreadPoolQueueCapacity", "Capacity of the query pool's queue."),
}

_PARSERS: dict[Metric, Parser] = dict(
    [
        *(
            _metric(f"pmdt_{name}", f"Puts of the last minute that took {label}.", _put_time(label), "messages")
            for label, name in _PUT_TIMES.items()
        ),
        _metric("msg_put_total_today_now", "Messages stored since the start of the broker.", _number("msgPutTotalTodayNow")),
        _metric("msg_gettotal_today_now", "Messages delivered since the start of the broker.", _number("msgGetTotalTodayNow")),
        _metric("msg_puttotal_todaymorning", "Messages stored before today.", _number("msgPutTotalTodayMorning")),
        _metric("msg_gettotal_todaymorning", "Messages delivered before today.", _number("msgGetTotalTodayMorning")),
        _metric("msg_puttotal_yesterdaymorning", "Messages stored before yesterday.", _number("msgPutTotalYesterdayMorning")),
        _metric("msg_gettotal_yesterdaymorning", "Messages delivered before yesterday.",
                _number("msgGetTotalYesterdayMorning")),
        _metric("putmessage_times_total", "Puts since the start of the broker.", _number("putMessageTimesTotal")),
        _metric("put_message_size_total", "Bytes stored since the start of the broker.", _number("putMessageSizeTotal"),
                "bytes"),
        _metric("put_message_average_size", "Mean size of a stored message.", _number("putMessageAverageSize"), "bytes"),
        *(
            _metric(f"{name}_tps{seconds}", f"{meaning} per second, over {seconds} s.", _rate(key, position), "1/s")
            for name, (key, meaning) in _RATES.items()
            for position, seconds in enumerate((10, 60, 600))
        ),
        _metric("putmessage_entire_time_max", "Longest put.", _number("putMessageEntireTimeMax"), "ms"),
        _metric("getmessage_entire_time_max", "Longest pull.", _number("getMessageEntireTimeMax"), "ms"),
        _metric("put_latency_99", "99th percentile of the duration of a put.", _number("putLatency99"), "ms"),
        _metric("put_latency_999", "99.9th percentile of the duration of a put.", _number("putLatency999"), "ms"),
        _metric("pagecache_lock_time_mills", "Time for which a put has held the page cache lock.",
                _number("pageCacheLockTimeMills"), "ms"),
        _metric("start_accept_sendrequest_time", "Time from which the broker accepts sends, ms since the epoch.",
                _number("startAcceptSendRequestTimeStamp"), "ms"),
        _metric("earliest_message_timestamp", "Store time of the oldest message, ms since the epoch.",
                _number("earliestMessageTimeStamp"), "ms"),
        *(_metric(name, meaning, _number(key)) for name, (key, meaning) in _POOLS.items()),
        *(
            _metric(f"{pool}_threadpoolqueue_headwait_timemills", f"Wait of the oldest request of the {pool} pool.",
                    _number(f"{pool}ThreadPoolQueueHeadWaitTimeMills"), "ms")
            for pool in ("send", "pull", "query")
        ),
        _metric("commitlog_disk_ratio", "Used share of the commit log's disk, 0 to 1.", _number("commitLogDiskRatio")),
        _metric("consumequeue_disk_ratio", "Used share of the consume queues' disk, 0 to 1.",
                _number("consumeQueueDiskRatio")),
        _metric("commitlog_minoffset", "First position of the commit log.", _number("commitLogMinOffset"), "bytes"),
        _metric("commitlog_maxoffset", "End of the commit log.", _number("commitLogMaxOffset"), "bytes"),
        _metric("commitlogdir_capacity_total", "Size of the commit log's disk.", _capacity("Total"), "bytes"),
        _metric("commitlogdir_capacity_free", "Free space of the commit log's disk.", _capacity("Free"), "bytes"),
        _metric("dispatch_behind_bytes", "Bytes of commit log without consume queue entries.",
                _number("dispatchBehindBytes"), "bytes"),
        _metric("dispatch_maxbuffer", "Requests in the dispatch buffer.", _number("dispatchMaxBuffer")),
        _metric("remain_transientstore_buffer_numbs", "Free buffers of the transient store pool.",
                _number("remainTransientStoreBufferNumbs")),
        _metric("remain_howmanydata_toflush", "Bytes of commit log that are not flushed.", _to_flush, "bytes"),
    ]
)  # fmt: skip


def _reader(parser: Parser) -> Callable[[ScrapedCluster], Iterator[MetricSample]]:
    def samples(snapshot: ScrapedCluster) -> Iterator[MetricSample]:
        for broker in snapshot.masters():
            table = broker.runtime
            value = parser(table)
            if value is not None:
                texts = (table.get(key, "") for key in ("brokerVersionDesc", "bootTimestamp", "brokerVersion"))
                yield (broker.cluster, broker.addr, "", *texts), value

    return samples


RUNTIME_METRICS: MetricTable = {metric: _reader(parser) for metric, parser in _PARSERS.items()}
