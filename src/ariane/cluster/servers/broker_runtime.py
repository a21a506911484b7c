"""Runtime state of a broker, decoded from the texts of GET_BROKER_RUNTIME_INFO (28). Pure functions. [BrokerStatusSubCommand]"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ariane.errors import ProtocolError

_COUNTERS = (
    "msgPutTotalTodayNow",
    "msgPutTotalTodayMorning",
    "msgPutTotalYesterdayMorning",
    "msgGetTotalTodayNow",
    "msgGetTotalTodayMorning",
    "msgGetTotalYesterdayMorning",
)
_NEEDED = {"brokerVersionDesc", "bootTimestamp", *_COUNTERS} - {
    "msgPutTotalYesterdayMorning",
    "msgGetTotalYesterdayMorning",
}


class BrokerRates(NamedTuple):
    """Rates per second over the last 10, 60 and 600 s; None if the broker has not run that long."""

    ten_s: float | None
    minute: float | None
    ten_min: float | None


class RequestQueue(NamedTuple):
    """A queue of requests in a broker: waiting requests, and how long the first one has waited; None if unknown."""

    size: int | None
    head_wait_ms: int | None


class RuntimeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Runtime state of a broker.

    Attributes:
        addr: Its address.
        version: Name of its version, such as V4_9_4.
        boot_ms: When it was started.
        put_today: Messages stored since midnight of the broker's clock, or since its start.
        got_today: Messages read since then.
        put_yesterday: Messages stored on the day before; None if the broker does not report it.
        got_yesterday: Messages read on the day before.
        put_tps: Messages stored per second.
        get_tps: Messages sent to consumers per second.
        put_latency_99_ms: 99th percentile of the last complete minute; None without a put.
        put_latency_999_ms: 99.9th percentile of that minute; None without a put.
        put_times: Bucket → puts of the last complete minute; None in the first one.
        send_queue: Requests that wait to be stored.
        pull_queue: Requests that wait to be read.
        disk_ratio: Used share of the commit log's disk.
        earliest_ms: Store time of the earliest message; None if the log is empty.
        page_cache_lock_ms: How long the current write has held the log's lock.
        table: All values as texts.
    """

    addr: str
    version: str
    boot_ms: int
    put_today: int
    got_today: int
    put_yesterday: int | None
    got_yesterday: int | None
    put_tps: BrokerRates
    get_tps: BrokerRates
    put_latency_99_ms: float | None
    put_latency_999_ms: float | None
    put_times: dict[str, int] | None
    send_queue: RequestQueue
    pull_queue: RequestQueue
    disk_ratio: float | None
    earliest_ms: int | None
    page_cache_lock_ms: int | None
    table: dict[str, str]


def parse_runtime(addr: str, table: dict[str, str]) -> RuntimeInfo:
    """Return the runtime state of the broker at `addr`.

    Raises:
        ProtocolError: required values are missing.
    """
    if missing := sorted(_NEEDED - table.keys()):
        raise ProtocolError(f"runtime info of {addr} lacks {', '.join(missing)}: expected a broker of RocketMQ 4 or 5")
    times = _put_times(table.get("putMessageDistributeTime", ""))
    has_latency = times is not None and sum(times.values()) > 0
    put_now, put_morning, put_before, got_now, got_morning, got_before = (_integer(table, key) for key in _COUNTERS)
    ratio, earliest = float(table.get("commitLogDiskRatio", -1)), int(table.get("earliestMessageTimeStamp", -1))
    return RuntimeInfo(
        addr=addr,
        version=table["brokerVersionDesc"],
        boot_ms=int(table["bootTimestamp"]),
        put_today=(put_now or 0) - (put_morning or 0),
        got_today=(got_now or 0) - (got_morning or 0),
        put_yesterday=None if put_before is None else (put_morning or 0) - put_before,
        got_yesterday=None if got_before is None else (got_morning or 0) - got_before,
        put_tps=_rates(table.get("putTps", "")),
        get_tps=_rates(table.get("getTransferedTps", "")),
        put_latency_99_ms=float(table["putLatency99"]) if has_latency and "putLatency99" in table else None,
        put_latency_999_ms=float(table["putLatency999"]) if has_latency and "putLatency999" in table else None,
        put_times=times,
        send_queue=_queue(table, "send"),
        pull_queue=_queue(table, "pull"),
        disk_ratio=ratio if ratio >= 0 else None,
        earliest_ms=earliest if earliest >= 0 else None,
        page_cache_lock_ms=_integer(table, "pageCacheLockTimeMills"),
        table=table,
    )


def _queue(table: Mapping[str, str], name: str) -> RequestQueue:
    sizes, waits = f"{name}ThreadPoolQueueSize", f"{name}ThreadPoolQueueHeadWaitTimeMills"
    return RequestQueue(_integer(table, sizes), _integer(table, waits))


def _integer(table: Mapping[str, str], key: str) -> int | None:
    return int(table[key]) if key in table else None


def _rates(text: str) -> BrokerRates:
    """Parse `a b c`, where values that are not available yet are empty."""
    values = [float(part) if part else None for part in text.split(" ")][:3]
    values += [None] * (3 - len(values))
    return BrokerRates(*values)


def _put_times(text: str) -> dict[str, int] | None:
    """Parse `[<=0ms]:12 [0~10ms]:3 …`; None in the broker's first minute."""
    times = {label: int(count) for label, count in re.findall(r"\[([^\]]+)\]:(\d+)", text)}
    return times or None
