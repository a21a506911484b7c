"""Runs of a simulated broker set under faults, and rules that are removed from it.

    simulate(seed, faults=25)                    # InvariantBroken if a rule does not hold
    simulate(seed, planted="maximum")            # some seed must raise

`python tests/failover_faults.py MINUTES [SEED]` runs seeds for that time of the processor, and prints figures; `python
tests/failover_faults.py planted` prints which seed finds each removed rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context
from typing import Any
from unittest import mock

from msgspec.structs import replace

from ariane.failover import decisions
from ariane.failover.coordination import WriteOutcome
from ariane.failover.member_state import (
    EpochNamed,
    FailsafeAnswered,
    MemberState,
    ServiceAnswered,
    SwapRecord,
)
from ariane.testing.virtual.virtual_time import VirtualLoop
from failover_checker import InvariantBroken
from failover_world import NAMES, FailoverWorld, SimulationResult, Unreachable, retrieved

Fault = Callable[[FailoverWorld, random.Random], Awaitable[None]]


def some(world: FailoverWorld, rng: random.Random) -> str:
    """Return a member, most of the time the master."""
    return world.leader() or rng.choice(NAMES) if rng.random() < 0.6 else rng.choice(NAMES)


async def kill(world: FailoverWorld, rng: random.Random) -> None:
    name = some(world, rng)
    world.stop(name)
    await asyncio.sleep(rng.choice((0.5, 3, 15)))
    world.restart(name)


async def power_loss(world: FailoverWorld, rng: random.Random) -> None:
    name = some(world, rng)
    world.stop(name, loses_power=True)
    await asyncio.sleep(rng.choice((0.5, 5, 20)))
    world.restart(name)


async def power_loss_of_two(world: FailoverWorld, rng: random.Random) -> None:
    """A member loses power and returns; then the others stop before it has copied everything."""
    first = rng.choice(NAMES)
    world.stop(first, loses_power=True)
    await asyncio.sleep(0.2)
    world.restart(first)
    others = [name for name in NAMES if name != first]
    for name in others:
        world.stop(name)
    await asyncio.sleep(15)
    for name in others:
        world.restart(name)


async def power_loss_of_all(world: FailoverWorld, rng: random.Random) -> None:
    """The whole set loses power at once; with SYNC_FLUSH it goes on by itself afterwards."""
    for name in NAMES:
        world.stop(name, loses_power=True)
    await asyncio.sleep(rng.choice((0.5, 5)))
    for name in NAMES:
        world.restart(name)


async def planned_stop(world: FailoverWorld, rng: random.Random) -> None:
    name = some(world, rng)
    await world.stop_planned(name)
    await asyncio.sleep(rng.uniform(0, 5))
    world.restart(name)


async def pause(world: FailoverWorld, rng: random.Random) -> None:
    """SIGSTOP, or a suspended machine: time goes on, except for a clock that stands still."""
    name = some(world, rng)
    process = world.members[name].process
    seconds = rng.choice((0.5, 2, 9, 12, 25))
    process.pause()
    await asyncio.sleep(seconds)
    if world.planted == "clock that stands still":
        world.clocks[name].suspended_s += seconds
    process.resume()


async def isolate(world: FailoverWorld, rng: random.Random) -> None:
    """Cut a member off from the others, and from the service or not; sometimes in one direction."""
    name = some(world, rng)
    pairs = {(name, other) for other in NAMES} | {(other, name) for other in NAMES}
    pairs = {pair for pair in pairs if pair[0] != pair[1]}
    if rng.random() < 0.4:
        direction = rng.choice((0, 1))
        pairs = {pair for pair in pairs if pair[direction] == name}
    cut = rng.choice((world.service.cut, world.service.cut_answers, None))
    world.blocked |= pairs
    if cut is not None:
        cut.add(name)
    await asyncio.sleep(rng.choice((1, 5, 14, 25)))
    world.blocked -= pairs
    if cut is not None:
        cut.discard(name)


async def isolate_pair(world: FailoverWorld, rng: random.Random) -> None:
    first, second = rng.sample(NAMES, 2)
    pairs = {(first, second), (second, first)} if rng.random() < 0.6 else {(first, second)}
    world.blocked |= pairs
    await asyncio.sleep(rng.choice((1, 4, 12)))
    world.blocked -= pairs


async def cut_service(world: FailoverWorld, rng: random.Random) -> None:
    cut = rng.choice((world.service.cut, world.service.cut_answers))
    names = {some(world, rng)} if rng.random() < 0.7 else set(NAMES)
    cut |= names
    await asyncio.sleep(rng.choice((1, 5, 12)))
    cut -= names


async def late_service(world: FailoverWorld, rng: random.Random) -> None:
    world.service.late_s = world.service.limit_s * rng.choice((0.3, 0.97, 2, 4))
    await asyncio.sleep(rng.choice((3, 10)))
    world.service.late_s = 0.0


async def late_then_isolated(world: FailoverWorld, rng: random.Random) -> None:
    """A write of the master is applied or answered late; then it is alone at once, but reaches its clients."""
    service = world.service
    service.late_s, service.late_client = service.limit_s * rng.choice((0.97, 2)), ""
    leader = world.leader() or rng.choice(NAMES)
    until = world.loop.time() + 15
    while service.late_client != leader and world.loop.time() < until:
        await asyncio.sleep(0.02)
    service.late_s = 0.0
    pairs = {(leader, other) for other in NAMES} | {(other, leader) for other in NAMES}
    world.blocked |= pairs
    service.cut.add(leader)
    await asyncio.sleep(15)
    service.cut.discard(leader)
    world.blocked -= pairs


async def flapping_member(world: FailoverWorld, rng: random.Random) -> None:
    """A follower leaves the set, returns and leaves, while the master gets no answers of the service."""
    leader = world.leader() or rng.choice(NAMES)
    member = rng.choice([name for name in NAMES if name != leader])
    pairs = {(leader, member), (member, leader)}
    world.blocked |= pairs
    await asyncio.sleep(rng.uniform(2, 3))
    world.service.cut_answers.add(leader)
    world.blocked -= pairs
    await asyncio.sleep(rng.uniform(0.3, 1.5))
    world.blocked |= pairs
    await asyncio.sleep(rng.uniform(3, 6))
    world.service.cut_answers.discard(leader)
    world.blocked -= pairs


async def half_isolated(world: FailoverWorld, rng: random.Random) -> None:
    """The master reaches one of two members, and not the service."""
    leader = world.leader() or rng.choice(NAMES)
    member = rng.choice([name for name in NAMES if name != leader])
    pairs = {(leader, member), (member, leader)}
    world.blocked |= pairs
    world.service.cut.add(leader)
    await asyncio.sleep(rng.choice((12, 18, 25)))
    world.service.cut.discard(leader)
    world.blocked -= pairs


async def service_down(world: FailoverWorld, rng: random.Random) -> None:
    world.service.is_down = True
    await asyncio.sleep(rng.choice((1, 4, 15)))
    world.service.is_down = False


async def service_elects(world: FailoverWorld, rng: random.Random) -> None:
    world.service.change_leader()


async def hung_disk(world: FailoverWorld, rng: random.Random) -> None:
    world.disks[some(world, rng)].hung_until = world.loop.time() + rng.choice((1, 4, 15))


async def failed_flush(world: FailoverWorld, rng: random.Random) -> None:
    """A flush fails once; later the process is killed, and its file system is mounted again."""
    member = world.members[some(world, rng)]
    if member.process.is_alive:
        member.process.start(member.fail_flush()).add_done_callback(retrieved, context=Context())
    await asyncio.sleep(rng.choice((1, 9, 20)))
    world.stop(member.name, is_mounted_again=True)
    await asyncio.sleep(rng.choice((0.5, 5)))
    world.restart(member.name)


async def stray_epoch(world: FailoverWorld, rng: random.Random) -> None:
    """A directory of another environment is started with the name of a member, and greets with what it promised there."""
    source, target = rng.sample(NAMES, 2)
    with contextlib.suppress(Unreachable):
        await world.call(source, target, "handshake", 1000)


FAULTS: tuple[Fault, ...] = (
    kill,
    power_loss,
    power_loss_of_two,
    power_loss_of_all,
    planned_stop,
    pause,
    isolate,
    isolate_pair,
    cut_service,
    late_service,
    late_then_isolated,
    flapping_member,
    half_isolated,
    service_down,
    service_elects,
    hung_disk,
    failed_flush,
    stray_epoch,
)


async def heal(world: FailoverWorld) -> None:
    world.blocked.clear()
    world.service.cut.clear()
    world.service.cut_answers.clear()
    world.service.late_s, world.service.is_down = 0.0, False
    for name in NAMES:
        world.members[name].process.resume()
        world.disks[name].hung_until = 0.0
        if world.members[name].state.is_stopping:  # the planned stop was cancelled halfway
            world.stop(name)
        world.restart(name)


async def run(world: FailoverWorld, faults: int) -> SimulationResult:
    rng = world.rng
    await world.start()
    clients = asyncio.ensure_future(world.clients())
    ttl_s = world.times.ttl_s
    await world.wait_serving(2 * ttl_s + 5)
    # Few kinds of faults per seed: others would hide what these do to each other.
    kinds = PLANTED[world.planted][0] if world.planted else rng.sample(FAULTS, rng.randint(1, 4))
    pace_s = 16.0 if world.planted else rng.choice((2.0, 6.0, 16.0))
    tasks = set()
    for _ in range(faults):
        tasks.add(asyncio.ensure_future(rng.choice(kinds)(world, rng)))
        world.faults += 1
        await world.wait(rng.expovariate(1 / pace_s))
        tasks = {task for task in tasks if not task.done() or task.result()}
    for task in tasks:
        task.cancel()
    await heal(world)
    # Members that were ineligible are admitted again after two ttls; then a master serves within the promised time.
    await world.wait(2 * ttl_s + 1)
    is_eligible = world.has_eligible_member()
    if is_eligible:
        await world.wait_serving(2 * ttl_s + 5)
        if (leader := world.leader()) is not None:
            world.disks[leader].hung_until = world.loop.time() + 10 * ttl_s
            await world.wait(ttl_s / 3 + 1)
            if any(world.disks[name].member in world.checker.record.in_sync for name in NAMES if name != leader):  # type: ignore[union-attr]
                await world.wait_serving(2 * ttl_s + 5)
    clients.cancel()
    await asyncio.gather(clients, return_exceptions=True)
    checker = world.checker
    return SimulationResult(
        world.faults, len(checker.acknowledged), checker.reads, len(checker.holders), not is_eligible
    )


def simulate(seed: int, *, faults: int = 25, planted: str = "", prepare_s: float = 0.0) -> SimulationResult:
    """Run one seed, with promotions that take at least `prepare_s`.

    Raises:
        InvariantBroken: names the invariant.
    """
    loop = VirtualLoop()
    world = FailoverWorld(loop, seed, planted, prepare_s=prepare_s)
    if planted:
        plant_in_service(world)
    try:
        with plant(planted):
            return loop.run_until_complete(run(world, faults))
    finally:
        loop.close()


# --- planted faults ---


def deadline_from_answer(state: MemberState, observation: ServiceAnswered, now: float) -> decisions.Decision:
    return ON_ANSWER(replace(state, busy_since=now), observation, now)


def unknown_is_no(state: MemberState, observation: ServiceAnswered, now: float) -> decisions.Decision:
    decision = ON_ANSWER(state, observation, now)
    if observation.result.outcome is WriteOutcome.UNKNOWN and isinstance(observation.request, SwapRecord):
        return decisions.Decision(replace(decision.state, open_write=None), decision.actions)
    return decision


def failsafe_by_quorum(state: MemberState, observation: FailsafeAnswered, now: float) -> decisions.Decision:
    if observation.accepted:
        names = frozenset(member.name for member in decisions.required_members(state))
        observation = replace(observation, accepted=names)
    return ON_FAILSAFE(state, observation, now)


def stored_only(state: MemberState) -> frozenset[Any]:
    """The set of the record, without that of an open write: members are not required before they are stored."""
    return REQUIRED(replace(state, open_write=None))


def smaller_at_once(state: MemberState) -> frozenset[Any]:
    """The intersection: an acknowledgement does not wait until the record has the smaller set."""
    proposed = state.open_write.record.in_sync if isinstance(state.open_write, SwapRecord) else None
    stored = stored_only(state)
    return stored & frozenset(proposed) if proposed is not None else stored


ON_ANSWER, ON_FAILSAFE = decisions.on_answer, decisions.on_failsafe
REQUIRED = decisions.required_members
RULE_FAULTS: dict[str, Callable[[], Any]] = {
    "deadline from the answer": lambda: mock.patch.dict(decisions.RULES, {ServiceAnswered: deadline_from_answer}),
    "unknown swap is no": lambda: mock.patch.dict(decisions.RULES, {ServiceAnswered: unknown_is_no}),
    "set smaller after the acknowledgement": lambda: mock.patch.object(decisions, "required_members", smaller_at_once),
    "expansion without the union": lambda: mock.patch.object(decisions, "required_members", stored_only),
    "renewal although the disk hangs": lambda: mock.patch.object(decisions, "is_healthy", lambda *args: True),
    "an epoch that a member names is stored": lambda: mock.patch.dict(
        decisions.RULES, {EpochNamed: decisions.on_higher_epoch}
    ),
    "failsafe by quorum": lambda: mock.patch.dict(decisions.RULES, {FailsafeAnswered: failsafe_by_quorum}),
}


@contextlib.contextmanager
def plant(planted: str) -> Iterator[None]:
    """Remove a rule of the decisions while a run lasts. Other faults are planted where the world reads `planted`."""
    with RULE_FAULTS.get(planted, contextlib.nullcontext)():
        yield


def plant_in_service(world: FailoverWorld) -> None:
    service = world.service
    service.has_keep_alive = world.planted == "keep-alive without quorum"
    service.compares_lease = world.planted != "renewal does not compare the lease"
    service.stale_s = 15.0 if world.planted == "stale candidate" else 0.0


# What is removed: kinds of faults that can show it, the invariants that break, and the seed to begin with.
PLANTED: dict[str, tuple[tuple[Fault, ...], str, int]] = {
    "maximum": ((kill, isolate_pair), "1 3 7", 0),
    "set smaller after the acknowledgement": ((kill, isolate_pair), "1 3 7", 0),
    "expansion without the union": ((kill, isolate_pair), "1 3 7", 9),
    "unknown swap is no": ((flapping_member,), "1 3 7", 0),
    "keep-alive without quorum": ((half_isolated, late_then_isolated), "3 13", 0),
    "renewal does not compare the lease": ((late_then_isolated,), "3 13", 15),
    "deadline from the answer": ((late_then_isolated,), "3 13", 1),
    "clock that stands still": ((pause,), "3 13", 0),
    "check when the wait begins": ((pause, isolate), "3 13", 0),
    "renewal although the disk hangs": ((hung_disk,), "12", 0),
    "same incarnation after another boot": ((power_loss_of_two, power_loss), "1 3 7", 0),
    "same incarnation after a failed flush": ((failed_flush,), "1 3 7 11", 2),
    "records of a failed flush are trusted": ((failed_flush,), "1 3 7", 1),
    "acknowledged before the flush": ((power_loss_of_all,), "1 3 7", 0),
    "stale candidate": ((planned_stop, isolate_pair), "1 2 3 7", 5),
    "set below the least size": ((kill, isolate), "14", 0),
    "an epoch that a member names is stored": ((stray_epoch,), "12", 0),
    "failsafe by quorum": ((half_isolated,), "3 13", 1),
}


def find(planted: str, tries: int = 12) -> tuple[int, str]:
    """Return the first seed that finds a removed rule, and the invariant that it breaks; -1 if none of `tries` finds it."""
    _, _, first = PLANTED[planted]
    for seed in range(first, first + tries):
        try:
            simulate(seed, planted=planted)
        except InvariantBroken as error:
            return seed, str(error).split(":")[0]
    return -1, ""


def print_planted() -> None:
    """Print which seed finds each removed rule."""
    for planted in PLANTED:
        seed, invariant = find(planted)
        print(f"{planted}: seed {seed}, invariant {invariant}", flush=True)


def main(minutes: float, first: int) -> None:
    """Run seeds for a time and print figures, also every hundred seeds."""
    started, seed, totals = time.process_time(), first, [0, 0, 0, 0, 0]
    names = ("faults", "acknowledged", "reads", "epochs", "seeds unavailable by rule")
    while time.process_time() - started < 60 * minutes:
        try:
            result = simulate(seed, faults=80)
        except InvariantBroken as error:
            raise SystemExit(f"Seed {seed} breaks invariant {error}") from error
        totals = [total + int(figure) for total, figure in zip(totals, result, strict=True)]
        seed += 1
        if (seed - first) % 100 == 0:
            figures = ", ".join(f"{total} {name}" for name, total in zip(names, totals, strict=True))
            print(f"{seed - first} seeds from {first}: {figures}", flush=True)
    figures = ", ".join(f"{total} {name}" for name, total in zip(names, totals, strict=True))
    print(f"{seed - first} seeds from {first}: {figures}")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    if sys.argv[1] == "planted":
        print_planted()
    else:
        main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
