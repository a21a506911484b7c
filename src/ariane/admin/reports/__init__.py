"""The reports by name: what each tells, and by what it can be narrowed. A new report is a new line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ariane.admin.report import Report
from ariane.admin.reports import delay, transactions


class Kind(NamedTuple):
    """A report. `function(home, *, since_ms, until_ms, now_ms, **filters)`, each filter a text or None: for all."""

    function: Callable[..., Report]
    meaning: str
    filters: tuple[str, ...]


REPORTS = {
    "delay": Kind(
        delay.report, "how early or late delayed messages are, what is pending, what overdue", ("topic", "group")
    ),
    "transactions": Kind(
        transactions.report, "from half messages to decisions, checks, what is open or given up", ("topic", "group")
    ),
}
