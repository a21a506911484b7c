"""Clients and broker over real sockets: retries and dead letters, request and reply, admin requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from ariane.client import ConsumerSettings, Producer, PushConsumer, ReconsumeLater
from ariane.errors import MessageRefused, ReplyError, RequestTimeout
from ariane.model.message import Message, ReceivedMessage
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import record
from ariane.protocol.requests.callbacks import ConsumeDirectly, ConsumerStatus, ResetOffset, RunningInfoRequest
from ariane.protocol.requests.messaging import SUBSCRIPTION, PullMessage
from ariane.testing import AsyncLocalCluster

QUICK = {"commit_interval": 0.05, "rebalance_interval": 0.2, "suspend_time": 0.2, "close_timeout": 1}


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


class Inbox:
    """Listener that records its messages, then runs the action of the test."""

    def __init__(self, then: Callable[[ReceivedMessage], None] = lambda message: None) -> None:
        self.got: list[ReceivedMessage] = []
        self._then = then
        self._more = asyncio.Condition()

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        async with self._more:
            self.got += messages
            self._more.notify_all()
        for message in messages:
            self._then(message)

    async def count(self, count: int) -> list[ReceivedMessage]:
        async with self._more:
            await self._more.wait_for(lambda: len(self.got) >= count)
            return list(self.got)


async def stored(servers: AsyncLocalCluster, topic: str) -> list[record.Record]:
    """Return the messages in queue 0 of a topic."""
    async with ConnectionPool() as peers:
        header = PullMessage("reader", topic, 0, 0, 32, SUBSCRIPTION, subscription="*")
        answer = await peers.request(servers.broker.addr, RequestCode.PULL_MESSAGE, header)
        return list(record.decode_all(answer.body)) if answer.code == 0 else []


@contextlib.asynccontextmanager
async def consumer(servers: AsyncLocalCluster, listener: Inbox, **settings: object) -> AsyncIterator[PushConsumer]:
    known = {name: settings.pop(name) for name in list(settings) if name in ("orderly", "client")}
    values = ConsumerSettings(**{**QUICK, **settings})  # type: ignore[arg-type]
    async with PushConsumer(
        servers.namesrv,
        "g",
        {"t": "*"},
        listener,
        start="first",
        settings=values,
        **known,  # type: ignore[arg-type]
    ) as member:
        yield member


# --- retries ---


def test_failed_messages_are_redelivered_and_become_dead_letters(tmp_path: Path) -> None:
    def fail(message: ReceivedMessage) -> None:
        raise ReconsumeLater("not today", delay_level=1)

    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            sent = await producer.send(Message(topic="t", body=b"bad", tags="a", properties={"mine": "1"}))
            inbox = Inbox(fail)
            async with consumer(servers, inbox, max_reconsume_times=2):
                result = await inbox.count(3)
                while not (dead := await stored(servers, "%DLQ%g")):
                    await asyncio.sleep(0.05)
            assert [sent_message.reconsume_times for sent_message in result] == [0, 1, 2]
            assert {sent_message.topic for sent_message in result} == {"t"}
            assert {sent_message.message_id for sent_message in result} == {sent.message_id}
            (letter,) = dead
            properties = letter.property_map()
            assert (letter.body, letter.reconsume_times, properties["TAGS"], properties["mine"]) == (
                b"bad",
                3,
                "a",
                "1",
            )
            assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("t", sent.offset_message_id)
            assert len(inbox.got) == 3

    run(work())


@pytest.mark.parametrize("orderly", [False, True])
def test_a_timed_out_listener_counts_as_failed(tmp_path: Path, orderly: bool) -> None:
    calls = []

    class Slow(Inbox):
        async def __call__(self, messages: list[ReceivedMessage]) -> None:
            calls.append(messages)
            await asyncio.Event().wait()

    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            await producer.send(Message(topic="t", body=b"slow"))
            async with consumer(
                servers, Slow(), orderly=orderly, consume_timeout=0.05, max_reconsume_times=0, suspend_queue_time=0.01
            ):
                while not (dead := await stored(servers, "%DLQ%g")):
                    await asyncio.sleep(0.05)
            assert [message.body for message in dead] == [b"slow"]
            assert len(calls) == 1

    run(work())


# --- request and reply ---


def test_a_consumer_replies_to_a_request(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as asker:
            async with Producer(servers.namesrv, "q") as replier:
                replied = []

                async def listener(messages: list[ReceivedMessage]) -> None:
                    for message in messages:
                        body = message.body.upper() if len(message.body) < 100 else message.body
                        replied.append(await replier.reply(message, body, properties={"mine": "1"}))

                settings = ConsumerSettings(**QUICK)
                async with PushConsumer(servers.namesrv, "g", {"t": "*"}, listener, start="first", settings=settings):
                    bodies = [b"%d a" % number for number in range(20)]
                    answers = await asyncio.gather(
                        *(asker.request(Message(topic="t", body=body), timeout=20) for body in bodies)
                    )
                    assert [stored_record.body for stored_record in answers] == [body.upper() for body in bodies]
                    assert {stored_record.properties["mine"] for stored_record in answers} == {"1"}
                    large = bytes(range(256)) * 40
                    assert (await asker.request(Message(topic="t", body=large), timeout=20)).body == large
                    assert all(stored_record.offset_message_id != "0" for stored_record in replied)
                    assert len(asker._instance.replies) == 0
            stored_replies = await stored(servers, "DefaultCluster_REPLY_TOPIC")
            assert {stored_record.property_map()["MSG_TYPE"] for stored_record in stored_replies} == {"reply"}

    run(work())


def test_a_request_times_out_and_its_late_reply_is_rejected(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            with pytest.raises(RequestTimeout):
                await producer.request(Message(topic="t", body=b"anybody?"), timeout=0.3)
            await producer.send(Message(topic="t", body=b"no request"))
            inbox = Inbox()
            async with consumer(servers, inbox):
                result = {message.body: message for message in await inbox.count(2)}
            with pytest.raises(ReplyError, match="no pending request"):
                await producer.reply(result[b"anybody?"], b"late")
            with pytest.raises(MessageRefused, match="is not a request"):
                await producer.reply(result[b"no request"], b"why")

    run(work())


# --- what tools ask ---


@pytest.mark.parametrize("orderly", [False, True])
def test_offsets_are_reset_while_consuming(tmp_path: Path, orderly: bool) -> None:
    async def work() -> None:
        async with (
            AsyncLocalCluster(tmp_path) as servers,
            Producer(servers.namesrv, "p") as producer,
            ConnectionPool() as peers,
        ):
            for number in range(12):
                await producer.send(Message(topic="t", body=b"%d" % number))
            inbox = Inbox()
            async with consumer(servers, inbox, orderly=orderly) as member:
                await inbox.count(12)
                await asyncio.sleep(0.3)  # until the offsets of all queues are stored, empty ones too
                code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
                answer = await peers.request(servers.broker.addr, code, ResetOffset("t", "g", 0, True))
                assert (answer.code, answer.remark) == (0, None)
                result = await inbox.count(24)
                assert sorted(int(message.body) for message in result) == sorted([*range(12), *range(12)])
                await producer.send(Message(topic="t", body=b"12"))
                assert (await inbox.count(25))[-1].body == b"12"
                async with asyncio.timeout(60):
                    while len(member.queues) < 5:  # four of the topic and one of the retry topic
                        await asyncio.sleep(0.02)
            assert len(inbox.got) == 25

    run(work())


def test_running_info_and_status(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            AsyncLocalCluster(tmp_path) as servers,
            Producer(servers.namesrv, "p") as producer,
            ConnectionPool() as peers,
        ):
            for number in range(8):
                await producer.send(Message(topic="t", body=b"%d" % number))
            inbox = Inbox()
            async with consumer(servers, inbox) as member:
                await inbox.count(8)
                await asyncio.sleep(0.1)
                client_id = member._instance.client_id
                code = RequestCode.GET_CONSUMER_RUNNING_INFO
                answer = await peers.request(servers.broker.addr, code, RunningInfoRequest("g", client_id, True))
                assert answer.code == 0, answer.remark
                info = fastjson.read(answer.body)
                assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
                assert info["properties"]["PROP_NAMESERVER_ADDR"] == f"{servers.namesrv};"
                assert info["properties"]["PROP_CONSUMER_START_TIMESTAMP"].isdigit()
                assert {item["topic"] for item in info["subscriptionSet"]} == {"t", "%RETRY%g"}
                assert sum(item["commitOffset"] for item in info["mqTable"].values()) == 8
                assert info["statusTable"]["t"]["consumeOKTPS"] > 0
                assert info["statusTable"]["t"]["consumeFailedMsgs"] == 0
                assert "rebalance" in info["jstack"]
                plain = await peers.request(servers.broker.addr, code, RunningInfoRequest("g", client_id))
                assert "jstack" not in fastjson.read(plain.body)

                code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
                answer = await peers.request(servers.broker.addr, code, ConsumerStatus("t", "g"))
                assert sum(fastjson.read(answer.body)["consumerTable"][client_id].values()) == 8

    run(work())


@pytest.mark.parametrize(
    ("error", "result"),
    [(None, "CR_SUCCESS"), (ReconsumeLater("busy"), "CR_LATER"), (ValueError("no"), "CR_THROW_EXCEPTION")],
)
def test_a_message_is_consumed_directly(tmp_path: Path, error: Exception | None, result: str) -> None:
    def then(message: ReceivedMessage) -> None:
        if len(inbox.got) > 1 and error is not None:
            raise error

    inbox: Inbox

    async def work() -> None:
        nonlocal inbox
        inbox = Inbox(then)
        async with (
            AsyncLocalCluster(tmp_path) as servers,
            Producer(servers.namesrv, "p") as producer,
            ConnectionPool() as peers,
        ):
            sent = await producer.send(Message(topic="t", body=b"again", tags="a"))
            async with consumer(servers, inbox) as member:
                await inbox.count(1)
                request = ConsumeDirectly("g", member._instance.client_id, sent.offset_message_id)
                answer = await peers.request(servers.broker.addr, RequestCode.CONSUME_MESSAGE_DIRECTLY, request)
                body = fastjson.read(answer.body)
                assert (answer.code, body["consumeResult"], body["order"]) == (0, result, False)
                assert ("remark" in body) is (error is not None)
                first, repeated = inbox.got
                assert (repeated.body, repeated.tags, repeated.queue) == (first.body, first.tags, first.queue)
                other = ConsumeDirectly("other", member._instance.client_id, sent.offset_message_id)
                answer = await peers.request(servers.broker.addr, RequestCode.CONSUME_MESSAGE_DIRECTLY, other)
                assert answer.code == ResponseCode.SYSTEM_ERROR
            assert await stored(servers, "%RETRY%g") == []

    run(work())
