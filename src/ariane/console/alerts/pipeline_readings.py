"""The values of the pipeline that alert rules watch, read from its tables: by table, and by source.

A source whose servers do not respond is unknown. Without a readable home no value is known, and no alert begins or ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ariane.clock import Clock
from ariane.console.alerts.alert_rules import AlertMetric
from ariane.console.alerts.readings import MetricReading
from ariane.reports.tables.pipeline_status import REJECTS, read_statuses, table_statuses
from ariane.tables.table_home import Home
from ariane.tables.table_store import open_store

READ_INTERVAL_MS = 30_000  # in an object store a look at all tables takes seconds

Readings = Mapping[AlertMetric, Mapping[str, MetricReading]]

PIPELINE_METRICS = frozenset({
    AlertMetric.PIPELINE_TABLE_AGE, AlertMetric.PIPELINE_SOURCE, AlertMetric.PIPELINE_REJECTED, AlertMetric.PIPELINE_RETRIES,
})  # fmt: skip


class PipelineReader:
    """Reads the values at most every READ_INTERVAL_MS."""

    def __init__(self, home: Home | None, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._read_ms = -READ_INTERVAL_MS  # time of `_readings`
        self._readings: Readings = {}

    async def read(self) -> Readings:
        """Return the values; empty without a home that has tables.

        Raises:
            StoreError: the home cannot be read.
        """
        home, now_ms = self._home, self._clock.now_ms()
        if home is not None and open_store(home).exists() and now_ms - self._read_ms >= READ_INTERVAL_MS:
            self._readings = await asyncio.to_thread(read_pipeline, home, now_ms)
            self._read_ms = now_ms
        return self._readings


def read_pipeline(home: Home, now_ms: int) -> Readings:
    """Return the values of a home.

    Raises:
        StoreError: it cannot be read.
    """
    tables, sources = table_statuses(home, now_ms), read_statuses(home)
    as_of_ms = {state.table.name: state.freshness.as_of_ms for state in tables if state.version is not None}
    rows = {state.table.name: state.version.rows for state in tables if state.version is not None}
    return {
        AlertMetric.PIPELINE_TABLE_AGE: {
            name: MetricReading(None if ms is None else max(0, now_ms - ms) / 1000) for name, ms in as_of_ms.items()
        },
        AlertMetric.PIPELINE_SOURCE: {
            name: MetricReading(1.0 if status.unavailable is None else None) for name, status in sources.items()
        },
        AlertMetric.PIPELINE_REJECTED: {
            source: MetricReading(rows[table.name]) for source, table in REJECTS.items() if table.name in rows
        },
        AlertMetric.PIPELINE_RETRIES: {name: MetricReading(status.retries) for name, status in sources.items()},
    }
