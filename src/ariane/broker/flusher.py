"""Flushes of the log and of derived files: group commit and timed flush. [GroupCommitService, FlushRealTimeService]

    send → append → wait_flushed ─┐
    send → append → wait_flushed ─┴→ one fsync in a worker thread → both futures resolved

fsync runs in two worker threads, one for the log and one for derived files: with many queues a flush of the latter takes
seconds, and sends must not wait for it. Everything else runs in the event loop. An fsync covers everything that was appended
when it began, so any number of waiting sends costs one.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from typing import Protocol

from ariane.errors import FlushFailed
from ariane.net.tasks import wait_done
from ariane.store.message_store import FlushPostponed, FlushRound, MessageStore

log = logging.getLogger("ariane.broker.flusher")


class FlushListener(Protocol):
    """Continues after a flush of the log. [PostStoreDispatcher]"""

    def on_flushed(self) -> None:
        """Called after each flush of the log: consumers may read more."""
        ...


class Flusher:
    """Flushes a store, and wakes the requests that wait for it."""

    def __init__(
        self,
        *,
        store: MessageStore,
        executor: Executor,
        derived_executor: Executor,
        listener: FlushListener,
        sync_timeout_s: float | None = None,
    ) -> None:
        self._store = store  # knows what is unflushed
        self._executor = executor  # flushes the log
        self._derived_executor = derived_executor  # flushes consume queues and checkpoint
        self._listener = listener  # called after a flush that made records durable
        self._sync_timeout_s = sync_timeout_s  # None in asynchronous mode
        self._waiters: dict[asyncio.Future[bool], tuple[int, float]] = {}  # end offset and deadline
        self._timer: asyncio.TimerHandle | None = None  # for the earliest deadline of `_waiters`
        self._flush_requested = asyncio.Event()  # wakes the flush loop before its period ends
        # One flush of derived files at a time: each checkpoint is computed from the one before.
        self._derived_lock = asyncio.Lock()
        self._failure: FlushFailed | None = None  # permanent: after a failed fsync the kernel may have dropped the data

    def wait_flushed(self, end_offset: int) -> asyncio.Future[bool] | None:
        """Return None in asynchronous mode; otherwise a future that is False if the flush timed out.

        The future raises FlushFailed if the log cannot reach the disk any more.
        """
        if self._sync_timeout_s is None:
            return None
        return self.wait_on_disk(end_offset, self._sync_timeout_s)

    def wait_on_disk(self, end_offset: int, timeout_s: float) -> asyncio.Future[bool]:
        """Return a future that is True once the log is on the disk up to `end_offset`, whatever the flush mode.

        It is False after `timeout_s`, and raises FlushFailed if the log cannot reach the disk any more.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        if self._store.flushed >= end_offset:
            waiter.set_result(True)
        elif self._failure is not None:
            waiter.set_exception(self._failure)
        else:
            self._waiters[waiter] = (end_offset, loop.time() + timeout_s)
            self._flush_requested.set()
            if self._timer is None:  # one for all waiters: there are many, and a flush takes milliseconds
                self._timer = loop.call_later(timeout_s, self._expire)
        return waiter

    def _expire(self) -> None:
        """Resolve the waiters whose deadline has passed."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiter in [waiter for waiter, (_, deadline) in self._waiters.items() if deadline <= now]:
            del self._waiters[waiter]
            _settle(waiter, False)
        deadlines = [deadline for _, deadline in self._waiters.values()]
        self._timer = loop.call_at(min(deadlines), self._expire) if deadlines else None

    def request_flush(self) -> None:
        """Flush soon, without a waiter."""
        self._flush_requested.set()

    async def run_group_commit(self) -> None:
        """Flush whenever requests wait (SYNC_FLUSH). Runs until cancelled."""
        while True:
            await self._flush_requested.wait()
            self._flush_requested.clear()
            await self.flush_once()

    async def flush_once(self) -> None:
        """Flush the log as far as it is written, and resolve the waiters of that part."""
        flush = self._store.begin_flush()
        if flush is None:
            return
        await self._run(flush, self._executor)
        flushed, failure = self._store.flushed, self._failure
        done = [waiter for waiter, (end, _) in self._waiters.items() if failure is not None or end <= flushed]
        for waiter in done:
            del self._waiters[waiter]
            if failure is not None:
                _fail(waiter, failure)
            else:
                _settle(waiter, True)
        self._listener.on_flushed()

    async def flush_derived(self) -> None:
        """Flush consume queues and checkpoint, so that the next start reads less of the log."""
        async with self._derived_lock:  # a flush in flight may have started before the caller's changes
            flush = self._store.begin_checkpoint()
            if flush is not None:
                await self._run(flush, self._derived_executor)

    async def _run(self, flush: FlushRound, executor: Executor) -> None:
        # Finished even if cancelled: the store runs one flush at a time and must not be closed during it.
        running = asyncio.get_running_loop().run_in_executor(executor, flush.run)
        cancelled = await wait_done(running)
        error: OSError | FlushPostponed | None = None
        try:
            running.result()
        except (OSError, FlushPostponed) as failure:
            error = failure
        self._store.end_flush(flush, error)
        if isinstance(error, FlushPostponed):
            log.warning("%s; the next start has more to read", error)
        elif error is not None:
            self._failure = FlushFailed(str(error.filename or "the store"), error.strerror or str(error))
            log.critical("%s", self._failure, extra={"notice": True})
        if cancelled is not None:
            raise cancelled


def _settle(waiter: asyncio.Future[bool], flushed: bool) -> None:
    if not waiter.done():
        waiter.set_result(flushed)


def _fail(waiter: asyncio.Future[bool], failure: FlushFailed) -> None:
    if not waiter.done():
        waiter.set_exception(failure)
