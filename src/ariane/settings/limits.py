"""Limits of traffic, which every server has: in total, per address, and per account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from ariane.net.limits.flow_limits import CONNECTIONS_MAX
from ariane.net.limits.quotas import LIMIT_KEYS
from ariane.settings.audit import AuditSettings
from ariane.settings.definitions import ARIANE_ONLY, Bytes, Changeable, settings_of
from ariane.settings.schema import ServerConfig

LIMIT_MAX = 1 << 50
# Half of all: a peer without an account holds as many as it gets, and the others still connect (decision 0045).
ADDRESS_CONNECTIONS_MAX = CONNECTIONS_MAX // 2

Limit = Annotated[int, ARIANE_ONLY, Changeable(0, LIMIT_MAX), Meta(ge=0, le=LIMIT_MAX)]
"""A number that may not be exceeded; 0: unlimited."""
ByteLimit = Annotated[Bytes, ARIANE_ONLY, Changeable(0, LIMIT_MAX), Meta(ge=0, le=LIMIT_MAX)]


class TrafficLimits(AuditSettings, frozen=True, kw_only=True, rename="camel"):
    """Limits of traffic."""

    server_connections_max: Annotated[int, ARIANE_ONLY, Changeable(1, 1_000_000), Meta(ge=1)] = CONNECTIONS_MAX
    """Connections; further ones are closed."""
    server_requests_per_second: Limit = 0
    """Requests of all clients. Beyond it, they get code 2 [QUOTA], and pulls are served late. Here and below, 0 is unlimited."""
    server_bytes_in_per_second: ByteLimit = 0
    """Bytes from all clients. Beyond it, the next ones are read later."""
    server_bytes_out_per_second: ByteLimit = 0
    """Bytes to all clients. Beyond it, their next requests are read later."""
    address_connections_max: Limit = ADDRESS_CONNECTIONS_MAX
    """Connections of one address; further ones are closed. Here and below, an IPv6 /64 network is one address."""
    address_requests_per_second: Limit = 0
    """As serverRequestsPerSecond, for one address."""
    address_bytes_in_per_second: ByteLimit = 0
    """As serverBytesInPerSecond, for one address."""
    address_bytes_out_per_second: ByteLimit = 0
    """As serverBytesOutPerSecond, for one address."""
    address_unfinished_max: ByteLimit = 0
    """As serverUnfinishedMax, for one address."""
    address_unread_max: ByteLimit = 0
    """As serverUnreadMax, for one address."""
    account_connections_max: Limit = 0
    """Connections with requests of one account. Requests on further ones get code 2 [QUOTA]."""
    account_requests_per_second: Limit = 0
    """As serverRequestsPerSecond, for one account."""
    account_bytes_in_per_second: ByteLimit = 0
    """As serverBytesInPerSecond, for one account."""
    account_bytes_out_per_second: ByteLimit = 0
    """As serverBytesOutPerSecond, for one account."""
    account_unfinished_max: ByteLimit = 0
    """As serverUnfinishedMax, for one account."""
    account_unread_max: ByteLimit = 0
    """As serverUnreadMax, for one account."""


def quota_limits(config: ServerConfig) -> Mapping[str, Any]:
    """Return the limits in total, per address and per account of a configuration, by key."""
    keys = frozenset(LIMIT_KEYS.values())
    return {setting.key: getattr(config, setting.name) for setting in settings_of(type(config)) if setting.key in keys}
