"""The reports by name: what each tells, and by what it can be narrowed. A new report is a new line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ariane.admin.report import Report
from ariane.admin.reports import delay, health, lag, latency, tps, transactions


class Kind(NamedTuple):
    """A report. `function(home, *, since_ms, until_ms, now_ms, **filters)`, each filter a text or None: for all."""

    function: Callable[..., Report]
    meaning: str
    filters: tuple[str, ...]


REPORTS = {
    "tps": Kind(tps.report, "messages sent and consumed per second, and how many of them failed", ("topic", "group")),
    "latency": Kind(latency.report, "how long sends, queueing and listeners take, and the slowest", ("topic", "group")),
    "lag": Kind(lag.report, "how far groups are behind, their true TPS, and who serves them", ("topic", "group")),
    "health": Kind(
        health.report, "duplicates, disorder, clocks, never consumed, dead letters, no traces", ("topic", "group")
    ),
    "delay": Kind(
        delay.report, "how early or late delayed messages are, what is pending, what overdue", ("topic", "group")
    ),
    "transactions": Kind(
        transactions.report, "from half messages to decisions, checks, what is open or given up", ("topic", "group")
    ),
}
