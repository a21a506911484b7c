"""Starts the client processes of a benchmark and follows them. Protocol: `worker`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import Process
from collections.abc import Iterable, Sequence
from typing import Self

import msgspec

from ariane.bench.bench_plan import Role, WorkerPlan
from ariane.bench.measurements import WorkerReport
from ariane.bench.worker import START, STOP, WorkerEvent
from ariane.errors import ArianeError

LINE_BYTES_MAX = 1 << 30  # a report has a bit per message, as base64
READY_S = 60.0
END_S = 10.0  # before SIGKILL


class WorkerFailed(ArianeError):
    """A client process of a benchmark could not work."""


class WorkerProcess:
    """One client process."""

    def __init__(self, work: WorkerPlan, process: Process, changed: asyncio.Event) -> None:
        self.work = work  # what it does
        self.state = WorkerEvent()  # its latest progress
        self.report: WorkerReport | None = None  # its measurements; None while it works, and if it failed
        self.error: str | None = None  # why it failed
        self._process = process  # reads commands, prints events
        self._changed = changed  # set after each event of any process
        self._reading = asyncio.create_task(self._read(), name=str(self))

    def __str__(self) -> str:
        return f"{self.work.role.value} client {self.work.number + 1}"

    @property
    def has_ended(self) -> bool:
        """Whether it has reported its measurements, or failed."""
        return self.report is not None or self.error is not None

    async def send(self, command: str) -> None:
        """Send a command. A process that has ended is not an error here: its report or error says so."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(f"{command}\n".encode())
            await self._process.stdin.drain()

    async def end(self) -> None:
        """Close the pipe, upon which the process ends; kill it if it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            event = msgspec.json.decode(line, type=WorkerEvent)
            if event.report is not None:
                self.report = event.report
                event = WorkerEvent(completed=event.report.completed, failed=event.report.errors.count, is_ready=True)
            self.error = event.error
            self.state = event
            self._changed.set()
        if not self.has_ended:
            status = await self._process.wait()
            self.error = f"ended without a report ({f'signal {-status}' if status < 0 else f'exit status {status}'})"
            self._changed.set()


class WorkerPool:
    """All client processes of a benchmark. At the end of the block all of them have ended."""

    def __init__(self) -> None:
        self.processes: list[WorkerProcess] = []  # the processes, in the order of their plans
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(process.end() for process in self.processes))

    async def start(self, plans: Iterable[WorkerPlan]) -> None:
        """Start a process per plan.

        Raises:
            WorkerFailed: one of them is not ready within READY_S.
        """
        for work in plans:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ariane.bench.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C reaches only the parent, which stops the load in order
                limit=LINE_BYTES_MAX,
            )
            worker = WorkerProcess(work, process, self._changed)
            self.processes.append(worker)
            await worker.send(msgspec.json.encode(work).decode())
        try:
            async with asyncio.timeout(READY_S):
                while not all(process.state.is_ready for process in self.processes):
                    self._raise_failure()
                    await self.wait_change()
        except TimeoutError:
            late = [str(process) for process in self.processes if not process.state.is_ready]
            raise WorkerFailed(f"not ready within {READY_S:.0f} s: {', '.join(late)}") from None

    def of_roles(self, *roles: Role) -> list[WorkerProcess]:
        return [process for process in self.processes if process.work.role in roles]

    async def wait_change(self, timeout_s: float = 0.5) -> None:
        """Wait until a process reports something, for at most `timeout_s`."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def _raise_failure(self) -> None:
        for process in self.processes:
            if process.error is not None:
                raise WorkerFailed(f"{process}: {process.error}")


async def start_load(processes: Sequence[WorkerProcess]) -> None:
    await asyncio.gather(*(process.send(START) for process in processes))


async def stop_load(processes: Sequence[WorkerProcess]) -> None:
    """Stop the load of some processes; they report what they measured."""
    await asyncio.gather(*(process.send(STOP) for process in processes))
