"""Delays over a broker's socket: levels and times, to a consumer, and through a restart of the broker."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.client import Producer
from ariane.cluster.admin import Admin
from ariane.errors import ReplyError
from ariane.model import ids
from ariane.model.message import Message
from ariane.model.trace_event import MessageType, PublishEvent, RecallEvent
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import trace_codec
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.records import batch, properties, record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import (
    SUBSCRIPTION,
    SUSPEND,
    PullMessage,
    RecallMessage,
    RecallMessageResponse,
    SendMessage,
    SendMessageResponse,
)
from ariane.testing import AsyncLocalCluster


def config(path: Path, **settings: object) -> BrokerConfig:
    return BrokerConfig(
        store_path_root_dir=str(path),
        namesrv_addr="",
        broker_name="broker-a",
        broker_ip1="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        message_delay_level="200s 1s",
        **settings,  # type: ignore[arg-type]
    )


async def send(peers: ConnectionPool, addr: str, body: bytes, **own: str) -> Command:
    header = SendMessage("P", "T", "TBW102", 1, 0, 0, 1234, 0, properties.encode(own))
    return await peers.request(addr, RequestCode.SEND_MESSAGE_V2, header, body, timeout_ms=3000)


async def pulled(peers: ConnectionPool, addr: str, count: int) -> list[record.Record]:
    """Return `count` messages of T in the order of their arrival."""
    results: list[record.Record] = []
    while len(results) < count:
        header = PullMessage("G", "T", 0, len(results), 32, SUBSCRIPTION | SUSPEND, 0, 5000, "*", 0, None)
        answer = await peers.request(addr, RequestCode.PULL_MESSAGE, header, timeout_ms=8000)
        assert answer.code in (0, 19), (answer.code, answer.remark)
        results += record.decode_all(answer.body) if answer.code == 0 else []
    return results


def test_timers_and_levels_are_delivered_in_order_to_a_pending_pull(tmp_path: Path) -> None:
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        asyncio.run(asyncio.wait_for(_in_order(tmp_path / flush, flush), 60))


async def _in_order(path: Path, flush: str) -> None:
    async with Broker(config(path, flush_disk_type=flush)) as broker, ConnectionPool() as peers:
        start_ms = time.time_ns() // 1_000_000
        for after_ms in (2900, 2300, 2600):  # far enough for sends on a busy machine
            sent = await send(peers, broker.addr, b"%d" % after_ms, __STARTDELIVERTIME=str(start_ms + after_ms))
            assert sent.code == 0
        assert (await send(peers, broker.addr, b"level", DELAY="2")).code == 0
        assert (await send(peers, broker.addr, b"now", TIMER_DELIVER_MS="1")).code == 0
        result = await pulled(peers, broker.addr, 5)
        assert [stored_record.body for stored_record in result] == [b"now", b"level", b"2300", b"2600", b"2900"]
        for stored_record in result[2:]:
            late_ms = stored_record.store_ms - (start_ms + int(stored_record.body))
            assert late_ms >= 0
        assert result[1].store_ms - start_ms >= 1000


def test_pending_delayed_messages_survive_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with Broker(config(tmp_path)) as broker, ConnectionPool() as peers:
            await send(peers, broker.addr, b"timer", TIMER_DELAY_MS="1500")
            await send(peers, broker.addr, b"level", DELAY="2")
            await send(peers, broker.addr, b"soon", TIMER_DELAY_MS="1")
            assert [message.body for message in await pulled(peers, broker.addr, 1)] == [b"soon"]

    async def second() -> None:
        async with Broker(config(tmp_path, flush_delay_offset_interval=100)) as broker, ConnectionPool() as peers:
            assert [message.body for message in await pulled(peers, broker.addr, 3)] == [b"soon", b"level", b"timer"]
            await asyncio.sleep(1.5)
        assert json.loads((tmp_path / "config/delayOffset.json").read_text().replace("2:", '"2":')) == {
            "offsetTable": {"2": 1}
        }

    asyncio.run(asyncio.wait_for(first(), 60))
    asyncio.run(asyncio.wait_for(second(), 60))


def test_a_clean_stop_saves_the_offset_of_each_level(tmp_path: Path) -> None:
    """A Java broker that opens the store next redelivers everything after that offset."""

    async def play() -> None:
        async with Broker(config(tmp_path)) as broker, ConnectionPool() as peers:
            for body in (b"1", b"2"):
                assert (await send(peers, broker.addr, body, DELAY="2")).code == 0
            await pulled(peers, broker.addr, 2)
            assert (await send(peers, broker.addr, b"waits", DELAY="1")).code == 0

    asyncio.run(asyncio.wait_for(play(), 60))
    saved = (tmp_path / "config/delayOffset.json").read_text().replace("2:", '"2":')
    assert json.loads(saved) == {"offsetTable": {"2": 2}}


def test_a_pending_message_is_cancelled_by_any_of_its_identifiers(tmp_path: Path) -> None:
    async def run() -> None:
        async with Broker(config(tmp_path)) as broker, ConnectionPool() as peers:

            async def recall(name: str) -> Command:
                return await peers.request(
                    broker.addr, RequestCode.RECALL_MESSAGE, RecallMessage(name), timeout_ms=3000
                )

            sent = [
                await send(peers, broker.addr, b"%d" % number, TIMER_DELAY_MS="700", UNIQ_KEY=f"KEY{number}")
                for number in range(4)
            ]
            names = [decode_header(message, SendMessageResponse) for message in sent]
            handle = names[1].recall_handle or ""
            assert ids.recalled_key(handle) == "KEY1"
            assert decode_header(await recall(names[0].message_id), RecallMessageResponse).msg_id == "KEY0"
            assert decode_header(await recall(handle), RecallMessageResponse).msg_id == "KEY1"
            by_message = await send(peers, broker.addr, b"", TIMER_DEL_UNIQKEY="T+KEY2")
            assert by_message.code == 0
            repeated = await recall(names[0].message_id)
            assert (repeated.code, "before" in (repeated.remark or "")) == (1, True)
            unknown = await recall("nothing")
            assert (unknown.code, "nothing" in (unknown.remark or "")) == (1, True)
            assert [message.body for message in await pulled(peers, broker.addr, 1)] == [b"3"]
            too_late = await recall("KEY3")
            assert (too_late.code, "delivered" in (too_late.remark or "")) == (1, True)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_producer_recalls_a_message(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, Producer(servers.namesrv, "p") as producer:
            soon_ms = time.time_ns() // 1_000_000 + 600
            first = await producer.send(Message(topic="T", body=b"no", deliver_at_ms=soon_ms))
            second = await producer.send(Message(topic="T", body=b"yes", deliver_at_ms=soon_ms), queue=first.queue)
            await producer.recall(first)
            with pytest.raises(ReplyError, match="before"):
                await producer.recall(first)
            assert second.recall_handle
            async with ConnectionPool() as peers:
                results: list[record.Record] = []
                while not results:
                    header = PullMessage("G", "T", first.queue.queue_id, 0, 32, SUBSCRIPTION, 0, 0, "*", 0, None)
                    answer = await peers.request(servers.broker.addr, RequestCode.PULL_MESSAGE, header, timeout_ms=3000)
                    results = list(record.decode_all(answer.body)) if answer.code == 0 else []
                    await asyncio.sleep(0.05)
                assert [(stored_record.body, stored_record.store_ms >= soon_ms) for stored_record in results] == [
                    (b"yes", True)
                ]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_recalls_are_traced_with_their_result(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncLocalCluster(tmp_path, trace_topic_enable=True) as servers:
            async with Producer(servers.namesrv, "p", trace=True) as producer:
                sent = await producer.send(Message(topic="T", body=b"no", delay=600))
                await producer.recall(sent)
                with pytest.raises(ReplyError, match="before"):
                    await producer.recall(sent)
            async with Admin(servers.namesrv) as admin:
                carriers = (await admin.query_by_key("RMQ_SYS_TRACE_TOPIC", sent.message_id)).messages
            events = [event for carrier in carriers for event in trace_codec.decode(carrier.body)[0]]
            assert {event.message_id for event in events} == {sent.message_id}
            (pub,) = (event for event in events if isinstance(event, PublishEvent))
            recalls = {event.success: event for event in events if isinstance(event, RecallEvent)}
            assert (pub.message_type, sorted(recalls), len(events)) == (MessageType.DELAY, [False, True], 3)
            assert pub.timestamp_ms <= recalls[True].timestamp_ms <= recalls[False].timestamp_ms
            assert (recalls[True].topic, recalls[True].group, recalls[True].region) == ("T", "p", pub.region)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_cancellation_by_an_operator_is_traced_if_the_send_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncLocalCluster(tmp_path, trace_topic_enable=True) as servers, Admin(servers.namesrv) as admin:
            events = []
            for is_traced in (True, False):
                async with Producer(servers.namesrv, "p", trace=is_traced) as producer:
                    sent = await producer.send(Message(topic="T", body=b"no", delay=600))
                await admin.cancel_delayed(sent.message_id)
                carriers = (await admin.query_by_key("RMQ_SYS_TRACE_TOPIC", sent.message_id)).messages
                events += [event for carrier in carriers for event in trace_codec.decode(carrier.body)[0]]
            assert admin.notes == []
            (pub,) = (event for event in events if isinstance(event, PublishEvent))
            (recalled,) = (event for event in events if isinstance(event, RecallEvent))
            assert (recalled.message_id, recalled.success) == (pub.message_id, True)
            assert (recalled.topic, recalled.group, recalled.region) == ("T", "p", pub.region)
            assert pub.timestamp_ms <= recalled.timestamp_ms

    asyncio.run(asyncio.wait_for(run(), 60))


def test_batches_accept_only_delay_level_0(tmp_path: Path) -> None:
    async def run() -> None:
        async with Broker(config(tmp_path)) as broker, ConnectionPool() as peers:

            async def send_batch(level: str) -> Command:
                entries = [
                    batch.BatchEntry(0, b"%d" % number, properties.encode({"DELAY": level})) for number in range(2)
                ]
                header = SendMessage("P", "T", "TBW102", 1, 0, 0, 1234, 0, "", batch=True)
                return await peers.request(
                    broker.addr, RequestCode.SEND_BATCH_MESSAGE, header, batch.encode(entries), timeout_ms=3000
                )

            assert (await send_batch("0")).code == 0
            refused = await send_batch("1")
            assert (refused.code, "cannot be delayed" in (refused.remark or "")) == (13, True)
            assert [message.body for message in await pulled(peers, broker.addr, 2)] == [b"0", b"1"]

    asyncio.run(asyncio.wait_for(run(), 60))
