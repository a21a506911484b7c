"""`ariane broker`: runs a broker in the foreground; its subcommands administer running brokers. [mqbroker]

ariane broker -c FILE            run a broker
ariane broker status broker-a    a subcommand (`broker_subcommands`)
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer

from ariane.cli.admin import broker_subcommands
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import path_option, port_option
from ariane.cli.output.help_format import create_app, examples
from ariane.errors import UsageError

SUMMARY = """Run a broker; subcommands administer running brokers.

Runs until SIGINT or SIGTERM. Unknown or unsupported configuration keys are reported on stderr."""

app = create_app(SUMMARY, invoke_without_command=True)
broker_subcommands.register(app)


@app.callback(
    help=SUMMARY,
    no_args_is_help=False,  # without options, a broker runs with the default settings
    subcommand_metavar="[COMMAND]",
    epilog=examples(
        "ariane broker -c conf/broker.conf -n 10.0.0.1:9876",
        "ariane broker -c conf/broker.conf --printConfigItem",
        "ariane broker status broker-a  # of a running broker",
    ),
)
def broker(
    context: typer.Context,
    config_file: Annotated[
        Path | None,
        path_option(
            "-c", "--configFile", metavar="FILE", help="Configuration file in RocketMQ's format (broker.conf)."
        ),
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namesrvAddr",
            parser=shared_options.name_servers,
            metavar="HOST:PORT",
            help="Name server addresses, separated by ';'; overrides namesrvAddr.",
        ),
    ] = None,
    port: Annotated[
        int | None, port_option("--port", help="Listen port; 0 selects a free one; overrides listenPort.")
    ] = None,
    definitions: shared_options.DefinedKeys = None,
    insecure: shared_options.Insecure = False,
    compatible: shared_options.Compatible = False,
    print_config: Annotated[
        bool, typer.Option("-p", "--printConfigItem", help="Print the effective settings, then exit.")
    ] = False,
    log_file: shared_options.LogFile = None,
    accept_empty_log: Annotated[
        bool,
        typer.Option(
            "--accept-empty-log",
            help="Start even if commit log files are missing; their messages are lost.",
        ),
    ] = False,
    restore_topics: Annotated[
        bool,
        typer.Option(
            "--restore-topics",
            help="Create topics that have messages but are not in the configuration.",
        ),
    ] = False,
    new_broker_set: Annotated[
        bool,
        typer.Option(
            "--new-broker-set",
            help="With failoverEndpoints: create the record of the set if there is none, with this broker alone.",
        ),
    ] = False,
    until_stdin_closes: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run a broker, unless a subcommand follows."""
    if context.invoked_subcommand is not None:
        shared_options.check_no_options(context, "a broker")
        return
    from ariane.broker.broker import Broker
    from ariane.broker.config.broker_config import BROKER_SETTINGS
    from ariane.broker.failover.supervisor import FailoverBroker
    from ariane.cli.servers.process import run_server
    from ariane.cli.servers.process.metrics_endpoint import RunningBroker, broker_faults, broker_source, with_metrics

    options = {
        "insecure": "true" if insecure or compatible else None,
        **shared_options.defined_keys(definitions),
        "namesrvAddr": namesrv,
        "listenPort": None if port is None else str(port),
    }
    config = run_server.load_config(BROKER_SETTINGS, config_file, options, prints=print_config, compatible=compatible)
    path = str(config_file.resolve()) if config_file else None
    if new_broker_set and not config.has_failover:
        raise UsageError("--new-broker-set", "", "requires failoverEndpoints")

    def create() -> AbstractAsyncContextManager[RunningBroker]:
        if config.has_failover:
            return FailoverBroker(
                config,
                config_file=path,
                accept_empty_log=accept_empty_log,
                restore_topics=restore_topics,
                creates_set=new_broker_set,
            )
        return Broker(config, config_file=path, accept_empty_log=accept_empty_log, restore_topics=restore_topics)

    run_server.serve(
        lambda: with_metrics(
            create(),
            broker_source,
            config.bind_address,
            config.metrics_port,
            faults=broker_faults,
        ),
        log_file=log_file,
        until_stdin_closes=until_stdin_closes,
    )
