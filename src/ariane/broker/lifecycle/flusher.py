"""Flushes of the log and of derived files: group commit and timed flush. [GroupCommitService, FlushRealTimeService]

    send → append → wait_flushed ─┐
    send → append → wait_flushed ─┴→ one fsync in a worker thread → the next one begins → both are answered

fsync runs in two worker threads, one for the log and one for derived files: with many queues a flush of the latter takes
seconds, and sends must not wait for it. Everything else runs in the event loop. An fsync covers everything that was appended
when it began, so any number of waiting sends costs one. If more was appended meanwhile, the next fsync begins as soon as the
last one has ended: the disk works while the responses are written.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from concurrent.futures import Executor
from typing import Protocol

from ariane.broker.lifecycle.offset_waiters import OffsetWaiter, OffsetWaiters
from ariane.errors import FlushFailed
from ariane.net.tasks import wait_done
from ariane.store.message_store import FlushPostponed, FlushRound, MessageStore

log = logging.getLogger("ariane.broker.lifecycle.flusher")

DERIVED_PAUSES = 4  # pause between timed flushes of derived files: so many times as long as the last one took
DERIVED_PAUSE_MAX_S = 10.0


class FlushListener(Protocol):
    """Continues after a flush of the log. [PostStoreDispatcher]"""

    def on_flushed(self) -> None:
        """Called after each flush of the log: consumers may read more."""
        ...


class Flusher:
    """Flushes a store, and answers the requests that wait for it."""

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
        self._waiters: OffsetWaiters[bool] = OffsetWaiters(reached=True, timed_out=False)
        self._is_group_commit = False  # requested flushes begin at once, not with the next timed flush
        self._is_requested = False  # more was appended than the flush in flight covers
        self._is_flushing = False  # a flush of the log is in flight
        self._flush_end: asyncio.Future[None] | None = None  # of the flush in flight, if a caller waits for it
        # One flush of derived files at a time: each checkpoint is computed from the one before.
        self._derived_lock = asyncio.Lock()
        self._next_derived_s = 0.0  # loop time before which no timed one begins
        self._failure: FlushFailed | None = None  # permanent: after a failed fsync the kernel may have dropped the data

    # --- waiting ---

    def wait_flushed(self, end_offset: int) -> OffsetWaiter[bool] | None:
        """Return None in asynchronous mode; otherwise a waiter whose result is False if the flush timed out.

        Its result raises FlushFailed if the log cannot reach the disk any more. Requests of one tick share it.
        """
        if self._sync_timeout_s is None:
            return None
        return self.wait_on_disk(end_offset, self._sync_timeout_s)

    def wait_on_disk(self, end_offset: int, timeout_s: float) -> OffsetWaiter[bool]:
        """Return a waiter whose result is True once the log is on the disk up to `end_offset`, whatever the flush mode.

        It is False after `timeout_s`, and raises FlushFailed if the log cannot reach the disk any more.
        """
        if self._store.flushed >= end_offset:
            return self._waiters.finished(True)
        if self._failure is not None:
            return self._waiters.failed(self._failure)
        self.request_flush()
        return self._waiters.wait(end_offset, timeout_s)

    # --- flushes of the log ---

    def request_flush(self) -> None:
        """Flush soon, without a waiter."""
        if self._is_requested:
            return
        self._is_requested = True
        if self._is_group_commit and not self._is_flushing:
            asyncio.get_running_loop().call_soon(self._flush_requested)  # covers the rest of this tick

    async def run_group_commit(self) -> None:
        """Flush whenever requests wait (SYNC_FLUSH). Runs until cancelled."""
        self._is_group_commit = True
        self._flush_requested()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._is_group_commit = False
            await self._wait_flush_end()

    async def flush_once(self) -> None:
        """Flush the log as far as it is written, and answer the requests that wait for that part."""
        if self._begin_flush():
            await self._wait_flush_end()

    def _flush_requested(self) -> None:
        if self._is_requested and self._is_group_commit:
            self._begin_flush()

    def _begin_flush(self) -> bool:
        """Begin a flush, unless one is in flight or everything is flushed. Return whether one began."""
        if self._is_flushing:
            return False
        self._is_requested = False
        flush = self._store.begin_flush()
        if flush is None:
            self._answer()  # the store may have been flushed without this object
            return False
        self._is_flushing = True
        self._waiters.seal()
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._executor, self._run_flush, flush, loop)
        return True

    def _run_flush(self, flush: FlushRound, loop: asyncio.AbstractEventLoop) -> None:
        """Flush, in the worker thread."""
        error: OSError | FlushPostponed | None = None
        try:
            flush.run()
        except (OSError, FlushPostponed) as reason:
            error = reason
        except Exception as reason:  # what it covers may not be on the disk, so it counts as an error of the disk
            log.exception("The flush of the log failed unexpectedly")
            error = OSError(errno.EIO, f"{type(reason).__name__}: {reason}")
        # The future of `run_in_executor` would need one more iteration of a loop that is busy with requests.
        loop.call_soon_threadsafe(self._on_flush_end, flush, error)

    def _on_flush_end(self, flush: FlushRound, error: OSError | FlushPostponed | None) -> None:
        self._is_flushing = False
        self._end(flush, error)
        self._flush_requested()  # first: the disk works while responses are written
        self._answer()
        self._listener.on_flushed()
        if self._flush_end is not None:
            self._flush_end.set_result(None)
            self._flush_end = None

    def _answer(self) -> None:
        if self._failure is not None:
            self._waiters.fail(self._failure)
        else:
            self._waiters.advance(self._store.flushed)

    async def _wait_flush_end(self) -> None:
        """Wait for the flush in flight, even if cancelled: the store must not be closed during it."""
        if not self._is_flushing:
            return
        if self._flush_end is None:
            self._flush_end = asyncio.get_running_loop().create_future()
        cancelled = await wait_done(self._flush_end)
        if cancelled is not None:
            raise cancelled

    # --- flushes of derived files ---

    async def flush_derived_periodically(self) -> None:
        """Flush the derived files, at most a fifth of the time: 10,000 queues have as many files to fsync.

        A longer pause costs the next start after a crash: it reads the log since the last of these flushes.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        if began >= self._next_derived_s:
            await self.flush_derived()
            self._next_derived_s = clock() + min((clock() - began) * DERIVED_PAUSES, DERIVED_PAUSE_MAX_S)

    async def flush_derived(self) -> None:
        """Flush consume queues and checkpoint, so that the next start reads less of the log."""
        async with self._derived_lock:  # a flush in flight may have started before the caller's changes
            flush = self._store.begin_checkpoint()
            if flush is None:
                return
            # Finished even if cancelled, as above.
            running = asyncio.get_running_loop().run_in_executor(self._derived_executor, flush.run)
            cancelled = await wait_done(running)
            error: OSError | FlushPostponed | None = None
            try:
                running.result()
            except (OSError, FlushPostponed) as failure:
                error = failure
            self._end(flush, error)
            if cancelled is not None:
                raise cancelled

    def _end(self, flush: FlushRound, error: OSError | FlushPostponed | None) -> None:
        """Report the outcome of a flush to the store, which refuses all later writes after an error of the disk."""
        self._store.end_flush(flush, error)
        if isinstance(error, FlushPostponed):
            log.warning("%s; the next start has more to read", error)
        elif error is not None:
            self._failure = FlushFailed(str(error.filename or "the store"), error.strerror or str(error))
            log.critical("%s", self._failure, extra={"notice": True})
