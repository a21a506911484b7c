"""Idempotent delivers a row until it was consumed once, and never skips an unconsumed one."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from client_script import invoker

from ariane.client import idempotent
from ariane.client.hooks import ConsumeReturn
from ariane.client.idempotent import BLOCK, ConsumedRows, Idempotent
from ariane.client.listener_invoker import ListenerInvoker
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
    """Records its messages and raises the prepared errors."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        for sent_message in messages:
            row = dedup.parse(sent_message.properties.get(dedup.DEDUP, ""))
            self.given.append(-1 if row is None else row.sequence)


def test_row_names_round_trip() -> None:
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


def test_copies_are_skipped_in_the_same_call_and_in_later_ones() -> None:
    async def work() -> None:
        listener = Listener()
        once = Idempotent(listener)
        await once(rows(0, 1, 1, 0, 2))
        await once(rows(1, 3))
        await once(rows(0, 1))
        await once([message(None), message(None), *rows(0, batch=1)])
        assert listener.given == [0, 1, 2, 3, -1, -1, 0]
        assert once.skipped == 5

    asyncio.run(work())


def test_failed_rows_are_delivered_again() -> None:
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


def test_a_copy_waits_for_the_one_being_consumed() -> None:
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


class Held:
    """A plain function that blocks until its gate opens and counts its calls and concurrent calls."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.errors: list[Exception] = []
        self.threads: list[str] = []
        self.at_once = self.at_once_max = 0

    def __call__(self, messages: list[ReceivedMessage]) -> None:
        self.threads.append(threading.current_thread().name)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            assert self.gate.wait(30)
            if self.errors:
                raise self.errors.pop()
        finally:
            self.at_once -= 1


def listening_to(once: Idempotent, timeout_ms: int = 20, **settings: Any) -> ListenerInvoker:
    return invoker(once, consume_timeout=timeout_ms / 1000, concurrency=4, **settings)


@pytest.mark.parametrize("fails", [False, True])
def test_rows_of_a_timed_out_thread_are_blocked_until_it_has_ended(fails: bool, tmp_path: Path) -> None:
    listener = Held()
    if fails:
        listener.errors.append(ValueError("late"))

    async def work() -> None:
        async with Idempotent(listener, tmp_path / "seen") as once:
            listening = listening_to(once)
            try:
                assert (await listening.invoke_once(QUEUE, rows(0, 1))).status is ConsumeReturn.TIME_OUT
                repeated = [asyncio.ensure_future(listening.invoke_once(QUEUE, rows(number))) for number in (0, 1, 0)]
                done, _ = await asyncio.wait(repeated, timeout=0.05)
                assert not done and len(listener.threads) == 1
                repeated[2].cancel()  # one that waits frees nothing
                listener.gate.set()
                assert all([(await item).is_success for item in repeated[:2]])
                assert once.skipped == (0 if fails else 2)
            finally:
                listener.gate.set()
                listening.close()

    asyncio.run(work())
    assert len(listener.threads) == (3 if fails else 1)
    if not fails:
        assert listener.at_once_max == 1
    seen = ConsumedRows()
    assert all(seen.read(line) for line in (tmp_path / "seen").read_text().splitlines())
    assert all(Row("q-1", 0, 2, number) in seen for number in (0, 1))


def test_a_cancelled_call_without_a_consumer_blocks_its_rows_too() -> None:
    listener = Held()

    async def work() -> None:
        once = Idempotent(listener)
        first = asyncio.ensure_future(once(rows(0)))
        while not listener.threads:
            await asyncio.sleep(0)
        first.cancel()
        second = asyncio.ensure_future(once(rows(0)))
        await asyncio.wait([first])
        listener.gate.set()
        await second
        assert (first.cancelled(), len(listener.threads), once.skipped) == (True, 1, 1)

    asyncio.run(work())


def test_a_cancelled_call_not_yet_started_by_a_thread_releases_its_rows() -> None:
    listener = Held()

    async def work() -> None:
        once = Idempotent(listener)
        listening = invoker(once)
        try:
            first, second = (asyncio.ensure_future(listening.invoke_once(QUEUE, rows(number))) for number in (0, 1))
            while not listener.threads:
                await asyncio.sleep(0)
            second.cancel()
            await asyncio.wait([second])
            third = asyncio.ensure_future(listening.invoke_once(QUEUE, rows(1)))
            listener.gate.set()
            assert (await first).is_success and (await third).is_success
            assert len(listener.threads) == 2
        finally:
            listener.gate.set()
            listening.close()

    asyncio.run(work())


def test_the_consumers_rules_for_threads_apply_to_the_wrapped_listener() -> None:
    listener = Held()

    async def work() -> None:
        listening = listening_to(Idempotent(listener), timeout_ms=1, is_orderly=True)
        assert listening.uses_threads
        call = asyncio.ensure_future(listening.invoke_once(QUEUE, rows(0)))
        try:
            done, _ = await asyncio.wait([call], timeout=0.05)
            assert not done
        finally:
            listener.gate.set()
            await asyncio.wait([call])
            listening.close()
        assert call.result().is_success
        assert listener.threads[0].startswith("listener-g")
        assert not listening_to(Idempotent(Listener())).uses_threads

    asyncio.run(work())


def test_a_journal_file_is_locked_against_a_second_user(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "seen"
        async with Idempotent(Listener(), path) as once:
            with pytest.raises(ConfigError, match="another Idempotent"):
                await Idempotent(Listener(), path).__aenter__()
            await once(rows(0))
        await once(rows(1))  # closed: the file may be another's by now
        listener = Listener()
        async with Idempotent(listener, path) as once:
            await once(rows(0, 1))
        assert listener.given == [1]

    asyncio.run(work())


def test_a_restart_remembers_consumed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_unreadable_journal_is_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with Idempotent(Listener(), tmp_path):
            pass

    with pytest.raises(ConfigError, match="the journal cannot be read"):
        asyncio.run(work())


@pytest.mark.parametrize("seed", range(10))
def test_consumed_rows_equal_a_set_and_only_the_oldest_blocks_are_evicted(seed: int) -> None:
    chance = random.Random(seed)
    seen, exact = ConsumedRows(), set()
    for _ in range(3000):
        row = Row(chance.choice("ab"), chance.randrange(3), chance.randrange(2), chance.randrange(3 * BLOCK))
        assert (row in seen) == (row in exact)
        seen.add(row)
        exact.add(row)
    repeated = ConsumedRows()
    assert all(repeated.read(line) for line in seen.lines())
    assert all(row in repeated for row in exact)
    small = ConsumedRows(blocks_max=2)
    for block in range(4):
        small.add(Row("a", 0, 0, block * BLOCK))
    assert [Row("a", 0, 0, block * BLOCK) in small for block in range(4)] == [False, False, True, True]


def test_clients_can_be_imported_without_file_locks() -> None:
    without = "import sys; sys.modules['fcntl'] = None; import ariane.client"  # as on Windows
    subprocess.run([sys.executable, "-c", without], check=True)


def test_a_journal_needs_file_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)

    async def work() -> None:
        async with Idempotent(print):
            pass
        with pytest.raises(ConfigError, match="needs file locks"):
            async with Idempotent(print, tmp_path / "seen"):
                pass

    asyncio.run(work())
