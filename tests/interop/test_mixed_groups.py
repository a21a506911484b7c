"""One consumer group with a member of ours, of Java 4.9.4 and of Java 5.3.3 shares the queues, at each kind of broker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from interop_servers import JavaServersOf

from ariane.client import ConsumerSettings, Producer, PushConsumer
from ariane.cluster.admin import Admin
from ariane.model.message import ReceivedMessage
from ariane.testing import LocalCluster, java

pytestmark = pytest.mark.interop

PATIENCE_S = 60.0
QUEUES = 6
MESSAGES = 60
FAST = ConsumerSettings(commit_interval=0.2)

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def our_name_server() -> Iterator[str]:
    with LocalCluster() as cluster:
        yield cluster.namesrv


@pytest.fixture(params=["Ariane", "4.9.4", "5.3.3"])
def name_server(request: pytest.FixtureRequest, java_servers: JavaServersOf) -> str:
    if reason := java.V5.available():
        pytest.skip(f"Java peers: {reason}")
    if request.param == "Ariane":
        return request.getfixturevalue("our_name_server")
    return java_servers({"4.9.4": java.V4, "5.3.3": java.V5}[request.param], False).name_server


class Member:
    """What a Java member has consumed so far: message ids, in the order of each queue."""

    def __init__(self, program: java.JavaProgram) -> None:
        self.consumed: list[tuple[str, int, int]] = []  # message id, queue, offset
        events = program.events(time.monotonic() + 2 * PATIENCE_S)
        threading.Thread(target=self._read, args=(events,), daemon=True).start()

    def _read(self, events: Iterator[dict[str, object]]) -> None:
        for event in events:
            self.consumed.append((str(event["msgId"]), int(str(event["queueId"])), int(str(event["queueOffset"]))))


CONCURRENT = pytest.mark.long(
    "tests/interop/test_mixed_groups.py::test_three_members_share_the_queues_without_loss_or_double_assignment",
    "tests/interop/test_client_against_java.py::test_our_500_messages_are_consumed_by_our_and_by_java_clients",
)


@pytest.mark.parametrize("kind", [pytest.param("concurrent", marks=CONCURRENT), "orderly"])
def test_three_members_share_the_queues_without_loss_or_double_assignment(name_server, kind):
    topic = f"Mixed{next(_numbers)}"
    group = f"{topic}-g"
    ours: list[tuple[str, int, int]] = []
    options = ["orderly"] if kind == "orderly" else []

    async def listener(messages: list[ReceivedMessage]) -> None:
        ours.extend((message.message_id, message.queue.queue_id, message.queue_offset) for message in messages)

    async def send(producer: Producer, count: int) -> set[str]:
        return {(await producer.send(topic, b"%d" % number)).message_id for number in range(count)}

    async def consumed_by_one_each(producer: Producer, members: list[list[tuple[str, int, int]]]) -> list[list[int]]:
        """Send until a round of messages reached each member exactly through queues of its own; return these queues."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                sent = await send(producer, 2 * QUEUES)
                while not sent <= {one[0] for consumed in members for one in consumed}:
                    await asyncio.sleep(0.05)
                queues = [sorted({queue for name, queue, _ in consumed if name in sent}) for consumed in members]
                if sorted(map(len, queues)) == [QUEUES // len(members)] * len(members):
                    return queues
                await asyncio.sleep(0.5)  # a member has not begun all its queues

    async def play() -> None:
        async with Admin(name_server) as admin:
            await admin.create_topic(topic, queues=QUEUES)
        arguments = [name_server, topic, group, "*", "0", "120", *options]
        async with (
            Producer(name_server, "P") as producer,
            PushConsumer(
                name_server, group, {topic: "*"}, listener, start="first", orderly=kind == "orderly", settings=FAST
            ),
        ):
            with contextlib.ExitStack() as stack:
                started = [
                    stack.enter_context(release.start("ariane.peers.Consume", arguments))
                    for release in (java.V4, java.V5)
                ]
                members = [ours, *(Member(program).consumed for program in started)]
                queues = await consumed_by_one_each(producer, members)
                assert sorted(itertools.chain(*queues)) == list(range(QUEUES))
                # With a stable assignment, each message is consumed once.
                sent = await send(producer, MESSAGES)
                async with asyncio.timeout(PATIENCE_S):
                    while not sent <= {one[0] for consumed in members for one in consumed}:
                        await asyncio.sleep(0.05)
                assert set(Counter(one[0] for consumed in members for one in consumed if one[0] in sent).values()) == {
                    1
                }
                if kind == "orderly":
                    assert all(map(in_order, ([one for one in consumed if one[0] in sent] for consumed in members)))
                await asyncio.to_thread(stack.close)
            if kind == "orderly":
                return  # brokers keep the locks of members that were killed for 60 s
            # The members of Java have ended: all queues come to ours, and nothing is lost.
            later = await send(producer, 2 * QUEUES)
            async with asyncio.timeout(PATIENCE_S):
                while not later <= {one[0] for one in ours}:
                    await asyncio.sleep(0.05)

    asyncio.run(play())


def in_order(consumed: list[tuple[str, int, int]]) -> bool:
    offsets = defaultdict(list)
    for _, queue, offset in consumed:
        offsets[queue].append(offset)
    return all(of_queue == sorted(of_queue) for of_queue in offsets.values())
