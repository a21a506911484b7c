"""Lines of stats.log and of the store's log, in the words that tools search for. [StatsItem, StoreStatsService]

    2026-11-21 09:50:00 INFO - [TOPIC_PUT_NUMS] [T1] Stats In One Minute, SUM: 6 TPS: 0.10 AVGPT: 1.00
    2026-11-21 09:50:00 INFO - [GROUP_GET_LATENCY] [0@T@G] Stats In One Minute, TIMES: 3 AVGRT: 0.25
    2026-11-21 09:50:00 INFO - [GROUP_GET_FALL_SIZE] [0@T@G] Stats Every 5 Minutes, Value: 177

Times are in GMT+8 wherever the broker runs, as in the logging configuration of 4.9.4.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal

from ariane.broker.stats.stats_items import DAY, HOUR, MINUTE, StatsSnapshot, StatsWindow
from ariane.broker.stats.store_stats import PutTimes, StoreStats
from ariane.protocol import fastjson

PERIODS: dict[StatsWindow, str] = {MINUTE: "One Minute", HOUR: "One Hour", DAY: "One Day"}
STORE_RATE_S = 60

_CHINA = timezone(timedelta(hours=8))
_CENT = Decimal("0.01")


def format_line(now_ms: int, text: str) -> str:
    time = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(_CHINA)
    return f"{time:%Y-%m-%d %H:%M:%S} INFO - {text}\n"


def format_item(name: str, key: str, window: StatsWindow, snapshot: StatsSnapshot) -> str:
    """Return the text of a statistic. Lines of latencies have other words than those of sums."""
    head = f"[{name}] [{key}] Stats In {PERIODS[window]}, "
    if name.endswith("_LATENCY"):
        return f"{head}TIMES: {snapshot.times} AVGRT: {format_two_decimals(snapshot.avgpt)}"
    return f"{head}SUM: {snapshot.sum} TPS: {format_two_decimals(snapshot.tps)} AVGPT: {format_two_decimals(snapshot.avgpt)}"


def format_latest_value(name: str, key: str, value: int) -> str:
    return f"[{name}] [{key}] Stats Every 5 Minutes, Value: {value}"


def format_store_rates(store_stats: StoreStats) -> str:
    """Return the rates of the last minute; a rate that is not yet available is empty."""
    put, found, missed, moved = (
        format_rate(store_stats, STORE_RATE_S, column) for column in ("put", "found", "missed", "transferred")
    )
    return f"[STORETPS] put_tps {put} get_found_tps {found} get_miss_tps {missed} get_transfered_tps {moved}"


def format_put_times(minute: PutTimes) -> str:
    return f"[PAGECACHERT] TotalPut {minute.total}, PutMessageDistributeTime {minute.format_java()}"


def format_rate(store_stats: StoreStats, seconds: int, *columns: str) -> str:
    """Return a rate as Java prints a double; empty if it is not yet available."""
    value = store_stats.rate(seconds, *columns)
    return "" if value is None else format_double(value)


def format_double(value: float) -> str:
    """Return a number as Java prints a double."""
    return fastjson.write(value).decode()


def format_two_decimals(value: float) -> str:
    """Return a number with two decimals, rounding half up as Java's %.2f does."""
    return str(Decimal(repr(value)).quantize(_CENT, ROUND_HALF_UP))
