"""The blocking clients at a broker: threads, forks, interrupts, and the end of a process."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

import ariane
from ariane import ConsumerSettings, LocalState, Message, TraceCounts, blocking
from ariane.blocking.background_loop import shared_loop
from ariane.errors import ClientClosed, ConfigError, MessageRefused, RequestTimeout
from ariane.payloads import Json
from ariane.testing import LocalCluster

PATIENCE_S = 30.0


def test_threads_share_a_producer_and_a_group_polls_what_they_sent(ariane_cluster: LocalCluster) -> None:
    namesrv = ariane_cluster.namesrv
    with blocking.Producer(namesrv, "P") as producer, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda number: producer.send("T", b"%d" % number, keys=[f"K{number}"]), range(100)))
        batches = list(producer.send_batches([Message(topic="T", body=b"batch")] * 10))
    assert len({result.message_id for result in results}) == 100
    assert len(batches) == 1
    with blocking.LitePullConsumer(namesrv, "G", {"T": "*"}, start="first") as consumer:
        received = []
        while len(received) < 110:
            messages = consumer.poll(timeout=PATIENCE_S)
            assert messages, received
            received += messages
        assert {message.body for message in received} == {b"%d" % number for number in range(100)} | {b"batch"}
        consumer.pause(consumer.queues)
        consumer.resume(consumer.queues)
        assert consumer.offset_for_time(consumer.queues[0], datetime.fromtimestamp(0, UTC)) == 0
    with blocking.PullConsumer(namesrv) as reader:
        assert sum(reader.bounds(queue)[1] for queue in reader.queues_of("T")) == 110


def test_a_consumer_is_iterated_over(ariane_cluster: LocalCluster) -> None:
    namesrv = ariane_cluster.namesrv
    with blocking.Producer(namesrv, "P") as producer:
        for number in range(6):
            producer.send("T", b"%d" % number, order_key="one queue")
    quick = ConsumerSettings(commit_interval=0.05, close_timeout=1)
    with blocking.Consumer(
        namesrv, "G", {"T": "*"}, start="first", orderly=True, settings=quick, payload=Json(int), trace=True
    ) as consumer:
        seen = []
        for message in consumer:
            assert message.is_pending
            seen.append(message.payload)
            if len(seen) == 3:
                consumer.stop()
    assert seen == [0, 1, 2]
    assert consumer.trace_counts == TraceCounts(sent=6)  # before and after each message
    with blocking.Consumer(namesrv, "G", {"T": "*"}, ack="manual", settings=quick) as consumer:
        for messages in consumer.batches(2, timeout=1):
            for message in messages:
                message.ack()
                assert not message.is_pending
                seen.append(int(message.body))
            if len(seen) >= 6:
                break
        assert consumer.committed(message.queue) is not None
    assert seen == list(range(6))


def test_a_loop_that_raises_leaves_its_message_unacknowledged(ariane_cluster: LocalCluster) -> None:
    namesrv, levels = ariane_cluster.namesrv, ConsumerSettings(close_timeout=1)
    with blocking.Producer(namesrv, "P") as producer:
        producer.send("T", b"x")
    with blocking.Consumer(namesrv, "G", {"T": "*"}, start="first", settings=levels) as consumer:
        with pytest.raises(ZeroDivisionError):
            for message in consumer:
                first = message
                _ = 1 / 0
        for message in consumer:
            assert (message.message_id, message.attempt) == (first.message_id, 2)
            message.ack()
            break


def test_a_listener_runs_in_a_thread_and_may_send(ariane_cluster: LocalCluster) -> None:
    namesrv, answered, names = ariane_cluster.namesrv, threading.Event(), []
    with blocking.ClientInstance(namesrv) as instance, blocking.Producer(instance.shared, "P") as producer:

        def listener(messages: list[ariane.ReceivedMessage]) -> None:
            names.append(threading.current_thread().name)
            if messages[0].topic == "ask":
                producer.send("answer", messages[0].body)
            else:
                answered.set()

        producer.send("answer", b"creates the topic")
        with blocking.PushConsumer(instance.shared, "G", {"ask": "*", "answer": "*"}, listener):
            producer.send("ask", b"x")
            assert answered.wait(PATIENCE_S)
    assert all(name != "ariane-blocking" for name in names)


def test_a_transaction_is_a_block(ariane_cluster: LocalCluster) -> None:
    checked, namesrv = threading.Event(), ariane_cluster.namesrv
    threads = []

    def check(message: ariane.ReceivedMessage) -> LocalState:
        threads.append(threading.current_thread().name)
        checked.set()
        return LocalState.ROLLBACK

    with blocking.TransactionProducer(namesrv, "P", check=check) as producer:
        with producer.transaction("T", b"paid", keys=["K"]) as transaction:
            assert transaction.sent.status.name == "SEND_OK"
        with pytest.raises(ZeroDivisionError), producer.transaction("T", b"raises"):
            _ = 1 / 0
    with blocking.LitePullConsumer(namesrv, "G", {"T": "*"}, start="first") as consumer:
        assert [message.body for message in consumer.poll(timeout=PATIENCE_S)] == [b"paid"]
    with pytest.raises(ConfigError, match="check"):
        blocking.TransactionProducer(namesrv, "P", check=lambda: LocalState.COMMIT)


def test_errors_are_those_of_the_asyncio_client(ariane_cluster: LocalCluster) -> None:
    producer = blocking.Producer(ariane_cluster.namesrv, "P")
    with pytest.raises(ClientClosed, match="this Producer is not open"):
        producer.send("T", b"x")
    with producer:
        with pytest.raises(MessageRefused, match="no body"):
            producer.send("T")  # type: ignore[call-overload]
        with pytest.raises(RequestTimeout):
            producer.request("T", b"anybody?", timeout=0.2)
        with pytest.raises(ClientClosed, match="open already"):
            producer.open()
        with pytest.raises(RuntimeError, match="would wait for itself"):
            shared_loop().call(lambda: producer.send("T", b"x"))
    producer.close()  # again: nothing happens
    producer.open().close()
    with pytest.raises(ConfigError, match="has no port"):
        blocking.Producer("localhost", "P")


def test_the_signature_is_that_of_the_asyncio_client() -> None:
    for name in blocking.__all__:
        if name == "ConsumerMessage":
            continue
        twin, own = getattr(ariane, name), getattr(blocking, name)
        if name != "PoppedMessage":  # made by the clients only
            assert inspect.signature(own) == inspect.signature(twin)
        public = {item for item in vars(twin) if not item.startswith("_")}
        missing = public - set(dir(own)) - {"send_in_transaction", "push", "client_id"}
        if name != "ClientInstance":  # its methods are for the clients that share it
            assert missing == set()
    assert (blocking.Producer.send_batch.__doc__ or "").startswith("Send messages of one topic in one request")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_told_to_open_its_own_client(ariane_cluster: LocalCluster) -> None:
    program = f"""
        import os
        from ariane.blocking import Producer
        from ariane.errors import ClientClosed

        producer = Producer("{ariane_cluster.namesrv}", "P").open()
        producer.send("T", b"parent")
        child = os.fork()
        if child == 0:
            try:
                producer.send("T", b"of the parent")
            except ClientClosed as error:
                print(error, flush=True)
            with Producer("{ariane_cluster.namesrv}", "C") as own:
                print(own.send("T", b"child").status.name, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(producer.send("T", b"parent again").status.name)
    """
    lines = run_program(program)
    assert "open one after the fork" in lines[0]
    assert lines[1:] == ["SEND_OK", "SEND_OK"]


def test_a_program_that_ends_closes_what_it_left_open(ariane_cluster: LocalCluster) -> None:
    program = f"""
        from ariane.blocking import LitePullConsumer, Producer

        producer = Producer("{ariane_cluster.namesrv}", "P").open()
        producer.send("T", b"x")
        consumer = LitePullConsumer("{ariane_cluster.namesrv}", "G", {{"T": "*"}}, start="first").open()
        assert [message.body for message in consumer.poll(timeout=30)] == [b"x"]
        assert consumer.poll(timeout=0) == []  # acknowledges
        print(consumer.queues[0].topic)
    """
    assert run_program(program) == ["T"]
    with blocking.LitePullConsumer(ariane_cluster.namesrv, "G", {"T": "*"}) as consumer:
        committed = [consumer.committed(queue) for queue in consumer.queues_of("T")]
    assert sum(offset or 0 for offset in committed) == 1


def test_an_interrupted_wait_cancels_the_operation(ariane_cluster: LocalCluster) -> None:
    program = f"""
        import os, signal, threading
        from ariane.blocking import LitePullConsumer, Producer

        with Producer("{ariane_cluster.namesrv}", "P") as producer:
            producer.send("T", b"x")
        with LitePullConsumer("{ariane_cluster.namesrv}", "G", {{"T": "*"}}) as consumer:
            consumer.poll(timeout=30)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                print(consumer.poll(timeout=600))
            except KeyboardInterrupt:
                print("interrupted")
    """
    assert run_program(program) == ["interrupted"]


def run_program(text: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(ariane.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
