"""GET_BROKER_RUNTIME_INFO (28): what the broker says of itself, as texts by key. [AdminBrokerProcessor.prepareRuntimeInfo]

Every key of 4.9.4 is there. One event loop serves all requests, so pools have 0 waiting and room for 0; the head of each
waits as long as the loop came late last time. Nothing locks a page cache, and no buffer is lent out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ariane.broker.config import BrokerConfig
from ariane.broker.dynamic_config import DynamicConfig
from ariane.broker.stats import stats_log_format
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.broker.stats.store_stats import RATE_S
from ariane.net.connection import Handler, Peer, Reply
from ariane.protocol import fastjson, record
from ariane.protocol.codes import VERSION, RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import KvTableBody
from ariane.store.files import Disk, Usage
from ariane.store.message_store import MessageStore

VERSION_NAME = "V4_9_4"
NO_BUFFER_POOL = (1 << 31) - 1  # what 4.9.4 says when transientStorePoolEnable is false
_POOLS = (
    ("sendThreadPoolQueueSize", "sendThreadPoolQueueCapacity"),
    ("pullThreadPoolQueueSize", "pullThreadPoolQueueCapacity"),
    ("queryThreadPoolQueueSize", "queryThreadPoolQueueCapacity"),
    ("EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity"),
)
_HEADS = (
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills",
)


class RuntimeInfoHandler(NamedTuple):
    """What this handler needs. `late_ms`: how late the loop is. `delays`: level -> (offset delivered, last offset), of the
    levels that have a stored offset."""

    settings: DynamicConfig
    store: MessageStore
    disk: Disk
    stats: BrokerStats
    late_ms: Callable[[], float]
    now_ms: Callable[[], int]
    boot_ms: int
    delays: Callable[[], Mapping[int, tuple[int, int]]]

    @property
    def config(self) -> BrokerConfig:
        """What is in force now."""
        return self.settings.current


def handlers(parts: RuntimeInfoHandler) -> dict[int, Handler]:
    def runtime(command: Command, peer: Peer) -> Reply:
        return Reply(body=fastjson.write(KvTableBody(table(parts))))

    return {RequestCode.GET_BROKER_RUNTIME_INFO: runtime}


def table(parts: RuntimeInfoHandler) -> dict[str, str]:
    """Every key and its text."""
    delays = {f"scheduleMessageOffset_{level}": f"{at},{last}" for level, (at, last) in parts.delays().items()}
    late = str(round(parts.late_ms()))
    return {
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": VERSION_NAME,
        "bootTimestamp": str(parts.boot_ms),
        "runtime": _runtime(parts.now_ms() - parts.boot_ms),
        "startAcceptSendRequestTimeStamp": str(parts.config.start_accept_send_request_time_stamp),
        **_totals(parts),
        **_rates(parts.stats),
        **_log(parts),
        **_space(parts),
        **dict.fromkeys((key for pool in _POOLS for key in pool), "0"),
        **dict.fromkeys(_HEADS, late),
        "pageCacheLockTimeMills": "0",
        "dispatchMaxBuffer": "0",
        "remainTransientStoreBufferNumbs": str(NO_BUFFER_POOL),
        **delays,
    }


def _totals(parts: RuntimeInfoHandler) -> dict[str, str]:
    puts, store = parts.stats.store_stats, parts.store
    morning, total, size = puts.daily_totals, store.puts, store.put_bytes
    return {
        "msgPutTotalYesterdayMorning": str(morning.put_yesterday),
        "msgPutTotalTodayMorning": str(morning.put_today),
        "msgPutTotalTodayNow": str(total),
        "msgGetTotalYesterdayMorning": str(morning.got_yesterday),
        "msgGetTotalTodayMorning": str(morning.got_today),
        "msgGetTotalTodayNow": str(puts.transferred),
        "putMessageTimesTotal": str(total),
        "putMessageFailedTimes": str(puts.failed_puts),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": stats_log_format.format_double(size / total if total else 0.0),
        "putMessageEntireTimeMax": str(int(puts.put_max_ms)),
        "getMessageEntireTimeMax": str(int(puts.get_max_ms)),
    }


def _rates(stats: BrokerStats) -> dict[str, str]:
    puts, last = stats.store_stats, stats.store_stats.last_minute

    def rates(*columns: str, unknown: str = "") -> str:
        return " ".join(stats_log_format.format_rate(puts, seconds, *columns) or unknown for seconds in RATE_S)

    return {
        "putMessageDistributeTime": "null" if last is None else last.format_java(),
        "putLatency99": stats_log_format.format_two_decimals(last.percentile_ms(0.99) if last else 0.0),
        "putLatency999": stats_log_format.format_two_decimals(last.percentile_ms(0.999) if last else 0.0),
        "putTps": rates("put"),
        "getFoundTps": rates("found"),
        "getMissTps": rates("missed"),
        "getTotalTps": rates("found", "missed", unknown="0.0"),
        "getTransferedTps": rates("transferred"),
    }


def _log(parts: RuntimeInfoHandler) -> dict[str, str]:
    store = parts.store
    first, last = store.commit_log_min, store.commit_log_max
    oldest = store.read_record(first) if last > first else None
    return {
        "commitLogMinOffset": str(first),
        "commitLogMaxOffset": str(last),
        "dispatchBehindBytes": str(last - store.dispatched),
        "remainHowManyDataToFlush": _size(last - store.flushed),
        "earliestMessageTimeStamp": "-1" if oldest is None else str(record.decode(oldest).store_ms),
    }


def _space(parts: RuntimeInfoHandler) -> dict[str, str]:
    """How full the disk is: a share of 1 in whole percent, rounded up."""
    directory = parts.store.config.log_directory
    usage = parts.disk.usage(directory)
    ratio = _ratio(usage)
    return {
        "commitLogDirCapacity": f"Total : {_size(usage.total + usage.reserved)}, Free : {_size(usage.free)}.",
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{directory}": ratio,
        "consumeQueueDiskRatio": _ratio(parts.disk.usage(parts.config.store_path_root_dir)),
    }


def _ratio(usage: Usage) -> str:
    return stats_log_format.format_double(
        -((usage.free - usage.total) * 100 // usage.total) / 100 if usage.total else -1.0
    )


def _runtime(ms: int) -> str:
    seconds = max(0, ms // 1000)
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days:,} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def _size(count: int) -> str:
    """Bytes as 4.9.4 shows them to people: `177 B`, `1.5 KiB`."""
    if count < 1024:
        return f"{count} B"
    value, unit = count / 1024, "K"
    for larger in "MGTPE":
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}iB"
