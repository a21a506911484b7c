"""Runs of plain requests go to the handler of their code, if the port serves that code at all."""

from __future__ import annotations

import asyncio

import pytest

from ariane.net.connection import Reply
from ariane.net.replies import Peer, ServedTurn, make_peer
from ariane.net.server import RemotingServer
from ariane.net.turn_router import TurnRouter
from ariane.protocol import command as commands
from ariane.protocol.frame import BINARY_FORM, JSON_FORM

PEER = make_peer(1, ("10.1.2.3", 4567))


class NamedTurns:
    """Serves every frame, and reports its name."""

    def __init__(self, name: bytes) -> None:
        self.name = name

    def serve(self, data: bytes, position: int, peer: Peer, waited_s: float) -> ServedTurn:
        return ServedTurn(position + 1, 1, self.name, is_last=waited_s > 0)


def frame(code: int, form: int) -> bytes:
    return b"".join(commands.encode(code, opaque=1, flag=0, fields={"a": "b"}, form=form))


@pytest.mark.parametrize("form", [JSON_FORM, BINARY_FORM])
def test_a_run_is_served_by_the_handler_of_its_code(form: int) -> None:
    router = TurnRouter({11: NamedTurns(b"pull"), 310: NamedTurns(b"send"), 320: NamedTurns(b"batch")})
    for code, name in ((11, b"pull"), (310, b"send"), (320, b"batch")):
        data = b"before" + frame(code, form)
        assert router.serve(data, 6, PEER, 0.5) == ServedTurn(7, 1, name, is_last=True)
    for code in (1, 31, 3100, 110, 1100):
        assert router.serve(frame(code, form), 0, PEER, 0.0) is None


def test_a_part_of_a_frame_has_no_handler() -> None:
    router = TurnRouter({11: NamedTurns(b"pull")})
    for form, needed in ((JSON_FORM, 8 + len(b'{"code":11,')), (BINARY_FORM, 8 + 2)):
        data = frame(11, form)
        assert [router.serve(data[:size], 0, PEER, 0.0) is not None for size in range(needed + 1)] == [
            False
        ] * needed + [True]


def test_a_port_serves_runs_of_its_own_codes_only() -> None:
    async def scenario() -> None:
        server = RemotingServer({}, "127.0.0.1", 0)
        server.turns = {11: NamedTurns(b"pull"), 310: NamedTurns(b"send")}
        handlers = {310: lambda command, peer: Reply()}
        router = server._turn_router(handlers)
        assert router is not None
        assert router.serve(frame(310, JSON_FORM), 0, PEER, 0.0) is not None
        assert router.serve(frame(11, JSON_FORM), 0, PEER, 0.0) is None
        assert server._turn_router({}) is None

    asyncio.run(scenario())
