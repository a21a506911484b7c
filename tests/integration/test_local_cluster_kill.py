"""Brokers of test clusters that end without a stop: what survives, and what their clients see."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from ariane import Producer, ProducerSettings, PushConsumer, ReceivedMessage, SendStatus
from ariane.blocking import LitePullConsumer
from ariane.errors import ArianeError, ConfigError, RequestTimeout
from ariane.testing import AsyncLocalCluster, LocalCluster, RequestCode

WAIT_S = 30.0


def bodies(messages: Sequence[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(params=["in memory", "on disk"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(None if request.param == "in memory" else tmp_path) as running:
        running.create_topic("t", queues=1)
        yield running


def test_messages_survive_the_end_of_the_process(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    addr = cluster.broker.addr
    for number in range(3):
        cluster.send("t", b"before %d" % number)
        cluster.broker.kill()
        assert not cluster.broker.is_running
        cluster.broker.kill()  # has no effect
        cluster.broker.start()
    assert cluster.broker.addr == addr
    cluster.send("t", b"after")
    assert bodies(cluster.messages("t")) == [b"before 0", b"before 1", b"before 2", b"after"]
    assert "unregister" not in caplog.text


def test_acknowledged_messages_survive_a_kill_under_load(cluster: LocalCluster) -> None:
    acknowledged: list[bytes] = []
    stopped = threading.Event()

    async def send(worker: int) -> None:
        settings = ProducerSettings(retries=0, send_timeout=2)
        async with Producer(cluster.namesrv, f"p{worker}", settings=settings) as producer:
            number = 0
            while not stopped.is_set():
                body = b"%d-%d" % (worker, number)
                number += 1
                try:
                    await producer.send("t", body)
                except ArianeError:
                    await asyncio.sleep(0.01)  # the broker is dead
                else:
                    acknowledged.append(body)

    async def load() -> None:
        await asyncio.gather(*map(send, range(8)))

    thread = threading.Thread(target=asyncio.run, args=(load(),))
    thread.start()
    try:
        for _ in range(3):
            target = len(acknowledged) + 100
            wait_until(lambda target=target: len(acknowledged) >= target)  # type: ignore[misc]
            cluster.broker.kill()
            cluster.broker.start()
    finally:
        stopped.set()
        thread.join(WAIT_S)
    stored = bodies(cluster.messages("t"))
    assert set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored))


def test_files_do_not_change_after_a_kill(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        cluster.send("t", b"1")
        cluster.broker.kill()
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert any(path.name == "abort" for path in files), "a broker that was stopped removes it"
        time.sleep(0.6)  # longer than the interval of flushes
        assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        cluster.broker.start()
        assert bodies(cluster.messages("t")) == [b"1"]
        cluster.broker.stop()
        assert not list(tmp_path.rglob("abort"))


def test_a_request_in_flight_gets_no_response(cluster: LocalCluster) -> None:
    failures: list[Exception] = []
    fault = cluster.broker.delay_responses(60, (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE))

    async def send() -> None:
        async with Producer(
            cluster.namesrv, "p", settings=ProducerSettings(retries=0, send_timeout=WAIT_S)
        ) as producer:
            try:
                await producer.send("t", b"stored")
            except ArianeError as error:
                failures.append(error)

    thread = threading.Thread(target=asyncio.run, args=(send(),))
    thread.start()
    wait_until(lambda: fault.hits == 1)
    cluster.broker.kill()
    thread.join(WAIT_S)
    assert len(failures) == 1
    fault.end()
    cluster.broker.start()
    assert bodies(cluster.messages("t")) == [b"stored"]


def test_consumers_go_on_when_the_broker_is_back() -> None:
    async def work() -> None:
        received: list[bytes] = []

        async def listen(messages: list[ReceivedMessage]) -> None:
            received.extend(bodies(messages))

        async with AsyncLocalCluster() as cluster:
            await cluster.send("t", b"1")
            async with PushConsumer(cluster.namesrv, "g", {"t": "*"}, listen, start="first"):
                await cluster.wait_consumed("g", "t")
                await asyncio.to_thread(cluster.broker.kill)
                await asyncio.to_thread(cluster.broker.start)
                await cluster.send("t", b"2")
                async with asyncio.timeout(WAIT_S):
                    while b"2" not in received:
                        await asyncio.sleep(0.02)

    asyncio.run(work())


def test_offsets_that_were_not_saved_yet_are_lost(cluster: LocalCluster) -> None:
    cluster.send("t", b"1")

    def consume() -> list[bytes]:
        with LitePullConsumer(cluster.namesrv, "g", {"t": "*"}, start="first") as consumer:
            received = consumer.poll(timeout=WAIT_S)
            consumer.commit()
            return bodies(received)

    assert consume() == [b"1"]
    cluster.broker.kill()
    cluster.broker.start()
    assert consume() == [b"1"], "the broker saves offsets every five seconds only"
    cluster.broker.stop()
    cluster.broker.start()
    cluster.send("t", b"2")
    assert consume() == [b"2"]


def test_a_broker_whose_disk_is_full_is_killed(cluster: LocalCluster) -> None:
    cluster.send("t", b"1")
    with cluster.broker.fill_disk():
        cluster.broker.kill()
    cluster.broker.start()
    cluster.send("t", b"2")
    assert bodies(cluster.messages("t")) == [b"1", b"2"]


def test_another_broker_takes_over() -> None:
    with LocalCluster(brokers=2) as cluster:
        cluster.create_topic("t")
        cluster.brokers[0].kill()
        assert {cluster.send("t", b"x").queue.broker for _ in range(4)} == {"broker-b"}
        cluster.brokers[0].start()
        assert len(cluster.messages("t")) == 4


def test_a_slave_goes_on_without_its_master_and_follows_it_again() -> None:
    with LocalCluster(slaves=1, broker_role="SYNC_MASTER") as cluster:
        master, slave = cluster.broker, cluster.slaves[0]
        cluster.create_topic("t", queues=1)
        cluster.send("t", b"1")  # acknowledged by the slave
        cluster.clock.advance(timedelta(seconds=10))  # the interval at which slaves copy topics
        master.kill()
        with LitePullConsumer(cluster.namesrv, "g", {"t": "*"}, start="first") as consumer:
            wait_until(lambda: b"1" in bodies(consumer.poll(timeout=1)))
        master.start()
        slave.kill()
        slave.start()

        def is_replicated() -> bool:
            return cluster.send("t", b"2").status is SendStatus.SEND_OK

        wait_until(is_replicated)
        assert bodies(cluster.messages("t"))[:2] == [b"1", b"2"]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_loss_of_power_takes_what_was_not_flushed(flush: str) -> None:
    # An asynchronous flush happens at the kill or never.
    with LocalCluster(flush_disk_type=flush, flush_interval_commit_log=3_600_000) as cluster:
        cluster.create_topic("t", queues=1)
        cluster.send("t", b"1")
        cluster.broker.stop()  # flushes
        cluster.broker.start()
        cluster.send("t", b"2")
        cluster.broker.kill()
        cluster.broker.start()
        cluster.send("t", b"3")
        assert bodies(cluster.messages("t")) == [b"1", b"2", b"3"]
        cluster.broker.cut_power()
        cluster.broker.start()
        survivors = bodies(cluster.messages("t"))
        assert survivors == ([b"1", b"2", b"3"] if flush == "SYNC_FLUSH" else survivors[:2])
        assert survivors[0] == b"1"
        cluster.send("t", b"4")
        assert bodies(cluster.messages("t")) == [*survivors, b"4"]


def test_a_directory_loses_no_power(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        with pytest.raises(
            ConfigError, match=r"only a cluster that stores messages in memory can lose power; use kill\(\)"
        ):
            cluster.broker.cut_power()
        assert cluster.broker.is_running


def test_a_lost_request_is_not_served(cluster: LocalCluster) -> None:
    sends = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE)

    async def send() -> None:
        async with Producer(cluster.namesrv, "p", settings=ProducerSettings(retries=0, send_timeout=0.3)) as producer:
            with cluster.broker.lose_requests(sends) as fault:
                with pytest.raises(RequestTimeout):
                    await producer.send("t", b"lost")
                assert fault.hits == 1
            await producer.send("t", b"stored")

    asyncio.run(send())
    assert bodies(cluster.messages("t")) == [b"stored"]
