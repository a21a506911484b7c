"""Samples of the metrics collector → samples_brokers, samples_queues, samples_counters, samples_rejects.

    message ─ _read ─┬→ sample ─→ rows of its broker, queues and counters
                     └→ reason ─→ row of samples_rejects

No content of a message can end the pipeline. Rows are stored in the bucket of the sample's own time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice, repeat, zip_longest
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa

from ariane.metrics_collector.sample import SCHEMA
from ariane.pipeline.tables.bucket_columns import EARLIEST_MS, LATEST_MS, buckets_of_times, ms_of_times
from ariane.tables import SAMPLES_BROKERS, SAMPLES_COUNTERS, SAMPLES_QUEUES, SAMPLES_REJECTS, TableSchema
from ariane.tables.arrow_types import arrow_schema

MESSAGE = "body BINARY, broker STRING, queue_id INT, queue_offset BIGINT, store_timestamp TIMESTAMP"

# Samples are stored immediately, or after a wait for a broker. A larger difference means a wrong clock.
CLOCK_MAX_MS = 86_400_000
ROUND_MAX_MS = 3_600_000  # from the start of a round to its last response
BODY_MAX = 1_000  # characters of a rejected body
# A name is repeated in each row of a sample. Without limits, rows of a hostile message need a multiple of the memory.
NAME_MAX = 300  # characters; the longest valid name is that of a retry topic
QUEUES_MAX = 100_000  # of a message; the collector sends up to 20,000, and more only of a single topic
CHUNK_ROWS = 1_000_000  # an Arrow array has at most 2 GiB of text: 1,000,000 names of `NAME_MAX` characters fit
QUEUE_ID_MAX = 2**31 - 1

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]


class Runtime(msgspec.Struct):
    """Runtime information of a broker; the names are also those of columns, except `boot_ms`."""

    boot_ms: Int | None = None
    put_total: Int | None = None
    get_total: Int | None = None
    log_min: Int | None = None
    log_max: Int | None = None
    dispatch_behind_bytes: Int | None = None


class Skipped(msgspec.Struct):
    """Numbers of items that a round has skipped; the columns are `skipped_topics` and so on."""

    topics: Int | None = None
    groups: Int | None = None
    counters: Int | None = None
    ages: Int | None = None


class Entry(msgspec.Struct):
    """Entry of one of the lists of a sample."""

    topic: Name | None = None
    at_ms: Int | None = None


class TopicEntry(Entry):
    """Queues of a topic: id, min and max offset. A shorter list lacks the last ones."""

    queues: list[list[Int | None]] | None = None


class GroupEntry(TopicEntry):
    """Progress of a group: id, committed, min and max offset, age in ms. A shorter list lacks the last ones."""

    group: Name | None = None
    bounds_at_ms: Int | None = None


class CounterEntry(Entry):
    """Last minute of a statistic."""

    name: Name | None = None
    group: Name | None = None
    sum: Int | None = None
    tps: float | None = None


class AnySample(msgspec.Struct):
    """A sample of any schema."""

    schema: Int | None = None


class ReceivedSample(AnySample):
    """What the pipeline reads of `ariane.metrics_collector.sample.Sample`; any member may be missing."""

    collector: Name | None = None
    part: Int | None = None
    at_ms: Int | None = None
    interval_ms: Int | None = None
    duration_ms: Int | None = None
    requests: Int | None = None
    cluster: str | None = None
    broker: Name | None = None
    broker_id: Int | None = None
    addr: str | None = None
    error: str | None = None
    runtime: Runtime | None = None
    topics: list[TopicEntry] | None = None
    groups: list[GroupEntry] | None = None
    counters: list[CounterEntry] | None = None
    skipped: Skipped | None = None
    dropped_samples: Int | None = None
    failed_requests: list[str | None] | None = None


# Source of a row: number of the message in the micro-batch, its sample, and the object with the `at_ms` of the row.
Row = tuple[int, ReceivedSample, ReceivedSample | Entry]

_NEEDED = ("collector", "at_ms", "broker", "broker_id")
_SAMPLES = msgspec.json.Decoder(ReceivedSample)
_SCHEMAS = msgspec.json.Decoder(AnySample)


def decode(messages: pa.Table) -> dict[str, pa.Table]:
    """Decode samples.

    Args:
        messages: rows of a micro-batch, with the columns of `MESSAGE`. Only `body` may be null.

    Returns:
        New rows of SAMPLES_BROKERS, SAMPLES_QUEUES, SAMPLES_COUNTERS and SAMPLES_REJECTS by the table's name, with the table's
        columns and `bucket`. A message yields either one reject, or at most one broker (none if it continues a split sample)
        and any number of queues and counters.
    """
    bodies = messages["body"].to_pylist()
    texts = [None if body is None else body.decode(errors="replace") for body in bodies]
    stored_at = messages["store_timestamp"]
    samples: list[tuple[int, ReceivedSample]] = []
    reasons: dict[int, str] = {}
    for number, (text, stored_ms) in enumerate(zip(texts, ms_of_times(stored_at).tolist(), strict=True)):
        read = _read(text or "", stored_ms)
        if isinstance(read, str):
            reasons[number] = read
        else:
            samples.append((number, read))
    rejected = messages.take(pa.array(reasons, pa.int64()))
    rejects = {name: rejected[name] for name in ("broker", "queue_id", "queue_offset")} | {
        "body": [None if (text := texts[number]) is None else text[:BODY_MAX] for number in reasons],
        "reason": list(reasons.values()),
        "stored_at": rejected["store_timestamp"],
        "bucket": buckets_of_times(ms_of_times(rejected["store_timestamp"])),
    }
    return {
        SAMPLES_BROKERS.name: _brokers(samples, stored_at),
        SAMPLES_QUEUES.name: _queues(samples, stored_at),
        SAMPLES_COUNTERS.name: _counters(samples, stored_at),
        SAMPLES_REJECTS.name: _table(SAMPLES_REJECTS, rejects),
    }


def _read(text: str, stored_ms: int) -> ReceivedSample | str:
    """Return the sample, or the reason why the message is not a valid one."""
    try:
        sample = _parse(text)
    except (msgspec.DecodeError, RecursionError):
        return "not a JSON sample"
    if sample.schema is None:
        return "schema is missing"
    if sample.schema != SCHEMA:
        return f"schema {sample.schema}, this pipeline supports {SCHEMA}; upgrade it"
    if not isinstance(sample, ReceivedSample):
        return "a member has the wrong type"
    if missing := [name for name in _NEEDED if getattr(sample, name) is None]:
        return f"lacks {', '.join(missing)}"
    begin_ms = sample.at_ms or 0
    if abs(begin_ms - stored_ms) > CLOCK_MAX_MS:
        return f"the collector's clock is {abs(begin_ms - stored_ms)} ms off the broker's clock"
    topics, groups, counters = sample.topics or [], sample.groups or [], sample.counters or []
    is_named = all(group.group is not None for group in groups) and all(
        counter.name is not None for counter in counters
    )
    if not is_named or not all(_is_in_round(entry, begin_ms) for entry in (*topics, *groups, *counters)):
        return "an entry has no name, no topic or no time within the round"
    if sum(len(entry.queues or ()) for entry in (*topics, *groups)) > QUEUES_MAX:
        return f"more than {QUEUES_MAX} queues"
    return sample


def _is_in_round(entry: Entry, begin_ms: int) -> bool:
    """Return whether an entry has a topic, and a time within the round that began then."""
    return entry.topic is not None and entry.at_ms is not None and 0 <= entry.at_ms - begin_ms <= ROUND_MAX_MS


def _parse(text: str) -> AnySample:
    """Return the sample; only its schema if another member has the wrong type, or is a name longer than `NAME_MAX`.

    Raises:
        msgspec.DecodeError: the text is not JSON, not an object, or its schema is not a number.
        RecursionError: its objects are nested too deeply.
    """
    try:
        return _SAMPLES.decode(text)
    except msgspec.ValidationError:
        return _SCHEMAS.decode(text)


def _brokers(samples: Sequence[tuple[int, ReceivedSample]], stored_at: pa.ChunkedArray) -> pa.Table:
    # A split sample has one row, of its first message.
    rows = [(number, sample, sample) for number, sample in samples if not sample.part]
    runtimes = [sample.runtime or Runtime() for _, sample, _ in rows]
    skipped = [sample.skipped or Skipped() for _, sample, _ in rows]
    columns: dict[str, object] = {
        name: [getattr(sample, name) for _, sample, _ in rows]
        for name in SAMPLES_BROKERS.column_names
        if name in ReceivedSample.__struct_fields__
    }
    columns |= {name: [getattr(item, name) for item in runtimes] for name in Runtime.__struct_fields__}
    columns |= {f"skipped_{name}": [getattr(item, name) for item in skipped] for name in Skipped.__struct_fields__}
    columns["booted_at"] = _times(runtime.boot_ms for runtime in runtimes)
    return _table(SAMPLES_BROKERS, columns | _origins(rows, stored_at))


def _queues(samples: Sequence[tuple[int, ReceivedSample]], stored_at: pa.ChunkedArray) -> pa.Table:
    topics = [(number, sample, entry) for number, sample in samples for entry in sample.topics or ()]
    groups = [(number, sample, entry) for number, sample in samples for entry in sample.groups or ()]
    of_topics = {"consumer_group": [None] * len(topics), "bounds_at": _times(entry.at_ms for _, _, entry in topics)}
    of_groups = {
        "consumer_group": [entry.group for _, _, entry in groups],
        "bounds_at": _times(entry.bounds_at_ms for _, _, entry in groups),
    }
    bounds = ("min_offset", "max_offset")
    return pa.concat_tables(
        [
            _queue_rows(topics, of_topics | _origins(topics, stored_at), bounds),
            _queue_rows(
                groups, of_groups | _origins(groups, stored_at), ("committed_offset", *bounds, "oldest_age_ms")
            ),
        ]
    )


def _queue_rows(
    rows: Sequence[tuple[int, ReceivedSample, TopicEntry]], shared: Mapping[str, object], names: Sequence[str]
) -> pa.Table:
    """Return the rows of SAMPLES_QUEUES.

    Args:
        rows: entries with their samples.
        shared: columns with one value per entry, for all its queues.
        names: columns that a queue has values of, after its id.
    """
    entries = {name: [None] * len(rows) for name in SAMPLES_QUEUES.column_names} | dict(shared)
    entries["topic"] = [entry.topic for _, _, entry in rows]
    queues = [entry.queues or [] for _, _, entry in rows]
    entry_of_queue = np.repeat(np.arange(len(rows)), np.fromiter(map(len, queues), np.int64, len(rows)))
    chunks = [entry_of_queue[at : at + CHUNK_ROWS] for at in range(0, len(entry_of_queue), CHUNK_ROWS)]
    result = _table(SAMPLES_QUEUES, entries).take(pa.chunked_array(chunks, pa.int64()))
    # Transposed, with nulls for the values that shorter lists lack.
    nulls = [None] * len(entry_of_queue)
    ids, *columns = islice(chain(zip_longest(*chain.from_iterable(queues)), repeat(nulls)), 1 + len(names))
    valid_ids = [queue_id if queue_id is not None and 0 <= queue_id <= QUEUE_ID_MAX else None for queue_id in ids]
    for name, column in zip(("queue_id", *names), (valid_ids, *columns), strict=True):
        field = result.schema.field(name)
        result = result.set_column(result.schema.get_field_index(name), field, pa.array(column, field.type))
    return result


def _counters(samples: Sequence[tuple[int, ReceivedSample]], stored_at: pa.ChunkedArray) -> pa.Table:
    rows = [(number, sample, entry) for number, sample in samples for entry in sample.counters or ()]
    columns = {
        "statistic": [entry.name for _, _, entry in rows],
        "topic": [entry.topic for _, _, entry in rows],
        "consumer_group": [entry.group for _, _, entry in rows],
        "total": [entry.sum for _, _, entry in rows],
        "tps": [entry.tps for _, _, entry in rows],
    }
    return _table(SAMPLES_COUNTERS, columns | _origins(rows, stored_at))


def _origins(rows: Sequence[Row], stored_at: pa.ChunkedArray) -> dict[str, object]:
    """Return the columns that all tables of valid samples have, and `bucket`."""
    sampled_ms = [timed.at_ms for _, _, timed in rows]
    return {
        "collector": [sample.collector for _, sample, _ in rows],
        "sampled_at": _times(sampled_ms),
        "stored_at": stored_at.take(pa.array([number for number, _, _ in rows], pa.int64())),
        "broker": [sample.broker for _, sample, _ in rows],
        "broker_id": [sample.broker_id for _, sample, _ in rows],
        "bucket": buckets_of_times(np.array(sampled_ms, np.int64)),
    }


def _times(times_ms: Iterable[int | None]) -> pa.Array:
    """Return timestamps of ms since the epoch; null for those that no clock can have had."""
    valid = [ms if ms is not None and EARLIEST_MS <= ms <= LATEST_MS else None for ms in times_ms]
    return pa.array(valid, pa.timestamp("ms", "UTC"))


def _table(table: TableSchema, columns: Mapping[str, object]) -> pa.Table:
    """Return the table's columns and `bucket`, in order and with their types."""
    schema = arrow_schema(table).append(pa.field("bucket", pa.string()))
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)
