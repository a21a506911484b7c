"""Registers all commands and turns errors into one line and an exit status. [mqnamesrv, mqbroker and their shell scripts]

Command modules import their dependencies when they run: starting a broker loads neither Spark nor rich.

exit status   0 success   1 failure   2 invalid command line   130 interrupted
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

import ariane
from ariane.cli import admin_command
from ariane.cli.admin import (
    acl_command,
    audit_command,
    cluster_command,
    dead_letter_command,
    delayed_command,
    doctor_command,
    group_command,
    message_command,
    offset_command,
    topic_command,
    transaction_command,
)
from ariane.cli.messages import bench_command, cat_command, replay_command
from ariane.cli.output.help_format import create_app, examples
from ariane.cli.pipeline import archive_command, pipeline_command, report_command, trace_command
from ariane.cli.servers import (
    backup_command,
    broker_command,
    collect_command,
    console_command,
    exporter_command,
    namesrv_command,
    store_command,
    tls_command,
)
from ariane.cli.up import up_command
from ariane.errors import ArianeError, UsageError
from ariane.extras import naming_extras

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

SUMMARY = "Run RocketMQ name servers and brokers, and find out where messages are and why they are late."
SERVERS, CLUSTER, MESSAGES, PIPELINE = "Servers", "Cluster", "Messages", "Pipeline"  # sections of `ariane --help`
EXAMPLES = examples(
    "ariane up --demo  # run everything on this machine, with traffic",
    "ariane trace --key ORDER-17  # find out where a message is",
    "ariane report lag --since 1h  # check whether consumers keep up",
)

app = create_app(
    SUMMARY,
    epilog=EXAMPLES,
    # `run` prints errors as one line; Typer would put a traceback into a box.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's boxes of 80 columns cut names and addresses that users copy
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(name: str, command: Callable[..., None], section: str, *lines: str, **options: Any) -> None:
    app.command(name, *lines, rich_help_panel=section, **options)(command)


_add(
    "up",
    up_command.up,
    SERVERS,
    "ariane up --demo  # with traffic and the pipeline",
    "ariane up --demo --exit  # send 1,000 orders, verify the outcome",
)
app.add_typer(console_command.app, name="console", rich_help_panel=SERVERS)
_add("namesrv", namesrv_command.namesrv, SERVERS, "ariane namesrv -c conf/namesrv.conf", "ariane namesrv --port 9876")
app.add_typer(broker_command.app, name="broker", rich_help_panel=SERVERS)
app.add_typer(tls_command.app, name="tls", rich_help_panel=SERVERS)
app.add_typer(backup_command.app, name="backup", rich_help_panel=SERVERS)
_add("restore", backup_command.restore, SERVERS, "ariane restore s3://backups/broker-a /data/store")
app.add_typer(topic_command.app, name="topic", rich_help_panel=CLUSTER)
app.add_typer(cluster_command.app, name="cluster", rich_help_panel=CLUSTER)
_add(
    "admin",
    admin_command.admin,
    CLUSTER,
    "ariane admin help",
    "ariane admin topicList -n 10.0.0.1:9876",
    "ariane admin updateTopic -c DefaultCluster -t orders -r 8 -w 8 --dry-run",
    # From its command's name on, mqadmin parses the line itself, `--help` included.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
app.add_typer(group_command.app, name="group", rich_help_panel=CLUSTER)
app.add_typer(offset_command.app, name="offset", rich_help_panel=CLUSTER)
app.add_typer(acl_command.app, name="acl", rich_help_panel=CLUSTER)
_add("doctor", doctor_command.doctor, CLUSTER, "ariane doctor", "ariane doctor -n 10.0.0.1:9876 --json",
     "ariane doctor --http https://10.0.0.8:8080")  # fmt: skip
_add(
    "audit",
    audit_command.audit,
    CLUSTER,
    "ariane audit --since 1d --result refused",
    "ariane audit -b broker-a --resource topic:orders --follow",
    "ariane audit --directory /data/store/audit --json",
)
app.add_typer(message_command.app, name="message", rich_help_panel=CLUSTER)
app.add_typer(dead_letter_command.app, name="dead-letter", rich_help_panel=CLUSTER)
app.add_typer(delayed_command.app, name="delayed", rich_help_panel=CLUSTER)
app.add_typer(transaction_command.app, name="transaction", rich_help_panel=CLUSTER)
_add(
    "cat",
    cat_command.cat,
    MESSAGES,
    "ariane cat orders -o end  # print new messages",
    "ariane cat orders --since 10m -e -f '%D %k %s\\n'",
    "ariane cat orders -g audit --json",
    "ariane cat -P orders < lines.txt",
    "ariane cat orders -J -e | ariane cat -P -J copy",
)
_add(
    "bench",
    bench_command.bench,
    CLUSTER,
    "ariane bench send",
    "ariane bench both --clients 2 --consumers 2 --size 1k",
    "ariane bench send -m sync --rate 500/s -c 10000 --json",
)
_add(
    "trace",
    trace_command.trace,
    MESSAGES,
    "ariane trace --key ORDER-17",
    "ariane trace --topic orders --since 10m --slowest",
    "ariane trace --id 7F00000100002A139A5A3C0000000004 --json",
)
_add(
    "report",
    report_command.report,
    MESSAGES,
    "ariane report lag",
    "ariane report latency --since 2d --topic orders",
    "ariane report health --html health.html",
)
_add(
    "replay",
    replay_command.replay,
    MESSAGES,
    "ariane replay --from-topic %DLQ%billing --dry-run",
    "ariane replay --from-topic %DLQ%billing --rate 100/s --result replay.jsonl",
    "ariane replay --from ~/archive --topic orders2 --result replay.parquet",
)
app.add_typer(store_command.app, name="store", rich_help_panel=MESSAGES)
app.add_typer(pipeline_command.app, name="pipeline", rich_help_panel=PIPELINE)
_add(
    "collect",
    collect_command.collect,
    PIPELINE,
    "ariane collect -n 10.0.0.1:9876 --interval 10",
    "ariane collect --once",
)
_add(
    "exporter",
    exporter_command.exporter,
    CLUSTER,
    "ariane exporter -n 10.0.0.1:9876",
    "ariane exporter -n 10.0.0.1:9876 --port 9557",
)
app.add_typer(archive_command.app, name="archive", rich_help_panel=PIPELINE)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"ariane {ariane.__version__}")
        raise typer.Exit


@app.callback(help=SUMMARY, epilog=EXAMPLES)
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hold the options of `ariane` itself; its help text is that of the application."""


def run() -> None:
    """Run the command of `sys.argv`. Print expected errors as one line, without a traceback."""
    # Errors that a user can solve are one line; anything else is a fault of the program and keeps its traceback.
    try:
        with naming_extras():
            app(prog_name="ariane")
    except UsageError as error:
        _fail(str(error), MISUSED)
    except ArianeError as error:
        _fail(str(error), FAILED)
    except OSError as error:
        # Disk and network errors are the user's to solve: the message names the file, a traceback adds nothing.
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)
    except SystemExit as exit_request:
        if exit_request.code == INTERRUPTED:
            typer.echo("Interrupted.", err=True)
        raise


def _fail(message: str, status: int) -> None:
    typer.echo(f"Error: {message}", err=True)
    sys.exit(status)
