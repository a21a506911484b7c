"""The jobs by name: what each reads, and the tables that follow. A new job is a new line here and in `ariane.cli.command_names`.

topics ─ Source ─ Appended ─→ base tables ─ Fold ─→ tables that follow from them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ariane import tables as t
from ariane.model.topic import SAMPLES_TOPIC, TRACE_TOPIC
from ariane.pipeline import (
    clocks,
    consumption,
    delays,
    health,
    journeys,
    message_keys,
    messages,
    samples,
    trace_decoding,
    traffic,
    transactions,
)
from ariane.pipeline.incremental import IncrementalTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class AppendTable(NamedTuple):
    """A base table and how its rows (with `slot`) come from a micro-batch that `Source.prepare` has prepared."""

    table: t.TableSchema
    rows: Callable[[DataFrame], DataFrame]


class TopicSource(NamedTuple):
    """A stream of messages; its name is that of its checkpoint."""

    name: str
    options: Mapping[str, str]
    """Of format("rocketmq"): which topics. Where the cluster is and who asks is added by `run`."""
    schema: str
    """The columns that are read."""
    appended: tuple[AppendTable, ...]
    prepare: Callable[[DataFrame], DataFrame] = lambda batch: batch
    """Work on a micro-batch that all its tables share; what it gives is kept until all of them have it."""


class PipelineJob(NamedTuple):
    """What `ariane pipeline run NAME` does."""

    name: str
    sources: tuple[TopicSource, ...]
    folds: tuple[IncrementalTable, ...]
    """In an order in which each comes after those whose tables it reads."""

    @property
    def tables(self) -> tuple[t.TableSchema, ...]:
        return (
            *(one.table for source in self.sources for one in source.appended),
            *(fold.table for fold in self.folds),
        )


TRACES = TopicSource(
    "traces",
    {"topic": TRACE_TOPIC},
    "body BINARY, broker STRING, queue_id INT, queue_offset BIGINT, store_timestamp TIMESTAMP, born_host STRING",
    (
        AppendTable(t.TRACE_EVENTS, trace_decoding.trace_events),
        AppendTable(t.TRACE_REJECTS, trace_decoding.trace_rejects),
    ),
)
SAMPLES = TopicSource(
    "samples",
    {"topic": SAMPLES_TOPIC},
    samples.MESSAGE,
    (
        AppendTable(t.SAMPLES_BROKERS, samples.brokers),
        AppendTable(t.SAMPLES_QUEUES, samples.queues),
        AppendTable(t.SAMPLES_COUNTERS, samples.counters),
        AppendTable(t.SAMPLES_REJECTS, samples.rejects),
    ),
    samples.records,
)

RECORDS = TopicSource(
    "messages",
    messages.options(),
    messages.SCHEMA,
    (AppendTable(t.MESSAGES, messages.headers), AppendTable(t.PLACES, messages.places)),
    messages.records,
)

# Messages are read by other jobs, which may not run: as of when these are, say the traces.
OF_TRACES = (
    IncrementalTable(t.CLOCKS, (t.TRACE_EVENTS, t.MESSAGES), clocks.clocks, timed_by=(t.TRACE_EVENTS,)),
    IncrementalTable(t.MESSAGE_KEYS, (t.TRACE_EVENTS,), message_keys.message_keys, tend=message_keys.merge_days),
    IncrementalTable(t.JOURNEYS, (t.TRACE_EVENTS, t.MESSAGES, t.CLOCKS), journeys.journeys, timed_by=(t.TRACE_EVENTS,)),
)
OF_TRAFFIC = (
    IncrementalTable(t.TRAFFIC, (t.TRACE_EVENTS, t.JOURNEYS), traffic.traffic),
    IncrementalTable(t.LATENCIES, (t.TRAFFIC,), traffic.latencies),
    IncrementalTable(t.SLOW_MESSAGES, (t.JOURNEYS,), traffic.slow_messages),
)
OF_SAMPLES = IncrementalTable(
    t.CONSUMPTION, (t.SAMPLES_BROKERS, t.SAMPLES_QUEUES, t.SAMPLES_COUNTERS), consumption.consumption, before=1
)
OF_HEALTH = IncrementalTable(t.HEALTH, (t.TRACE_EVENTS, t.MESSAGES), health.health, before=1)
# Marks may have nothing for days, and traces are read by another job: as of when these are, say the messages.
OF_PLACES = IncrementalTable(t.MARKS, (t.PLACES,), messages.marks, routed=True)
OF_DELAYS = IncrementalTable(t.DELAYS, (t.MESSAGES, t.MARKS), delays.delays, timed_by=(t.MESSAGES,))
OF_HALVES = IncrementalTable(
    t.TRANSACTIONS, (t.MESSAGES, t.MARKS, t.TRACE_EVENTS), transactions.transactions, timed_by=(t.MESSAGES,)
)

JOBS = {
    job.name: job
    for job in (
        PipelineJob("trace", (TRACES,), OF_TRACES),
        PipelineJob("traffic", (TRACES,), (*OF_TRACES, *OF_TRAFFIC)),
        PipelineJob("lag", (SAMPLES,), (OF_SAMPLES,)),
        PipelineJob("health", (TRACES, RECORDS), (OF_HEALTH,)),
        PipelineJob("delay", (RECORDS,), (OF_PLACES, OF_DELAYS)),
        PipelineJob("transactions", (RECORDS,), (OF_PLACES, OF_HALVES)),
    )
}


def joined(names: tuple[str, ...]) -> PipelineJob:
    """One job that does what these do; what they share is done once."""
    jobs = [JOBS[name] for name in names]
    sources = {source.name: source for job in jobs for source in job.sources}
    folds = {fold.table.name: fold for job in jobs for fold in job.folds}
    return PipelineJob("+".join(names), tuple(sources.values()), tuple(folds.values()))


def with_topics(job: PipelineJob, traces: str, samples: str) -> PipelineJob:
    """The job for a cluster with traces and samples in these topics, which are no application's."""
    options = {
        TRACES.name: {"topic": traces},
        SAMPLES.name: {"topic": samples},
        RECORDS.name: messages.options(traces, samples),
    }
    return job._replace(sources=tuple(source._replace(options=options[source.name]) for source in job.sources))


def with_delay_levels(job: PipelineJob, levels_ms: Sequence[int]) -> PipelineJob:
    """The job for brokers with another messageDelayLevel."""
    folds = (
        fold._replace(work=partial(delays.delays, levels_ms=levels_ms)) if fold.table == t.DELAYS else fold
        for fold in job.folds
    )
    return job._replace(folds=tuple(folds))
