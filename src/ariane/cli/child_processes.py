"""Programs in processes of their own: started, watched, started again when they die, stopped in reverse order.

    async with Programs(home, say) as programs:
        addr = await programs.start(Program("broker", ("broker", "-c", ...)))
        ...
        await programs.failed          # raises when one cannot be kept running

    standard input    a pipe that only we hold: it closes when we die, however we die, and the program stops
    standard output   the line `ready ADDR`, for which `start` waits; then lines `notice TEXT`, which are said
    standard error    HOME/logs/NAME.err, written anew at each start
    session           its own, so that Ctrl-C reaches us alone and we stop things in order

A program that ends unasked, by `kill -9` for example, is started again with the same arguments; its new pid is said and
written to HOME/NAME.pid. RESTARTS_MAX ends within RESTARTS_WITHIN_S are too many: then `failed` tells.
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
from types import TracebackType
from typing import Self

from ariane.cli.run_server import NOTICE, READY
from ariane.errors import ArianeError

START_S = 120.0  # an unclean store of many files is read through before the broker is ready
STOP_S = 15.0  # then SIGKILL
RESTARTS_MAX = 5
RESTARTS_WITHIN_S = 60.0
RESTART_PAUSE_S = 0.1
LAST_LINES = 15


class ChildProcessFailed(ArianeError):
    """A program that we started could not be kept running."""

    def __init__(self, name: str, why: str, last_lines: str) -> None:
        super().__init__(f"{name} {why}" + (f"; its last lines:\n{last_lines}" if last_lines else ""))
        self.name = name


@dataclass(frozen=True)
class ChildProcess:
    """`ariane` with these arguments. `ready`: it says so on standard output; else it counts as started at once."""

    name: str
    arguments: tuple[str, ...]
    ready: bool = True


@dataclass
class _Running:
    program: ChildProcess
    process: Process
    ends: list[float] = field(default_factory=list)
    watcher: asyncio.Task[None] | None = None


class ChildProcesses:
    """The programs of one home."""

    def __init__(self, home: Path, say: Callable[[str], None]) -> None:
        self._home = home
        self._say = say
        self._running: list[_Running] = []
        self._stopping = False
        self._relays: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        (self._home / "logs").mkdir(parents=True, exist_ok=True)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        while self._running:
            await self._stop(self._running.pop())
        for relay in list(self._relays):  # each ended with its program, unless that left a child with its output
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)
        if self.failed.done():
            self.failed.exception()  # seen, whether somebody awaited it or not
        else:
            self.failed.cancel()

    async def start(self, program: ChildProcess) -> str:
        """Start `program` and keep it running. Returns the address it serves at, "" if it serves none."""
        began = time.monotonic()
        process, addr = await self._spawn(program)
        running = _Running(program, process)
        running.watcher = asyncio.create_task(self._watch(running), name=f"watch {program.name}")
        self._running.append(running)
        took = f", ready after {time.monotonic() - began:.2f} s" if addr else ""
        self._say(f"{program.name:<9} pid {process.pid}  {addr}{took}")
        return addr

    async def stop(self, name: str) -> None:
        """Stop one program before the others."""
        for running in [r for r in self._running if r.program.name == name]:
            self._running.remove(running)
            await self._stop(running)

    async def _spawn(self, program: ChildProcess) -> tuple[Process, str]:
        with self._error_file(program.name).open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ariane.cli",
                *program.arguments,
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
        """Pass on the notices of a program until it ends."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._notice(program, line.decode(errors="replace"))

    def _notice(self, program: ChildProcess, line: str) -> bool:
        kind, _, text = line.strip().partition(" ")
        if kind == NOTICE:
            self._say(f"{program.name:<9} {text}")
        return kind == NOTICE

    async def _address(self, program: ChildProcess, process: Process) -> str:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                text = (await process.stdout.readline()).decode(errors="replace")
                while self._notice(program, text):
                    text = (await process.stdout.readline()).decode(errors="replace")
                line = text.split()
        except TimeoutError:
            raise ChildProcessFailed(
                program.name, f"was not ready after {START_S:.0f} s", self._tail(program.name)
            ) from None
        if len(line) != 2 or line[0] != READY:
            await process.wait()
            why = f"did not start ({_ending(process)})"
            raise ChildProcessFailed(program.name, why, self._tail(program.name))
        return line[1]

    async def _watch(self, running: _Running) -> None:
        """Start the program again whenever it ends, until that happens too often."""
        name = running.program.name
        try:
            while True:
                await running.process.wait()
                if self._stopping:
                    return
                now = time.monotonic()
                self._say(f"{name} (pid {running.process.pid}) ended: {_ending(running.process)}; starting it again")
                addr = await self._again(running)
                self._say(f"{name} is back: pid {running.process.pid}  {addr}, {time.monotonic() - now:.2f} s later")
        except (ArianeError, OSError) as error:
            if not self.failed.done():
                self.failed.set_exception(error)

    async def _again(self, running: _Running) -> str:
        """Start a program that ended, as often as it takes and RESTARTS_MAX allows."""
        name = running.program.name
        while True:
            now = time.monotonic()
            running.ends = [t for t in running.ends if now - t < RESTARTS_WITHIN_S] + [now]
            if len(running.ends) > RESTARTS_MAX:
                raise ChildProcessFailed(name, f"ended {len(running.ends)} times in a minute", self._tail(name))
            await asyncio.sleep(RESTART_PAUSE_S)
            try:
                running.process, addr = await self._spawn(running.program)
            except ChildProcessFailed as error:
                self._say(f"{error}; starting it again")
                continue
            return addr

    async def _stop(self, running: _Running) -> None:
        if running.watcher is not None:
            running.watcher.cancel()
            await asyncio.wait([running.watcher])
        process = running.process
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                self._say(f"{running.program.name} did not stop within {STOP_S:.0f} s and is killed")
                process.kill()
                await process.wait()
        (self._home / f"{running.program.name}.pid").unlink(missing_ok=True)

    def _error_file(self, name: str) -> Path:
        return self._home / "logs" / f"{name}.err"

    def _tail(self, name: str) -> str:
        """The end of what the program said before it could log, and of its log."""
        lines: list[str] = []
        for file in (self._home / "logs" / f"{name}.log", self._error_file(name)):
            if file.exists():
                lines += file.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join(f"  {line}" for line in lines)


def _ending(process: Process) -> str:
    code = process.returncode or 0
    if code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name
