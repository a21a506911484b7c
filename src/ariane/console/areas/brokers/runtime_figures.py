"""Every figure of a broker's runtime information (request 28): its section, unit and meaning. Pure functions.

    table of texts by key ─→ runtime_figures ─→ RuntimeFigure …: parsed by the unit of the key, in the order of FIGURES

A key that is not listed is shown as it is, so that nothing of another version of RocketMQ is lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from ariane.access.public_ports import CERTIFICATE_DAYS_KEY, OPEN_PORTS_KEY
from ariane.console.texts.translation import gettext_noop as _
from ariane.console.web.view_model import View
from ariane.metrics.polling.runtime_values import finite, number, size
from ariane.net.limits.quotas import EXCEEDED_LIMITS_KEY

Unit = Literal["text", "count", "bytes", "ms", "share", "time", "rates", "positions"]

IDENTITY, LIMITS, TOTALS, RATES = _("Identity"), _("Limits"), _("Totals"), _("Rates")
LATENCY, POOLS, STORAGE, DELAYS, OTHER = (
    _("Latency"), _("Request pools"), _("Storage"), _("Delay levels"), _("Other figures"),
)  # fmt: skip
UNLIMITED = (1 << 31) - 1  # value of brokers without a pool of buffers


class FigureKind(NamedTuple):
    """What a key means."""

    section: str
    key: str
    unit: Unit
    meaning: str


class RuntimeFigure(View):
    """A figure of the runtime information."""

    section: str
    """Section of the page."""
    key: str
    """Key of RocketMQ."""
    meaning: str
    """Explanation; empty for a key that is not part of RocketMQ 4.9.4."""
    unit: Unit
    """count, bytes, ms, share (0 to 1), time (ms since the epoch), rates (per second), positions (delivered, last), or text."""
    text: str
    """The value as the broker sent it."""
    value: float | None
    """The value as a number of the unit; null: unknown, or not a single number."""
    values: list[float | None]
    """Of rates: over the last 10, 60 and 600 s, null while the broker is younger. Of positions: delivered, and last."""


FIGURES: tuple[FigureKind, ...] = (
    FigureKind(IDENTITY, "brokerVersionDesc", "text", _("Version of RocketMQ.")),
    FigureKind(IDENTITY, "kernels", "text", _("Implementation of the work on each message: native or Python.")),
    FigureKind(IDENTITY, OPEN_PORTS_KEY, "text", _("What other machines can do, because the ports lack protection.")),
    FigureKind(
        IDENTITY, CERTIFICATE_DAYS_KEY, "count", _("Days until the TLS certificate of the ports expires; negative afterwards.")
    ),
    FigureKind(IDENTITY, "memberStream", "text", _("Whether slaves of Ariane can identify themselves in replication.")),
    FigureKind(IDENTITY, "replicationTls", "text", _("Whether slaves can connect encrypted.")),
    FigureKind(IDENTITY, "requestBatchMax", "count", _("Requests that the broker takes in one batch.")),
    FigureKind(IDENTITY, "brokerVersion", "count", _("Number of the version.")),
    FigureKind(IDENTITY, "bootTimestamp", "time", _("Start of the broker.")),
    FigureKind(IDENTITY, "runtime", "text", _("Time since the start.")),
    FigureKind(IDENTITY, "startAcceptSendRequestTimeStamp", "time", _("Time from which the broker accepts messages.")),
    FigureKind(LIMITS, EXCEEDED_LIMITS_KEY, "text", _("Limits that were exceeded since the start, and how often.")),
    FigureKind(RATES, "putTps", "rates", _("Messages stored per second.")),
    FigureKind(RATES, "getTransferedTps", "rates", _("Messages delivered per second.")),
    FigureKind(RATES, "getTotalTps", "rates", _("Pull requests per second.")),
    FigureKind(RATES, "getFoundTps", "rates", _("Pull requests per second that found messages.")),
    FigureKind(RATES, "getMissTps", "rates", _("Pull requests per second that found no message.")),
    FigureKind(TOTALS, "msgPutTotalTodayNow", "count", _("Messages stored since the start.")),
    FigureKind(TOTALS, "msgPutTotalTodayMorning", "count", _("The same at the last midnight.")),
    FigureKind(TOTALS, "msgPutTotalYesterdayMorning", "count", _("The same at the midnight before.")),
    FigureKind(TOTALS, "msgGetTotalTodayNow", "count", _("Messages delivered since the start.")),
    FigureKind(TOTALS, "msgGetTotalTodayMorning", "count", _("The same at the last midnight.")),
    FigureKind(TOTALS, "msgGetTotalYesterdayMorning", "count", _("The same at the midnight before.")),
    FigureKind(TOTALS, "putMessageTimesTotal", "count", _("Store operations since the start.")),
    FigureKind(TOTALS, "putMessageFailedTimes", "count", _("Store operations that failed.")),
    FigureKind(TOTALS, "putMessageSizeTotal", "bytes", _("Bytes stored since the start.")),
    FigureKind(TOTALS, "putMessageAverageSize", "bytes", _("Mean size of a stored message.")),
    FigureKind(LATENCY, "putLatency99", "ms", _("99 % of the store operations of the last minute were faster.")),
    FigureKind(LATENCY, "putLatency999", "ms", _("99.9 % of the store operations of the last minute were faster.")),
    FigureKind(LATENCY, "putMessageEntireTimeMax", "ms", _("Longest store operation since the start.")),
    FigureKind(LATENCY, "getMessageEntireTimeMax", "ms", _("Longest read since the start.")),
    FigureKind(LATENCY, "putMessageDistributeTime", "text", _("Store operations of the last minute by duration.")),
    FigureKind(LATENCY, "pageCacheLockTimeMills", "ms", _("Time for which the commit log is locked now.")),
    FigureKind(POOLS, "sendThreadPoolQueueSize", "count", _("Send requests that wait for a thread.")),
    FigureKind(POOLS, "sendThreadPoolQueueCapacity", "count", _("Send requests that may wait; further ones are rejected.")),
    FigureKind(POOLS, "sendThreadPoolQueueHeadWaitTimeMills", "ms", _("Wait of the first send request.")),
    FigureKind(POOLS, "pullThreadPoolQueueSize", "count", _("Pull requests that wait for a thread.")),
    FigureKind(POOLS, "pullThreadPoolQueueCapacity", "count", _("Pull requests that may wait; further ones are rejected.")),
    FigureKind(POOLS, "pullThreadPoolQueueHeadWaitTimeMills", "ms", _("Wait of the first pull request.")),
    FigureKind(POOLS, "queryThreadPoolQueueSize", "count", _("Message queries that wait for a thread.")),
    FigureKind(POOLS, "queryThreadPoolQueueCapacity", "count", _("Message queries that may wait; further ones are rejected.")),
    FigureKind(POOLS, "queryThreadPoolQueueHeadWaitTimeMills", "ms", _("Wait of the first message query.")),
    FigureKind(POOLS, "EndTransactionQueueSize", "count", _("Ends of transactions that wait for a thread.")),
    FigureKind(POOLS, "EndTransactionThreadPoolQueueCapacity", "count", _("Ends of transactions that may wait.")),
    FigureKind(STORAGE, "commitLogDiskRatio", "share", _("Used share of the disk of the commit log.")),
    FigureKind(STORAGE, "consumeQueueDiskRatio", "share", _("Used share of the disk of the consume queues.")),
    FigureKind(STORAGE, "commitLogDirCapacity", "text", _("Size of the disk of the commit log, and its free space.")),
    FigureKind(STORAGE, "commitLogMinOffset", "bytes", _("First position of the commit log.")),
    FigureKind(STORAGE, "commitLogMaxOffset", "bytes", _("End of the commit log.")),
    FigureKind(STORAGE, "earliestMessageTimeStamp", "time", _("Store time of the oldest message.")),
    FigureKind(STORAGE, "dispatchBehindBytes", "bytes", _("Part of the commit log that consumers cannot read yet.")),
    FigureKind(STORAGE, "dispatchMaxBuffer", "count", _("Requests in the buffer of the dispatch.")),
    FigureKind(STORAGE, "remainHowManyDataToFlush", "bytes", _("Part of the commit log that is not flushed to the disk yet.")),
    FigureKind(STORAGE, "remainHowManyDataToCommit", "bytes", _("Part of the buffers that is not in the commit log yet.")),
    FigureKind(STORAGE, "remainTransientStoreBufferNumbs", "count", _("Free buffers of the transient store pool.")),
)  # fmt: skip

# Keys that contain a path or number.
_PATTERNS: tuple[tuple[re.Pattern[str], FigureKind], ...] = (
    (re.compile(r"commitLogDiskRatio_.+"), FigureKind(STORAGE, "", "share", _("Used share of the disk of this directory."))),
    (re.compile(r"scheduleMessageOffset_\d{1,9}"),
     FigureKind(DELAYS, "", "positions", _("Delivered, and all of this delay level."))),
)  # fmt: skip
_KINDS = {kind.key: (order, kind) for order, kind in enumerate(FIGURES)}
_SECTIONS = (IDENTITY, LIMITS, RATES, TOTALS, LATENCY, POOLS, STORAGE, DELAYS, OTHER)


def runtime_figures(table: Mapping[str, str]) -> list[RuntimeFigure]:
    """Return all figures of a broker, by section."""
    figures = []
    for key, text in table.items():
        order, kind = _kind(key)
        level = int(key.rpartition("_")[2]) if kind.unit == "positions" else 0
        value, values = _value(kind.unit, table, key)
        figure = RuntimeFigure.of(kind, key=key, text=text, value=value, values=values)
        figures.append(((_SECTIONS.index(kind.section), order, level, key), figure))
    return [figure for _order, figure in sorted(figures, key=lambda item: item[0])]


def _kind(key: str) -> tuple[int, FigureKind]:
    # 5.x spells one of the keys correctly.
    kind_of_key = _KINDS.get(key.replace("Transferred", "Transfered"))
    if kind_of_key is not None:
        return kind_of_key
    for pattern, kind in _PATTERNS:
        if pattern.fullmatch(key):
            return len(FIGURES), kind
    return len(FIGURES), FigureKind(OTHER, key, "text", "")


def _value(unit: Unit, table: Mapping[str, str], key: str) -> tuple[float | None, list[float | None]]:
    """Return the number of a text, or its numbers."""
    text = table[key]
    if unit == "rates":
        parts: list[float | None] = [finite(part) for part in text.split(" ")][:3]
        parts += [None] * (3 - len(parts))
        if key == "getTotalTps":
            # Unlike the other rates this one is 0 while the broker has not run that long.
            other_rates = table.get("getFoundTps", "").split(" ")
            parts = [
                part if index < len(other_rates) and other_rates[index] else None for index, part in enumerate(parts)
            ]
        return None, parts
    if unit == "positions":
        return None, [finite(part) for part in text.split(",")]
    if unit == "bytes" and "B" in text:
        return size(text), []
    value = None if unit == "text" else number(table, key)
    # A broker without buffers, or without a time from which it accepts messages.
    is_unset = (key == "remainTransientStoreBufferNumbs" and value == UNLIMITED) or (unit == "time" and value == 0)
    return None if is_unset else value, []
