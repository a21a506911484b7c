"""The jobs by name: their sources and tables. A new job needs a line here and one in `ariane.cli.options.command_names`.

topics ─ TopicSource ─→ base tables ─ IncrementalTable ─→ tables computed from them
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ariane import tables as t
from ariane.model.topic import SAMPLES_TOPIC, TRACE_TOPIC
from ariane.pipeline.publishing import minute_patches, patches
from ariane.pipeline.publishing.decoded_batches import Decode
from ariane.pipeline.publishing.few_rows import Link, TimedInput
from ariane.pipeline.publishing.incremental import IncrementalTable
from ariane.pipeline.tables import (
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


class TopicSource(NamedTuple):
    """A stream of messages. Its name is also that of its checkpoint."""

    name: str
    options: Mapping[str, str]
    """Options of format("rocketmq") that select topics. `run` adds name servers and credentials."""
    schema: str
    """Columns to read."""
    tables: tuple[t.TableSchema, ...]
    decode: Decode
    """Returns the rows of these tables from messages with the columns of `schema`."""
    limits: Mapping[str, str] = {}
    """Options that limit a micro-batch of a backlog. Most of them read less (`round_pacing.BatchSizer`)."""


class PipelineJob(NamedTuple):
    """A job of `ariane pipeline run NAME`."""

    name: str
    sources: tuple[TopicSource, ...]
    incremental_tables: tuple[IncrementalTable, ...]
    """Computed tables, in an order in which each table follows its inputs."""

    @property
    def tables(self) -> tuple[t.TableSchema, ...]:
        return (
            *(table for source in self.sources for table in source.tables),
            *(table.table for table in self.incremental_tables),
        )


TRACES = TopicSource(
    "traces",
    {"topic": TRACE_TOPIC},
    "body BINARY, broker STRING, queue_id INT, queue_offset BIGINT, store_timestamp TIMESTAMP, born_host STRING, "
    "properties MAP<STRING, STRING>",
    (t.TRACE_EVENTS, t.TRACE_REJECTS),
    trace_decoding.decode,
    # By size: a trace message has one record or many.
    limits={"maxBytesPerTrigger": "64m"},
)
SAMPLES = TopicSource(
    "samples",
    {"topic": SAMPLES_TOPIC},
    samples.MESSAGE,
    (t.SAMPLES_BROKERS, t.SAMPLES_QUEUES, t.SAMPLES_COUNTERS, t.SAMPLES_REJECTS),
    samples.decode,
)

RECORDS = TopicSource(
    "messages",
    messages.options(),
    messages.SCHEMA,
    (t.MESSAGES, t.RECORD_POSITIONS),
    messages.decode,
    limits={"maxOffsetsPerTrigger": "400000"},
)

# The as-of time comes from the traces: `messages` belongs to other jobs, which may not run.
TRACE_TABLES = (
    IncrementalTable(
        t.CLOCKS,
        (t.TRACE_EVENTS, t.MESSAGES),
        clocks.clocks,
        freshness_inputs=(t.TRACE_EVENTS,),
        patch=partial(minute_patches.by_minute, events=t.TRACE_EVENTS, series=clocks.SHARED_CLOCK[1:]),
    ),
    IncrementalTable(
        t.MESSAGE_KEYS,
        (t.TRACE_EVENTS,),
        message_keys.message_keys,
        is_by_message=True,
        maintain=message_keys.merge_days,
    ),
    IncrementalTable(
        t.JOURNEYS,
        (t.TRACE_EVENTS, t.MESSAGES, t.CLOCKS),
        journeys.journeys,
        freshness_inputs=(t.TRACE_EVENTS,),
        is_by_message=True,
        timed=TimedInput(t.CLOCKS, clocks.COUNTS, t.TRACE_EVENTS, "trace_stored_at"),
    ),
)
TRAFFIC_TABLES = (
    IncrementalTable(
        t.TRAFFIC,
        (t.TRACE_EVENTS, t.JOURNEYS),
        traffic.traffic,
        patch=partial(patches.by_message, combination=traffic.COMBINATION, rewritten=(t.JOURNEYS.name,)),
    ),
    IncrementalTable(t.LATENCIES, (t.TRAFFIC,), traffic.latencies),
    IncrementalTable(
        t.SLOW_MESSAGES,
        (t.JOURNEYS,),
        traffic.slow_messages,
        patch=partial(patches.by_message, combination=traffic.SLOWEST, rewritten=(t.JOURNEYS.name,)),
    ),
)
CONSUMPTION_TABLE = IncrementalTable(
    t.CONSUMPTION, (t.SAMPLES_BROKERS, t.SAMPLES_QUEUES, t.SAMPLES_COUNTERS), consumption.consumption, lookback=1
)
HEALTH_TABLE = IncrementalTable(
    t.HEALTH,
    (t.TRACE_EVENTS, t.MESSAGES),
    health.health,
    lookback=1,
    link=Link(t.MESSAGES, ("properties", "keys"), health.order_keys),
    patch=partial(patches.by_message, combination=health.COMBINATION),
)
# The as-of time comes from the messages: there may be no marks for days, and traces belong to another job.
MARKS_TABLE = IncrementalTable(t.POSITION_MARKS, (t.RECORD_POSITIONS,), messages.position_marks, repartitioned=True)
DELAYS_TABLE = IncrementalTable(
    t.DELAYS,
    (t.MESSAGES, t.POSITION_MARKS),
    delays.delays,
    freshness_inputs=(t.MESSAGES,),
    is_by_message=True,
)
TRANSACTIONS_TABLE = IncrementalTable(
    t.TRANSACTIONS,
    (t.MESSAGES, t.POSITION_MARKS, t.TRACE_EVENTS),
    transactions.transactions,
    freshness_inputs=(t.MESSAGES,),
    is_by_message=True,
)

JOBS = {
    job.name: job
    for job in (
        PipelineJob("trace", (TRACES,), TRACE_TABLES),
        # With the tables of `trace`, which its own are computed from.
        PipelineJob("traffic", (TRACES,), (*TRACE_TABLES, *TRAFFIC_TABLES)),
        PipelineJob("lag", (SAMPLES,), (CONSUMPTION_TABLE,)),
        PipelineJob("health", (TRACES, RECORDS), (HEALTH_TABLE,)),
        PipelineJob("delay", (RECORDS,), (MARKS_TABLE, DELAYS_TABLE)),
        PipelineJob("transactions", (RECORDS,), (MARKS_TABLE, TRANSACTIONS_TABLE)),
        # After each round `otel.journey_exporter` exports the journeys of messages without a trace context of their own.
        PipelineJob("otel", (TRACES, RECORDS), TRACE_TABLES),
    )
}


def combine_jobs(names: tuple[str, ...]) -> PipelineJob:
    """Return one job that does the work of several; shared sources and tables are processed once."""
    jobs = [JOBS[name] for name in names]
    sources = {source.name: source for job in jobs for source in job.sources}
    computed = {table.table.name: table for job in jobs for table in job.incremental_tables}
    return PipelineJob("+".join(names), tuple(sources.values()), tuple(computed.values()))


def with_topics(job: PipelineJob, traces: str, samples: str) -> PipelineJob:
    """Return the job for a cluster whose traces and samples are in these topics."""
    options = {
        TRACES.name: {"topic": traces},
        SAMPLES.name: {"topic": samples},
        RECORDS.name: messages.options(traces, samples),
    }
    return job._replace(sources=tuple(source._replace(options=options[source.name]) for source in job.sources))


def with_delay_levels(job: PipelineJob, levels_ms: Sequence[int]) -> PipelineJob:
    """Return the job for brokers with another messageDelayLevel, in ms."""
    computed = (
        dataclasses.replace(table, compute=partial(delays.delays, levels_ms=levels_ms))
        if table.table == t.DELAYS
        else table
        for table in job.incremental_tables
    )
    return job._replace(incremental_tables=tuple(computed))
