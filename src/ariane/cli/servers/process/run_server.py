"""Runs one server in this process until it is stopped. [the main methods of BrokerStartup and NamesrvStartup]

standard output   one line when the server is ready: `ready 127.0.0.1:10911`; under `ariane up` also `notice TEXT` for each
                  log record that the user must see (`extra={"notice": True}`)
standard error    the log; with --log FILE (rotated at LOG_BYTES_MAX, LOG_FILES files) only the notices
reload            SIGHUP: certificates and account files
stop              SIGINT or SIGTERM; under `ariane up` also the end of standard input: the parent process has ended
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
from typing import Any, Protocol, TypeVar

from ariane.cli.servers.process import signals
from ariane.cli.servers.process.garbage_collection import FrozenSurvivors
from ariane.errors import ConfigError

T = TypeVar("T")

READY = "ready"
NOTICE = "notice"
LOG_BYTES_MAX = 10 * 1024 * 1024
LOG_FILES = 5
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"


class RunningServer(Protocol):
    """A started server."""

    @property
    def addr(self) -> str: ...
    async def reload(self) -> None:
        """Read certificates and account files again."""
        ...


def serve(
    create_server: Callable[[], AbstractAsyncContextManager[RunningServer]],
    *,
    log_file: Path | None,
    until_stdin_closes: bool,
) -> None:
    """Run the server that `create_server` returns. Return after an orderly stop."""
    log_to(log_file)
    # With a log file stderr is empty: what the user must see would stay in the file.
    if log_file is not None:
        logging.getLogger().addHandler(_StderrNotices(until_stdin_closes))
    run_loop(_serve(create_server, until_stdin_closes))


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, run on uvloop, or on asyncio's loop where uvloop is not available (Windows)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


class _StderrNotices(logging.Handler):
    """Prints the log records that the user must see, for a server that logs to a file."""

    def __init__(self, supervised: bool) -> None:
        """With `supervised`, print to standard output for the parent process to relay; otherwise to standard error."""
        super().__init__(logging.WARNING)
        self._supervised = supervised  # under `ariane up`

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "notice", False):
            return
        # One line per notice: the parent process reads line by line.
        text = record.getMessage().replace("\n", " ")
        try:
            if self._supervised:
                print(NOTICE, text, flush=True)
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:
            self.handleError(record)  # the parent has died; the log file contains the record, too


async def _serve(make: Callable[[], AbstractAsyncContextManager[RunningServer]], until_stdin_closes: bool) -> None:
    loop = asyncio.get_running_loop()
    stop_requested = asyncio.Event()

    def stop() -> None:
        stop_requested.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)  # a second signal ends a shutdown that hangs

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_stdin, loop, stop)
    async with make() as server, signals.reload_on_hang_up(server.reload, stop):
        FrozenSurvivors().start()
        # Only now: a parent or a test that reads this line connects at once.
        print(READY, server.addr, flush=True)
        await stop_requested.wait()


def _stop_at_end_of_stdin(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop()


def log_to(file: Path | None, level: int = logging.INFO) -> None:
    """Configure logging to `file`, or to standard error.

    Raises:
        ConfigError: the file cannot be written.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handler = logging.handlers.RotatingFileHandler(file, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES - 1)
        except OSError as error:
            raise ConfigError("--log", str(file), f"not writable: {error.strerror}") from error
    logging.basicConfig(level=level, format=LOG_FORMAT, handlers=[handler])


def log_warnings() -> None:
    """Log warnings to standard error, without those of py4j: a query reports its failed batch itself."""
    log_to(None, logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
