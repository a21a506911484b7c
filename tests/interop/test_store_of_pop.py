"""A store whose consumers use POP, opened in turn by our broker, by Java's of 4.9.4 and 5.3.3, and by ours again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ariane.client import Producer, PushConsumer, SimpleConsumer
from ariane.cluster.admin import Admin
from ariane.model.message import Message, ReceivedMessage
from ariane.testing import LocalCluster, java

pytestmark = pytest.mark.interop

TOPIC, QUEUES = "T", 4
SMALL = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 2000}
JAVA_SMALL = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "2000"}
PATIENCE_S = 120.0
INVISIBLE_S = 30  # of messages that are in flight at a hand-over


class Ledger:
    """What was sent, and what each group has acknowledged."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.acknowledged: dict[str, set[str]] = {"four": set(), "five": set()}
        self.repeated: set[str] = set()  # messages that were delivered to their group after their acknowledgement

    def missing(self, group: str) -> set[str]:
        return self.sent - self.acknowledged[group]

    async def send(self, namesrv: str, count: int, delay: float = 0) -> None:
        async with Producer(namesrv, "P") as producer:
            for _ in range(count):
                self.sent.add((await producer.send(Message(topic=TOPIC, body=b"x", delay=delay))).message_id)

    async def take(self, namesrv: str, group: str, *, leave: int) -> set[str]:
        """Take all messages that are not acknowledged, and acknowledge all but `leave`: one of these is visible again soon."""
        taken, is_returned = set[str](), False
        async with (
            asyncio.timeout(PATIENCE_S),
            SimpleConsumer(namesrv, group, TOPIC, start="first") as consumer,
        ):
            while not self.missing(group) <= taken:
                messages = await consumer.receive(8, invisible=INVISIBLE_S, timeout=2)
                self.repeated |= {message.message_id for message in messages} & self.acknowledged[group]
                for message in messages:
                    taken.add(message.message_id)
                    if len(self.missing(group)) > leave:
                        await message.ack()
                        self.acknowledged[group].add(message.message_id)
                    elif not is_returned:
                        await message.change_invisible(1)
                        is_returned = True
        return self.missing(group)


async def wait_for_retry(namesrv: str) -> None:
    """Wait until a broker of 5.x has stored a retry in a topic of its own."""
    async with asyncio.timeout(PATIENCE_S), Admin(namesrv) as admin:
        while f"%RETRY%five_{TOPIC}" not in await admin.list_topics():
            await asyncio.sleep(0.5)


@contextlib.contextmanager
def served_by_java(release: java.JavaRelease, home: Path) -> Iterator[str]:
    with (
        release.name_server(home / f"names-{release.version}") as names,
        release.broker(home, names.addr, properties=JAVA_SMALL),
    ):
        yield names.addr


@pytest.mark.long(
    "tests/unit/test_revive_log.py::test_messages_in_flight_and_retries_of_a_broker_of_5x_are_delivered",
    "tests/interop/test_store_directory.py::test_a_store_opened_by_java_then_ours_then_java",
)
@pytest.mark.timeout(900)
def test_no_message_is_lost_on_the_way_to_java_4_and_5_and_back(tmp_path: Path) -> None:
    if reason := java.V4.available() or java.V5.available():
        pytest.skip(f"Java peers: {reason}")
    ledger = Ledger()

    async def at_ours(namesrv: str) -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        await ledger.send(namesrv, 40)
        for group in ledger.acknowledged:
            await ledger.take(namesrv, group, leave=7)

    async def at_4_9_4(namesrv: str) -> None:
        await ledger.send(namesrv, 5)
        consumed: set[str] = set()

        def listen(messages: list[ReceivedMessage]) -> None:
            consumed.update(message.message_id for message in messages)

        async with asyncio.timeout(PATIENCE_S), PushConsumer(namesrv, "four", TOPIC, listen, start="first"):
            while not ledger.missing("four") <= consumed:
                await asyncio.sleep(0.1)
        ledger.acknowledged["four"] |= consumed

    async def at_5_3_3(namesrv: str) -> None:
        await ledger.send(namesrv, 20)
        await ledger.send(namesrv, 5, delay=2)  # delivered there
        assert len(await ledger.take(namesrv, "five", leave=9)) == 9
        await wait_for_retry(namesrv)
        await ledger.send(namesrv, 3, delay=60)  # pending at the hand-over

    with LocalCluster(tmp_path, **SMALL) as servers:
        asyncio.run(at_ours(servers.namesrv))
    with served_by_java(java.V4, tmp_path) as namesrv:
        asyncio.run(at_4_9_4(namesrv))
    with served_by_java(java.V5, tmp_path) as namesrv:
        asyncio.run(at_5_3_3(namesrv))
    consumed_there = set(ledger.acknowledged["five"])
    with LocalCluster(tmp_path, **SMALL) as servers:
        for group in ledger.acknowledged:
            assert asyncio.run(ledger.take(servers.namesrv, group, leave=0)) == set()
    assert ledger.repeated & consumed_there == set()
