"""`ariane namesrv`: runs a name server in the foreground. [mqnamesrv]"""

from __future__ import annotations

from ariane.cli.servers.server_options import ServerOptions


def namesrv(options: ServerOptions) -> None:
    """Run a name server.

    Runs until SIGINT or SIGTERM. Unknown or unsupported configuration keys are reported on stderr.
    """
    from ariane.cli.servers.process.metrics_endpoint import name_server_source, with_metrics
    from ariane.nameserver.config import NAME_SERVER_SETTINGS
    from ariane.nameserver.server import NameServer

    config = options.load(NAME_SERVER_SETTINGS)
    options.serve(
        lambda: with_metrics(NameServer(config), name_server_source, config.bind_address, config.metrics_port)
    )
