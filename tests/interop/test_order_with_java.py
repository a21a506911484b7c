"""Orderly consumption by a Java 4.9.4 consumer and ours in one group on our broker, until one of them is killed.

Two groups read the same orders: in one the Java member is killed, in the other ours. The survivor receives the queues of the killed
member once their locks expire, which takes up to 60 s; uncommitted messages are redelivered.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ariane.client import Producer
from ariane.model.message import Message
from ariane.testing import LocalCluster, java

ORDERS = [f"order-{number}" for number in range(12)]
BETWEEN_STEPS_S = 0.1
JOIN_S = 90.0
LOCKS_RUN_OUT_S = 150.0  # 60 s, and a round of Java's allocation, on a busy machine

OUR_MEMBER = """
import asyncio, json, random, sys, time
from ariane.client import ConsumerSettings, PushConsumer

async def listener(messages):
    for one in messages:
        await asyncio.sleep(random.uniform(0, 0.02))  # without order, one would overtake another
        at = time.time_ns() / 1e6
        print(json.dumps({"key": one.keys[0], "step": int(one.body), "receivedAt": at}), flush=True)

async def run(namesrv, group):
    settings = ConsumerSettings(commit_interval=1, rebalance_interval=1)
    async with PushConsumer(namesrv, group, {"T": "*"}, listener, start="first", orderly=True, settings=settings):
        await asyncio.Event().wait()

asyncio.run(run(*sys.argv[1:]))
"""


class Got(NamedTuple):
    """One step of an order as received by a member."""

    at_ms: float
    order: str
    step: int
    member: str


@contextlib.contextmanager
def ours(namesrv: str, group: str) -> Iterator[java.JavaProgram]:
    with subprocess.Popen(
        [sys.executable, "-c", OUR_MEMBER, namesrv, group], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield java.JavaProgram(process)
        finally:
            process.kill()


def theirs(namesrv: str, group: str) -> contextlib.AbstractContextManager[java.JavaProgram]:
    return java.start("ariane.peers.Consume", [namesrv, "T", group, "*", "0", "600", "orderly", "pause=20"])


def got(member: str, program: java.JavaProgram) -> list[Got]:
    """Return the steps received so far."""
    results = []
    for line in program.lines(time.monotonic()):
        if line.startswith("{") and line.endswith("}"):  # the last line of a dead member may be cut
            item = json.loads(line)
            step = item["step"] if "step" in item else int(base64.b64decode(item["body"]))
            results.append(Got(item["receivedAt"], item["key"], step, member))
    return results


@pytest.mark.long(
    "tests/interop/test_mixed_groups.py::test_three_members_share_the_queues_without_loss_or_double_assignment",
    "tests/simulation/test_order.py::test_order_is_preserved",
)
def test_order_is_preserved_when_a_java_or_our_member_is_killed(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        groups, last = asyncio.run(play(namesrv))
    for group in groups:
        assert_in_order(group, last)


async def play(namesrv: str) -> tuple[list[list[Got]], int]:
    """Return the steps received by the members of each group, and the last step that all must receive."""
    async with Producer(namesrv, "P") as producer, contextlib.AsyncExitStack() as stack:
        steps = itertools.count()

        async def step() -> int:
            number = next(steps)
            for order in ORDERS:
                await producer.send(Message(topic="T", body=b"%d" % number, keys=[order]), order_key=order)
            return number

        async def until(condition: Callable[[], bool], deadline_s: float) -> None:
            deadline = time.monotonic() + deadline_s
            while not condition():
                assert time.monotonic() < deadline, [got(*member)[-3:] for pair in pairs for member in pair]
                await asyncio.sleep(BETWEEN_STEPS_S)
                await step()

        await step()
        # In each pair the second one is killed.
        pairs = (
            (("ours", stack.enter_context(ours(namesrv, "A"))), ("Java", stack.enter_context(theirs(namesrv, "A")))),
            (("Java", stack.enter_context(theirs(namesrv, "B"))), ("ours", stack.enter_context(ours(namesrv, "B")))),
        )

        def all_at_work() -> bool:
            return all(sum(item.step > 5 for item in got(*member)) > 20 for pair in pairs for member in pair)

        await until(all_at_work, JOIN_S)
        for _, (_, victim) in pairs:
            victim.process.kill()
        for _ in range(20):
            last = await step()

        def all_done() -> bool:
            return all(
                {item.order for item in got(*survivor) if item.step >= last} == {*ORDERS} for survivor, _ in pairs
            )

        await until(all_done, LOCKS_RUN_OUT_S)
        return [got(*survivor) + got(*victim) for survivor, victim in pairs], last


def assert_in_order(group: list[Got], last: int) -> None:
    by_order: dict[str, list[Got]] = defaultdict(list)
    for item in sorted(group):
        by_order[item.order].append(item)
    assert by_order.keys() == {*ORDERS}
    members = {item.member for item in group}
    assert members == {"ours", "Java"}
    assert any(
        {item.member for item in all_of_it} == members for all_of_it in by_order.values()
    )  # there was a handover
    for order, all_of_it in by_order.items():
        firsts = list(dict.fromkeys(item.step for item in all_of_it))
        assert firsts == list(range(len(firsts))) and len(firsts) > last, (
            order
        )  # none is missing, none came before its turn
        for member in members:
            own = [item.step for item in all_of_it if item.member == member]
            assert own == sorted(set(own)), (order, member)
        # Steps come again behind the kill only, never where one member left queues to the other.
        repeated = [two for two in itertools.pairwise(all_of_it) if two[1].step <= two[0].step]
        assert len(repeated) <= 1, (order, repeated)
