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

from ariane.client.instance.send_types import PreparedMessage
from ariane.client.sending.send_codec import queue_for_key
from ariane.errors import MessageRefused
from ariane.model.message import MessageQueue
from ariane.model.topic import RETRY_PREFIX
from ariane.protocol.codes import RequestCode
from ariane.protocol.records import compression
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

    lane: QueueLane  # queue and order that the request has to keep
    message: PreparedMessage  # a message, or a batch
    message_count: int  # for statistics
    first_row: str
    """Dedup id of the first row, for error messages."""


BATCH_PROPERTIES = "WAIT\x01true"


class Partitioner:
    """Turns the rows of one partition into requests.

    Args:
        partition: Number of the partition; partitions start at different queues.
        queues: Returns the writable queues of a topic; the result must not change during the task.
    """

    def __init__(self, options: SinkOptions, ids: RowIds, partition: int, queues: Queues) -> None:
        self._options = options
        self._ids = ids
        self._partition = partition
        self._queues = queues
        self._lane_numbers: dict[QueueLane, int] = {}  # NumPy groups rows by number, so lanes get one at first use
        self._lanes: list[QueueLane] = []  # lane of each number

    def requests(self, batch: pa.RecordBatch, messages: EncodedMessages) -> Iterator[SendRequest]:
        """Yield the requests for the rows of `batch` (encoded in `messages`); those of a lane in the order of the rows."""
        lanes = self._assign_lanes(batch, messages)
        order = self._sort_by_lane(lanes)
        is_single = self._is_single(lanes, messages)
        entries = _BatchEntries(messages, order[~is_single[order]])
        starts = np.flatnonzero(np.diff(lanes[order], prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            indexes = order[start:stop]
            lane = self._lanes[int(lanes[indexes[0]])]
            yield from self._lane_requests(lane, indexes, is_single[indexes], messages, entries)

    def _lane_requests(
        self, lane: QueueLane, indexes: Ints, is_single: Bools, messages: EncodedMessages, entries: _BatchEntries
    ) -> Iterator[SendRequest]:
        """Group the rows of a lane into requests within batchSize and batchBytes; single rows separate batches."""
        options = self._options
        ends = np.cumsum(np.where(is_single, 0, messages.sizes[indexes]))
        single_rows = np.flatnonzero(is_single)
        max_bytes = min(options.batch_bytes, options.max_message_size)
        start = 0
        while start < len(indexes):
            if is_single[start]:
                yield self._single_request(lane, int(indexes[start]), messages)
                start += 1
                continue
            bytes_before = int(ends[start - 1]) if start else 0
            stop = min(start + options.batch_size, int(np.searchsorted(ends, bytes_before + max_bytes, "right")))
            next_single = np.searchsorted(single_rows, start)
            if next_single < len(single_rows):
                stop = min(stop, int(single_rows[next_single]))
            stop = max(stop, start + 1)
            body = entries.take(stop - start)
            message = PreparedMessage(
                code=RequestCode.SEND_BATCH_MESSAGE, topic=lane.queue.topic, body=body, properties=BATCH_PROPERTIES
            )
            first_row = self._ids.dedup_id(messages.first_sequence + int(indexes[start]))
            yield SendRequest(lane, message, stop - start, first_row)
            start = stop

    def _sort_by_lane(self, lanes: Ints) -> Ints:
        """Return the rows so that those of a lane follow each other, or in their order if its requests are full as they are."""
        is_sorted = np.count_nonzero(np.diff(lanes)) <= len(lanes) // self._options.batch_size
        return np.arange(len(lanes)) if is_sorted else np.argsort(lanes, kind="stable").astype(np.int64)

    def _is_single(self, lanes: Ints, messages: EncodedMessages) -> Bools:
        """Return which rows need a request of their own: because of the message, its topic, its size, or batchSize 1."""
        # Brokers reject batches to retry topics.
        is_single_lane = np.array([lane.queue.topic.startswith(RETRY_PREFIX) for lane in self._lanes], np.bool_)
        is_too_large = messages.sizes > min(self._options.batch_bytes, self._options.max_message_size)
        return messages.single | is_too_large | is_single_lane[lanes] | (self._options.batch_size == 1)

    def _single_request(self, lane: QueueLane, row: int, messages: EncodedMessages) -> SendRequest:
        body: bytes = messages.bodies[row].as_py()
        sys_flag = 0
        if len(body) >= self._options.compression_threshold:
            body, sys_flag = compression.compress(body)
        message = PreparedMessage(
            topic=lane.queue.topic,
            body=body,
            properties=messages.properties[row].as_py().decode(),
            sys_flag=sys_flag,
            flag=int(messages.flags[row]),
            needs_timer=bool(messages.timed[row]),
        )
        return SendRequest(lane, message, 1, self._ids.dedup_id(messages.first_sequence + row))

    # --- lanes ---

    def _assign_lanes(self, batch: pa.RecordBatch, messages: EncodedMessages) -> Ints:
        """Return the number of each row's lane."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        lanes = np.zeros(batch.num_rows, np.int64)
        for topic, indexes in self._rows_by_topic(columns.get("topic"), messages):
            rows = _TopicRows(indexes, self._queues(topic), messages.first_sequence)
            # Rows without key and queue change the queue after each batch; partitions start at different queues.
            turns = (rows.first_sequence + indexes) // self._options.batch_size + self._partition
            free = np.array([self._lane_number(QueueLane(queue, False)) for queue in rows.queues], np.int64)
            lanes[indexes] = free[turns % len(rows.queues)]
            keyed = self._assign_by_key(columns.get("ordering_key"), rows, lanes)
            self._assign_by_queue(columns, rows, lanes, keyed)
        return lanes

    def _rows_by_topic(self, column: pa.Array | None, messages: EncodedMessages) -> Iterator[tuple[str, Ints]]:
        """Yield each topic with the indexes of its rows."""
        if column is None:
            yield self._options.topic, np.arange(len(messages.sizes), dtype=np.int64)
            return
        topics = pc.fill_null(column, self._options.topic).dictionary_encode()
        numbers = message_encoder.ints(topics.indices, 0)
        for number, topic in enumerate(topics.dictionary.to_pylist()):
            indexes = np.flatnonzero(numbers == number)
            if fault := topic_fault(topic):
                fix = "" if topic else "; set the column topic for every row, or the option topic as the default"
                row = self._ids.dedup_id(messages.first_sequence + int(indexes[0]))
                raise MessageRefused(f"row {row}: {fault}{fix}")
            yield topic, indexes

    def _assign_by_key(self, column: pa.Array | None, rows: _TopicRows, lanes: Ints) -> Ints:
        """Assign rows with an ordering key to the lane of its queue; return these rows."""
        if column is None:
            return np.empty(0, np.int64)
        # Each distinct key is hashed once.
        keys = column.take(pa.array(rows.indexes)).dictionary_encode()
        key_lanes = [
            self._lane_number(QueueLane(queue_for_key(rows.queues, key), True)) for key in keys.dictionary.to_pylist()
        ]
        has_key = message_encoder.bools(keys.is_valid())
        keyed: Ints = rows.indexes[has_key]
        lanes[keyed] = np.array(key_lanes, np.int64)[message_encoder.ints(keys.indices, 0)[has_key]]
        return keyed

    def _assign_by_queue(self, columns: dict[str, pa.Array], rows: _TopicRows, lanes: Ints, keyed: Ints) -> None:
        """Assign rows with a queue id to that queue's lane.

        Raises:
            MessageRefused: the queue does not exist or is ambiguous, or the row has an ordering key, too.
        """
        if "queue_id" not in columns:
            return
        queue_ids = columns["queue_id"].to_pylist()
        brokers = columns["broker"].to_pylist() if "broker" in columns else [None] * len(queue_ids)
        lane_by_queue: dict[tuple[str | None, int], int] = {}
        has_key = set(keyed.tolist())
        for row in rows.indexes.tolist():
            broker, queue_id = brokers[row], queue_ids[row]
            if broker is None and queue_id is None:
                continue
            try:
                if queue_id is None:
                    raise MessageRefused("broker is set without queue_id: set both or neither")
                if row in has_key:
                    raise MessageRefused("queue_id and ordering_key are both set: keep one of them")
                if (broker, queue_id) not in lane_by_queue:
                    queue = _resolve_queue(rows.queues, broker, queue_id)
                    lane_by_queue[broker, queue_id] = self._lane_number(QueueLane(queue, True))
            except MessageRefused as error:
                raise MessageRefused(f"row {self._ids.dedup_id(rows.first_sequence + row)}: {error}") from None
            lanes[row] = lane_by_queue[broker, queue_id]

    def _lane_number(self, lane: QueueLane) -> int:
        number = self._lane_numbers.setdefault(lane, len(self._lanes))
        if number == len(self._lanes):
            self._lanes.append(lane)
        return number


class _TopicRows(NamedTuple):
    """The rows of a record batch for one topic, and the topic's writable queues."""

    indexes: Ints
    queues: Sequence[MessageQueue]
    first_sequence: int
    """Sequence number of the record batch's first row."""


class _BatchEntries:
    """Encoded batch entries of rows, taken in their order."""

    def __init__(self, messages: EncodedMessages, order: Ints) -> None:
        self._ends = [0]
        self._buffer: pa.Buffer | None = None
        self._taken_count = 0
        if len(order):
            entries = message_encoder.batch_entries(messages, order)
            self._ends = np.frombuffer(entries.buffers()[1], np.int32)[: len(order) + 1].tolist()
            self._buffer = entries.buffers()[2]

    def take(self, count: int) -> bytes:
        """Return the next `count` entries."""
        start, stop = self._ends[self._taken_count], self._ends[self._taken_count + count]
        self._taken_count += count
        assert self._buffer is not None
        data: bytes = self._buffer[start:stop].to_pybytes()
        return data


def _resolve_queue(queues: Sequence[MessageQueue], broker: str | None, queue_id: int) -> MessageQueue:
    """Return the queue of a row; raise MessageRefused if there is none, or if several brokers have one with this id."""
    matches = [queue for queue in queues if queue.queue_id == queue_id and broker in (None, queue.broker)]
    if len(matches) == 1:
        return matches[0]
    ids_by_broker: dict[str, list[int]] = {}
    for queue in queues:
        ids_by_broker.setdefault(queue.broker, []).append(queue.queue_id)
    target = f"queue_id {queue_id}" + (f" of {broker}" if broker is not None else "")
    existing = ", ".join(f"{name} {min(ids)} to {max(ids)}" for name, ids in sorted(ids_by_broker.items()))
    if matches:
        raise MessageRefused(f"{target} exists on several brokers ({existing}): add a column broker")
    raise MessageRefused(f"{target} is not a writable queue of {queues[0].topic}; expected one of {existing}")
