"""Broker sets with failover: what members report, and planned switches."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ariane import Admin
from ariane.cli.admin.cluster_command import restart_arguments
from ariane.cluster.connection import BrokerServer
from ariane.cluster.rolling_restart import RestartStep, _follows, _set_steps
from ariane.cluster.servers.broker_runtime import parse_runtime
from ariane.cluster.servers.broker_sets import SWITCH_LIMIT_S, BrokerSet, MasterSwitch, broker_set
from ariane.errors import ArianeError, ConfigError, NotFound, ServerUnavailable, UsageError
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.failover import MemberAnswer, MemberRequest
from ariane.protocol.requests.routing import KvTableBody
from ariane.testing.clock import FakeClock
from scripted_peers import MASTER, NAMES, SLAVE, Script, ScriptedPeers

RUNTIME = RequestCode.GET_BROKER_RUNTIME_INFO
PLAIN = {
    "brokerVersionDesc": "V4_9_4",
    "bootTimestamp": "1",
    **dict.fromkeys(
        ("msgPutTotalTodayNow", "msgPutTotalTodayMorning", "msgGetTotalTodayNow", "msgGetTotalTodayMorning"), "0"
    ),
}


def member(
    name: str, role: str, *, epoch: int = 3, end: int = 100, in_sync: str = "a,b", refusal: str = ""
) -> dict[str, str]:
    return PLAIN | {
        "failoverMember": name, "failoverRole": role, "failoverEpoch": str(epoch), "failoverSet": in_sync,
        "failoverRefusal": refusal, "commitLogMaxOffset": str(end),
    }  # fmt: skip


def test_the_view_of_the_master_counts():
    former = parse_runtime("a:1", member("a", "FOLLOWER", epoch=2, end=80, in_sync="a,b,c", refusal="late"))
    master = parse_runtime("a:2", member("b", "MASTER", epoch=3, end=100, in_sync="b"))
    found = broker_set("broker-a", [former, master])
    assert found is not None
    assert found.master == found.members[1]
    assert found.in_sync == ("b",)
    assert [found.lag(item) for item in found.members] == [20, 0]
    alone = broker_set("broker-a", [former])
    assert alone is not None
    assert (alone.master, alone.in_sync, alone.lag(alone.members[0])) == (None, ("a", "b", "c"), None)
    assert broker_set("broker-a", [parse_runtime("a:1", PLAIN)]) is None


def answer(*, agrees: bool) -> bytes:
    return msgspec.json.encode(MemberAnswer("a", 3, 3, 100, "", agrees))


def switch(
    successor: str | None, later: dict[str, str], *, agrees: bool = True, is_dry_run: bool = False, **second: str
):
    """Switch from a at MASTER to b at SLAVE; `later` is what b reports after the hand-over."""
    is_over = False

    def hand_over(header: MemberRequest) -> bytes:
        nonlocal is_over
        is_over = True
        assert header == MemberRequest("handover", successor or "", 0)
        return answer(agrees=agrees)

    values = {"refusal": "", "in_sync": "a,b"} | second
    script: Script = {
        (MASTER, RUNTIME): lambda header: KvTableBody(member("a", "FOLLOWER" if is_over else "MASTER", in_sync=values["in_sync"])),
        (SLAVE, RUNTIME): lambda header: KvTableBody(
            later if is_over else member("b", "FOLLOWER", epoch=0, refusal=values["refusal"])
        ),
        (MASTER, RequestCode.MEMBER_REQUEST): hand_over,
    }  # fmt: skip

    async def play() -> MasterSwitch | None:
        async with Admin(NAMES, peers=ScriptedPeers(script), is_dry_run=is_dry_run) as admin:
            result = await admin.switch_master("broker-a", successor, clock=FakeClock(is_auto=True))
            assert is_over is not is_dry_run
            return result

    return asyncio.run(play())


def test_a_switch_is_over_when_the_successor_serves():
    for successor in ("b", None):
        result = switch(successor, member("b", "MASTER", epoch=4))
        assert (result.former, result.master) == ("a", "b")


def test_a_dry_run_changes_nothing():
    assert switch("b", {}, is_dry_run=True) is None


@pytest.mark.parametrize(
    ("successor", "options", "error", "text"),
    [
        ("a", {}, UsageError, "is the master of broker-a already"),
        ("x", {}, NotFound, "no member x; expected one of: b"),
        ("b", {"in_sync": "a"}, UsageError, "not in the in-sync set of broker-a: a"),
        (None, {"in_sync": "a"}, ServerUnavailable, "a is the only member of the in-sync set"),
        ("b", {"refusal": "the disk is slow"}, UsageError, "may not become the master: the disk is slow"),
        ("b", {"agrees": False}, ServerUnavailable, "not the master of broker-a any more"),
        ("b", {}, ServerUnavailable, f"within {SWITCH_LIMIT_S:g} s"),
    ],
)
def test_switches_that_cannot_succeed_are_errors(
    successor: str | None, options: dict[str, str], error: type[ArianeError], text: str
):
    with pytest.raises(error, match=text):
        switch(successor, member("b", "CANDIDATE", epoch=4), **options)


def test_a_broker_without_failover_has_no_set():
    async def play() -> None:
        peers = ScriptedPeers({(MASTER, RUNTIME): KvTableBody(PLAIN), (SLAVE, RUNTIME): KvTableBody(PLAIN)})
        async with Admin(NAMES, peers=peers) as admin:
            await admin.switch_master("broker-a")

    with pytest.raises(ConfigError, match="failoverEndpoints"):
        asyncio.run(play())


def promote_b(first: dict[str, str], second: dict[str, str], **options: bool):
    """Plan the promotion of b at SLAVE instead of a at MASTER, then execute it. Return the plan, and the new master."""
    is_over = False

    def accept(header: MemberRequest) -> bytes:
        nonlocal is_over
        is_over = True
        assert header == MemberRequest("acceptloss", "b", 3)
        return answer(agrees=options.get("agrees", True))

    script: Script = {
        (MASTER, RUNTIME): KvTableBody(first),
        (SLAVE, RUNTIME): lambda header: KvTableBody(member("b", "MASTER", epoch=4) if is_over else second),
        (SLAVE, RequestCode.MEMBER_REQUEST): accept,
    }

    async def play():
        peers = ScriptedPeers(script)
        async with Admin(NAMES, peers=peers, is_dry_run=options.get("is_dry_run", False)) as admin:
            plan = await admin.plan_lossy_promotion("broker-a", "b")
            return plan, await admin.promote_with_loss(plan, clock=FakeClock(is_auto=True))

    return asyncio.run(play())


def stopped(name: str, log_epoch: int, end: int) -> dict[str, str]:
    return member(name, "FOLLOWER", end=end) | {"failoverLogEpoch": str(log_epoch)}


@pytest.mark.parametrize(
    ("first", "second", "lost"),
    [
        ((3, 100), (3, 80), 20),
        ((3, 80), (3, 100), 0),
        ((2, 100), (3, 80), 0),  # the master of epoch 3 had everything acknowledged of epoch 2
        ((3, 80), (2, 100), None),
    ],
)
def test_a_promotion_shows_what_it_may_lose(first: tuple[int, int], second: tuple[int, int], lost: int | None):
    plan, result = promote_b(stopped("a", *first), stopped("b", *second))
    assert [log.member for log in plan.logs] == ["b", "a"]
    assert (plan.logs[1].end, plan.logs[1].lost) == (first[1], lost)
    assert result.master == "b"


def test_a_dry_run_shows_what_a_promotion_may_lose_and_changes_nothing():
    plan, result = promote_b(stopped("a", 3, 100), stopped("b", 3, 80), is_dry_run=True)
    assert (plan.logs[1].lost, result) == (20, None)


def test_a_loss_is_not_accepted_while_a_master_serves():
    with pytest.raises(UsageError, match="a is the master of broker-a"):
        promote_b(member("a", "MASTER"), member("b", "FOLLOWER"))
    with pytest.raises(ServerUnavailable, match="b does not lead broker-a"):
        promote_b(stopped("a", 3, 100), stopped("b", 3, 80), agrees=False)


def test_the_master_of_a_set_is_restarted_last_after_a_switch():
    runtimes = [
        parse_runtime(f"h:{number}", member(name, role, in_sync="a,b,c"))
        for number, (name, role) in enumerate((("a", "MASTER"), ("b", "FOLLOWER"), ("c", "FOLLOWER")))
    ]
    state = broker_set("broker-a", runtimes)
    assert state is not None
    servers = {f"h:{number}": BrokerServer("C", "broker-a", number, f"h:{number}") for number in range(3)}
    steps = _set_steps(state, servers)
    assert [(step.action, step.member) for step in steps] == [
        ("restart", "b"), ("restart", "c"), ("switch", "a"), ("restart", "a"),
    ]  # fmt: skip
    with pytest.raises(ServerUnavailable, match="c of broker-a: not in sync"):
        _set_steps(state._replace(in_sync=("a", "b")), servers)


def test_a_restart_command_gets_the_names_of_a_server_and_no_shell():
    step = RestartStep("restart", BrokerServer("C", "broker-a", 1, "10.0.0.1:10911"))
    assert restart_arguments("ssh {host} 'systemctl restart {broker}@{id}'", step) == [
        "ssh", "10.0.0.1", "systemctl restart broker-a@1",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="only the fields"):
        restart_arguments("x {name}", step)
    with pytest.raises(UsageError, match="cannot be the broker"):
        restart_arguments("x", step._replace(server=BrokerServer("C", "a;reboot", 1, "10.0.0.1:10911")))


def test_a_former_master_is_restarted_only_when_it_follows_the_new_one():
    """It stays in the set without being connected: another stop would let sends wait for it."""

    def state(former: dict[str, str]) -> BrokerSet:
        found = broker_set("broker-a", [parse_runtime("h:0", former), parse_runtime("h:1", member("b", "MASTER"))])
        assert found is not None
        return found

    assert not _follows(state(member("a", "RECONCILING")), "a")
    assert not _follows(state(member("a", "FOLLOWER", epoch=2)), "a")
    assert not _follows(state(member("a", "FOLLOWER")), "c")
    assert _follows(state(member("a", "FOLLOWER")), "a")
