"""Streaming reader of store files. Needs Spark 4.2.

{"from": log offset, "to": log offset}      each offset carries its own start, so a replay reads the same range
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from ariane.errors import ConfigError, StoreError
from ariane.spark.reporting import hide_traceback, message_only
from ariane.spark.store import commit_log
from ariane.spark.store.commit_log import StoredLog
from ariane.spark.store.log_partitions import plan_partitions, read_partition
from ariane.spark.store.store_options import StoreOptions
from ariane.store.disk.files import OpenFiles, ReadOnlyDisk
from ariane.store.disk.segments import Segments


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is appended to a log, in micro-batches."""

    def __init__(self, options: StoreOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._log: StoredLog | None = None  # state of the last scan; the next one continues from there
        self._initial: int | None = None
        self._stop_offset: int | None = None  # AvailableNow: the end when the query started

    @hide_traceback
    def initialOffset(self) -> dict[str, int]:
        # Spark calls this again in the first batch, and the result has to be the same.
        if self._initial is None:
            stored_log, starting_position = self._refresh_log(), self._options.starting_position
            if starting_position == "earliest":
                self._initial = stored_log.start
            elif starting_position == "latest":
                self._initial = stored_log.end
            else:
                self._initial = _align_offset(stored_log, self._resolve_start(stored_log, int(starting_position)))
        return {"from": self._initial, "to": self._initial}

    def _resolve_start(self, stored_log: StoredLog, position: int) -> int:
        """Check the option startingPosition against the offsets that the log holds."""
        bounds = f"the log holds {stored_log.start} to {stored_log.end}"
        if position > stored_log.end:
            raise ConfigError("startingPosition", position, f"is beyond the end: {bounds}; use latest to start there")
        if position < stored_log.start and self._options.fail_on_data_loss:
            fix = f"was removed: {bounds}; use earliest, or set failOnDataLoss to false to start there"
            raise ConfigError("startingPosition", position, fix)
        return max(position, stored_log.start)

    @hide_traceback
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        stored_log, begin = self._refresh_log(), start["to"]
        if begin > stored_log.end:
            reason = f"{self._options.path} ends at {stored_log.end}, but {begin} was read before: another store, or an older copy"
            raise StoreError(f"{reason}; start a new query with a new checkpoint")
        if begin < stored_log.start and self._options.fail_on_data_loss:
            reason = f"{self._options.path} starts at {stored_log.start}: the log from {begin} on was removed before it was read"
            raise StoreError(f"{reason}; set failOnDataLoss to false to continue with a row for it")
        end = stored_log.end if self._stop_offset is None else min(stored_log.end, self._stop_offset)
        if isinstance(limit, ReadMaxBytes) and end - begin > limit.max_bytes:
            end = min(end, _align_offset(stored_log, begin + limit.max_bytes))
        return start if end <= begin else {"from": begin, "to": end}

    def getDefaultReadLimit(self) -> ReadLimit:
        max_bytes = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if max_bytes is None else ReadMaxBytes(max_bytes)

    @hide_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        self._stop_offset = self._refresh_log().end

    @hide_traceback
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return plan_partitions(self._refresh_log(), end["from"], end["to"], self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with message_only():
            yield from read_partition(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: offsets are stored in the checkpoint."""

    def _refresh_log(self) -> StoredLog:
        self._log = commit_log.find_log(self._options.path, self._log)
        return self._log


def _align_offset(stored_log: StoredLog, offset: int) -> int:
    """Return the first offset at or after `offset` at which a record or a file starts."""
    base = offset - offset % stored_log.file_size
    limit = min(base + stored_log.file_size, stored_log.end)
    if base not in stored_log.bases:
        return limit
    files = OpenFiles(ReadOnlyDisk())
    try:
        return commit_log.next_boundary(
            Segments(files, stored_log.directory, stored_log.file_size, [base]), offset, limit
        )
    finally:
        files.close()
