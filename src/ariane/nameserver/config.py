"""The name server's settings: namesrv.conf of RocketMQ, read as it is. [NamesrvConfig, NettyServerConfig]"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ariane.errors import ConfigError, ProtocolError
from ariane.net.flow_limits import CONNECTION_UNREAD_MAX, UNFINISHED_MAX, UNREAD_MAX, ServerLimits
from ariane.protocol import java_properties
from ariane.protocol.command import HEADER_MAX
from ariane.protocol.frame import FRAME_MAX
from ariane.protocol.setting_keys import Unsupported, check_keys, describe_unknown_key


class NameServerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Defaults are those of 4.9.4."""

    bind_address: str = "0.0.0.0"  # noqa: S104 - servers of a cluster serve their network
    """Where to listen; a key of 5.x."""
    listen_port: int = 9876
    """Where brokers and clients connect; 0 takes a free port."""
    kv_config_path: str = msgspec.field(default_factory=lambda: str(Path.home() / "namesrv" / "kvConfig.json"))
    """The file of the KV table."""
    order_message_enable: bool = False
    """Put the ORDER_TOPIC_CONFIG of a topic into its route."""
    server_channel_max_idle_time_seconds: int = 120
    """s of silence after which a connection is closed, and its broker forgotten."""
    max_request_header_size: int = HEADER_MAX
    """Bytes of a request's header; a larger one is answered with an error. A key of this name server."""
    connection_unread_max: int = CONNECTION_UNREAD_MAX
    """Bytes of answers that a client has not read; its further requests are served when it has. A key of this name server."""
    server_unread_max: int = UNREAD_MAX
    """The same for all clients together: beyond, a client is served when it has read everything; beyond twice this, the
    client with most of them is disconnected. A key of this name server."""
    server_unfinished_max: int = UNFINISHED_MAX
    """Bytes of frames that have come in part, of all clients together; beyond, the client whose frame is the oldest is
    disconnected. A key of this name server."""
    unread_timeout_seconds: int = 60
    """s after which a client that reads nothing of its answers is disconnected. A key of this name server."""

    def limits(self) -> ServerLimits:
        """What the server takes on at once."""
        return ServerLimits(
            header_max=self.max_request_header_size,
            connection_unread_max=self.connection_unread_max,
            unread_max=self.server_unread_max,
            unread_timeout_s=self.unread_timeout_seconds,
            unfinished_max=self.server_unfinished_max,
        )


# What UPDATE_NAMESRV_CONFIG (318) may change while the server runs. Paths and ports are not among them: whoever may send a
# request could otherwise write a file of his choice (CVE-2023-37582).
CHANGEABLE = frozenset({"orderMessageEnable"})

WITHOUT_EFFECT = {
    **dict.fromkeys(
        (
            "serverWorkerThreads", "serverSelectorThreads", "serverCallbackExecutorThreads",
            "serverPooledByteBufAllocatorEnable", "useEpollNativeSelector",
        ),
        "one event loop serves every request; there are no thread pools to size",
    ),
    **dict.fromkeys(
        (
            "serverOnewaySemaphoreValue", "serverAsyncSemaphoreValue", "serverSocketSndBufSize",
            "serverSocketRcvBufSize", "serverSocketBacklog", "writeBufferHighWaterMark", "writeBufferLowWaterMark",
        ),
        "connections use the operating system's buffer sizes",
    ),
    "rocketmqHome": "the name server needs no files of an installation",
    "configStorePath": "the name server writes no configuration file",
    "productEnvName": "it belongs to clusterTest, which this name server refuses",
}  # fmt: skip

UNSUPPORTED = {
    "clusterTest": Unsupported(
        "false",
        "this name server does not answer for topics of another environment, so clients would not find them;"
        " remove the key",
    ),
}


def load(path: Path, options: Mapping[str, str] | None = None) -> tuple[NameServerConfig, list[str]]:
    """Return the settings of a namesrv.conf, and a line for each group of keys that have no effect.

    Args:
        path: the file.
        options: keys and texts of the command line, which replace those of the file.

    Raises:
        ConfigError: the file cannot be read, a value cannot be used, or a key is unsupported.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not UTF-8: {error}"
        raise ConfigError("-c", str(path), f"cannot be read: {why}") from error
    try:
        return parse({**java_properties.parse(text), **(options or {})})
    except ProtocolError as error:
        raise ConfigError("-c", str(path), str(error)) from error


def parse(properties: Mapping[str, str]) -> tuple[NameServerConfig, list[str]]:
    """Return settings from texts, checked, and a line for each group of keys that have no effect."""
    config, others = java_properties.settings(NameServerConfig, properties)
    if not 0 <= config.listen_port < 65536:
        raise ConfigError("listenPort", config.listen_port, "use 0 (any free port) to 65535")
    for key, value, least in (
        ("maxRequestHeaderSize", config.max_request_header_size, 1024),
        ("connectionUnreadMax", config.connection_unread_max, 1),
        ("serverUnreadMax", config.server_unread_max, 1),
        ("serverUnfinishedMax", config.server_unfinished_max, FRAME_MAX),
        ("unreadTimeoutSeconds", config.unread_timeout_seconds, 1),
    ):
        if value < least:
            raise ConfigError(key, value, f"use {least} or more")
    return config, check_keys(others, texts(config), WITHOUT_EFFECT, UNSUPPORTED)


def texts(config: NameServerConfig) -> dict[str, str]:
    """Key and text of every setting, as namesrv.conf writes them."""
    return java_properties.texts(config)


def changed(config: NameServerConfig, properties: dict[str, str]) -> NameServerConfig:
    """Return `config` with the changes of code 318. A key with the value that it already has counts as not given.

    Raises:
        ConfigError: a key cannot be changed, or does not exist; names the first one. Then nothing changes.
    """
    known = texts(config)
    different = {key: text for key, text in properties.items() if known.get(key) != text}
    for key, text in different.items():
        if key in CHANGEABLE:
            if text not in ("true", "false"):
                raise ConfigError(key, text, "use true or false")
        elif key in known:
            raise ConfigError(
                key, text, "it cannot be changed while the name server runs: change namesrv.conf and restart"
            )
        elif key in WITHOUT_EFFECT:
            raise ConfigError(key, text, f"it has no effect here ({WITHOUT_EFFECT[key]}): leave it out")
        elif key in UNSUPPORTED:
            raise ConfigError(key, text, UNSUPPORTED[key].fix)
        else:
            line = describe_unknown_key(key, [*known, *WITHOUT_EFFECT, *UNSUPPORTED])
            raise ConfigError(key, text, f"{line} getNamesrvConfig lists all keys")
    return parse({**known, **different})[0]
