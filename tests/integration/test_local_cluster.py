"""The public test cluster: servers in a thread, with messages in memory or in a directory, for tests with or without asyncio."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ariane import Message, Producer, PushConsumer, ReceivedMessage
from ariane.errors import ArianeError, ConfigError, MessageRefused
from ariane.testing import AsyncLocalCluster, LocalCluster


def bodies(messages: Sequence[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def there_and_back(namesrv: str, sent: list[bytes]) -> list[bytes]:
    received: list[bytes] = []
    everything = asyncio.Event()

    async def listener(messages: Sequence[ReceivedMessage]) -> None:
        received.extend(message.body for message in messages)
        if len(received) >= len(sent):
            everything.set()

    async with Producer(namesrv, "p") as producer:
        for body in sent:
            await producer.send(Message(topic="t", body=body), order_key="one queue")
        async with PushConsumer(namesrv, "g", {"t": "*"}, listener, start="first", orderly=True), asyncio.timeout(30):
            await everything.wait()
    return received


def test_an_asynchronous_test_uses_the_cluster_from_its_own_loop() -> None:
    async def main() -> list[bytes]:
        async with AsyncLocalCluster() as cluster:
            return await there_and_back(cluster.namesrv, [b"1", b"2", b"3"])

    assert asyncio.run(main()) == [b"1", b"2", b"3"]


def test_one_cluster_serves_several_loops() -> None:
    with LocalCluster() as cluster:
        assert asyncio.run(there_and_back(cluster.namesrv, [b"1"])) == [b"1"]
        with asyncio.Runner() as runner:
            cluster.send("t", b"2", order_key="one queue")
            assert runner.run(there_and_back(cluster.namesrv, [b"3"]))[0] == b"2"


def test_messages_are_stored_in_a_directory_if_one_is_given(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        cluster.send("orders", b"1")
    assert list((tmp_path / "store" / "commitlog").iterdir())
    with LocalCluster(str(tmp_path)) as cluster:
        assert bodies(cluster.messages("orders")) == [b"1"]


def test_the_thread_and_the_ports_are_released_at_exit() -> None:
    with LocalCluster() as cluster:
        host, _, port = cluster.broker.addr.rpartition(":")
    assert not [thread for thread in threading.enumerate() if thread.name == "ariane-cluster"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)


def test_invalid_arguments_raise_before_or_at_the_start() -> None:
    with pytest.raises(ConfigError, match="flushDiskType"), LocalCluster(flush_disk_type="SOMETIMES"):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "ariane-cluster"]
    with pytest.raises(ConfigError, match="brokers = 0"):
        LocalCluster(brokers=0)
    with pytest.raises(ConfigError, match="broker_name = 'b': a cluster of several brokers"):
        LocalCluster(slaves=1, broker_name="b")
    with pytest.raises(ConfigError, match=r"brokerz = 2: no setting of a broker; did you mean brokers\?"):
        LocalCluster(brokerz=2)
    with pytest.raises(ConfigError, match="autoCreateTopicEnable = False: .* did you mean auto_create_topic_enable"):
        LocalCluster(autoCreateTopicEnable=False)


def test_a_cluster_is_used_within_its_block_and_once() -> None:
    cluster = LocalCluster()
    with pytest.raises(RuntimeError, match="not running"):
        cluster.messages("orders")
    with cluster:
        assert cluster.messages("orders") == []
    with pytest.raises(RuntimeError, match="started before"), cluster:
        pass


def test_messages_are_sent_and_listed() -> None:
    with LocalCluster() as cluster:
        cluster.create_topic("orders", queues=1)
        result = cluster.send("orders", b"1", tags="new", keys=["A"])
        cluster.send(Message(topic="orders", body=b"2" * 5000))
        first, second = cluster.messages("orders")
        assert (first.body, first.tags, first.keys, first.message_id) == (b"1", "new", ("A",), result.message_id)
        assert second.body == b"2" * 5000, "the client compresses it"
        assert [message.queue_offset for message in (first, second)] == [0, 1]
        with pytest.raises(MessageRefused, match="no body for topic 'orders'"):
            cluster.send("orders")  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="topic = 'two words'"):
            cluster.create_topic("two words")


def test_messages_of_several_brokers_are_listed_in_the_order_of_their_storing() -> None:
    with LocalCluster(brokers=2) as cluster:
        assert [broker.name for broker in cluster.brokers] == ["broker-a", "broker-b"]
        cluster.create_topic("orders", queues=1)
        for number in range(6):
            cluster.send("orders", b"%d" % number)
        messages = cluster.messages("orders")
        assert {message.queue.broker for message in messages} == {"broker-a", "broker-b"}
        assert sorted(bodies(messages)) == [b"%d" % number for number in range(6)]
        assert [message.store_ms for message in messages] == sorted(message.store_ms for message in messages)


def test_a_slave_has_the_messages_of_its_master_after_the_master_stopped() -> None:
    with LocalCluster(slaves=1, broker_role="SYNC_MASTER") as cluster:
        [slave] = cluster.slaves
        assert (slave.name, slave.broker_id, cluster.broker.broker_id) == ("broker-a", 1, 0)
        cluster.create_topic("t", queues=1)
        cluster.send("t", b"1")
        hosted = slave._hosted.running
        assert hosted is not None
        wait_until(lambda: hosted.services.store.max_offset("t", 0) == 1)
        cluster.broker.stop()
        assert not cluster.broker.is_running and slave.is_running
        assert hosted.services.store.max_offset("t", 0) == 1


def test_waiting_for_consumption_says_what_is_missing() -> None:
    with LocalCluster() as cluster:
        with pytest.raises(TimeoutError, match="Topic 'orders' has 0 messages after 0.05 s, expected at least 1"):
            cluster.wait_consumed("billing", "orders", timeout=0.05)
        cluster.create_topic("orders", queues=1)
        cluster.send("orders", b"1")
        expected = r"queue 0 of broker-a at offset none of 1\. Connected consumers: none"
        with pytest.raises(TimeoutError, match=expected):
            cluster.wait_consumed("billing", "orders", timeout=0.05)
        with pytest.raises(TimeoutError, match="has 1 messages after 0.05 s, expected at least 2"):
            cluster.wait_messages("orders", 2, timeout=0.05)


def test_consumption_is_awaited_without_waiting_for_the_periodic_commit() -> None:
    received: list[bytes] = []

    async def listener(messages: Sequence[ReceivedMessage]) -> None:
        received.extend(bodies(messages))

    async def main() -> None:
        async with AsyncLocalCluster() as cluster:
            await cluster.create_topic("orders")
            async with PushConsumer(cluster.namesrv, "billing", {"orders": "*"}, listener, start="first"):
                for number in range(20):
                    await cluster.send("orders", b"%d" % number)
                await cluster.wait_consumed("billing", "orders")
                assert sorted(received) == sorted(b"%d" % number for number in range(20))
                assert len(await cluster.messages("orders")) == 20

    asyncio.run(main())


def test_waiting_in_a_running_loop_is_refused_because_it_would_block_consumers() -> None:
    async def main(cluster: LocalCluster) -> None:
        with pytest.raises(RuntimeError, match="use AsyncLocalCluster"):
            cluster.wait_consumed("billing", "orders")
        with pytest.raises(RuntimeError, match="use AsyncLocalCluster"):
            cluster.wait_messages("orders")

    with LocalCluster() as cluster:
        asyncio.run(main(cluster))


def test_a_message_that_is_stored_in_the_background_is_awaited() -> None:
    with LocalCluster() as cluster:
        timer = threading.Timer(0.05, cluster.send, ("orders", b"1"))
        timer.start()
        assert bodies(cluster.wait_messages("orders")) == [b"1"]
        timer.join()


def test_the_name_server_restarts_with_all_brokers() -> None:
    with LocalCluster(brokers=2) as cluster:
        cluster.send("orders", b"1")
        addr = cluster.namesrv
        cluster.name_server.stop()
        cluster.send("orders", b"2")  # by the route that the producer has
        with pytest.raises(ArianeError):
            asyncio.run(there_and_back(cluster.namesrv, [b"3"]))
        cluster.name_server.start()
        assert cluster.name_server.addr == cluster.namesrv == addr
        assert asyncio.run(there_and_back(cluster.namesrv, [b"3"])) == [b"3"]


def test_a_cancelled_start_leaves_no_server() -> None:
    async def main() -> None:
        async def start() -> None:
            async with AsyncLocalCluster():
                raise AssertionError("the block must not run")

        task = asyncio.create_task(start())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name == "ariane-cluster"]


def test_importing_the_kit_needs_no_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None; import ariane.testing as testing;"
        "print(all(getattr(testing, name) for name in testing.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"


def test_clients_reach_a_broker_that_is_registered_with_a_host_name():
    """Routes have the name, records an IP address."""
    with LocalCluster(broker_ip1="localhost") as cluster:
        assert cluster.broker.addr.startswith("localhost:")
        cluster.send("orders", b"created")
        (message,) = cluster.messages("orders")
        assert message.store_host.startswith("127.0.0.1:")
