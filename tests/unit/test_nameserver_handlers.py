"""Cost of many large simultaneous requests to a name server. No socket."""

from __future__ import annotations

import asyncio
import inspect
import threading
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from ariane.access.public_ports import Gap, PortProtection
from ariane.cluster.servers.name_server_admin import parse_texts
from ariane.errors import ReplyError
from ariane.nameserver import handlers as handlers_module
from ariane.nameserver import registration
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.handlers import NameServerHandlers
from ariane.nameserver.kv_store import KvStore
from ariane.nameserver.route_table import RouteTable
from ariane.net.connection import Reply
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.listening.server_tls import ServerTls, ServerTlsOptions
from ariane.net.replies import make_peer
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.routing import RegisterBroker
from tls_files import TestAuthority

PEER = make_peer(1, ("127.0.0.1", 1))
I32 = Struct(">i")


def name_server(path: Path, protection: PortProtection | None = None) -> NameServerHandlers:
    kv, ports = KvStore(path / "kv.json"), protection or PortProtection(None, ())
    return NameServerHandlers(RouteTable(), kv, NameServerConfig(), ServerLimits(), ports, lambda: 0.0)


def compressed(names: list[str], name: str = "a") -> Command:
    """A registration of these topics, compressed."""

    def piece(data: bytes) -> bytes:
        return I32.pack(len(data)) + data

    topics = b"".join(piece(f"{topic} 1 1 6 SINGLE_TAG".encode()) for topic in names)
    body = piece(b'{"counter":1,"timestamp":1}') + I32.pack(len(names)) + topics + piece(b"[]")
    header = encode_header(RegisterBroker(name, "127.0.0.1:1", "C", "", 0, compressed=True))
    return Command(RequestCode.REGISTER_BROKER, fields=header, body=zlib.compress(body))


async def served(handled: Any) -> Reply:
    reply = await handled if inspect.isawaitable(handled) else handled
    assert isinstance(reply, Reply)
    return reply


def in_loop(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(work(), 30)

    asyncio.run(run())


def test_settings_are_read_with_the_state_of_the_port(tmp_path: Path) -> None:
    tls = ServerTls(
        ServerTlsOptions(mode="enforcing", is_test=False, files=TestAuthority(tmp_path).files("ns", days=20))
    )
    tls.load()
    protection = PortProtection(tls, [Gap("access", "anyone can register brokers", "aclEnable=true")])
    reply = name_server(tmp_path, protection).get_config(Command(RequestCode.GET_NAMESRV_CONFIG), PEER)
    settings, reported = parse_texts(bytes(reply.body))
    # A started day does not count.
    assert reported == {"certificateRemainingDays": "19", "openToOtherMachines": "anyone can register brokers"}
    assert "listenPort" in settings and not settings.keys() & reported.keys()


def test_lists_requested_at_the_same_time_are_encoded_once(tmp_path: Path) -> None:
    """Otherwise a thousand requests of one connection take a thousand times the memory of the list."""

    async def work() -> None:
        server = name_server(tmp_path)
        await served(server.register(compressed([f"T{number}" for number in range(5000)]), PEER))
        table = server.table()
        for code, header in (
            (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
            (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}),
        ):
            replies = await asyncio.gather(
                *(served(table[code](Command(code, fields=header), PEER)) for _ in range(1000))
            )
            assert len({id(reply.body) for reply in replies}) == 1
            assert isinstance(replies[0].body, bytes) and replies[0].body.count(b'"T') == 5000

    in_loop(work)


def test_a_list_contains_all_earlier_registrations(tmp_path: Path) -> None:
    async def work() -> None:
        server = name_server(tmp_path)
        await served(server.register(compressed([f"T{number}" for number in range(10_000)]), PEER))
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        first = asyncio.ensure_future(served(server.table()[code](Command(code), PEER)))
        for _ in range(3):
            await asyncio.sleep(0)  # it is being encoded
        await served(server.register(compressed(["New"], "b"), PEER))
        second = await served(server.table()[code](Command(code), PEER))
        await first
        assert isinstance(second.body, bytes) and b'"New"' in second.body

    in_loop(work)


def test_large_registrations_are_decoded_sequentially_outside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few KiB can contain a hundred thousand topics."""
    running: list[int] = []
    threads = set()
    decode = registration.decode

    def counted(*args: Any) -> Any:
        threads.add(threading.current_thread())
        running.append(1)
        try:
            assert len(running) == 1
            return decode(*args)
        finally:
            running.pop()

    monkeypatch.setattr(registration, "decode", counted)

    async def work() -> None:
        server = name_server(tmp_path)
        command = compressed(["T"] * 20_000)
        assert len(command.body) < 8 * 1024
        tasks = [asyncio.ensure_future(served(server.register(command, PEER))) for _ in range(8)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # its connection closed: its thread still runs
        await asyncio.gather(*tasks[1:])
        assert threading.current_thread() not in threads

    in_loop(work)


def test_pending_registrations_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        server = name_server(tmp_path)
        command = compressed([f"T{number}" for number in range(5000)])
        monkeypatch.setattr(handlers_module, "LARGE_BYTES_MAX", 2 * len(command.body))
        results = await asyncio.gather(
            *(served(server.register(command, PEER)) for _ in range(5)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, ReplyError)]
        assert [item.code for item in refused] == [ResponseCode.SYSTEM_BUSY] * 3
        await served(server.register(command, PEER))

    in_loop(work)


def test_a_registration_response_contains_the_order_configuration_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once per slice of its topics."""
    written = []
    encode = handlers_module._kv_body
    monkeypatch.setattr(handlers_module, "_kv_body", lambda values: written.append(1) or encode(values))

    async def work() -> None:
        server = name_server(tmp_path)
        server._kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
        reply = await served(server.register(compressed([f"T{number}" for number in range(10_000)]), PEER))
        assert reply.body == fastjson.write({"table": {"T": "broker-a:4"}})

    in_loop(work)
    assert written == [1]
