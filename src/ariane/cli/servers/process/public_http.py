"""HTTP ports of servers without a configuration file: console, exporter, collector and pipeline.

options ─→ http_port: refuses one that other machines reach without access control or encryption ─→ HttpPort
           HttpPort ─→ serve_metrics: /metrics, with the expiry of its certificate and what it lacks
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, NamedTuple

import typer

from ariane.access import public_ports
from ariane.access.public_ports import Gap, PortProtection
from ariane.cli.options import shared_options
from ariane.cli.servers.process import signals
from ariane.errors import UsageError
from ariane.net.listening.server_tls import ServerTlsOptions, watched_tls

if TYPE_CHECKING:
    from ariane.cli.options.metrics_options import MetricsOptions
    from ariane.metrics.serving.endpoint import MetricsSource

CERTIFICATE = "-Dtls.server.certPath=FILE and -Dtls.server.keyPath=FILE"
ANYONE = Gap("access", "anyone can read names of topics, groups and clients", "client certificates (docs/tls.md)")
# As of brokers and name servers: numbers of the program.
OWN_METRICS = Gap("metrics", "anyone can read the metrics", "client certificates (docs/tls.md)", is_refused=False)


class HttpPort(NamedTuple):
    """Where an HTTP server listens, and how it is protected."""

    server: str
    """Name of the server in messages, and in its metrics."""
    address: str
    port: int
    tls: ServerTlsOptions | None
    """None: connections are plain."""
    gaps: tuple[Gap, ...]
    """What it lacks if other machines reach it."""


def http_port(
    server: str, address: str, port: int, definitions: list[str] | None, *, insecure: bool, access: Gap | None
) -> HttpPort:
    """Return the port of options, and print what is open.

    Args:
        insecure: Whether to accept what is open.
        access: The gap if clients need no account; None: they do.

    Raises:
        UsageError: an option -D does not concern the TLS of a server.
        ConfigError: a value is invalid, or other machines reach the address, and it is not protected: names what is missing.
    """
    tls = shared_options.http_tls_options(definitions)
    gaps = tuple(
        gap._replace(fix=CERTIFICATE) if gap.name == "encryption" else gap
        for gap in public_ports.find_gaps(address, tls, has_accounts=access is None, access=access or ANYONE)
    )
    if not insecure:
        public_ports.check_gaps(
            "bind", address, gaps, server=server, loopback="--bind 127.0.0.1", insecure="--insecure"
        )
    if gaps:
        typer.echo(f"The {server} is open to other machines: {public_ports.describe_gaps(gaps)}", err=True)
    return HttpPort(server, address, port, tls, gaps)


def metrics_port(server: str, options: MetricsOptions) -> HttpPort | None:
    """Return the port of a program's metrics, as `http_port`; None without metrics.

    Raises:
        UsageError: options of the port are given without it.
        ConfigError: as of `http_port`.
    """
    if options.metrics_port:
        return http_port(
            server,
            options.bind,
            options.metrics_port,
            options.definitions,
            insecure=options.insecure,
            access=OWN_METRICS,
        )
    if options.bind != shared_options.LOOPBACK or options.definitions or options.insecure:
        raise UsageError("--metrics-port", None, "required with --bind, -D and --insecure, which concern that port")
    return None


@contextlib.asynccontextmanager
async def serve_metrics(
    http: HttpPort, source: MetricsSource, *, stop: Callable[[], None] | None = None
) -> AsyncIterator[str]:
    """Serve metrics, and yield their URL. Changed certificates are read again, all of them at a SIGHUP.

    Args:
        source: Reads the metrics of the program.
        stop: Called if SIGHUP says that the terminal was closed; None: signals are not handled, as outside of the main thread.
    """
    from ariane.metrics.port_metrics import WithPort
    from ariane.metrics.serving.endpoint import MetricsEndpoint

    async with contextlib.AsyncExitStack() as running:
        tls = await running.enter_async_context(watched_tls(http.tls))
        families = WithPort(source, f"ariane_{http.server}", PortProtection(tls, http.gaps))
        endpoint = MetricsEndpoint(families, http.address, http.port, tls=tls)
        await running.enter_async_context(endpoint)
        if tls is not None and stop is not None:
            await running.enter_async_context(signals.reload_on_hang_up(tls.reload, stop))
        yield endpoint.url
