"""Work of one event loop iteration on a peer's requests is bounded. No socket: the transport only collects."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from ariane.net.connection import BATCH_BYTES_MAX, FRAMES_PER_TICK, SLOW_BATCHES, Connection, LateReply, Reply
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.limits.paced_calls import CALLS_PER_TICK
from ariane.net.limits.tick_shares import CONTENDED_S, SHARE_S, TICK_S
from ariane.protocol import command as commands


class Collected:
    """What a connection needs of a transport."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written.append(data)


@pytest.mark.parametrize(
    ("body", "in_first_turn"),
    [
        ([b"x"], FRAMES_PER_TICK),
        ([b"x"] * 32, 2),
        ([b"x"] * 100, 1),
        (bytes(BATCH_BYTES_MAX // 2), 2),
        (bytes(BATCH_BYTES_MAX), 1),
    ],
    ids=["small", "32 pieces", "100 pieces", "half of the bytes", "all bytes"],
)
def test_large_responses_reduce_the_requests_per_tick_and_all_are_served(
    body: bytes | list[bytes], in_first_turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine takes longer for a request than it costs.
    monkeypatch.setattr("ariane.net.limits.tick_shares.TICK_S", math.inf)

    async def run() -> None:
        served = []

        def handler(command: Any, peer: Any) -> Reply:
            served.append(command.opaque)
            return Reply(body=body)

        connection = Connection(1, {7: handler}, is_server=True)
        transport = Collected()
        connection.connection_made(transport)  # type: ignore[arg-type]
        numbers = list(range(3 * FRAMES_PER_TICK))
        connection.data_received(b"".join(b"".join(commands.encode(7, opaque=item, flag=0)) for item in numbers))
        assert len(served) == in_first_turn
        assert len(transport.written) == 1
        for _ in range(len(numbers) + 2):
            await asyncio.sleep(0)
        assert served == numbers

    asyncio.run(run())


def test_requests_that_take_long_reduce_the_requests_per_tick_and_all_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        loop, served, now = asyncio.get_running_loop(), [], [0.0]
        monkeypatch.setattr(loop, "time", lambda: now[0])

        def handler(command: Any, peer: Any) -> Reply:
            served.append(command.opaque)
            now[0] += 0.4 * TICK_S
            return Reply()

        connection = Connection(1, {7: handler}, is_server=True)
        connection.connection_made(Collected())  # type: ignore[arg-type]
        numbers = list(range(FRAMES_PER_TICK))
        connection.data_received(b"".join(b"".join(commands.encode(7, opaque=item, flag=0)) for item in numbers))
        assert len(served) == 3
        await asyncio.sleep(0)
        assert len(served) == 6, "other connections had their turn in between"
        for _ in numbers:
            await asyncio.sleep(0)
        assert served == numbers

    asyncio.run(run())


class TimedConnections:
    """Connections of one server, whose requests take the time that they name. Virtual time."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.served: list[int] = []  # numbers of the connections
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        limits = ServerLimits(queue_time_limits_s={7: 0.2})
        self._connections = [
            Connection(number, {7: self._serve}, is_server=True, limits=limits) for number in range(count)
        ]
        for connection in self._connections:
            connection.connection_made(Collected())  # type: ignore[arg-type]

    def _serve(self, command: Any, peer: Any) -> Reply:
        self.served.append(peer.id)
        self.now += float(command.field_map()["seconds"])
        return Reply()

    def receive(self, number: int, seconds: float, count: int = 1) -> None:
        """Receive requests of a connection."""
        request = b"".join(commands.encode(7, opaque=1, flag=0, fields={"seconds": str(seconds)}))
        self._connections[number].data_received(request * count)

    async def tick(self) -> list[int]:
        """Return which connections are served in the next tick."""
        self.served.clear()
        await asyncio.sleep(0)
        return list(self.served)


def test_connections_whose_requests_take_long_get_a_tick_each(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        server = TimedConnections(4, monkeypatch)
        for number in range(3):
            server.receive(number, SHARE_S, 20)
        assert server.served == [0], "how long they take is not known before"
        while max(map(server.served.count, range(3))) < SLOW_BATCHES or len(server.served) < 3 * SLOW_BATCHES:
            await asyncio.sleep(0)
        order = await server.tick() + await server.tick() + await server.tick()
        assert sorted(order) == [0, 1, 2]
        for expected in order:
            server.served.clear()
            server.receive(3, 0.0)
            await asyncio.sleep(0)
            assert server.served == [3, expected], "the fast one does not wait for all others"

    asyncio.run(run())


def test_a_connection_is_fast_again_after_a_fast_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        server = TimedConnections(1, monkeypatch)
        server.receive(0, SHARE_S, SLOW_BATCHES)
        for _ in range(SLOW_BATCHES):
            await server.tick()
        server.receive(0, 0.0)
        assert server.served == [], "it was slow before, and waits"
        assert await server.tick() == [0]
        server.receive(0, 0.0)
        assert server.served == [0, 0]

    asyncio.run(run())


def test_a_connection_stays_slow_while_its_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They waited too long because it is slow. How soon they are refused is not how long they take."""

    async def run() -> None:
        server = TimedConnections(1, monkeypatch)
        server.receive(0, SHARE_S, SLOW_BATCHES + 1)
        for _ in range(SLOW_BATCHES - 1):
            await server.tick()
        server.now += 1.0
        assert await server.tick() == [], "the last one is refused"
        await server.tick()
        server.receive(0, 0.0)
        assert server.served == []
        assert await server.tick() == [0]

    asyncio.run(run())


def test_a_tick_is_bounded_for_all_connections_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of fifty connections that create a topic with each send is slow, but all of them are."""

    async def run() -> None:
        server = TimedConnections(51, monkeypatch)
        for _ in range(3):
            begun = server.now
            for number in range(50):
                server.receive(number, 0.6 * TICK_S, 10)
            server.receive(50, 0.0)
            assert server.now - begun <= SHARE_S + TICK_S
            for _ in range(50):
                begun = server.now
                await asyncio.sleep(0)
                assert server.now - begun <= SHARE_S + 2 * TICK_S
        assert server.served.count(50) == 3

    asyncio.run(run())


def test_batches_are_shorter_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        server = TimedConnections(5, monkeypatch)
        for number in range(5):
            server.receive(number, CONTENDED_S, 10)
        assert server.served == [0, 0, 0, 1, 2, 3]
        assert await server.tick() == [0, 4, 1, 2, 3]

    asyncio.run(run())


def test_what_has_just_arrived_is_served_before_the_rest_of_longer_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection waited for a batch of each of fifty, every time that it sent something."""

    async def run() -> None:
        server = TimedConnections(53, monkeypatch)
        for number in range(50):
            server.receive(number, CONTENDED_S, 10)
        while sum(map(server.served.count, range(50))) < 60:  # all of them have more
            await asyncio.sleep(0)
        server.receive(50, CONTENDED_S)
        await server.tick()
        assert server.served.count(50) == 1
        for _ in range(10):
            server.receive(51, SHARE_S)
            server.receive(52, SHARE_S)
            served = await server.tick()
            assert [number for number in served if number < 50], "however many arrive, the others go on"

    asyncio.run(run())


def test_late_replies_that_take_long_are_built_in_several_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer may hold thousands of pulls, and read their responses again after all of them have ended."""

    async def run() -> None:
        loop, built, now, end = asyncio.get_running_loop(), [], [0.0], asyncio.Event()
        monkeypatch.setattr(loop, "time", lambda: now[0])

        async def handler(command: Any, peer: Any) -> LateReply:
            def build() -> Reply:
                built.append(command.opaque)
                now[0] += 0.4 * TICK_S
                return Reply()

            await end.wait()
            return LateReply(build)

        connection = Connection(1, {7: handler}, is_server=True)
        connection.connection_made(Collected())  # type: ignore[arg-type]
        numbers = list(range(9))
        connection.data_received(
            b"".join(b"".join(commands.encode(7, opaque=item, flag=commands.ONE_WAY)) for item in numbers)
        )
        await asyncio.sleep(0)
        connection.pause_writing()
        end.set()
        for _ in range(3):  # all handlers end
            await asyncio.sleep(0)
        assert built == []
        connection.resume_writing()
        for count in (3, 6, 9):
            await asyncio.sleep(0)
            assert built == numbers[:count]

    asyncio.run(run())


def test_the_requests_of_a_lost_connection_are_cancelled_in_several_ticks() -> None:
    """Each of 16,384 held pulls starts its task once more to end it."""

    async def run() -> None:
        ended, limits = [], ServerLimits()

        async def handler(command: Any, peer: Any) -> Reply:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(command.opaque)
            raise AssertionError("it waits until it is cancelled")

        connection = Connection(1, {7: handler}, is_server=True, limits=limits)
        connection.connection_made(Collected())  # type: ignore[arg-type]
        numbers = list(range(3 * CALLS_PER_TICK))
        connection.data_received(b"".join(b"".join(commands.encode(7, opaque=item, flag=0)) for item in numbers))
        while limits.in_flight < len(numbers):
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # all of them wait
        connection.connection_lost(None)
        while len(ended) < len(numbers):
            before = len(ended)
            await asyncio.sleep(0)
            assert len(ended) <= before + CALLS_PER_TICK
        assert sorted(ended) == numbers

    asyncio.run(run())
