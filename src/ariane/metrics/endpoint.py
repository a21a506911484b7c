"""The HTTP server of /metrics, in the event loop of the program that it belongs to.

    GET /metrics   the text of a source's families: Prometheus text, or OpenMetrics if the Accept header asks for it
    GET /          a page with a link

prometheus-client's own server runs in a thread. A broker's state belongs to its event loop: a thread would read tables while they
change, and would take the interpreter for 5 ms at a time from the loop that serves messages. So the server runs in the loop and
produces its text in slices of about a millisecond (`exposition`), written and compressed as they are produced: a scrape of any
size takes little memory, and other requests wait for one slice at most.

Only what Prometheus needs of HTTP/1.1 is served: GET and HEAD without a body, one request per connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from ariane.errors import ArianeError, ConfigError
from ariane.metrics import exposition, process_metrics
from ariane.metrics.families import Family

log = logging.getLogger("ariane.metrics")

PATH = "/metrics"
LOOPBACK = "127.0.0.1"
REQUEST_MAX = 16 * 1024  # bytes of a request's head
REQUEST_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 30.0  # for a slice: a client that reads nothing is disconnected
CONNECTIONS_MAX = 32
SCRAPE_TIMEOUT_HEADER = "x-prometheus-scrape-timeout-seconds"
_GZIP = 16 + zlib.MAX_WBITS
_PAGE = '<html><head><title>Ariane</title></head><body><a href="/metrics">Metrics</a></body></html>\n'


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


class MetricsEndpoint:
    """Serves the metrics of `source` and of the process.

        async with MetricsEndpoint(source, "127.0.0.1", 9464) as endpoint:
            ... endpoint.url

    Args:
        source: Reads the families.
        address: Address to listen on; empty for all.
        port: Port; 0 takes a free one.
    """

    def __init__(self, source: MetricsSource, address: str, port: int) -> None:
        self._source = source
        self._address = address
        self._wanted_port = port
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        """URL of the metrics for clients on this machine."""
        host = LOOPBACK if self._address in ("", "0.0.0.0", "::") else self._address  # noqa: S104 - compared with
        return f"http://{host}:{self.port}{PATH}"

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(
                self._accept, self._address or None, self._wanted_port, limit=REQUEST_MAX
            )
        except OSError as error:
            address = f"{self._address or '*'}:{self._wanted_port}"
            raise ConfigError(
                "metrics port", address, f"not available: {error.strerror}; choose another port"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("Metrics at %s", self.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                await _respond(writer, HTTPStatus.SERVICE_UNAVAILABLE, f"more than {CONNECTIONS_MAX} connections\n")
            else:
                await self._serve(reader, writer)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError) as error:
            log.debug("Scrape ended: %s", error)
        except asyncio.CancelledError:
            writer.transport.abort()
        except Exception:
            # The text may be incomplete: without its last chunk, the client discards it.
            writer.transport.abort()
            log.exception("Scrape failed")
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = parse_request(await reader.readuntil(b"\r\n\r\n"))
        except (ValueError, asyncio.LimitOverrunError) as error:
            await _respond(writer, HTTPStatus.BAD_REQUEST, f"{error}\n")
            return
        path = request.path.partition("?")[0]
        if request.method not in ("GET", "HEAD"):
            await _respond(writer, HTTPStatus.METHOD_NOT_ALLOWED, "expected GET or HEAD\n")
        elif path == "/":
            await _respond(writer, HTTPStatus.OK, _PAGE, content_type="text/html; charset=utf-8")
        elif path != PATH:
            await _respond(writer, HTTPStatus.NOT_FOUND, f"not found; metrics are at {PATH}\n")
        else:
            await self._scrape(request, writer)

    async def _scrape(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        is_openmetrics, content_type = exposition.negotiate(request.headers.get("accept", ""))
        is_compressed = "gzip" in request.headers.get("accept-encoding", "")
        try:
            families = await self._source.families(request.scrape_timeout_s)
        except (ArianeError, OSError) as error:
            log.warning("Scrape failed: %s", error)
            await _respond(writer, HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
            return
        head = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", "Connection: close"]
        head.append("Transfer-Encoding: chunked")
        if is_compressed:
            head.append("Content-Encoding: gzip")
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
        if request.method == "GET":
            await _write_chunks(writer, _text(families, is_openmetrics), is_compressed)
        await writer.drain()


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


async def _respond(
    writer: asyncio.StreamWriter,
    status: HTTPStatus,
    text: str,
    *,
    content_type: str = "text/plain; charset=utf-8",
) -> None:
    body = text.encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    await writer.drain()


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
def serve_in_thread(source: MetricsSource, address: str, port: int) -> Iterator[str]:
    """Serve metrics in a thread with its own event loop, for programs without one. Yield the URL.

    Raises:
        ConfigError: the port is not available.
    """
    loop = asyncio.new_event_loop()
    started: Future[str] = Future()
    stop = asyncio.Event()

    async def serve() -> None:
        try:
            async with MetricsEndpoint(source, address, port) as endpoint:
                started.set_result(endpoint.url)
                await stop.wait()
        except ConfigError as error:
            started.set_exception(error)

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(serve())

    thread = threading.Thread(target=run, name="ariane-metrics", daemon=True)
    thread.start()
    try:
        yield started.result()
    finally:
        with contextlib.suppress(RuntimeError):  # the port was not available, and the thread has closed its loop
            loop.call_soon_threadsafe(stop.set)
        thread.join()
