"""Deliveries of POP that ended, or never left the broker: what old handles do, and what other members receive."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from test_pop import Client, Taken, against_broker, bodies, config

from ariane.broker.broker import Broker
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.replies import Reply, abandon, make_peer
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.pop import ChangeInvisibleTime, PopMessage, PopNotification

POP = PopMessage("G", "T", -1, 32, 60_000, 20_000)


async def change(client: Client, message: Taken, offset: int | None = None) -> tuple[int, dict[str, str]]:
    at = message.offset if offset is None else offset
    header = ChangeInvisibleTime("G", "T", message.queue_id, message.handle, at, 30_000)
    answer = await client.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    return answer.code, dict(answer.field_map())


def test_the_change_of_a_delivery_that_has_ended_succeeds_without_effect(tmp_path: Path) -> None:
    """As at 5.3.3, where it makes a second delivery of the message. A new handle could be that of the delivery that followed."""

    async def work(client: Client) -> None:
        await client.send(b"0", b"1")
        first = await client.pop(invisible_ms=1)
        lost, acknowledged = await client.pop(poll_ms=20_000)
        assert await client.ack(acknowledged) == 0
        for stale in (first[0], acknowledged):
            code, fields = await change(client, stale)
            assert (code, fields["popTime"], fields["reviveQid"]) == (0, stale.handle.split(" ")[1], "0")
            assert int(fields["invisibleTime"]) > 0
        assert await client.ack(lost) == 0, "the last handle is that of the last delivery"
        assert await client.committed() == 2
        assert await client.pop() == []

    against_broker(config(tmp_path), work)


def test_the_change_of_a_message_that_an_ordered_group_has_consumed_has_zero_fields(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0", b"1")
        messages = await client.pop(order=True, queue_id=0)
        assert await client.ack(messages[0]) == 0
        assert await change(client, messages[0]) == (0, {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"})
        assert (await change(client, messages[1]))[1]["popTime"] == messages[1].handle.split(" ")[1]

    against_broker(config(tmp_path), work)


def test_a_refused_change_has_the_fields_without_which_java_clients_fail(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0")
        (message,) = await client.pop()
        zeros = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
        assert await change(client, message, offset=99) == (ResponseCode.NO_MESSAGE, zeros)
        assert await change(client, message._replace(queue_id=9)) == (ResponseCode.MESSAGE_ILLEGAL, zeros)

    against_broker(config(tmp_path), work)


def test_large_messages_are_not_delivered_together(tmp_path: Path) -> None:
    """Together they exceed a frame, so that the response could not be sent, at any attempt."""

    large = [b"%d" % number * 3_000_000 for number in range(8)]

    async def before(client: Client) -> None:
        for number, body in enumerate(large):
            await client.send(body, queue_id=number % 3)
        first: list[Taken] = []
        while len(first) < 8:
            first += await client.pop()
        assert sorted(bodies(first)) == large
        for message in first:
            await client.hide(message, 1)

    async def after(client: Client) -> None:  # all are visible again
        again: list[bytes] = []
        while len(again) < 8:
            again += bodies(await client.pop())
        assert sorted(again) == large

    against_broker(config(tmp_path, mapped_file_size_commit_log=1 << 25), before, after)


@pytest.mark.parametrize("end", ["before its task continues", "before it is written"])
def test_messages_for_a_client_that_has_vanished_are_delivered_to_others_at_once(tmp_path: Path, end: str) -> None:
    async def run() -> None:
        async with Broker(config(tmp_path)) as broker, ConnectionPool() as peers:
            client = Client(peers, broker.addr)
            await client.send(b"0")
            assert bodies(await client.pop()) == [b"0"]
            handled: Any = broker.handlers.pop.pop(
                Command(RequestCode.POP_MESSAGE, fields=encode_header(POP)), make_peer(1, ("127.0.0.1", 1))
            )
            parked = asyncio.ensure_future(handled)
            while broker.handlers.pop.polls.count("G", "T", -1) == 0:
                await asyncio.sleep(0)
            other = asyncio.create_task(client.pop(poll_ms=20_000))
            while broker.handlers.pop.polls.count("G", "T", -1) < 2:
                await asyncio.sleep(0)
            await client.send(b"1")
            if end == "before it is written":
                reply = await parked
                assert isinstance(reply, Reply)
                abandon(reply)
            elif not parked.done():
                parked.cancel()
            (message,) = await other
            assert (message.body, message.times) == (b"1", 0), "a delivery that did not leave the broker does not count"
            assert await client.ack(message) == 0

    asyncio.run(asyncio.wait_for(run(), 60))


def test_an_ordered_queue_stays_blocked_over_a_restart_except_for_the_request_whose_response_was_lost(
    tmp_path: Path,
) -> None:
    async def before(client: Client) -> None:
        await client.send(b"0", b"1", b"2")
        assert bodies(await client.pop(2, order=True, attempt_id="a", queue_id=0)) == [b"0", b"1"]

    async def after(client: Client) -> None:
        assert await client.pop(2, order=True, attempt_id="b", queue_id=0) == []
        messages = await client.pop(2, order=True, attempt_id="a", queue_id=0)
        assert bodies(messages) == [b"0", b"1"]
        await client.hide(messages[0], 200)
        assert await client.ack(messages[1]) == 0
        (failed,) = await client.pop(2, order=True, attempt_id="b", queue_id=0, poll_ms=20_000)
        assert failed.body == b"0", "a message that failed is delivered before the next one"
        assert await client.ack(failed) == 0
        assert bodies(await client.pop(2, order=True, attempt_id="b", queue_id=0)) == [b"2"]

    against_broker(config(tmp_path), before, after)


def test_a_blocked_queue_has_no_messages_for_a_notification_in_order(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0", b"1")
        (message,) = await client.pop(1, order=True, queue_id=0)
        header = PopNotification("G", "T", 0, 0, order=True)
        answers = [await client.call(RequestCode.NOTIFICATION, header)]
        answers.append(await client.call(RequestCode.NOTIFICATION, PopNotification("G", "T", 0, 0)))
        assert await client.ack(message) == 0
        answers.append(await client.call(RequestCode.NOTIFICATION, header))
        assert [answer.field_map()["hasMsg"] for answer in answers] == ["false", "true", "true"]

    against_broker(config(tmp_path), work)
