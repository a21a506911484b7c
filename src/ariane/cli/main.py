"""The table of commands. [mqnamesrv, mqbroker and their shell scripts]

A command's module imports what it needs when it runs: the broker's start loads neither Spark nor a table renderer.
"""

from __future__ import annotations

import sys

import typer

from ariane.cli import archive, broker, collect, namesrv, pipeline, replay, report, store, trace, up
from ariane.errors import ArianeError

app = typer.Typer(
    help="RocketMQ in Python: name server, broker, clients, and Spark over message traces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("namesrv")(namesrv.namesrv)
app.command("broker")(broker.broker)
app.command("trace")(trace.trace)
app.command("collect")(collect.collect)
app.command("replay")(replay.replay)
app.add_typer(archive.app, name="archive")
app.command("report")(report.report)
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(store.app, name="store")


def run() -> None:
    """Run the command of sys.argv. An error of ours is one line for people and exit status 1."""
    try:
        app()
    except ArianeError as error:
        typer.echo(f"ariane: {error}", err=True)
        sys.exit(1)
