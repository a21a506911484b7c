"""A row is given to the listener until it was consumed once, and never is one left out that was not."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from ariane.client import idempotent
from ariane.client.idempotent import BLOCK, Idempotent, Seen
from ariane.errors import ConfigError
from ariane.model import dedup
from ariane.model.dedup import Row
from ariane.model.message import MessageQueue, ReceivedMessage

QUEUE = MessageQueue("T", "broker-a", 0)


def message(row: Row | None, body: bytes = b"") -> ReceivedMessage:
    return ReceivedMessage(
        topic="T", body=body, properties={} if row is None else {dedup.DEDUP: dedup.text(row)}, queue=QUEUE,
        queue_offset=0, commit_log_offset=0, message_id="", offset_message_id="", born_ms=0, born_host="", store_ms=0,
        store_host="", reconsume_times=0, flag=0, sys_flag=0, stored_size=0,
    )  # fmt: skip


def rows(*sequences: int, batch: int = 0) -> list[ReceivedMessage]:
    return [message(Row("q-1", batch, 2, sequence)) for sequence in sequences]


class Listener:
    """Keeps what it is given; raises what it is told to."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        for one in messages:
            row = dedup.parse(one.properties.get(dedup.DEDUP, ""))
            self.given.append(-1 if row is None else row.sequence)


def test_the_name_of_a_row_is_read_as_it_was_written() -> None:
    row = Row("0d6b3d3c-8a30-4c5e-9c1f-3b6a1f4b8b7e", 12, 0, 5)
    assert dedup.parse(dedup.text(row)) == row
    for strange in (
        "",
        "a/1/2",
        "a/1/2/3/4",
        "a/01/2/3",
        "a/-1/2/3",
        "a/x/2/3",
        "/1/2/3",
        "a b/1/2/3",
        "a/1/2/3\n",
        "a/1/2/٣",
    ):
        assert dedup.parse(strange) is None


def test_copies_are_left_out_in_the_same_call_and_in_later_ones() -> None:
    async def work() -> None:
        listener = Listener()
        once = Idempotent(listener)
        await once(rows(0, 1, 1, 0, 2))
        await once(rows(1, 3))
        await once(rows(0, 1))
        await once([message(None), message(None), *rows(0, batch=1)])
        assert listener.given == [0, 1, 2, 3, -1, -1, 0]
        assert once.left_out == 5

    asyncio.run(work())


def test_what_failed_is_given_again() -> None:
    async def work() -> None:
        listener = Listener()
        once = Idempotent(listener)
        listener.error = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            await once(rows(0, 1))
        listener.error = None
        await once(rows(0))
        await once(rows(0, 1))
        assert listener.given == [0, 1]

    asyncio.run(work())


def test_a_copy_waits_for_the_one_that_is_being_consumed() -> None:
    async def work(first_fails: bool) -> list[int]:
        listener = Listener()
        listener.gate = asyncio.Event()
        once = Idempotent(listener)
        calls = [asyncio.create_task(once(rows(*some))) for some in ((0, 1), (1, 0, 2), (2, 1))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        if first_fails:
            calls[0].cancel()
        listener.gate.set()
        await asyncio.wait_for(asyncio.wait(calls), 5)
        return sorted(listener.given)

    assert asyncio.run(work(False)) == [0, 1, 2]
    assert asyncio.run(work(True)) == [0, 1, 2]


def test_a_plain_function_is_called_in_a_thread() -> None:
    given: list[Any] = []
    once = Idempotent(lambda messages: given.append(len(messages)))
    asyncio.run(once(rows(0, 1)))
    assert given == [2]


def test_a_restart_does_not_forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "seen"
    monkeypatch.setattr(idempotent, "JOURNAL_LINES", 7)

    async def run(*some: int) -> list[int]:
        listener = Listener()
        async with Idempotent(listener, path) as once:
            for number in some:
                await once(rows(number))
        return listener.given

    first = list(range(0, 40, 2))
    assert asyncio.run(run(*first)) == first
    with path.open("ab") as file:  # as a process leaves it that is killed within a write
        file.write(b"+ q-1/0/2/1")  # the beginning of 13, or 1 itself
    assert asyncio.run(run(*range(40))) == list(range(1, 40, 2))
    with path.open("ab") as file:
        file.write(b"+ q-1/0\n\xff\xfe\n= q-1/0/2/0 AAAA\n")
    assert asyncio.run(run(*range(45))) == [40, 41, 42, 43, 44]


def test_a_memory_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    async def work() -> None:
        async with Idempotent(Listener(), tmp_path):
            pass

    with pytest.raises(ConfigError, match="the memory cannot be read"):
        asyncio.run(work())


@pytest.mark.parametrize("seed", range(10))
def test_bits_say_what_a_set_says_and_forget_only_the_oldest_blocks(seed: int) -> None:
    chance = random.Random(seed)
    seen, exact = Seen(), set()
    for _ in range(3000):
        row = Row(chance.choice("ab"), chance.randrange(3), chance.randrange(2), chance.randrange(3 * BLOCK))
        assert (row in seen) == (row in exact)
        seen.add(row)
        exact.add(row)
    again = Seen()
    assert all(again.read(line) for line in seen.lines())
    assert all(row in again for row in exact)
    small = Seen(blocks_max=2)
    for block in range(4):
        small.add(Row("a", 0, 0, block * BLOCK))
    assert [Row("a", 0, 0, block * BLOCK) in small for block in range(4)] == [False, False, True, True]
