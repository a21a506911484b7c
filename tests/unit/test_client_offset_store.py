"""Start offsets, and offsets committed at the broker."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from client_script import QUEUE, Script, instance, name_server, raising, route

from ariane.client.consuming import local_offsets
from ariane.client.consuming.offset_store import OffsetStore
from ariane.errors import ConnectionLost, ReplyError
from ariane.model.message import MessageQueue
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command

RETRY = MessageQueue("%RETRY%g", "a", 0)


def offset(number: int):
    return lambda asked: Command(0, fields={"offset": str(number)})


def script(**answers) -> Script:
    table = {RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"T": route("a")})}
    return Script(table | {RequestCode[name]: answer for name, answer in answers.items()})


def play(peers: Script, act):
    async def run():
        client = instance(peers)
        await client.routes.subscribe_queues("T")
        return await act(OffsetStore(peers, client.routes, "g", timeout_ms=3000))

    return asyncio.run(run())


def start(queue, position, **answers):
    return play(script(**answers), lambda offsets: offsets.start_offset(queue, position))


NOTHING = {"QUERY_CONSUMER_OFFSET": lambda asked: Command(22, remark="not found")}


def test_a_committed_offset_takes_precedence():
    assert start(QUEUE, "last", QUERY_CONSUMER_OFFSET=offset(17)) == 17
    assert start(QUEUE, "first", QUERY_CONSUMER_OFFSET=offset(0)) == 0


@pytest.mark.parametrize(
    ("queue", "position", "answers", "expected"),
    [
        (QUEUE, "first", {}, 0),
        (RETRY, "first", {}, 0),
        (RETRY, "last", {}, 0),
        (QUEUE, "last", {"GET_MAX_OFFSET": offset(9)}, 9),
        (QUEUE, 1_700_000_000_000, {"SEARCH_OFFSET_BY_TIMESTAMP": offset(4)}, 4),
        (RETRY, 1_700_000_000_000, {"GET_MAX_OFFSET": offset(3)}, 3),
    ],
)
def test_without_a_committed_offset_the_start_position_applies(queue, position, answers, expected):
    assert start(queue, position, **NOTHING, **answers) == expected


def test_an_error_does_not_count_as_a_missing_offset():
    with pytest.raises(ReplyError):
        start(QUEUE, "first", QUERY_CONSUMER_OFFSET=lambda asked: Command(1, remark="trouble"))
    with pytest.raises(ConnectionLost):
        start(QUEUE, "first", QUERY_CONSUMER_OFFSET=raising(ConnectionLost("a:1", "reset")))


def test_offsets_only_rise_except_by_seek():
    async def act(offsets):
        offsets.update(QUEUE, 5)
        offsets.update(QUEUE, 3)
        assert offsets.consumed(QUEUE) == 5
        offsets.seek(QUEUE, 3)
        assert offsets.consumed(QUEUE) == 3

    play(script(), act)


def test_a_commit_sends_changed_offsets_and_repeats_failed_ones():
    peers = script(UPDATE_CONSUMER_OFFSET=lambda asked: Command(0))
    update = RequestCode.UPDATE_CONSUMER_OFFSET

    async def act(offsets):
        offsets.update(QUEUE, 5)
        await offsets.commit([QUEUE, RETRY])
        await offsets.commit([QUEUE])
        assert [request.fields["commitOffset"] for request in peers.of(update)] == ["5"]
        offsets.update(QUEUE, 6)
        peers.answers[update] = raising(ConnectionLost("a:1", "reset"))
        await offsets.commit([QUEUE])
        peers.answers[update] = lambda asked: Command(0)
        await offsets.commit([QUEUE])
        assert [request.fields["commitOffset"] for request in peers.of(update)] == ["5", "6", "6"]

    play(peers, act)


def test_offsets_of_a_revoked_queue_are_discarded():
    async def act(offsets):
        offsets.update(QUEUE, 5)
        offsets.forget(QUEUE)
        assert offsets.consumed(QUEUE) is None
        await offsets.commit([QUEUE])  # the script has no answer: a request would fail the test

    play(script(), act)


def test_a_commit_waits_for_the_write_of_a_cancelled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most, release = [], [], threading.Event()

    def slow(path: Path, table: object) -> None:
        under_way.append(path)
        most.append(len(under_way))
        release.wait(5)
        under_way.pop()

    async def run() -> None:
        monkeypatch.setattr(local_offsets, "write", slow)
        offsets = local_offsets.LocalOffsets(None, None, "g", timeout_ms=1, path=tmp_path / "o")  # type: ignore[arg-type]
        queue = MessageQueue("T", "b", 0)
        monkeypatch.setattr(offsets, "consumed", lambda _: 1)
        first = asyncio.create_task(offsets.commit([queue]))
        while not under_way:
            await asyncio.sleep(0)
        first.cancel()
        second = asyncio.create_task(offsets.commit([queue]))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.01, release.set)
        await second
        assert max(most) == 1
        assert len(most) == 2

    asyncio.run(run())
