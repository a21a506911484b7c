"""Reports over the pipeline's tables. To add one, extend REPORTS here and in `ariane.cli.options.command_names`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ariane.reports import delay_report, health_report, lag_report, latency_report, tps_report, transaction_report
from ariane.reports.report import Report


class ReportKind(NamedTuple):
    """A report: `function(home, *, since_ms, until_ms, now_ms, **filters)`, where a filter is a text or None (no filter)."""

    function: Callable[..., Report]
    filters: tuple[str, ...]


REPORTS = {
    "tps": ReportKind(tps_report.report, ("topic", "group")),
    "latency": ReportKind(latency_report.report, ("topic", "group")),
    "lag": ReportKind(lag_report.report, ("topic", "group")),
    "health": ReportKind(health_report.report, ("topic", "group")),
    "delay": ReportKind(delay_report.report, ("topic", "group")),
    "transactions": ReportKind(transaction_report.report, ("topic", "group")),
}
