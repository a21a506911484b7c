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
from ariane.pipeline.incremental import Fold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Appended(NamedTuple):
    """A base table and how its rows (with `slot`) come from a micro-batch that `Source.prepare` has prepared."""

    table: t.Table
    rows: Callable[[DataFrame], DataFrame]


class Source(NamedTuple):
    """A stream of messages; its name is that of its checkpoint."""

    name: str
    options: Mapping[str, str]
    """Of format("rocketmq"): which topics. Where the cluster is and who asks is added by `run`."""
    schema: str
    """The columns that are read."""
    appended: tuple[Appended, ...]
    prepare: Callable[[DataFrame], DataFrame] = lambda batch: batch
    """Work on a micro-batch that all its tables share; what it gives is kept until all of them have it."""


class Job(NamedTuple):
    """What `ariane pipeline run NAME` does."""

    name: str
    sources: tuple[Source, ...]
    folds: tuple[Fold, ...]
    """In an order in which each comes after those whose tables it reads."""

    @property
    def tables(self) -> tuple[t.Table, ...]:
        return (
            *(one.table for source in self.sources for one in source.appended),
            *(fold.table for fold in self.folds),
        )


TRACES = Source(
    "traces",
    {"topic": TRACE_TOPIC},
    "body BINARY, broker STRING, queue_id INT, queue_offset BIGINT, store_timestamp TIMESTAMP, born_host STRING",
    (Appended(t.TRACE_EVENTS, trace_decoding.trace_events), Appended(t.TRACE_REJECTS, trace_decoding.trace_rejects)),
)
SAMPLES = Source(
    "samples",
    {"topic": SAMPLES_TOPIC},
    samples.MESSAGE,
    (
        Appended(t.SAMPLES_BROKERS, samples.brokers),
        Appended(t.SAMPLES_QUEUES, samples.queues),
        Appended(t.SAMPLES_COUNTERS, samples.counters),
        Appended(t.SAMPLES_REJECTS, samples.rejects),
    ),
    samples.records,
)

RECORDS = Source(
    "messages",
    messages.options(),
    messages.SCHEMA,
    (Appended(t.MESSAGES, messages.headers), Appended(t.PLACES, messages.places)),
    messages.records,
)

# Messages are read by other jobs, which may not run: as of when these are, say the traces.
OF_TRACES = (
    Fold(t.CLOCKS, (t.TRACE_EVENTS, t.MESSAGES), clocks.clocks, timed_by=(t.TRACE_EVENTS,)),
    Fold(t.MESSAGE_KEYS, (t.TRACE_EVENTS,), message_keys.message_keys, tend=message_keys.merge_days),
    Fold(t.JOURNEYS, (t.TRACE_EVENTS, t.MESSAGES, t.CLOCKS), journeys.journeys, timed_by=(t.TRACE_EVENTS,)),
)
OF_TRAFFIC = (
    Fold(t.TRAFFIC, (t.TRACE_EVENTS, t.JOURNEYS), traffic.traffic),
    Fold(t.LATENCIES, (t.TRAFFIC,), traffic.latencies),
    Fold(t.SLOW_MESSAGES, (t.JOURNEYS,), traffic.slow_messages),
)
OF_SAMPLES = Fold(
    t.CONSUMPTION, (t.SAMPLES_BROKERS, t.SAMPLES_QUEUES, t.SAMPLES_COUNTERS), consumption.consumption, before=1
)
OF_HEALTH = Fold(t.HEALTH, (t.TRACE_EVENTS, t.MESSAGES), health.health, before=1)
# Marks may have nothing for days, and traces are read by another job: as of when these are, say the messages.
OF_PLACES = Fold(t.MARKS, (t.PLACES,), messages.marks, routed=True)
OF_DELAYS = Fold(t.DELAYS, (t.MESSAGES, t.MARKS), delays.delays, timed_by=(t.MESSAGES,))
OF_HALVES = Fold(
    t.TRANSACTIONS, (t.MESSAGES, t.MARKS, t.TRACE_EVENTS), transactions.transactions, timed_by=(t.MESSAGES,)
)

JOBS = {
    job.name: job
    for job in (
        Job("trace", (TRACES,), OF_TRACES),
        Job("traffic", (TRACES,), (*OF_TRACES, *OF_TRAFFIC)),
        Job("lag", (SAMPLES,), (OF_SAMPLES,)),
        Job("health", (TRACES, RECORDS), (OF_HEALTH,)),
        Job("delay", (RECORDS,), (OF_PLACES, OF_DELAYS)),
        Job("transactions", (RECORDS,), (OF_PLACES, OF_HALVES)),
    )
}


def joined(names: tuple[str, ...]) -> Job:
    """One job that does what these do; what they share is done once."""
    jobs = [JOBS[name] for name in names]
    sources = {source.name: source for job in jobs for source in job.sources}
    folds = {fold.table.name: fold for job in jobs for fold in job.folds}
    return Job("+".join(names), tuple(sources.values()), tuple(folds.values()))


def with_topics(job: Job, traces: str, samples: str) -> Job:
    """The job for a cluster with traces and samples in these topics, which are no application's."""
    options = {
        TRACES.name: {"topic": traces},
        SAMPLES.name: {"topic": samples},
        RECORDS.name: messages.options(traces, samples),
    }
    return job._replace(sources=tuple(source._replace(options=options[source.name]) for source in job.sources))


def with_delay_levels(job: Job, levels_ms: Sequence[int]) -> Job:
    """The job for brokers with another messageDelayLevel."""
    folds = (
        fold._replace(work=partial(delays.delays, levels_ms=levels_ms)) if fold.table == t.DELAYS else fold
        for fold in job.folds
    )
    return job._replace(folds=tuple(folds))
