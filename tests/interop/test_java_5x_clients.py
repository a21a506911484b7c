"""Unmodified Java 5.3.3 clients and tools at our name server and broker."""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from interop_servers import mqadmin

from ariane.testing import LocalCluster, java

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    if reason := java.V5.available():
        pytest.skip(f"Java peers: {reason}")
    with LocalCluster(enable_property_filter=True, transaction_check_interval=1_000, transaction_time_out=1_000) as own:
        yield own.namesrv


def run(program: str, *arguments: str, jvm: str = "") -> list[dict[str, Any]]:
    jvm_args = [*java.V5.quick_start(), *jvm.split()]
    return java.events(java.V5.run(f"ariane.peers.{program}", arguments, jvm_args=jvm_args))


def create(namesrv: str, topic: str) -> None:
    """Create a topic: a consumer that starts before its topic exists looks for it 20 s later."""
    (printed,) = mqadmin(namesrv, f"updateTopic -c DefaultCluster -t {topic}", release=java.V5)
    assert "success" in printed


def bodies(events: list[dict[str, object]]) -> list[bytes]:
    return sorted(base64.b64decode(str(event["body"])) for event in events)


def test_producers_and_consumers(namesrv: str) -> None:
    """Plain, large (LZ4), batches; push, orderly, by SQL, lite pull."""
    sent = run("Produce", namesrv, "T5", "P", "12", "tags=A,B", "number=n")
    sent += run(
        "Produce",
        namesrv,
        "T5",
        "P",
        "2",
        "tags=A",
        "size=20000",
        "number=n",
        jvm="-Drocketmq.message.compressType=LZ4",
    )
    batch = run("Produce", namesrv, "T5", "P", "10", "batch=5", "tags=B", "number=n")
    assert {event["status"] for event in sent + batch} == {"SEND_OK"}
    pushed = run("Consume", namesrv, "T5", "push", "*", "24", "60")
    assert Counter(event["msgId"] for event in pushed) == Counter(event["msgId"] for event in sent + batch)
    polled = run("LitePull", namesrv, "T5", "lite", "A || B", "24", "60")
    assert {event["msgId"] for event in polled} == {event["msgId"] for event in pushed}
    selected = run("Consume", namesrv, "T5", "sql", "n >= 8 AND TAGS = 'B'", "4", "60", "sql")
    assert bodies(selected) == [b"message 11", b"message 8", b"message 9", b"message 9"]
    # Each message of a batch has the id that its producer knows, so it is found by it.
    (printed, progress) = mqadmin(
        namesrv, f"queryMsgByUniqueKey -t T5 -i {batch[3]['msgId']}", "consumerProgress -g lite", release=java.V5
    )
    assert str(batch[3]["msgId"]) in printed
    assert str(batch[3]["key"]) in printed
    assert "Diff Total: 0" in progress, progress


def test_orderly_consumers(namesrv: str) -> None:
    run("Produce", namesrv, "O5", "P", "30", "orders=3")
    order: dict[object, list[int]] = {}
    for event in run("Consume", namesrv, "O5", "orderly", "*", "30", "60", "orderly"):
        order.setdefault(event["key"], []).append(int(base64.b64decode(str(event["body"])).split()[1]))
    assert len(order) == 3
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_pop_consumers(namesrv: str) -> None:
    """The broker assigns all queues to each member; the offset is that of the first message that is not acknowledged."""
    create(namesrv, "POP5")
    (printed,) = mqadmin(namesrv, "setConsumeMode -c DefaultCluster -t POP5 -g pop -m POP -q 0", release=java.V5)
    assert "success" in printed, printed
    sent = run("Produce", namesrv, "POP5", "P", "40", "tags=A,B")
    consumed = run("Consume", namesrv, "POP5", "pop", "A", "20", "60", "pop")
    assert sorted(event["msgId"] for event in consumed) == sorted(event["msgId"] for event in sent[::2])
    with java.V5.start("ariane.peers.Consume", [namesrv, "POP5", "pop", "A", "2", "60", "pop", "fail"]) as consumer:
        failed = run("Produce", namesrv, "POP5", "P", "1", "tags=A")
        attempts = list(consumer.events(time.monotonic() + 60))  # 10 s after the first one
    assert [(event["msgId"], event["reconsumeTimes"]) for event in attempts] == [
        (failed[0]["msgId"], 0),
        (failed[0]["msgId"], 1),
    ]


@pytest.mark.long(
    "tests/interop/test_transactions_java.py::test_transactions_of_a_java_producer_at_our_broker",
)
def test_transactions(namesrv: str) -> None:
    printed = run("Transact", namesrv, "X5", "XP", "3", "4", "first=commit,rollback,unknown")
    assert [event["key"] for event in printed if event["event"] == "check"] == ["K-2"]
    consumed = run("Consume", namesrv, "X5", "x", "*", "2", "60")
    assert bodies(consumed) == [b"message 0", b"message 2"]


@pytest.mark.long(
    "tests/interop/test_delays_with_java.py::test_java_clients_use_delays_of_our_broker",
)
def test_delays_by_level_and_time(namesrv: str) -> None:
    create(namesrv, "D5")
    with java.V5.start("ariane.peers.Consume", [namesrv, "D5", "d", "*", "2", "60"]) as consumer:
        sent = run("Produce", namesrv, "D5", "P", "1", "delay=1")
        sent += run("Produce", namesrv, "D5", "P", "1", "property=TIMER_DELIVER_MS:+1500")
        consumed = {event["msgId"]: event for event in consumer.events(time.monotonic() + 60)}
    by_level, by_time = ((event, int(consumed[event["msgId"]]["receivedAt"])) for event in sent)
    assert by_level[1] >= int(by_level[0]["sentAt"]) + 900
    assert by_time[1] >= int(by_time[0]["properties"]["TIMER_DELIVER_MS"])


@pytest.mark.long(
    "tests/interop/test_java_5x_clients.py::test_producers_and_consumers",
    "tests/interop/test_retries_java.py::test_messages_failed_by_a_java_consumer_become_dead_letters",
)
def test_retries_and_requests(namesrv: str) -> None:
    run("Produce", namesrv, "R5", "P", "1")
    run("Consume", namesrv, "R5", "r", "*", "1", "60")  # creates the retry topic, which Java looks for when it starts
    run("Produce", namesrv, "R5", "P", "1")
    attempts = run("Consume", namesrv, "R5", "r", "*", "2", "60", "fail", "level=1")
    assert [event["reconsumeTimes"] for event in attempts][:2] == [0, 1]
    create(namesrv, "Q5")
    with java.V5.start("ariane.peers.Reply", [namesrv, "Q5", "responders"]) as responder:
        next(responder.events(time.monotonic() + 60))
        replies = run("Request", namesrv, "Q5", "askers", "2")
    assert bodies(replies) == [b"REQUEST 0", b"REQUEST 1"]
