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
import math
from collections.abc import Sequence
from typing import NamedTuple

from ariane.errors import ConfigError
from ariane.net.interfaces import is_loopback
from ariane.net.listening.server_tls import ServerTls, ServerTlsOptions

INSECURE = "insecure=true in the file, or --insecure"
# Keys of Ariane's own, in the runtime information of brokers and the settings of name servers: `PortProtection.report`.
OPEN_PORTS_KEY = "openToOtherMachines"
CERTIFICATE_DAYS_KEY = "certificateRemainingDays"


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


class PortProtection:
    """The protection of the ports of a running server, for tools and metrics.

    Args:
        tls: The certificate of the ports; None: they are plain.
        gaps: What they lack.
    """

    def __init__(self, tls: ServerTls | None, gaps: Sequence[Gap]) -> None:
        self._tls = tls
        self.gaps = tuple(gaps)

    @property
    def gap_names(self) -> tuple[str, ...]:
        """Names of the gaps, for labels of metrics."""
        return tuple(gap.name for gap in self.gaps)

    def certificate_days(self) -> float | None:
        """Return the days until the certificate expires, negative if it has; None without one from a file."""
        return None if self._tls is None else self._tls.days_left()

    def report(self) -> dict[str, str]:
        """Return what the server reports to tools, as texts by key; empty if there is nothing to report."""
        texts = {OPEN_PORTS_KEY: describe_gaps(self.gaps)} if self.gaps else {}
        if (days := self.certificate_days()) is not None:
            texts[CERTIFICATE_DAYS_KEY] = str(math.floor(days))
        return texts


def requires_certificates(tls: ServerTlsOptions) -> bool:
    """Return whether encrypted connections need a certificate of the operator's own authorities."""
    return tls.client_auth == "require" and tls.verifies_clients and bool(tls.files.trust)


def find_gaps(
    address: str, tls: ServerTlsOptions | None, *, has_accounts: bool, access: Gap, metrics_port: int = 0
) -> tuple[Gap, ...]:
    """Return what the ports of a server lack; nothing if only this machine reaches them.

    Args:
        address: Address to listen on.
        tls: TLS of the ports; None: they are plain.
        has_accounts: Whether requests are checked by accounts.
        access: The gap if they are not, and client certificates are not required either.
        metrics_port: Port of the metrics; 0: none.
    """
    if is_loopback(address):
        return ()
    tls = tls or ServerTlsOptions(mode="disabled")
    is_enforcing, has_certificate = tls.mode == "enforcing", not tls.is_test
    gaps = [] if has_accounts or (is_enforcing and requires_certificates(tls)) else [access]
    if tls.mode == "disabled" or not (is_enforcing or has_certificate):
        gaps.append(Gap("encryption", "connections are plain", "tls.server.mode=enforcing, certPath and keyPath"))
    elif not is_enforcing:
        gaps.append(Gap("plain connections", "connections may be plain", "tls.server.mode=enforcing", is_refused=False))
    elif not has_certificate:
        problem = "the certificate is self-signed, so clients cannot verify it"
        gaps.append(Gap("certificate", problem, "tls.server.certPath and keyPath", is_refused=False))
    if metrics_port and not requires_certificates(tls):
        gaps.append(Gap("metrics", f"port {metrics_port} serves metrics to anyone", "metricsPort=0", is_refused=False))
    return tuple(gaps)


def check_gaps(setting: str, address: str, gaps: Sequence[Gap], *, server: str, loopback: str, insecure: str) -> None:
    """Refuse a start with gaps.

    Args:
        setting: Name of the setting of the address.
        address: Address to listen on.
        gaps: What the ports lack.
        server: Kind of the server.
        loopback: What to set so that only this machine reaches it.
        insecure: What to set to start nevertheless.

    Raises:
        ConfigError: names each gap and its fix, in lines of at most 80 columns.
    """
    refused = [gap for gap in gaps if gap.is_refused]
    if not refused:
        return
    lines = "".join(f"\n- {gap.problem}\n  Fix: {gap.fix}" for gap in refused)
    raise ConfigError(
        setting,
        address,
        f"other machines reach this {server}, and{lines}\n"
        f"Or listen on this machine only: {loopback}.\n"
        f"Or accept all this: {insecure}.",
    )


def describe_gaps(gaps: Sequence[Gap]) -> str:
    """Return gaps as one line; empty without any."""
    return "; ".join(gap.problem for gap in gaps)


def warn_of_gaps(log: logging.Logger, gaps: Sequence[Gap], server: str, port: int) -> None:
    """Log what is open, in one line that the user sees."""
    if gaps:
        text = "%s port %d is open to other machines: %s"
        log.warning(text, server, port, describe_gaps(gaps), extra={"notice": True})
