"""Background tasks with an owner that awaits their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ArianeError
from ariane.model.backoff import Backoff

log = logging.getLogger("ariane.tasks")

BACK_OFF_MAX_S = 60.0


async def wait_done(running: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until `running`, work in a thread, is done, even if the caller is cancelled meanwhile.

    Returns:
        The cancellation, which the caller raises after it has recorded the result of the work; None without one.
    """
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as reason:
            cancelled = reason
    return cancelled


async def run_blocking(work: Callable[[], None], *, in_thread: bool) -> None:
    """Run blocking work to its end: in a thread if the loop has to respond, as that of a candidate."""
    if not in_thread:
        work()
        return
    running = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled = await wait_done(running)
    running.result()
    if cancelled is not None:
        raise cancelled


class BackgroundTasks:
    """The tasks of one component. `close` cancels and awaits all of them; the error of a task is logged with its name.

    `clock` measures the intervals of `repeat`.
    """

    def __init__(self, owner: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._owner = owner
        self._clock = clock
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def repeat(
        self, seconds: float, work: Callable[[], Awaitable[object]], name: str, *, first_s: float | None = None
    ) -> None:
        """Call `work` every `seconds`, first after `first_s`. Errors are logged and do not end the repetition.

        An error of the disk (OSError) or a peer (ArianeError) takes one log line, and the interval doubles up to BACK_OFF_MAX_S
        while the errors last.
        """
        self.start(self._repeat(seconds, work, name, seconds if first_s is None else first_s), name)

    async def close(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[object]], name: str, first_s: float) -> None:
        pause_s, failures = first_s, 0
        while True:
            await self._clock.sleep(pause_s)
            pause_s = seconds
            try:
                await work()
            except (OSError, ArianeError) as error:
                failures += 1
                pause_s = max(seconds, Backoff(2 * seconds, BACK_OFF_MAX_S).delay_s(failures))
                log.error("%s: %s failed; retrying in %.0f s: %s", self._owner, name, pause_s, error)
                continue
            except Exception:
                log.exception("%s: %s failed; retrying in %.0f s", self._owner, name, seconds)
            else:
                if failures:
                    log.warning("%s: %s succeeded after %d failures", self._owner, name, failures)
                failures = 0

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s ended", task.get_name(), exc_info=task.exception())
