"""The pipeline's tables: names, columns, types and what each means. Writers and readers share these pages.

Times are UTC. What is not known is null, never zero. Types are Spark's names of them.

trace_events  trace_rejects  messages        appended, as they come
journeys                                     folded from these, slot by slot (`slots`)
places → marks                               what names a message by its place, brought to the message's id
delays  transactions                         folded from messages and marks
"""

from __future__ import annotations

from ariane.tables.delays import DELAYS
from ariane.tables.messages import MESSAGES
from ariane.tables.places import MARKS, PLACES
from ariane.tables.table import Column, Table, page
from ariane.tables.trace import JOURNEYS, TRACE_EVENTS, TRACE_REJECTS
from ariane.tables.transactions import TRANSACTIONS

ALL = (TRACE_EVENTS, TRACE_REJECTS, MESSAGES, JOURNEYS, PLACES, MARKS, DELAYS, TRANSACTIONS)

__all__ = [
    "ALL",
    "DELAYS",
    "JOURNEYS",
    "MARKS",
    "MESSAGES",
    "PLACES",
    "TRACE_EVENTS",
    "TRACE_REJECTS",
    "TRANSACTIONS",
    "Column",
    "Table",
    "page",
]
