"""Request handlers of the name server: every code of reference remoting-protocol 3.3. [DefaultRequestProcessor]"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Hashable, Iterator
from functools import partial
from typing import TypeVar

import msgspec

from ariane.access.public_ports import PortProtection
from ariane.errors import ConfigError, ProtocolError, ReplyError
from ariane.model import host
from ariane.model.topic import DataVersion
from ariane.nameserver import registration
from ariane.nameserver.config import NAME_SERVER_SETTINGS, NameServerConfig
from ariane.nameserver.kv_store import ORDER_TOPIC_CONFIG, KvStore
from ariane.nameserver.route_table import TOPICS_PER_SLICE, UNIT, UNIT_SUB, RouteTable
from ariane.net.connection import Handler, Peer, Reply
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.shared_replies import SharedReplies
from ariane.protocol import fastjson, java_properties
from ariane.protocol.codes import VERSION, RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_body, decode_header, encode_header
from ariane.protocol.requests.routing import (
    BrokerName,
    BrokerRef,
    ClusterRef,
    DeleteTopicRoute,
    KvKey,
    KvNamespace,
    PutKv,
    RegisterBroker,
    RegisterBrokerBody,
    RouteRequest,
    TopicRoute,
    TopicTable,
)
from ariane.protocol.requests.routing import KvTableBody as KvBody

T = TypeVar("T")

# Served beyond a limit of requests per second: otherwise requests of clients have brokers removed from all routes, and an operator
# cannot raise the limit.
EXEMPT_CODES = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
    }
)

BROKERS_MAX = 10_000
TOPICS_MAX = 500_000  # of one broker; deleted topics stay until a tool deletes them here, as in 4.9.4
# Above this size of a body, the DataVersion is read before the topics: 4.9.4 brokers repeat their whole table every 30 s.
LARGE_BODY = 256 * 1024
LARGE_BYTES_MAX = 64 * 1024 * 1024  # bytes of large registrations that are pending
COMPRESSED_MAX = 64 * 1024  # expanded bytes of a registration that the event loop decodes: about 1,000 topics
ROUTE_MEMBERS = tuple((field.encode_name, field.name) for field in msgspec.structs.fields(TopicRoute))


class NameServerHandlers:
    """The handlers of all requests: they share the route table, the KV table and the configuration that code 318 changes."""

    def __init__(
        self,
        routes: RouteTable,
        kv: KvStore,
        config: NameServerConfig,
        limits: ServerLimits,
        protection: PortProtection,
        monotonic_ms: Callable[[], float],
    ) -> None:
        self._routes = routes  # brokers and their topics, in memory only: brokers register again every 30 s
        self._kv = kv  # order configuration and other values of tools, which survive a restart
        self._config = config  # replaced as a whole by 318
        self._limits = limits  # of the server, which follow the configuration
        self._protection = protection  # of the port, which 319 reports with the settings
        self._monotonic_ms = monotonic_ms  # age of registrations: a wall clock that is set would evict all brokers
        self._provisional = itertools.count(1)  # for versions that differ from every real one
        self._lists = SharedReplies()  # one list of topics for all clients that ask while it is built
        self._large = asyncio.Lock()  # one large registration is decoded and applied at a time
        self._large_bytes = 0  # of registrations that wait for the lock

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        code, by_unit = RequestCode, self._routes.topics_by_unit
        return {
            code.PUT_KV_CONFIG: self.put_kv,
            code.GET_KV_CONFIG: self.get_kv,
            code.DELETE_KV_CONFIG: self.delete_kv,
            code.GET_KVLIST_BY_NAMESPACE: self.kv_namespace,
            code.REGISTER_BROKER: self.register,
            code.UNREGISTER_BROKER: self.unregister,
            code.QUERY_DATA_VERSION: self.query_data_version,
            code.GET_ROUTEINFO_BY_TOPIC: self.route,
            code.GET_BROKER_CLUSTER_INFO: lambda command, peer: Reply(body=fastjson.write(self._routes.clusters())),
            code.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            code.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._list_handler(self._routes.topics),
            code.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            code.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            code.GET_UNIT_TOPIC_LIST: self._list_handler(partial(by_unit, UNIT)),
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: self._list_handler(partial(by_unit, UNIT_SUB)),
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._list_handler(partial(by_unit, UNIT_SUB, UNIT)),
            code.UPDATE_NAMESRV_CONFIG: self.update_config,
            code.GET_NAMESRV_CONFIG: self.get_config,
        }

    # --- brokers ---

    def register(self, command: Command, peer: Peer) -> Reply | Awaitable[Reply]:
        """Handle REGISTER_BROKER. Large tables are applied in slices, so that they do not delay other requests."""
        header = decode_header(command, RegisterBroker)
        host.parse(header.broker_addr)
        if self._routes.address_count() >= BROKERS_MAX and not self._routes.has_address(header.broker_addr):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"this name server has {BROKERS_MAX} brokers, the maximum")
        if len(command.body) > LARGE_BODY:
            outline = registration.outline(header, command.body, command.version)
            if outline and self._routes.is_current(header, outline.topic_config_serialize_wrapper.data_version):
                return self._record(header, outline, peer)
        if registration.expanded_size(header, command.body, COMPRESSED_MAX) > (
            COMPRESSED_MAX if header.compressed else LARGE_BODY
        ):
            return self._register_large(header, command, peer)
        body = registration.decode(header, command.body, command.version)
        self._refuse_too_many(header)
        if len(body.topic_config_serialize_wrapper.topic_config_table) > TOPICS_PER_SLICE:
            return self._record_in_slices(header, body, peer)
        return self._record(header, body, peer)

    async def _register_large(self, header: RegisterBroker, command: Command, peer: Peer) -> Reply:
        """Decode a large table in a thread, since it may expand a hundredfold, and apply it in slices.

        Large registrations run one after another, so that many of them take the memory of one. The task is cancelled when the
        connection closes.
        """
        size = len(command.body)
        if self._large_bytes + size > LARGE_BYTES_MAX and self._large_bytes:
            raise ReplyError(
                ResponseCode.SYSTEM_BUSY, f"{self._large_bytes} bytes of registrations are pending, try again later"
            )
        self._large_bytes += size
        try:
            async with self._large:
                decode = asyncio.to_thread(registration.decode, header, command.body, command.version)
                body = await _until_over(asyncio.ensure_future(decode))
                self._refuse_too_many(header)
                return await self._record_in_slices(header, body, peer)
        finally:
            self._large_bytes -= size

    def _refuse_too_many(self, header: RegisterBroker) -> None:
        if self._routes.topic_count(header.broker_name) > TOPICS_MAX:
            remark = f"broker {header.broker_name} has more than {TOPICS_MAX} topics here; delete unused topics first"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)

    async def _record_in_slices(self, header: RegisterBroker, body: RegisterBrokerBody, peer: Peer) -> Reply:
        """Apply a large table in slices with provisional versions; record its own version once all of it is applied."""
        table = body.topic_config_serialize_wrapper
        if not self._routes.is_current(header, table.data_version):
            topics = iter(table.topic_config_table.items())
            while part := dict(itertools.islice(topics, TOPICS_PER_SLICE)):
                version = DataVersion(-next(self._provisional), table.data_version.timestamp)
                partial_body = RegisterBrokerBody(body.filter_server_list, TopicTable(version, part))
                self._routes.register(header, partial_body, peer.id, self._monotonic_ms())
                await asyncio.sleep(0)
        return self._record(header, RegisterBrokerBody(body.filter_server_list, TopicTable(table.data_version)), peer)

    def _record(self, header: RegisterBroker, body: RegisterBrokerBody, peer: Peer) -> Reply:
        response = self._routes.register(header, body, peer.id, self._monotonic_ms())
        ordered = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return Reply(fields=encode_header(response), body=_kv_body(ordered) if ordered is not None else b"")

    def unregister(self, command: Command, peer: Peer) -> Reply:
        self._routes.unregister(decode_header(command, BrokerRef))
        return Reply()

    def query_data_version(self, command: Command, peer: Peer) -> Reply:
        """Handle QUERY_DATA_VERSION: return whether a registration would change the table of the broker."""
        version = decode_body(command, DataVersion)
        version_here = self._routes.refresh_version(decode_header(command, BrokerRef), version, self._monotonic_ms())
        changed = {"changed": "false" if version_here == version else "true"}
        return Reply(fields=changed, body=fastjson.write(version_here) if version_here is not None else b"")

    # --- routes ---

    def route(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_ROUTEINFO_BY_TOPIC. Broker ids are quoted for clients that read standard JSON, bare for older ones."""
        request = decode_header(command, RouteRequest)
        route = self._routes.find_route(request.topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {request.topic}"
            return Reply(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        if self._config.order_message_enable:
            conf = self._kv.get(ORDER_TOPIC_CONFIG, request.topic)
            route = msgspec.structs.replace(route, order_topic_conf=conf)
        standard = command.version >= VERSION or request.accept_standard_json_only
        return Reply(body=_standard_json(route) if standard else fastjson.write(route))

    def _list_handler(self, topics: Callable[[], Iterator[list[str]]]) -> Handler:
        return lambda command, peer: self._topic_list(command.code, topics)

    def _topic_list(self, key: Hashable, topics: Callable[[], Iterator[list[str]]]) -> Awaitable[Reply]:
        return self._lists.get(key, lambda: _topic_list(topics()))

    def delete_topic(self, command: Command, peer: Peer) -> Reply:
        request = decode_header(command, DeleteTopicRoute)
        self._routes.delete_topic(request.topic, request.cluster_name)
        return Reply()

    def topics_of_cluster(self, command: Command, peer: Peer) -> Awaitable[Reply]:
        cluster = decode_header(command, ClusterRef).cluster
        return self._topic_list((command.code, cluster), lambda: self._routes.topics_of_cluster(cluster))

    def system_topics(self, command: Command, peer: Peer) -> Awaitable[Reply]:
        names, broker_addr = self._routes.system_topics()
        return _topic_list(iter([names]), broker_addr)

    async def wipe_write_perm(self, command: Command, peer: Peer) -> Reply:
        """Handle WIPE_WRITE_PERM_OF_BROKER: no client sends to the broker any more, but consumers go on."""
        count = await _total(self._routes.wipe_write_perm(decode_header(command, BrokerName).broker_name))
        return Reply(fields={"wipeTopicCount": str(count)})

    async def add_write_perm(self, command: Command, peer: Peer) -> Reply:
        count = await _total(self._routes.add_write_perm(decode_header(command, BrokerName).broker_name))
        return Reply(fields={"addTopicCount": str(count)})

    # --- KV table ---

    async def put_kv(self, command: Command, peer: Peer) -> Reply:
        """Handle PUT_KV_CONFIG; answer when the value is on disk."""
        request = decode_header(command, PutKv)
        if not request.namespace or not request.key:
            return Reply(ResponseCode.SYSTEM_ERROR, remark="namespace or key is null")
        self._kv.put(request.namespace, request.key, request.value)
        await self._kv.wait_saved()
        return Reply()

    def get_kv(self, command: Command, peer: Peer) -> Reply:
        request = decode_header(command, KvKey)
        value = self._kv.get(request.namespace, request.key)
        if value is None:
            remark = f"No config item, Namespace: {request.namespace} Key: {request.key}"
            return Reply(ResponseCode.QUERY_NOT_FOUND, {}, remark)
        return Reply(fields={"value": value})

    async def delete_kv(self, command: Command, peer: Peer) -> Reply:
        """Handle DELETE_KV_CONFIG; answer when the value is removed from the disk."""
        request = decode_header(command, KvKey)
        self._kv.delete(request.namespace, request.key)
        await self._kv.wait_saved()
        return Reply()

    def kv_namespace(self, command: Command, peer: Peer) -> Reply:
        namespace = decode_header(command, KvNamespace).namespace
        values = self._kv.namespace(namespace)
        if values is None:
            return Reply(ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}")
        return Reply(body=_kv_body(values))

    # --- configuration ---

    def update_config(self, command: Command, peer: Peer) -> Reply:
        try:
            changes = java_properties.parse_body(command.body)
            self._config, _ = NAME_SERVER_SETTINGS.change(self._config, changes)
        except (ConfigError, ProtocolError) as error:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        self._config.apply_limits(self._limits)
        return Reply()

    def get_config(self, command: Command, peer: Peer) -> Reply:
        texts = NAME_SERVER_SETTINGS.texts(self._config) | self._protection.report()
        return Reply(body=java_properties.write(texts).encode())


def _kv_body(values: dict[str, str]) -> bytes:
    # For texts, fastjson prints standard JSON, which msgspec encodes a hundred times faster; each registration gets this.
    return msgspec.json.encode(KvBody(values))


def _standard_json(route: TopicRoute) -> bytes:
    """Return JSON with quoted map keys, omitting absent members as fastjson does."""
    members = {key: value for key, name in ROUTE_MEMBERS if (value := getattr(route, name)) is not None}
    return msgspec.json.encode(members)


async def _topic_list(slices: Iterator[list[str]], broker_addr: str | None = None) -> Reply:
    """Return a TopicList. Other requests are served between the slices."""
    names: list[str] = []
    for part in slices:
        names += part
        await asyncio.sleep(0)
    members = {"topicList": names} if broker_addr is None else {"brokerAddr": broker_addr, "topicList": names}
    # Names are ASCII, so standard JSON is what fastjson prints.
    return Reply(body=msgspec.json.encode(members))


async def _until_over(work: asyncio.Future[T]) -> T:
    """Return the result of `work` in a thread. A cancelled caller waits for its end, so that its memory counts until then."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.gather(work, return_exceptions=True)
        raise


async def _total(slices: Iterator[int]) -> int:
    """Return the sum. Other requests are served between the slices."""
    total = 0
    for count in slices:
        total += count
        await asyncio.sleep(0)
    return total
