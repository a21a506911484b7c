"""The reports by name: functions from published tables to a `Report`. A new report is a new line here."""

from __future__ import annotations

from collections.abc import Callable

from ariane.admin.report import Report
from ariane.admin.reports import delay, health, lag, transactions

REPORTS: dict[str, Callable[..., Report]] = {
    "health": health.report,
    "lag": lag.report,
    "delay": delay.report,
    "transactions": transactions.report,
}
