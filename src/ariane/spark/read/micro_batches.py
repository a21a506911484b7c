"""Streaming reader: Spark's interface to the planner of micro-batches, and their rows. Needs Spark 4.2."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ariane.spark.read.micro_batch_planner import MicroBatchPlanner
from ariane.spark.read.partitions import QueuePartition, read_partition
from ariane.spark.read.source_options import SourceOptions
from ariane.spark.reporting import hide_traceback, message_only
from ariane.spark.values.value_columns import ValueColumns

_LIMITS = {kind.__name__: kind for kind in (ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows)}


class StreamReader(MicroBatchPlanner, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the micro-batches of one query."""

    def __init__(
        self,
        options: SourceOptions,
        columns: list[str],
        monotonic: Callable[[], float] = time.monotonic,
        values: ValueColumns | None = None,
    ) -> None:
        super().__init__(options, monotonic)
        self._columns = columns  # columns to decode from records, which Spark fixes when the query starts
        self._values = values  # columns computed from bodies, if any

    @hide_traceback
    def initialOffset(self) -> dict[str, Any]:
        return self.initial_offset()

    @hide_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self.latest_offset(start, is_limited=not isinstance(limit, ReadAllAvailable))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self.read_limit()
        return _LIMITS[limit.pop("_type")](**limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self.report_latest_offset()

    @hide_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        self.prepare_for_available_now()

    @hide_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[QueuePartition]:
        return [QueuePartition(part) for part in self.ranges(end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with message_only():
            yield from read_partition(partition, self._options, self._columns, self._values)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: offsets are stored in the checkpoint, and `latest_offset` commits the group's offsets earlier."""
