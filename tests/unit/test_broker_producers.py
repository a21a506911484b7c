"""Selection of the producer for a transaction check: connected producers of the group that read, in rotation."""

from __future__ import annotations

from ariane.broker.state.group_members import GroupMembers, Member
from ariane.broker.transactions.producer_selection import BUSY, ProducerSelector
from ariane.errors import ConnectionLost
from ariane.protocol.requests.messaging import CheckTransactionState


class Server:
    """Connections by number: which are there, which read, and what was sent."""

    def __init__(self, connected: set[int]) -> None:
        self.peers = connected
        self.reading = set(connected)
        self.sent: list[tuple[int, int]] = []

    def is_connected(self, peer_id: int) -> bool:
        return peer_id in self.peers

    def is_writable(self, peer_id: int) -> bool:
        return peer_id in self.reading

    def one_way(self, peer_id: int, code: int, fields: object, body: bytes) -> None:
        if peer_id not in self.peers:
            raise ConnectionLost(str(peer_id), "is closed")
        self.sent.append((peer_id, code))


def group(*peer_ids: int, name: str = "P", members: GroupMembers | None = None) -> GroupMembers:
    members = members or GroupMembers()
    for peer_id in peer_ids:
        members.heartbeat_producer(name, Member(f"c{peer_id}", peer_id, "a", "JAVA", 401, 0))
    return members


def test_each_group_rotates_over_its_producers_independently() -> None:
    members = group(3, 4, name="Q", members=group(1, 2))
    producers = ProducerSelector(members, Server({1, 2, 3, 4}))  # type: ignore[arg-type]
    assert [producers.pick("PQ"[number % 2]) for number in range(8)] == [1, 3, 2, 4, 1, 3, 2, 4]


def test_disconnected_producers_and_those_that_do_not_read_are_skipped() -> None:
    server = Server({1, 2, 3})
    producers = ProducerSelector(group(1, 2, 3, 4), server)  # type: ignore[arg-type]
    server.reading = {2}
    assert {producers.pick("P") for _ in range(5)} == {2}
    server.reading = set()
    assert producers.pick("P") == BUSY
    server.peers = set()
    assert (producers.pick("P"), producers.pick("unknown")) == (None, None)
    producers.send_check(1, CheckTransactionState(0, 0), b"")
    server.peers = {1}
    producers.send_check(1, CheckTransactionState(0, 0), b"")
    assert server.sent == [(1, 39)]
