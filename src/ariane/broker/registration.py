"""Telling every name server what this broker has. [BrokerOuterAPI, BrokerController.registerBrokerAll]

The whole topic table goes to all name servers: at start, every period, and soon after each change (changes that come
together go together). One that does not answer is tried again with the next round; the others are not held up by it.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping

import msgspec

from ariane.broker.config import BrokerConfig
from ariane.broker.settings import Settings
from ariane.errors import ArianeError
from ariane.model.topic import PERM_READ, PERM_WRITE
from ariane.net.client import Connections
from ariane.net.tasks import Tasks
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import typed
from ariane.protocol.requests.routing import (
    BrokerRef,
    KvTable,
    RegisterBroker,
    RegisterBrokerAnswer,
    RegisterBrokerBody,
    TopicTable,
)

log = logging.getLogger("ariane.broker.registration")

PERIOD_MIN_MS = 10_000
PERIOD_MAX_MS = 60_000


class Registration:
    """Registers `addr` with the name servers of the settings. `ordered` is given the ORDER_TOPIC_CONFIG of the first answer."""

    def __init__(
        self,
        settings: Settings,
        addr: str,
        ha_addr: str,
        topics: Callable[[], TopicTable],
        peers: Connections,
        tasks: Tasks,
        ordered: Callable[[Mapping[str, str]], None],
        filter_servers: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._settings = settings
        self._addr = addr
        self._ha_addr = ha_addr
        self._topics = topics
        self._peers = peers
        self._tasks = tasks
        self._ordered = ordered
        self._filter_servers = filter_servers
        self._under_way: asyncio.Task[None] | None = None
        self._again = False
        self.master = RegisterBrokerAnswer()
        """What a slave was told last: the addresses of its master, for requests and for replication."""
        self.name_servers = [one.strip() for one in settings.now.namesrv_addr.split(";") if one.strip()]

    @property
    def _config(self) -> BrokerConfig:
        return self._settings.now

    async def start(self) -> None:
        """Register now, and from now on every period."""
        await self.now()
        period_ms = max(PERIOD_MIN_MS, min(self._config.register_name_server_period, PERIOD_MAX_MS))
        self._tasks.every(period_ms / 1000, self.now, "register with the name servers")

    def soon(self) -> None:
        """Register after a change; a change while one registration is under way brings one more behind it."""
        if self._under_way is not None and not self._under_way.done():
            self._again = True
            return
        self._under_way = self._tasks.start(self._until_settled(), "register after a change")

    async def settled(self) -> None:
        """Until every name server has been told of all changes so far, or has failed to answer."""
        if self._under_way is not None and not self._under_way.done():
            await asyncio.shield(self._under_way)

    async def now(self) -> None:
        """Tell all name servers once."""
        header, body = self._request()
        answers = await asyncio.gather(*(self._tell(one, header, body) for one in self.name_servers))
        ordered = next((answer for answer in answers if answer is not None), None)
        if ordered is not None:
            self._ordered(ordered.table)

    async def leave(self) -> None:
        """Unregister everywhere, as a broker does that stops."""
        config = self._config
        header = BrokerRef(config.broker_name, self._addr, config.broker_cluster_name, config.broker_id)

        async def tell(name_server: str) -> None:
            try:
                await self._peers.ask(name_server, RequestCode.UNREGISTER_BROKER, header)
            except ArianeError as error:
                log.warning("cannot unregister from %s: %s", name_server, error)

        await asyncio.gather(*map(tell, self.name_servers))

    async def _until_settled(self) -> None:
        await self.now()
        while self._again:
            self._again = False
            await self.now()

    def _request(self) -> tuple[RegisterBroker, bytes]:
        config = self._config
        table = _with_permission(self._topics(), config.broker_permission)
        body = fastjson.write(RegisterBrokerBody(self._filter_servers(), table))
        header = RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=self._addr,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self._ha_addr,
            broker_id=config.broker_id,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        return header, body

    async def _tell(self, name_server: str, header: RegisterBroker, body: bytes) -> KvTable | None:
        timeout_ms = self._config.register_broker_timeout_mills
        try:
            answer = await self._peers.ask(
                name_server, RequestCode.REGISTER_BROKER, header, body, timeout_ms=timeout_ms
            )
            told = typed(answer, RegisterBrokerAnswer)
            if told.master_addr:
                self.master = told
            return fastjson.decode(answer.body, KvTable) if answer.body else None
        except ArianeError as error:
            log.warning("cannot register with name server %s: %s", name_server, error)
            return None


def _with_permission(table: TopicTable, permission: int) -> TopicTable:
    """While the broker may not be read or written, neither may any of its topics."""
    both = PERM_READ | PERM_WRITE
    if permission & both == both:
        return table
    topics = {name: msgspec.structs.replace(topic, perm=permission) for name, topic in table.topic_config_table.items()}
    return TopicTable(table.data_version, topics)
