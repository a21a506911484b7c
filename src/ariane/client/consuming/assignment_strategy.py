"""Assignment strategies: which member of a group reads which queues. Pure functions. [AllocateMessageQueueAveragely, …]

Every member sorts queues and client ids and computes its own share; members do not talk to each other. So all members of a
group must use the same strategy.

    queues  q0 q1 q2 q3 q4 q5 q6      members  A B C
    average                           A: q0 q1 q2   B: q3 q4   C: q5 q6
    by circle                         A: q0 q3 q6   B: q1 q4   C: q2 q5
    consistent hash                   each queue to the next point of the ring; few queues move when a member joins or leaves
    fixed                             queues that the application names
    machine rooms                     only queues of brokers named `room@name`, of the given rooms
    nearby                            queues to members of their own room, by one of the others; those of empty rooms to all

    PushConsumer(…, strategy=nearby(average, room_of_queue=…, room_of_client=…))
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import md5
from typing import NamedTuple

from ariane.client.instance import validation
from ariane.errors import ConfigError
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
    return _on_ring(client_id, members, queues, wire_name=str)


def on_wire(strategy: AssignmentStrategy, wire_name: Callable[[str], str]) -> AssignmentStrategy:
    """Return the strategy for topics that have another name on the wire (a namespace); only hashes depend on the name."""
    return partial(_on_ring, wire_name=wire_name) if strategy is consistent_hash else strategy


def _on_ring(
    client_id: str, members: Sequence[str], queues: Sequence[MessageQueue], wire_name: Callable[[str], str]
) -> list[MessageQueue]:
    if client_id not in members:
        return []
    ring = sorted((_ring_hash(f"{member}-{k}"), member) for member in members for k in range(VIRTUAL_NODES))
    points = [point for point, _ in ring]

    def owner(queue: MessageQueue) -> str:
        # Java hashes toString() of the queue; the same text gives the same assignment in mixed groups.
        topic = wire_name(queue.topic)
        text = f"MessageQueue [topic={topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
        return ring[bisect_left(points, _ring_hash(text)) % len(ring)][1]

    return [queue for queue in queues if owner(queue) == client_id]


def fixed(queues: Iterable[MessageQueue]) -> AssignmentStrategy:
    """Return a strategy that assigns these queues to this member, as far as they exist."""
    chosen = frozenset(queues)
    return lambda client_id, members, queues: [queue for queue in queues if queue in chosen]


def machine_rooms(rooms: Iterable[str]) -> AssignmentStrategy:
    """Return a strategy that shares only the queues of brokers named `room@name`, for one of these rooms.

    Every member gets an equal number of consecutive queues; the remaining queues go to the first members, one each.

    Raises:
        ConfigError: `rooms` is not a list of names.
    """
    names = [rooms] if isinstance(rooms, str) else list(rooms)
    if isinstance(rooms, str) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError("rooms", rooms, 'expected a list of at least one room: ["east", "west"]')
    chosen = frozenset(names)

    def strategy(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        index = _index(client_id, members)
        if index is None:
            return []
        # Java splits at every @ and ignores empty parts at the end.
        parts = [(queue.broker.rstrip("@").split("@"), queue) for queue in queues]
        shared = [queue for names, queue in parts if len(names) == 2 and names[0] in chosen]
        share, more = divmod(len(shared), len(members))
        start, end = index * share, len(members) * share
        return shared[start : start + share] + shared[end + index : end + index + (index < more)]

    return strategy


def nearby(
    inner: AssignmentStrategy,
    *,
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
) -> AssignmentStrategy:
    """Return a strategy that prefers members in the room of a queue: `inner` shares the queues of a room among its members.
    Queues of rooms without a member are shared among all.

    Args:
        inner: Strategy within a room.
        room_of_queue: Returns the room of a queue's broker, not empty.
        room_of_client: Returns the room of a member by its client id, not empty.

    Raises:
        ConfigError: an argument is not such a function. From the strategy: a queue or a client has no room; the member then
            retains its queues.
    """
    validation.callback("inner", inner, "client_id", "members", "queues")
    validation.callback("room_of_queue", room_of_queue, "queue")
    validation.callback("room_of_client", room_of_client, "client_id")

    def strategy(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        if client_id not in members:
            return []
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(_room("room_of_queue", room_of_queue(queue), queue), []).append(queue)
        members_by_room: dict[str, list[str]] = {}
        for member in members:
            members_by_room.setdefault(_room("room_of_client", room_of_client(member), member), []).append(member)
        local = room_of_client(client_id)
        assigned = inner(client_id, members_by_room[local], queues_by_room.get(local, []))
        for room in sorted(queues_by_room.keys() - members_by_room.keys()):
            assigned += inner(client_id, members, queues_by_room[room])
        return assigned

    return strategy


def _room(argument: str, room: str, of: MessageQueue | str) -> str:
    if not isinstance(room, str) or not room:
        raise ConfigError(argument, of, f"expected the name of its room, not {room!r}")
    return room


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
