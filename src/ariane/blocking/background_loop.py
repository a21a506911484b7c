"""One event loop in a thread of its own, on which the blocking clients of a process run.

    caller's thread ─ run(coroutine) ─→ loop's thread ─→ asyncio client
                    ←──── result ─────┘

The thread starts with the first client and is a daemon: at the end of the process, open clients are closed first (atexit).

A forked child has no such thread, and its copies of the sockets belong to its parent: it must open clients of its own. Using one of
the parent's is an error that says so.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Any, TypeVar

from ariane.errors import ClientClosed

Result = TypeVar("Result")


class BackgroundLoop:
    """An event loop that runs until the process ends."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ariane-blocking", daemon=True)
        self._thread.start()

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked after the loop was started."""
        return os.getpid() != self._pid

    def run(self, coroutine: Coroutine[Any, Any, Result], context: Context | None = None) -> Result:
        """Run a coroutine on the loop and wait for its result. If the wait is interrupted, the coroutine is cancelled.

        Calls with the same `context` share its context variables; None: a copy of the caller's.

        Raises:
            ClientClosed: the process was forked since.
            RuntimeError: the caller is a function that the loop itself runs.
        """
        try:
            self._check_caller()
        except BaseException:
            coroutine.close()
            raise
        started: Future[asyncio.Task[Result]] = Future()
        ended: Future[None] = Future()
        shared = copy_context() if context is None else context

        def start() -> None:
            task = self._loop.create_task(coroutine, context=shared)
            task.add_done_callback(lambda _: ended.set_result(None))
            started.set_result(task)

        self._loop.call_soon_threadsafe(start)
        try:
            ended.result()
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: started.result().cancel())
            raise
        return started.result().result()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop without waiting for it: for signal handlers, which may interrupt a wait.

        Raises:
            ClientClosed: the process was forked since.
        """
        self._check_process()
        self._loop.call_soon_threadsafe(function)

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function on the loop: the state of a client belongs to its thread."""

        async def called() -> Result:
            return function()

        return self.run(called())

    def _check_caller(self) -> None:
        self._check_process()
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError(
                "a blocking client was called by a function that the event loop runs (a hook, a coroutine): it would wait for "
                "itself; use the asyncio client there"
            )

    def _check_process(self) -> None:
        if self.is_inherited:
            raise ClientClosed(
                f"this client was opened by process {self._pid}, from which process {os.getpid()} was forked: open one after the "
                "fork (gunicorn: post_fork, Celery: worker_process_init)"
            )


_lock = threading.Lock()
_shared: BackgroundLoop | None = None


def shared_loop() -> BackgroundLoop:
    """Return the loop of this process, started if it is not."""
    global _shared  # noqa: PLW0603 - one per process, as threads are
    with _lock:
        if _shared is None or _shared.is_inherited:
            _shared = BackgroundLoop()
        return _shared


def _forget_lock() -> None:
    """Replace the lock in a forked child: another thread of the parent may have held it."""
    global _lock  # noqa: PLW0603 - it belongs to `_shared`
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)
