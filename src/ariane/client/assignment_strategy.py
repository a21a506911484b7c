"""Who of a group reads which queues: pure functions, the same at every member. [AllocateMessageQueueAveragely, …]

Every member sorts queues and client ids and computes its own share; nobody tells anybody. So all must use the same rule.

    queues  q0 q1 q2 q3 q4 q5 q6      members  A B C
    average                           A: q0 q1 q2   B: q3 q4   C: q5 q6
    by circle                         A: q0 q3 q6   B: q1 q4   C: q2 q5
    consistent hash                   each queue to the next point of the ring; few queues move when a member comes or goes
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from hashlib import md5
from typing import NamedTuple

from ariane.model.message import MessageQueue

VIRTUAL_NODES = 10  # points of the ring per member, as in Java

AssignmentStrategy = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]


def average(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Consecutive queues, the first members one more when they do not divide evenly."""
    index = _index(client_id, members)
    if index is None:
        return []
    share, more = divmod(len(queues), len(members))
    start = index * share + min(index, more)
    return list(queues[start : start + share + (index < more)])


def by_circle(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Every m-th queue."""
    index = _index(client_id, members)
    return [] if index is None else list(queues[index :: len(members)])


def consistent_hash(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """The queues whose hash falls to one of my points of the ring."""
    if client_id not in members:
        return []
    ring = sorted((_ring_hash(f"{member}-{k}"), member) for member in members for k in range(VIRTUAL_NODES))
    points = [point for point, _ in ring]

    def owner(queue: MessageQueue) -> str:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
        return ring[bisect_left(points, _ring_hash(text)) % len(ring)][1]

    return [queue for queue in queues if owner(queue) == client_id]


def fixed(queues: Iterable[MessageQueue]) -> AssignmentStrategy:
    """A strategy that gives `mine`, as long as they exist."""
    chosen = frozenset(queues)
    return lambda me, members, queues: [queue for queue in queues if queue in chosen]


def assign(
    me: str, members: Iterable[str], queues: Iterable[MessageQueue], strategy: AssignmentStrategy
) -> list[MessageQueue]:
    """What of `queues` is mine: both lists in the order that all members agree on, then the strategy."""
    return strategy(me, sorted(set(members)), sorted(set(queues)))


class AssignmentChanges(NamedTuple):
    """What a new allocation asks for: queues to begin with, and queues to give up."""

    assigned: list[MessageQueue]
    revoked: list[MessageQueue]


def assignment_changes(owned: Iterable[MessageQueue], wanted: Iterable[MessageQueue]) -> AssignmentChanges:
    have, want = set(owned), set(wanted)
    return AssignmentChanges(sorted(want - have), sorted(have - want))


def _index(me: str, members: Sequence[str]) -> int | None:
    return members.index(me) if me in members else None


def _ring_hash(text: str) -> int:
    """First four bytes of the MD5."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
