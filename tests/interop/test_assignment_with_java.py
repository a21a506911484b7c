"""Assignment strategies: the same result as Java's classes, so that mixed groups agree on every queue."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from ariane.client.consuming import assignment_strategy
from ariane.client.consuming.assignment_strategy import AssignmentStrategy
from ariane.model.message import MessageQueue
from ariane.testing import java

pytestmark = pytest.mark.interop

CASES = 60
CHOSEN_ROOMS = ("east", "west")


@pytest.mark.parametrize("release", [java.V4, java.V5], ids=lambda release: release.version)
def test_every_strategy_assigns_what_java_assigns(release: java.JavaRelease) -> None:
    if reason := release.available():
        pytest.skip(f"Java peers: {reason}")
    rng = Random(4)  # any cases will do, the same in each run
    cases = [random_case(rng) for _ in range(CASES)]
    args = [
        text for members, queues in cases for text in (",".join(members), described(queues), ",".join(CHOSEN_ROOMS))
    ]
    results = java.events(release.run("ariane.peers.Allocate", args))
    assert len(results) == 6 * sum(len(members) for members, _ in cases)
    for result in results:
        members, queues = cases[result["case"]]
        ours = strategy(result["strategy"], queues)(result["member"], members, queues)
        assert [f"{queue.broker}:{queue.queue_id}" for queue in ours] == result["queues"], (result, members)
    assert any(result["strategy"] == "machine_rooms" and result["queues"] for result in results)


def random_case(rng: Random) -> tuple[list[str], list[MessageQueue]]:
    rooms = ("east", "west", "north", "")
    brokers = [f"{rng.choice(rooms[:3])}@broker-{rng.choice('abc')}{rng.choice(('', '', '@x', '@'))}" for _ in range(4)]
    brokers += ["plain"] * rng.randrange(2)
    members = {f"{rng.choice(rooms[:3])}@{rng.randrange(1, 250)}" for _ in range(rng.randrange(1, 7))}
    queues = {MessageQueue("T", broker, number) for broker in brokers for number in range(rng.randrange(1, 6))}
    return sorted(members), sorted(queues)


def described(queues: Sequence[MessageQueue]) -> str:
    return ",".join(f"{queue.broker}:{queue.queue_id}" for queue in queues)


def strategy(name: str, queues: Sequence[MessageQueue]) -> AssignmentStrategy:
    match name:
        case "fixed":
            return assignment_strategy.fixed(queues[::3])
        case "machine_rooms":
            return assignment_strategy.machine_rooms(CHOSEN_ROOMS)
        case "nearby":
            return assignment_strategy.nearby(
                assignment_strategy.average,
                room_of_queue=lambda queue: queue.broker.partition("@")[0],
                room_of_client=lambda client: client.partition("@")[0],
            )
        case _:
            return {
                "average": assignment_strategy.average,
                "by_circle": assignment_strategy.by_circle,
                "consistent_hash": assignment_strategy.consistent_hash,
            }[name]
