"""The settings of this broker, read and changed by tools (25, 26). [AdminBrokerProcessor]"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from ariane.broker.config import BROKER_SETTINGS, BrokerConfig, to_store_config
from ariane.broker.dynamic_config import DynamicConfig
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.write_protection import set_limits
from ariane.errors import ConfigError, ProtocolError
from ariane.net.connection import Handled, Handler, Peer, Reply
from ariane.net.flow_limits import ServerLimits
from ariane.protocol import fastjson, java_properties
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import fields
from ariane.protocol.requests.brokers import ConfigVersion
from ariane.store.message_store import MessageStore

log = logging.getLogger("ariane.broker.dynamic_config")

# Keys that are no settings here and that `mqadmin exportConfigs` and `exportMetrics` of 4.9.4 fail without, or tell as cpuNum.
TOLD_TO_TOOLS = {
    "filterServerNums": "0",
    "useTLS": "false",
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
}


class ConfigAdminHandler(NamedTuple):
    """What these handlers need. `write` puts changed texts into the configuration file, None when the broker has none;
    `registered` waits until the name servers know of the change; `start` gives work to the broker, which does it even when
    the connection that asked for it is lost."""

    settings: DynamicConfig
    topics: TopicRegistry
    groups: GroupRegistry
    store: MessageStore
    limits: ServerLimits
    now_ms: Callable[[], int]
    write: Callable[[Mapping[str, str]], Awaitable[None]] | None
    registered: Callable[[], Awaitable[None]]
    start: Callable[[Coroutine[Any, Any, Reply]], asyncio.Task[Reply]]


def handlers(parts: ConfigAdminHandler) -> dict[int, Handler]:
    one_at_a_time = asyncio.Lock()

    async def change(body: bytes, peer: Peer) -> Reply:
        async with one_at_a_time:
            return await update_config(parts, body, peer)

    def update(command: Command, peer: Peer) -> Handled:
        # Half a change, kept in the file and not in force, is what must not come of a lost connection.
        return asyncio.shield(parts.start(change(command.body, peer)))

    def get(command: Command, peer: Peer) -> Reply:
        version = fastjson.write(parts.settings.version).decode()
        text = java_properties.write({**BROKER_SETTINGS.texts(parts.settings.current), **TOLD_TO_TOOLS})
        return Reply(fields=fields(ConfigVersion(version)), body=text.encode())

    return {RequestCode.UPDATE_BROKER_CONFIG: update, RequestCode.GET_BROKER_CONFIG: get}


async def update_config(parts: ConfigAdminHandler, body: bytes, peer: Peer) -> Reply:
    """Take all that is wanted, or nothing: the file is written first, and only what it holds comes into force."""
    try:
        wanted = java_properties.parse_body(body)
        after, changes = BROKER_SETTINGS.change(parts.settings.current, wanted)
    except (ConfigError, ProtocolError) as error:
        return Reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
    if not changes:
        return Reply(remark="nothing differs from what is in force")
    remark = None
    if parts.write is None:
        remark = "in force until the broker stops: it was started without a configuration file (-c) to keep it in"
    else:
        try:
            await parts.write(changes)
        except (OSError, UnicodeDecodeError) as error:
            remark = f"nothing was changed: the configuration file cannot be rewritten: {error}"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=remark)
    log.warning("%s changed the settings: %s", peer.addr, " ".join(f"{key}={text}" for key, text in changes.items()))
    take(parts, after)
    await parts.registered()
    return Reply(remark=remark)


def take(parts: ConfigAdminHandler, after: BrokerConfig) -> None:
    """Put settings in force: most parts read them at each use, the others are told here."""
    before = parts.settings.current
    parts.settings.apply(after, parts.now_ms())
    parts.store.config = to_store_config(after)
    parts.groups.auto_create = after.auto_create_subscription_group
    set_limits(parts.limits, after)
    parts.topics.set_auto_create(after)
    if before.broker_permission != after.broker_permission:
        parts.topics.bump_version()
