"""The three ports of a broker: `listenPort` and its two neighbours.

    listenPort - 2    all requests but pulls, which so cannot delay the others. A slave copies its master's topics there
    listenPort        all requests
    listenPort + 1    replication

[BrokerController.fastRemotingServer, haListenPort]
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ariane.access import public_ports
from ariane.access.public_ports import Gap
from ariane.broker.config.broker_config import BrokerConfig
from ariane.errors import ConfigError
from ariane.net.connection import Handler, Peer
from ariane.net.interfaces import is_loopback
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.listening.connection_gate import FIRST_BYTE_S, ConnectionGate
from ariane.net.listening.server_tls import ServerTls
from ariane.net.server import RemotingServer
from ariane.net.streams import Stream, StreamServer
from ariane.protocol.codes import RequestCode

log = logging.getLogger("ariane.broker")

VIP_PORT_OFFSET = 2
HA_PORT_OFFSET = 1
PORT_TRIES = 50  # with listenPort 0: attempts to find three free ports in these positions
# Not served on the VIP port: requests that may be held.
VIP_EXCLUDED_CODES = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.NOTIFICATION,
)


async def bind_ports(
    config: BrokerConfig,
    handlers: Mapping[int, Handler],
    vip_handlers: Mapping[int, Handler],
    on_lost: Callable[[Peer], None],
    serve_slave: Callable[[Stream], Awaitable[None]],
    limits: ServerLimits,
    tls: ServerTls,
) -> tuple[RemotingServer, StreamServer]:
    """Bind the three ports without accepting connections yet. With listenPort 0, several ports are tried.

    Raises:
        ConfigError: a port is in use; the message names it.
    """
    for tries_left in reversed(range(PORT_TRIES)):
        idle_s = config.server_channel_max_idle_time_seconds
        server = RemotingServer(
            handlers,
            config.bind_address,
            config.listen_port,
            on_lost=on_lost,
            idle_s=idle_s,
            limits=limits,
            gate=ConnectionGate(tls),
        )
        try:
            await server.bind()
            await server.bind_additional(server.port - VIP_PORT_OFFSET, vip_handlers)
            gate, ha_port = ha_gate(config, tls), server.port + HA_PORT_OFFSET
            ha_server = StreamServer(config.bind_address, ha_port, serve_slave, "listenPort", gate)
            await ha_server.bind()
        except ConfigError:
            await server.__aexit__(None, None, None)
            if config.listen_port or not tries_left:
                raise
        else:
            return server, ha_server
    raise AssertionError("the last try returns or raises")


def ha_gate(config: BrokerConfig, tls: ServerTls) -> ConnectionGate:
    """Return what opens the connections of slaves. A Java slave sends nothing before its first heartbeat."""
    first_byte_s = max(FIRST_BYTE_S, 2 * config.ha_send_heartbeat_interval / 1000)
    is_required = config.requires_replication_tls
    setting = "haTls is true" if is_required else ""
    return ConnectionGate(tls, is_required=is_required, setting=setting, first_byte_s=first_byte_s)


def warn_of_plain_slaves(config: BrokerConfig, port: int) -> None:
    """Log that the replication port serves plain connections although requests have to be encrypted, if that is so."""
    if config.tls_server_mode == "enforcing" and not config.is_slave and not config.requires_replication_tls:
        log.warning(
            "Replication port %d also serves slaves whose connections are not encrypted, as those of Java are. Set haTls=true"
            " here and at all slaves if none is Java's",
            port,
            extra={"notice": True},
        )


_LOOPBACK_FIX = "bindAddress=127.0.0.1, and no other brokerIP1"
_REQUESTS = Gap(
    "access", "anyone can read, send and delete messages", "aclEnable=true with rocketmqHome, or client certificates"
)
_REPLICATION = Gap(
    "replication",
    "the replication port sends anyone all messages",
    "haTls=true, and haAclEnable=true or client certificates",
)


def find_gaps(config: BrokerConfig) -> tuple[Gap, ...]:
    """Return what the ports lack if other machines reach them."""
    gaps = public_ports.find_gaps(
        config.bind_address,
        config.server_tls(),
        has_accounts=config.has_accounts,
        access=_REQUESTS,
        metrics_port=config.metrics_port,
    )
    if is_loopback(config.bind_address) or _has_safe_replication(config):
        return gaps
    return (*gaps, _REPLICATION)


def check_gaps(config: BrokerConfig, gaps: Sequence[Gap]) -> None:
    """Raise ConfigError if gaps stop the start."""
    if not config.insecure:
        public_ports.check_gaps(
            "bindAddress", config.bind_address, gaps,
            server="broker", loopback=_LOOPBACK_FIX, insecure=public_ports.INSECURE,
        )  # fmt: skip


def _has_safe_replication(config: BrokerConfig) -> bool:
    has_proof = config.ha_acl_enable or public_ports.requires_certificates(config.server_tls())
    return config.requires_replication_tls and has_proof
