"""All commands of `ariane` and their modules. A process loads only those of its own command: it starts in half of the time."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer

import ariane
from ariane.cli.output.help_format import Application, create_app, examples

SUMMARY = "Run RocketMQ name servers and brokers, and find out where messages are and why they are late."
SERVERS, CLUSTER, MESSAGES, PIPELINE = "Servers", "Cluster", "Messages", "Pipeline"  # sections of `ariane --help`
EXAMPLES = examples(
    "ariane up --demo  # run everything on this machine, with traffic",
    "ariane trace --key ORDER-17  # find out where a message is",
    "ariane report lag --since 1h  # check whether consumers keep up",
)
# From its command's name on, mqadmin parses the line itself, `--help` included.
WHOLE_LINE = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}


class CommandModule(NamedTuple):
    """Where a command is: a function of the module with its name, or an `app`, a group of commands."""

    section: str
    module: str  # of ariane.cli
    examples: tuple[str, ...] = ()  # of a function: a group has its own
    context: dict[str, Any] | None = None


COMMANDS = {
    "up": CommandModule(
        SERVERS,
        "up.up_command",
        (
            "ariane up --demo  # with traffic and the pipeline",
            "ariane up --demo --exit  # send 1,000 orders, verify the outcome",
        ),
    ),
    "console": CommandModule(SERVERS, "servers.console_command"),
    "namesrv": CommandModule(
        SERVERS, "servers.namesrv_command", ("ariane namesrv -c conf/namesrv.conf", "ariane namesrv --port 9876")
    ),
    "broker": CommandModule(SERVERS, "servers.broker_command"),
    "proxy": CommandModule(
        SERVERS, "servers.proxy_command", ("ariane proxy -n 10.0.0.1:9876", "ariane proxy -c conf/proxy.conf")
    ),
    "tls": CommandModule(SERVERS, "servers.tls_command"),
    "backup": CommandModule(SERVERS, "servers.backup_command"),
    "restore": CommandModule(SERVERS, "servers.backup_command", ("ariane restore s3://backups/broker-a /data/store",)),
    "topic": CommandModule(CLUSTER, "admin.topic_command"),
    "cluster": CommandModule(CLUSTER, "admin.cluster_command"),
    "admin": CommandModule(
        CLUSTER,
        "admin_command",
        (
            "ariane admin help",
            "ariane admin topicList -n 10.0.0.1:9876",
            "ariane admin updateTopic -c DefaultCluster -t orders -r 8 -w 8 --dry-run",
        ),
        WHOLE_LINE,
    ),
    "group": CommandModule(CLUSTER, "admin.group_command"),
    "offset": CommandModule(CLUSTER, "admin.offset_command"),
    "acl": CommandModule(CLUSTER, "admin.acl_command"),
    "doctor": CommandModule(
        CLUSTER,
        "admin.doctor_command",
        ("ariane doctor", "ariane doctor -n 10.0.0.1:9876 --json", "ariane doctor --http https://10.0.0.8:8080"),
    ),
    "audit": CommandModule(
        CLUSTER,
        "admin.audit_command",
        (
            "ariane audit --since 1d --result refused",
            "ariane audit -b broker-a --resource topic:orders --follow",
            "ariane audit --directory /data/store/audit --json",
        ),
    ),
    "message": CommandModule(CLUSTER, "admin.message_command"),
    "dead-letter": CommandModule(CLUSTER, "admin.dead_letter_command"),
    "delayed": CommandModule(CLUSTER, "admin.delayed_command"),
    "transaction": CommandModule(CLUSTER, "admin.transaction_command"),
    "cat": CommandModule(
        MESSAGES,
        "messages.cat_command",
        (
            "ariane cat orders -o end  # print new messages",
            "ariane cat orders --since 10m -e -f '%D %k %s\\n'",
            "ariane cat orders -g audit --json",
            "ariane cat -P orders < lines.txt",
            "ariane cat orders -J -e | ariane cat -P -J copy",
        ),
    ),
    "bench": CommandModule(
        CLUSTER,
        "messages.bench_command",
        (
            "ariane bench send",
            "ariane bench both --clients 2 --consumers 2 --size 1k",
            "ariane bench send -m sync --rate 500/s -c 10000 --json",
        ),
    ),
    "trace": CommandModule(
        MESSAGES,
        "pipeline.trace_command",
        (
            "ariane trace --key ORDER-17",
            "ariane trace --topic orders --since 10m --slowest",
            "ariane trace --id 7F00000100002A139A5A3C0000000004 --json",
        ),
    ),
    "report": CommandModule(
        MESSAGES,
        "pipeline.report_command",
        (
            "ariane report lag",
            "ariane report latency --since 2d --topic orders",
            "ariane report health --html health.html",
        ),
    ),
    "replay": CommandModule(
        MESSAGES,
        "messages.replay_command",
        (
            "ariane replay --from-topic %DLQ%billing --dry-run",
            "ariane replay --from-topic %DLQ%billing --rate 100/s --result replay.jsonl",
            "ariane replay --from ~/archive --topic orders2 --result replay.parquet",
        ),
    ),
    "store": CommandModule(MESSAGES, "servers.store_command"),
    "pipeline": CommandModule(PIPELINE, "pipeline.pipeline_command"),
    "collect": CommandModule(
        PIPELINE,
        "servers.collect_command",
        ("ariane collect -n 10.0.0.1:9876 --interval 10", "ariane collect --once"),
    ),
    "exporter": CommandModule(
        CLUSTER,
        "servers.exporter_command",
        ("ariane exporter -n 10.0.0.1:9876", "ariane exporter -n 10.0.0.1:9876 --port 9557"),
    ),
    "archive": CommandModule(PIPELINE, "pipeline.archive_command"),
}


def application(*names: str) -> Application:
    """Return `ariane` with these commands."""
    app = create_app(
        SUMMARY,
        epilog=EXAMPLES,
        # `main.run` prints errors as one line; Typer would put a traceback into a box.
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich's boxes of 80 columns cut names and addresses that users copy
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=SUMMARY, epilog=EXAMPLES)(_options)
    for name in names:
        section, path, lines, context = COMMANDS[name]
        module = import_module(f"ariane.cli.{path}")
        if lines:
            app.command(name, *lines, rich_help_panel=section, context_settings=context)(getattr(module, name))
        else:
            app.add_typer(module.app, name=name, rich_help_panel=section)
    return app


@functools.cache
def all_commands() -> Application:
    return application(*COMMANDS)


def application_of(arguments: list[str]) -> Application:
    """Return `ariane` for a command line: with its command, or with all of them if it does not begin with the name of one."""
    return application(arguments[0]) if arguments[:1] and arguments[0] in COMMANDS else all_commands()


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"ariane {ariane.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hold the options of `ariane` itself; its help text is that of the application."""
