"""The pipeline's tables: names, columns, types and what each means. Writers and readers share these pages.

Times are UTC. What is not known is null, never zero. Types are Spark's names of them.

trace_events  trace_rejects  messages        appended, as they come
clocks  journeys  message_keys               folded from these, slot by slot (`slots`)
"""

from __future__ import annotations

from ariane.tables.messages import MESSAGES
from ariane.tables.table import Column, Table, page
from ariane.tables.trace import CLOCKS, JOURNEYS, MESSAGE_KEYS, TRACE_EVENTS, TRACE_REJECTS

ALL = (TRACE_EVENTS, TRACE_REJECTS, MESSAGES, CLOCKS, JOURNEYS, MESSAGE_KEYS)

__all__ = [
    "ALL",
    "CLOCKS",
    "JOURNEYS",
    "MESSAGES",
    "MESSAGE_KEYS",
    "TRACE_EVENTS",
    "TRACE_REJECTS",
    "Column",
    "Table",
    "page",
]
