"""SIGINT and SIGTERM as an event: how commands that keep going are told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import typer

NUMBERS = (signal.SIGINT, signal.SIGTERM)


def _print(line: str) -> None:
    typer.echo(line, err=True)


def thread_stop_event(say: Callable[[str], None] = _print) -> threading.Event:
    """Set when the main thread, which has to call this, is told to stop. The second signal ends the program at once."""
    stop = threading.Event()

    def told(number: int, frame: FrameType | None) -> None:
        for one in NUMBERS:
            signal.signal(one, signal.default_int_handler)
        stop.set()
        say("stopping after the current batch; once more to stop at once")

    for number in NUMBERS:
        signal.signal(number, told)
    return stop


@contextlib.contextmanager
def loop_stop_event() -> Iterator[asyncio.Event]:
    """Set when the running loop is told to stop. Afterwards the signals mean what they mean to Python."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    with contextlib.ExitStack() as known:
        for number in NUMBERS:
            with contextlib.suppress(NotImplementedError):  # Windows has none of them: the program is killed
                loop.add_signal_handler(number, stop.set)
                known.callback(loop.remove_signal_handler, number)
        yield stop
