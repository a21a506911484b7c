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


class Range(NamedTuple):
    """Entries of a queue to read: from `start` up to but not including `end`."""

    queue: MessageQueue
    start: int
    end: int


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


def advance(offset: dict[str, Any], first: Positions, ends: Positions, most: int | None) -> dict[str, Any]:
    """The end of the next batch after `offset`, or `offset` itself when there is nothing new.

    `first` is where queues begin that were not known so far; `ends` what is there now. A queue that is missing in `ends`
    (its broker is away) keeps its position.
    """
    begin = {**{queue: first[queue] for queue in ends if queue in first}, **reached(offset)}
    waiting = {queue: end - begin[queue] for queue, end in ends.items() if queue in begin and end > begin[queue]}
    if not waiting:
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
