"""Flushes: waiters, deadlines and cancellation. No flush may run while the store is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ariane.broker.lifecycle.flusher import Flusher
from ariane.broker.lifecycle.offset_waiters import OffsetWaiter
from ariane.errors import FlushFailed
from ariane.store.disk.files import PARALLEL, SystemDisk
from ariane.store.message_store import MessageStore
from ariane.testing.virtual.virtual_time import VirtualLoop


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


# --- group commit, with a clock that jumps and flushes that the test runs ---


class HeldLoop(VirtualLoop):
    """Keeps work for executors until the test runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[Callable[[], None]] = []

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        outcome: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            try:
                outcome.set_result(func(*args))
            except Exception as error:
                outcome.set_exception(error)

        self.work.append(run)
        return outcome


class GrowingLog:
    """A store: `end` is written, `flushed` is on the disk. `error` is raised by the next flushes."""

    def __init__(self) -> None:
        self.end, self.flushed, self.error = 0, 0, cast(Exception | None, None)
        self.failure: Any = None
        self.in_flight: Any = None
        self.begun: list[int] = []  # end of each flush

    def append(self, size: int = 10) -> int:
        self.end += size
        return self.end

    def begin_flush(self) -> Any:
        if self.in_flight is not None or self.failure is not None or self.flushed == self.end:
            return None
        self.begun.append(self.end)
        self.in_flight = SimpleNamespace(run=self._run, up_to=self.end)
        return self.in_flight

    def _run(self) -> None:
        if self.error is not None:
            raise self.error

    def end_flush(self, flush: Any, error: Any) -> None:
        assert flush is self.in_flight
        self.in_flight = None
        if error is not None:
            self.failure = error
        else:
            self.flushed = flush.up_to


class GroupCommit:
    """A flusher in synchronous mode with a time limit of 5 s; `listened` is the flushed offset at each notification."""

    def __init__(self, loop: HeldLoop) -> None:
        self.loop, self.log, self.listened = loop, GrowingLog(), cast(list[int], [])
        nothing = cast(Executor, None)
        self.flusher = Flusher(
            store=cast(MessageStore, self.log),
            executor=nothing,
            derived_executor=nothing,
            listener=SimpleNamespace(on_flushed=lambda: self.listened.append(self.log.flushed)),
            sync_timeout_s=5.0,
        )

    def send(self) -> OffsetWaiter[bool]:
        self.flusher.request_flush()  # as PostStoreDispatcher.on_stored does
        waiter = self.flusher.wait_flushed(self.log.append())
        assert waiter is not None
        return waiter

    async def tick(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def disk(self) -> None:
        """Let the flush in flight end, and the loop take its outcome."""
        self.loop.work.pop(0)()
        await self.tick()


def group_commit(act: Callable[[GroupCommit], Awaitable[None]]) -> None:
    loop = HeldLoop()

    async def run() -> None:
        play = GroupCommit(loop)
        task = asyncio.ensure_future(play.flusher.run_group_commit())
        await asyncio.sleep(0)
        await act(play)
        task.cancel()
        while not task.done():
            await asyncio.sleep(0)
            for work in play.loop.work[:]:
                play.loop.work.remove(work)
                work()
        assert task.cancelled()

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def test_one_flush_serves_all_sends_of_a_tick() -> None:
    async def act(play: GroupCommit) -> None:
        waiters = [play.send() for _ in range(100)]
        assert len(set(map(id, waiters))) == 1
        assert play.log.begun == [], "the flush begins after the tick"
        await play.tick()
        assert play.log.begun == [1000]
        await play.disk()
        assert waiters[0].result() is True
        assert play.listened == [1000]
        assert not play.loop.work, "nothing was appended since"

    group_commit(act)


def test_the_next_flush_begins_before_the_sends_of_the_last_one_are_answered() -> None:
    async def act(play: GroupCommit) -> None:
        begun_at: list[int] = []
        first = play.send()
        first.add_done_callback(lambda _: begun_at.append(len(play.log.begun)))
        await play.tick()
        second = play.send()
        await play.tick()
        third = play.send()
        await play.tick()
        assert (play.log.begun, len(play.loop.work)) == ([10], 1)
        play.loop.work.pop(0)()
        await asyncio.sleep(0)  # the only iteration between the end of a flush and the next one
        assert play.log.begun == [10, 30]
        assert begun_at == [2]
        assert first.result() is True and not second.done() and not third.done()
        await play.disk()
        assert (second.result(), third.result(), play.log.begun) == (True, True, [10, 30])

    group_commit(act)


def test_a_send_in_the_iteration_in_which_a_flush_begins_waits_for_the_next_one() -> None:
    async def act(play: GroupCommit) -> None:
        first = play.send()
        await play.tick()
        second = play.send()  # the flush ends in this iteration, another one begins, then a third send arrives
        play.loop.work.pop(0)()
        sent: list[OffsetWaiter[bool]] = []
        play.loop.call_soon(lambda: sent.append(play.send()))
        await asyncio.sleep(0)
        assert first.result() is True
        assert play.log.begun == [10, 20]
        assert sent[0] is not second
        await play.disk()
        assert second.result() is True and not sent[0].done()
        await play.disk()
        assert sent[0].result() is True
        assert play.log.begun == [10, 20, 30]

    group_commit(act)


def test_a_slow_disk_times_out_its_sends_and_answers_later_ones() -> None:
    async def act(play: GroupCommit) -> None:
        first = play.send()
        await asyncio.sleep(1)
        second = play.send()
        assert await first is False
        assert play.loop.time() == 5.0
        await asyncio.sleep(0.5)
        assert not second.done()
        await play.disk()
        assert first.result() is False
        await play.disk()
        assert second.result() is True
        assert play.flusher.wait_on_disk(20, 5.0).result() is True, "it is on the disk already"

    group_commit(act)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error", "commitlog/0"), ValueError("a bug")])
def test_a_failed_flush_fails_its_sends_and_all_later_ones(error: Exception) -> None:
    async def act(play: GroupCommit) -> None:
        first = play.send()
        await play.tick()
        second = play.send()
        play.log.error = error
        await play.disk()
        for waiter in (first, second, play.send()):
            with pytest.raises(FlushFailed):
                waiter.result()
        await play.tick()
        assert not play.loop.work, "the log is not flushed again"
        assert isinstance(play.log.failure, OSError)

    group_commit(act)


def test_a_cancelled_send_leaves_the_others_waiting() -> None:
    async def act(play: GroupCommit) -> None:
        waiter = play.send()
        left, stays = waiter.then(lambda done: done.result()), waiter.then(lambda done: done.result())
        left.cancel()
        await play.tick()
        await play.disk()
        assert left.cancelled() and stays.result() is True

    group_commit(act)


def test_group_commit_ends_after_the_flush_in_flight() -> None:
    async def act(play: GroupCommit) -> None:
        another = GroupCommit(play.loop)
        task = asyncio.ensure_future(another.flusher.run_group_commit())
        await asyncio.sleep(0)
        first = another.send()
        await another.tick()
        second = another.send()
        for _ in range(2):
            task.cancel()
            await another.tick()
            assert not task.done()
        await another.disk()
        assert task.cancelled()
        assert first.result() is True and another.log.in_flight is None
        assert not second.done() and not play.loop.work, "no further flush begins"

    group_commit(act)


def test_a_timed_flush_covers_everything_written_and_answers_its_waiters() -> None:
    loop = HeldLoop()

    async def act() -> None:
        play = GroupCommit(loop)  # group commit does not run
        waiter = play.flusher.wait_on_disk(play.log.append(), 5.0)
        await play.tick()
        assert not loop.work, "it waits for the timed flush"
        flush = asyncio.ensure_future(play.flusher.flush_once())
        await play.tick()
        late = play.flusher.wait_on_disk(play.log.append(), 5.0)
        await play.flusher.flush_once()  # one is in flight: returns at once
        await play.disk()
        assert flush.done() and waiter.result() is True and not late.done()
        assert not loop.work
        play.log.flushed = play.log.end  # as MessageStore.flush does
        await play.flusher.flush_once()
        assert late.result() is True

    try:
        loop.run_until_complete(act())
    finally:
        loop.close()
