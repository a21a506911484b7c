"""The demo of failover: kills the master of a broker set regularly, while orders are sent and consumed, and prints the outcome.

orders ─→ broker set ─→ groups stock, billing          acknowledged and consumed steps: DemoTracker
            ▲
          SIGKILL to the master ─→ wait for the next master ─→ wait until all copies are complete and everything acknowledged
                                   is consumed ─→ print what was lost, repeated, and the time without an acknowledgement
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict

import typer

from ariane.cli.up import demo_traffic
from ariane.cli.up.child_processes import ChildProcesses
from ariane.cli.up.demo_kills import AcknowledgementPauses, KillSchedule, build_failover_report
from ariane.cli.up.demo_tracker import DemoTracker
from ariane.cli.up.demo_traffic import GROUPS, PrintLine
from ariane.cli.up.planned_brokers import MEMBERS, PlannedBroker
from ariane.client.instance.hooks import SendEvent
from ariane.client.instance.settings import ClientSettings
from ariane.cluster.admin import Admin
from ariane.cluster.servers.broker_sets import BrokerSet
from ariane.errors import ArianeError, ServerUnavailable

SENDERS = 4
POLL_S = 0.1
# Time limits: a lease ends after 10 s, and a killed member starts again within seconds.
MASTER_S = 60.0
COMPLETE_S = 120.0


async def wait_complete(namesrv: str, client: ClientSettings, brokers: Sequence[PlannedBroker]) -> None:
    """Wait until each broker set has a master, and all members in sync.

    Raises:
        ServerUnavailable: that takes longer than COMPLETE_S.
    """
    async with Admin(namesrv, client=client) as admin:
        for name in sorted({planned.broker for planned in brokers}):
            await _wait_set(admin, name, lambda state: len(state.in_sync) == MEMBERS, COMPLETE_S)


async def _wait_set(admin: Admin, broker: str, reached: Callable[[BrokerSet], bool], limit_s: float) -> BrokerSet:
    """Return the state of a broker set once it has a master and `reached` holds."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with suppress(ArianeError):  # no member is registered yet, or none responds
            state, _ = await admin.fetch_broker_set(broker)
            if state.master is not None and reached(state):
                return state
        await asyncio.sleep(POLL_S)
    raise ServerUnavailable(f"{broker} is not complete after {limit_s:g} s: see `ariane cluster status` and logs")


def _epoch(state: BrokerSet) -> int:
    return 0 if state.master is None else state.master.epoch


class FailoverDemo:
    """Traffic, kills, and their outcome."""

    def __init__(
        self,
        *,
        namesrv: str,
        client: ClientSettings,
        brokers: Sequence[PlannedBroker],
        programs: ChildProcesses,
        print_line: PrintLine,
    ) -> None:
        self._namesrv, self._client = namesrv, client
        self._processes = {planned.member: planned.process for planned in brokers}  # by the name of the member
        self._names = sorted({planned.broker for planned in brokers})
        self._programs = programs
        self._print_line = print_line
        self._tracker = DemoTracker(GROUPS)
        self._pauses = AcknowledgementPauses()
        self._results_s: list[float] = []  # time without an acknowledgement, of each kill

    async def run(self, schedule: KillSchedule, stop: asyncio.Event) -> bool:
        """Send, consume and kill until `stop` is set, or until all kills of the schedule happened; then print the report.

        Returns:
            Whether all kills happened.

        Raises:
            typer.Exit: status 1, something acknowledged was lost.
            ServerUnavailable: no other member became the master.
            TimeoutError: a step was not acknowledged for a long time.
        """
        async with AsyncExitStack() as clients:
            producer = await demo_traffic.open_clients(
                clients, self._namesrv, self._client, self._tracker, hooks=[self._on_send]
            )
            admin = await clients.enter_async_context(Admin(self._namesrv, client=self._client))
            self._print_line(f"demo      kills the master every {schedule.interval_s:g} s; press Ctrl-C to stop")
            sending = asyncio.ensure_future(demo_traffic.send_endlessly(producer, self._tracker, concurrency=SENDERS))
            killing = asyncio.ensure_future(self._kill_regularly(admin, schedule))
            stopped = asyncio.ensure_future(stop.wait())
            tasks = (sending, killing, stopped)
            ended, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.wait(tasks)
            if stopped not in ended:
                for task in ended:
                    task.result()
                await self._wait_consumed()
        self._print_line("stopping")
        if stopped in ended:
            return False
        self._print_report()
        return True

    async def _kill_regularly(self, admin: Admin, schedule: KillSchedule) -> None:
        number = 0
        while schedule.kills is None or number < schedule.kills:
            await asyncio.sleep(schedule.interval_s)
            await self._kill(admin, self._names[number % len(self._names)], number + 1)
            number += 1

    async def _kill(self, admin: Admin, broker: str, number: int) -> None:
        before = await _wait_set(admin, broker, lambda state: len(state.in_sync) == MEMBERS, COMPLETE_S)
        assert before.master is not None
        repeated = self._tracker.repeated
        self._pauses.reset(broker, time.monotonic())
        process = self._processes[before.master.name]
        pid = self._programs.kill(process)
        killed_s = time.monotonic()
        self._print_line(f"kill {number:<4} {process} (pid {pid}), the master of {broker}")
        epoch = _epoch(before)
        after = await _wait_set(admin, broker, lambda state: _epoch(state) > epoch, MASTER_S)
        assert after.master is not None
        served_s = time.monotonic()
        self._print_line(
            f"kill {number:<4} {self._processes[after.master.name]} is the master, after {served_s - killed_s:.1f} s"
        )
        await demo_traffic.until(lambda: self._pauses.last_s(broker) > served_s, MASTER_S)
        pause_s = self._pauses.longest_s(broker)
        self._results_s.append(pause_s)
        await _wait_set(admin, broker, lambda state: len(state.in_sync) == MEMBERS, COMPLETE_S)
        lost = await self._wait_consumed()
        self._print_line(
            f"kill {number:<4} acknowledged {self._tracker.sent_count:,}  lost {lost}  "
            f"repeated {self._tracker.repeated - repeated}  no master {pause_s:.1f} s"
        )

    async def _wait_consumed(self) -> int:
        """Wait until the groups have everything that is acknowledged at this moment; return how many steps are missing."""
        acknowledged = self._tracker.acknowledged()
        await demo_traffic.until(lambda: not self._tracker.missing(acknowledged), demo_traffic.CONSUME_S)
        return self._tracker.missing(acknowledged)

    def _on_send(self, event: SendEvent) -> None:
        if event.refusal is None:
            self._pauses.on_acknowledged(event.queue.broker, time.monotonic())

    def _print_report(self) -> None:
        report = build_failover_report(self._tracker, self._results_s)
        typer.echo(json.dumps(asdict(report), separators=(",", ":")))
        if report.lost:
            typer.echo(f"Error: steps lost: {report.lost}, expected 0", err=True)
            raise typer.Exit(1)
