"""The settings of connections, which every server has, and the limits that follow from them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ariane.net.flow_limits import CONNECTION_UNREAD_MAX, UNFINISHED_MAX, UNREAD_MAX
from ariane.protocol.command import HEADER_MAX
from ariane.protocol.frame import FRAME_MAX
from ariane.settings.definitions import ARIANE_ONLY, ROCKETMQ_5, Bytes, Changeable, Seconds
from ariane.settings.schema import ServerConfig


class ConnectionSettings(ServerConfig, frozen=True, kw_only=True, rename="camel"):
    """Connections."""

    bind_address: Annotated[str, ROCKETMQ_5, Meta(description="Address to listen on.")] = "0.0.0.0"  # noqa: S104 - servers of a cluster serve their network
    metrics_port: Annotated[
        int,
        ARIANE_ONLY,
        Meta(
            ge=0,
            le=65_535,
            description="Port of the metrics for Prometheus (`/metrics`) on `bindAddress`; 0: no metrics.",
        ),
    ] = 0
    server_channel_max_idle_time_seconds: Annotated[
        Seconds, Meta(description="Close a connection after this time without traffic.")
    ] = 120
    max_request_header_size: Annotated[
        Bytes,
        ARIANE_ONLY,
        Changeable(1024, FRAME_MAX),
        Meta(ge=1024, le=FRAME_MAX, description="Largest header of a request; a larger one is answered with an error."),
    ] = HEADER_MAX
    # Without these bounds, clients that do not read, or that send parts of frames, could exhaust the memory of a
    # server.
    connection_unread_max: Annotated[
        Bytes,
        ARIANE_ONLY,
        Changeable(1, 1 << 40),
        Meta(
            ge=1,
            le=1 << 40,
            description="Unread responses of one client above which its further requests wait until it has read them.",
        ),
    ] = CONNECTION_UNREAD_MAX
    server_unread_max: Annotated[
        Bytes,
        ARIANE_ONLY,
        Changeable(1, 1 << 50),
        Meta(
            ge=1,
            le=1 << 50,
            description="Unread responses of all clients above which each client has to read everything before its next "
            "request. Above twice this, the client with most unread bytes is disconnected.",
        ),
    ] = UNREAD_MAX
    server_unfinished_max: Annotated[
        Bytes,
        ARIANE_ONLY,
        Changeable(FRAME_MAX, 1 << 50),
        Meta(
            ge=FRAME_MAX,  # a smaller value would refuse a single frame of the largest size
            le=1 << 50,
            description="Partly received frames of all clients above which the client with the oldest one is disconnected.",
        ),
    ] = UNFINISHED_MAX
    unread_timeout_seconds: Annotated[
        Seconds,
        ARIANE_ONLY,
        Changeable(1, 86_400),
        Meta(ge=1, le=86_400, description="Disconnect a client that reads none of its responses for this time."),
    ] = 60
