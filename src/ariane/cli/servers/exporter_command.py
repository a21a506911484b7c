"""`ariane exporter`: serves the metrics of a cluster to Prometheus. [rocketmq-exporter]"""

from __future__ import annotations

from typing import Annotated

import typer

from ariane.cli.options import shared_options
from ariane.cli.options.access_options import AccessOptions
from ariane.cli.options.option_kinds import port_option, seconds_option, text_option
from ariane.cli.servers.process import signals

DEFAULT_PORT = 5557  # of Apache's rocketmq-exporter


def exporter(
    *,
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    port: Annotated[int, port_option(help="HTTP port; 0 selects a free one.")] = DEFAULT_PORT,
    bind: Annotated[
        str, text_option(metavar="ADDRESS", help="Address to listen on; clients need no account.")
    ] = shared_options.LOOPBACK,
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
    from ariane.cli.servers.process import run_server
    from ariane.cli.servers.process.public_http import ANYONE, http_port, serve_metrics
    from ariane.cluster.connection import ClusterConnection
    from ariane.metrics.exporter import ExporterSource
    from ariane.metrics.polling.cluster_poller import ClusterPoller

    run_server.log_warnings()
    settings = access.client_settings()
    http = http_port("exporter", bind, port, definitions, insecure=insecure, access=ANYONE)

    async def run() -> None:
        with signals.loop_stop_event() as stop:
            async with ClusterConnection(namesrv, client=settings) as cluster:
                poller = ClusterPoller(cluster.peers, namesrv.split(";"), detail_wait_s=detail_wait)
                try:
                    async with serve_metrics(http, ExporterSource(poller), stop=stop.set) as url:
                        typer.echo(f"ready     {url}")
                        await stop.wait()
                finally:
                    await poller.close()

    run_server.run_loop(run())
