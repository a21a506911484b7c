"""Sockets: malformed input is handled, and an error of one peer never affects another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ariane.errors import ConfigError, ConnectionLost, ProtocolError, ReplyError, RequestTimeout
from ariane.net.connection import Handler, Peer, Reply
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.server import RemotingServer
from ariane.protocol import command
from ariane.protocol.command import Command
from ariane.protocol.frame import FRAME_MAX

ECHO, REFUSE, BREAK, CRASH, NEVER, LATER, BACK = range(1, 8)


def handlers(server: Callable[[], RemotingServer]) -> dict[int, Handler]:
    def refuse(request: Command, peer: Peer) -> Reply:
        raise ReplyError(17, "no such topic")

    def broken(request: Command, peer: Peer) -> Reply:
        raise ProtocolError("not what was agreed")

    def crash(request: Command, peer: Peer) -> Reply:
        raise RuntimeError("a bug")

    async def never(request: Command, peer: Peer) -> Reply:
        await asyncio.sleep(3600)
        return Reply()

    async def later(request: Command, peer: Peer) -> Reply:
        await asyncio.sleep(0.02)
        return Reply(body=request.body)

    async def back(request: Command, peer: Peer) -> Reply:
        answer = await server().request(peer.id, ECHO, {"from": "server"}, timeout_ms=1000)
        return Reply(fields=answer.field_map())

    return {
        ECHO: lambda request, peer: Reply(fields=request.field_map(), body=request.body),
        REFUSE: refuse, BREAK: broken, CRASH: crash, NEVER: never, LATER: later, BACK: back,
    }  # fmt: skip


def with_server(work: Callable[[RemotingServer], Awaitable[None]]) -> None:
    async def run() -> None:
        box: list[RemotingServer] = []
        async with RemotingServer(handlers(lambda: box[0]), "127.0.0.1", 0) as server:
            box.append(server)
            await work(server)

    asyncio.run(asyncio.wait_for(run(), 30))


async def answers_after(server: RemotingServer, sent: bytes) -> bytes:
    """Return the bytes that a raw connection receives until it is closed or idle for a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    result = b""
    try:
        async with asyncio.timeout(0.3):
            while data := await reader.read(65536):
                result += data
    except TimeoutError:
        result += b"<open>"
    writer.close()
    return result


def frame(header: bytes, form: int = 0) -> bytes:
    return (4 + len(header)).to_bytes(4, "big") + (form << 24 | len(header)).to_bytes(4, "big") + header


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff\0\0\0\0",
        b"\0\0\0\3\0\0\0\0",
        (FRAME_MAX + 1).to_bytes(4, "big") + b"\0\0\0\0",
        b"\0\0\0\x0a\0\0\0\x7f" + b"x" * 20,
        b"GET / HTTP/1.1\r\n\r\n",
        frame(b""),
        frame(b"no json"),
        frame(b'{"code":1}x'),
        frame(b'{"opaque":4294967295}'),
        frame(b'{"code":1}', form=1),
        frame(b"{}", form=2),
    ],
)
def test_malformed_frames_close_the_connection_without_a_response(sent: bytes) -> None:
    async def work(server: RemotingServer) -> None:
        assert await answers_after(server, sent) == b""

    with_server(work)


def test_a_malformed_frame_closes_only_its_own_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: RemotingServer) -> None:
        async with ConnectionPool() as peers:
            addr = f"127.0.0.1:{server.port}"
            assert (await peers.request(addr, ECHO, None, b"1")).body == b"1"
            await answers_after(server, frame(b"no json"))
            assert (await peers.request(addr, ECHO, None, b"2")).body == b"2"

    with_server(work)
    assert any("Closing the connection of 127.0.0.1" in line.getMessage() for line in caplog.records)


@pytest.mark.parametrize(
    ("code", "answered", "remark"),
    [
        (REFUSE, 17, "no such topic"),
        (BREAK, 1, "not what was agreed"),
        (CRASH, 1, "RuntimeError: a bug"),
        (99, 3, " request type 99 not supported"),
    ],
)
def test_handler_errors_are_returned_with_code_and_remark(code: int, answered: int, remark: str) -> None:
    async def work(server: RemotingServer) -> None:
        async with ConnectionPool() as peers:
            answer = await peers.request(f"127.0.0.1:{server.port}", code)
            assert (answer.code, answer.remark) == (answered, remark)
            assert (await peers.request(f"127.0.0.1:{server.port}", ECHO, None, b"on")).body == b"on"

    with_server(work)


@pytest.mark.parametrize("code", [ECHO, REFUSE, CRASH, LATER, 99])
def test_one_way_requests_get_no_response(code: int) -> None:
    async def work(server: RemotingServer) -> None:
        assert await answers_after(server, b"".join(command.encode(code, opaque=1, flag=2))) == b"<open>"

    with_server(work)


def test_responses_without_a_pending_request_are_ignored() -> None:
    async def work(server: RemotingServer) -> None:
        assert await answers_after(server, b"".join(command.encode(0, opaque=77, flag=1))) == b"<open>"

    with_server(work)


def test_responses_use_the_serialization_of_the_request() -> None:
    async def work(server: RemotingServer) -> None:
        result = await answers_after(server, b"".join(command.encode(ECHO, opaque=1, flag=0, form=1)))
        assert result[4] == 1

    with_server(work)


def test_responses_may_arrive_out_of_order_on_one_connection() -> None:
    async def work(server: RemotingServer) -> None:
        async with ConnectionPool() as peers:
            connection = await peers.connect(f"127.0.0.1:{server.port}")
            late = asyncio.ensure_future(connection.request(LATER, None, b"late", timeout_ms=1000))
            early = await connection.request(ECHO, None, b"early", timeout_ms=1000)
            assert (early.body, late.done()) == (b"early", False)
            assert (await late).body == b"late"
            responses = await asyncio.gather(
                *(connection.request(ECHO, None, b"%d" % n, timeout_ms=1000) for n in range(500))
            )
            assert [answer.body for answer in responses] == [b"%d" % n for n in range(500)]

    with_server(work)


def test_a_server_sends_requests_to_its_client_on_the_same_connection() -> None:
    async def work(server: RemotingServer) -> None:
        async with ConnectionPool({ECHO: lambda request, peer: Reply(fields=request.field_map())}) as peers:
            answer = await peers.request(f"127.0.0.1:{server.port}", BACK)
            assert answer.field_map() == {"from": "server"}

    with_server(work)


def test_a_request_times_out_and_the_connection_stays_usable() -> None:
    async def work(server: RemotingServer) -> None:
        async with ConnectionPool() as peers:
            addr = f"127.0.0.1:{server.port}"
            with pytest.raises(RequestTimeout, match=addr):
                await peers.request(addr, NEVER, timeout_ms=30)
            assert (await peers.request(addr, ECHO, None, b"on")).body == b"on"

    with_server(work)


def test_a_lost_connection_fails_pending_requests_and_is_reopened() -> None:
    async def work(server: RemotingServer) -> None:
        async with ConnectionPool() as peers:
            addr = f"127.0.0.1:{server.port}"
            waiting = asyncio.ensure_future(peers.request(addr, NEVER, timeout_ms=10_000))
            await peers.request(addr, ECHO)
            server.close_peer(1)
            with pytest.raises(ConnectionLost):
                await waiting
            assert (await peers.request(addr, ECHO, None, b"on")).body == b"on"

    with_server(work)


def test_a_refused_connection_is_reported_with_its_address() -> None:
    async def run() -> None:
        async with RemotingServer({}, "127.0.0.1", 0) as server:
            addr = f"127.0.0.1:{server.port}"
            with pytest.raises(ConfigError, match="listenPort"):
                await RemotingServer({}, "127.0.0.1", server.port).bind()
        async with ConnectionPool() as peers:
            with pytest.raises(ConnectionLost, match=addr):
                await peers.request(addr, ECHO)

    asyncio.run(run())


def test_an_idle_connection_is_closed() -> None:
    async def run() -> None:
        async with RemotingServer({}, "127.0.0.1", 0, idle_s=0.05) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()

    asyncio.run(run())


def test_reading_pauses_for_a_peer_that_does_not_read_responses() -> None:
    async def work(server: RemotingServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        request = b"".join(command.encode(ECHO, opaque=1, flag=0, body=bytes(1024 * 1024)))
        for _ in range(200):
            writer.write(request)
        try:
            async with asyncio.timeout(0.5):
                await writer.drain()
        except TimeoutError:
            pass
        assert writer.transport.get_write_buffer_size() > 50 * 1024 * 1024  # the server took no more than it may hold
        writer.transport.abort()

    with_server(work)


def test_a_request_to_a_peer_that_does_not_read_times_out() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)

    async def run() -> None:
        server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024)
        addr = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with ConnectionPool() as peers:
            sends = [peers.request(addr, ECHO, None, bytes(8 * 1024 * 1024), timeout_ms=200) for _ in range(8)]
            ends = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 5)
            assert {type(end) for end in ends} == {RequestTimeout}
        server.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_server_stops_even_if_a_peer_does_not_read() -> None:
    async def run() -> None:
        async with RemotingServer(handlers(lambda: None), "127.0.0.1", 0) as server:  # type: ignore[arg-type, return-value]
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
            writer.write(b"".join(command.encode(ECHO, opaque=1, flag=0, body=bytes(12 * 1024 * 1024))) * 3)
            await asyncio.sleep(0.3)
        writer.transport.abort()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_busy_connection_does_not_delay_others() -> None:
    served: list[int] = []

    def note(request: Command, peer: Peer) -> Reply:
        served.append(peer.id)
        return Reply()

    async def run() -> None:
        async with (
            RemotingServer({ECHO: note}, "127.0.0.1", 0) as server,
            ConnectionPool() as item,
            ConnectionPool() as other,
        ):
            addr = f"127.0.0.1:{server.port}"
            await other.request(addr, ECHO)
            connection = await item.connect(addr)
            asks = [connection.request_nowait(ECHO, timeout_ms=5000) for _ in range(1000)]
            await asyncio.sleep(0)
            await other.request(addr, ECHO)
            await asyncio.gather(*asks)

    asyncio.run(asyncio.wait_for(run(), 20))
    assert len(served) == 1002
    assert served.index(served[0], 1) < 700


def test_one_way_requests_are_processed_after_their_connection_closes() -> None:
    served: list[bytes] = []

    def note(request: Command, peer: Peer) -> Reply:
        served.append(request.body)
        return Reply()

    async def run() -> None:
        async with RemotingServer({ECHO: note}, "127.0.0.1", 0) as server:
            async with ConnectionPool() as peers:
                for number in range(200):
                    await peers.one_way(f"127.0.0.1:{server.port}", ECHO, None, b"%d" % number)
            while len(served) < 200:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 20))
    assert served == [b"%d" % number for number in range(200)]


def test_requests_name_the_language_of_the_pool() -> None:
    languages: list[str | None] = []

    def note(request: Command, peer: Peer) -> Reply:
        languages.append(request.language)
        return Reply()

    async def run() -> None:
        async with RemotingServer({ECHO: note}, "127.0.0.1", 0) as server:
            for options in ({}, {"language": "CPP"}):
                async with ConnectionPool(**options) as peers:
                    await peers.request(f"127.0.0.1:{server.port}", ECHO)

    asyncio.run(asyncio.wait_for(run(), 30))
    assert languages == ["PYTHON", "CPP"]
