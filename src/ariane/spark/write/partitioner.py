"""Assigns the rows of a partition to queues and groups them into requests. Pure.

    queue_id (and broker)   that queue                                                  in order
    ordering_key            Java's hash of it over the topic's writable queues          in order
    neither                 the next queue after each `batch_size` rows                 any order; another broker may take it

"In order": the rows of a partition for one queue are stored in the order of the partition. The hash is that of Ariane's producers
and of Java's SelectMessageQueueByHash, so all producers send a key to the same queue. The queue of a row depends only on its
columns, its sequence, its partition and the topic's queues, so a partition that is written again goes to the same queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ariane.client.send_codec import queue_for_key
from ariane.errors import MessageRefused
from ariane.model.message import MessageQueue
from ariane.model.topic import RETRY_PREFIX
from ariane.protocol import compression
from ariane.spark.write import message_encoder
from ariane.spark.write.message_encoder import Bools, EncodedMessages, Ints, RowIds
from ariane.spark.write.sink_options import SinkOptions, topic_fault

Queues = Callable[[str], Sequence[MessageQueue]]


class QueueLane(NamedTuple):
    """Destination of rows. An ordered lane has at most one request in flight."""

    queue: MessageQueue
    is_ordered: bool


class SendRequest(NamedTuple):
    """The messages of one request."""

    lane: QueueLane
    body: bytes
    properties: str
    """Properties of the message; for a batch, those of the request."""
    message_count: int
    is_batch: bool
    flag: int
    sys_flag: int
    first_row: str
    """Dedup id of the first row, for error messages."""


BATCH_PROPERTIES = "WAIT\x01true"


class Partitioner:
    """Turns the rows of one partition into requests.

    Args:
        options: Options of the sink.
        ids: Identifiers of the partition's rows.
        partition: Number of the partition; partitions start at different queues.
        queues: Returns the writable queues of a topic; the result must not change during the task.
    """

    def __init__(self, options: SinkOptions, ids: RowIds, partition: int, queues: Queues) -> None:
        self._options = options
        self._ids = ids
        self._partition = partition
        self._queues = queues
        self._lane_numbers: dict[QueueLane, int] = {}
        self._lanes: list[QueueLane] = []

    def requests(self, batch: pa.RecordBatch, messages: EncodedMessages) -> Iterator[SendRequest]:
        """Yield the requests for the rows of `batch` (encoded in `messages`); those of a lane in the order of the rows."""
        lanes = self._assign_lanes(batch, messages)
        order = np.argsort(lanes, kind="stable").astype(np.int64)
        alone = self._is_single(lanes, messages)
        encoded = _BatchEntries(messages, order[~alone[order]])
        starts = np.flatnonzero(np.diff(lanes[order], prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            indexes = order[start:stop]
            yield from self._lane_requests(
                self._lanes[int(lanes[indexes[0]])], indexes, alone[indexes], messages, encoded
            )

    def _lane_requests(
        self, lane: QueueLane, indexes: Ints, alone: Bools, messages: EncodedMessages, entries: _BatchEntries
    ) -> Iterator[SendRequest]:
        options = self._options
        ends = np.cumsum(np.where(alone, 0, messages.sizes[indexes]))
        borders = np.flatnonzero(alone)
        most_bytes = min(options.batch_bytes, options.max_message_size)
        at = 0
        while at < len(indexes):
            if alone[at]:
                yield self._single_request(lane, int(indexes[at]), messages)
                at += 1
                continue
            before = int(ends[at - 1]) if at else 0
            stop = min(at + options.batch_size, int(np.searchsorted(ends, before + most_bytes, "right")))
            next_alone = np.searchsorted(borders, at)
            if next_alone < len(borders):
                stop = min(stop, int(borders[next_alone]))
            stop = max(stop, at + 1)
            body = entries.next(stop - at)
            first = self._ids.dedup_id(messages.first_sequence + int(indexes[at]))
            yield SendRequest(lane, body, BATCH_PROPERTIES, stop - at, True, 0, 0, first)
            at = stop

    def _is_single(self, lanes: Ints, messages: EncodedMessages) -> Bools:
        """Return which rows need a request of their own: because of the message, its topic, its size, or batchSize 1."""
        lanes_alone = np.array([lane.queue.topic.startswith(RETRY_PREFIX) for lane in self._lanes], np.bool_)
        too_large = messages.sizes > min(self._options.batch_bytes, self._options.max_message_size)
        return messages.single | too_large | lanes_alone[lanes] | (self._options.batch_size == 1)

    def _single_request(self, lane: QueueLane, row: int, messages: EncodedMessages) -> SendRequest:
        body: bytes = messages.bodies[row].as_py()
        sys_flag = 0
        if len(body) >= self._options.compression_threshold:
            body, sys_flag = compression.compress(body), compression.ZLIB_FLAGS
        text = messages.properties[row].as_py().decode()
        first = self._ids.dedup_id(messages.first_sequence + row)
        return SendRequest(lane, body, text, 1, False, int(messages.flags[row]), sys_flag, first)

    # --- lanes ---

    def _assign_lanes(self, batch: pa.RecordBatch, messages: EncodedMessages) -> Ints:
        """Return the number of each row's lane."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        lanes = np.zeros(batch.num_rows, np.int64)
        for topic, mine in self._rows_by_topic(columns.get("topic"), messages):
            queues = self._queues(topic)
            turns = ((messages.first_sequence + mine) // self._options.batch_size + self._partition) % len(queues)
            free = np.array([self._lane_number(QueueLane(queue, False)) for queue in queues], np.int64)
            lanes[mine] = free[turns]
            keyed = self._assign_by_key(columns.get("ordering_key"), mine, lanes, queues)
            self._assign_by_queue(columns, mine, lanes, queues, messages, keyed)
        return lanes

    def _rows_by_topic(self, column: pa.Array | None, rows: EncodedMessages) -> Iterator[tuple[str, Ints]]:
        """Yield each topic with the indexes of its rows."""
        everything = np.arange(len(rows.sizes), dtype=np.int64)
        if column is None:
            yield self._options.topic, everything
            return
        given = pc.fill_null(column, self._options.topic).dictionary_encode()
        numbers = message_encoder.ints(given.indices, 0)
        for number, topic in enumerate(given.dictionary.to_pylist()):
            mine = np.flatnonzero(numbers == number)
            if fault := topic_fault(topic):
                fix = "" if topic else "; set the column topic for every row, or the option topic as the default"
                raise MessageRefused(f"row {self._ids.dedup_id(rows.first_sequence + int(mine[0]))}: {fault}{fix}")
            yield topic, mine

    def _assign_by_key(self, column: pa.Array | None, mine: Ints, where: Ints, queues: Sequence[MessageQueue]) -> Ints:
        """Assign rows with an ordering key to the lane of its queue; return these rows."""
        if column is None:
            return np.empty(0, np.int64)
        given = column.take(pa.array(mine)).dictionary_encode()
        lanes = [self._lane_number(QueueLane(queue_for_key(queues, key), True)) for key in given.dictionary.to_pylist()]
        has = message_encoder.bools(given.is_valid())
        where[mine[has]] = np.array(lanes, np.int64)[message_encoder.ints(given.indices, 0)[has]]
        return mine[has]

    def _assign_by_queue(
        self, columns: dict[str, pa.Array], mine: Ints, where: Ints, queues: Sequence[MessageQueue], rows: EncodedMessages,
        keyed: Ints,
    ) -> None:  # fmt: skip
        """Assign rows with a queue id to that queue's lane."""
        if "queue_id" not in columns:
            return
        queue_ids = columns["queue_id"].to_pylist()
        brokers = columns["broker"].to_pylist() if "broker" in columns else [None] * len(queue_ids)
        known: dict[tuple[str | None, int], int] = {}
        has_key = set(keyed.tolist())
        for row in mine.tolist():
            wanted = (brokers[row], queue_ids[row])
            if wanted[1] is None:
                if wanted[0] is not None:
                    name = self._ids.dedup_id(rows.first_sequence + row)
                    raise MessageRefused(f"row {name}: broker is set without queue_id: set both or neither")
                continue
            if row in has_key:
                raise MessageRefused(
                    f"row {self._ids.dedup_id(rows.first_sequence + row)}: queue_id and ordering_key are both set: keep one of them"
                )
            if wanted not in known:
                try:
                    known[wanted] = self._lane_number(QueueLane(_resolve_queue(queues, *wanted), True))
                except MessageRefused as error:
                    raise MessageRefused(f"row {self._ids.dedup_id(rows.first_sequence + row)}: {error}") from None
            where[row] = known[wanted]

    def _lane_number(self, lane: QueueLane) -> int:
        number = self._lane_numbers.setdefault(lane, len(self._lanes))
        if number == len(self._lanes):
            self._lanes.append(lane)
        return number


class _BatchEntries:
    """Encoded batch entries of rows, taken in their order."""

    def __init__(self, rows: EncodedMessages, order: Ints) -> None:
        self._ends = [0]
        self._buffer: pa.Buffer | None = None
        self._at = 0
        if len(order):
            found = message_encoder.batch_entries(rows, order)
            self._ends = np.frombuffer(found.buffers()[1], np.int32)[: len(order) + 1].tolist()
            self._buffer = found.buffers()[2]

    def next(self, count: int) -> bytes:
        start, stop = self._ends[self._at], self._ends[self._at + count]
        self._at += count
        assert self._buffer is not None
        data: bytes = self._buffer[start:stop].to_pybytes()
        return data


def _resolve_queue(queues: Sequence[MessageQueue], broker: str | None, queue_id: int) -> MessageQueue:
    """Return the queue of a row; raise MessageRefused if there is none, or if several brokers have one with this id."""
    found = [queue for queue in queues if queue.queue_id == queue_id and broker in (None, queue.broker)]
    if len(found) == 1:
        return found[0]
    there: dict[str, list[int]] = {}
    for queue in queues:
        there.setdefault(queue.broker, []).append(queue.queue_id)
    named = f"queue_id {queue_id}" + (f" of {broker}" if broker is not None else "")
    has = ", ".join(f"{name} {min(numbers)} to {max(numbers)}" for name, numbers in sorted(there.items()))
    if found:
        raise MessageRefused(f"{named} exists on several brokers ({has}): add a column broker")
    raise MessageRefused(f"{named} is not a writable queue of {queues[0].topic}; expected one of {has}")
