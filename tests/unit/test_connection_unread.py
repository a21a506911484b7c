"""Peers that do not read their responses, oversized frames, and log lines. No socket: the transport is a fake."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ariane.errors import ProtocolError
from ariane.net.connection import Connection, Handler, LateReply, Reply
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.peer_log import LINES_IN_ALL, LINES_PER_ADDRESS, WINDOW_S, PeerLog
from ariane.net.requests.served_requests import BYTES_PER_TICK
from ariane.protocol import command as commands
from ariane.protocol.command import Command
from ariane.protocol.frame import FRAME_MAX, FrameReader

pytestmark = pytest.mark.usefixtures("untimed_ticks")

MIB = 1024 * 1024


class SlowTransport:
    """A transport whose peer reads only when the test says so."""

    def __init__(self) -> None:
        self.protocol: Connection | None = None
        self.unread = 0
        self.total = 0
        self.last = b""
        self.is_reading = True
        self.is_over = False
        self.peername: tuple[str, int] | None = ("127.0.0.1", 1)
        self._high = 65536
        self._is_full = False

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return self.peername if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high
        self._maybe_pause()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def write(self, data: bytes) -> None:
        self.unread += len(data)
        self.total += len(data)
        self.last = data
        self._maybe_pause()

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        if not self.is_over and self.protocol is not None:
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
        self.is_over = True

    def read(self, size: int | None = None) -> None:
        """The peer reads `size` bytes, or all."""
        self.unread -= self.unread if size is None else size
        if self._is_full and self.unread <= self._high // 4 and self.protocol is not None:
            self._is_full = False
            self.protocol.resume_writing()

    def _maybe_pause(self) -> None:
        if self.unread > self._high and not self._is_full and self.protocol is not None:
            self._is_full = True
            self.protocol.pause_writing()


def connect(
    handlers: dict[int, Handler], limits: ServerLimits | None = None, number: int = 1
) -> tuple[Connection, SlowTransport]:
    transport = SlowTransport()
    connection = Connection(number, handlers, is_server=True, limits=limits)
    transport.protocol = connection
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


def request(code: int, count: int = 1, fields: dict[str, str] | None = None, form: int = 0) -> bytes:
    return b"".join(
        b"".join(commands.encode(code, opaque=number, flag=0, fields=fields, form=form)) for number in range(count)
    )


def answers(data: bytes) -> list[Command]:
    return [commands.decode(frame) for frame in FrameReader().feed(data)]


def in_loop(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(work(), 30)

    asyncio.run(run())


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def large(command: Command, peer: Any) -> Reply:
    return Reply(body=bytes(MIB // 2))


def test_requests_of_a_peer_that_does_not_read_wait_until_it_reads() -> None:
    async def work() -> None:
        connection, transport = connect({7: large})
        connection.data_received(request(7, 1000))
        await turns()
        most = 4 * MIB + BYTES_PER_TICK + MIB
        assert 4 * MIB < transport.unread < most
        assert not transport.is_reading
        while transport.total < 1000 * MIB // 2:
            transport.read()
            await turns(20)
            assert transport.unread < most
        transport.read()
        await turns(20)
        assert transport.is_reading

    in_loop(work)


def test_deferred_requests_are_answered_when_the_write_buffer_has_room() -> None:
    async def work() -> None:
        arrived = asyncio.Event()
        handled: list[int] = []

        async def held(command: Command, peer: Any) -> LateReply:
            await arrived.wait()

            def make() -> Reply:
                handled.append(command.opaque)
                return large(command, peer)

            return LateReply(make)

        connection, transport = connect({7: held})
        connection.data_received(request(7, 500))
        await turns()
        arrived.set()
        await turns()
        assert transport.unread < 4 * MIB + BYTES_PER_TICK + MIB
        assert len(handled) < 20
        while len(handled) < 500:
            transport.read()
            await turns(20)
        assert sorted(handled) == list(range(500))

    in_loop(work)


def test_the_body_of_a_deferred_request_is_released() -> None:
    """A long-polling pull needs no body and waits for up to two minutes."""

    async def work() -> None:
        arrived = asyncio.Event()

        async def until_arrived() -> Reply:
            await arrived.wait()
            return Reply()

        def held(command: Command, peer: Any) -> Awaitable[Reply]:
            return until_arrived()

        connection, transport = connect({7: held})
        tracemalloc.start()
        try:
            for _ in range(50):
                connection.data_received(b"".join(commands.encode(7, opaque=1, flag=0, body=bytes(MIB))))
                await turns(2)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 4 * MIB
        arrived.set()
        await turns()
        assert transport.total > 50 * 20

    in_loop(work)


def test_simultaneous_responses_are_written_when_the_write_buffer_has_room() -> None:
    async def work() -> None:
        arrived = asyncio.Event()
        body = bytes(MIB // 2)

        async def listed(command: Command, peer: Any) -> Reply:
            await arrived.wait()
            return Reply(body=body)

        connection, transport = connect({7: listed})
        connection.data_received(request(7, 500))
        await turns()
        arrived.set()
        await turns()
        assert transport.unread < 4 * MIB + BYTES_PER_TICK + MIB
        while transport.total < 500 * len(body):
            before = transport.total
            transport.read()
            await turns(20)
            assert transport.total > before

    in_loop(work)


def test_a_client_sends_all_simultaneous_responses() -> None:
    async def work() -> None:
        async def relayed(command: Command, peer: Any) -> Reply:
            await asyncio.sleep(0)
            return Reply(body=bytes(MIB))

        transport = SlowTransport()
        connection = Connection(1, {7: relayed}, is_server=False)
        transport.protocol = connection
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.data_received(request(7, 20))
        for _ in range(50):
            await turns(20)
            transport.read()
        assert transport.total > 20 * MIB

    in_loop(work)


def test_above_the_total_limit_a_connection_is_served_only_after_it_has_read_everything() -> None:
    async def work() -> None:
        limits = ServerLimits(unread_max=3 * MIB)
        connections = [connect({7: large}, limits, number) for number in range(3)]
        for connection, _ in connections[:2]:
            connection.data_received(request(7, 3))  # 1.5 MiB each: together the bound, and their frames
        await turns()
        connection, transport = connections[2]
        connection.data_received(request(7, 100))
        await turns()
        assert transport.total <= BYTES_PER_TICK + MIB
        total = transport.total
        transport.read(MIB // 2)
        await turns()
        assert transport.total == total  # not yet everything
        transport.read()
        await turns()
        assert transport.total > total

    in_loop(work)


def test_far_above_the_total_limit_the_connection_with_most_unread_bytes_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        limits = ServerLimits(unread_max=2 * MIB)
        connections = [connect({7: large}, limits, number) for number in range(20)]
        for number, (connection, _) in enumerate(connections):
            connection.data_received(request(7, 1 if number else 3))
            await turns(20)
        closed = [transport for _, transport in connections if transport.is_over]
        assert connections[0][1] in closed
        assert (
            sum(transport.unread for _, transport in connections if not transport.is_over) <= 4 * MIB + BYTES_PER_TICK
        )

    with caplog.at_level(logging.WARNING):
        in_loop(work)
    assert "unread responses" in caplog.text


def test_the_socket_of_a_closing_connection_is_not_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop may have closed it, and its number may be that of another connection."""

    async def work() -> None:
        options: list[tuple[object, ...]] = []
        connection, transport = connect({})
        opened = SimpleNamespace(setsockopt=lambda *option: options.append(option))
        monkeypatch.setattr(transport, "get_extra_info", lambda name: opened)
        connection.reset()
        connection.reset()
        assert len(options) == 1

    in_loop(work)


def test_a_peer_that_stops_reading_is_closed_but_a_slow_reader_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        limits = ServerLimits(unread_timeout_s=0.5)
        (slow, slow_transport), (dead, dead_transport) = connect({7: large}, limits), connect({7: large}, limits, 2)
        for connection in (slow, dead):
            connection.data_received(request(7, 100))
        while not dead_transport.is_over:
            slow_transport.read(1024)
            await asyncio.sleep(0.01)
        assert not slow_transport.is_over

    with caplog.at_level(logging.WARNING):
        in_loop(work)
    assert "read none for" in caplog.text


def test_connections_with_the_oldest_incomplete_frames_are_closed_above_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        limits = ServerLimits(unfinished_max=3 * MIB)
        (frame,) = commands.encode(7, opaque=1, flag=0, body=b"")
        complete = b"".join(commands.encode(7, opaque=1, flag=0, body=bytes(2 * MIB)))
        handlers: dict[int, Handler] = {7: lambda command, peer: Reply()}
        connections = [connect(handlers, limits, number) for number in range(5)]
        for connection, _ in connections:
            connection.data_received(frame + complete[: MIB + 1])
        assert [transport.is_over for _, transport in connections] == [True, True, True, False, False]
        connection, transport = connections[3]
        connection.data_received(complete[MIB + 1 :])
        assert len(answers(transport.last)) == 1
        connections[4][1].abort()
        await turns()
        assert limits.quotas.server.unfinished.total == 0

    with caplog.at_level(logging.WARNING):
        in_loop(work)
    assert "unfinished frames" in caplog.text


def test_incomplete_frames_of_a_lost_connection_are_not_counted() -> None:
    """Complete frames before it are served after the connection was lost."""

    async def work() -> None:
        limits = ServerLimits()
        connection, transport = connect({7: lambda command, peer: Reply()}, limits)
        connection.data_received(request(7, 100) + (MIB).to_bytes(4, "big") + bytes(64 * 1024))
        transport.abort()
        await turns()
        assert limits.quotas.server.unfinished.total == 0
        assert not limits.quotas.server.unfinished._sizes

    in_loop(work)


def test_a_response_larger_than_a_frame_is_an_error_with_size_and_limit() -> None:
    async def work() -> None:
        connection, transport = connect({206: lambda command, peer: Reply(body=bytes(FRAME_MAX))})
        for form in (0, 1):
            connection.data_received(request(206, form=form))
            (answer,) = answers(transport.last)
            assert answer.code == 1
            assert "GET_ALL_TOPIC_LIST_FROM_NAMESERVER" in (answer.remark or "")
            assert str(FRAME_MAX) in (answer.remark or "")
        assert not transport.is_over

    in_loop(work)


def test_a_request_larger_than_a_frame_is_rejected_and_not_pending() -> None:
    async def work() -> None:
        connection, transport = connect({})
        with pytest.raises(ProtocolError, match=f"SEND_MESSAGE.*{FRAME_MAX}"):
            connection.request_nowait(10, body=bytes(FRAME_MAX), timeout_ms=1000)
        assert len(connection._awaited) == 0
        assert transport.total == 0

    in_loop(work)


@pytest.mark.parametrize("form", [0, 1])
def test_a_request_with_an_oversized_header_is_answered_and_the_next_one_is_served(form: int) -> None:
    async def work() -> None:
        connection, transport = connect({7: lambda command, peer: Reply()}, ServerLimits(header_max=1000))
        connection.data_received(request(7, fields={"a": "x" * 1000}, form=form) + request(7))
        refused, served = answers(transport.last)
        assert (refused.code, served.code) == (1, 0)
        assert "at most 1000" in (refused.remark or "") and "maxRequestHeaderSize" in (refused.remark or "")

    in_loop(work)


@pytest.mark.parametrize(
    "header", [b"{" * 25 + b'"a":1}' + b":1}" * 24, b"[" * 5000, b'{"code":' + b"9" * 5000 + b"}", b"{code:1,\xff}"]
)
def test_an_invalid_header_closes_the_connection_with_one_log_line(
    header: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        connection, transport = connect({})
        frame = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
        connection.data_received(frame * 3)
        assert transport.is_over

    with caplog.at_level(logging.DEBUG):
        in_loop(work)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_an_unsupported_code_is_logged_once_per_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        limits = ServerLimits()
        for number in (1, 2):
            connection, transport = connect({}, limits, number)
            for _ in range(50):
                connection.data_received(request(400) + request(351))
            assert answers(transport.last)[0].code == 3

    with caplog.at_level(logging.WARNING):
        in_loop(work)
    assert [record.getMessage().count("not supported") for record in caplog.records] == [1] * 4


def test_failing_requests_log_a_bounded_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    def fails(command: Command, peer: Any) -> Reply:
        raise ZeroDivisionError

    async def work() -> None:
        connection, _ = connect({7: fails})
        connection.data_received(request(7, 300))
        await turns()

    with caplog.at_level(logging.WARNING):
        in_loop(work)
    assert len(caplog.records) == LINES_PER_ADDRESS
    assert "suppressed" in caplog.records[-1].getMessage()


def test_connections_that_were_reset_before_they_were_accepted_cause_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """284 lines in half an hour said "Closing the connection of 0.0.0.0:0"."""

    async def work() -> None:
        limits = ServerLimits()
        for number in range(300):
            connection = Connection(number, {}, is_server=True, limits=limits)
            transport = SlowTransport()
            transport.peername = None  # as the socket of uvloop answers after a reset
            connection.connection_made(transport)  # type: ignore[arg-type]
            connection.data_received(b"GET / HTTP/1.1\r\n\r\n")

    with caplog.at_level(logging.INFO):
        in_loop(work)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "an unknown address (reset before it was accepted)" in caplog.records[0].getMessage()
    assert "0.0.0.0" not in caplog.text


def test_suppressed_lines_are_counted_and_logged_addresses_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    lines = PeerLog(logging.getLogger("test"))
    with caplog.at_level(logging.WARNING):
        for _ in range(LINES_PER_ADDRESS + 5):
            lines.warning("10.0.0.1", 1.0, "line of %s", "x")
        lines.warning("10.0.0.2", 1.0, "another")
        lines.warning("10.0.0.1", 1.0 + WINDOW_S, "later")
    texts = [record.getMessage() for record in caplog.records]
    assert texts[LINES_PER_ADDRESS - 1] == "line of x (further lines about 10.0.0.1 are suppressed for 60 s)"
    assert texts[LINES_PER_ADDRESS:] == [
        "another",
        "5 log lines about 10.0.0.1 were suppressed in the last minutes",
        "later",
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for number in range(10_000):
            lines.warning(f"10.1.{number // 250}.{number % 250}", 500.0, "line")
    assert len(caplog.records) == LINES_IN_ALL
    assert "any peer" in caplog.records[-1].getMessage()


def test_nothing_is_answered_or_served_while_answers_are_held() -> None:
    """With failover: a master whose lease may be over writes nothing, and its clients' requests wait in the sockets."""

    async def work() -> None:
        limits, allowed, served = ServerLimits(), [True], []
        limits.may_answer = lambda: allowed[0]

        def handle(command: Command, peer: object) -> Reply:
            served.append(command.opaque)
            return Reply(remark=str(command.opaque))

        connection, transport = connect({1: handle}, limits)
        connection.data_received(request(1, 2))
        assert len(answers(transport.last)) == 2
        allowed[0], before = False, transport.total
        connection.data_received(request(1, 3))
        assert len(served) == 5, "it was read before the deadline was checked"
        assert transport.total == before
        assert not transport.is_reading
        connection.data_received(request(1, 4))
        connection.resume_writing()  # the peer reads, but the server may not answer
        await asyncio.sleep(0)
        connection.resume_writing(is_release=True)  # too early
        await asyncio.sleep(0)
        assert len(served) == 5
        assert transport.total == before
        allowed[0] = True
        connection.resume_writing(is_release=True)
        assert len(answers(transport.last)) == 3
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(served) == 9
        assert len(answers(transport.last)) == 4
        assert transport.is_reading
        allowed[0] = False
        connection.data_received(request(1, 1))
        after = transport.total
        connection.close()
        assert transport.total == after

    in_loop(work)
