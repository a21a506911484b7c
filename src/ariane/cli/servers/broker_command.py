"""`ariane broker`: runs a broker in the foreground; its subcommands administer running brokers. [mqbroker]

ariane broker -c FILE            run a broker
ariane broker status broker-a    a subcommand (`broker_subcommands`)
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.admin import broker_subcommands
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import flag_option
from ariane.cli.output.help_format import create_app, examples
from ariane.cli.servers.server_options import ServerOptions
from ariane.errors import UsageError

if TYPE_CHECKING:
    from ariane.broker.config.broker_config import BrokerConfig
    from ariane.cli.servers.process.metrics_endpoint import RunningBroker

SUMMARY = """Run a broker; subcommands administer running brokers.

Runs until SIGINT or SIGTERM. Unknown or unsupported configuration keys are reported on stderr."""

app = create_app(SUMMARY, invoke_without_command=True)
broker_subcommands.register(app)


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """Options that only a broker has."""

    namesrv: shared_options.NamesrvAddr = None
    accept_empty_log: Annotated[
        bool,
        flag_option("--accept-empty-log", "Start even if commit log files are missing; their messages are lost."),
    ] = False
    restore_topics: Annotated[
        bool, flag_option("--restore-topics", "Create topics that have messages but are not in the configuration.")
    ] = False
    new_broker_set: Annotated[
        bool,
        flag_option(
            "--new-broker-set",
            "With failoverEndpoints: create the record of the set if there is none, with this broker alone.",
        ),
    ] = False

    def new_broker(self, config: BrokerConfig, config_file: Path | None) -> AbstractAsyncContextManager[RunningBroker]:
        """Return a broker, with `failoverEndpoints` the member of a broker set."""
        from ariane.broker.broker import Broker
        from ariane.broker.failover.supervisor import FailoverBroker

        broker = partial(FailoverBroker, creates_set=self.new_broker_set) if config.has_failover else Broker
        return broker(
            config,
            config_file=str(config_file.resolve()) if config_file else None,
            accept_empty_log=self.accept_empty_log,
            restore_topics=self.restore_topics,
        )


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
def broker(context: typer.Context, server: ServerOptions, options: BrokerOptions) -> None:
    """Run a broker, unless a subcommand follows."""
    if context.invoked_subcommand is not None:
        shared_options.check_no_options(context, "a broker")
        return
    from ariane.broker.config.broker_config import BROKER_SETTINGS
    from ariane.cli.servers.process.metrics_endpoint import broker_faults, broker_source, with_metrics

    config = server.load(BROKER_SETTINGS, options.namesrv)
    if options.new_broker_set and not config.has_failover:
        raise UsageError("--new-broker-set", "", "requires failoverEndpoints")
    new_broker = partial(options.new_broker, config, server.config_file)
    server.serve(
        lambda: with_metrics(
            new_broker(), broker_source, config.bind_address, config.metrics_port, faults=broker_faults
        )
    )
