"""Replies that cannot be sent because the connection is closed: their handler is notified. No socket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from ariane.net.connection import FRAMES_PER_TICK, Connection, Reply
from ariane.protocol import command as commands
from ariane.protocol.command import ONE_WAY


class Transport:
    """What a connection needs of a transport."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...
    def pause_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written.append(data)


def unsent_after(
    handler: Any, *, flag: int = 0, is_closed: bool = True, has_room: bool = True, requests: int = 1, ticks: int = 1
) -> int:
    """Return how often the handler's replies were reported as unsent, after requests and the end of their connection."""

    async def run() -> int:
        unsent: list[None] = []
        reply = Reply(on_unsent=lambda: unsent.append(None))
        connection = Connection(1, {7: lambda command, peer: handler(reply)}, is_server=True)
        transport = Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.data_received(b"".join(commands.encode(7, opaque=1, flag=flag)) * requests)
        if not has_room:
            connection.pause_writing()
        for _ in range(ticks if has_room else 5):
            await asyncio.sleep(0)
        if is_closed:
            connection.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert bool(transport.written) == (not unsent and not flag)
        return len(unsent)

    return asyncio.run(run())


async def until_closed(reply: Reply) -> Reply:
    """Reply when the connection is closed, as a handler that ends before its task is cancelled."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return reply


async def immediate(reply: Reply) -> Reply:
    return reply


def test_a_sent_reply_is_not_reported() -> None:
    assert unsent_after(lambda reply: reply, is_closed=False) == 0
    assert unsent_after(immediate, is_closed=False) == 0


def test_a_reply_after_the_end_of_its_connection_is_reported() -> None:
    assert unsent_after(until_closed) == 1


def test_a_handler_begins_before_the_end_of_its_connection_cancels_it() -> None:
    """Otherwise it could not give back what its request has taken."""
    assert unsent_after(until_closed, ticks=0) == 1


def test_a_handler_that_begins_after_the_end_of_its_connection_is_cancelled() -> None:
    assert unsent_after(until_closed, requests=FRAMES_PER_TICK + 1) == FRAMES_PER_TICK + 1


def test_replies_that_wait_for_room_are_reported_when_their_connection_ends() -> None:
    assert unsent_after(immediate, has_room=False) == 1


def test_the_reply_to_a_one_way_request_is_reported() -> None:
    assert unsent_after(lambda reply: reply, flag=ONE_WAY, is_closed=False) == 1
