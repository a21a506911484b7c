"""Assignment strategies: which member of a group reads which queues. Pure functions. [AllocateMessageQueueAveragely, …]

Every member sorts queues and client ids and computes its own share; members do not talk to each other. So all members of a
group must use the same strategy.

    queues  q0 q1 q2 q3 q4 q5 q6      members  A B C
    average                           A: q0 q1 q2   B: q3 q4   C: q5 q6
    by circle                         A: q0 q3 q6   B: q1 q4   C: q2 q5
    consistent hash                   each queue to the next point of the ring; few queues move when a member joins or leaves
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from hashlib import md5
from typing import NamedTuple

from ariane.model.message import MessageQueue

VIRTUAL_NODES = 10  # points of the ring per member, as in Java

# (own client id, client ids of all members, queues of a topic) → own queues. Ids and queues are sorted.
AssignmentStrategy = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]


def average(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Return consecutive queues; if they do not divide evenly, the first members get one more."""
    index = _index(client_id, members)
    if index is None:
        return []
    share, more = divmod(len(queues), len(members))
    start = index * share + min(index, more)
    return list(queues[start : start + share + (index < more)])


def by_circle(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Return every n-th queue, for a group of n members."""
    index = _index(client_id, members)
    return [] if index is None else list(queues[index :: len(members)])


def consistent_hash(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Return the queues whose hash is followed by one of the member's points on the ring."""
    if client_id not in members:
        return []
    ring = sorted((_ring_hash(f"{member}-{k}"), member) for member in members for k in range(VIRTUAL_NODES))
    points = [point for point, _ in ring]

    def owner(queue: MessageQueue) -> str:
        # Java hashes toString() of the queue; the same text gives the same assignment in mixed groups.
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
        return ring[bisect_left(points, _ring_hash(text)) % len(ring)][1]

    return [queue for queue in queues if owner(queue) == client_id]


def fixed(queues: Iterable[MessageQueue]) -> AssignmentStrategy:
    """Return a strategy that assigns these queues to this member, as far as they exist."""
    chosen = frozenset(queues)
    return lambda client_id, members, queues: [queue for queue in queues if queue in chosen]


def assign(
    client_id: str, members: Iterable[str], queues: Iterable[MessageQueue], strategy: AssignmentStrategy
) -> list[MessageQueue]:
    """Return this member's queues: sort both lists, so that all members agree on them, then apply the strategy."""
    return strategy(client_id, sorted(set(members)), sorted(set(queues)))


class AssignmentChanges(NamedTuple):
    """Difference between two assignments."""

    assigned: list[MessageQueue]
    revoked: list[MessageQueue]


def assignment_changes(owned: Iterable[MessageQueue], assignment: Iterable[MessageQueue]) -> AssignmentChanges:
    """Return which queues to start and which to revoke, to get from `owned` to `assignment`."""
    current, new = set(owned), set(assignment)
    return AssignmentChanges(sorted(new - current), sorted(current - new))


def _index(client_id: str, members: Sequence[str]) -> int | None:
    return members.index(client_id) if client_id in members else None


def _ring_hash(text: str) -> int:
    """Return the first four bytes of the MD5, as a number."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
