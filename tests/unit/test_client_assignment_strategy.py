"""Assignment strategies: each queue to exactly one member, by Java's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.client.consuming import assignment_strategy
from ariane.errors import ConfigError
from ariane.model.message import MessageQueue

STRATEGIES = [assignment_strategy.average, assignment_strategy.by_circle, assignment_strategy.consistent_hash]


def queues(count: int, broker: str = "a") -> list[MessageQueue]:
    return [MessageQueue("T", broker, number) for number in range(count)]


def ids(found: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in found]


def test_average_assigns_one_more_queue_to_the_first_members():
    members = ["A", "B", "C"]
    shares = [ids(assignment_strategy.average(me, members, queues(7))) for me in members]
    assert shares == [[0, 1, 2], [3, 4], [5, 6]]


def test_average_with_more_members_than_queues_leaves_the_last_without():
    members = ["A", "B", "C"]
    assert [ids(assignment_strategy.average(me, members, queues(2))) for me in members] == [[0], [1], []]


def test_by_circle_assigns_every_mth_queue():
    assert ids(assignment_strategy.by_circle("B", ["A", "B", "C"], queues(7))) == [1, 4]


def test_assign_sorts_members_and_queues_first():
    mixed = [MessageQueue("T", "b", 0), MessageQueue("T", "a", 1), MessageQueue("T", "a", 0), MessageQueue("T", "b", 1)]
    assigned = assignment_strategy.assign("x", ["y", "x"], mixed, assignment_strategy.average)
    assert assigned == [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)]


def test_fixed_assigns_only_existing_queues():
    chosen = assignment_strategy.fixed([MessageQueue("T", "a", 1), MessageQueue("T", "a", 9)])
    assert ids(chosen("A", ["A"], queues(3))) == [1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_client_that_is_not_a_member_gets_no_queue(strategy):
    assert strategy("Z", ["A", "B"], queues(4)) == []


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(st.integers(1, 12), st.integers(0, 40))
def test_every_queue_has_exactly_one_owner(strategy, member_count, queue_count):
    members = [f"10.0.0.{number}@{number}" for number in range(member_count)]
    everything = queues(queue_count)
    given_out = [queue for me in members for queue in assignment_strategy.assign(me, members, everything, strategy)]
    assert sorted(given_out) == everything


@given(st.integers(1, 12), st.integers(0, 40))
def test_average_equals_the_formula_of_java(m, n):
    members = [f"{number:02}" for number in range(m)]
    for i, me in enumerate(members):
        mod = n % m
        size = 1 if n <= m else n // m + 1 if i < mod else n // m
        start = i * size if mod > 0 and i < mod else i * size + mod
        count = max(0, min(size, n - start))
        assert ids(assignment_strategy.average(me, members, queues(n))) == list(range(start, start + count))


def test_consistent_hash_moves_only_the_queues_of_a_member_that_left():
    members = ["A", "B", "C", "D"]
    before = {queue: me for me in members for queue in assignment_strategy.consistent_hash(me, members, queues(64))}
    after = {
        queue: me for me in "ABC" for queue in assignment_strategy.consistent_hash(me, ["A", "B", "C"], queues(64))
    }
    assert all(after[queue] == owner for queue, owner in before.items() if owner != "D")


ROOMS = assignment_strategy.machine_rooms(["east", "west"])


def in_rooms(*brokers: str, count: int = 2) -> list[MessageQueue]:
    return [MessageQueue("T", broker, number) for broker in brokers for number in range(count)]


def test_machine_rooms_shares_the_queues_of_the_chosen_rooms():
    everything = in_rooms("b", "east@a", "north@a", "west@a", "west@a@b", "west@z@", count=2)
    shares = [ROOMS(me, ["A", "B", "C", "D"], everything) for me in "ABCD"]
    names = [[f"{queue.broker}:{queue.queue_id}" for queue in share] for share in shares]
    assert names == [["east@a:0", "west@z@:0"], ["east@a:1", "west@z@:1"], ["west@a:0"], ["west@a:1"]]


@pytest.mark.parametrize("wrong", ["east", [], [1], ""])
def test_machine_rooms_needs_a_list_of_rooms(wrong):
    with pytest.raises(ConfigError, match="expected a list of at least one room"):
        assignment_strategy.machine_rooms(wrong)


def near(queue_room=lambda queue: queue.broker[0], client_room=lambda client: client[0]):
    return assignment_strategy.nearby(assignment_strategy.average, room_of_queue=queue_room, room_of_client=client_room)


def test_nearby_prefers_members_of_the_same_room_and_shares_rooms_without_members():
    everything = in_rooms("x1", "y1", "z1")
    members = ["x-a", "x-b", "y-a"]
    shares = [[f"{queue.broker}:{queue.queue_id}" for queue in near()(me, members, everything)] for me in members]
    assert shares == [["x1:0", "z1:0"], ["x1:1", "z1:1"], ["y1:0", "y1:1"]]
    assert near()("x-c", members, everything) == []


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=9), st.integers(0, 8))
def test_nearby_assigns_every_queue_to_exactly_one_member(rooms, count):
    members = sorted(f"{room}{number}" for number, room in enumerate(rooms))
    everything = in_rooms("x", "y", "z", count=count)
    given_out = [queue for me in members for queue in assignment_strategy.assign(me, members, everything, near())]
    assert sorted(given_out) == everything


@pytest.mark.parametrize(
    ("strategy", "said"),
    [(near(queue_room=lambda queue: ""), "room_of_queue"), (near(client_room=lambda client: None), "room_of_client")],
)
def test_nearby_refuses_queues_and_clients_without_a_room(strategy, said):
    with pytest.raises(ConfigError, match=f"{said} = .*expected the name of its room"):
        strategy("A", ["A"], in_rooms("x"))


def test_assignment_changes_are_the_difference():
    item, two, three = queues(3)
    assert assignment_strategy.assignment_changes([item, two], [two, three]) == assignment_strategy.AssignmentChanges(
        assigned=[three], revoked=[item]
    )
