"""Turns SIGINT and SIGTERM into an event, for commands that run until they are interrupted, and SIGHUP into a reload."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

import typer

from ariane.net.tasks import BackgroundTasks

STATUS_BASE = 128  # exit status of a program that a signal ended: 128 + number, as in shells
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


class StopSignal:
    """An event for loops, and the signal that set it."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.number: int | None = None

    def set(self, number: int) -> None:
        """Record the signal and wake those that wait for the event."""
        self.number = self.number or number
        self.event.set()

    @property
    def exit_status(self) -> int:
        """Conventional exit status: 130 for SIGINT, 143 for SIGTERM, 0 if no signal arrived."""
        return 0 if self.number is None else STATUS_BASE + self.number


@contextlib.contextmanager
def loop_stop_signal() -> Iterator[StopSignal]:
    """Provide a `StopSignal` that the first SIGINT or SIGTERM sets; the second one ends the program immediately."""
    loop, stop = asyncio.get_running_loop(), StopSignal()
    with contextlib.ExitStack() as handlers:

        def on_signal(number: int) -> None:
            stop.set(number)
            for stop_signal in NUMBERS:
                loop.remove_signal_handler(stop_signal)
                signal.signal(stop_signal, signal.SIG_DFL)

        for number in NUMBERS:
            with contextlib.suppress(NotImplementedError):  # Windows: no such handlers
                loop.add_signal_handler(number, on_signal, number)
                handlers.callback(loop.remove_signal_handler, number)
        yield stop


@contextlib.asynccontextmanager
async def reload_on_hang_up(
    reload: Callable[[], Coroutine[Any, Any, None]], stop: Callable[[], None]
) -> AsyncIterator[None]:
    """Call `reload` at each SIGHUP; but `stop` if the signal says that the terminal was closed."""
    loop, tasks, had_terminal = asyncio.get_running_loop(), BackgroundTasks("SIGHUP"), _has_terminal()

    def on_signal() -> None:
        if had_terminal and not _has_terminal():
            stop()
        else:
            tasks.start(reload(), "reload")

    try:
        loop.add_signal_handler(signal.SIGHUP, on_signal)
    except (AttributeError, NotImplementedError):  # Windows has no SIGHUP
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        await tasks.close()


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def end_by_broken_pipe() -> None:
    """End this process by SIGPIPE, as programs end whose reader has closed the pipe; a shell reports status 141.

    Python ignores SIGPIPE, and must while it uses sockets: call this after all connections are closed.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
