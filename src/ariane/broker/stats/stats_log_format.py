"""The lines of stats.log and of the store's log, in the words that tools look for. [StatsItem, StoreStatsService]

    2026-11-21 09:50:00 INFO - [TOPIC_PUT_NUMS] [T1] Stats In One Minute, SUM: 6 TPS: 0.10 AVGPT: 1.00
    2026-11-21 09:50:00 INFO - [GROUP_GET_LATENCY] [0@T@G] Stats In One Minute, TIMES: 3 AVGRT: 0.25
    2026-11-21 09:50:00 INFO - [GROUP_GET_FALL_SIZE] [0@T@G] Stats Every 5 Minutes, Value: 177

The time of a line is that of GMT+8, wherever the broker runs, as 4.9.4's logging has it.
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
    """A whole line of stats.log."""
    time = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(_CHINA)
    return f"{time:%Y-%m-%d %H:%M:%S} INFO - {text}\n"


def format_item(name: str, key: str, window: StatsWindow, held: StatsSnapshot) -> str:
    head = f"[{name}] [{key}] Stats In {PERIODS[window]}, "
    if name.endswith("_LATENCY"):
        return f"{head}TIMES: {held.times} AVGRT: {format_two_decimals(held.avgpt)}"
    return f"{head}SUM: {held.sum} TPS: {format_two_decimals(held.tps)} AVGPT: {format_two_decimals(held.avgpt)}"


def format_latest_value(name: str, key: str, value: int) -> str:
    return f"[{name}] [{key}] Stats Every 5 Minutes, Value: {value}"


def format_store_rates(puts: StoreStats) -> str:
    """Rates of the last minute; a rate that is not known yet is empty."""
    put, found, missed, moved = (
        format_rate(puts, STORE_RATE_S, one) for one in ("put", "found", "missed", "transferred")
    )
    return f"[STORETPS] put_tps {put} get_found_tps {found} get_miss_tps {missed} get_transfered_tps {moved}"


def format_put_times(minute: PutTimes) -> str:
    return f"[PAGECACHERT] TotalPut {minute.total}, PutMessageDistributeTime {minute.format_java()}"


def format_rate(puts: StoreStats, seconds: int, *columns: str) -> str:
    """A rate as Java prints a double; empty when it is not known yet."""
    value = puts.rate(seconds, *columns)
    return "" if value is None else format_double(value)


def format_double(value: float) -> str:
    return fastjson.write(value).decode()


def format_two_decimals(value: float) -> str:
    """Two places, halves rounded up as Java's %.2f does."""
    return str(Decimal(repr(value)).quantize(_CENT, ROUND_HALF_UP))
