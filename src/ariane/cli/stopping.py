"""SIGINT and SIGTERM as an event: how commands that keep going are told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator

NUMBERS = (signal.SIGINT, signal.SIGTERM)


def of_thread() -> threading.Event:
    """Set when the main thread, which has to call this, is told to stop."""
    stop = threading.Event()
    for number in NUMBERS:
        signal.signal(number, lambda *_: stop.set())
    return stop


@contextlib.contextmanager
def of_loop() -> Iterator[asyncio.Event]:
    """Set when the running loop is told to stop. Afterwards the signals mean what they mean to Python."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    with contextlib.ExitStack() as known:
        for number in NUMBERS:
            with contextlib.suppress(NotImplementedError):  # Windows has none of them: the program is killed
                loop.add_signal_handler(number, stop.set)
                known.callback(loop.remove_signal_handler, number)
        yield stop
