"""Positions in queues: planned, checkpointed and compared. Pure.

An offset of the stream carries its own start, because Spark does not store the first one and calls `initialOffset` again:

    {"initial": positions}                    before the first batch
    {"from": positions, "to": positions}      a batch; the next one starts at its "to"

    positions = {topic: {broker: {queue id: offset}}}, keys sorted (Spark compares offsets as text)
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from ariane.errors import ArianeError
from ariane.model.message import MessageQueue

Positions = dict[MessageQueue, int]

EARLIEST = -2  # special offsets in options, with the values of rocketmq-spark and Kafka
LATEST = -1


class DataLoss(ArianeError):
    """Requested entries were deleted. Set failOnDataLoss to false to continue without them."""


class OffsetRange(NamedTuple):
    """Entries of a queue to read: from `start` up to but not including `end`."""

    queue: MessageQueue
    start: int
    end: int


class ReadLimits(NamedTuple):
    """Limits of a micro-batch. `max_bytes` is converted to entries by the mean entry size of each queue."""

    max_entries: int | None = None
    max_bytes: int | None = None
    entry_sizes: Mapping[MessageQueue, float] = {}


class OffsetLoss(NamedTuple):
    """A position outside the range that its queue holds, and the offset at which reading can resume."""

    queue: MessageQueue
    position: int
    resume: int
    first: int
    end: int

    def __str__(self) -> str:
        lost = (
            f"{self.position} to {self.resume - 1} are gone"
            if self.resume > self.position
            else f"{self.end} to {self.position - 1}, which were read or requested before, are gone"
        )
        return f"{describe_queue(self.queue)}: offsets {lost} (the queue holds {describe_bounds(self.first, self.end)})"


def describe_queue(queue: MessageQueue) -> str:
    """Return a text for messages that identifies a queue."""
    return f"{queue.topic} queue {queue.queue_id} of {queue.broker}"


def describe_bounds(first: int, end: int) -> str:
    return f"{first} to {end - 1}" if end > first else "nothing"


def _describe_offsets(first: int, end: int) -> str:
    return f"offsets {describe_bounds(first, end)}" if end > first else "nothing"


def positions_to_json(positions: Positions) -> dict[str, Any]:
    # Sorted, because Spark compares offsets as text: an equal position must give an equal text.
    tree: dict[str, Any] = {}
    for queue in sorted(positions):
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker, {})[str(queue.queue_id)] = positions[queue]
    return tree


def positions_from_json(tree: Mapping[str, Any]) -> Positions:
    return {
        MessageQueue(topic, broker, int(queue_id)): int(offset)
        for topic, brokers in tree.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def initial_offset(positions: Positions) -> dict[str, Any]:
    return {"initial": positions_to_json(positions)}


def end_positions(offset: Mapping[str, Any]) -> Positions:
    """Return where the batch after `offset` starts."""
    return positions_from_json(offset["to"] if "to" in offset else offset["initial"])


def resolve_offsets(option: str | Positions, first: Positions, last: Positions) -> Positions:
    """Resolve an offset option to the position of every existing queue.

    Args:
        option: earliest, latest, or positions of some queues, which may be EARLIEST or LATEST.
        first: The first offset of each queue; used for queues that `option` does not name.
        last: The end offset of each queue.

    Returns:
        Positions of all queues in `first`, and of named queues that do not exist yet. A new queue named with EARLIEST or
        LATEST is omitted, because new queues are read from their beginning anyway.
    """
    if not isinstance(option, dict):
        return dict(last if option == "latest" else first)
    named_ends = {EARLIEST: first, LATEST: last}
    resolved = {
        queue: named_ends[offset].get(queue) if offset in named_ends else offset for queue, offset in option.items()
    }
    return {**first, **{queue: offset for queue, offset in resolved.items() if offset is not None}}


def find_losses(offset: Mapping[str, Any], first: Positions, ends: Positions) -> list[OffsetLoss]:
    """Return the positions below the beginning of their queue (retention) or beyond its end (a broker lost its last entries).

    The former resume at the beginning; the latter at the end, because everything before it was read.
    """
    result = []
    for queue, position in sorted(end_positions(offset).items()):
        if queue in ends and not first[queue] <= position <= ends[queue]:
            resume = first[queue] if position < first[queue] else ends[queue]
            result.append(OffsetLoss(queue, position, resume, first[queue], ends[queue]))
    return result


def find_out_of_range(begin: Positions, until: Positions, first: Positions, last: Positions) -> list[str]:
    """Describe requested offsets that the queues do not hold; queues that are missing in `last` are skipped.

    `begin` and `until` hold the queues that options name; other queues are read from `first` to `last`.
    """
    faults = []
    for queue in sorted(last):
        low, high = begin.get(queue, first[queue]), until.get(queue, last[queue])
        bounds = f"{describe_queue(queue)} holds {_describe_offsets(first[queue], last[queue])}"
        if low < first[queue]:
            faults.append(f"{bounds}: startingOffsets {low} is before its first offset {first[queue]}")
        if low > last[queue]:
            faults.append(f"{bounds}: startingOffsets {low} is beyond its end {last[queue]}")
        if high > last[queue]:
            faults.append(f"{bounds}: endingOffsets {high} is beyond its end {last[queue]}")
        if high < first[queue]:
            faults.append(f"{bounds}: endingOffsets {high} is before its first offset {first[queue]}")
    return faults


def pending_counts(offset: Mapping[str, Any], first: Positions, ends: Positions) -> Positions:
    """Return the number of unread entries of each queue after `offset`; queues without any are omitted."""
    begin = _start_positions(offset, first, ends)
    return {queue: end - begin[queue] for queue, end in ends.items() if end > begin[queue]}


def next_offset(
    offset: dict[str, Any],
    first: Positions,
    ends: Positions,
    limits: ReadLimits = ReadLimits(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """Return the end of the next batch after `offset`, or `offset` itself if there is nothing new.

    Args:
        offset: The end of the previous batch, or the initial offset.
        first: The first offset of each queue, including queues seen for the first time.
        ends: The current end of each queue. A queue missing here (its broker is unavailable) keeps its position.
        limits: How much the batch may read.

    Lost offsets are skipped, and new queues get a position, in both cases even if the batch then has no rows.
    """
    pending = pending_counts(offset, first, ends)
    if not pending and not find_losses(offset, first, ends) and end_positions(offset).keys() >= ends.keys():
        return offset
    begin = _start_positions(offset, first, ends)
    end = {**begin, **{queue: begin[queue] + count for queue, count in _apportion(pending, limits).items()}}
    return {"from": positions_to_json(begin), "to": positions_to_json(end)}


def _start_positions(offset: Mapping[str, Any], first: Positions, ends: Positions) -> Positions:
    resumed = {loss.queue: loss.resume for loss in find_losses(offset, first, ends)}
    return {**{queue: first[queue] for queue in ends}, **end_positions(offset), **resumed}


def ranges_between(begin: Positions, end: Positions) -> list[OffsetRange]:
    """Return the ranges between two positions, one for each queue with entries to read."""
    return [
        OffsetRange(queue, begin[queue], end[queue])
        for queue in sorted(end)
        if end[queue] > begin.get(queue, end[queue])
    ]


def batch_ranges(offset: Mapping[str, Any]) -> list[OffsetRange]:
    """Return the ranges of the batch that ends at `offset`."""
    if "from" not in offset:
        return []
    return ranges_between(positions_from_json(offset["from"]), positions_from_json(offset["to"]))


def split_ranges(
    offset_ranges: list[OffsetRange], min_count: int = 1, max_entries: int | None = None
) -> list[OffsetRange]:
    """Split ranges into at least `min_count` ranges, as far as there are enough entries, none of more than `max_entries`.

    The pieces of one range have nearly the same length, and the same input always gives the same pieces.
    """
    total = sum(part.end - part.start for part in offset_ranges)
    low, high = 1, min(max_entries or total, total)
    while low < high:  # binary search for the largest length that gives enough pieces: shorter pieces never give fewer
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high)
            if sum(_piece_count(part, middle) for part in offset_ranges) >= min_count
            else (low, middle - 1)
        )
    return [piece for part in offset_ranges for piece in _split_evenly(part, _piece_count(part, low))]


def _piece_count(offset_range: OffsetRange, max_entries: int) -> int:
    return -(-(offset_range.end - offset_range.start) // max_entries)


def _split_evenly(offset_range: OffsetRange, piece_count: int) -> list[OffsetRange]:
    count = offset_range.end - offset_range.start
    edges = [offset_range.start + count * number // piece_count for number in range(piece_count + 1)]
    return [OffsetRange(offset_range.queue, low, high) for low, high in pairwise(edges)]


def _apportion(pending: Positions, limits: ReadLimits) -> Positions:
    """Return how many entries of each queue to read: all, or a share in proportion to the unread entries, at least 1."""
    shares = _scale_to_limit(pending, limits.max_entries, {})
    return shares if limits.max_bytes is None else _scale_to_limit(shares, limits.max_bytes, limits.entry_sizes)


def _scale_to_limit(pending: Positions, limit: int | None, costs: Mapping[MessageQueue, float]) -> Positions:
    total = sum(count * costs.get(queue, 1) for queue, count in pending.items())
    if limit is None or total <= limit:
        return pending
    # At least one entry of each queue: a small queue would otherwise starve next to a large one.
    return {queue: max(1, int(count * limit // total)) for queue, count in pending.items()}
