"""Turns SIGINT and SIGTERM into an event, for commands that run until they are interrupted."""

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


def thread_stop_event(print_line: Callable[[str], None] = _print) -> threading.Event:
    """Return an event that the first signal sets; the second one ends the program. Call it in the main thread."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        # A batch may take minutes: the second Ctrl-C does not wait for it.
        for stop_signal in NUMBERS:
            signal.signal(stop_signal, signal.default_int_handler)
        stop.set()
        print_line("stopping after the current batch; press Ctrl-C again to stop immediately")

    for number in NUMBERS:
        signal.signal(number, on_signal)
    return stop


@contextlib.contextmanager
def loop_stop_event() -> Iterator[asyncio.Event]:
    """Provide an event that a signal sets. Afterwards the signals have their default effect again."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    with contextlib.ExitStack() as handlers:
        for number in NUMBERS:
            with contextlib.suppress(NotImplementedError):  # Windows: no such handlers
                loop.add_signal_handler(number, stop.set)
                handlers.callback(loop.remove_signal_handler, number)
        yield stop
