"""`ariane up`: name server and broker on this machine, and, when asked, demo traffic and the pipeline."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Annotated

import typer

from ariane.cli import home as homes
from ariane.cli import serve, stopping
from ariane.cli.programs import Program, Programs
from ariane.errors import ConfigError

LOOPBACK = "127.0.0.1"
NAMESRV_PORT = 9876
BROKER_PORT = 10911


def up(
    home: Annotated[
        Path | None, typer.Option(help="Where everything is kept; default $ARIANE_HOME or ~/.ariane.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Send and consume orders, in a temporary home if none is given.")
    ] = False,
    exit_after: Annotated[
        bool, typer.Option("--exit", help="With --demo: 1,000 orders, a verdict, and the end.")
    ] = False,
    namesrv_port: Annotated[int, typer.Option(help="Port of the name server.")] = NAMESRV_PORT,
    broker_port: Annotated[int, typer.Option(help="Port of the broker.")] = BROKER_PORT,
) -> None:
    """Run a name server and a broker until Ctrl-C; a program that dies is started again."""
    if exit_after and not demo:
        raise ConfigError("--exit", "", "goes with --demo")
    place = homes.held(home or homes.default_home()) if home or not demo else homes.temporary()
    with place as kept:
        serve.log_to(kept / "logs" / "up.log")  # what the demo's clients tell
        serve.run_loop(_up(kept, demo, exit_after, _free(namesrv_port, demo), _free(broker_port, demo)))


def say(line: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {line}")


async def _up(home: Path, demo: bool, exit_after: bool, namesrv_port: int, broker_port: int) -> None:
    say(f"home      {home}")
    async with Programs(home, say) as programs:
        namesrv = await programs.start(_name_server(home, namesrv_port))
        port = namesrv.rpartition(":")[2]
        await programs.start(_broker(home, f"{LOOPBACK}:{port}", broker_port))
        serving = f"{LOOPBACK}:{port}"
        say(f"ready     namesrv {serving}: give clients this address (NAMESRV_ADDR={serving})")
        work = _demo(programs, home, serving, exit_after) if demo else _until_told()
        await _until_first(work, programs)


async def _demo(programs: Programs, home: Path, namesrv: str, exit_after: bool) -> None:
    from ariane.cli import demo
    from ariane.pipeline.session import java_fault

    tables = None
    if fault := java_fault():
        say(f"pipeline  off: {fault}")
    else:
        tables = home / homes.TABLES
        arguments = ("pipeline", "run", "trace", "--namesrv", namesrv, "--home", str(tables), "--until-stdin-closes")
        await programs.start(Program("pipeline", arguments, ready=False))
    if exit_after:
        await demo.judged(namesrv, tables, say)
    else:
        with stopping.of_loop() as stop:
            await demo.endless(namesrv, tables, say, stop)


async def _until_told() -> None:
    with stopping.of_loop() as stop:
        say("Ctrl-C stops everything")
        await stop.wait()
    say("stopping")


async def _until_first(work: object, programs: Programs) -> None:
    """Until `work` is done; a program that cannot be kept running ends it."""
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    await asyncio.wait([task, programs.failed], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        programs.failed.result()
    task.result()


def _name_server(home: Path, port: int) -> Program:
    settings = {
        "bindAddress": LOOPBACK,
        "kvConfigPath": str(home / "store" / "namesrv" / "kvConfig.json"),
    }
    conf = _written_once(home / "conf" / "namesrv.conf", settings)
    return Program("namesrv", ("namesrv", "-c", str(conf), "--port", str(port), *_supervised(home, "namesrv")))


def _broker(home: Path, namesrv: str, port: int) -> Program:
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "bindAddress": LOOPBACK,
        "brokerIP1": LOOPBACK,
        "storePathRootDir": str(home / "store"),
    }
    conf = _written_once(home / "conf" / "broker.conf", settings)
    arguments = ("broker", "-c", str(conf), "-n", namesrv, "--port", str(port))
    return Program("broker", (*arguments, *_supervised(home, "broker")))


def _supervised(home: Path, name: str) -> tuple[str, ...]:
    return ("--log", str(home / "logs" / f"{name}.log"), "--until-stdin-closes")


def _written_once(path: Path, settings: dict[str, str]) -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
    return path


def _free(port: int, demo: bool) -> int:
    """`port`, or any free one for a demo that finds it taken. A broker that is killed comes back at the same port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if not demo:
                fix = f"is taken ({error.strerror}): stop what listens there, or choose another with --namesrv-port, --broker-port"
                raise ConfigError("port", port, fix) from None
            probe.bind((LOOPBACK, 0))
            free = int(probe.getsockname()[1])
            say(f"port {port} is taken, the demo uses {free}")
            return free
    return port
