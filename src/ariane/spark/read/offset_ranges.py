"""Positions in queues: what is planned, checkpointed and compared. Pure.

An offset of the stream carries its own start, because Spark does not keep the first one and calls `initialOffset` again:

    {"initial": positions}                    before the first batch
    {"from": positions, "to": positions}      a batch; the next one begins at its "to"

    positions = {topic: {broker: {queue id: offset}}}, keys sorted (Spark compares offsets as text)
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from ariane.model.message import MessageQueue

Positions = dict[MessageQueue, int]

EARLIEST = -2  # in place of an offset given by the user, as in rocketmq-spark and Kafka
LATEST = -1


class OffsetRange(NamedTuple):
    """Entries of a queue to read: from `start` up to but not including `end`."""

    queue: MessageQueue
    start: int
    end: int


class ReadLimits(NamedTuple):
    """How much a micro-batch may take: entries, and bytes by the mean size of the entries of each queue."""

    entries: int | None = None
    size: int | None = None
    sizes: Mapping[MessageQueue, float] = {}


class OffsetLoss(NamedTuple):
    """A position that its queue no longer allows: reading goes on at `resume`, if it may."""

    queue: MessageQueue
    position: int
    resume: int
    first: int
    end: int

    def __str__(self) -> str:
        gone = (
            f"{self.position} to {self.resume - 1} are gone"
            if self.resume > self.position
            else f"{self.end} to {self.position - 1}, which were there or were asked for, are gone"
        )
        return f"{named(self.queue)}: offsets {gone} (the queue holds {held(self.first, self.end)})"


def named(queue: MessageQueue) -> str:
    """A queue in messages for people."""
    return f"{queue.topic} queue {queue.queue_id} of {queue.broker}"


def held(first: int, end: int) -> str:
    return f"{first} to {end - 1}" if end > first else "nothing"


def _offsets_held(first: int, end: int) -> str:
    return f"offsets {held(first, end)}" if end > first else "nothing"


def positions_to_json(positions: Positions) -> dict[str, Any]:
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


def initial(positions: Positions) -> dict[str, Any]:
    return {"initial": positions_to_json(positions)}


def reached(offset: Mapping[str, Any]) -> Positions:
    """Where the batch after `offset` begins."""
    return positions_from_json(offset["to"] if "to" in offset else offset["initial"])


def asked(wanted: str | Positions, first: Positions, last: Positions) -> Positions:
    """Positions that an option means, for every queue there is; `wanted` is earliest, latest, or positions of some queues.

    A queue that `wanted` names and that is not there (yet) keeps its offset, but for EARLIEST and LATEST: a queue that
    comes later is read from its beginning anyway.
    """
    if not isinstance(wanted, dict):
        return dict(last if wanted == "latest" else first)
    named_ends = {EARLIEST: first, LATEST: last}
    found = {
        queue: named_ends[offset].get(queue) if offset in named_ends else offset for queue, offset in wanted.items()
    }
    return {**first, **{queue: offset for queue, offset in found.items() if offset is not None}}


def losses(offset: Mapping[str, Any], first: Positions, ends: Positions) -> list[OffsetLoss]:
    """Positions before the beginning of their queue (retention), and beyond its end (a broker lost its last entries).

    The first go on at the beginning; the others at the end, since what is before it was read.
    """
    found = []
    for queue, position in sorted(reached(offset).items()):
        if queue in ends and not first[queue] <= position <= ends[queue]:
            resume = first[queue] if position < first[queue] else ends[queue]
            found.append(OffsetLoss(queue, position, resume, first[queue], ends[queue]))
    return found


def unreadable(begin: Positions, until: Positions, first: Positions, last: Positions) -> list[str]:
    """Describe what a batch from `begin` to `until` names that its queues do not hold; queues missing in `last` are omitted.

    `begin` and `until` hold the queues that options name; the others begin at `first` and end at `last`.
    """
    faults = []
    for queue in sorted(last):
        low, high = begin.get(queue, first[queue]), until.get(queue, last[queue])
        there = f"{named(queue)} holds {_offsets_held(first[queue], last[queue])}"
        if low < first[queue]:
            faults.append(f"{there}: startingOffsets {low} lies before its first offset {first[queue]}")
        if low > last[queue]:
            faults.append(f"{there}: startingOffsets {low} lies beyond its end {last[queue]}")
        if high > last[queue]:
            faults.append(f"{there}: endingOffsets {high} lies beyond its end {last[queue]}")
        if high < first[queue]:
            faults.append(f"{there}: endingOffsets {high} lies before its first offset {first[queue]}")
    return faults


def waiting(offset: Mapping[str, Any], first: Positions, ends: Positions) -> Positions:
    """How many entries of each queue are there to be read after `offset`; queues without any are left out."""
    begin = _begin(offset, first, ends)
    return {queue: end - begin[queue] for queue, end in ends.items() if end > begin[queue]}


def advance(
    offset: dict[str, Any],
    first: Positions,
    ends: Positions,
    limits: ReadLimits = ReadLimits(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """The end of the next batch after `offset`, or `offset` itself when there is nothing new.

    `first` is where queues begin, those too that were not known so far; `ends` what is there now. A queue that is missing
    in `ends` (its broker is away) keeps its position. What `losses` tells of is left out, and queues that were not known have a
    position from now on: a batch, if need be one without rows, sees to both.
    """
    there = waiting(offset, first, ends)
    if not there and not losses(offset, first, ends) and reached(offset).keys() >= ends.keys():
        return offset
    begin = _begin(offset, first, ends)
    end = {**begin, **{queue: begin[queue] + take for queue, take in _shares(there, limits).items()}}
    return {"from": positions_to_json(begin), "to": positions_to_json(end)}


def _begin(offset: Mapping[str, Any], first: Positions, ends: Positions) -> Positions:
    right = {loss.queue: loss.resume for loss in losses(offset, first, ends)}
    return {**{queue: first[queue] for queue in ends}, **reached(offset), **right}


def ranges(begin: Positions, end: Positions) -> list[OffsetRange]:
    """What lies between two positions, one range per queue with something to read."""
    return [
        OffsetRange(queue, begin[queue], end[queue])
        for queue in sorted(end)
        if end[queue] > begin.get(queue, end[queue])
    ]


def planned(offset: Mapping[str, Any]) -> list[OffsetRange]:
    """The ranges of a batch that ends at `offset`."""
    if "from" not in offset:
        return []
    return ranges(positions_from_json(offset["from"]), positions_from_json(offset["to"]))


def split(parts: list[OffsetRange], at_least: int = 1, most: int | None = None) -> list[OffsetRange]:
    """The same entries in at least `at_least` ranges (as far as there are so many entries), none of more than `most`.

    Larger ranges are split into more, all pieces of one range are of nearly the same length, and the same parts always
    give the same pieces.
    """
    total = sum(part.end - part.start for part in parts)
    low, high = 1, min(most or total, total)
    while low < high:  # the largest length that gives enough pieces: fewer entries in each never give fewer pieces
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(_pieces(part, middle) for part in parts) >= at_least else (low, middle - 1)
    return [piece for part in parts for piece in _cut(part, _pieces(part, low))]


def _pieces(part: OffsetRange, largest: int) -> int:
    return -(-(part.end - part.start) // largest)


def _cut(part: OffsetRange, pieces: int) -> list[OffsetRange]:
    count = part.end - part.start
    edges = [part.start + count * number // pieces for number in range(pieces + 1)]
    return [OffsetRange(part.queue, low, high) for low, high in pairwise(edges)]


def _shares(there: Positions, limits: ReadLimits) -> Positions:
    """How much of each queue to take: all, or within the limits, after what each has waiting and at least 1."""
    shares = _within(there, limits.entries, {})
    return shares if limits.size is None else _within(shares, limits.size, limits.sizes)


def _within(there: Positions, most: int | None, costs: Mapping[MessageQueue, float]) -> Positions:
    total = sum(count * costs.get(queue, 1) for queue, count in there.items())
    if most is None or total <= most:
        return there
    return {queue: max(1, int(count * most // total)) for queue, count in there.items()}
