"""Runs the collector in a thread with its own event loop, next to pipeline jobs. Its faults are reported and never end the jobs.

with poll_in_background(namesrv, topic, settings, on_fault=…, on_round=…):
    run_jobs()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ariane.errors import ArianeError

if TYPE_CHECKING:
    from ariane.client.instance.settings import ClientSettings
    from ariane.metrics_collector.publisher import PollingRound

log = logging.getLogger("ariane.cli")

RESTART_S = 5.0  # pause before the collector restarts after a fault
STOP_S = 10.0  # time to finish the current round and to send its samples


@contextlib.contextmanager
def poll_in_background(
    namesrv: str,
    topic: str,
    settings: ClientSettings | None,
    *,
    on_fault: Callable[[Exception], None],
    on_round: Callable[[PollingRound], None],
    once: bool = False,
    restart_s: float = RESTART_S,
) -> Iterator[None]:
    """Poll all brokers periodically until the block ends; with `once` only before it."""
    from ariane.metrics_collector.publisher import CollectorOptions, run_collector

    options = CollectorOptions(topic=topic, once=once)
    if once:  # the samples have to be in the topic before the jobs read it
        try:
            asyncio.run(run_collector(namesrv, options, settings=settings, on_round=on_round))
        except (ArianeError, OSError) as error:
            on_fault(error)
        yield
        return
    # The loop is created here, so that this thread can wake it at the end.
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def rounds() -> None:
        while not stop.is_set():
            try:
                await run_collector(namesrv, options, settings=settings, on_round=on_round, stop=stop)
            # Whatever goes wrong, the jobs go on: their tables show a gap in the samples.
            except Exception as error:
                if not isinstance(error, ArianeError | OSError):
                    log.debug("collector failed", exc_info=error)
                on_fault(error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), restart_s)

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(rounds())

    # A daemon: a broker that hangs must not keep the command from ending.
    thread = threading.Thread(target=run, name="ariane-collector", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # the thread has already ended and closed its loop
            loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_S)
