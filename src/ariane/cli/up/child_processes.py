"""Supervises child processes: starts them, restarts those that die, stops them in reverse order.

    async with ChildProcesses(home, print_line) as processes:
        addr = await processes.start(ChildProcess("broker", ("broker", "-c", ...)))
        ...
        await processes.failed          # raises if a process cannot be kept running

    standard input    a pipe that only the parent holds: it closes when the parent dies, however it dies, and the child stops
    standard output   the line `ready ADDR`, for which `start` waits; then lines `notice TEXT`, which are printed
    standard error    HOME/logs/NAME.err, truncated at each start
    session           its own, so that Ctrl-C reaches only the parent, which stops the children in order

A child that dies, for example of `kill -9`, is restarted with the same arguments; its new pid is printed and written to
HOME/NAME.pid. More than RESTARTS_MAX deaths within RESTARTS_WITHIN_S are fatal: `failed` raises, unless the program is optional.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ariane.cli.servers.process.run_server import NOTICE, READY
from ariane.errors import ArianeError

START_S = 120.0  # recovery after a crash reads the files of a large store
STOP_S = 15.0  # before SIGKILL
# A program that dies at once, for example of an invalid configuration, must not be restarted without end.
RESTARTS_MAX = 5
RESTARTS_WITHIN_S = 60.0
RESTART_PAUSE_S = 0.1
LAST_LINES = 15  # of logs, in the error message


class ChildProcessFailed(ArianeError):
    """A child process could not be started or kept running."""

    def __init__(self, name: str, reason: str, last_lines: str) -> None:
        super().__init__(f"{name} {reason}" + (f"; last log lines:\n{last_lines}" if last_lines else ""))
        self.name = name


@dataclass(frozen=True)
class ChildProcess:
    """The program `ariane` with arguments. With `ready`, `start` waits for the line `ready ADDR`.

    An optional program that cannot be kept running is reported; the others continue.
    """

    name: str  # in lines, logs and the name of the pid file
    arguments: tuple[str, ...]  # of `ariane`, the command first
    module: str = "ariane.cli"  # that Python runs
    ready: bool = True
    optional: bool = False


@dataclass
class _Running:
    program: ChildProcess  # to start it again with the same arguments
    process: Process  # replaced by each restart
    death_times_s: list[float] = field(default_factory=list)  # of the last RESTARTS_WITHIN_S, by the monotonic clock
    watcher: asyncio.Task[None] | None = None  # None until the program is ready


class ChildProcesses:
    """The child processes of one home."""

    def __init__(self, home: Path, print_line: Callable[[str], None]) -> None:
        self._home = home  # logs and pid files are below it
        self._print_line = print_line
        self._running: list[_Running] = []  # in the order of the start
        self._stopping = False  # an end is intended, and not followed by a restart
        self._relays: set[asyncio.Task[None]] = set()  # tasks that print the notices of children

    async def __aenter__(self) -> Self:
        (self._home / "logs").mkdir(parents=True, exist_ok=True)
        # A future, not an exception of `start`: a program may die long after it was started, while the caller waits for
        # something else.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stopping = True
        # In reverse order of the start: the broker unregisters from a name server that still runs.
        while self._running:
            await self._stop(self._running.pop())
        for relay in list(self._relays):  # still open only if a child left its output to another process
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)
        if self.failed.done():
            self.failed.exception()  # mark it as retrieved: asyncio would log it otherwise
        else:
            self.failed.cancel()

    async def start(self, program: ChildProcess) -> str:
        """Start a program and keep it running.

        Returns:
            The address that it listens on; "" if it does not listen.

        Raises:
            ChildProcessFailed: it ended or was not ready within START_S.
        """
        started_s = time.monotonic()
        process, addr = await self._spawn(program)
        running = _Running(program, process)
        running.watcher = asyncio.create_task(self._watch(running), name=f"watch {program.name}")
        self._running.append(running)
        ready = f", ready in {time.monotonic() - started_s:.2f} s" if addr else ""
        self._print_line(f"{program.name:<9} pid {process.pid}  {addr}{ready}")
        return addr

    def kill(self, name: str) -> int:
        """Kill a program with SIGKILL; it restarts like one that died. Return its pid."""
        process = next(child.process for child in self._running if child.program.name == name)
        process.kill()
        return process.pid

    async def _spawn(self, program: ChildProcess) -> tuple[Process, str]:
        with self._error_file(program.name).open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                # The interpreter and the sources of the parent, whatever is on the PATH.
                sys.executable,
                "-m",
                program.module,
                *program.arguments,
                # The parent never writes to it. The kernel closes it when the parent dies, even of SIGKILL, and the
                # child stops.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if program.ready else errors,
                stderr=errors,
                start_new_session=True,
            )
        (self._home / f"{program.name}.pid").write_text(f"{process.pid}\n", encoding="ascii")
        if not program.ready:
            return process, ""
        try:
            addr = await self._address(program, process)
        # Also if `start` is cancelled: otherwise the child would outlive the command.
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        relay = asyncio.create_task(self._relay(program, process), name=f"notices of {program.name}")
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)
        return process, addr

    async def _relay(self, program: ChildProcess, process: Process) -> None:
        """Print the notices of a program until it ends."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._notice(program, line.decode(errors="replace"))

    def _notice(self, program: ChildProcess, line: str) -> bool:
        kind, _, text = line.strip().partition(" ")
        if kind == NOTICE:
            self._print_line(f"{program.name:<9} {text}")
        return kind == NOTICE

    async def _address(self, program: ChildProcess, process: Process) -> str:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                text = (await process.stdout.readline()).decode(errors="replace")
                # A recovery may report notices before the server is ready.
                while self._notice(program, text):
                    text = (await process.stdout.readline()).decode(errors="replace")
                line = text.split()
        except TimeoutError:
            raise ChildProcessFailed(
                program.name, f"not ready within {START_S:.0f} s", self._tail(program.name)
            ) from None
        if len(line) != 2 or line[0] != READY:
            await process.wait()
            reason = f"failed to start ({_exit_reason(process)})"
            raise ChildProcessFailed(program.name, reason, self._tail(program.name))
        return line[1]

    async def _watch(self, running: _Running) -> None:
        """Restart the program whenever it ends, until that happens too often."""
        name = running.program.name
        try:
            while True:
                await running.process.wait()
                if self._stopping:
                    return
                died_s = time.monotonic()
                reason = _exit_reason(running.process)
                self._print_line(f"{name} (pid {running.process.pid}) ended: {reason}; restarting")
                addr = await self._restart(running)
                self._print_line(
                    f"{name} restarted: pid {running.process.pid}  {addr}, after {time.monotonic() - died_s:.2f} s"
                )
        except (ArianeError, OSError) as error:
            if running.program.optional:
                self._print_line(f"{error}\n{name} is not restarted again; the other programs continue")
            elif not self.failed.done():
                self.failed.set_exception(error)

    async def _restart(self, running: _Running) -> str:
        """Restart a program that ended, as often as RESTARTS_MAX allows."""
        name = running.program.name
        while True:
            now_s = time.monotonic()
            # Deaths long ago do not count: a program may run for years and be killed now and then.
            recent = [death_s for death_s in running.death_times_s if now_s - death_s < RESTARTS_WITHIN_S]
            running.death_times_s = [*recent, now_s]
            if len(running.death_times_s) > RESTARTS_MAX:
                raise ChildProcessFailed(
                    name, f"ended {len(running.death_times_s)} times within {RESTARTS_WITHIN_S:.0f} s", self._tail(name)
                )
            await asyncio.sleep(RESTART_PAUSE_S)
            try:
                running.process, addr = await self._spawn(running.program)
            except ChildProcessFailed as error:
                self._print_line(f"{error}; restarting")
                continue
            return addr

    async def _stop(self, running: _Running) -> None:
        if running.watcher is not None:
            # The watcher goes first: it would restart the program that is about to be stopped.
            running.watcher.cancel()
            await asyncio.wait([running.watcher])
        process = running.process
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                self._print_line(f"{running.program.name} did not stop within {STOP_S:.0f} s, killing it")
                process.kill()
                await process.wait()
        (self._home / f"{running.program.name}.pid").unlink(missing_ok=True)

    def _error_file(self, name: str) -> Path:
        return self._home / "logs" / f"{name}.err"

    def _tail(self, name: str) -> str:
        """Return the last lines of the program's log and of its standard error."""
        lines: list[str] = []
        # A program that dies before it opens its log explains itself on standard error only.
        for file in (self._home / "logs" / f"{name}.log", self._error_file(name)):
            if file.exists():
                lines += file.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join(f"  {line}" for line in lines)


def _exit_reason(process: Process) -> str:
    code = process.returncode or 0
    if code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name
