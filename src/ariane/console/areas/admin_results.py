"""What an `Admin` did, as values of views: changes, and servers that did not respond."""

from __future__ import annotations

from collections.abc import Iterable

from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer, BrokerUnavailable, each_once
from ariane.console.web.view_model import ChangeResult
from ariane.errors import ConfigError


def result_of(admin: Admin, notice: str) -> ChangeResult:
    """Return the changes that an `Admin` executed, or would execute in a dry run."""
    changes = [f"{change.summary} on {change.addr}" for change in admin.changes]
    return ChangeResult(notice="; ".join((notice, *admin.notes)), changes=changes, is_dry_run=admin.is_dry_run)


def texts_of(unavailable: Iterable[BrokerUnavailable]) -> list[str]:
    """Return servers and clients that did not respond as texts, each once: several requests of a page may have failed."""
    return [str(broker) for broker in each_once(unavailable)]


def server_name(server: BrokerServer) -> str:
    """Return broker name and id, as pages show them."""
    return f"{server.broker}:{server.broker_id}"


def check_all_responded(unavailable: Iterable[BrokerUnavailable]) -> None:
    """Check that a change reaches every server: one that did not respond would differ from the others from then on.

    Raises:
        ConfigError: a server did not respond.
    """
    if missing := ", ".join(broker.addr for broker in unavailable):
        raise ConfigError("broker", missing, "it did not respond, and would differ from the others; try again")


def changed_servers(admin: Admin) -> str:
    """Return the addresses of the servers that were changed, for a notice."""
    return ", ".join(change.addr for change in admin.changes)
