"""Metrics of the pipeline: progress of its sources and freshness of its tables, read from its home directory at each scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import msgspec

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.metrics import families
from ariane.metrics.families import Family, Metric, MetricSample, MetricTable
from ariane.pipeline import restarts
from ariane.reports.tables.pipeline_status import REJECTS, Freshness, SourceStatus, read_statuses, table_statuses
from ariane.tables.table_format import TableVersion
from ariane.tables.table_home import Home


class PipelineState(msgspec.Struct, frozen=True):
    """Sources that have run, tables that have data, and retries of this process, by name."""

    sources: dict[str, SourceStatus]
    tables: dict[str, Freshness]
    versions: dict[str, TableVersion]
    retries: dict[str, int]


def _source(value: Callable[[SourceStatus], float | None]) -> Callable[[PipelineState], Iterator[MetricSample]]:
    def samples(state: PipelineState) -> Iterator[MetricSample]:
        for name, status in state.sources.items():
            if (number := value(status)) is not None:
                yield (name,), number

    return samples


def _as_of(state: PipelineState) -> Iterator[MetricSample]:
    for name, fresh in state.tables.items():
        if fresh.as_of_ms is not None:
            yield (name,), fresh.as_of_ms / 1000


def _complete(state: PipelineState) -> Iterator[MetricSample]:
    for name, fresh in state.tables.items():
        yield (name,), int(fresh.is_complete)


def _table(value: Callable[[TableVersion], float]) -> Callable[[PipelineState], Iterator[MetricSample]]:
    def samples(state: PipelineState) -> Iterator[MetricSample]:
        for name, version in state.versions.items():
            yield (name,), value(version)

    return samples


def _rejected(state: PipelineState) -> Iterator[MetricSample]:
    for source, table in REJECTS.items():
        if table.name in state.versions:
            yield (source,), state.versions[table.name].rows


def _retries(state: PipelineState) -> Iterator[MetricSample]:
    for task, count in state.retries.items():
        yield (task,), count


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


PIPELINE_METRICS: MetricTable = {
    Metric("ariane_pipeline_table_as_of_timestamp_seconds", "gauge", "Time up to which a table contains everything.",
           ("table",), "s since the epoch"): _as_of,
    Metric("ariane_pipeline_table_complete", "gauge", "Whether no data is missing in a table up to that time.", ("table",)):
        _complete,
    Metric("ariane_pipeline_table_rows", "gauge", "Rows of a table.", ("table",)): _table(lambda version: version.rows),
    Metric("ariane_pipeline_table_files", "gauge", "Files of a table.", ("table",)):
        _table(lambda version: len(version.files)),
    Metric("ariane_pipeline_table_bytes", "gauge", "Size of the files of a table.", ("table",), "bytes"):
        _table(lambda version: sum(file.bytes for file in version.files)),
    Metric("ariane_pipeline_source_rejected_records", "gauge", "Records of a source that cannot be decoded, within the retention.",
           ("source",)): _rejected,
    Metric("ariane_pipeline_source_pending_messages", "gauge", "Messages of a source that are in no table yet.", ("source",),
           "messages"): _source(lambda status: status.pending),
    Metric("ariane_pipeline_source_available", "gauge", "Whether the servers of a source respond.", ("source",)):
        _source(lambda status: int(status.unavailable is None)),
    Metric("ariane_pipeline_source_updated_timestamp_seconds", "gauge", "Time when a source was last read.", ("source",),
           "s since the epoch"): _source(lambda status: status.at_ms / 1000),
    Metric("ariane_pipeline_source_batch_duration_seconds", "gauge", "Duration of the last micro-batch.", ("source",), "s"):
        _source(lambda status: _seconds(status.batch_ms)),
    Metric("ariane_pipeline_source_caught_up_timestamp_seconds", "gauge", "Last time when no message of a source was pending.",
           ("source",), "s since the epoch"): _source(lambda status: _seconds(status.caught_up_ms)),
    Metric("ariane_pipeline_retries_total", "counter", "Retries after transient faults since the start of the process.", ("task",)):
        _retries,
}  # fmt: skip


class PipelineSource:
    """Reads the metrics of the pipeline with tables in `home`."""

    def __init__(self, home: Home, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._home = home
        self._clock = clock

    async def families(self, timeout_s: float | None) -> list[Family]:
        """Return the families of the pipeline."""
        return families.read(PIPELINE_METRICS, await asyncio.to_thread(self._read))

    def _read(self) -> PipelineState:
        states = table_statuses(self._home, self._clock.now_ms())
        return PipelineState(
            read_statuses(self._home),
            {state.table.name: state.freshness for state in states if state.freshness.as_of_ms is not None},
            {state.table.name: state.version for state in states if state.version is not None},
            dict(restarts.retries_by_task),
        )
