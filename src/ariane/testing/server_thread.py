"""An event loop in a thread of its own, for servers that must not depend on the loop or the blocking of a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

NAME = "ariane-cluster"  # of the thread
JOIN_S = 30.0


class ServerThread:
    """A thread that runs coroutines for other threads."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # None while the thread is not running
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, and return when its event loop runs."""
        running: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=_serve, args=(running,), name=NAME, daemon=True)
        self._thread.start()
        self._loop = running.result()

    def stop(self) -> None:
        """Cancel what still runs in the loop, and end the thread."""
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)
        self._loop = self._thread = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run `work` in the thread.

        Raises:
            RuntimeError: the thread is not running.
        """
        if self._loop is None:
            work.close()
            raise RuntimeError("The cluster is not running: use it inside of its `with` or `async with` block")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the thread and return its result. Blocks the calling thread."""
        return self.submit(work).result()

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the thread and return its result. Other tasks of the calling loop go on."""
        return await asyncio.wrap_future(self.submit(work))


def _serve(running: Future[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.call_soon(running.set_result, loop)
        loop.run_forever()
