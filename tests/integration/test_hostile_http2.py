"""Hostile HTTP/2 at both transports: each attack is bounded, and a well-behaved client is served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the extra grpc is not installed")

import grpc.aio

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.model.topic import TopicConfig
from ariane.proxy import api
from grpc_transports import NEEDS_NATIVE, TRANSPORTS
from http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SERVICE,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    header_fragments,
    headers,
    literal,
    prefix,
    reset_calls,
    unfinished_calls,
    unread_calls,
)

GRPC_STATUS = bytes.fromhex("9acac8b21234da8f")  # compressed, as are the numbers
NUMBERS = {8: b"\x81\x7b", 12: b"\x82\x08\xbf", 13: b"\x82\x0b\x3f"}


class Attacker:
    """A connection that has begun HTTP/2."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._writer.write(PREFACE + frame(SETTINGS))

    async def send(self, *frames: bytes) -> None:
        self._writer.write(b"".join(frames))
        await self._writer.drain()

    async def read_frame(self) -> tuple[int, int, bytes]:
        """Return kind, stream and data of the next frame."""
        head = await self._reader.readexactly(9)
        size, kind, _, stream = struct.unpack(">I", b"\0" + head[:3])[0], head[3], head[4], head[5:9]
        return kind, int.from_bytes(stream, "big"), await self._reader.readexactly(size)

    async def read_until_closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65536):
                pass

    async def trailers(self) -> bytes:
        """Return the fields that end the first call."""
        while True:
            kind, _, data = await self.read_frame()
            if (kind == HEADERS and GRPC_STATUS in data) or kind == RST_STREAM:
                return data

    def close(self) -> None:
        self._writer.close()


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def attacked(path: Path, transport: str, attack: Callable[[Attacker], Awaitable[None]]) -> None:
    """Run an attack, and calls of another client during and after it."""

    async def run() -> None:
        settings: dict[str, Any] = {"listen_port": 0, "grpc_server_enable": True, "grpc_server_port": 0}
        settings |= {"grpc_transport": transport}
        async with Broker(BrokerConfig(**settings, namesrv_addr="", store_path_root_dir=str(path))) as broker:
            broker.services.state.topics.put(TopicConfig(topic_name="T"))
            assert broker.proxy is not None
            port = broker.proxy.port
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.unary_unary(f"/{api.SERVICE}/QueryRoute")
                request = api.QueryRouteRequest(topic={"name": "T"}).SerializeToString()

                async def check() -> None:
                    data = await call(request, metadata=[("x-mq-client-id", "good")], timeout=60)
                    assert api.QueryRouteResponse.FromString(data).status.code == 20000

                await check()
                attacker = Attacker(*await asyncio.open_connection("127.0.0.1", port))
                attacking = asyncio.ensure_future(attack(attacker))
                while not attacking.done():
                    await check()
                attacker.close()
                await attacking
                await check()

    asyncio.run(run())


# --- both transports ---


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS),
        frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
        frame(DATA, 0, 1),
    ],
    ids=["ping", "settings", "window", "empty data"],
)
def test_floods_of_small_frames_hold_back_no_other(tmp_path: Path, transport: str, flood: bytes) -> None:
    async def attack(attacker: Attacker) -> None:
        await attacker.send(frame(HEADERS, END_HEADERS, 1, headers()))
        with contextlib.suppress(ConnectionError, TimeoutError):
            for _ in range(200):
                async with asyncio.timeout(1):  # the server stops to read what is not read
                    await attacker.send(flood * 500)

    attacked(tmp_path, transport, attack)


def test_a_client_that_does_not_read_holds_back_no_other(tmp_path: Path, transport: str) -> None:
    async def attack(attacker: Attacker) -> None:
        with contextlib.suppress(ConnectionError):
            await attacker.send(unread_calls(4_500))

    attacked(tmp_path, transport, attack)


def test_waiting_calls_of_one_client_cancel_no_other(tmp_path: Path, transport: str) -> None:
    async def attack(attacker: Attacker) -> None:
        started = headers(f"{SERVICE}Telemetry")
        await attacker.send(*(frame(HEADERS, END_HEADERS, stream, started) for stream in range(1, 8_000, 2)))

    attacked(tmp_path, transport, attack)


def test_an_unfinished_request_holds_back_no_other(tmp_path: Path, transport: str) -> None:
    attacked(tmp_path, transport, lambda attacker: attacker.send(unfinished_calls(1_000)))


@pytest.mark.parametrize("flood", [reset_calls(1, 2_000), header_fragments(1_000)], ids=["resets", "fragments"])
def test_floods_of_headers_end_the_connection(tmp_path: Path, transport: str, flood: bytes) -> None:
    async def attack(attacker: Attacker) -> None:
        with contextlib.suppress(ConnectionError):
            await attacker.send(flood)
        await attacker.read_until_closed()

    attacked(tmp_path, transport, attack)


# --- limits of the native transport; grpcio has its own ---


@NEEDS_NATIVE
def test_large_headers_are_refused(tmp_path: Path) -> None:
    async def attack(attacker: Attacker) -> None:
        large = headers() + b"".join(literal(f"x-{n}", "v" * 200) for n in range(70))
        await attacker.send(frame(HEADERS, END_HEADERS, 1, large))
        while (await attacker.read_frame())[:2] != (HEADERS, 1):  # status 431
            pass

    attacked(tmp_path, "native", attack)


@NEEDS_NATIVE
@pytest.mark.parametrize(
    ("request_headers", "body", "status"),
    [
        (headers(), prefix(17 << 20), 8),
        (headers(), prefix(4, is_compressed=True) + b"abcd", 12),
        (headers(), b"", 13),
        (headers(), prefix(0) + prefix(0), 13),
        (headers(grpc_encoding="gzip"), prefix(0), 12),
        (headers(grpc_timeout="1x"), prefix(0), 13),
        (headers(path=f"{SERVICE}PullMessage"), prefix(0), 12),
        (headers(path="/other"), prefix(0), 12),
    ],
)
def test_calls_that_are_not_served_have_a_status(
    tmp_path: Path, request_headers: bytes, body: bytes, status: int
) -> None:
    async def attack(attacker: Attacker) -> None:
        await attacker.send(frame(HEADERS, END_HEADERS, 1, request_headers), frame(DATA, END_STREAM, 1, body))
        trailers = await attacker.trailers()
        assert GRPC_STATUS + NUMBERS[status] in trailers

    attacked(tmp_path, "native", attack)
