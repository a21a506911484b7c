"""The refusal of HTTP servers that other machines reach without access control or encryption."""

from __future__ import annotations

import typer

from ariane.access import public_ports
from ariane.access.public_ports import Gap
from ariane.net.listening.server_tls import ServerTlsOptions

CERTIFICATE = "-Dtls.server.certPath=FILE and -Dtls.server.keyPath=FILE"
ANYONE = Gap("access", "anyone can read names of topics, groups and clients", "client certificates (docs/tls.md)")


def check_address(
    address: str, tls: ServerTlsOptions | None, *, insecure: bool, server: str, has_accounts: bool
) -> list[Gap]:
    """Refuse an address that other machines reach, unless it is protected; with `insecure`, print and return what is open.

    Raises:
        ConfigError: names what is missing.
    """
    gaps = [
        gap._replace(fix=CERTIFICATE) if gap.name == "encryption" else gap
        for gap in public_ports.find_gaps(address, tls, has_accounts=has_accounts, access=ANYONE)
    ]
    if not insecure:
        public_ports.check_gaps(
            "bind", address, gaps, server=server, loopback="--bind 127.0.0.1", insecure="--insecure"
        )
    if gaps:
        typer.echo(f"The {server} is open to other machines: {public_ports.describe_gaps(gaps)}", err=True)
    return gaps
