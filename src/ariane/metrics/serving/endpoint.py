"""The HTTP server of /metrics and of health checks, in the event loop of the program that it belongs to.

    GET /metrics   the text of a source's families: Prometheus text, or OpenMetrics if the Accept header asks for it
    GET /healthz   200: the event loop runs. A program that does not respond for a while should be restarted
    GET /readyz    200, or 503 with what keeps the program from its work, a line each
    GET /          a page with links

prometheus-client's own server runs in a thread. A broker's state belongs to its event loop: a thread would read tables while they
change, and would take the interpreter for 5 ms at a time from the loop that serves messages. So the server runs in the loop and
produces its text in slices of about a millisecond (`exposition`), written and compressed as they are produced: a scrape of any
size takes little memory, and other requests wait for one slice at most.

With TLS, the mode of the server decides whether plain connections are accepted, too, as at its other ports.

Only what Prometheus needs of HTTP/1.1 is served: GET and HEAD without a body, one request per connection. A new connection
displaces one whose request is incomplete, so that half-sent requests do not keep Prometheus out.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from ariane.errors import ArianeError, ConfigError
from ariane.metrics.families import Family
from ariane.metrics.serving import exposition, process_metrics
from ariane.net.limits.connection_limits import ConnectionLimits, select_displaced
from ariane.net.listening.connection_gate import ConnectionGate
from ariane.net.listening.server_tls import ServerTls
from ariane.net.streams import close_writer

log = logging.getLogger("ariane.metrics")

T = TypeVar("T")

PATH, HEALTH_PATH, READY_PATH = "/metrics", "/healthz", "/readyz"
LOOPBACK = "127.0.0.1"
REQUEST_MAX = 16 * 1024  # bytes of a request's head
REQUEST_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 30.0  # for a slice, and for the rest at the end: a client that reads nothing is disconnected
LIMITS = ConnectionLimits(total=32, per_address=8)
SCRAPE_TIMEOUT_HEADER = "x-prometheus-scrape-timeout-seconds"
_GZIP = 16 + zlib.MAX_WBITS
_LINKS = " ".join(f'<a href="{path}">{path[1:]}</a>' for path in (PATH, HEALTH_PATH, READY_PATH))
_PAGE = f"<html><head><title>Ariane</title></head><body>{_LINKS}</body></html>\n"


class MetricsSource(Protocol):
    """Reads families from a program."""

    async def families(self, timeout_s: float | None) -> Iterable[Family]:
        """Return the families of a scrape that may take `timeout_s`; None if the client does not say. Samples may be lazy."""
        ...


class HttpRequest(NamedTuple):
    """The head of a request."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By name in lower case."""

    @property
    def scrape_timeout_s(self) -> float | None:
        """Time that Prometheus waits for the response; None if it does not say."""
        try:
            return float(self.headers[SCRAPE_TIMEOUT_HEADER])
        except (KeyError, ValueError):
            return None


class ScrapeConnection:
    """A connection. `is_identified`: its request is complete."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.ip = str((writer.get_extra_info("peername") or ("?",))[0])
        self.is_identified = False

    async def close(self) -> None:
        """Send what is buffered, then close; what the client does not read within WRITE_TIMEOUT_S is discarded."""
        await close_writer(self.writer, WRITE_TIMEOUT_S)


class MetricsEndpoint:
    """Serves the metrics of `source` and of the process.

        async with MetricsEndpoint(source, "127.0.0.1", 9464) as endpoint:
            ... endpoint.url

    Args:
        source: Reads the families.
        address: Address to listen on; empty for all.
        port: Port; 0 takes a free one.
        tls: Certificates and mode; None: all connections are plain.
        faults: Returns what keeps the program from its work now, a text each.
    """

    def __init__(
        self,
        source: MetricsSource,
        address: str,
        port: int,
        *,
        tls: ServerTls | None = None,
        faults: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._source = source  # read by each scrape
        self._faults = faults  # called by each check of readiness
        self._address = address  # empty: all of the machine
        self._wanted_port = port  # 0: any
        self._gate = None if tls is None else ConnectionGate(tls, first_byte_s=REQUEST_TIMEOUT_S)
        self._tasks: set[asyncio.Task[None]] = set()  # one for each connection until it is closed
        self._connections: list[ScrapeConnection] = []  # oldest first
        self.port = 0  # that it listens on

    @property
    def url(self) -> str:
        """URL of the metrics for clients on this machine."""
        host = LOOPBACK if self._address in ("", "0.0.0.0", "::") else self._address  # noqa: S104 - compared with
        is_encrypted = self._gate is not None and self._gate.mode == "enforcing"
        return f"{'https' if is_encrypted else 'http'}://{host}:{self.port}{PATH}"

    async def __aenter__(self) -> Self:
        gate = self._gate
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._protocol if gate is None else lambda: gate.undecided(self._protocol),
                self._address or None,
                self._wanted_port,
            )
        except OSError as error:
            address = f"{self._address or '*'}:{self._wanted_port}"
            # asyncio of Python 3.13 has neither number nor text in the error of an address that is not of this machine.
            is_foreign = isinstance(error, socket.gaierror) or error.errno in (errno.EADDRNOTAVAIL, None)
            fix = "specify an address of this machine" if is_foreign else "choose another port"
            raise ConfigError("metrics port", address, f"not available: {error.strerror or error}; {fix}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("Metrics at %s", self.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        if self._gate is not None:
            await self._gate.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _protocol(self) -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(REQUEST_MAX), self._accept)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = ScrapeConnection(reader, writer)
        self._connections.append(connection)
        displaced = select_displaced(connection, self._connections, LIMITS)
        try:
            if displaced is connection:
                text = f"more than {LIMITS.per_address} requests of an address, or {LIMITS.total} in all, are in progress\n"
                _respond(writer, HTTPStatus.SERVICE_UNAVAILABLE, text)
            else:
                if displaced is not None:
                    self._connections.remove(displaced)
                    displaced.writer.transport.abort()
                await self._serve(connection)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError) as error:
            log.debug("Scrape ended: %s", error)
        except asyncio.CancelledError:
            writer.transport.abort()
        except Exception:
            # The text may be incomplete: without its last chunk, the client discards it.
            writer.transport.abort()
            log.exception("Scrape failed")
        finally:
            # It counts until it is closed, but a new connection displaces it first.
            connection.is_identified = False
            try:
                await connection.close()
            finally:
                self._tasks.discard(task)
                if connection in self._connections:
                    self._connections.remove(connection)

    async def _serve(self, connection: ScrapeConnection) -> None:
        writer = connection.writer
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = parse_request(await connection.reader.readuntil(b"\r\n\r\n"))
        except (ValueError, asyncio.LimitOverrunError) as error:
            _respond(writer, HTTPStatus.BAD_REQUEST, f"{error}\n")
            return
        connection.is_identified = True
        path = request.path.partition("?")[0]
        if request.method not in ("GET", "HEAD"):
            _respond(writer, HTTPStatus.METHOD_NOT_ALLOWED, "expected GET or HEAD\n")
        elif path == "/":
            _respond(writer, HTTPStatus.OK, _PAGE, content_type="text/html; charset=utf-8")
        elif path == HEALTH_PATH:
            _respond(writer, HTTPStatus.OK, "ok\n")
        elif path == READY_PATH:
            faults = self._faults()
            status = HTTPStatus.SERVICE_UNAVAILABLE if faults else HTTPStatus.OK
            _respond(writer, status, "".join(f"{fault}\n" for fault in faults or ("ok",)))
        elif path == PATH:
            await self._scrape(request, writer)
        else:
            _respond(writer, HTTPStatus.NOT_FOUND, f"not found; metrics are at {PATH}\n")

    async def _scrape(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        is_openmetrics, content_type = exposition.negotiate(request.headers.get("accept", ""))
        is_compressed = "gzip" in request.headers.get("accept-encoding", "")
        try:
            families = await self._source.families(request.scrape_timeout_s)
        except (ArianeError, OSError) as error:
            log.warning("Scrape failed: %s", error)
            _respond(writer, HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
            return
        head = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", "Connection: close"]
        head.append("Transfer-Encoding: chunked")
        if is_compressed:
            head.append("Content-Encoding: gzip")
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
        if request.method == "GET":
            await _write_chunks(writer, _text(families, is_openmetrics), is_compressed)


async def _text(families: Iterable[Family], is_openmetrics: bool) -> AsyncIterator[bytes]:
    """Yield the text of families and of the process, with a pause after each slice."""
    for part in exposition.encode(families, is_openmetrics=is_openmetrics):
        yield part.encode()
        await asyncio.sleep(0)
    yield process_metrics.text(is_openmetrics=is_openmetrics).encode()
    if is_openmetrics:
        yield exposition.END.encode()


async def _write_chunks(writer: asyncio.StreamWriter, parts: AsyncIterator[bytes], is_compressed: bool) -> None:
    packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP) if is_compressed else None
    async for part in parts:
        await _write_chunk(writer, packer.compress(part) if packer else part)
    if packer:
        await _write_chunk(writer, packer.flush())
    writer.write(b"0\r\n\r\n")


async def _write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await writer.drain()


def _respond(
    writer: asyncio.StreamWriter,
    status: HTTPStatus,
    text: str,
    *,
    content_type: str = "text/plain; charset=utf-8",
) -> None:
    body = text.encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)


def parse_request(head: bytes) -> HttpRequest:
    """Return the request of a head.

    Raises:
        ValueError: it is not HTTP/1.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise ValueError(f"Invalid request line {first[:80]!r}: expected GET {PATH} HTTP/1.1")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return HttpRequest(parts[0], parts[1], headers)


@contextlib.contextmanager
def serve_in_thread(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Keep a server open in a thread with its own event loop, for programs without one. Yield what it yields.

    Raises:
        ConfigError: it cannot start.
    """
    loop = asyncio.new_event_loop()
    started: Future[T] = Future()
    stop = asyncio.Event()

    async def serve() -> None:
        try:
            async with server as running:
                started.set_result(running)
                await stop.wait()
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(serve())

    thread = threading.Thread(target=run, name="ariane-metrics", daemon=True)
    thread.start()
    try:
        yield started.result()
    finally:
        with contextlib.suppress(RuntimeError):  # the server did not start, and the thread has closed its loop
            loop.call_soon_threadsafe(stop.set)
        thread.join()
