"""A proxy before the coordination service that echoes requests in its errors: neither log lines nor exceptions repeat a secret."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from ariane.errors import CoordinationUnavailable
from ariane.failover.coordination import RecordSnapshot
from ariane.failover.etcd import EtcdCoordination, EtcdCredentials
from ariane.failover.kubernetes import KubernetesAccess, KubernetesCoordination
from ariane.failover.leader_record import InSyncMember, LeaderRecord
from planted_secrets import leaks, planted

PASSWORD, TOKEN = planted("password"), "PLANTED-token.secret"
RECORD = LeaderRecord(holder="a", epoch=1, in_sync=(InSyncMember("a", "1"),), set_version=0, token="a.1.0")
Echo = Callable[[str], tuple[int, object]]


def as_text(request: str) -> tuple[int, object]:
    return 502, f"Bad gateway: {request}"


def as_message(request: str) -> tuple[int, object]:
    return 503, {"code": 14, "message": request}


def as_refusal(request: str) -> tuple[int, object]:
    return 403, {"code": 7, "message": request}


def as_code(request: str) -> tuple[int, object]:
    return 500, {"code": request, "message": request}


async def serve(echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, logs_in: bool) -> None:
    """Echo each request. A log-in is served if `logs_in`."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = int(head.partition("Content-Length: ")[2].partition("\r\n")[0])
            body = (await reader.readexactly(size)).decode()
            status, result = (200, {"token": TOKEN}) if logs_in and "/auth/" in head else echo(head + body)
            data = result.encode() if isinstance(result, str) else msgspec.json.encode(result)
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


@pytest.mark.parametrize("service", ["etcd, log-in", "etcd", "Kubernetes"])
@pytest.mark.parametrize("echo", [as_text, as_message, as_refusal, as_code])
def test_echoed_requests_are_not_repeated(
    echo: Echo, service: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ariane")
    (tmp_path / "token").write_text(TOKEN)

    async def work() -> None:
        serving = functools.partial(serve, echo, logs_in=service == "etcd")
        async with await asyncio.start_server(serving, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            client: EtcdCoordination | KubernetesCoordination
            if service == "Kubernetes":
                access = KubernetesAccess(str(tmp_path / "token"))
                clock = SimpleNamespace(boottime=lambda: 0.0)
                client = KubernetesCoordination([f"kubernetes+{url}/n"], "n", ttl_s=5, clock=clock, access=access)
            else:
                client = EtcdCoordination([url], "/x", ttl_s=5, credentials=EtcdCredentials("ann", PASSWORD))
            with pytest.raises(CoordinationUnavailable) as raised:
                await client.read()
            await client.swap(RecordSnapshot(RECORD, "1", "1:1"), RECORD)
            await client.close()
        outputs = {"exception": str(raised.value).encode(), "log": caplog.text.encode()}
        assert leaks(outputs, [PASSWORD, TOKEN]) == []
        assert str(echo("")[0]) in str(raised.value)  # the status is reported
        assert caplog.records

    asyncio.run(asyncio.wait_for(work(), 60))
