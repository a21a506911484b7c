"""Idempotent with SQLite in processes that are killed: no message is skipped, and none returns after its acknowledgement."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

MESSAGES = 60  # of each group, every second one a row of Spark

# Consumes all messages in random order, and kills itself. Writes "c <number>" for each message that the listener receives, and
# "a <number>" when it would be acknowledged; both survive the process.
PROCESS = """
import asyncio, os, random, signal, sys, threading
from ariane.client import Idempotent, SqliteStore
from ariane.model.message import MessageQueue, ReceivedMessage

path, group, seed, kill_at, messages = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
chance = random.Random(seed)
log = os.open(f"{path}.{group}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
additions = iter(range(chance.randrange(1, 10), -1, -1))


class Store(SqliteStore):
    async def add(self, keys, ttl):
        is_last = kill_at in ("before", "after") and next(additions) == 0
        if is_last and kill_at == "before":
            kill()
        await super().add(keys, ttl)
        if is_last:
            kill()


def message(number):
    row = {"ARIANE_DEDUP": f"q/0/0/{number * 1000}"} if number % 2 else {}
    return ReceivedMessage(
        topic="T", body=b"%d" % number, properties={"UNIQ_KEY": str(number), **row}, queue=MessageQueue("T", "b", 0),
        queue_offset=0, commit_log_offset=0, message_id="", offset_message_id="", born_ms=0, born_host="", store_ms=0,
        store_host="", reconsume_times=0, flag=0, sys_flag=0, stored_size=0,
    )


async def listener(received):
    for one in received:
        os.write(log, b"c %s\\n" % one.body)


async def work():
    async with Idempotent(listener, store=Store(path), scope=group) as idempotent:
        numbers = list(range(messages))
        chance.shuffle(numbers)
        if kill_at == "any":
            threading.Timer(chance.random() * 0.03, kill).start()
        while numbers:
            batch = [numbers.pop() for _ in range(min(len(numbers), chance.randrange(1, 4)))]
            await idempotent([message(number) for number in batch])
            os.write(log, b"".join(b"a %d\\n" % number for number in batch))
    print("done")


asyncio.run(work())
"""


def run(path: Path, groups: Iterable[str], seed: int, kill_at: str) -> list[int]:
    """Run a process of each group at once. Return how they ended."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, path, group, f"{group}{seed}", kill_at, str(MESSAGES)],
            stdout=subprocess.PIPE,
        )
        for group in groups
    ]
    return [process.wait(120) for process in running if process.communicate(timeout=120)]


@pytest.mark.parametrize("seed", range(2))
def test_killed_processes_skip_no_message_and_repeat_no_acknowledged_one(seed: int, tmp_path: Path) -> None:
    path, chance, kills = tmp_path / "seen.db", random.Random(seed), 0
    for attempt in range(4):
        kill_at = chance.choice(("any", "any", "before", "after"))
        kills += sum(code == -signal.SIGKILL for code in run(path, "gh", 10 * seed + attempt, kill_at))
    assert run(path, "gh", 99, "never") == [0, 0]
    assert kills > 0
    for group in "gh":
        acknowledged, consumed = set(), set()
        for line in Path(f"{path}.{group}.log").read_text().splitlines():
            kind, number = line.split()
            assert kind == "a" or number not in acknowledged, f"{number} was delivered after its acknowledgement"
            (consumed if kind == "c" else acknowledged).add(number)
        assert consumed == acknowledged == {str(number) for number in range(MESSAGES)}


@pytest.mark.parametrize(("kill_at", "expected"), [("before", 2), ("after", 1)])
def test_a_success_counts_from_its_addition(kill_at: str, expected: int, tmp_path: Path) -> None:
    path = tmp_path / "seen.db"
    assert run(path, "g", 1, kill_at) == [-signal.SIGKILL]
    before = Path(f"{path}.g.log").read_text().splitlines()
    unacknowledged = {line[2:] for line in before if line[0] == "c"} - {line[2:] for line in before if line[0] == "a"}
    assert unacknowledged, "the last call was not acknowledged"
    assert run(path, "g", 2, "never") == [0]
    after = Path(f"{path}.g.log").read_text().splitlines()
    assert {after.count(f"c {number}") for number in unacknowledged} == {expected}
