"""The jobs by name: what each reads, and the tables that follow. A new job is a new line here.

topics ─ Source ─ Appended ─→ base tables ─ Fold ─→ tables that follow from them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ariane.model.topic import TRACE_TOPIC
from ariane.pipeline import clocks, decode, journeys, keys
from ariane.pipeline.folds import Fold
from ariane.tables import CLOCKS, JOURNEYS, MESSAGE_KEYS, MESSAGES, TRACE_EVENTS, TRACE_REJECTS, Table

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

JOBS = {
    job.name: job
    for job in (
        Job(
            "trace",
            "message traces → journeys of messages",
            (TRACES,),
            (
                Fold(CLOCKS, (TRACE_EVENTS, MESSAGES), clocks.clocks),
                Fold(MESSAGE_KEYS, (TRACE_EVENTS,), keys.message_keys, tend=keys.merge_days),
                Fold(JOURNEYS, (TRACE_EVENTS, MESSAGES, CLOCKS), journeys.journeys),
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
