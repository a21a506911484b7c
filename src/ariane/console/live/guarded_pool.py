"""Connections that fail fast: a server that does not respond delays a page by one second at most, however often it is asked.

    request ─→ registered? ──no──→ NotRegistered
                 │ yes
               silent? ──yes─→ ConnectionLost immediately; a probe in the background, at most one per PROBE_EVERY_S
                 │ no
                 └─→ no response within LIMIT_MS, to nothing that this server was asked ─→ silent: all requests in flight fail

Only servers of the cluster are asked: message ids contain addresses, and requests are signed with the cluster's account.

A request with a longer time limit (a broker that visits every queue, or asks a client) is accompanied by a probe, so that it waits
for a server that works and not for one that hangs. A probe is a request for the list of brokers (106) at a name server, and for
runtime information (28) at a broker.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable
from types import TracebackType

import msgspec

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.console.live.server_health import ServerHealth
from ariane.errors import ArianeError, ConnectionLost, RequestTimeout
from ariane.net.connection import Connection, Sign
from ariane.net.connection_pool import REQUEST_TIMEOUT_MS, ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import ClusterInfo

log = logging.getLogger("ariane.console")

LIMIT_MS = 1_000.0
PROBE_EVERY_S = 1.0
# A server that was not probed for this long is asked again, because the console was not used meanwhile.
FORGET_S = 15.0


class NotRegistered(ConnectionLost):
    """The server belongs to no name server's cluster, so the console does not connect to it."""


class GuardedPool(ConnectionPool):
    """Connections to the servers of a cluster.

    Args:
        name_servers: Addresses of the name servers; requests to other servers than these and their brokers are refused.
        health: Which servers are silent; shared with other pools.
        sign: Signs outgoing requests.
        tls: Encrypts the connections; None: plain ones.
        limit_ms: Time within which a server responds to a probe.
        clock: Replaced by tests.
    """

    def __init__(
        self,
        name_servers: Iterable[str],
        *,
        health: ServerHealth,
        sign: Sign | None = None,
        tls: ssl.SSLContext | None = None,
        limit_ms: float = LIMIT_MS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(sign=sign, tls=tls)
        self._health = health
        self._limit_ms = limit_ms
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first request, in which all connections are
        self._name_servers = frozenset(name_servers)
        self._brokers: set[str] = set()  # addresses that a name server lists, or listed
        self._probes: dict[str, asyncio.Task[None]] = {}  # in flight, by address
        health.add_listener(self._on_silence)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._health.remove_listener(self._on_silence)
        for probe in list(self._probes.values()):
            probe.cancel()
        await super().__aexit__(kind, error, trace)

    async def request(
        self,
        addr: str,
        code: int,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
    ) -> Command:
        """Send a request to `addr` and return the response, whatever its code.

        Raises:
            NotRegistered: no name server lists the server.
            RequestTimeout: no response within `timeout_ms`.
            ConnectionLost: the connection was refused or closed, or the server did not respond lately.
        """
        await self._check_registered(addr)
        self._check_silence(addr)
        started_s = self._clock.monotonic()
        if timeout_ms > self._limit_ms:
            self._start_probe(addr)
        try:
            response = await self._request_within(timeout_ms, addr, code, header, body)
        except RequestTimeout:
            if timeout_ms >= self._limit_ms:
                self._report_unanswered(addr, started_s, timeout_ms)
            raise
        except ConnectionLost:
            if silence := self._health.silence(addr):
                raise ConnectionLost(addr, silence.reason) from None
            raise
        self._health.report_response(addr)
        return response

    async def connect(self, addr: str) -> Connection:
        """Return the open connection to `addr`, connecting if there is none.

        Raises:
            RequestTimeout: not connected within the limit.
            ConnectionLost: the connection was refused.
        """
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limit_ms / 1000):
                return await super().connect(addr)
        except TimeoutError:
            raise RequestTimeout(addr, self._limit_ms) from None

    async def _request_within(
        self, timeout_ms: float, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b""
    ) -> Command:
        """Send a request. The limit is that of connecting, writing and waiting together."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await super().request(addr, code, header, body, timeout_ms=timeout_ms)
        except TimeoutError:
            raise RequestTimeout(addr, timeout_ms) from None

    async def _check_registered(self, addr: str) -> None:
        """Check that the server is one of the name servers, or a broker that one of them lists.

        Raises:
            NotRegistered: it is not.
            ConnectionLost: no name server responded.
        """
        if addr in self._name_servers or addr in self._brokers:
            return
        is_known = False  # whether a name server responded
        for name_server in self._name_servers:
            try:
                response = await self.request(
                    name_server, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=self._limit_ms
                )
                if response.code == ResponseCode.SUCCESS:
                    for broker in fastjson.decode(response.body, ClusterInfo).broker_addr_table.values():
                        self._brokers.update(broker.broker_addrs.values())
                    is_known = True
            except ArianeError as error:
                log.debug("No list of brokers from %s: %s", name_server, error)
        if addr not in self._brokers and is_known:
            raise NotRegistered(addr, "not asked: no name server lists it")
        if addr not in self._brokers:
            raise ConnectionLost(addr, "not asked: no name server responded whether it belongs to the cluster")

    def _check_silence(self, addr: str) -> None:
        """Raise ConnectionLost if a server is silent, unless it is time to ask it again."""
        silence = self._health.silence(addr)
        if silence is None:
            return
        waited_s = self._clock.monotonic() - silence.checked_s
        if waited_s >= FORGET_S:
            self._health.report_attempt(addr)
            return
        if waited_s >= PROBE_EVERY_S:
            self._start_probe(addr)
        raise ConnectionLost(
            addr, f"not asked, it did not respond lately ({silence.reason}); it is probed every second"
        )

    def _start_probe(self, addr: str) -> None:
        if addr not in self._probes:
            self._health.report_attempt(addr)
            probe = self._probes[addr] = asyncio.create_task(self._probe(addr))
            probe.add_done_callback(lambda _: self._probes.pop(addr))

    async def _probe(self, addr: str) -> None:
        is_name_server = addr in self._name_servers
        code = RequestCode.GET_BROKER_CLUSTER_INFO if is_name_server else RequestCode.GET_BROKER_RUNTIME_INFO
        started_s = self._clock.monotonic()
        try:
            await self._request_within(self._limit_ms, addr, code)
        except RequestTimeout:
            self._report_unanswered(addr, started_s, self._limit_ms)
        except ConnectionLost as error:
            # Refused by the machine or the network: further requests fail immediately, and succeed as soon as the server is back.
            # A connection that was dropped because the server is silent says nothing about it.
            if isinstance(error.__cause__, OSError):
                self._health.report_response(addr)
        else:
            self._health.report_response(addr)

    def _report_unanswered(self, addr: str, started_s: float, timeout_ms: float) -> None:
        """Report a server as silent, unless it responded to others meanwhile: then it is busy, or waits for a client."""
        if not self._health.has_responded_since(addr, started_s):
            self._health.report_silence(addr, f"no response within {timeout_ms:.0f} ms")

    def _on_silence(self, addr: str) -> None:
        # Called in the thread that noticed it; connections belong to the thread of their loop.
        reason = "the server did not respond to another request"
        if self._loop is asyncio.get_running_loop():
            self.drop(addr, reason)  # immediately: requests that follow use a new connection
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.drop, addr, reason)
