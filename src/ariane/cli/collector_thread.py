"""The collector beside the jobs, in a thread and an event loop of its own: what fails in it is said, and never ends the jobs.

with beside(namesrv, …, on_fault=…, on_round=…): the jobs run, rounds of samples go to their topic
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
    from ariane.client.settings import ClientSettings
    from ariane.metrics_collector.publisher import PollingRound

log = logging.getLogger("ariane.cli")

AGAIN_S = 5.0  # after which it begins anew when it ended with a fault
STOP_S = 10.0  # a round under way is finished, and its samples sent


def poll_once(
    namesrv: str,
    topic: str,
    settings: ClientSettings | None,
    *,
    on_fault: Callable[[Exception], None],
    on_round: Callable[[PollingRound], None],
) -> None:
    """One round."""
    from ariane.metrics_collector.publisher import collect

    try:
        asyncio.run(collect(namesrv, topic=topic, settings=settings, once=True, on_round=on_round))
    except (ArianeError, OSError) as error:
        on_fault(error)


@contextlib.contextmanager
def poll_in_background(
    namesrv: str,
    topic: str,
    settings: ClientSettings | None,
    *,
    on_fault: Callable[[Exception], None],
    on_round: Callable[[PollingRound], None],
    again_s: float = AGAIN_S,
) -> Iterator[None]:
    """Rounds until the block ends."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def rounds() -> None:
        from ariane.metrics_collector.publisher import collect

        while not stop.is_set():
            try:
                await collect(namesrv, topic=topic, settings=settings, on_round=on_round, stop=stop)
            except Exception as error:
                if not isinstance(error, ArianeError | OSError):
                    log.debug("the collector failed", exc_info=error)
                on_fault(error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), again_s)

    def work() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(rounds())

    thread = threading.Thread(target=work, name="ariane-collector", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # its loop is closed: it ended by itself
            loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_S)
