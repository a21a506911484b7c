"""`ariane up`: runs a name server and a broker on this machine, optionally with demo traffic and the pipeline.

up ─→ locked home ─→ ChildProcesses: namesrv, broker [, pipeline] ─→ demo traffic | wait for Ctrl-C
"""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ariane.cli import paths as homes
from ariane.cli import run_server, shared_options, signals, spark_options
from ariane.cli.child_processes import ChildProcess, ChildProcesses
from ariane.errors import ArianeError, ConfigError, UsageError

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
NAMESRV_PORT = 9876
BROKER_PORT = 10911
BROKER_OFFSETS = (0, -2, 1)  # relative to the broker's port: remoting, VIP channel, HA
# A free port may have a neighbour in use, and the broker needs three.
PORT_TRIES = 50
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
        typer.Option(
            parser=shared_options.local_path,
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
    namesrv_port: Annotated[
        int, typer.Option(parser=shared_options.port, metavar="PORT", help="Port of the name server.")
    ] = NAMESRV_PORT,
    broker_port: Annotated[
        int, typer.Option(parser=_broker_port, metavar="PORT", help="Port of the broker.")
    ] = BROKER_PORT,
) -> None:
    """Run a name server and a broker on this machine.

    Runs until Ctrl-C. A process that dies is restarted.
    """
    if exit_after and not demo:
        raise UsageError("--exit", None, "requires --demo; specify both")
    if namesrv_port and broker_port and namesrv_port - broker_port in BROKER_OFFSETS:
        fix = f"the broker listens on {broker_port - 2}, {broker_port} and {broker_port + 1}: specify another port"
        raise UsageError("--namesrv-port", namesrv_port, fix)
    # The script asks whether Spark is needed; only the demo runs a pipeline.
    if demo and os.environ.get(spark_options.PROBE):
        spark_options.require_spark()
    home_lock = homes.locked_home(home or homes.default_home()) if home or not demo else homes.temporary_home()
    with home_lock as directory:
        run_server.log_to(directory / "logs" / "up.log")  # log records of the demo's clients
        # Chosen before the start, because a restarted server has to come back at the same address.
        name_server = _choose_port("--namesrv-port", namesrv_port, demo)
        ports = name_server, _choose_port("--broker-port", broker_port, demo, BROKER_OFFSETS)
        try:
            run_server.run_loop(_up(directory, demo, exit_after, *ports))
        except Interrupted:
            raise typer.Exit(INTERRUPTED) from None


def print_line(line: str) -> None:
    """Print a line with the time of day."""
    typer.echo(f"{time.strftime('%H:%M:%S')} {line}")


async def _up(home: Path, demo: bool, exit_after: bool, namesrv_port: int, broker_port: int) -> None:
    print_line(f"home      {home}")
    with signals.loop_stop_event() as stop:
        async with ChildProcesses(home, print_line) as programs:
            namesrv = await _run_unless(stop, programs.start(_name_server(home, namesrv_port)))
            port = namesrv.rpartition(":")[2]
            await _run_unless(stop, programs.start(_broker(home, f"{LOOPBACK}:{port}", broker_port)))
            serving = f"{LOOPBACK}:{port}"
            print_line(f"ready     namesrv {serving}: use this address in clients (NAMESRV_ADDR={serving})")
            work = _demo(programs, home, serving, exit_after, stop) if demo else _wait_for(stop)
            await _run_while_alive(work, programs)


async def _demo(programs: ChildProcesses, home: Path, namesrv: str, exit_after: bool, stop: asyncio.Event) -> None:
    from ariane.cli import demo_traffic
    from ariane.pipeline.spark_session import spark_fault

    tables = None
    # A demo without Java still shows messages and latencies.
    if fault := spark_fault():
        print_line(f"pipeline  off: {fault}")
    else:
        tables = homes.tables_dir(home)
        arguments = ("pipeline", "run", "trace", "--namesrv", namesrv, "--home", str(tables), "--until-stdin-closes")
        # Without waiting: Spark takes a while to start, and the topics retain what is sent meanwhile.
        await _run_unless(stop, programs.start(ChildProcess("pipeline", arguments, ready=False)))
        print_line(f"timeline  ariane trace --home {shlex.quote(str(home))} --key ORDER-17")
    if exit_after:
        await _run_unless(stop, demo_traffic.run_once_and_verify(namesrv, tables, print_line))
    else:
        await demo_traffic.run_forever(namesrv, tables, print_line, stop)


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


def _name_server(home: Path, port: int) -> ChildProcess:
    # Everything below the home, and on the loopback address only: a home can be removed as a whole, and other machines
    # do not reach the servers.
    settings = {
        "bindAddress": LOOPBACK,
        "kvConfigPath": str(home / "store" / "namesrv" / "kvConfig.json"),
    }
    conf = _write_default_config(home / "conf" / "namesrv.conf", settings)
    return ChildProcess("namesrv", ("namesrv", "-c", str(conf), "--port", str(port), *_supervised(home, "namesrv")))


def _broker(home: Path, namesrv: str, port: int) -> ChildProcess:
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "bindAddress": LOOPBACK,
        "brokerIP1": LOOPBACK,
        "storePathRootDir": str(home / "store"),
    }
    conf = _write_default_config(home / "conf" / "broker.conf", settings)
    arguments = ("broker", "-c", str(conf), "-n", namesrv, "--port", str(port))
    return ChildProcess("broker", (*arguments, *_supervised(home, "broker")))


def _supervised(home: Path, name: str) -> tuple[str, ...]:
    return ("--log", str(home / "logs" / f"{name}.log"), "--until-stdin-closes")


def _write_default_config(path: Path, settings: dict[str, str]) -> Path:
    # An existing file belongs to the user.
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
    return path


def _choose_port(option: str, port: int, demo: bool, offsets: tuple[int, ...] = (0,)) -> int:
    """Return `port`, or a free one if `port` is 0, or is used and a demo may move.

    The servers get a fixed port, so that one that is killed restarts on the same port.

    Raises:
        ConfigError: `port`, or a port at the `offsets` from it, is not available.
    """
    fault = _port_fault(port, offsets) if port else None
    if port and fault is None:
        return port
    if fault is not None and (not demo or fault[1].errno != errno.EADDRINUSE):
        used, error = fault
        reason = "in use by another program" if error.errno == errno.EADDRINUSE else "not permitted"
        raise ConfigError(option, port, f"port {used} is {reason} ({error.strerror}); stop it, or specify another port")
    for _ in range(PORT_TRIES):
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            free = int(probe.getsockname()[1])
        if _port_fault(free, offsets) is None:
            if fault is not None:
                print_line(f"port {fault[0]} is in use, the demo uses {free}")
            return free
    raise ConfigError(option, port, "no free port found; specify one")


def _port_fault(port: int, offsets: tuple[int, ...]) -> tuple[int, OSError] | None:
    """Return the first port that is not available and the error; None if all are available."""
    for offset in offsets:
        if not 0 < port + offset <= shared_options.PORT_MAX:
            return port + offset, OSError(errno.EADDRINUSE, "not a valid port")
        with socket.socket() as probe:
            # As the servers do: a port in TIME_WAIT is available.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port + offset))
            except OSError as error:
                return port + offset, error
    return None
