"""A range of a queue to rows: what a task does. Every entry of the range comes out, or DataLoss tells which are gone.

    pulls until the end of the range → chunks of whole answers, without a gap → Arrow batches (`records.decode`)

Brokers answer with 32 messages at most, so one pull after another would be a round trip for 32 rows. Where an answer ends is where
the next pull begins; while answers all go equally far, that is known before they come, and several pulls are under way (`_Pace`).

A broker says 21 or 19 when nothing is at an offset, 20 when it passed over entries (other tags, or records just deleted),
and passes over deleted records in the middle of an answer without a word: so a chunk is also checked for gaps.
A loss is believed when it is told again by a new route: a master that was replaced still answers, and lacks what came since.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ariane.errors import ArianeError, ProtocolError
from ariane.filter import tags
from ariane.model.message import MessageQueue
from ariane.protocol.codes import ResponseCode
from ariane.spark.read import offset_ranges, pull_client
from ariane.spark.read.offset_ranges import OffsetRange
from ariane.spark.read.source_options import SourceOptions, time_for_queue
from ariane.spark.records import arrow_decoder

log = logging.getLogger("ariane.spark")

# A batch of Arrow rows: enough to share its cost, little enough to stay in the processor's cache.
BATCH_ROWS = 8192
BATCH_BYTES = 8 * 1024 * 1024
EQUAL_STEPS_PER_PULL = 4  # answers that went equally far, for each pull more that is sent ahead
PULLS_IN_FLIGHT_MAX = 8  # pulls of a task; an answer has 256 KB at most unless brokers are told otherwise


class DataLoss(ArianeError):
    """Entries that were to be read are gone. Set failOnDataLoss to false to go on without them."""


class RowSelection(NamedTuple):
    """Which rows of a range come out, and with which columns."""

    columns: list[str]
    tags: list[str] | None
    keys: tuple[str, ...]
    first_ms: int | None
    end_ms: int | None

    @property
    def filter_columns(self) -> list[str]:
        """The columns that say it."""
        by_time = self.first_ms is not None or self.end_ms is not None
        wanted = {"tags": self.tags is not None, "keys": bool(self.keys), "store_timestamp": by_time}
        return [name for name, needed in wanted.items() if needed]

    def batches(self, scanned: arrow_decoder.RecordScan, broker: str, end: int) -> Iterator[pa.RecordBatch]:
        decoded = list(dict.fromkeys([*self.columns, *self.filter_columns]))
        for every in arrow_decoder.decode_in_batches(scanned, broker, decoded, end):
            rows = every
            for name in self.filter_columns:
                rows = rows.filter(self._mask(name, rows.column(decoded.index(name))))
            yield rows.select(self.columns)

    def _mask(self, name: str, values: pa.Array) -> pa.Array:
        if name == "tags":  # brokers compare hashes, which may collide
            return pc.is_in(values, pa.array(sorted(self.tags or ()), pa.string()))
        if name == "keys":
            one_of = "|".join(re.escape(key) for key in self.keys)
            return pc.match_substring_regex(values, f"(?:^| )(?:{one_of})(?: |$)")
        ms = values.cast(pa.int64())
        mask = pc.is_valid(ms)
        if self.first_ms is not None:
            mask = pc.and_(mask, pc.greater_equal(ms, self.first_ms * 1000))
        if self.end_ms is not None:
            mask = pc.and_(mask, pc.less(ms, self.end_ms * 1000))
        return mask


def read_range(
    cluster: pull_client.BlockingCluster,
    part: OffsetRange,
    options: SourceOptions,
    columns: list[str],
    *,
    by_time: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in order; with `by_time` those alone whose store time is between the options' times.
    DataLoss when some are gone and failOnDataLoss is true."""
    what = f"{offset_ranges.describe_queue(part.queue)}, offsets {part.start} to {part.end - 1}"
    wanted = tags.parse(options.tags)
    first_ms = time_for_queue(options.starting_timestamp, part.queue) if by_time else None
    end_ms = time_for_queue(options.ending_timestamp, part.queue) if by_time else None
    rows = RowSelection(columns, None if wanted is None else sorted(wanted), options.keys, first_ms, end_ms)
    begin = offset = part.start  # of the chunk that is gathered, and of the next pull
    bodies: list[bytes] = []
    size = 0
    doubted: int | None = None  # where a loss was told, by a broker that the route may name no more
    pace = _PrefetchWindow()
    while offset < part.end:
        at = pace.offsets(offset, part.end)
        for pulled in cluster.retry(what, _pull_ahead, cluster, part.queue, at, options.tags, wanted is not None):
            pace.record_step(pulled.next_offset - offset)
            if pulled.code == ResponseCode.SUCCESS:
                bodies.append(pulled.body)
                size += len(pulled.body)
                offset = pulled.next_offset
            elif pulled.next_offset > offset and _is_expected(pulled, wanted is not None):
                offset = pulled.next_offset
            elif doubted != offset:
                cluster.forget_routes(part.queue.topic)
                doubted = offset
                break
            else:
                resume = _resume_offset(pulled, offset, part.end)
                _report_loss(
                    f"{what}: {offset} to {resume - 1} are gone (the queue holds {_describe_held(pulled)})",
                    resume,
                    options,
                )
                yield from _rows(bodies, begin, offset, part, what, options, rows)
                begin = offset = resume
                bodies, size = [], 0
        if offset - begin >= BATCH_ROWS or size >= BATCH_BYTES:
            yield from _rows(bodies, begin, offset, part, what, options, rows)
            begin, bodies, size = offset, [], 0
    yield from _rows(bodies, begin, offset, part, what, options, rows)


class _PrefetchWindow:
    """How far answers go, and so where pulls can begin before the ones before them are answered."""

    def __init__(self) -> None:
        self._step = 0
        self._equal_steps = 0  # answers in a row that went so far

    def offsets(self, offset: int, end: int) -> range:
        """Where to pull from: `offset`, and what lies ahead if it goes on like this."""
        ahead = min(1 + self._equal_steps // EQUAL_STEPS_PER_PULL, PULLS_IN_FLIGHT_MAX)
        return range(offset, end, self._step)[:ahead] if ahead > 1 else range(offset, offset + 1)

    def record_step(self, step: int) -> None:
        self._equal_steps = self._equal_steps + 1 if step == self._step > 0 else 0
        self._step = step


def _pull_ahead(
    cluster: pull_client.BlockingCluster, queue: MessageQueue, offsets: range, tags_wanted: str, is_filtered: bool
) -> list[pull_client.PulledRecords]:
    """Pulls that each go on where the one before ended; NotYetThere when the first got nowhere and does not say why."""
    first, *others = cluster.pull(queue, offsets, tags_wanted)
    _check_progress(queue, offsets[0], first)
    found = [first]
    for offset, pulled in zip(offsets[1:], others, strict=False):
        goes_on = found[-1].next_offset == offset < pulled.next_offset
        if not (goes_on and _is_expected(found[-1], is_filtered) and _is_expected(pulled, is_filtered)):
            break  # what it is about is seen when it comes first
        found.append(pulled)
    return found


def _is_expected(pulled: pull_client.PulledRecords, is_filtered: bool) -> bool:
    """Whether nothing is to be said of an answer that went on."""
    is_other_tags = pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY and not pulled.removed
    return pulled.code == ResponseCode.SUCCESS or (is_filtered and is_other_tags)


def _check_progress(queue: MessageQueue, offset: int, pulled: pull_client.PulledRecords) -> None:
    if pulled.code == ResponseCode.SUCCESS:
        stuck = pulled.next_offset <= offset
    elif offset < pulled.min_offset:
        stuck = False  # deleted: that stays so
    elif pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        stuck = pulled.next_offset <= offset
    else:
        stuck = not pulled.from_master  # a master knows its own queue, a slave may be behind
    if stuck:
        raise pull_client.OffsetNotAvailable(
            f"{queue.broker} has nothing at {offset} yet (it holds {_describe_held(pulled)})"
        )


def _rows(
    bodies: list[bytes], begin: int, end: int, part: OffsetRange, what: str, options: SourceOptions, rows: RowSelection
) -> Iterator[pa.RecordBatch]:
    """The rows of pulled `bodies`, which cover the entries from `begin` to `end`."""
    if not bodies:
        return
    try:
        found = arrow_decoder.scan(b"".join(bodies))
        if (np.diff(found.queue_offsets) <= 0).any():
            raise ProtocolError("the broker answered with entries that do not ascend")
        if rows.tags is None:
            # Without tags every entry has a record: a broker that passes over deleted ones does not say so.
            for low, high in _missing_ranges(found.queue_offsets, begin, min(end, part.end)):
                _report_loss(f"{what}: {low} to {high - 1} are gone", high, options)
        yield from rows.batches(found, part.queue.broker, part.end)
    except ProtocolError as error:
        raise ProtocolError(f"{what}: {error}") from error


def _missing_ranges(offsets: Any, begin: int, end: int) -> list[tuple[int, int]]:
    """What of `begin` to `end` is not among the ascending offsets `there`."""
    edges = np.concatenate(([begin - 1], offsets[offsets < end], [end]))
    return [(int(edges[at]) + 1, int(edges[at + 1])) for at in np.flatnonzero(np.diff(edges) > 1)]


def _report_loss(description: str, resume: int, options: SourceOptions) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(f"{description}; set failOnDataLoss to false to go on without them")
    log.warning("%s; going on at %d", description, resume)


def _describe_held(pulled: pull_client.PulledRecords) -> str:
    return offset_ranges.describe_bounds(pulled.min_offset, pulled.max_offset)


def _resume_offset(pulled: pull_client.PulledRecords, offset: int, end: int) -> int:
    """Where to go on when nothing is at `offset`: at the queue's beginning or where the broker says, when that lies ahead."""
    ahead = [at for at in (pulled.min_offset, pulled.next_offset) if offset < at]
    return min(*ahead, end) if ahead else end
