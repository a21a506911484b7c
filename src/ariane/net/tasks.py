"""Background tasks with an owner: who starts them awaits their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

log = logging.getLogger("ariane.tasks")


class Tasks:
    """The tasks of one program part. `close` cancels and awaits them all; an error of one is logged with its name."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def every(
        self, seconds: float, work: Callable[[], Awaitable[object]], name: str, *, first_s: float | None = None
    ) -> None:
        """Call `work` every `seconds`, first after `first_s`; an error is logged and the next round comes all the same."""
        self.start(self._repeat(seconds, work, name, seconds if first_s is None else first_s), name)

    async def close(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[object]], name: str, first_s: float) -> None:
        await asyncio.sleep(first_s)
        while True:
            try:
                await work()
            except Exception:
                log.exception("%s: %s failed; it is tried again in %.0f s", self._owner, name, seconds)
            await asyncio.sleep(seconds)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s ended", task.get_name(), exc_info=task.exception())
