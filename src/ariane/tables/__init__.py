"""The pipeline's tables: names, columns, types and what each means. Writers and readers share these pages.

Times are UTC. What is not known is null, never zero. Types are Spark's names of them.

appended, as they come             folded from these, slot by slot (`slots`)
  trace_events  trace_rejects  ─┬→ clocks → journeys  message_keys → traffic → latencies  slow_messages
  messages                      └→ health
  samples_{brokers,queues,counters,rejects} → consumption
  archive
"""

from __future__ import annotations

from ariane.tables.archive import ARCHIVE
from ariane.tables.health import HEALTH
from ariane.tables.messages import MESSAGES
from ariane.tables.samples import CONSUMPTION, SAMPLES_BROKERS, SAMPLES_COUNTERS, SAMPLES_QUEUES, SAMPLES_REJECTS
from ariane.tables.table import Column, Table, page
from ariane.tables.trace import CLOCKS, JOURNEYS, MESSAGE_KEYS, TRACE_EVENTS, TRACE_REJECTS
from ariane.tables.traffic import LATENCIES, SLOW_MESSAGES, TRAFFIC

SAMPLES = (SAMPLES_BROKERS, SAMPLES_QUEUES, SAMPLES_COUNTERS, SAMPLES_REJECTS)
ALL = (
    TRACE_EVENTS,
    TRACE_REJECTS,
    MESSAGES,
    *SAMPLES,
    ARCHIVE,
    CLOCKS,
    JOURNEYS,
    MESSAGE_KEYS,
    TRAFFIC,
    LATENCIES,
    SLOW_MESSAGES,
    CONSUMPTION,
    HEALTH,
)

__all__ = [
    "ALL",
    "ARCHIVE",
    "CLOCKS",
    "CONSUMPTION",
    "HEALTH",
    "JOURNEYS",
    "LATENCIES",
    "MESSAGES",
    "MESSAGE_KEYS",
    "SAMPLES_BROKERS",
    "SAMPLES_COUNTERS",
    "SAMPLES_QUEUES",
    "SAMPLES_REJECTS",
    "SLOW_MESSAGES",
    "TRACE_EVENTS",
    "TRACE_REJECTS",
    "TRAFFIC",
    "Column",
    "Table",
    "page",
]
