"""`ariane namesrv`: runs a name server in the foreground. [mqnamesrv]"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import path_option, port_option


def namesrv(
    config_file: Annotated[
        Path | None,
        path_option(
            "-c", "--configFile", metavar="FILE", help="Configuration file in RocketMQ's format (namesrv.conf)."
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
    until_stdin_closes: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run a name server.

    Runs until SIGINT or SIGTERM. Unknown or unsupported configuration keys are reported on stderr.
    """
    from ariane.cli.servers.process import run_server
    from ariane.cli.servers.process.metrics_endpoint import name_server_source, with_metrics
    from ariane.nameserver.config import NAME_SERVER_SETTINGS
    from ariane.nameserver.server import NameServer

    options = {
        "insecure": "true" if insecure or compatible else None,
        **shared_options.defined_keys(definitions),
        "listenPort": None if port is None else str(port),
    }
    config = run_server.load_config(
        NAME_SERVER_SETTINGS, config_file, options, prints=print_config, compatible=compatible
    )
    run_server.serve(
        lambda: with_metrics(NameServer(config), name_server_source, config.bind_address, config.metrics_port),
        log_file=log_file,
        until_stdin_closes=until_stdin_closes,
    )
