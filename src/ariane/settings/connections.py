"""The settings of connections, which every server has, and the limits that follow from them."""

from __future__ import annotations

from typing import Annotated, Self

import msgspec
from msgspec import Meta

from ariane.net.limits.flow_limits import CONNECTION_UNREAD_MAX, UNFINISHED_MAX, UNREAD_MAX
from ariane.protocol.command import HEADER_MAX
from ariane.protocol.frame import FRAME_MAX
from ariane.settings.definitions import ARIANE_ONLY, ROCKETMQ_5, Bytes, Changeable, DefaultText, Seconds
from ariane.settings.schema import ServerConfig

LOOPBACK = "127.0.0.1"
ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - the default of 4.9.4


class ConnectionSettings(ServerConfig, frozen=True, kw_only=True, rename="camel"):
    """Connections."""

    bind_address: Annotated[str, ROCKETMQ_5, DefaultText("`127.0.0.1`")] = ""
    """Address to listen on. Java's default is `0.0.0.0`, and that of a broker whose brokerIP1 other machines reach."""
    insecure: Annotated[bool, ARIANE_ONLY] = False
    """Start although other machines reach a port without access control or encryption."""
    metrics_port: Annotated[int, ARIANE_ONLY, Meta(ge=0, le=65_535)] = 0
    """Port of the metrics for Prometheus (`/metrics`) on `bindAddress`; 0: no metrics."""
    server_channel_max_idle_time_seconds: Seconds = 120
    """Close a connection after this time without traffic."""
    max_request_header_size: Annotated[Bytes, ARIANE_ONLY, Changeable(1024, FRAME_MAX), Meta(ge=1024, le=FRAME_MAX)] = (
        HEADER_MAX
    )
    """Largest header of a request; a larger one is answered with an error."""
    # Without these bounds, clients that do not read, or that send parts of frames, could exhaust the memory of a
    # server.
    connection_unread_max: Annotated[Bytes, ARIANE_ONLY, Changeable(1, 1 << 40), Meta(ge=1, le=1 << 40)] = (
        CONNECTION_UNREAD_MAX
    )
    """Unread responses of one client above which its further requests wait until it has read them."""
    server_unread_max: Annotated[Bytes, ARIANE_ONLY, Changeable(1, 1 << 50), Meta(ge=1, le=1 << 50)] = UNREAD_MAX
    """Unread responses of all clients above which each client has to read everything before its next request. Above twice this, the
    client with most unread bytes is disconnected."""
    # A smaller value would refuse a single frame of the largest size.
    server_unfinished_max: Annotated[
        Bytes, ARIANE_ONLY, Changeable(FRAME_MAX, 1 << 50), Meta(ge=FRAME_MAX, le=1 << 50)
    ] = UNFINISHED_MAX
    """Partly received frames of all clients above which the client with the oldest one is disconnected."""
    unread_timeout_seconds: Annotated[Seconds, ARIANE_ONLY, Changeable(1, 86_400), Meta(ge=1, le=86_400)] = 60
    """Disconnect a client that reads none of its responses for this time."""

    @property
    def default_address(self) -> str:
        """The address to listen on if none is configured."""
        return LOOPBACK

    def validate(self) -> Self:
        """Return the configuration with the address to listen on.

        Raises:
            ConfigError: a value is invalid.
        """
        config = super().validate()
        if config.bind_address:
            return config
        return msgspec.structs.replace(config, bind_address=config.default_address)
