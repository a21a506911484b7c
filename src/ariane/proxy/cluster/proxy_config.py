"""The configuration of a proxy: proxy.conf, with the keys that brokers have for the same."""

from __future__ import annotations

import os
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta

from ariane.errors import ConfigError, ProtocolError
from ariane.model import host
from ariane.net.limits.flow_limits import ServerLimits
from ariane.proxy.conversion.grpc_messages import SendLimits
from ariane.settings.definitions import ARIANE_ONLY, ROCKETMQ_5, Bytes, Concealed, DefaultText
from ariane.settings.limits import quota_limits
from ariane.settings.schema import SettingsSchema
from ariane.settings.tls import ClientTlsSettings


class ProxyConfig(ClientTlsSettings, frozen=True, kw_only=True, rename="camel"):
    """Proxy."""

    grpc_server_port: Annotated[int, ROCKETMQ_5, Meta(ge=0, le=65_535)] = 8081
    """Port for clients of RocketMQ 5, on bindAddress; 0 takes a free one."""
    grpc_transport: Annotated[Literal["aio", "native", "auto"], ARIANE_ONLY] = "aio"
    """HTTP/2 of this port: the package grpcio (`aio`), or the `native` kernels. `auto`: native where they are installed, unless
    certificates of clients are verified."""
    namesrv_addr: Annotated[str, DefaultText("`$NAMESRV_ADDR`")] = msgspec.field(
        default_factory=lambda: os.environ.get("NAMESRV_ADDR", "")
    )
    """Name servers of the cluster, `host:port` separated by `;`. Required."""
    advertised_host: Annotated[str, ARIANE_ONLY] = ""
    """Host in all routes; empty: the one by which a client has reached the proxy."""
    acl_enable: Annotated[bool, ARIANE_ONLY] = False
    """Serve only calls that an account of plain_acl.yml has signed, and sign the requests to brokers with its keys."""
    rocketmq_home: Annotated[str, DefaultText("`$ROCKETMQ_HOME`")] = msgspec.field(
        default_factory=lambda: os.environ.get("ROCKETMQ_HOME", "")
    )
    """Directory of conf/plain_acl.yml, with the accounts of the brokers; required with aclEnable."""
    access_key: Annotated[str, ARIANE_ONLY] = ""
    """Account that signs the proxy's own requests to name servers and brokers."""
    secret_key: Annotated[str, ARIANE_ONLY, Concealed()] = ""
    """Its secret key. No request or command prints it."""
    secret_key_file: Annotated[str, ARIANE_ONLY] = ""
    """File with the secret key, instead of secretKey."""
    secret_key_variable: Annotated[str, ARIANE_ONLY] = ""
    """Environment variable with the secret key, instead of secretKey."""
    default_message_type: Annotated[Literal["MIXED", "NORMAL", "FIFO", "DELAY", "TRANSACTION"], ARIANE_ONLY] = "MIXED"
    """Type of messages that may be sent to a topic which declares none (`message.type`). In 5.3.3, that is NORMAL."""
    grpc_trace_enable: Annotated[bool, ARIANE_ONLY] = True
    """Write the message traces of clients, which write none, if the cluster has the topic RMQ_SYS_TRACE_TOPIC."""
    max_message_size: Annotated[Bytes, Meta(ge=1)] = 4 * 1024 * 1024
    """Longest body of a message. That of the brokers counts, too."""
    timer_max_delay_sec: Annotated[int, ROCKETMQ_5, Meta(ge=1)] = 3 * 86_400
    """Longest delay of a message. That of the brokers counts, too."""

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        return tuple(addr.strip() for addr in self.namesrv_addr.split(";") if addr.strip())

    @property
    def send_limits(self) -> SendLimits:
        """Limits of messages. [ProxySettings]"""
        return SendLimits(self.max_message_size, self.timer_max_delay_sec * 1000)

    def validate(self) -> Self:
        """Return the configuration that the proxy runs with.

        Raises:
            ConfigError: a value is invalid.
        """
        if not self.name_servers:
            fix = "expected name servers, host:port separated by ';': set it in the file, by -n or in $NAMESRV_ADDR"
            raise ConfigError("namesrvAddr", self.namesrv_addr, fix)
        for addr in self.name_servers:
            try:
                host.parse(addr)
            except ProtocolError as error:
                raise ConfigError("namesrvAddr", addr, "expected host:port, several separated by ';'") from error
        if self.acl_enable and not self.rocketmq_home:
            fix = "required by aclEnable: set the directory of conf/plain_acl.yml here or in $ROCKETMQ_HOME"
            raise ConfigError("rocketmqHome", self.rocketmq_home, fix)
        return super().validate()

    def apply_limits(self, limits: ServerLimits) -> None:
        """Put the limits in force."""
        limits.quotas.set_limits(quota_limits(self))


PROXY_SETTINGS = SettingsSchema(
    ProxyConfig,
    server="proxy",
    file_name="proxy.conf",
    list_command="",
    without_effect={
        **dict.fromkeys(
            (
                "maxRequestHeaderSize",
                "connectionUnreadMax",
                "serverUnreadMax",
                "serverUnfinishedMax",
                "unreadTimeoutSeconds",
                "addressUnfinishedMax",
                "accountUnfinishedMax",
                "addressUnreadMax",
                "accountUnreadMax",
                "serverBytesInPerSecond",
                "addressBytesInPerSecond",
                "accountBytesInPerSecond",
                "serverBytesOutPerSecond",
                "addressBytesOutPerSecond",
                "accountBytesOutPerSecond",
            ),
            "HTTP/2 has flow control of its own, and calls are limited by their number and size",
        ),
        **dict.fromkeys(
            ("auditLogEnable", "auditLogPath", "auditLogFileSize", "auditLogFiles"),
            "the brokers have audit logs",
        ),
    },
    unsupported={},
)
