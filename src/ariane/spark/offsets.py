"""Positions in queues: what is planned, checkpointed and compared. Pure.

An offset of the stream carries its own start, because Spark does not keep the first one and calls `initialOffset` again:

    {"initial": positions}                    before the first batch
    {"from": positions, "to": positions}      a batch; the next one begins at its "to"

    positions = {topic: {broker: {queue id: offset}}}, keys sorted (Spark compares offsets as text)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ariane.model.message import MessageQueue

Positions = dict[MessageQueue, int]

EARLIEST = -2  # in place of an offset given by the user, as in rocketmq-spark and Kafka
LATEST = -1


class Range(NamedTuple):
    """Entries of a queue to read: from `start` up to but not including `end`."""

    queue: MessageQueue
    start: int
    end: int


class Loss(NamedTuple):
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


def losses(offset: Mapping[str, Any], first: Positions, ends: Positions) -> list[Loss]:
    """Positions before the beginning of their queue (retention), and beyond its end (a broker lost its last entries).

    The first go on at the beginning; the others at the end, since what is before it was read.
    """
    found = []
    for queue, position in sorted(reached(offset).items()):
        if queue in ends and not first[queue] <= position <= ends[queue]:
            resume = first[queue] if position < first[queue] else ends[queue]
            found.append(Loss(queue, position, resume, first[queue], ends[queue]))
    return found


def advance(offset: dict[str, Any], first: Positions, ends: Positions, most: int | None) -> dict[str, Any]:
    """The end of the next batch after `offset`, or `offset` itself when there is nothing new.

    `first` is where queues begin, those too that were not known so far; `ends` what is there now. A queue that is missing
    in `ends` (its broker is away) keeps its position. What `losses` tells of is left out: a batch, if need be one without
    rows, puts the positions right.
    """
    right = {loss.queue: loss.resume for loss in losses(offset, first, ends)}
    begin = {**{queue: first[queue] for queue in ends}, **reached(offset), **right}
    waiting = {queue: end - begin[queue] for queue, end in ends.items() if end > begin[queue]}
    if not waiting and not right:
        return offset
    end = {**begin, **{queue: begin[queue] + take for queue, take in _shares(waiting, most).items()}}
    return {"from": positions_to_json(begin), "to": positions_to_json(end)}


def ranges(begin: Positions, end: Positions) -> list[Range]:
    """What lies between two positions, one range per queue with something to read."""
    return [
        Range(queue, begin[queue], end[queue]) for queue in sorted(end) if end[queue] > begin.get(queue, end[queue])
    ]


def planned(offset: Mapping[str, Any]) -> list[Range]:
    """The ranges of a batch that ends at `offset`."""
    if "from" not in offset:
        return []
    return ranges(positions_from_json(offset["from"]), positions_from_json(offset["to"]))


def _shares(waiting: dict[MessageQueue, int], most: int | None) -> dict[MessageQueue, int]:
    """How much of each queue to take: all, or `most` in all, after what each has waiting and at least 1."""
    total = sum(waiting.values())
    if most is None or total <= most:
        return waiting
    return {queue: max(1, count * most // total) for queue, count in waiting.items()}
