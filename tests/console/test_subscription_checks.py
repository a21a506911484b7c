"""Background checks of subscriptions: when they run, and what is unknown."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from ariane.clock import Clock
from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer, BrokerUnavailable
from ariane.cluster.groups.consumer_status import ConsumerState, ConsumerStates
from ariane.cluster.groups.group_admin import GroupConnections
from ariane.console.live.subscription_checks import UNKNOWN_MS, VALID_MS, SubscriptionChecks
from ariane.errors import NotFound
from ariane.protocol.requests.clients import SubscriptionData
from ariane.testing.clock import FakeClock


def states(*expressions: str, silent: int = 0) -> ConsumerStates:
    known = {
        f"c{number}": ConsumerState(
            f"c{number}", 401, {}, (SubscriptionData(topic="T", sub_string=expression),), {}, {}, None
        )
        for number, expression in enumerate(expressions)
    }
    connections = GroupConnections("G", (), cast(dict[str, BrokerServer], {}), frozenset(), None, None, None, {}, ())
    return ConsumerStates(connections, known, (BrokerUnavailable("client", "a:1", "silent"),) * silent)


class ScriptedAdmins:
    """Returns operations whose clients respond as scripted, one answer after the other."""

    def __init__(self, *answers: ConsumerStates | NotFound) -> None:
        self.answers = list(answers)
        self.groups: list[str] = []

    def admin(self, *, is_dry_run: bool = False) -> Admin:
        return cast(Admin, self)

    async def consumer_states(self, group: str) -> ConsumerStates:
        self.groups.append(group)
        answer = self.answers.pop(0)
        if isinstance(answer, NotFound):
            raise answer
        return answer


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def check(source: ScriptedAdmins, *waits_ms: int) -> list[bool | None]:
    """Request a group, again after each wait, and return the result after each request."""

    async def run() -> list[bool | None]:
        clock: Any = FakeClock()
        checks = SubscriptionChecks(source=source, clock=cast(Clock, clock))
        results = []
        for wait_ms in (0, *waits_ms):
            clock.advance(wait_ms / 1000)
            checks.request(["G"])
            checks.request(["G"])
            await settle()
            results.append(checks.result("G"))
        await checks.close()
        return results

    return asyncio.run(run())


def test_a_check_is_repeated_after_its_time() -> None:
    source = ScriptedAdmins(states("a", "a"), states("a", "b"))
    assert check(source, VALID_MS - 1, 1) == [False, False, True]
    assert len(source.groups) == 2


def test_a_client_that_does_not_respond_may_differ() -> None:
    source = ScriptedAdmins(states("a", silent=1), states("a", "b", silent=1))
    assert check(source, UNKNOWN_MS) == [None, True]


def test_a_group_that_went_offline_is_unknown() -> None:
    assert check(ScriptedAdmins(NotFound("connected client of consumer group", "G"))) == [None]
