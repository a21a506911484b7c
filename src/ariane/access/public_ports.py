"""What the ports of a server lack if other machines reach them. Such a server starts only with `insecure=true`.

    mode of TLS    certificate     other machines
    enforcing      from files      served
    enforcing      self-signed     served, with a warning: clients cannot verify this server
    permissive     from files      served, with a warning: connections may be plain
    permissive     self-signed     refused
    disabled                       refused

Access control is accounts, or client certificates of the authorities in tls.server.trustCertPath that every connection needs.
Metrics of a public server are numbers and names for anyone, unless its connections need client certificates: a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from ariane.errors import ConfigError
from ariane.net.interfaces import is_loopback
from ariane.settings.tls import ServerTlsSettings

OPEN_PORTS_KEY = "openToOtherMachines"  # Ariane's own, in the runtime information of a broker: `describe_gaps`


class Gap(NamedTuple):
    """A protection that a port lacks."""

    name: str
    """Value of a label in the metrics."""
    problem: str
    """What other machines can do, as a clause: a list of gaps is one line."""
    fix: str
    """What to set instead."""
    is_refused: bool = True
    """Whether it stops the start, unless the server is declared insecure."""


def requires_certificates(config: ServerTlsSettings) -> bool:
    """Return whether encrypted connections need a certificate of the operator's own authorities."""
    return (
        config.tls_server_need_client_auth == "require"
        and config.tls_server_auth_client
        and bool(config.tls_server_trust_cert_path)
    )


def find_gaps(config: ServerTlsSettings, *, has_accounts: bool, access: Gap) -> tuple[Gap, ...]:
    """Return what the request ports of a server lack; nothing if only this machine reaches them.

    Args:
        config: The server's settings.
        has_accounts: Whether requests are checked by accounts.
        access: The gap if they are not, and client certificates are not required either.
    """
    if is_loopback(config.bind_address):
        return ()
    is_enforcing = config.tls_server_mode == "enforcing"
    has_certificate = not config.server_tls().is_test
    is_certified = is_enforcing and requires_certificates(config)
    gaps = [] if has_accounts or is_certified else [access]
    if config.tls_server_mode == "disabled" or not (is_enforcing or has_certificate):
        gaps.append(Gap("encryption", "connections are plain", "tls.server.mode=enforcing, certPath and keyPath"))
    elif not is_enforcing:
        gaps.append(Gap("plain connections", "connections may be plain", "tls.server.mode=enforcing", is_refused=False))
    elif not has_certificate:
        problem = "the certificate is self-signed, so clients cannot verify it"
        gaps.append(Gap("certificate", problem, "tls.server.certPath and keyPath", is_refused=False))
    if config.metrics_port and not requires_certificates(config):
        gaps.append(
            Gap("metrics", f"port {config.metrics_port} serves metrics to anyone", "metricsPort=0", is_refused=False)
        )
    return tuple(gaps)


def check_gaps(config: ServerTlsSettings, gaps: Sequence[Gap], *, server: str, loopback: str) -> None:
    """Refuse a start with gaps, unless the server is declared insecure.

    Args:
        config: The server's settings.
        gaps: What its ports lack.
        server: Its kind.
        loopback: What to set so that only this machine reaches it.

    Raises:
        ConfigError: names each gap and its fix, in lines of at most 80 columns.
    """
    refused = [gap for gap in gaps if gap.is_refused]
    if not refused or config.insecure:
        return
    lines = "".join(f"\n- {gap.problem}\n  Fix: {gap.fix}" for gap in refused)
    raise ConfigError(
        "bindAddress",
        config.bind_address,
        f"other machines reach this {server}, and{lines}\n"
        f"Or listen on this machine only: {loopback}.\n"
        "Or accept all this: insecure=true in the file, or --insecure.",
    )


def describe_gaps(gaps: Sequence[Gap]) -> str:
    """Return gaps as one line; empty without any."""
    return "; ".join(gap.problem for gap in gaps)


def warn_of_gaps(log: logging.Logger, gaps: Sequence[Gap], server: str, port: int) -> None:
    """Log what is open, in one line that the user sees."""
    if gaps:
        text = "%s port %d is open to other machines: %s"
        log.warning(text, server, port, describe_gaps(gaps), extra={"notice": True})
