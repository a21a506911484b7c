"""Registration of this broker with its name servers. [BrokerOuterAPI, BrokerController.registerBrokerAll]

Each name server has a link of its own; a slow or failed one does not delay the others.

    topic changed ── pending names of each link ─┐
    start, lost connection, other version ───────┼→ QUERY_DATA_VERSION → REGISTER_BROKER, parts of at most PART_TOPICS topics
    every registerNameServerPeriod ──────────────┘

A name server applies the topics of a registration only if its DataVersion differs from the recorded one, then records that
version. So the version works as a commit record: each part before the last carries a provisional version, different from every
other, and the last part carries the version of the table. The recorded version therefore equals the broker's only when the
name server has all topics. An interrupted registration leaves a provisional version, which is found with the next query, and
the whole table is sent again. 4.9.4 name servers, which do not support parts, accept them this way.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ArianeError, ReplyError
from ariane.model.topic import PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from ariane.net.connection import Connection
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.routing import (
    MASTER_ID,
    BrokerRef,
    KvTableBody,
    RegisterBroker,
    RegisterBrokerBody,
    RegisterBrokerResponse,
    RouteRequest,
    TopicRoute,
    TopicTable,
)

log = logging.getLogger("ariane.broker.lifecycle.registration")

PERIOD_MIN_MS = 10_000
PERIOD_MAX_MS = 60_000
# A part of 1,000 topics is about 180 kB of JSON: 1 ms to encode and a few ms to apply, so neither side delays other requests.
PART_TOPICS = 1_000


class NameServerLink:
    """The state of one name server: what it has recorded of this broker, as far as its responses show."""

    def __init__(self, addr: str) -> None:
        self.addr = addr  # each name server has a state of its own
        self.confirmed_version: DataVersion | None = None  # version that the name server recorded; None: unknown
        self.needs_full_table = True  # the whole table has to be sent, whatever is recorded
        self.connection: Connection | None = None  # on which `confirmed_version` was recorded
        self.pending: set[str] = set()  # names of topics that changed after `confirmed_version`
        self.failed = False  # the last attempt failed
        self.lock = asyncio.Lock()  # one registration in flight, so that versions arrive in order
        self.task: asyncio.Task[None] | None = None  # registration in progress
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []  # (counter of the awaited version, its future)

    def mark_changed(self, names: Collection[str] | None) -> None:
        """Mark topics as changed; None: all topics."""
        if names is None:
            self.needs_full_table = True
        elif not self.needs_full_table:  # otherwise they are sent with all others
            self.pending.update(names)

    def wake_waiters(self) -> None:
        """Wake up the waiters whose version has been recorded; all of them after a failure."""
        recorded = -1 if self.confirmed_version is None or self.needs_full_table else self.confirmed_version.counter
        waiting = []
        for counter, future in self.waiters:
            if not self.failed and counter > recorded:
                waiting.append((counter, future))
            elif not future.done():
                future.set_result(None)
        self.waiters = waiting


class Registration:
    """Registers a broker with the name servers of its configuration.

    The ORDER_TOPIC_CONFIG of the first name server that responds marks the ordered topics.
    """

    def __init__(
        self,
        *,
        settings: DynamicConfig,
        addr: str,
        ha_addr: str,
        topics: TopicRegistry,
        peers: ConnectionPool,
        tasks: BackgroundTasks,
        now_ms: Callable[[], int],
        filter_servers: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._settings = settings  # identity and permission of this broker
        self._addr = addr  # public address for clients
        self._ha_addr = ha_addr  # address for slaves
        self._topics = topics  # the table to register, and its version
        self._peers = peers
        self._tasks = tasks  # registrations run without delaying requests
        self._now_ms = now_ms  # versions of the table
        self._filter_servers = filter_servers  # addresses of Java's filter servers, which register with their broker
        self._provisional = itertools.count(1)  # counters of provisional versions, negative on the wire
        self.epoch: int | None = None
        """Epoch of this member, with failover: name servers refuse what a former master sends."""
        self.may_register: Callable[[], bool] = lambda: True  # False while a lease that it had is not renewed
        self.withheld_permission = 0
        """Permission that topics lack until `allow`."""
        self._has_left = False  # unregistered: no later registration may bring the broker back
        self.master = RegisterBrokerResponse()
        """The master's addresses for requests and for replication, from the last response to a slave."""
        names = [name.strip() for name in settings.current.namesrv_addr.split(";")]
        # One per configured name server: each may have recorded another version.
        self._links = [NameServerLink(addr) for addr in dict.fromkeys(names) if addr]
        topics.on_topics_change = self.mark_changed

    @property
    def _config(self) -> BrokerConfig:
        return self._settings.current

    @property
    def is_registered(self) -> bool:
        """Whether a name server accepted the last registration; True without name servers."""
        return not self._links or any(link.confirmed_version is not None and not link.failed for link in self._links)

    async def start(self) -> None:
        """Register now, then periodically."""
        await self.register_now()
        period_ms = max(PERIOD_MIN_MS, min(self._config.register_name_server_period, PERIOD_MAX_MS))
        self._tasks.repeat(period_ms / 1000, self.register_now, "register with the name servers")

    async def register_again(self, times_s: Iterable[float]) -> None:
        """Register again at these times from now, in ascending order, unless it was abandoned meanwhile."""
        passed_s = 0.0
        for time_s in times_s:
            await asyncio.sleep(time_s - passed_s)
            passed_s = time_s
            await self.register_now()

    def mark_changed(self, names: Collection[str] | None) -> None:
        """Mark topics as changed; None: all topics."""
        for link in self._links:
            link.mark_changed(names)

    def allow(self) -> None:
        """Register all topics with the permission that was withheld."""
        self.withheld_permission = 0
        self.mark_changed(None)
        self.register_soon()

    def register_soon(self) -> None:
        """Start to register the changes so far. Changes during a registration follow in the next one."""
        for link in self._links:
            if link.task is None or link.task.done():
                link.task = self._tasks.start(self._catch_up(link), f"register changes with {link.addr}")

    async def wait_registered(self) -> None:
        """Wait until the name servers have recorded all changes so far, for at most registerBrokerTimeoutMills.

        Name servers whose last registration failed are not waited for.
        """
        counter = self._topics.version.counter
        waits = []
        for link in self._links:
            is_busy = link.task is not None and not link.task.done()
            if is_busy and not link.failed:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                link.waiters.append((counter, future))
                waits.append(future)
        if waits:
            await asyncio.wait(waits, timeout=self._config.register_broker_timeout_mills / 1000)

    async def register_now(self) -> None:
        """Register once with all name servers, even if nothing changed."""
        await asyncio.gather(*map(self._register, self._links))

    async def unregister(self) -> None:
        """Unregister from all name servers, as part of an orderly stop."""
        if self._has_left:
            return
        config = self._config
        header = BrokerRef(config.broker_name, self._addr, config.broker_cluster_name, config.broker_id)

        async def unregister(link: NameServerLink) -> None:
            async with link.lock:  # a registration in flight would bring the broker back
                try:
                    await self._peers.request_ok(link.addr, RequestCode.UNREGISTER_BROKER, header)
                except ArianeError as error:
                    log.warning("Cannot unregister from name server %s: %s", link.addr, error)

        self._has_left = True
        await asyncio.gather(*map(unregister, self._links))

    def abandon(self) -> None:
        """Register no more and do not unregister, as if the process had ended."""
        self._has_left = True

    async def _catch_up(self, link: NameServerLink) -> None:
        while True:
            await self._register(link)
            if self._has_left or link.failed or not (link.needs_full_table or link.pending):
                return

    async def _register(self, link: NameServerLink) -> None:
        async with link.lock:
            if self._has_left or not self.may_register():
                return
            try:
                table = await self._send(link)
            except ArianeError as error:
                link.failed = link.needs_full_table = True
                log.warning("Cannot register with name server %s: %s", link.addr, error)
                table = None
            except BaseException:
                link.needs_full_table = True
                raise
            else:
                link.failed = False
            finally:
                link.wake_waiters()
        if table is not None and link is next((other for other in self._links if not other.failed), None):
            self._topics.mark_ordered(table)

    async def _send(self, link: NameServerLink) -> Mapping[str, str] | None:
        """Send the topics that the name server lacks. Return its ORDER_TOPIC_CONFIG."""
        connection = await self._peers.connect(link.addr)
        is_complete = (
            not link.needs_full_table
            and link.confirmed_version is not None
            and connection is link.connection  # a name server removes a broker when its connection closes
            and await self._query_version(connection, link.confirmed_version) == link.confirmed_version
            and not link.needs_full_table
        )
        # No await until `pending.clear`: a later change has a later version and stays pending.
        version = self._topics.version
        names = list(link.pending) if is_complete else self._topics.names()
        link.pending.clear()
        link.needs_full_table = False
        if self._config.broker_id != MASTER_ID:
            names = []  # name servers ignore the topics of slaves
        parts = [names[start : start + PART_TOPICS] for start in range(0, len(names), PART_TOPICS)]
        # The version of pending topics is new to the name server, that of the whole table may be the recorded one.
        last = parts.pop() if is_complete and parts else []
        for part in parts:
            await self._send_part(connection, DataVersion(-next(self._provisional), self._now_ms()), part)
        table = await self._send_part(connection, version, last)
        link.confirmed_version, link.connection = version, connection
        return table

    async def _query_version(self, connection: Connection, version: DataVersion) -> DataVersion | None:
        """Return the version that the name server has recorded; None: it does not list this broker."""
        config = self._config
        header = BrokerRef(config.broker_name, self._addr, config.broker_cluster_name, config.broker_id)
        response = await self._request(connection, RequestCode.QUERY_DATA_VERSION, header, fastjson.write(version))
        return fastjson.decode(response.body, DataVersion) if response.body else None

    async def _send_part(
        self, connection: Connection, version: DataVersion, names: Iterable[str]
    ) -> Mapping[str, str] | None:
        config = self._config
        body = self._body(version, names)
        header = RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=self._addr,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self._ha_addr,
            broker_id=config.broker_id,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
            epoch=self.epoch,
        )
        answer = await self._request(connection, RequestCode.REGISTER_BROKER, header, body)
        response = decode_header(answer, RegisterBrokerResponse)
        if response.master_addr:
            self.master = response
        return fastjson.decode(answer.body, KvTableBody).table if answer.body else None

    def _body(self, version: DataVersion, names: Iterable[str]) -> bytes:
        """Return the body of a part. Topics are read when their part is sent, so deleted ones are omitted."""
        configs = (self._topics.get(name) for name in names)
        permission = self._config.broker_permission & ~self.withheld_permission
        table = {topic.topic_name: _with_permission(topic, permission) for topic in configs if topic is not None}
        # Topic names are ASCII, so standard JSON is what fastjson prints, in a tenth of the time.
        return msgspec.json.encode(RegisterBrokerBody(self._filter_servers(), TopicTable(version, table)))

    async def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic that a name server lists; None if none answers."""
        for link in self._links:
            try:
                connection = await self._peers.connect(link.addr)
                answer = await self._request(connection, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic), b"")
                return fastjson.decode(answer.body, TopicRoute)
            except (ArianeError, OSError) as error:
                log.debug("Name server %s has not returned the route of %s: %s", link.addr, topic, error)
        return None

    async def _request(self, connection: Connection, code: RequestCode, header: msgspec.Struct, body: bytes) -> Command:
        timeout_ms = self._config.register_broker_timeout_mills
        response = await connection.request(code, encode_header(header), body, timeout_ms=timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise ReplyError(response.code, response.remark, connection.peer.addr)
        return response


def _with_permission(topic: TopicConfig, permission: int) -> TopicConfig:
    """Return the topic with the broker's permission if that lacks reading or writing."""
    read_write = PERM_READ | PERM_WRITE
    return topic if permission & read_write == read_write else msgspec.structs.replace(topic, perm=permission)
