"""`ariane proxy`: runs a proxy for clients of RocketMQ 5 in the foreground. [mqproxy]"""

from __future__ import annotations

from ariane.cli.options import shared_options
from ariane.cli.servers.server_options import ServerOptions


def proxy(options: ServerOptions, namesrv: shared_options.NamesrvAddr = None) -> None:
    """Run a proxy for clients of RocketMQ 5.

    Serves their calls (gRPC) from the brokers of a cluster. Brokers of Ariane can serve them without a proxy.
    """
    from ariane.cli.servers.process.metrics_endpoint import proxy_source, with_metrics
    from ariane.proxy.cluster.cluster_proxy import ClusterProxy
    from ariane.proxy.cluster.proxy_config import PROXY_SETTINGS

    config = options.load(PROXY_SETTINGS, namesrv, port_key="grpcServerPort")
    options.serve(
        lambda: with_metrics(
            ClusterProxy(config),
            proxy_source,
            config.bind_address,
            config.metrics_port,
            faults=lambda proxy: proxy.faults,
        )
    )
