"""When messages reach the disk: group commit and the timed flush. [GroupCommitService, FlushRealTimeService]

fsync runs in worker threads, one for the log and another for derived files: with many queues a flush of those takes seconds,
and sends do not wait for it. Everything else stays in the loop. Sends that wait are served in groups: whatever was
stored when an fsync began is settled by it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from ariane.broker.config import BrokerConfig
from ariane.errors import FlushFailed
from ariane.net.tasks import ended
from ariane.store.message_store import FlushPostponed, FlushRound, MessageStore

log = logging.getLogger("ariane.broker.flusher")


class Flusher:
    """Flushes `store`. `flushed` is called after each flush of the log: more may be readable."""

    def __init__(
        self, store: MessageStore, executor: Executor, derived_executor: Executor, flushed: Callable[[], None]
    ) -> None:
        self._store = store
        self._executor = executor
        self._derived_executor = derived_executor
        self._flushed = flushed
        self._waiting: dict[asyncio.Future[bool], tuple[int, float]] = {}  # offset, and until when
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = asyncio.Event()
        self._derived = asyncio.Lock()
        self._failure: FlushFailed | None = None

    def waiting(self, config: BrokerConfig) -> Callable[[int], Awaitable[bool]] | None:
        """`durable` with the time-out of the settings; None when nobody has to wait for the disk."""
        if not config.sync_flush:
            return None
        return functools.partial(self.wait_flushed, timeout_s=config.sync_flush_timeout / 1000)

    def wait_flushed(self, offset: int, timeout_s: float) -> asyncio.Future[bool]:
        """True once the log is on disk up to `offset`, False after `timeout_s`; FlushFailed when it never will be."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        if self._store.flushed >= offset:
            waiter.set_result(True)
        elif self._failure is not None:
            waiter.set_exception(self._failure)
        else:
            self._waiting[waiter] = (offset, loop.time() + timeout_s)
            self._wanted.set()
            if self._timer is None:  # one for all that wait: a flush takes milliseconds, and they are many
                self._timer = loop.call_later(timeout_s, self._expire)
        return waiter

    def _expire(self) -> None:
        """Answer those for whom the disk took too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiter in [waiter for waiter, (_, deadline) in self._waiting.items() if deadline <= now]:
            del self._waiting[waiter]
            _settle(waiter, False)
        deadlines = [deadline for _, deadline in self._waiting.values()]
        self._timer = loop.call_at(min(deadlines), self._expire) if deadlines else None

    def request_flush(self) -> None:
        """Something was stored that nobody waits for."""
        self._wanted.set()

    async def run_group_commit(self) -> None:
        """SYNC_FLUSH: flush whenever somebody waits. Runs until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.flush_once()

    async def flush_once(self) -> None:
        """Flush the log as far as it has been written, and settle who waits for it."""
        flush = self._store.begin_flush()
        if flush is None:
            return
        await self._run(flush, self._executor)
        flushed, failure = self._store.flushed, self._failure
        for waiter in [one for one, (offset, _) in self._waiting.items() if failure is not None or offset <= flushed]:
            del self._waiting[waiter]
            if failure is not None:
                _fail(waiter, failure)
            else:
                _settle(waiter, True)
        self._flushed()

    async def flush_derived(self) -> None:
        """Flush everything derived so far, consume queues and checkpoint: they spare the next start from reading the log."""
        async with self._derived:  # one that is in flight may have begun before the caller's changes
            flush = self._store.begin_checkpoint()
            if flush is not None:
                await self._run(flush, self._derived_executor)

    async def _run(self, flush: FlushRound, executor: Executor) -> None:
        """Do it, and take its outcome even when cancelled meanwhile: the store has one flush at a time, and none goes on
        while it is closed."""
        running = asyncio.get_running_loop().run_in_executor(executor, flush.run)
        cancelled = await ended(running)
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
