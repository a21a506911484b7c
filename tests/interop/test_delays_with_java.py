"""Delays across implementations: Java 4.9.4 clients at our broker, ours at a Java broker, and one store for both."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from interop_servers import consume, produce, pull_all

from ariane.client import ConsumerSettings, LitePullConsumer, Producer, PushConsumer
from ariane.model.message import Message, ReceivedMessage
from ariane.testing import LocalCluster, java
from ariane.testing.cluster_servers import SMALL_FILES

# A machine that is busy delivers late. That delays are exact is proven in virtual time: tests/unit/test_delayed_delivery.py.
LATE_MS = 30_000
LATE_S = LATE_MS / 1000
AGAIN_S = 2.0
PATIENCE_S = 60.0
# One message each; `+` is a time, counted from now on.
ASKED = {"__STARTDELIVERTIME": "+2500", "TIMER_DELIVER_MS": "+1500", "TIMER_DELAY_MS": "1700", "TIMER_DELAY_SEC": "2"}
TIMES = {*ASKED, "TIMER_OUT_MS"}


def test_java_clients_use_delays_of_our_broker(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, message_delay_level="1s 2s 3s") as servers:
        namesrv = servers.namesrv
        produce(namesrv, 1, "keys=first")
        with java.start("ariane.peers.Consume", [namesrv, "T", "G", "*", "0", "120"]) as consumer:
            events = consumer.events(time.monotonic() + PATIENCE_S)
            assert next(events)["key"] == "first-0"
            levels = produce(namesrv, 6, "delay=2|9")
            times = produce(
                namesrv, 4, "property=" + "|".join(f"{name}:{value},own:kept" for name, value in ASKED.items())
            )
            (past,) = produce(namesrv, 1, "property=TIMER_DELIVER_MS:+-5000")
            result = {item["msgId"]: item for item in (next(events) for _ in range(11))}
    assert result.keys() == {item["msgId"] for item in [*levels, *times, past]}

    for number, item in enumerate(levels):
        came, (level, after_ms) = result[item["msgId"]], ((2, 2000), (3, 3000))[number % 2]
        assert_in_time(came, came["bornTimestamp"] + after_ms, int(str(item["sentAt"])) + after_ms)
        properties = came["properties"]
        assert (properties["DELAY"], properties["REAL_TOPIC"], properties["REAL_QID"]) == (
            str(level),
            "T",
            str(came["queueId"]),
        )
    for item, name in zip(times, ASKED, strict=True):
        came, asked = result[item["msgId"]], int(item["properties"][name])
        unit = {"TIMER_DELAY_MS": 1, "TIMER_DELAY_SEC": 1000}.get(name)
        if unit is None:
            assert_in_time(came, asked, asked)
        else:
            assert_in_time(came, came["bornTimestamp"] + asked * unit, int(item["sentAt"]) + asked * unit)
        properties = came["properties"]
        (time_property,) = TIMES & properties.keys()  # the requested delivery time
        assert time_property == ("__STARTDELIVERTIME" if name == "__STARTDELIVERTIME" else "TIMER_DELIVER_MS")
        assert came["storeTimestamp"] - LATE_MS <= int(properties[time_property]) <= came["storeTimestamp"]
        assert (properties["own"], came["topic"]) == ("kept", "T")
        assert not {"REAL_TOPIC", "REAL_QID"} & properties.keys()
    came = result[past["msgId"]]
    assert_in_time(came, came["bornTimestamp"], int(str(past["sentAt"])))


def assert_in_time(came: dict[str, Any], first_ms: int, last_ms: int) -> None:
    """Assert that the delivery is not before `first_ms` and not later than the allowed delay after `last_ms`."""
    assert first_ms <= came["storeTimestamp"] <= came["receivedAt"] <= last_ms + LATE_MS, came


@pytest.mark.long(
    "tests/interop/test_client_features_at_java.py::test_delay_levels",
)
def test_our_client_uses_delay_levels_of_a_java_broker(tmp_path: Path) -> None:
    received: list[tuple[float, ReceivedMessage]] = []

    async def listener(messages: list[ReceivedMessage]) -> None:
        received.extend((time.time(), message) for message in messages)

    async def play(namesrv: str) -> None:
        async with (
            Producer(namesrv, "P") as producer,
            PushConsumer(
                namesrv, "G", {"T": "*"}, listener, start="first", settings=ConsumerSettings(commit_interval=0.2)
            ),
            asyncio.timeout(PATIENCE_S),
        ):
            await producer.send(Message(topic="T", body=b"0"))
            while not received:
                await asyncio.sleep(0.05)
            for level in (3, 1, 2, 7):
                await producer.send(Message(topic="T", body=b"%d" % min(level, 3), delay_level=level))
            while len(received) < 5:
                await asyncio.sleep(0.05)

    levels = {"messageDelayLevel": "1s 2s 4s"}
    with java.name_server(tmp_path / "ns") as ns, java.broker(tmp_path / "b", ns.addr, properties=levels):
        asyncio.run(play(ns.addr))
    assert [message.body for _, message in received] == [b"0", b"1", b"2", b"3", b"3"]
    for position, message in received[1:]:
        after_s = {b"1": 1, b"2": 2, b"3": 4}[message.body]
        assert after_s <= position - message.born_ms / 1000 <= after_s + LATE_S
        assert message.properties["DELAY"] == message.body.decode()


@pytest.mark.long(
    "tests/interop/test_client_against_java.py::test_messages_without_remaining_attempts_become_dead_letters",
    "tests/interop/test_retries_java.py::test_a_java_consumer_receives_retries_until_the_dead_letter",
)
def test_the_delay_level_increases_with_each_retry_until_the_dead_letter(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, message_delay_level="9s 9s 1s 2s 3s 4s") as servers:
        namesrv = servers.namesrv
        (sent,) = produce(namesrv, 1)
        result: list[dict[str, Any]] = consume(namesrv, "G", "*", 5, "fail", "most=4")
        assert [item["reconsumeTimes"] for item in result] == [0, 1, 2, 3, 4]
        assert {(item["topic"], item["msgId"]) for item in result} == {("T", sent["msgId"])}
        # By when the broker delivered: Java may look for queues of the new retry topic in 20 s only.
        for after_s, before, now in zip((1, 2, 3, 4), result[:-1], result[1:], strict=True):
            assert after_s * 1000 <= now["storeTimestamp"] - before["receivedAt"] <= after_s * 1000 + LATE_MS
        assert [item["properties"]["DELAY"] for item in result[1:]] == ["3", "4", "5", "6"]
        (dead,) = pull_all(namesrv, "%DLQ%G")
        assert (dead["body"], dead["reconsumeTimes"]) == (result[0]["body"], 5)


LEVELS = "1s 12s 35s"
JAVA_LEVELS = {
    "messageDelayLevel": LEVELS,
    "mappedFileSizeCommitLog": str(SMALL_FILES["mapped_file_size_commit_log"]),
    "mappedFileSizeConsumeQueue": str(SMALL_FILES["mapped_file_size_consume_queue"]),
}


@pytest.mark.long(
    "tests/interop/test_store_directory.py::test_a_store_opened_by_java_then_ours_then_java",
    "tests/interop/test_delays_with_java.py::test_java_clients_use_delays_of_our_broker",
)
def test_one_store_for_both_brokers_delivers_each_message_once(tmp_path: Path) -> None:
    """Ours, Java, ours: each delivers pending messages of the other. A killed Java broker loses up to 10 s of progress."""
    with LocalCluster(tmp_path, message_delay_level=LEVELS) as servers:
        namesrv = servers.namesrv
        asyncio.run(send(namesrv, "by us", 3, delay_level=1))
        assert asyncio.run(there(namesrv, 3)) == {"by us": 3}
        asyncio.run(send(namesrv, "ours by Java", 4, delay_level=2))
        asyncio.run(send(namesrv, "ours by us", 4, delay_level=3))
        asyncio.run(send(namesrv, "timer by us", 2, deliver_at_ms=time.time_ns() // 1_000_000 + 5000))

    with java.name_server(tmp_path / "ns") as ns, java.broker(tmp_path, ns.addr, properties=JAVA_LEVELS):
        asyncio.run(send(ns.addr, "Java by Java", 3, delay_level=1))
        by_java = asyncio.run(there(ns.addr, 10))
        assert by_java == {"by us": 3, "ours by Java": 4, "Java by Java": 3}
        asyncio.run(send(ns.addr, "Java by us", 4, delay_level=2))

    with LocalCluster(tmp_path, message_delay_level=LEVELS) as servers:
        namesrv = servers.namesrv
        asyncio.run(there(namesrv, 20))
        time.sleep(AGAIN_S)  # for what would come twice
        everything = asyncio.run(there(namesrv, 20))
        messages = pull_all(namesrv, "T")  # Java sees the same
    assert everything == {**by_java, "ours by us": 4, "timer by us": 2, "Java by us": 4}
    assert len({message["msgId"] for message in messages}) == len(messages) == 20


async def send(namesrv: str, body: str, count: int, **delay: int) -> None:
    async with Producer(namesrv, "P") as producer:
        for _ in range(count):
            await producer.send(Message(topic="T", body=body.encode(), **delay))  # type: ignore[arg-type]


async def there(namesrv: str, count: int) -> dict[str, int]:
    """Return the number of messages in T by body, once there are at least `count` and no further ones arrive."""
    result: Counter[str] = Counter()
    group = f"G{time.time_ns()}"
    async with asyncio.timeout(PATIENCE_S), LitePullConsumer(namesrv, group, {"T": "*"}, start="first") as consumer:
        while True:
            more = await consumer.poll(timeout=0.5)
            result.update(message.body.decode() for message in more)
            if not more and result.total() >= count:
                return dict(result)
