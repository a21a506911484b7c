"""Runs the console's application in the event loop of its program.

async with ConsoleServer(settings) as server:   server.url is reachable
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self, cast

import uvicorn
from fastapi import APIRouter

from ariane.console.app import create_app
from ariane.console.security.accounts.authentication import check_first_account
from ariane.console.server.http_connections import DEADLINES_S, HEAD, HttpConnection, HttpConnections
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.errors import ConfigError, ServerUnavailable
from ariane.net.listening.connection_gate import ConnectionGate
from ariane.net.listening.server_tls import ServerTls, watched_tls

STOP_TIMEOUT_S = 5  # for requests that are in flight when the console stops


class ConsoleServer:
    """The HTTP server of a console.

    Args:
        extensions: Routers of other interfaces, such as that of Apache's dashboard.
    """

    def __init__(self, settings: ConsoleSettings, *, extensions: Iterable[APIRouter] = ()) -> None:
        self._settings = settings
        self._extensions = extensions
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        self._tls: ServerTls | None = None  # None: plain connections only
        self._open = contextlib.AsyncExitStack()  # certificates and unfinished handshakes, closed at the stop

    @property
    def addr(self) -> str:
        """Address of the first page, for the line that says that the console is ready."""
        return self.url

    @property
    def url(self) -> str:
        """Address of the first page."""
        assert self._socket is not None, "the console is not started"
        host, port = self._socket.getsockname()[:2]
        scheme = "https" if self._tls is not None and self._tls.mode == "enforcing" else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def reload(self) -> None:
        """Read the certificates again, at once. The accounts are read again with every request."""
        if self._tls is not None:
            await self._tls.reload()

    async def __aenter__(self) -> Self:
        """Listen, and wait until requests are served.

        Raises:
            ConfigError: the address cannot be used, or needs an account and there is none.
            ServerUnavailable: the application did not start.
        """
        check_first_account(self._settings)
        self._tls = await self._open.enter_async_context(watched_tls(self._settings.tls))
        try:
            await self._start()
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def _start(self) -> None:
        self._socket = _listen(self._settings.host, self._settings.port)
        app = create_app(open_services(self._settings, tls=self._tls), extensions=self._extensions)
        connections = HttpConnections()
        gate = None if self._tls is None else ConnectionGate(self._tls, first_byte_s=DEADLINES_S[HEAD])
        if gate is not None:
            self._open.push_async_callback(gate.close)

        def protocol(**uvicorn: Any) -> asyncio.Protocol:
            if gate is None:
                return HttpConnection(connections, **uvicorn)
            return gate.undecided(lambda: HttpConnection(connections, **uvicorn))

        config = uvicorn.Config(
            app, lifespan="on", log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=STOP_TIMEOUT_S, ws="none",
            http=cast(Any, protocol),
        )  # fmt: skip
        self._server = _EmbeddedServer(config, connections)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise ServerUnavailable("the console did not start; its log has the reason")
            await asyncio.sleep(0.01)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None and self._task is not None
        self._server.should_exit = True
        try:
            await self._task
        finally:
            await self._open.aclose()


class _EmbeddedServer(uvicorn.Server):
    """A server whose program handles the signals, and whose connections have deadlines."""

    def __init__(self, config: uvicorn.Config, connections: HttpConnections) -> None:
        super().__init__(config)
        self._connections = connections

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop. Called by uvicorn ten times a second."""
        if counter % 10 == 0:
            self._connections.close_late(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def] # uvicorn's generator type differs between versions
        """Leave the signal handlers of the program in place."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            fix = f"cannot listen on it: {error.strerror}; specify an address of this machine"
            raise ConfigError("bind", host, fix) from None
        raise ConfigError("port", port, f"cannot listen on {host}: {error.strerror}; specify another port") from None
    listener.setblocking(False)
    return listener
