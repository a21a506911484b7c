"""GET_BROKER_RUNTIME_INFO (28): what the broker reports about itself, as texts by key. [AdminBrokerProcessor.prepareRuntimeInfo]

All keys of 4.9.4 are present. One event loop serves all requests, so thread pools have a size and capacity of 0; the wait time
of their heads is the latest delay of the loop. The broker does without a page-cache lock and a buffer pool.
"""

from __future__ import annotations

from collections.abc import Mapping

from ariane.access.public_ports import PortProtection
from ariane.audit.server_audit_log import ServerAuditLog
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.post_store import PostStoreDispatcher
from ariane.broker.lifecycle.registration import Registration
from ariane.broker.replication.membership import Membership
from ariane.broker.stats import stats_log_format
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.broker.stats.stats_recorder import StatsRecorder
from ariane.broker.stats.store_stats import RATE_S
from ariane.clock import Clock
from ariane.kernels import implementation
from ariane.net.connection import Peer, Reply
from ariane.net.limits.quotas import EXCEEDED_LIMITS_KEY, describe_exceeded
from ariane.protocol import fastjson
from ariane.protocol.codes import VERSION
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.records.member_stream import STREAM_KEY, TLS_KEY, WAITS_FOR_SLAVES_KEY
from ariane.protocol.request_batch import REQUESTS_KEY, REQUESTS_MAX
from ariane.protocol.requests.audit import FAILURES_KEY
from ariane.protocol.requests.routing import KvTableBody
from ariane.store.disk.files import Disk, Usage
from ariane.store.message_store import MessageStore

VERSION_NAME = "V4_9_4"
NO_BUFFER_POOL = (1 << 31) - 1  # value of 4.9.4 if transientStorePoolEnable is false
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


class RuntimeInfoHandler:
    """Reports versions, rates, log positions and disk usage."""

    def __init__(
        self,
        *,
        settings: DynamicConfig,
        store: MessageStore,
        dispatcher: PostStoreDispatcher,
        disk: Disk,
        stats: BrokerStats,
        recorder: StatsRecorder,
        dropped_entries: int,
        protection: PortProtection,
        exceeded_limits: Mapping[str, int],
        audit: ServerAuditLog | None,
        registration: Registration,
        membership: Membership | None = None,
        clock: Clock,
    ) -> None:
        self._settings = settings  # addresses and limits that the reply lists
        self._store = store  # positions and sizes
        self._dispatcher = dispatcher  # positions of the delay levels
        self._disk = disk
        self._stats = stats  # rates and put times
        self._recorder = recorder  # delay of the event loop
        # Invalid entries of config/ that the start dropped; absent if there were none, as Java has no such key.
        self._dropped = {"droppedStateEntries": str(dropped_entries)} if dropped_entries else {}
        self._protection = protection  # of the ports
        self._exceeded_limits = exceeded_limits  # how often each was, since the start
        self._audit = audit  # None if it is off
        self._registration = registration  # whether writes are withheld
        self._membership = membership  # None without failover
        self._clock = clock  # uptime
        self._boot_ms = clock.now_ms()  # wall time of the start

    def runtime_info(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_BROKER_RUNTIME_INFO."""
        return Reply(body=fastjson.write(KvTableBody(self.table())))

    def table(self) -> dict[str, str]:
        """Return all values as texts by key."""
        positions = self._dispatcher.delay_level_positions()
        late_ms = str(round(self._recorder.loop_lag_ms))
        return {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "kernels": implementation.selected().description,
            REQUESTS_KEY: str(REQUESTS_MAX),
            STREAM_KEY: "true",
            TLS_KEY: "false" if self._settings.current.tls_server_mode == "disabled" else "true",
            "bootTimestamp": str(self._boot_ms),
            "runtime": _runtime(self._clock.now_ms() - self._boot_ms),
            "startAcceptSendRequestTimeStamp": str(self._settings.current.start_accept_send_request_time_stamp),
            **self._totals(),
            **_rates(self._stats),
            **self._log(),
            **_disk_usage(self._disk, self._store.config.log_directory, self._settings.current.store_path_root_dir),
            **dict.fromkeys((key for pool in _POOLS for key in pool), "0"),
            **dict.fromkeys(_HEADS, late_ms),
            "pageCacheLockTimeMills": "0",
            "dispatchMaxBuffer": "0",
            **self._dropped,
            **self._protection.report(),
            **({EXCEEDED_LIMITS_KEY: exceeded} if (exceeded := describe_exceeded(self._exceeded_limits)) else {}),
            **({FAILURES_KEY: failures} if self._audit and (failures := self._audit.state.describe()) else {}),
            **({WAITS_FOR_SLAVES_KEY: "true"} if self._registration.withheld_permission else {}),
            **(self._membership.describe() if self._membership else {}),
            "remainTransientStoreBufferNumbs": str(NO_BUFFER_POOL),
            **{f"scheduleMessageOffset_{level}": f"{next_},{end}" for level, (next_, end) in positions.items()},
        }

    def _totals(self) -> dict[str, str]:
        puts, store = self._stats.store_stats, self._store
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

    def _log(self) -> dict[str, str]:
        store = self._store
        first, last = store.commit_log_min, store.commit_log_max
        oldest = store.read_record(first) if last > first else None
        return {
            "commitLogMinOffset": str(first),
            "commitLogMaxOffset": str(last),
            "dispatchBehindBytes": str(last - store.dispatched),
            "remainHowManyDataToFlush": _size(last - store.flushed),
            "earliestMessageTimeStamp": "-1" if oldest is None else str(record.decode(oldest).store_ms),
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


def _ratio(usage: Usage) -> str:
    """Return the used share of a disk, rounded up to whole percent."""
    return stats_log_format.format_double(
        -((usage.free - usage.total) * 100 // usage.total) / 100 if usage.total else -1.0
    )


def _runtime(ms: int) -> str:
    seconds = max(0, ms // 1000)
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days:,} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def _size(count: int) -> str:
    """Return a number of bytes as 4.9.4 prints it: `177 B`, `1.5 KiB`."""
    if count < 1024:
        return f"{count} B"
    value, unit = count / 1024, "K"
    for larger in "MGTPE":
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}iB"


def _disk_usage(disk: Disk, log_directory: str, root_directory: str) -> dict[str, str]:
    usage = disk.usage(log_directory)
    ratio = _ratio(usage)
    return {
        "commitLogDirCapacity": f"Total : {_size(usage.total + usage.reserved)}, Free : {_size(usage.free)}.",
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{log_directory}": ratio,
        "consumeQueueDiskRatio": _ratio(disk.usage(root_directory)),
    }
