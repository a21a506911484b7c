"""Connection of an operator to one cluster: selecting servers, asking many servers at once, and changes that can be tried first.

    select_brokers(cluster=, broker=) ─→ BrokerServer…    from the first name server that knows any
    ask_all(brokers, request)         ─→ Answers          values of those that responded, reasons of those that did not
    change(Change, …)                 ─→ `changes`        one request after another; in a dry run none is sent

`Admin` combines this class with the operations of each area.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

import msgspec

from ariane.errors import (
    ArianeError,
    ConfigError,
    ConnectionLost,
    NotFound,
    PartialFailure,
    RequestTimeout,
    ServerUnavailable,
)
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.fail_fast_pool import FailFastPool
from ariane.net.pools.name_servers import NameServerClient
from ariane.net.pools.server_health import ServerHealth
from ariane.net.tls import tls_context
from ariane.protocol import fastjson, signing
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import OUR_LANGUAGE, Command
from ariane.protocol.requests.routing import MASTER_ID, ClusterInfo, TopicTable

if TYPE_CHECKING:
    from ariane.client.instance.settings import ClientSettings

T = TypeVar("T")

ROUTE_REFRESH_S = 30.0  # between two fetches of a route by a client, by default of Java's and ours
REFRESH_MARGIN_S = 1.0
TIMEOUT_MS = 5_000.0  # of one request, as in Java's tools


class BrokerServer(NamedTuple):
    """A master or slave that is registered with the name servers."""

    cluster: str
    broker: str
    broker_id: int
    addr: str

    @property
    def is_master(self) -> bool:
        """Whether it accepts changes."""
        return self.broker_id == MASTER_ID


class BrokerUnavailable(NamedTuple):
    """A broker that did not respond, with the reason. `broker` is empty if only its address is known, `addr` without a server."""

    broker: str
    addr: str
    reason: str

    def __str__(self) -> str:
        return f"{' '.join(filter(None, ('Broker', self.broker, self.addr)))} did not respond: {self.reason}"


class NameServerUnavailable(BrokerUnavailable):
    """A name server that did not respond. `broker` is empty."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"Name server {self.addr} did not respond: {self.reason}"


class ClientUnavailable(BrokerUnavailable):
    """A client that did not respond through its broker. `broker` names both: `client c1 through broker-a`."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self.broker[:1].upper()}{self.broker[1:]} {self.addr} did not respond: {self.reason}"


def masterless_brokers(servers: Sequence[BrokerServer]) -> list[BrokerUnavailable]:
    """Return the brokers that have registered slaves only, sorted by name."""
    names = {server.broker for server in servers} - {server.broker for server in servers if server.is_master}
    return [BrokerUnavailable(name, "", "no master is registered") for name in sorted(names)]


class Answers(NamedTuple, Generic[T]):
    """What several servers responded. Totals over `values` are only known if `unavailable` is empty."""

    values: list[tuple[BrokerServer, T]]
    unavailable: tuple[BrokerUnavailable, ...]


class Change(msgspec.Struct, frozen=True):
    """A request that changes a server, described for people.

    Attributes:
        addr: Server that executes it.
        summary: What it does, as an infinitive: "delete topic orders".
        code: Request code.
        header: Header of the request.
        body: Body of the request.
        is_optional: Whether a failure is a note: the server copies the change from another one.
    """

    addr: str
    summary: str
    code: RequestCode
    header: msgspec.Struct | None = None
    body: bytes = b""
    is_optional: bool = False

    def __repr__(self) -> str:
        return f"Change({self.addr!r}, {self.summary!r}, ...)"  # a body may hold a password


class ExecutedChange(NamedTuple):
    """A change and the response of the server; None in a dry run."""

    change: Change
    response: Command | None


class ClusterConnection:
    """Requests of an operator to the servers of one cluster.

        async with ClusterConnection("10.0.0.1:9876;10.0.0.2:9876") as cluster:
            masters = await cluster.select_brokers(cluster="DefaultCluster")

    Args:
        namesrv: Name server addresses (HOST:PORT): a list, or one text separated by ';'.
        client: Account that signs every request, and TLS; None: neither. Clients of some operations take all its settings.
        timeout_ms: Time limit of one request.
        is_dry_run: Record changes in `changes` without sending them.
        language: Language that requests name, for brokers that choose the form of a body by it.
        peers: Connections to use instead of own ones; they stay open at the end.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        client: ClientSettings | None = None,
        timeout_ms: float = TIMEOUT_MS,
        is_dry_run: bool = False,
        language: str = OUR_LANGUAGE,
        peers: ConnectionPool | None = None,
    ) -> None:
        texts: Sequence[str] = namesrv.split(";") if isinstance(namesrv, str) else namesrv
        # Changes go to each of them: name servers do not copy from each other.
        self.name_servers: tuple[str, ...] = tuple(text.strip() for text in texts if text.strip())
        if not self.name_servers:
            raise ConfigError("namesrv", namesrv, "expected HOST:PORT, several separated by ';'")
        self.client = client
        self.peers = peers or _open_pool(self.name_servers, client, language)
        self._owns_peers = peers is None  # whether to close the connections at the end
        self.timeout_ms = timeout_ms
        self.is_dry_run = is_dry_run
        self.changes: list[Change] = []  # executed, or in a dry run those that would be executed
        self.notes: list[str] = []  # optional changes that failed, for people
        # Asks the name servers in turn, for reads.
        self.routing = NameServerClient(self.peers, self.name_servers, timeout_ms=timeout_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._owns_peers:
            await self.peers.__aexit__(*exception)

    # --- selecting servers ---

    async def fetch_cluster(self) -> ClusterInfo:
        """Return the registered brokers, from the first name server that lists any.

        Raises:
            ServerUnavailable: no broker is registered.
            ConnectionLost, RequestTimeout: no name server responded.
        """
        cluster = await self.routing.fetch_cluster()
        if not cluster.broker_addr_table:
            raise ServerUnavailable(f"no broker is registered with {', '.join(self.name_servers)}")
        return cluster

    async def select_brokers(
        self, *, cluster: str | None = None, broker: str | None = None, with_slaves: bool = False
    ) -> list[BrokerServer]:
        """Return the masters of a cluster, of one broker, or of all clusters, sorted by name.

        Args:
            cluster: Only brokers of this cluster.
            broker: Name of a broker, or the address of a server. An address that is not registered is used as it is, for
                servers that are registered with another address of theirs, and while no name server responds; its cluster
                and name are then empty.
            with_slaves: Return slaves, too. An address selects that server in any case.

        Raises:
            NotFound: no such cluster or broker is registered; the message lists those that are.
            ServerUnavailable: no broker is registered, or no master of those that were selected.
        """
        try:
            info = await self.fetch_cluster()
        except (ConnectionLost, RequestTimeout, ServerUnavailable):
            if broker is None or ":" not in broker or cluster is not None:
                raise
            return [
                BrokerServer("", "", MASTER_ID, broker)
            ]  # its address is enough: the name server only adds its name
        servers = registered_servers(info)
        if cluster is not None and cluster not in info.cluster_addr_table:
            raise NotFound("cluster", cluster, sorted(info.cluster_addr_table))
        if cluster is not None:
            servers = [server for server in servers if server.cluster == cluster]
        if broker is not None:
            if at_address := [server for server in servers if server.addr == broker]:
                return at_address
            if ":" in broker:
                return [BrokerServer("", "", MASTER_ID, broker)]
            names = sorted({server.broker for server in servers})
            servers = [server for server in servers if server.broker == broker]
            if not servers:
                raise NotFound("broker", broker, names)
        selected = [server for server in servers if with_slaves or server.is_master]
        if not selected:
            masterless = ", ".join(sorted({server.broker for server in servers}))
            raise ServerUnavailable(f"no master of {masterless} is registered with {', '.join(self.name_servers)}")
        return selected

    async def masters_of(self, topic: str) -> list[BrokerServer]:
        """Return the masters of the brokers that have a topic, sorted by name.

        Raises:
            RouteNotFound: no name server has the topic.
            ServerUnavailable: no master is registered.
        """
        names = {data.broker_name for data in (await self.routing.fetch_route(topic)).broker_datas}
        return [server for server in await self.select_brokers() if server.broker in names]

    async def _fetch_topics(self, server: BrokerServer) -> TopicTable:
        """Return all topics of a broker, with the version of its table."""
        answer = await self.request(server.addr, RequestCode.GET_ALL_TOPIC_CONFIG, is_slow=True)
        return fastjson.decode(answer.body, TopicTable)

    # --- asking ---

    async def request(
        self,
        addr: str,
        code: RequestCode,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        is_slow: bool = False,
    ) -> Command:
        """Return the successful response of a server.

        Args:
            addr: Server to ask.
            code: Request code.
            header: Header of the request.
            body: Body of the request.
            is_slow: Allow three times the time limit, for requests that visit every queue or ask a client.

        Raises:
            ReplyError: the server rejected the request.
            ConnectionLost, RequestTimeout: the server did not respond.
        """
        timeout_ms = self.timeout_ms * (3 if is_slow else 1)
        return await self.peers.request_ok(addr, code, header, body, timeout_ms=timeout_ms)

    async def ask_all(
        self, servers: Iterable[BrokerServer], request: Callable[[BrokerServer], Awaitable[T]]
    ) -> Answers[T]:
        """Ask servers concurrently. A server that fails is part of the result, because unknown is never zero."""
        addressed = list(servers)
        results = await asyncio.gather(*(request(server) for server in addressed), return_exceptions=True)
        values: list[tuple[BrokerServer, T]] = []
        unavailable = []
        for server, result in zip(addressed, results, strict=True):
            if isinstance(result, ArianeError):
                unavailable.append(BrokerUnavailable(server.broker, server.addr, str(result)))
            elif isinstance(result, BaseException):
                raise result
            else:
                values.append((server, result))
        return Answers(values, tuple(unavailable))

    async def ask_brokers(self, request: Callable[[BrokerServer], Awaitable[T]]) -> Answers[T]:
        """Ask the master of every broker, or a slave where no master is registered.

        A broker without a master is in `unavailable`, too, even if its slave answered: its values may be old.

        Raises:
            ServerUnavailable: no broker is registered.
        """
        servers = await self.select_brokers(with_slaves=True)
        readable = {server.broker: server for server in reversed(servers)}  # of one broker, the lowest id is the last
        answers = await self.ask_all(sorted(readable.values()), request)
        masterless = [
            BrokerUnavailable(server.broker, server.addr, "no master is registered, the values are those of a slave")
            for server, _ in answers.values
            if not server.is_master
        ]
        return Answers(answers.values, (*masterless, *answers.unavailable))

    # --- changing ---

    async def change(self, *changes: Change) -> list[Change]:
        """Execute changes as `execute`, and return those that succeeded."""
        return [executed.change for executed in await self.execute(*changes)]

    async def change_each(
        self,
        servers: Iterable[BrokerServer],
        summary: str,
        code: RequestCode,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
    ) -> list[Change]:
        """Execute one change on each server, as `change`."""
        return await self.change(*(Change(server.addr, summary, code, header, body) for server in servers))

    async def execute(self, *changes: Change) -> list[ExecutedChange]:
        """Execute changes one after another, and return those that succeeded. In a dry run, only record them.

        A failure does not stop the others: servers that can be changed are changed. That of an optional change is added to `notes`.

        Raises:
            PartialFailure: some of several changes failed; the message names them with the reason, and those that succeeded.
            ReplyError, ConnectionLost, RequestTimeout: the only change failed.
        """
        succeeded: list[ExecutedChange] = []
        failed: list[tuple[str, str]] = []
        for change in changes:
            response = None
            try:
                if not self.is_dry_run:
                    response = await self.request(change.addr, change.code, change.header, change.body, is_slow=True)
            except ArianeError as error:
                if change.is_optional:
                    self.notes.append(f"{change.addr} did not {change.summary}: {error}")
                    continue
                if len(changes) == 1:
                    raise
                failed.append((f"{change.summary} on {change.addr}", str(error)))
            else:
                succeeded.append(ExecutedChange(change, response))
                self.changes.append(change)
        if failed:
            raise PartialFailure(failed, [f"{change.summary} on {change.addr}" for change, _ in succeeded])
        return succeeded


def _open_pool(name_servers: Sequence[str], client: ClientSettings | None, language: str) -> ConnectionPool:
    sign = functools.partial(signing.sign, client.credentials) if client and client.credentials else None
    return FailFastPool(
        name_servers,
        health=ServerHealth(),
        sign=sign,
        tls=tls_context(client) if client else None,
        language=language,
    )


def each_once(unavailable: Iterable[BrokerUnavailable]) -> list[BrokerUnavailable]:
    """Return servers and clients that did not respond, each once: several requests of a command may have failed."""
    first: dict[tuple[str, str], BrokerUnavailable] = {}
    for missing in unavailable:
        first.setdefault((missing.broker, missing.addr), missing)
    return list(first.values())


def registered_servers(info: ClusterInfo) -> list[BrokerServer]:
    """Return all masters and slaves that a name server lists, sorted by cluster, name and broker id."""
    clusters = {name: cluster for cluster, names in info.cluster_addr_table.items() for name in names}
    return sorted(
        BrokerServer(data.cluster or clusters.get(name, ""), name, broker_id, addr)
        for name, data in info.broker_addr_table.items()
        for broker_id, addr in data.broker_addrs.items()
    )


async def gather_bounded(coroutines: Iterable[Awaitable[T]], limit: int) -> list[T]:
    """Return the results of all coroutines, at most `limit` of them running at a time."""
    slots = asyncio.Semaphore(limit)

    async def run(coroutine: Awaitable[T]) -> T:
        async with slots:
            return await coroutine

    return await asyncio.gather(*(run(coroutine) for coroutine in coroutines))
