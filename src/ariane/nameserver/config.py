"""The configuration of a name server: namesrv.conf of RocketMQ, read as it is. [NamesrvConfig, NettyServerConfig]"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from ariane.errors import ConfigError
from ariane.net.limits.flow_limits import ServerLimits
from ariane.settings.definitions import ARIANE_ONLY, Changeable, DefaultText
from ariane.settings.limits import quota_limits
from ariane.settings.schema import SettingsSchema
from ariane.settings.tls import ServerTlsSettings
from ariane.settings.unknown_keys import Unsupported


class NameServerConfig(ServerTlsSettings, frozen=True, kw_only=True, rename="camel"):
    """Name server."""

    listen_port: Annotated[int, Meta(ge=0, le=65_535)] = 9876
    """Port for brokers and clients; 0 takes a free one."""
    kv_config_path: Annotated[str, DefaultText("`~/namesrv/kvConfig.json`")] = msgspec.field(
        default_factory=lambda: str(Path.home() / "namesrv" / "kvConfig.json")
    )
    """File of the KV table."""
    acl_enable: Annotated[bool, ARIANE_ONLY] = False
    """Serve registrations and changes only to accounts of plain_acl.yml. Java's brokers do not sign theirs."""
    acl_read_enable: Annotated[bool, ARIANE_ONLY] = False
    """Serve reads of routes, topics and the KV table only to accounts, too."""
    rocketmq_home: Annotated[str, DefaultText("`$ROCKETMQ_HOME`")] = msgspec.field(
        default_factory=lambda: os.environ.get("ROCKETMQ_HOME", "")
    )
    """Directory of conf/plain_acl.yml; required with aclEnable."""
    order_message_enable: Annotated[bool, Changeable()] = False
    """Add the ORDER_TOPIC_CONFIG of a topic to its route."""

    def validate(self) -> Self:
        """Return the configuration that the name server runs with.

        Raises:
            ConfigError: a value is invalid.
        """
        if self.acl_enable and not self.rocketmq_home:
            fix = "required by aclEnable: set the directory of conf/plain_acl.yml here or in $ROCKETMQ_HOME"
            raise ConfigError("rocketmqHome", self.rocketmq_home, fix)
        if self.acl_read_enable and not self.acl_enable:
            raise ConfigError("aclReadEnable", True, "needs aclEnable=true")
        return super().validate()

    def apply_limits(self, limits: ServerLimits) -> None:
        """Put the limits in force."""
        limits.header_max = self.max_request_header_size
        limits.connection_unread_max = self.connection_unread_max
        limits.unread_timeout_s = self.unread_timeout_seconds
        limits.quotas.set_limits(quota_limits(self))


WITHOUT_EFFECT = {
    **dict.fromkeys(
        (
            "serverWorkerThreads", "serverSelectorThreads", "serverCallbackExecutorThreads",
            "serverPooledByteBufAllocatorEnable", "useEpollNativeSelector",
        ),
        "one event loop handles every request, without thread pools",
    ),
    **dict.fromkeys(
        (
            "serverOnewaySemaphoreValue", "serverAsyncSemaphoreValue", "serverSocketSndBufSize",
            "serverSocketRcvBufSize", "serverSocketBacklog", "writeBufferHighWaterMark", "writeBufferLowWaterMark",
        ),
        "connections use the operating system's buffer sizes",
    ),
    **dict.fromkeys(
        (
            "tls.enable", "tls.client.keyPath", "tls.client.keyPassword", "tls.client.certPath", "tls.client.authServer",
            "tls.client.trustCertPath",
        ),
        "the name server opens no connections",
    ),
    "configStorePath": "the name server writes no configuration file",
    "productEnvName": "it belongs to clusterTest, which this name server refuses",
}  # fmt: skip

UNSUPPORTED = {
    "clusterTest": Unsupported(
        "false",
        "this name server does not answer for topics of another environment, so clients would not find them. Remove the key",
    ),
}

NAME_SERVER_SETTINGS = SettingsSchema(
    NameServerConfig,
    server="name server",
    file_name="namesrv.conf",
    list_command="getNamesrvConfig",
    without_effect=WITHOUT_EFFECT,
    unsupported=UNSUPPORTED,
    # What UPDATE_NAMESRV_CONFIG (318) may change. Paths and ports must not be changed by a request: its sender could have files
    # of his choice written (CVE-2023-37582).
)
