"""The pipeline's tables: names, columns, types and what each means. Writers and readers share these pages.

Times are UTC. What is not known is null, never zero. Types are Spark's names of them.

trace_events  trace_rejects  messages        appended, as they come
journeys                                     folded from these, slot by slot (`slots`)
samples_{brokers,queues,counters,rejects}    appended: what the collector saw; consumption is folded from them
places → marks                               what names a message by its place, brought to the message's id
delays  transactions                         folded from messages and marks
"""

from __future__ import annotations

from ariane.tables.archive import ARCHIVE
from ariane.tables.delays import DELAYS
from ariane.tables.health import HEALTH
from ariane.tables.messages import MESSAGES
from ariane.tables.places import MARKS, PLACES
from ariane.tables.samples import CONSUMPTION, SAMPLES_BROKERS, SAMPLES_COUNTERS, SAMPLES_QUEUES, SAMPLES_REJECTS
from ariane.tables.table import Column, Table, page
from ariane.tables.trace import JOURNEYS, TRACE_EVENTS, TRACE_REJECTS
from ariane.tables.transactions import TRANSACTIONS

SAMPLES = (SAMPLES_BROKERS, SAMPLES_QUEUES, SAMPLES_COUNTERS, SAMPLES_REJECTS)
OF_RECORDS = (PLACES, MARKS, DELAYS, TRANSACTIONS)
ALL = (TRACE_EVENTS, TRACE_REJECTS, MESSAGES, JOURNEYS, *SAMPLES, CONSUMPTION, HEALTH, ARCHIVE, *OF_RECORDS)

__all__ = [
    "ALL",
    "ARCHIVE",
    "CONSUMPTION",
    "DELAYS",
    "HEALTH",
    "JOURNEYS",
    "MARKS",
    "MESSAGES",
    "PLACES",
    "SAMPLES_BROKERS",
    "SAMPLES_COUNTERS",
    "SAMPLES_QUEUES",
    "SAMPLES_REJECTS",
    "TRACE_EVENTS",
    "TRACE_REJECTS",
    "TRANSACTIONS",
    "Column",
    "Table",
    "page",
]
