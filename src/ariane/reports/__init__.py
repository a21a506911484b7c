"""Reports over the pipeline's tables. To add one, extend REPORTS here and in `ariane.cli.options.command_names`."""

from __future__ import annotations

from collections.abc import Callable

from ariane.reports import delay_report, health_report, lag_report, latency_report, tps_report, transaction_report
from ariane.reports.report import Report

# Name → `report(home, *, since_ms, until_ms, now_ms, topic, group)`; topic and group are None if they do not filter.
REPORTS: dict[str, Callable[..., Report]] = {
    "tps": tps_report.report,
    "latency": latency_report.report,
    "lag": lag_report.report,
    "health": health_report.report,
    "delay": delay_report.report,
    "transactions": transaction_report.report,
}
