"""`ariane up`: runs a name server, brokers and the console on this machine, optionally with demo traffic and the pipeline.

up ─→ locked home ─→ ChildProcesses: namesrv [, etcd], brokers, slaves, console [, pipeline] ─→ demo traffic | wait for Ctrl-C
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shlex
import time
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from ariane.cli.options import paths as homes
from ariane.cli.options import shared_options, spark_options
from ariane.cli.options.option_kinds import flag_option, number_option, path_option, port_option, seconds_option
from ariane.cli.servers import console_command
from ariane.cli.servers.process import run_server, signals
from ariane.cli.up import local_etcd, server_ports, server_programs
from ariane.cli.up.child_processes import ChildProcess, ChildProcesses, ChildProcessFailed
from ariane.cli.up.demo_kills import KillSchedule
from ariane.cli.up.planned_brokers import BROKERS_MAX, PORTS_PER_BROKER, PlannedBroker, plan_brokers
from ariane.cli.up.server_ports import BROKER_OFFSETS
from ariane.console.settings import DEFAULT_PORT as CONSOLE_PORT
from ariane.errors import ArianeError, UsageError
from ariane.net.listening import local_authority
from ariane.net.listening.fixed_ports import LOOPBACK, PORT_MAX
from ariane.net.listening.local_authority import LocalFiles
from ariane.net.tasks import BackgroundTasks

if TYPE_CHECKING:
    from ariane.client.instance.settings import ClientSettings

T = TypeVar("T")

NAMESRV_PORT = 9876
BROKER_PORT = 10911
GRPC_PORT = 8081
INTERRUPTED = 130  # exit status after SIGINT, as in shells
KILL_EVERY_S = 60.0
KILLS = 3


def _broker_port(text: object) -> int:
    """Return a port for the broker, whose VIP and HA ports (two below, one above) exist, too."""
    number = shared_options.port(text)
    if number in (1, 2, PORT_MAX):
        fix = f"expected a port from 3 to {PORT_MAX - 1}."
        message = f"{number}: the broker also listens on {number - 2} and {number + 1}: {fix}"
        raise typer.BadParameter(message)
    return number


class Interrupted(ArianeError):
    """SIGINT or SIGTERM arrived before the servers were ready, or before the demo was verified."""


def up(
    home: Annotated[
        Path | None,
        path_option(
            metavar="DIR",
            help="Directory for configuration, messages, tables and logs.  [default: $ARIANE_HOME or ~/.ariane]",
        ),
    ] = None,
    demo: Annotated[
        bool, flag_option("--demo", "Send and consume orders, in a temporary home unless --home is set.")
    ] = False,
    exit_after: Annotated[
        bool, flag_option("--exit", "With --demo: send 1,000 orders, verify the outcome, exit.")
    ] = False,
    brokers: Annotated[int, number_option("--brokers", minimum=1, maximum=BROKERS_MAX, help="Brokers.")] = 1,
    slaves: Annotated[bool, flag_option("--slaves", "Run a slave of each broker.")] = False,
    failover: Annotated[
        bool,
        typer.Option(
            "--failover",
            help="Run three members of each broker, and etcd, which decides which of them is the master. "
            "With --demo: kill the master regularly, and print what was lost and for how long no master served.",
        ),
    ] = False,
    kill_every: Annotated[
        float | None,
        seconds_option(
            "--kill-every", minimum=1, help=f"With --demo --failover: time between kills.  [default: {KILL_EVERY_S:g}]"
        ),
    ] = None,
    kills: Annotated[
        int | None,
        number_option(
            "--kills", minimum=1, help=f"With --demo --failover --exit: exit after so many kills.  [default: {KILLS}]"
        ),
    ] = None,
    namesrv_port: Annotated[int, port_option(help="Port of the name server.")] = NAMESRV_PORT,
    broker_port: Annotated[
        int, typer.Option(parser=_broker_port, metavar="PORT", help="Port of the broker.")
    ] = BROKER_PORT,
    console_port: Annotated[
        int | None, port_option(help=f"Port of the web console.  [default: {CONSOLE_PORT}, or the next free one]")
    ] = None,
    grpc_port: Annotated[
        int | None,
        port_option(help=f"Port for clients of RocketMQ 5.  [default: {GRPC_PORT}, or the next free one]"),
    ] = None,
    no_console: Annotated[bool, flag_option("--no-console", "Omit the web console.")] = False,
    tls: Annotated[bool, flag_option("--tls", "Accept encrypted connections only; create certificates once.")] = False,
) -> None:
    """Run a name server, brokers and the web console on this machine.

    Runs until Ctrl-C. A process that dies is restarted.
    """
    if exit_after and not demo:
        raise UsageError("--exit", None, "requires --demo; specify both")
    if no_console and console_port is not None:
        raise UsageError("--console-port", console_port, "has no effect with --no-console; specify one of them")
    _check_failover(demo, exit_after, failover, slaves, kill_every, kills)
    _check_distinct(namesrv_port, broker_port, console_port)
    # A run that verifies its outcome and exits has no reader of a console, and nothing to show of a slave.
    shows_slave = slaves or (demo and not exit_after and not failover)
    planned = plan_brokers(brokers, has_slaves=shows_slave, has_failover=failover)
    killing = KillSchedule(kill_every or KILL_EVERY_S, (kills or KILLS) if exit_after else None) if failover else None
    # The script asks whether Spark is needed; only the demo runs a pipeline.
    if demo and not failover and os.environ.get(spark_options.PROBE):
        spark_options.require_spark()
    home_lock = homes.locked_home(home or homes.default_home()) if home or not demo else homes.temporary_home()
    with home_lock as directory:
        run_server.log_to(directory / "logs" / "up.log")  # log records of the demo's clients
        chooser = PortChooser(may_move=demo)
        ports = chooser.choose(namesrv_port, broker_port, planned, has_etcd=failover)
        if not no_console and not exit_after:
            ports = ports._replace(console=chooser.choose_console(console_port))
        if grpc_port is not None or find_spec("grpc"):  # otherwise the extra is not installed
            ports = ports._replace(grpc=chooser.choose_grpc(grpc_port, planned))
        try:
            files = local_authority.ensure(directory / homes.TLS, datetime.now(UTC)) if tls else None
            run = Run(directory, planned, ports, files)
            run_server.run_loop(_up(run, _Demo(exit_after, killing) if demo else None))
        except Interrupted:
            raise typer.Exit(INTERRUPTED) from None


class Ports(NamedTuple):
    """Ports of the servers; None: the server is not started."""

    namesrv: int
    brokers: Mapping[str, int]
    """By the name of the process."""
    etcd: tuple[int, int] | None
    """Ports for clients and for other members."""
    console: int | None
    grpc: Mapping[str, int] = {}
    """Of masters, by the name of the process: those for clients of RocketMQ 5."""


class Run(NamedTuple):
    """What this run starts."""

    home: Path
    brokers: list[PlannedBroker]
    ports: Ports
    tls: LocalFiles | None


class _Demo(NamedTuple):
    exits: bool
    killing: KillSchedule | None
    """When masters are killed; None without failover."""


def _check_failover(
    demo: bool, exit_after: bool, failover: bool, slaves: bool, kill_every: float | None, kills: int | None
) -> None:
    if failover and slaves:
        raise UsageError("--slaves", None, "has no effect with --failover, whose brokers have three members each")
    if kill_every is not None and not (demo and failover):
        raise UsageError("--kill-every", kill_every, "requires --demo --failover; specify all of them")
    if kills is not None and not (failover and exit_after):
        raise UsageError("--kills", kills, "requires --demo --failover --exit; specify all of them")
    if failover:
        local_etcd.require_etcd()


def _check_distinct(namesrv: int, broker: int, console: int | None) -> None:
    """Check that no two servers have the same port; 0 stands for any.

    Raises:
        UsageError: the name server or the console has a port of another server.
    """
    brokers = f"the broker listens on {broker - 2}, {broker} and {broker + 1}: specify another port"
    for option, port in (("--namesrv-port", namesrv), ("--console-port", console)):
        if port and broker and port - broker in BROKER_OFFSETS:
            raise UsageError(option, port, brokers)
    if console and console == namesrv:
        raise UsageError("--console-port", console, "is the port of the name server: specify another port")


class PortChooser:
    """Chooses all ports before the start, because a restarted server has to come back at the same address."""

    def __init__(self, *, may_move: bool) -> None:
        self._may_move = may_move  # to a free port, if one is in use
        self._reserved: set[int] = set()

    def choose(self, namesrv: int, broker: int, planned: list[PlannedBroker], *, has_etcd: bool) -> Ports:
        """Return the ports of all servers but the console."""
        namesrv = self._choose("--namesrv-port", namesrv)
        brokers = {}
        for number, each in enumerate(planned):
            # Slaves get any port: nothing refers to it.
            port = broker + number * PORTS_PER_BROKER if broker and not each.is_optional else 0
            brokers[each.process] = self._choose("--broker-port", port, BROKER_OFFSETS)
        etcd = (self._choose("--failover", 0), self._choose("--failover", 0)) if has_etcd else None
        return Ports(namesrv, brokers, etcd, None)

    def choose_console(self, port: int | None) -> int:
        # Many programs use the console's port, and a broker has to start whether or not one of them runs.
        if port is None:
            return self._choose_next("--console-port", CONSOLE_PORT, "the console")
        return self._choose("--console-port", port)

    def choose_grpc(self, port: int | None, planned: list[PlannedBroker]) -> dict[str, int]:
        """Return the ports for clients of RocketMQ 5. Slaves and members of broker sets have none."""
        masters = [each.process for each in planned if not each.is_optional and not each.member]
        ports: dict[str, int] = {}
        for process in masters:
            if port == 0 or (port is not None and not ports):
                ports[process] = self._choose("--grpc-port", port)
            else:
                ports[process] = self._choose_next("--grpc-port", port or GRPC_PORT, f"{process} for RocketMQ 5")
        return ports

    def _choose_next(self, option: str, port: int, server: str) -> int:
        chosen = server_ports.choose_next_port(option, port, print_line, self._reserved, server=server)
        self._reserved.add(chosen)
        return chosen

    def _choose(self, option: str, port: int, offsets: tuple[int, ...] = (0,)) -> int:
        chosen = server_ports.choose_port(
            option, port, may_move=self._may_move, print_line=print_line, offsets=offsets, reserved=self._reserved
        )
        self._reserved.update(chosen + offset for offset in offsets)
        return chosen


def print_line(line: str) -> None:
    """Print a line with the time of day."""
    typer.echo(f"{time.strftime('%H:%M:%S')} {line}")


async def _up(run: Run, demo: _Demo | None) -> None:
    print_line(f"home      {run.home}")
    with signals.loop_stop_event() as stop:
        async with ChildProcesses(run.home, print_line) as programs, contextlib.AsyncExitStack() as background:
            namesrv = await _run_unless(stop, _start_required(programs, run))
            print_line(f"ready     namesrv {namesrv} (NAMESRV_ADDR of clients)")
            for process, port in run.ports.grpc.items():
                print_line(f"ready     {process} for clients of RocketMQ 5: {LOOPBACK}:{port}")
            if run.tls is not None:
                print_line("tls       encrypted connections only; clients need:")
                for name, value in (
                    ("NAMESRV_ADDR", namesrv),
                    ("ARIANE_TLS", "true"),
                    ("ARIANE_TLS_CA_FILE", str(run.tls.ca)),
                ):
                    typer.echo(f"export {name}={shlex.quote(value)}")
            # Not waited for: clients can use the brokers while the console starts.
            tasks = BackgroundTasks("up")
            background.push_async_callback(tasks.close)
            tasks.start(_start_optional(programs, run, namesrv), "start slaves and the console")
            if demo is None:
                work = _wait_for(stop)
            elif demo.killing is not None:
                work = _failover_demo(programs, run, namesrv, demo.killing, stop)
            else:
                work = _demo(programs, run.home, namesrv, demo.exits, stop, run.tls)
            await _run_while_alive(work, programs)


async def _start_required(programs: ChildProcesses, run: Run) -> str:
    """Start the name server, etcd, and the brokers that clients need; return the address of the name server."""
    addr = await programs.start(server_programs.name_server(run.home, run.ports.namesrv, run.tls))
    namesrv = f"{LOOPBACK}:{addr.rpartition(':')[2]}"
    etcd = "" if run.ports.etcd is None else await programs.start(server_programs.etcd(run.home, *run.ports.etcd))
    for planned in run.brokers:
        if not planned.is_optional:
            program = server_programs.broker(run.home, planned, namesrv, run.ports.brokers, etcd, run.tls)
            await programs.start(_with_grpc(program, run.ports.grpc.get(planned.process)))
    if etcd:
        from ariane.cli.up.failover_demo import wait_complete

        await wait_complete(namesrv, _client_settings(run.tls), run.brokers)
    return namesrv


def _with_grpc(program: ChildProcess, port: int | None) -> ChildProcess:
    """Return a broker that serves clients of RocketMQ 5 on a port, if it is not None."""
    if port is None:
        return program
    keys = ("-DgrpcServerEnable=true", f"-DgrpcServerPort={port}")
    return dataclasses.replace(program, arguments=(*program.arguments, *keys))


async def _start_optional(programs: ChildProcesses, run: Run, namesrv: str) -> None:
    """Start slaves and the console. If one cannot start, report it: the brokers work without them."""
    for planned in run.brokers:
        if planned.is_optional:
            await _start_reported(
                programs, server_programs.broker(run.home, planned, namesrv, run.ports.brokers, "", run.tls)
            )
    if run.ports.console is None:
        return
    if fault := console_command.install_fault():
        print_line(f"console   off: {fault}")
    else:
        await _start_reported(programs, server_programs.console(run.home, namesrv, run.ports.console, run.tls))


async def _start_reported(programs: ChildProcesses, program: ChildProcess) -> None:
    """Start a program, or print why it does not start."""
    try:
        await programs.start(program)
    except (ChildProcessFailed, OSError) as error:
        print_line(f"{program.name:<9} off: {error}")


async def _demo(
    programs: ChildProcesses, home: Path, namesrv: str, exit_after: bool, stop: asyncio.Event, tls: LocalFiles | None
) -> None:
    from ariane.cli.up import demo_traffic
    from ariane.pipeline.spark_session import C1_ONLY, JAVA_OPTIONS, spark_fault

    tables = None
    # A demo without Java still shows messages and latencies.
    if fault := spark_fault():
        print_line(f"pipeline  off: {fault}")
    else:
        tables = homes.tables_dir(home)
        # The console's reports need the tables of all jobs, but a laptop no round of them every two seconds, and no optimal code
        # for a few messages; the verification needs those of traces, soon.
        demo = ("all", "--interval", "10", "--conf", f"{JAVA_OPTIONS}={C1_ONLY}")
        jobs = ("trace",) if exit_after else demo
        arguments = (
            "pipeline",
            "run",
            *jobs,
            "--namesrv",
            namesrv,
            "--home",
            str(tables),
            *server_programs.client_tls(tls),
        )
        # Without waiting: Spark takes a while to start, and the topics retain what is sent meanwhile.
        await _run_unless(
            stop, programs.start(ChildProcess("pipeline", (*arguments, "--until-stdin-closes"), ready=False))
        )
        print_line(f"timeline  ariane trace --home {shlex.quote(str(home))} --key ORDER-17")
    client = _client_settings(tls)
    if exit_after:
        await _run_unless(stop, demo_traffic.run_once_and_verify(namesrv, client, tables, print_line))
    else:
        await demo_traffic.run_forever(namesrv, client, tables, print_line, stop)


async def _failover_demo(
    programs: ChildProcesses, run: Run, namesrv: str, schedule: KillSchedule, stop: asyncio.Event
) -> None:
    from ariane.cli.up.failover_demo import FailoverDemo

    demo = FailoverDemo(
        namesrv=namesrv, client=_client_settings(run.tls), brokers=run.brokers, programs=programs, print_line=print_line
    )
    if not await demo.run(schedule, stop) and schedule.kills is not None:
        raise Interrupted


def _client_settings(tls: LocalFiles | None) -> ClientSettings:
    from ariane.client.instance.settings import ClientSettings

    return ClientSettings() if tls is None else ClientSettings(use_tls=True, tls_ca_file=str(tls.ca))


async def _wait_for(stop: asyncio.Event) -> None:
    print_line("press Ctrl-C to stop")
    await stop.wait()
    print_line("stopping")


async def _run_unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`.

    Raises:
        Interrupted: `stop` was set first; `work` is cancelled.
    """
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        print_line("stopping")
        raise Interrupted
    finally:
        stopped.cancel()
        task.cancel()
        await asyncio.wait([task])


async def _run_while_alive(work: object, programs: ChildProcesses) -> None:
    """Run `work` to its end.

    Raises:
        ChildProcessFailed: a process could not be kept running; `work` is cancelled.
    """
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    await asyncio.wait([task, programs.failed], return_when=asyncio.FIRST_COMPLETED)
    # A program failed for good: its error is more useful than that of the work which it broke.
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        programs.failed.result()
    task.result()
