"""The streaming query of one source: appends micro-batches to its base tables, is restarted after faults, and has a status.

topics ─ streaming query ─ foreachBatch ─→ base tables
                └─ source_status: pending messages, unavailable servers ─→ HOME/status
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from ariane.clock import SYSTEM_CLOCK, ms_of
from ariane.errors import ArianeError
from ariane.pipeline import restarts
from ariane.pipeline.jobs import TopicSource
from ariane.pipeline.publishing import decoded_batches, few_rows, table_publisher
from ariane.protocol.client_rules.transient import UNAVAILABLE
from ariane.reports.tables.pipeline_status import SourceStatus
from ariane.spark.read import progress as lag
from ariane.tables import TableSchema
from ariane.tables.table_home import Home
from ariane.tables.table_store import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from ariane.spark.read.micro_batches import StreamReader

# Ariane's own errors in the exception of a query. Spark passes on only the text of a Python error: at the start of a line after a
# traceback, or within Spark's own line if the connector hides the traceback.
ARIANE_ERROR = re.compile(r"(?:^|: )ariane\.[a-z_.]+\.((\w+): [^\n]*)", re.MULTILINE)
# Names of errors that end when a server is back. The exception of a query contains only the name.
UNAVAILABLE_NAMES = frozenset(error.__name__ for error in UNAVAILABLE)
STOP_POLL_S = 1  # between checks for `stop` while a query reads to its end
START_POLL_S = 0.1  # between checks whether the Python process of a query has started
START_POLLS = 100
BATCH_TIMEOUT_S = 15.0  # for a batch in flight when the jobs are stopped; takes some seconds on a busy machine
UNAVAILABLE_PAUSE_S = 5.0  # before a query that lost a server is restarted; the source itself has retried before


class SourceStream(NamedTuple):
    """The messages of a source."""

    messages: DataFrame
    """Streaming data frame."""
    reader: StreamReader | None = None
    """Reads micro-batches in the driver; None: the messages are not in topics."""


class RunningQuery(NamedTuple):
    """A streaming query of a source."""

    query: StreamingQuery
    until_ms: int | None
    """The query reads what was stored up to then, and ends; None: it runs until stopped."""


class JobStopped(ArianeError):
    """Raised in a micro-batch that starts while its query is being stopped; the batch is repeated on the next start."""


class SourceReader:
    """The streaming query of one source, which appends to its base tables and can be restarted."""

    def __init__(
        self,
        source: TopicSource,
        stream: SourceStream,
        *,
        home: Home,
        interval_s: float | None,
        closing: threading.Event,
    ) -> None:
        self.source = source  # topics, and how their records become tables
        # Delays the restart of a query that failed, longer with each failure in a row.
        self.backoff = restarts.RestartBackoff(source.name)
        self._stream = stream  # each start builds a new query from it
        self._home = home  # tables, status and checkpoints are below it
        # Spark's offsets and commits; a restart continues from it, so it must survive the process.
        self._checkpoint = open_store(home).local_dir / "checkpoint" / source.name
        self._interval_s = interval_s  # None: read what is available, then end
        self._closing = closing  # set when the job ends
        # Held by a batch. `close` waits for it, because Spark logs long errors if Python is interrupted within a batch.
        self._batch_lock = threading.Lock()
        # Of a micro-batch that the driver reads: fewer after rows that were too large, then more again with each micro-batch.
        self._max_messages = decoded_batches.MAX_MESSAGES
        self.appended_batches = 0  # since the start, so that the driver notices new rows
        self.running = self.start()  # the query in progress

    def start(self) -> RunningQuery:
        """Start the query (again) and return it."""
        until_ms = SYSTEM_CLOCK.now_ms() if self._interval_s is None else None
        writer = self._stream.messages.writeStream.queryName(self.source.name).foreachBatch(self._append)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        if self._interval_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._interval_s} seconds")
        self.running = RunningQuery(writer.start(), until_ms)
        return self.running

    @property
    def is_reading(self) -> bool:
        """Return whether a micro-batch is being planned or processed."""
        return bool(self.running.query.isActive and self.running.query.status["isTriggerActive"])

    def await_start(self, stop: threading.Event) -> None:
        """Wait until the query has started its Python process, at most START_POLLS polls, so that the next one starts after it."""
        for _ in range(START_POLLS):
            query = self.running.query
            if not query.isActive or not query.status["message"].startswith("Initializing") or stop.wait(START_POLL_S):
                return

    def read_to_end(self, stop: threading.Event, report: Callable[[str], None]) -> None:
        """Wait until the query has read everything available, restarting it after transient faults of Spark."""
        self.running = _read_to_end(self.running, self.start, self.backoff, stop, report)

    def close(self) -> None:
        """Stop the query after its current batch."""
        if self._batch_lock.acquire(timeout=BATCH_TIMEOUT_S):
            self._batch_lock.release()
        self.running.query.stop()

    def _append(self, batch: DataFrame, number: int) -> None:
        with self._batch_lock:
            if self._closing.is_set():
                raise JobStopped(f"{self.source.name}: stopped before batch {number}")
            # A new checkpoint numbers its batches from 0 again, under a new id.
            checkpoint_id = json.loads((self._checkpoint / "metadata").read_text())["id"]
            query = f"{self.source.name} {checkpoint_id}"
            with self._rows(batch, number) as rows_of:
                for table in self.source.tables:
                    rows, now_ms = rows_of(table), SYSTEM_CLOCK.now_ms()
                    table_publisher.append_batch(rows, self._home, table, query, number, now_ms)
            self.appended_batches += 1

    @contextmanager
    def _rows(self, batch: DataFrame, number: int) -> Iterator[Callable[[TableSchema], DataFrame | few_rows.Rows]]:
        """Return the function that returns the rows of a table in a micro-batch."""
        rows = self._rows_in_driver(batch, number)
        if rows is not None:
            yield lambda table: rows[table.name]
            return
        batch = batch.persist()
        try:
            yield lambda table: decoded_batches.rows_of_table(batch, self.source.decode, table)
        finally:
            batch.unpersist()

    def _rows_in_driver(self, batch: DataFrame, number: int) -> dict[str, few_rows.Rows] | None:
        """Return the rows of a micro-batch by name of the table; None if they are too many for the driver."""
        if (reader := self._stream.reader) is None:
            collected = decoded_batches.collect(batch)
            return None if collected is None else self._decode(collected)
        ranges, count = decoded_batches.ranges_of(self._checkpoint, number)
        rows = None
        if count <= self._max_messages:
            with closing(decoded_batches.read_ranges(reader, ranges)) as messages:  # before tasks read them
                rows = self._decode(messages)
            if rows is None:
                self._max_messages = count // 2
        self._max_messages = min(self._max_messages + self._max_messages // 4 + 1, decoded_batches.MAX_MESSAGES)
        return rows

    def _decode(self, messages: Iterable[pa.RecordBatch]) -> dict[str, few_rows.Rows] | None:
        return decoded_batches.rows_of_tables(messages, self.source.decode, self.source.tables)


def source_status(source: TopicSource, running: RunningQuery) -> SourceStatus:
    """Return the progress of a source. Raises the error that ended its query, unless a server was unavailable."""
    now_ms = SYSTEM_CLOCK.now_ms()
    query, until_ms = running
    unavailable = _unavailable_reason(query)
    # A query with an end that ended without an error has read everything up to it.
    is_done = not query.isActive and unavailable is None
    progress = query.lastProgress
    if progress is None:
        pending, caught_up_ms = (0, until_ms) if is_done else (None, None)
        return SourceStatus(source.name, now_ms, None, None, pending, unavailable, caught_up_ms=caught_up_ms)
    lags = lag.lags(progress.json)
    unavailable = unavailable or _first_unavailable(lag.unavailable_servers(progress.json))
    pending = lag.total_lag(lags) if lags else 0 if is_done else None
    # A batch fetches the max offsets when it starts.
    offsets_ms = until_ms if is_done else ms_of(datetime.fromisoformat(progress.timestamp))
    is_caught_up = pending == 0 and unavailable is None
    batch_ms = progress.durationMs.get("triggerExecution")
    caught_up_ms = offsets_ms if is_caught_up else None
    return SourceStatus(source.name, now_ms, progress.batchId, batch_ms, pending, unavailable, len(lags), caught_up_ms)


def _first_unavailable(servers: Mapping[str, str]) -> str | None:
    """Return a line about servers that a query continues without; None if there are none."""
    if not servers:
        return None
    name, reason = min(servers.items())
    return f"{name} is unavailable{f', and {len(servers) - 1} more' if len(servers) > 1 else ''}: {reason}"


def _await_end(query: StreamingQuery, stop: threading.Event) -> None:
    """Wait until the query has ended or failed (see `_unavailable_reason`), or `stop` is set."""
    from pyspark.errors import StreamingQueryException

    with suppress(StreamingQueryException):
        while not stop.is_set() and not query.awaitTermination(STOP_POLL_S):
            continue


def _read_to_end(
    running: RunningQuery,
    start: Callable[[], RunningQuery],
    backoff: restarts.RestartBackoff,
    stop: threading.Event,
    report: Callable[[str], None],
) -> RunningQuery:
    """Wait until a query has ended, restarting it after transient faults of Spark. Return the last query."""
    while True:
        _await_end(running.query, stop)
        fault = None if stop.is_set() else restarts.transient_fault(running.query.exception())
        if fault is None or stop.wait(restart_pause_s(running.query, backoff, report)):
            return running
        running = start()


def restart_pause_s(query: StreamingQuery, backoff: restarts.RestartBackoff, report: Callable[[str], None]) -> float:
    """Return the seconds to wait before an ended query is restarted; report a transient fault of Spark."""
    fault = restarts.transient_fault(query.exception())
    if fault is None:
        return UNAVAILABLE_PAUSE_S
    pause_s = backoff.record_failure(fault)
    report(restarts.retry_line(query.name, fault, pause_s))
    return pause_s


def _unavailable_reason(query: StreamingQuery) -> str | None:
    """Return the unavailable server or the transient fault that ended a query; None if it runs or ended without an error.

    Raises:
        ArianeError: a permanent error of the connector ended the query.
        StreamingQueryException: another error ended it.
    """
    error = query.exception()
    if query.isActive or error is None:
        return None
    if fault := restarts.transient_fault(error):
        return fault
    match = ARIANE_ERROR.search(str(error))
    if match is None:
        raise error
    if match[2] not in UNAVAILABLE_NAMES:
        raise ArianeError(f"{query.name}: {match[1]}") from error
    return match[1]
