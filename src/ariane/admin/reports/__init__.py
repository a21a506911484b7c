"""The reports by name, and the filters of each. A new report is a new line here and in `ariane.cli.names`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ariane.admin.report import Report
from ariane.admin.reports import delay, health, lag, latency, tps, transactions


class Kind(NamedTuple):
    """A report. `function(home, *, since_ms, until_ms, now_ms, **filters)`, each filter a text or None: for all."""

    function: Callable[..., Report]
    filters: tuple[str, ...]


REPORTS = {
    "tps": Kind(tps.report, ("topic", "group")),
    "latency": Kind(latency.report, ("topic", "group")),
    "lag": Kind(lag.report, ("topic", "group")),
    "health": Kind(health.report, ("topic", "group")),
    "delay": Kind(delay.report, ("topic", "group")),
    "transactions": Kind(transactions.report, ("topic", "group")),
}
