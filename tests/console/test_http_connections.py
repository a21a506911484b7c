"""Deadlines and bounds of HTTP connections: on uvicorn's protocol without sockets, then 400 half-sent requests at a console."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from ariane.console.server.http_connections import BODY_RATE, DEADLINES_S, LIMITS, HttpConnection, HttpConnections
from ariane.console.server.http_server import ConsoleServer
from ariane.console.settings import ConsoleSettings
from ariane.net.limits.connection_limits import ConnectionLimits

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
DEADLINE_S = 8.0
FLOOD = 400


class Transport:
    """The transport of a client that reads nothing."""

    def __init__(self, ip: str) -> None:
        self._ip = ip
        self.written = b""
        self.is_closed = self.is_aborted = False

    def get_extra_info(self, name: str) -> Any:
        return {"peername": (self._ip, 1), "sockname": ("127.0.0.1", 8080)}.get(name)

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Site:
    """An application that reads the body and then waits, and its connections."""

    def __init__(self, limits: ConnectionLimits = LIMITS) -> None:
        self.connections = HttpConnections(limits)
        self.app = self._wait
        self._config = uvicorn.Config(self._app, ws="none", log_config=None, interface="asgi3")
        self._state = ServerState()
        self.is_answering = asyncio.Event()

    async def _app(self, scope: object, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await self.app(scope, receive, send)

    async def _wait(self, _scope: object, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        while (await receive()).get("more_body"):
            pass
        await self.is_answering.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    def connect(self, data: bytes = b"", ip: str = "10.0.0.1") -> tuple[HttpConnection, Transport]:
        connection = HttpConnection(self.connections, config=self._config, server_state=self._state, app_state={})
        transport = Transport(ip)
        connection.connection_made(cast(asyncio.Transport, transport))
        if data:
            connection.data_received(data)
        return connection, transport


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("data", "response"), [(b"", b""), (b"GET / HT", b"HTTP/1.1 408"), (POST + b"name", b"HTTP/1.1 408")]
)
def test_incomplete_requests_are_closed(data: bytes, response: bytes) -> None:
    async def run() -> None:
        site = Site()
        connection, transport = site.connect(data)
        for second in range(int(DEADLINE_S)):
            if data:
                connection.data_received(b"x")  # a byte a second does not prolong it
            site.connections.close_late(float(second))
        assert not transport.is_closing()
        site.connections.close_late(DEADLINE_S + 0.1)
        assert transport.is_closing()
        assert transport.written.startswith(response)
        assert bool(transport.written) is bool(response)
        assert len(site.connections) == 0

    asyncio.run(run())


def test_a_body_that_arrives_at_the_rate_may_take_longer() -> None:
    async def run() -> None:
        site = Site()
        connection, transport = site.connect(POST)
        for second in range(30):
            site.connections.close_late(float(second))
            await turns()  # the application takes what has arrived
            connection.data_received(b"x" * BODY_RATE)
        assert not transport.is_closing()
        for second in range(30, 60):
            site.connections.close_late(float(second))
        assert transport.is_closing()

    asyncio.run(run())


def test_a_request_may_be_answered_slowly_and_an_idle_connection_is_left_to_uvicorn() -> None:
    async def run() -> None:
        site = Site()
        _, transport = site.connect(GET)
        await turns()
        for second in range(100):
            site.connections.close_late(float(second))
        assert not transport.is_closing()
        site.is_answering.set()
        await turns()
        assert transport.written.startswith(b"HTTP/1.1 200")
        site.connections.close_late(200.0)
        site.connections.close_late(300.0)
        assert not transport.is_closing()

    asyncio.run(run())


def test_the_head_of_a_second_request_has_the_same_deadline() -> None:
    async def run() -> None:
        site = Site()
        site.is_answering.set()
        connection, transport = site.connect(GET)
        await turns()
        connection.data_received(b"GET /slow")
        site.connections.close_late(50.0)
        assert not transport.is_closing()
        site.connections.close_late(50.0 + DEADLINE_S)
        assert transport.is_closing()

    asyncio.run(run())


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_client_that_reads_nothing_is_disconnected(is_closing: bool) -> None:
    async def run() -> None:
        site = Site()
        connection, transport = site.connect(GET)
        await turns()
        if is_closing:
            transport.close()  # asyncio sends the buffered rest of a response for as long as the client likes
        else:
            connection.pause_writing()
        site.connections.close_late(0.0)
        site.connections.close_late(DEADLINES_S["response"] - 1)
        assert not transport.is_aborted
        site.connections.close_late(DEADLINES_S["response"])
        assert transport.is_aborted
        connection.connection_lost(None)  # as an aborted transport calls it

    asyncio.run(run())


def test_new_connections_displace_incomplete_ones() -> None:
    async def run() -> None:
        site = Site(ConnectionLimits(total=6, per_address=3))
        served = site.connect(GET)[1]
        half = [site.connect(POST)[1] for _ in range(10)]
        other = site.connect(GET, "10.0.0.2")[1]
        await turns()
        assert not served.is_closing()
        assert not other.is_closing()
        assert [transport.is_aborted for transport in half] == [True] * 8 + [False] * 2

    asyncio.run(run())


def test_invalid_requests_are_answered_and_logged_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        site = Site()
        for _ in range(100):
            _, transport = site.connect(b"garbage\r\n\r\n")
            assert transport.written.startswith(b"HTTP/1.1 400")
            assert transport.is_closed

    asyncio.run(run())
    assert 0 < len(caplog.records) <= 10


def test_a_request_may_become_invalid_after_its_response(caplog: pytest.LogCaptureFixture) -> None:
    """A form whose fields are refused is answered before the rest of it has arrived."""

    async def answer(scope: object, receive: object, send: Callable[[Any], Any]) -> None:
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def run() -> None:
        site = Site()
        site.app = answer
        connection, transport = site.connect(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
        )
        await turns()
        assert transport.written.startswith(b"HTTP/1.1 403")
        connection.data_received(b"no chunk\r\n")
        assert transport.is_closing()

    asyncio.run(run())
    assert "Traceback" not in caplog.text


def test_above_the_limit_of_requests_in_progress_a_connection_is_refused() -> None:
    async def run() -> None:
        site = Site(ConnectionLimits(total=6, per_address=3))
        served = [site.connect(GET)[1] for _ in range(3)]
        refused = site.connect(GET)[1]
        await turns()
        assert refused.written.startswith(b"HTTP/1.1 503")
        assert refused.is_closed
        assert not any(transport.is_closing() for transport in served)

    asyncio.run(run())


@pytest.mark.parametrize(
    "data",
    [b"GET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ", b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\n"
     b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\nname=a"],
)  # fmt: skip
def test_a_console_answers_during_a_flood_of_half_sent_requests(data: bytes, tmp_path: Path) -> None:
    """All come from one address, as those that a proxy on this machine forwards."""

    async def run() -> None:
        settings = ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path, port=0)
        async with ConsoleServer(settings) as server:
            port = int(server.url.rpartition(":")[2])

            async def send(request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                return reader, writer

            flood = await asyncio.gather(*(send(data) for _ in range(FLOOD)))
            reader, writer = await send(b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 303")
            writer.close()
            # The oldest were displaced; the deadline ends the others.
            assert all(await asyncio.gather(*(ended(half) for half, _ in flood)))

    asyncio.run(asyncio.wait_for(run(), 120))


async def ended(reader: asyncio.StreamReader) -> bool:
    """Return whether the server closes the connection, after a response or at once."""
    try:
        async with asyncio.timeout(60):
            await reader.read()
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True
