"""A flush that is cancelled while it runs: a broker that stops must not leave one under way behind it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from ariane.broker.flusher import Flusher
from ariane.store.files import PARALLEL, SystemDisk
from ariane.store.message_store import MessageStore


class Slow:
    """A flush that goes on until it is released."""

    def __init__(self) -> None:
        self.began, self.released = threading.Event(), threading.Event()

    def run(self) -> None:
        self.began.set()
        assert self.released.wait(30)


class Store:
    """Has one flush, and keeps how it ended."""

    def __init__(self) -> None:
        self.flush = Slow()
        self.ended: list[tuple[Slow, Any]] = []

    def begin_flush_derived(self) -> Slow:
        return self.flush

    def end_flush(self, flush: Slow, error: Any) -> None:
        self.ended.append((flush, error))


def test_a_cancelled_flush_ends_before_its_task_does() -> None:
    store = Store()

    async def play(executor: ThreadPoolExecutor) -> None:
        flusher = Flusher(cast(MessageStore, store), executor, executor, lambda: None)
        task = asyncio.create_task(flusher.flush_derived())
        assert await asyncio.to_thread(store.flush.began.wait, 30)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not task.done() and not store.ended
        store.flush.released.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(play(executor))
    assert store.ended == [(store.flush, None)]


def test_a_flush_of_derived_files_does_not_delay_the_log() -> None:
    class Both(Store):
        flushed = 0

        def begin_flush(self) -> Any:
            class Quick:
                def run(self) -> None:
                    pass

            return Quick()

    async def play(executor: ThreadPoolExecutor, derived: ThreadPoolExecutor) -> None:
        store = Both()
        flusher = Flusher(cast(MessageStore, store), executor, derived, lambda: None)
        task = asyncio.create_task(flusher.flush_derived())
        assert await asyncio.to_thread(store.flush.began.wait, 30)
        await asyncio.wait_for(flusher.flush_once(), 30)
        assert not task.done()
        store.flush.released.set()
        await task

    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as derived:
        asyncio.run(play(executor, derived))


def test_many_files_are_flushed_at_the_same_time() -> None:
    together = threading.Barrier(PARALLEL)
    SystemDisk().for_each(lambda path: together.wait(30) and None, [str(number) for number in range(PARALLEL)])

    def fail(path: str) -> None:
        raise OSError(5, "bad disk", path)

    with pytest.raises(OSError, match="bad disk"):
        SystemDisk().for_each(fail, [str(number) for number in range(PARALLEL)])


class Log:
    """A store whose log is flushed as far as the test says."""

    def __init__(self) -> None:
        self.flushed = 0


def test_who_waits_is_answered_by_its_own_deadline_or_by_the_flush() -> None:
    async def play() -> None:
        log = Log()
        nothing = cast(ThreadPoolExecutor, None)
        flusher = Flusher(cast(MessageStore, log), nothing, nothing, lambda: None)
        assert await flusher.wait_flushed(0, 60) is True
        short, long = flusher.wait_flushed(10, 0.01), flusher.wait_flushed(20, 60)
        later = flusher.wait_flushed(30, 0.02)
        assert await short is False
        assert not long.done()
        assert await later is False
        assert not long.done()

    asyncio.run(play())
