"""Progress of the pipeline, and the freshness of its tables.

HOME/status/<source>     JSON (`SourceStatus`), written by the pipeline in every round
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from ariane import tables
from ariane.errors import StoreError
from ariane.reports.tables import table_contents
from ariane.reports.texts import Text, text
from ariane.tables import TableSchema
from ariane.tables.table_format import TableVersion
from ariane.tables.table_home import Home
from ariane.tables.table_store import open_store, read_version

STATUS = "status"
PENDING_MS = 800_000  # few new messages wait up to half of this for a micro-batch
# Tables of records that cannot be decoded, by source.
REJECTS = {"traces": tables.TRACE_REJECTS, "samples": tables.SAMPLES_REJECTS}
SILENT_MS = 120_000  # a pipeline without an update for this long is considered stopped


class SourceStatus(msgspec.Struct, frozen=True):
    """Progress of a source."""

    source: str  # name of the streaming query, which is also its checkpoint's
    at_ms: int
    """Time of this status, ms since the epoch."""
    batch: int | None
    """Id of the last micro-batch; None before the first."""
    batch_ms: int | None
    """Duration of the last micro-batch."""
    pending: int | None
    """Messages in its queues that are in no table yet; None if unknown."""
    unavailable: str | None
    """The server that does not respond, for which the source waits; None if it reads."""
    topics: int | None = None
    """Number of topics that it reads; 0 if none of them exists yet; None if unknown."""
    caught_up_ms: int | None = None
    """Last time when no message was pending, by the pipeline's clock: the tables contain everything that brokers had stored
    by then. None if that has not happened yet."""
    retries: int = 0
    """Retries after transient faults since the start of the pipeline's process, of all its tasks."""


class Freshness(NamedTuple):
    """Time up to which a table contains everything that brokers had stored, and reasons for missing data.

    `as_of_ms` is the store time of the newest row, or the later time at which no message was pending: idle brokers store
    nothing that would advance the time. None without data."""

    as_of_ms: int | None
    warnings: tuple[Text, ...]
    """Reasons why data may be missing; empty if the table is complete."""
    caught_up_ms: int | None = None
    """Time up to which everything was read, as in `SourceStatus`; None if the table lags behind a source table."""

    @property
    def is_complete(self) -> bool:
        """Whether no data is missing up to the as-of time."""
        return not self.warnings


class TableStatus(NamedTuple):
    """A table: its published version, None without data, and its freshness."""

    table: TableSchema
    version: TableVersion | None
    freshness: Freshness


def write_status(home: Home, status: SourceStatus) -> None:
    """Store the status of a source atomically."""
    open_store(home).write_small_file(f"{STATUS}/{status.source}", msgspec.json.encode(status) + b"\n")


def read_statuses(home: Home) -> dict[str, SourceStatus]:
    """Return the status of every source that has ever run, by name.

    Raises:
        StoreError: a status file is corrupt.
    """
    statuses = {}
    for name, content in open_store(home).read_small_files(STATUS):
        try:
            statuses[name] = msgspec.json.decode(content, type=SourceStatus)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"{home}/{STATUS}/{name} is not a valid status file: {error}; remove it, the pipeline creates it again"
            ) from error
    return statuses


def freshness(home: Home, table: TableSchema, now_ms: int) -> Freshness:
    """Return the freshness of a table.

    Call this before querying the table: rows that are added in between do no harm.
    """
    return _freshness(partial(read_version, home), table, now_ms, read_statuses(home))


def table_statuses(home: Home, now_ms: int) -> list[TableStatus]:
    """Return the statuses of all tables. Each version is read once: in an object store that takes a tenth of a second."""
    statuses = read_statuses(home)
    # Dependent tables first: the version of an input that is read after them is not older than the one that they contain.
    versions = {table.name: read_version(home, table) for table in reversed(tables.ALL_TABLES)}

    def version_of(table: TableSchema) -> TableVersion | None:
        return versions[table.name]

    return [
        TableStatus(table, version_of(table), _freshness(version_of, table, now_ms, statuses))
        for table in tables.ALL_TABLES
    ]


def _freshness(
    version_of: Callable[[TableSchema], TableVersion | None],
    table: TableSchema,
    now_ms: int,
    statuses: Mapping[str, SourceStatus],
) -> Freshness:
    version = version_of(table)
    if version is None:
        return Freshness(None, (table_contents.no_data(table),))
    warnings: list[Text] = []
    by_name = {candidate.name: candidate for candidate in tables.ALL_TABLES}
    caught_up_ms: list[int | None] = []
    for name, applied_version in version.applied.items():
        input_table = by_name.get(name)
        # Not a table, so a streaming query: `SOURCE CHECKPOINT_ID`.
        if input_table is None:
            source = name.split(" ")[0]
            warnings.extend(_source_warnings(source, statuses, now_ms))
            caught_up_ms.append(statuses[source].caught_up_ms if source in statuses else None)
            continue
        input_version = version_of(input_table)
        # A version above the current one means that the table before was deleted and computed again.
        if input_version is not None and (
            applied_version > input_version.version
            or any(file.added_version > applied_version for file in input_version.files)
        ):
            warnings.append(table_contents.outdated(table, input_table))
            caught_up_ms.append(None)
        input_freshness = _freshness(version_of, input_table, now_ms, statuses)
        warnings.extend(input_freshness.warnings)
        caught_up_ms.append(input_freshness.caught_up_ms)
    known_times = [ms for ms in caught_up_ms if ms is not None]
    # One source that has not caught up leaves the whole table behind.
    all_caught_up_ms = min(known_times) if known_times and len(known_times) == len(caught_up_ms) else None
    times = [ms for ms in (version.as_of_ms, all_caught_up_ms) if ms is not None]
    return Freshness(max(times, default=None), tuple(dict.fromkeys(warnings)), all_caught_up_ms)


def _source_warnings(source: str, statuses: Mapping[str, SourceStatus], now_ms: int) -> list[Text]:
    """Return the reasons why tables of a source may be incomplete."""
    status, name = statuses.get(source), table_contents.source_contents(source)
    if status is None:
        return [text("%(source)s were never read: is `ariane pipeline run` running?", source=name)]
    warnings = []
    if status.unavailable is not None:
        warnings.append(text("%(source)s wait for a server: %(error)s", source=name, error=status.unavailable))
    if status.pending is None:
        warnings.append(text("%(source)s: number of pending messages unknown", source=name))
    elif status.pending and (status.caught_up_ms is None or status.at_ms - status.caught_up_ms > PENDING_MS):
        # A source that caught up recently only has newer messages, which wait for its next micro-batch.
        warnings.append(text("%(source)s: %(count)s pending messages", source=name, count=status.pending))
    if now_ms - status.at_ms > SILENT_MS:
        warnings.append(
            text(
                "%(source)s have not been read for %(minutes)s minutes: is `ariane pipeline run` running?",
                source=name,
                minutes=(now_ms - status.at_ms) // 60_000,
            )
        )
    return warnings
