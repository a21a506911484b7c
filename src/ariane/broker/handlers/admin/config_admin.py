"""UPDATE_BROKER_CONFIG (25) and GET_BROKER_CONFIG (26): settings of a running broker. [AdminBrokerProcessor]"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ariane.broker.config.broker_config import BROKER_SETTINGS, BrokerConfig, to_store_config
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.lifecycle.registration import Registration
from ariane.broker.lifecycle.write_protection import set_limits
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.clock import Clock
from ariane.errors import ConfigError, ProtocolError
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import fastjson, java_properties
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.brokers import ConfigVersion
from ariane.store.message_store import MessageStore

log = logging.getLogger("ariane.broker.config.dynamic_config")

# `mqadmin exportConfigs` and `exportMetrics` of 4.9.4 fail without these keys, which this broker does not use; `exportMetrics`
# prints the last one as cpuNum.
KEYS_FOR_TOOLS = {
    "filterServerNums": "0",
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
}


class ConfigFile(Protocol):
    """The configuration file that a broker was started with. [BrokerConfigFile]"""

    async def write(self, changes: Mapping[str, str]) -> None:
        """Replace the values of the changed keys."""
        ...


@dataclass(frozen=True, kw_only=True)
class ConfigAdminHandler:
    """Reads and changes the settings of this broker."""

    settings: DynamicConfig  # replaced as a whole by a valid change
    config_file: ConfigFile | None  # None if the broker was started without one
    # Copies of single settings, updated by `apply`:
    topics: TopicRegistry
    groups: GroupRegistry  # autoCreateSubscriptionGroup
    store: MessageStore  # limits of the store
    limits: ServerLimits  # bounds of the server
    registration: Registration  # a changed permission is registered before the reply
    tasks: BackgroundTasks  # a change that has begun is completed even if the tool disconnects
    clock: Clock  # version of the configuration
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)  # one change at a time

    def update_config(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle UPDATE_BROKER_CONFIG."""
        # Owned by the broker and shielded: a lost connection must not leave a change in the file that is not in force.
        work = self._update_config(command.body, peer)
        return asyncio.shield(self.tasks.start(work, "change the settings"))

    def get_config(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_BROKER_CONFIG."""
        version = fastjson.write(self.settings.version).decode()
        text = java_properties.write({**BROKER_SETTINGS.texts(self.settings.current), **KEYS_FOR_TOOLS})
        return Reply(fields=encode_header(ConfigVersion(version)), body=text.encode())

    async def _update_config(self, body: bytes, peer: Peer) -> Reply:
        async with self._lock:
            return await self._update_file_and_apply(body, peer)

    async def _update_file_and_apply(self, body: bytes, peer: Peer) -> Reply:
        """Apply all requested settings or none. The file is written first, so that a restart keeps what is in force."""
        try:
            requested = java_properties.parse_body(body)
            config, changes = BROKER_SETTINGS.change(self.settings.current, requested)
        except (ConfigError, ProtocolError) as error:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if not changes:
            return Reply(remark="no setting differs from its current value")
        remark = None
        if self.config_file is None:
            remark = "in force until the broker stops: it was started without a configuration file (-c) to store the change in"
        else:
            try:
                await self.config_file.write(changes)
            except (OSError, UnicodeDecodeError) as error:
                remark = f"no setting was changed: the configuration file cannot be rewritten: {error}"
                return Reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        change = " ".join(f"{key}={text}" for key, text in changes.items())
        log.warning("Settings changed by %s: %s", peer.addr, change)
        self.apply(config)
        await self.registration.wait_registered()
        return Reply(remark=remark)

    def apply(self, config: BrokerConfig) -> None:
        """Put settings in force. Most components read them at each use; the others are updated here."""
        before = self.settings.current
        self.settings.apply(config, self.clock.now_ms())
        self.store.config = to_store_config(config)
        self.groups.auto_create = config.auto_create_subscription_group
        set_limits(self.limits, config)
        self.topics.limits.set(config)
        self.topics.set_auto_create(config)
        if config.has_trace_topic and not config.is_slave:
            self.topics.get_or_create_internal(config.msg_trace_topic_name, 1)
        if before.broker_permission != config.broker_permission:
            self.topics.bump_version()  # name servers list topics with the broker's permission
