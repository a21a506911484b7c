"""Task that reads a range of a queue. Every entry of the range is returned, or DataLoss names the missing ones.

    pulls until the end of the range → chunks of complete responses, without a gap → Arrow batches (`records.arrow_decoder`)

A broker limits the messages and bytes of a response (Java: 32 messages, Ariane: 1,024), so sequential pulls would cost a round trip
for each. The next pull starts where the previous response ends. While that offset can be predicted, several pulls are in flight
(`_PrefetchWindow`).

A broker responds with 21 or 19 if it has nothing at an offset, and with 20 if it skipped entries (other tags, or records just
deleted). It skips deleted records in the middle of a response silently, so each chunk is also checked for gaps. A loss counts
only if a second response with a fresh route confirms it: a master that was replaced still responds, but lacks newer messages.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ariane.errors import ProtocolError
from ariane.filter import tags
from ariane.model.message import MessageQueue
from ariane.protocol.codes import ResponseCode
from ariane.spark.read import offset_ranges, pull_client
from ariane.spark.read.offset_ranges import DataLoss, OffsetRange
from ariane.spark.read.source_options import SourceOptions, time_for_queue
from ariane.spark.records import arrow_decoder

log = logging.getLogger("ariane.spark")

# Size of an Arrow batch: large enough to amortise its overhead, small enough for the processor's cache.
BATCH_ROWS = 8192
BATCH_BYTES = 8 * 1024 * 1024
EQUAL_STEPS_PER_PULL = 4  # responses of the predicted length before one more pull is sent ahead
PULLS_IN_FLIGHT_MAX = 8  # per task; by default a response has 256 KB at most
STEP_MARGIN = 7 / 8  # of a response that bytes limit: the next one may contain fewer messages


class RowSelection(NamedTuple):
    """Columns and filters of the rows that a task returns."""

    columns: list[str]
    tags: list[str] | None
    keys: tuple[str, ...]
    first_ms: int | None
    end_ms: int | None
    has_bodies: bool = True
    """Whether bodies are read; otherwise the column is null."""

    @property
    def filter_columns(self) -> list[str]:
        """The columns that the filters read."""
        by_time = self.first_ms is not None or self.end_ms is not None
        needed = {"tags": self.tags is not None, "keys": bool(self.keys), "store_timestamp": by_time}
        return [name for name, is_needed in needed.items() if is_needed]

    def batches(self, scanned: arrow_decoder.RecordScan, broker: str, end: int) -> Iterator[pa.RecordBatch]:
        """Decode and filter records; those at queue offset `end` and beyond are omitted."""
        needed = dict.fromkeys([*self.columns, *self.filter_columns])
        decoded = [name for name in needed if name != "body" or self.has_bodies]
        for batch in arrow_decoder.decode_in_batches(scanned, broker, decoded, end):
            rows = batch
            for name in self.filter_columns:
                rows = rows.filter(self._mask(name, rows.column(decoded.index(name))))
            if "body" in self.columns and not self.has_bodies:
                rows = rows.append_column("body", pa.nulls(rows.num_rows, pa.binary()))
            yield rows.select(self.columns)

    def _mask(self, name: str, values: pa.Array) -> pa.Array:
        if name == "tags":
            # Brokers compare hash codes only, and these may collide.
            return pc.is_in(values, pa.array(sorted(self.tags or ()), pa.string()))
        if name == "keys":
            alternatives = "|".join(re.escape(key) for key in self.keys)
            return pc.match_substring_regex(values, f"(?:^| )(?:{alternatives})(?: |$)")
        # Offsets by time are exact only if store times ascend, so every row is compared.
        ms = values.cast(pa.int64())
        mask = pc.is_valid(ms)
        if self.first_ms is not None:
            mask = pc.and_(mask, pc.greater_equal(ms, self.first_ms * 1000))
        if self.end_ms is not None:
            mask = pc.and_(mask, pc.less(ms, self.end_ms * 1000))
        return mask


def read_range(
    cluster: pull_client.BlockingCluster,
    offset_range: OffsetRange,
    options: SourceOptions,
    columns: list[str],
    *,
    by_time: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a range in order.

    Args:
        by_time: Whether to return only rows whose store time is between the starting and the ending timestamp.

    Raises:
        DataLoss: entries were deleted, and failOnDataLoss is true.
        ServerUnavailable: the broker did not respond to any attempt.
    """
    requested_tags = tags.parse(options.tags)
    first_ms = time_for_queue(options.starting_timestamp, offset_range.queue) if by_time else None
    end_ms = time_for_queue(options.ending_timestamp, offset_range.queue) if by_time else None
    selection = RowSelection(
        columns,
        None if requested_tags is None else sorted(requested_tags),
        options.keys,
        first_ms,
        end_ms,
        options.topics_with_body is None or offset_range.queue.topic in options.topics_with_body,
    )
    return _RangeReader(cluster, offset_range, options, selection).read()


class _PrefetchWindow:
    """Predicts the offsets of the next pulls from the number of entries that recent responses covered.

    A pull requests the messages up to the offset of the next one, so its response is as long as predicted unless a limit is lower.
    With a filter a response covers any number of entries; then only equal lengths are predicted.
    """

    def __init__(self, *, is_filtered: bool) -> None:
        self._is_filtered = is_filtered
        self._step = 0  # predicted number of entries of a response
        self._hits = 0  # responses in a row that were as long as predicted

    def offsets(self, offset: int, end: int) -> range:
        """Return the offsets to pull from: `offset`, and the following ones while the prediction holds."""
        count = min(1 + self._hits // EQUAL_STEPS_PER_PULL, PULLS_IN_FLIGHT_MAX)
        return range(offset, end, self._step)[:count] if count > 1 else range(offset, offset + 1)

    def record_step(self, step: int) -> None:
        if step == self._step or (not self._is_filtered and 0 < self._step < step < 2 * self._step):
            self._hits += 1
            return
        # The limit of a response is a number of messages, equal for all, or one of bytes: then their numbers differ a little.
        is_predicted = self._step > 0 and not self._is_filtered
        self._step = max(1, int(step * STEP_MARGIN)) if is_predicted else step
        self._hits = 0


class _RangeReader:
    """Pulls a range and decodes it chunk by chunk."""

    def __init__(
        self,
        cluster: pull_client.BlockingCluster,
        offset_range: OffsetRange,
        options: SourceOptions,
        selection: RowSelection,
    ) -> None:
        self._cluster = cluster  # connections of this task
        self._range = offset_range  # queue and offsets that the planner assigned; every entry is returned or reported
        self._options = options  # pull sizes, filters, and what to do about lost messages
        self._selection = selection  # columns and row filters, applied while a chunk is decoded
        queue, start, end = offset_range
        self._description = f"{offset_ranges.describe_queue(queue)}, offsets {start} to {end - 1}"
        # The broker filters by tags: offsets that are absent from responses are not lost.
        self._is_filtered = selection.tags is not None
        self._window = _PrefetchWindow(is_filtered=self._is_filtered)  # pulls in flight ahead of the decoder
        # The chunk that is being gathered: the entries from `_chunk_start` up to `_offset`, where the next pull starts.
        self._chunk_start = self._offset = start
        self._bodies: list[bytes] = []  # undecoded pull responses of the chunk
        self._bytes = 0  # total size of `_bodies`, which bounds the memory of the task
        self._suspected_loss: int | None = None  # offset of a loss that a fresh route has not confirmed yet

    def read(self) -> Iterator[pa.RecordBatch]:
        while self._offset < self._range.end:
            offsets = self._window.offsets(self._offset, self._range.end)
            for pulled in self._cluster.retry(self._description, self._pull_ahead, offsets):
                self._window.record_step(pulled.next_offset - self._offset)
                if pulled.code == ResponseCode.SUCCESS:
                    self._bodies.append(pulled.body)
                    self._bytes += len(pulled.body)
                    self._offset = pulled.next_offset
                elif pulled.next_offset > self._offset and self._is_expected(pulled):
                    self._offset = pulled.next_offset
                elif self._suspected_loss != self._offset:
                    # The broker may have been replaced; ask again with a fresh route before the loss is reported.
                    self._cluster.forget_routes(self._range.queue.topic)
                    self._suspected_loss = self._offset
                    break
                else:
                    resume = _resume_offset(pulled, self._offset, self._range.end)
                    bounds = f"the queue holds {_describe_held(pulled)}"
                    self._report_loss(f"{self._offset} to {resume - 1} are gone ({bounds})", resume)
                    yield from self._flush()
                    self._chunk_start = self._offset = resume
            if self._offset - self._chunk_start >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
                yield from self._flush()
        yield from self._flush()

    def _pull_ahead(self, offsets: range) -> list[pull_client.PulledRecords]:
        """Pull at several offsets; return the responses that continue one another.

        Raises:
            OffsetNotAvailable: the first response did not advance and does not say why.
        """
        queue = self._range.queue
        first, *other_queues = self._cluster.pull(queue, offsets, self._options.tags)
        _check_progress(queue, offsets[0], first)
        responses = [first]
        for offset, pulled in zip(offsets[1:], other_queues, strict=False):
            continues = responses[-1].next_offset == offset < pulled.next_offset
            if not (continues and self._is_expected(responses[-1]) and self._is_expected(pulled)):
                break  # handled when it is the first response of a later call
            responses.append(pulled)
        return responses

    def _is_expected(self, pulled: pull_client.PulledRecords) -> bool:
        """Return whether a response that advanced needs no further check."""
        is_filtered_out = pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY and not pulled.removed
        return pulled.code == ResponseCode.SUCCESS or (self._is_filtered and is_filtered_out)

    def _flush(self) -> Iterator[pa.RecordBatch]:
        """Decode the gathered chunk and start the next one."""
        bodies, start, end = self._bodies, self._chunk_start, self._offset
        self._bodies, self._bytes, self._chunk_start = [], 0, end
        if not bodies:
            return
        try:
            scanned = arrow_decoder.scan(b"".join(bodies))
            if (np.diff(scanned.queue_offsets) <= 0).any():
                raise ProtocolError("the broker returned entries whose offsets do not ascend")
            if not self._is_filtered:
                # Without tags every entry has a record, so a gap shows deleted ones, which a broker skips silently.
                for low, high in _missing_ranges(scanned.queue_offsets, start, min(end, self._range.end)):
                    self._report_loss(f"{low} to {high - 1} are gone", high)
            yield from self._selection.batches(scanned, self._range.queue.broker, self._range.end)
        except ProtocolError as error:
            raise ProtocolError(f"{self._description}: {error}") from error

    def _report_loss(self, loss: str, resume: int) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{self._description}: {loss}; set failOnDataLoss to false to continue without them")
        log.warning("%s: %s; resuming at %d", self._description, loss, resume)


def _check_progress(queue: MessageQueue, offset: int, pulled: pull_client.PulledRecords) -> None:
    """Raise OffsetNotAvailable if the broker may have the entry at `offset` later."""
    if pulled.code == ResponseCode.SUCCESS:
        is_stuck = pulled.next_offset <= offset
    elif offset < pulled.min_offset:
        is_stuck = False  # deleted for good
    elif pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        is_stuck = pulled.next_offset <= offset
    else:
        is_stuck = not pulled.from_master  # a slave may lag behind; the master's response is final
    if is_stuck:
        bounds = _describe_held(pulled)
        raise pull_client.OffsetNotAvailable(f"{queue.broker} does not have offset {offset} yet (it holds {bounds})")


def _missing_ranges(offsets: Any, begin: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges within [begin, end) that the ascending `offsets` do not contain."""
    edges = np.concatenate(([begin - 1], offsets[offsets < end], [end]))
    return [(int(edges[index]) + 1, int(edges[index + 1])) for index in np.flatnonzero(np.diff(edges) > 1)]


def _describe_held(pulled: pull_client.PulledRecords) -> str:
    return offset_ranges.describe_bounds(pulled.min_offset, pulled.max_offset)


def _resume_offset(pulled: pull_client.PulledRecords, offset: int, end: int) -> int:
    """Return where to continue if nothing is at `offset`: the queue's first offset or the broker's suggestion, if beyond it."""
    candidates = [candidate for candidate in (pulled.min_offset, pulled.next_offset) if offset < candidate]
    return min(*candidates, end) if candidates else end
