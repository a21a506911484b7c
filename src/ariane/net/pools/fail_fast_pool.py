"""Connections that fail fast: a server that does not respond is waited for once, however often it is asked.

    request ─→ silent? ──yes─→ NotAsked immediately; a probe in the background, at most one per PROBE_EVERY_S
                 │ no
                 └─→ no response within the limit, to nothing that this server was asked ─→ silent: all requests in flight fail

A request with a longer time limit (a broker that visits every queue, or asks a client) is accompanied by probes until it ends, so
that it waits for a server that works and not for one that hangs. A probe is a request for the list of brokers (106) at a name
server, and for runtime information (28) at a broker. A server from which part of a response arrives is not silent.

The console uses it for its pages, and each command for its time: `cluster.connection`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Iterable, Mapping

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ConnectionLost, RequestTimeout
from ariane.net.connection import Connection, Handler, Sign
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.requester import ServerRequest
from ariane.net.pools.server_health import ServerHealth
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import OUR_LANGUAGE, Command

# A server delays a command by both together, once.
PATIENCE_MS, LIMIT_MS = 1_000.0, 2_000.0
PROBE_EVERY_S = 1.0
PROBE_PAUSE_S = 0.25  # between two probes of a server that responds, while a request waits for longer
# A server that was not probed for this long is asked again, because nothing was asked meanwhile.
FORGET_S = 15.0


class NotAsked(ConnectionLost):
    """The server did not respond lately, so the request was not sent."""


class FailFastPool(ConnectionPool):
    """Connections to the servers of a cluster.

    Args:
        name_servers: Addresses of the name servers, which have a probe of their own.
        handlers: Request code -> handler for requests that arrive on our connections.
        health: Which servers are silent; shared with other pools.
        sign: Signs outgoing requests.
        tls: Encrypts the connections; None: plain ones.
        language: Language that requests name.
        limit_ms: Time within which a server responds to a probe, or accepts a connection.
        patience_ms: Time before the first probe of a request. It is granted until the first server is found to be silent.
        clock: Replaced by tests.
    """

    def __init__(
        self,
        name_servers: Iterable[str],
        handlers: Mapping[int, Handler] | None = None,
        *,
        health: ServerHealth,
        sign: Sign | None = None,
        tls: ssl.SSLContext | None = None,
        language: str = OUR_LANGUAGE,
        limit_ms: float = LIMIT_MS,
        patience_ms: float = PATIENCE_MS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(handlers, sign=sign, tls=tls, language=language)
        self._health = health
        self._limit_ms = limit_ms
        self._patience_ms = patience_ms
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first request, in which all connections are
        self._name_servers = frozenset(name_servers)
        self._probes: dict[str, asyncio.Task[None]] = {}  # in flight, by address
        self._accompanied: Counter[str] = Counter()  # requests in flight that probes accompany, by address
        health.add_listener(self._on_silence)

    async def __aexit__(self, *exception: object) -> None:
        self._health.remove_listener(self._on_silence)
        for probe in list(self._probes.values()):
            probe.cancel()
        await super().__aexit__(*exception)

    async def exchange(self, request: ServerRequest) -> Command:
        """Send a request and return the response.

        Raises:
            RequestTimeout: no response within the limit of the request.
            NotAsked: the server did not respond lately.
            ConnectionLost: the connection was refused or closed, or the server was found to be silent.
        """
        addr, timeout_ms = request.addr, request.timeout_ms
        await self._admit(addr)
        started_s = self._clock.monotonic()
        is_accompanied = timeout_ms > self._limit_ms
        self._accompanied[addr] += is_accompanied
        if is_accompanied:
            self._start_probe(addr, self._patience_ms)
        try:
            response = await self._exchange_within(request)
        except RequestTimeout as error:
            if timeout_ms >= self._limit_ms:
                self._report_unanswered(addr, started_s, error.timeout_ms)
            raise
        except ConnectionLost:
            if silence := self._health.silence(addr):
                raise ConnectionLost(addr, silence.reason) from None
            raise
        finally:
            self._accompanied[addr] -= is_accompanied
        self._health.report_response(addr)
        return response

    async def _admit(self, addr: str) -> None:
        """Raise ConnectionLost if no request may be sent to a server."""
        self._check_silence(addr)

    async def connect(self, addr: str) -> Connection:
        """Return the open connection to `addr`, connecting if there is none.

        Raises:
            NotAsked: the server did not respond lately.
            RequestTimeout: not connected within the limit.
            ConnectionLost: the connection was refused.
        """
        self._check_silence(addr)
        return await self._connect_within(addr)

    async def _connect_within(self, addr: str) -> Connection:
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limit_ms / 1000):
                return await super().connect(addr)
        except TimeoutError:
            raise RequestTimeout(addr, self._limit_ms) from None

    async def _exchange_within(self, request: ServerRequest) -> Command:
        """Send a request. The limit is that of connecting, writing and waiting together."""
        addr, code, header, body, timeout_ms = request
        fields = self._fields(header)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._connect_within(addr)
                return await connection.request(code, fields, body, timeout_ms=timeout_ms)
        except TimeoutError:
            raise RequestTimeout(addr, timeout_ms) from None

    def _check_silence(self, addr: str) -> None:
        """Raise NotAsked if a server is silent, unless it is time to ask it again."""
        silence = self._health.silence(addr)
        if silence is None:
            return
        waited_s = self._clock.monotonic() - silence.checked_s
        if waited_s >= FORGET_S:
            # Not only this request: if the server is still silent, that is new, and ends all requests in flight.
            self._health.forget_silence(addr)
            return
        if waited_s >= PROBE_EVERY_S:
            self._start_probe(addr)
        raise NotAsked(addr, f"not asked, it did not respond lately ({silence.reason})")

    def _start_probe(self, addr: str, patience_ms: float = 0.0) -> None:
        if addr not in self._probes:
            self._health.report_attempt(addr)
            probe = self._probes[addr] = asyncio.create_task(self._accompany(addr, patience_ms))
            probe.add_done_callback(lambda _: self._probes.pop(addr))

    async def _accompany(self, addr: str, patience_ms: float) -> None:
        """Probe a server once, and again as long as requests wait for it."""
        if patience_ms:
            await self._clock.sleep(patience_ms / 1000)
            if not self._accompanied[addr]:
                return
        is_conclusive = await self._probe(addr, patience_ms)
        while self._accompanied[addr]:
            if is_conclusive:
                await self._clock.sleep(PROBE_PAUSE_S)
            is_conclusive = await self._probe(addr)

    async def _probe(self, addr: str, patience_ms: float = 0.0) -> bool:
        """Return whether the server answered or was found to be silent; False if only others received responses meanwhile."""
        is_name_server = addr in self._name_servers
        code = RequestCode.GET_BROKER_CLUSTER_INFO if is_name_server else RequestCode.GET_BROKER_RUNTIME_INFO
        started_s = self._clock.monotonic()
        try:
            await self._exchange_within(ServerRequest(addr, code, timeout_ms=self._limit_ms))
        except RequestTimeout:
            # A response that another thread has just decoded may have arrived before the server stopped.
            return self._report_unanswered(addr, started_s, self._limit_ms, patience_ms)
        except ConnectionLost as error:
            # Refused by the machine or the network: further requests fail immediately, and succeed as soon as the server is back.
            # A connection that was dropped because the server is silent says nothing about it.
            if isinstance(error.__cause__, OSError):
                self._health.report_response(addr)
        else:
            self._health.report_response(addr)
        return True

    def _report_unanswered(self, addr: str, started_s: float, timeout_ms: float, patience_ms: float = 0.0) -> bool:
        """Report a server as silent, unless it responded to others meanwhile: then it is busy, or waits for a client."""
        is_silent = not self._health.has_responded_since(addr, started_s) and not self.has_read(addr, timeout_ms)
        if is_silent:
            self._health.report_silence(addr, f"no response within {patience_ms + timeout_ms:.0f} ms")
        return is_silent

    def _on_silence(self, addr: str) -> None:
        # Called in the thread that noticed it; connections belong to the thread of their loop.
        self._patience_ms = 0.0
        if self._loop is asyncio.get_running_loop():
            self.abort(addr)  # immediately: requests that follow use a new connection
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.abort, addr)
