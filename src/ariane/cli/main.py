"""The table of commands. [mqnamesrv, mqbroker and their shell scripts]

A command's module imports what it needs when it runs: the broker's start loads neither Spark nor a table renderer.

exit status   0 done   1 failed   2 the command line cannot be run   130 interrupted
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import ariane
from ariane.cli import (
    archive_command,
    broker_command,
    collect_command,
    namesrv_command,
    pipeline_command,
    replay_command,
    report_command,
    store_command,
    trace_command,
    up_command,
)
from ariane.errors import ArianeError, UsageError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    help="RocketMQ in Python: name server, broker, clients, and Spark over message traces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes of 80 columns cut texts that are to be copied
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up_command.up)
app.command("namesrv")(namesrv_command.namesrv)
app.command("broker")(broker_command.broker)
app.command("trace")(trace_command.trace)
app.command("collect")(collect_command.collect)
app.command("replay")(replay_command.replay)
app.add_typer(archive_command.app, name="archive")
app.command("report")(report_command.report)
app.add_typer(pipeline_command.app, name="pipeline")
app.add_typer(store_command.app, name="store")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ariane {ariane.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """RocketMQ in Python: name server, broker, clients, and Spark over message traces."""


def run() -> None:
    """Run the command of sys.argv. Errors of ours and of the operating system are one line for people."""
    try:
        app(prog_name="ariane")
    except UsageError as error:
        _end(str(error), MISUSED)
    except ArianeError as error:
        _end(str(error), FAILED)
    except OSError as error:
        # The disk or the network: its message names the file, and a traceback adds nothing that its reader can use.
        _end(f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            typer.echo("ariane: interrupted", err=True)
        raise


def _end(message: str, status: int) -> None:
    typer.echo(f"ariane: {message}", err=True)
    sys.exit(status)
