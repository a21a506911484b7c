"""Broadcasting over real sockets: each member receives everything and continues at its own offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from test_client_retries import QUICK, Inbox, run, stored

from ariane.client import ClientSettings, ConsumerSettings, Producer, PushConsumer, ReconsumeLater
from ariane.errors import ConfigError
from ariane.model.message import Message, ReceivedMessage
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.callbacks import ResetOffset, reset_table
from ariane.protocol.requests.messaging import UpdateConsumerOffset
from ariane.testing import AsyncLocalCluster


def member(namesrv: str, home: Path, name: str, inbox: Inbox, *, orderly: bool = False) -> PushConsumer:
    settings = ConsumerSettings(**QUICK, message_model="broadcasting", offsets_dir=str(home / "offsets"))
    client = ClientSettings(instance_name=name, client_ip="127.0.0.1")
    return PushConsumer(
        namesrv, "g", {"t": "*"}, inbox, start="first", orderly=orderly, settings=settings, client=client
    )


@pytest.mark.parametrize("orderly", [False, True])
def test_each_member_receives_everything_and_continues_at_its_own_offsets(tmp_path: Path, orderly: bool) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            item, two = Inbox(), Inbox()
            async with member(servers.namesrv, tmp_path, "one", item, orderly=orderly) as first:
                async with member(servers.namesrv, tmp_path, "two", two, orderly=orderly):
                    for number in range(8):
                        await producer.send(Message(topic="t", body=b"%d" % number))
                    for inbox in (item, two):
                        result = await inbox.count(8)
                        assert sorted(int(message.body) for message in result) == list(range(8))
                    assert {queue.topic for queue in first.queues} == {"t"}
                await producer.send(Message(topic="t", body=b"8"))
                await item.count(9)
            file = tmp_path / "offsets" / "127.0.0.1@one" / "g" / "offsets.json"
            assert sum(reset_table(file.read_bytes()).values()) == 9

            repeated = Inbox()
            async with member(servers.namesrv, tmp_path, "two", repeated, orderly=orderly):
                await repeated.count(1)
            assert [message.body for message in repeated.got] == [b"8"]
            assert (len(item.got), len(two.got)) == (9, 8)

    run(work())


def test_failed_messages_are_dropped(tmp_path: Path) -> None:
    def fail(message: ReceivedMessage) -> None:
        raise ReconsumeLater("no")

    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            inbox = Inbox(fail)
            async with member(servers.namesrv, tmp_path, "one", inbox):
                for number in range(4):
                    await producer.send(Message(topic="t", body=b"%d" % number))
                await inbox.count(4)
                await asyncio.sleep(0.3)
            assert len(inbox.got) == 4
            assert await stored(servers, "%RETRY%g") == []

    run(work())


def test_a_reset_changes_the_offsets_file(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            AsyncLocalCluster(tmp_path) as servers,
            Producer(servers.namesrv, "p") as producer,
            ConnectionPool() as peers,
        ):
            for number in range(4):
                await producer.send(Message(topic="t", body=b"%d" % number))
            inbox = Inbox()
            async with member(servers.namesrv, tmp_path, "one", inbox):
                await inbox.count(4)
                for queue_id in range(
                    4
                ):  # the broker knows no offsets of a broadcasting group unless a tool stored some
                    header = UpdateConsumerOffset("g", "t", queue_id, 1)
                    await peers.request(servers.broker.addr, RequestCode.UPDATE_CONSUMER_OFFSET, header)
                code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
                answer = await peers.request(servers.broker.addr, code, ResetOffset("t", "g", 0, True))
                assert answer.code == 0, answer.remark
                await inbox.count(8)

    run(work())


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_broadcasting_consumer_needs_an_instance_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="instance_name"):
        member("127.0.0.1:1", tmp_path, name, Inbox())
