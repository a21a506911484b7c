"""The jobs by name: what each reads, and the tables that follow. A new job is a new line here.

topics ─ Source ─ Appended ─→ base tables ─ Fold ─→ tables that follow from them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ariane.model.topic import SAMPLES_TOPIC, TRACE_TOPIC
from ariane.pipeline import consumption, decode, delays, health, journeys, messages, samples, transactions
from ariane.pipeline.folds import Fold
from ariane.tables import (
    CONSUMPTION,
    DELAYS,
    HEALTH,
    JOURNEYS,
    MARKS,
    MESSAGES,
    PLACES,
    SAMPLES_BROKERS,
    SAMPLES_COUNTERS,
    SAMPLES_QUEUES,
    SAMPLES_REJECTS,
    TRACE_EVENTS,
    TRACE_REJECTS,
    TRANSACTIONS,
    Table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Appended(NamedTuple):
    """A base table and how its rows (with `slot`) come from a micro-batch that `Source.prepare` has prepared."""

    table: Table
    rows: Callable[[DataFrame], DataFrame]


class Source(NamedTuple):
    """A stream of messages; its name is that of its checkpoint."""

    name: str
    options: Mapping[str, str]
    """Of format("rocketmq"): which topics. Where the cluster is and who asks is added by `run`."""
    schema: str
    """The columns that are read."""
    prepare: Callable[[DataFrame], DataFrame]
    """Work on a micro-batch that all its tables share."""
    appended: tuple[Appended, ...]


class Job(NamedTuple):
    """What `ariane pipeline run NAME` does."""

    name: str
    meaning: str
    sources: tuple[Source, ...]
    folds: tuple[Fold, ...]
    """In an order in which each comes after those whose tables it reads."""

    @property
    def tables(self) -> tuple[Table, ...]:
        return (
            *(one.table for source in self.sources for one in source.appended),
            *(fold.table for fold in self.folds),
        )


TRACES = Source(
    "traces",
    {"topic": TRACE_TOPIC},
    "body BINARY, broker STRING, queue_id INT, queue_offset BIGINT, store_timestamp TIMESTAMP, born_host STRING",
    decode.records,
    (Appended(TRACE_EVENTS, decode.trace_events), Appended(TRACE_REJECTS, decode.trace_rejects)),
)

SAMPLES = Source(
    "samples",
    {"topic": SAMPLES_TOPIC},
    samples.MESSAGE,
    samples.records,
    (
        Appended(SAMPLES_BROKERS, samples.brokers),
        Appended(SAMPLES_QUEUES, samples.queues),
        Appended(SAMPLES_COUNTERS, samples.counters),
        Appended(SAMPLES_REJECTS, samples.rejects),
    ),
)

RECORDS = Source(
    "messages",
    messages.OPTIONS,
    messages.SCHEMA,
    messages.records,
    (Appended(MESSAGES, messages.headers), Appended(PLACES, messages.places)),
)
MARKED = Fold(MARKS, (PLACES,), messages.marks, routed=True)

JOBS = {
    job.name: job
    for job in (
        Job(
            "trace",
            "message traces → journeys of messages",
            (TRACES,),
            (Fold(JOURNEYS, (TRACE_EVENTS,), journeys.journeys),),
        ),
        Job(
            "lag",
            "samples of `ariane collect` → true TPS and lag of groups",
            (SAMPLES,),
            (
                Fold(
                    CONSUMPTION, (SAMPLES_BROKERS, SAMPLES_QUEUES, SAMPLES_COUNTERS), consumption.consumption, before=1
                ),
            ),
        ),
        Job(
            "health",
            "traces and stored messages → duplicates, disorder, clocks, lost and dead messages",
            (TRACES,),
            (Fold(HEALTH, (TRACE_EVENTS, MESSAGES), health.health, before=1),),
        ),
        Job(
            "delay",
            "delayed messages → asked against real delivery times",
            (RECORDS,),
            (MARKED, Fold(DELAYS, (MESSAGES, MARKS), delays.delays, timed_by=(MESSAGES,))),
        ),
        Job(
            "transactions",
            "half messages, their checks and ends → transactions",
            (RECORDS,),
            (
                MARKED,
                Fold(TRANSACTIONS, (MESSAGES, MARKS, TRACE_EVENTS), transactions.transactions, timed_by=(MESSAGES,)),
            ),
        ),
    )
}


def joined(names: tuple[str, ...]) -> Job:
    """One job that does what these do; what they share is done once."""
    jobs = [JOBS[name] for name in names]
    sources = {source.name: source for job in jobs for source in job.sources}
    folds = {fold.table.name: fold for job in jobs for fold in job.folds}
    return Job("+".join(names), "", tuple(sources.values()), tuple(folds.values()))


def with_trace_topic(job: Job, topic: str) -> Job:
    """The job over another topic of traces."""
    sources = (
        source._replace(options={"topic": topic}) if source.name == TRACES.name else source for source in job.sources
    )
    return job._replace(sources=tuple(sources))


def with_samples_topic(job: Job, topic: str) -> Job:
    """The job over another topic of samples."""
    sources = (
        source._replace(options={"topic": topic}) if source.name == SAMPLES.name else source for source in job.sources
    )
    return job._replace(sources=tuple(sources))


def with_delay_levels(job: Job, levels_ms: Sequence[int]) -> Job:
    """The job for brokers with another messageDelayLevel."""
    folds = (
        fold._replace(work=partial(delays.delays, levels_ms=levels_ms)) if fold.table == DELAYS else fold
        for fold in job.folds
    )
    return job._replace(folds=tuple(folds))
