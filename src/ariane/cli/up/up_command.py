"""`ariane up`: runs a name server, a broker and the console on this machine, optionally with demo traffic and the pipeline.

up ─→ locked home ─→ ChildProcesses: namesrv, broker [, slave], console [, pipeline] ─→ demo traffic | wait for Ctrl-C
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from ariane.cli.options import paths as homes
from ariane.cli.options import shared_options, spark_options
from ariane.cli.options.option_kinds import path_option, port_option
from ariane.cli.servers import console_command
from ariane.cli.servers.process import run_server, signals
from ariane.cli.up import server_ports
from ariane.cli.up.child_processes import ChildProcess, ChildProcesses, ChildProcessFailed
from ariane.cli.up.server_ports import BROKER_OFFSETS, LOOPBACK
from ariane.console.settings import DEFAULT_PORT as CONSOLE_PORT
from ariane.errors import ArianeError, UsageError
from ariane.net.listening import local_authority
from ariane.net.listening.local_authority import LocalFiles
from ariane.net.tasks import BackgroundTasks

T = TypeVar("T")

NAMESRV_PORT = 9876
BROKER_PORT = 10911
INTERRUPTED = 130  # exit status after SIGINT, as in shells


def _broker_port(text: object) -> int:
    """Return a port for the broker, whose VIP and HA ports (two below, one above) exist, too."""
    number = shared_options.port(text)
    if number in (1, 2, shared_options.PORT_MAX):
        fix = f"expected a port from 3 to {shared_options.PORT_MAX - 1}."
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
        bool, typer.Option("--demo", help="Send and consume orders, in a temporary home unless --home is set.")
    ] = False,
    exit_after: Annotated[
        bool, typer.Option("--exit", help="With --demo: send 1,000 orders, verify the outcome, exit.")
    ] = False,
    namesrv_port: Annotated[int, port_option(help="Port of the name server.")] = NAMESRV_PORT,
    broker_port: Annotated[
        int, typer.Option(parser=_broker_port, metavar="PORT", help="Port of the broker.")
    ] = BROKER_PORT,
    console_port: Annotated[
        int | None, port_option(help=f"Port of the web console.  [default: {CONSOLE_PORT}, or the next free one]")
    ] = None,
    no_console: Annotated[bool, typer.Option("--no-console", help="Omit the web console.")] = False,
    tls: Annotated[
        bool, typer.Option("--tls", help="Accept encrypted connections only; create certificates once.")
    ] = False,
) -> None:
    """Run a name server, a broker and the web console on this machine.

    Runs until Ctrl-C. A process that dies is restarted.
    """
    if exit_after and not demo:
        raise UsageError("--exit", None, "requires --demo; specify both")
    if no_console and console_port is not None:
        raise UsageError("--console-port", console_port, "has no effect with --no-console; specify one of them")
    _check_distinct(namesrv_port, broker_port, console_port)
    # The script asks whether Spark is needed; only the demo runs a pipeline.
    if demo and os.environ.get(spark_options.PROBE):
        spark_options.require_spark()
    home_lock = homes.locked_home(home or homes.default_home()) if home or not demo else homes.temporary_home()
    with home_lock as directory:
        run_server.log_to(directory / "logs" / "up.log")  # log records of the demo's clients
        # A run that verifies its outcome and exits has no reader of a console, and nothing to show of a slave.
        has_console = not no_console and not exit_after
        ports = _choose_ports(
            namesrv_port, broker_port, console_port, demo, has_console=has_console, has_slave=demo and not exit_after
        )
        try:
            files = local_authority.ensure(directory / homes.TLS, datetime.now(UTC)) if tls else None
            run_server.run_loop(_up(directory, demo, exit_after, ports, files))
        except Interrupted:
            raise typer.Exit(INTERRUPTED) from None


class Ports(NamedTuple):
    """Ports of the servers; None: the server is not started."""

    namesrv: int
    broker: int
    slave: int | None
    console: int | None


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


def _choose_ports(
    namesrv: int, broker: int, console: int | None, demo: bool, *, has_console: bool, has_slave: bool
) -> Ports:
    """Choose all ports before the start, because a restarted server has to come back at the same address."""

    def choose(option: str, port: int, offsets: tuple[int, ...] = (0,)) -> int:
        chosen = server_ports.choose_port(
            option, port, may_move=demo, print_line=print_line, offsets=offsets, reserved=reserved
        )
        reserved.update(chosen + offset for offset in offsets)
        return chosen

    reserved: set[int] = set()
    namesrv = choose("--namesrv-port", namesrv)
    broker = choose("--broker-port", broker, BROKER_OFFSETS)
    slave = choose("--broker-port", 0, BROKER_OFFSETS) if has_slave else None
    if not has_console:
        return Ports(namesrv, broker, slave, None)
    # Many programs use the console's port, and a broker has to start whether or not one of them runs.
    if console is None:
        console = server_ports.choose_next_port("--console-port", CONSOLE_PORT, print_line, reserved)
    else:
        console = choose("--console-port", console)
    return Ports(namesrv, broker, slave, console)


def print_line(line: str) -> None:
    """Print a line with the time of day."""
    typer.echo(f"{time.strftime('%H:%M:%S')} {line}")


async def _up(home: Path, demo: bool, exit_after: bool, ports: Ports, tls: LocalFiles | None) -> None:
    print_line(f"home      {home}")
    with signals.loop_stop_event() as stop:
        async with ChildProcesses(home, print_line) as programs, contextlib.AsyncExitStack() as background:
            namesrv = await _run_unless(stop, programs.start(_name_server(home, ports.namesrv, tls)))
            serving = f"{LOOPBACK}:{namesrv.rpartition(':')[2]}"
            await _run_unless(stop, programs.start(_broker(home, serving, ports.broker, tls=tls)))
            print_line(f"ready     namesrv {serving} (NAMESRV_ADDR of clients)")
            if tls is not None:
                print_line("tls       encrypted connections only; clients need:")
                for name, value in (
                    ("NAMESRV_ADDR", serving),
                    ("ARIANE_TLS", "true"),
                    ("ARIANE_TLS_CA_FILE", str(tls.ca)),
                ):
                    typer.echo(f"export {name}={shlex.quote(value)}")
            # Not waited for: clients can use the broker while the console starts.
            tasks = BackgroundTasks("up")
            background.push_async_callback(tasks.close)
            tasks.start(_start_optional(programs, home, serving, ports, tls), "start the slave and the console")
            work = _demo(programs, home, serving, exit_after, stop, tls) if demo else _wait_for(stop)
            await _run_while_alive(work, programs)


async def _start_optional(
    programs: ChildProcesses, home: Path, namesrv: str, ports: Ports, tls: LocalFiles | None
) -> None:
    """Start the demo's slave and the console. If one cannot start, report it: the broker works without them."""
    if ports.slave is not None:
        await _start_reported(programs, _broker(home, namesrv, ports.slave, is_slave=True, tls=tls))
    if ports.console is None:
        return
    if fault := console_command.install_fault():
        print_line(f"console   off: {fault}")
    else:
        await _start_reported(programs, _console(home, namesrv, ports.console, tls))


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
    from ariane.client.instance.settings import ClientSettings
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
        arguments = ("pipeline", "run", *jobs, "--namesrv", namesrv, "--home", str(tables), *_client_tls(tls))
        # Without waiting: Spark takes a while to start, and the topics retain what is sent meanwhile.
        await _run_unless(
            stop, programs.start(ChildProcess("pipeline", (*arguments, "--until-stdin-closes"), ready=False))
        )
        print_line(f"timeline  ariane trace --home {shlex.quote(str(home))} --key ORDER-17")
    client = ClientSettings() if tls is None else ClientSettings(use_tls=True, tls_ca_file=str(tls.ca))
    if exit_after:
        await _run_unless(stop, demo_traffic.run_once_and_verify(namesrv, client, tables, print_line))
    else:
        await demo_traffic.run_forever(namesrv, client, tables, print_line, stop)


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


def _name_server(home: Path, port: int, tls: LocalFiles | None) -> ChildProcess:
    # Everything below the home, and on the loopback address only: a home can be removed as a whole, and other machines
    # do not reach the servers.
    settings = {
        "bindAddress": LOOPBACK,
        "kvConfigPath": str(home / "store" / "namesrv" / "kvConfig.json"),
    }
    conf = _write_default_config(home / "conf" / "namesrv.conf", settings)
    arguments = ("namesrv", "-c", str(conf), "--port", str(port), *_server_tls(tls))
    return ChildProcess("namesrv", (*arguments, *_supervised(home, "namesrv")))


def _broker(
    home: Path, namesrv: str, port: int, *, is_slave: bool = False, tls: LocalFiles | None = None
) -> ChildProcess:
    name = "slave" if is_slave else "broker"
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        **({"brokerRole": "SLAVE", "brokerId": "1"} if is_slave else {}),
        "bindAddress": LOOPBACK,
        "brokerIP1": LOOPBACK,
        "storePathRootDir": str(home / ("store-slave" if is_slave else "store")),
    }
    conf = _write_default_config(home / "conf" / f"{name}.conf", settings)
    arguments = ("broker", "-c", str(conf), "-n", namesrv, "--port", str(port), *_server_tls(tls))
    if tls is not None:
        arguments += ("-Dtls.client.authServer=true", f"-Dtls.client.trustCertPath={tls.ca}", "-DhaTls=true")
    return ChildProcess(name, (*arguments, *_supervised(home, name)), optional=is_slave)


def _console(home: Path, namesrv: str, port: int, tls: LocalFiles | None) -> ChildProcess:
    arguments = ("console", "-n", namesrv, "--port", str(port), "--home", str(homes.tables_dir(home)))
    data = ("--data", str(homes.console_dir(home)))
    return ChildProcess("console", (*arguments, *data, *_client_tls(tls), *_supervised(home, "console")), optional=True)


def _client_tls(tls: LocalFiles | None) -> tuple[str, ...]:
    """Return the arguments of a command that connects to the servers, whatever the variables ARIANE_TLS… say."""
    return () if tls is None else ("--tls", "--tls-verify", "true", "--tls-ca-file", str(tls.ca))


def _server_tls(tls: LocalFiles | None) -> tuple[str, ...]:
    """Return the arguments of a server that accepts encrypted connections only, whatever the files of the machine say."""
    if tls is None:
        return ()
    keys = {
        "tls.config.file": os.devnull,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": tls.cert,
        "tls.server.keyPath": tls.key,
    }
    return tuple(f"-D{key}={value}" for key, value in keys.items())


def _supervised(home: Path, name: str) -> tuple[str, ...]:
    return ("--log", str(home / "logs" / f"{name}.log"), "--until-stdin-closes")


def _write_default_config(path: Path, settings: dict[str, str]) -> Path:
    # An existing file belongs to the user.
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
    return path
