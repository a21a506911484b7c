"""Flushes: waiters, deadlines and cancellation. No flush may run while the store is closed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from types import SimpleNamespace
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

    def begin_checkpoint(self) -> Slow:
        return self.flush

    def end_flush(self, flush: Slow, error: Any) -> None:
        self.ended.append((flush, error))


def flusher_of(store: object, executor: Executor, derived: Executor, timeout_s: float | None = None) -> Flusher:
    """Return a flusher without a listener; `timeout_s` is that of synchronous mode."""
    return Flusher(
        store=cast(MessageStore, store),
        executor=executor,
        derived_executor=derived,
        listener=SimpleNamespace(on_flushed=lambda: None),
        sync_timeout_s=timeout_s,
    )


def test_only_synchronous_mode_waits_for_the_disk() -> None:
    async def play() -> None:
        log = Log()
        nothing = cast(ThreadPoolExecutor, None)
        assert flusher_of(log, nothing, nothing).wait_flushed(10) is None
        waiter = flusher_of(log, nothing, nothing, timeout_s=0.01).wait_flushed(10)
        assert waiter is not None
        assert await waiter is False

    asyncio.run(play())


def test_a_cancelled_flush_ends_before_its_task_does() -> None:
    store = Store()

    async def play(executor: ThreadPoolExecutor) -> None:
        flusher = flusher_of(store, executor, executor)
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
        flusher = flusher_of(store, executor, derived)
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


def test_a_waiter_is_resolved_by_its_own_deadline_or_by_the_flush() -> None:
    async def play() -> None:
        log = Log()
        nothing = cast(ThreadPoolExecutor, None)
        flusher = flusher_of(log, nothing, nothing)
        assert await flusher.wait_on_disk(0, 60) is True
        short, long = flusher.wait_on_disk(10, 0.01), flusher.wait_on_disk(20, 60)
        later = flusher.wait_on_disk(30, 0.02)
        assert await short is False
        assert not long.done()
        assert await later is False
        assert not long.done()

    asyncio.run(play())
