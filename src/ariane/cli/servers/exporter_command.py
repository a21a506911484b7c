"""`ariane exporter`: serves the metrics of a cluster to Prometheus. [rocketmq-exporter]"""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from ariane.cli.options import shared_options
from ariane.cli.options.access_options import AccessOptions
from ariane.cli.options.option_kinds import port_option, seconds_option, text_option
from ariane.cli.servers import signals

DEFAULT_PORT = 5557  # of Apache's rocketmq-exporter


def exporter(
    *,
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    port: Annotated[int, port_option(help="HTTP port; 0 selects a free one.")] = DEFAULT_PORT,
    bind: Annotated[
        str, text_option(metavar="ADDRESS", help="Address to listen on; clients need no account.")
    ] = "127.0.0.1",
    detail_wait: Annotated[
        float, seconds_option(minimum=0, help="Longest wait for rates and clients; then older ones are used.")
    ] = 2.0,
    definitions: shared_options.DefinedTlsKeys = None,
    insecure: shared_options.Insecure = False,
    access: AccessOptions,
) -> None:
    """Serve the metrics of a cluster to Prometheus.

    Polls all brokers at each scrape. Names and labels are those of Apache's
    rocketmq-exporter. Runs until SIGINT or SIGTERM.
    """
    from ariane.access.public_ports import PortProtection
    from ariane.cli.servers import run_server
    from ariane.cli.servers.public_http import check_address
    from ariane.cluster.connection import ClusterConnection
    from ariane.metrics.endpoint import MetricsEndpoint
    from ariane.metrics.polling.cluster_poller import ClusterPoller
    from ariane.metrics.polling.exporter import ExporterSource
    from ariane.metrics.port_metrics import WithPort
    from ariane.net.listening.server_tls import watched_tls

    run_server.log_warnings()
    settings, tls_options = access.client_settings(), shared_options.http_tls_options(definitions)
    gaps = check_address(bind, tls_options, insecure=insecure, server="exporter", has_accounts=False)

    async def run() -> None:
        with signals.loop_stop_event() as stop:
            async with watched_tls(tls_options) as tls, ClusterConnection(namesrv, client=settings) as cluster:
                poller = ClusterPoller(cluster.peers, namesrv.split(";"), detail_wait_s=detail_wait)
                try:
                    async with contextlib.AsyncExitStack() as running:
                        source = WithPort(ExporterSource(poller), "ariane_exporter", PortProtection(tls, gaps))
                        endpoint = MetricsEndpoint(source, bind, port, tls=tls)
                        await running.enter_async_context(endpoint)
                        if tls is not None:
                            await running.enter_async_context(signals.reload_on_hang_up(tls.reload, stop.set))
                        typer.echo(f"ready     {endpoint.url}")
                        await stop.wait()
                finally:
                    await poller.close()

    run_server.run_loop(run())
