"""The pipeline's tables: names, columns, types and what each means. Writers and readers share these pages.

Times are UTC. What is not known is null, never zero. Types are Spark's names of them.

trace_events  trace_rejects  messages        appended, as they come
journeys                                     folded from these, slot by slot (`slots`)
samples_{brokers,queues,counters,rejects}    appended: what the collector saw; consumption is folded from them
"""

from __future__ import annotations

from ariane.tables.archive import ARCHIVE
from ariane.tables.health import HEALTH
from ariane.tables.messages import MESSAGES
from ariane.tables.samples import CONSUMPTION, SAMPLES_BROKERS, SAMPLES_COUNTERS, SAMPLES_QUEUES, SAMPLES_REJECTS
from ariane.tables.table import Column, Table, page
from ariane.tables.trace import JOURNEYS, TRACE_EVENTS, TRACE_REJECTS

SAMPLES = (SAMPLES_BROKERS, SAMPLES_QUEUES, SAMPLES_COUNTERS, SAMPLES_REJECTS)
ALL = (TRACE_EVENTS, TRACE_REJECTS, MESSAGES, JOURNEYS, *SAMPLES, CONSUMPTION, HEALTH, ARCHIVE)

__all__ = [
    "ALL",
    "ARCHIVE",
    "CONSUMPTION",
    "HEALTH",
    "JOURNEYS",
    "MESSAGES",
    "SAMPLES_BROKERS",
    "SAMPLES_COUNTERS",
    "SAMPLES_QUEUES",
    "SAMPLES_REJECTS",
    "TRACE_EVENTS",
    "TRACE_REJECTS",
    "Column",
    "Table",
    "page",
]
