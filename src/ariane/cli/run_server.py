"""One server in this process, until it is told to stop. [the main methods of BrokerStartup and NamesrvStartup]

standard output   one line when it serves: `ready 127.0.0.1:10911`; under `ariane up` also `notice TEXT` for each log record
                  that people have to see (`extra={"notice": True}`)
standard error    the log, or, with --log FILE (LOG_BYTES_MAX a file, LOG_FILES kept), only these notices
stops             at SIGINT or SIGTERM, and, under `ariane up`, when standard input closes: its parent has gone
"""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import typer

from ariane.errors import ConfigError

READY = "ready"
NOTICE = "notice"
LOG_BYTES_MAX = 10 * 1024 * 1024
LOG_FILES = 5
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"


class RunningServer(Protocol):
    """What a started server tells about itself."""

    @property
    def addr(self) -> str: ...


def serve(
    create_server: Callable[[], AbstractAsyncContextManager[RunningServer]],
    *,
    log_file: Path | None,
    until_stdin_closes: bool,
) -> None:
    """Run the server that `make` makes. Returns once it has stopped in order."""
    log_to(log_file)
    if log_file is not None:
        logging.getLogger().addHandler(_StderrNotices(until_stdin_closes))
    run_loop(_serve(create_server, until_stdin_closes))


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where there is one (not on Windows)."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def report_remarks(remarks: list[str], path: Path | None) -> None:
    """Tell what a configuration file holds that changes nothing."""
    for remark in remarks:
        typer.echo(f"{path}: {remark}", err=True)


def print_settings(texts: dict[str, str]) -> None:
    """Settings as a configuration file writes them. [-p]"""
    for key, text in texts.items():
        typer.echo(f"{key}={text}")


class _StderrNotices(logging.Handler):
    """Prints the log records that people have to see, for a server whose log goes to a file."""

    def __init__(self, supervised: bool) -> None:
        """`supervised`: the reader of standard output passes them on; else they go to standard error as they are."""
        super().__init__(logging.WARNING)
        self._supervised = supervised

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "notice", False):
            return
        text = record.getMessage().replace("\n", " ")
        try:
            if self._supervised:
                print(NOTICE, text, flush=True)
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:
            self.handleError(record)  # the parent died: the log has the record too


async def _serve(make: Callable[[], AbstractAsyncContextManager[RunningServer]], until_stdin_closes: bool) -> None:
    loop = asyncio.get_running_loop()
    told_to_stop = asyncio.Event()

    def stop() -> None:
        told_to_stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)  # a second one ends a stop that hangs

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_stdin, loop, stop)
    async with make() as server:
        print(READY, server.addr, flush=True)
        await told_to_stop.wait()


def _stop_at_end_of_stdin(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop()


def log_to(file: Path | None) -> None:
    """Have this process log to `file`, or to standard error."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handler = logging.handlers.RotatingFileHandler(file, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES - 1)
        except OSError as error:
            raise ConfigError("--log", str(file), f"cannot be written: {error.strerror}") from error
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, handlers=[handler])
