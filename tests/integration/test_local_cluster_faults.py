"""Faults of test clusters: each affects clients as the real one does, and ends without a trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ariane import Message, Producer, ProducerSettings, PushConsumer, ReceivedMessage, SendResult
from ariane.errors import ArianeError, ConfigError, ReplyError, RequestTimeout
from ariane.testing import AsyncLocalCluster, LocalCluster, RequestCode, ResponseCode

SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)


def bodies(messages: Sequence[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


@pytest.fixture(params=["in memory", "on disk"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(None if request.param == "in memory" else tmp_path) as running:
        running.create_topic("t", queues=1)
        yield running


async def send(namesrv: str, body: bytes, **settings: float) -> SendResult:
    async with Producer(namesrv, "p", settings=ProducerSettings(**settings)) as producer:
        return await producer.send(Message(topic="t", body=body))


def test_refused_sends_store_nothing_and_are_counted(cluster: LocalCluster) -> None:
    cluster.send("t", b"1")
    with cluster.broker.refuse_sends() as fault:
        with pytest.raises(ReplyError) as refused:
            cluster.send("t", b"2")
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        assert fault.hits == 1
    cluster.send("t", b"3")
    assert bodies(cluster.messages("t")) == [b"1", b"3"]
    with cluster.broker.refuse_sends(ResponseCode.NO_PERMISSION), pytest.raises(ReplyError) as refused:
        cluster.send("t", b"4")
    assert refused.value.code == ResponseCode.NO_PERMISSION


def test_a_fault_ends_after_its_number_of_requests(cluster: LocalCluster) -> None:
    fault = cluster.broker.fail_requests(SENDS, times=2)
    result = asyncio.run(send(cluster.namesrv, b"1", retries=2))
    assert (result.queue_offset, fault.hits) == (0, 2), "the third attempt succeeded"
    fault.end()
    fault.end()
    cluster.send("t", b"2")
    assert fault.hits == 2
    for times in (0, -1):
        with pytest.raises(ConfigError, match="times"):
            cluster.broker.refuse_sends(times=times)


def test_faults_apply_together_and_end_one_by_one(cluster: LocalCluster) -> None:
    first = cluster.broker.refuse_sends()
    second = cluster.broker.delay_responses(0.2, SENDS)
    started = time.monotonic()
    with pytest.raises(ReplyError):
        cluster.send("t", b"1")
    assert time.monotonic() - started >= 0.2
    assert (first.hits, second.hits) == (1, 1)
    first.end()
    cluster.send("t", b"2")
    assert (first.hits, second.hits) == (1, 2)
    second.end()
    cluster.send("t", b"3")
    assert second.hits == 2


def test_a_message_whose_response_is_late_or_lost_is_stored(cluster: LocalCluster) -> None:
    cluster.broker.delay_responses(5, SENDS, times=1)
    with pytest.raises(RequestTimeout):
        asyncio.run(send(cluster.namesrv, b"late", send_timeout=0.2))
    with cluster.broker.lose_responses(SENDS) as fault, pytest.raises(RequestTimeout):
        asyncio.run(send(cluster.namesrv, b"lost", send_timeout=0.2))
    assert fault.hits == 1
    asyncio.run(send(cluster.namesrv, b"lost", send_timeout=5))
    assert bodies(cluster.messages("t")) == [b"late", b"lost", b"lost"]


def test_a_full_disk_refuses_messages_until_it_has_room(cluster: LocalCluster) -> None:
    cluster.send("t", b"1")
    with cluster.broker.fill_disk():
        with pytest.raises(ReplyError, match="nearly full"):
            cluster.send("t", b"2")
        assert bodies(cluster.messages("t")) == [b"1"]
    cluster.send("t", b"3")
    assert bodies(cluster.messages("t")) == [b"1", b"3"]


def test_a_cluster_stops_although_a_fault_was_not_ended(cluster: LocalCluster) -> None:
    cluster.send("t", b"1")
    cluster.broker.refuse_sends()
    cluster.broker.fill_disk()
    with pytest.raises(ReplyError):
        cluster.send("t", b"2")


def test_delayed_messages_wait_for_room_on_the_disk(cluster: LocalCluster) -> None:
    cluster.send("t", b"1", delay=60)
    with cluster.broker.fill_disk():
        cluster.clock.advance(120)
        assert cluster.messages("t") == []
    cluster.clock.advance(2)  # the broker retries every second
    assert bodies(cluster.wait_messages("t")) == [b"1"]


def test_a_broker_restarts_with_its_messages_offsets_and_address(cluster: LocalCluster) -> None:
    cluster.send("t", b"1")
    addr = cluster.broker.addr
    cluster.broker.stop()
    cluster.broker.stop()
    assert (cluster.broker.is_running, cluster.messages("t")) == (False, [])
    with pytest.raises(ArianeError):
        asyncio.run(send(cluster.namesrv, b"2", retries=0, send_timeout=0.5))
    cluster.broker.start()
    cluster.broker.start()
    assert (cluster.broker.is_running, cluster.broker.addr) == (True, addr)
    cluster.send("t", b"3")
    assert bodies(cluster.messages("t")) == [b"1", b"3"]


def test_with_two_brokers_clients_continue_with_the_other_one() -> None:
    with LocalCluster(brokers=2) as cluster:
        cluster.create_topic("t", queues=2)
        cluster.brokers[1].stop()
        for number in range(4):
            asyncio.run(send(cluster.namesrv, b"%d" % number))
        assert len(cluster.messages("t")) == 4
        cluster.brokers[1].start()
        with cluster.broker.refuse_sends(ResponseCode.SERVICE_NOT_AVAILABLE):
            assert asyncio.run(send(cluster.namesrv, b"4")).queue.broker == "broker-b"


def test_consumers_survive_dropped_connections_and_failed_pulls() -> None:
    received: list[bytes] = []

    async def listener(messages: Sequence[ReceivedMessage]) -> None:
        received.extend(bodies(messages))

    async def main() -> None:
        async with AsyncLocalCluster() as cluster:
            await cluster.create_topic("t", queues=1)
            async with PushConsumer(cluster.namesrv, "g", {"t": "*"}, listener, start="first"):
                await cluster.send("t", b"1")
                await cluster.wait_consumed("g", "t")
                assert cluster.broker.drop_connections() >= 2
                await cluster.send("t", b"2")
                await cluster.wait_consumed("g", "t", timeout=30)
                fault = cluster.broker.fail_requests(RequestCode.PULL_MESSAGE, times=1)
                await cluster.send("t", b"3")
                await cluster.wait_consumed("g", "t", timeout=30)
                assert fault.hits == 1
        assert received == [b"1", b"2", b"3"]

    asyncio.run(main())


def test_held_pulls_are_delayed_too() -> None:
    received: list[float] = []

    async def listener(messages: Sequence[ReceivedMessage]) -> None:
        received.append(time.monotonic())

    async def main() -> float:
        async with AsyncLocalCluster() as cluster:
            await cluster.create_topic("t", queues=1)
            with cluster.broker.delay_responses(0.3, RequestCode.PULL_MESSAGE):
                async with PushConsumer(cluster.namesrv, "g", {"t": "*"}, listener, start="first"):
                    sent = time.monotonic()
                    await cluster.send("t", b"1")
                    async with asyncio.timeout(30):
                        while not received:
                            await asyncio.sleep(0.01)
                    return received[0] - sent

    assert asyncio.run(main()) >= 0.3
