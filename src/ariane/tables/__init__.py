"""The pipeline's tables: names, columns, types and what each means. Writers and readers share these pages.

Times are UTC. What is not known is null, never zero. Types are Spark's names of them.

trace_events  trace_rejects  messages        appended, as they come
journeys                                     folded from these, slot by slot (`slots`)
traffic  slow_messages  latencies            folded from these and journeys
"""

from __future__ import annotations

from ariane.tables.messages import MESSAGES
from ariane.tables.table import Column, Table, page
from ariane.tables.trace import JOURNEYS, TRACE_EVENTS, TRACE_REJECTS
from ariane.tables.traffic import LATENCIES, SLOW_MESSAGES, TRAFFIC

ALL = (TRACE_EVENTS, TRACE_REJECTS, MESSAGES, JOURNEYS, TRAFFIC, LATENCIES, SLOW_MESSAGES)

__all__ = [
    "ALL",
    "JOURNEYS",
    "LATENCIES",
    "MESSAGES",
    "SLOW_MESSAGES",
    "TRACE_EVENTS",
    "TRACE_REJECTS",
    "TRAFFIC",
    "Column",
    "Table",
    "page",
]
