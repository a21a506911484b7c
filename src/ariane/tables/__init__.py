"""Tables of the pipeline: names, columns, types and descriptions, shared by writers and readers.

All times are UTC. Unknown values are null, never zero. Types are Spark SQL types.

    appended by micro-batches                  computed from these, bucket by bucket
      trace_events  trace_rejects           ─┬→ clocks → journeys  message_keys → traffic → latencies  slow_messages
      messages                               └→ health
      messages  record_positions → position_marks ─→ delays  transactions
      samples_{brokers,queues,counters,rejects}   ─→ consumption
      archive
"""

from __future__ import annotations

from ariane.tables.declarations.archive import ARCHIVE
from ariane.tables.declarations.delays import DELAYS
from ariane.tables.declarations.health import HEALTH
from ariane.tables.declarations.messages import MESSAGES
from ariane.tables.declarations.record_positions import POSITION_MARKS, RECORD_POSITIONS
from ariane.tables.declarations.samples import (
    CONSUMPTION,
    SAMPLES_BROKERS,
    SAMPLES_COUNTERS,
    SAMPLES_QUEUES,
    SAMPLES_REJECTS,
)
from ariane.tables.declarations.trace_tables import CLOCKS, JOURNEYS, MESSAGE_KEYS, TRACE_EVENTS, TRACE_REJECTS
from ariane.tables.declarations.traffic import LATENCIES, SLOW_MESSAGES, TRAFFIC
from ariane.tables.declarations.transactions import TRANSACTIONS
from ariane.tables.table import ColumnSchema, TableSchema, markdown_page

SAMPLES = (SAMPLES_BROKERS, SAMPLES_QUEUES, SAMPLES_COUNTERS, SAMPLES_REJECTS)
ALL_TABLES = (
    TRACE_EVENTS,
    TRACE_REJECTS,
    MESSAGES,
    *SAMPLES,
    ARCHIVE,
    RECORD_POSITIONS,
    POSITION_MARKS,
    CLOCKS,
    JOURNEYS,
    MESSAGE_KEYS,
    TRAFFIC,
    LATENCIES,
    SLOW_MESSAGES,
    CONSUMPTION,
    HEALTH,
    DELAYS,
    TRANSACTIONS,
)

__all__ = [
    "ALL_TABLES",
    "ARCHIVE",
    "CLOCKS",
    "CONSUMPTION",
    "DELAYS",
    "HEALTH",
    "JOURNEYS",
    "LATENCIES",
    "MESSAGES",
    "MESSAGE_KEYS",
    "POSITION_MARKS",
    "RECORD_POSITIONS",
    "SAMPLES_BROKERS",
    "SAMPLES_COUNTERS",
    "SAMPLES_QUEUES",
    "SAMPLES_REJECTS",
    "SLOW_MESSAGES",
    "TRACE_EVENTS",
    "TRACE_REJECTS",
    "TRAFFIC",
    "TRANSACTIONS",
    "ColumnSchema",
    "TableSchema",
    "markdown_page",
]
