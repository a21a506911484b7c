"""The gRPC port of a broker: a proxy server over the broker's own handlers, in its event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ariane.access.access_control import AccessControl
from ariane.broker.access.broker_accounts import guard
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.lifecycle.registration import Registration
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.clock import Clock
from ariane.model import host
from ariane.net.connection import Handler, Peer, Reply
from ariane.net.replies import AckHandler
from ariane.net.server import RemotingServer
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.proxy.broker_service import BrokerMessageService
from ariane.proxy.conversion.grpc_messages import SendLimits
from ariane.proxy.proxy_server import ProxyAddress, ProxyServer
from ariane.proxy.traces.message_traces import MessageTraces
from ariane.store.message_store import MessageStore


class PortTraces(Protocol):
    """Message traces of the broker. [ServerTraces]"""

    @property
    def grpc(self) -> MessageTraces: ...


class PortServices(Protocol):
    """The services of the broker that the port uses. [BrokerServices]"""

    @property
    def settings(self) -> DynamicConfig: ...

    @property
    def addr(self) -> str: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def store(self) -> MessageStore: ...

    @property
    def state(self) -> PersistentState: ...

    @property
    def server(self) -> RemotingServer: ...

    @property
    def traces(self) -> PortTraces: ...

    @property
    def access(self) -> AccessControl | None: ...

    @property
    def registration(self) -> Registration: ...


class _PortSettings:
    """The settings of the broker that calls depend on. [ProxySettings]"""

    def __init__(self, settings: DynamicConfig) -> None:
        self._settings = settings

    @property
    def send_limits(self) -> SendLimits:
        config = self._settings.current
        return SendLimits(config.max_message_size, config.timer_max_delay_sec * 1000)

    @property
    def default_message_type(self) -> str:
        return self._settings.current.default_message_type


def create_proxy(services: PortServices, handlers: Mapping[int, Handler], acks: AckHandler) -> ProxyServer:
    """Return the server of the gRPC port.

    Args:
        services: Of the broker.
        handlers: Its request handlers, with all checks.
        acks: Serves acknowledgements together.
    """
    config, state = services.settings.current, services.state
    route = _route_check(state.topics)
    quotas = services.server.limits.quotas
    routes = guard(config, services.access, route, services.store.read_record, quotas)
    service = BrokerMessageService(
        broker_name=config.broker_name,
        handlers={**handlers, **routes},
        topics=state.topics,
        groups=state.groups,
        limits=services.server.limits,
        master_host=lambda: master_host(services),
        # With access control, each call is signed, and served by itself.
        sends=services.server.turns.get(RequestCode.SEND_MESSAGE_V2) if services.access is None else None,
        acks=acks if services.access is None and not config.is_slave else None,
    )
    return ProxyServer(
        service=service,
        settings=_PortSettings(services.settings),
        server=services.server,
        offsets=state.offsets,
        traces=services.traces.grpc,
        tls=config.server_tls(),
        secret_key=None if services.access is None else lambda key: _secret_key(services, key),
        address=_address(config, services.addr),
        transport=config.grpc_transport,
        now_ms=services.clock.now_ms,
    )


def _route_check(topics: TopicRegistry) -> dict[int, Handler]:
    """Return the handler of a route request: access control in front of it decides who may know a topic."""

    def check(command: Command, peer: Peer) -> Reply:
        name = command.field_map()["topic"]
        if topics.get(name) is None:
            remark = f"No topic route info in name server for the topic: {name}"
            return Reply(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        return Reply()

    return {RequestCode.GET_ROUTEINFO_BY_TOPIC: check}


def _secret_key(services: PortServices, access_key: str) -> str | None:
    account = None if services.access is None else services.access.state.acl.account(access_key)
    return None if account is None else account.secret_key


def master_host(services: PortServices) -> str:
    """Return the host of a slave's master; empty at a master, and while no name server lists one."""
    addr = services.registration.master.master_addr if services.settings.current.is_slave else None
    return host.parse(addr)[0] if addr else ""


def _address(config: BrokerConfig, addr: str) -> ProxyAddress:
    return ProxyAddress(config.bind_address, config.grpc_server_port, host.parse(addr)[0], config.broker_ip1)
