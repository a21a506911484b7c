"""Requests of our clients at Java brokers of 4.9.4 and 5.3.3: delays, transactions, pull, requests, SQL, admin requests."""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from interop_servers import JavaServers, JavaServersOf, mqadmin

from ariane.client import (
    ConsumerSettings,
    LitePullConsumer,
    LocalState,
    Producer,
    PullConsumer,
    PushConsumer,
    Sql,
    TransactionProducer,
)
from ariane.cluster.admin import Admin
from ariane.cluster.groups.offset_admin import OffsetTarget
from ariane.errors import MessageRefused, ReplyError
from ariane.model.message import Message, ReceivedMessage
from ariane.testing import java

pytestmark = pytest.mark.interop

PATIENCE_S = 60.0
FAST = ConsumerSettings(commit_interval=0.2)

_numbers = itertools.count(1)


@pytest.fixture(params=[java.V4, java.V5], ids=lambda release: release.version)
def peers(request: pytest.FixtureRequest, java_servers: JavaServersOf) -> JavaServers:
    return java_servers(request.param, False)


@pytest.fixture
def topic() -> str:
    return f"Features{next(_numbers)}"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


class Arrivals:
    """Listener that records its messages and when they came."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self.times: dict[bytes, float] = {}

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self.messages.append(message)
            self.times[message.body] = time.time()

    @property
    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.messages)


def test_delay_levels(peers, topic):
    async def play():
        arrivals = Arrivals()
        async with (
            Producer(peers.name_server, "P") as producer,
            PushConsumer(peers.name_server, f"{topic}-g", {topic: "*"}, arrivals, start="first", settings=FAST),
        ):
            sent_at = time.time()
            await producer.send(topic, b"level 1", delay_level=1)
            await until(lambda: arrivals.bodies == [b"level 1"])
        return arrivals.times[b"level 1"] - sent_at

    assert asyncio.run(play()) >= 0.9


def test_a_delivery_time_is_kept_or_refused(peers, topic):
    """Never delivered immediately: 4.9.4 does not support times, 5.3.3 does, and cancels them."""

    async def refused(producer: Producer) -> None:
        soon = datetime.now(UTC) + timedelta(seconds=2)
        for times in ({"deliver_at": soon}, {"delay": 2}, {"deliver_at_ms": int(soon.timestamp() * 1000)}):
            for send in (producer.send, producer.send_one_way):
                with pytest.raises(MessageRefused, match=f"the broker at {peers.broker} would deliver it immediately"):
                    await send(topic, b"timed", **times)
        await producer.send(topic, b"plain")

    async def kept(producer: Producer, arrivals: Arrivals) -> None:
        start = time.time()
        due = datetime.fromtimestamp(start + 3, UTC)
        await producer.send(topic, b"at", deliver_at=due)
        await producer.send(topic, b"after", delay=timedelta(seconds=3))
        await producer.send_one_way(topic, b"one way", delay=3)
        recalled = await producer.send(topic, b"recalled", delay=4)
        await producer.recall(recalled)
        with pytest.raises(ReplyError, match="timer"):
            await producer.send(topic, b"too late", deliver_at=datetime.now(UTC) + timedelta(days=30))
        await producer.send(topic, b"plain")
        await until(lambda: arrivals.bodies == [b"after", b"at", b"one way", b"plain"])
        # Timers of 5.3.3 have a precision of one second.
        assert min(arrivals.times[body] for body in (b"at", b"after", b"one way")) - start >= 2
        await asyncio.sleep(max(0, start + 6 - time.time()))  # the time of the recalled message is over

    async def play():
        arrivals = Arrivals()
        async with (
            Producer(peers.name_server, "P") as producer,
            PushConsumer(peers.name_server, f"{topic}-g", {topic: "*"}, arrivals, start="first", settings=FAST),
        ):
            await (refused(producer) if peers.java is java.V4 else kept(producer, arrivals))
            await until(lambda: b"plain" in arrivals.times)
        return arrivals.bodies

    expected = [b"plain"] if peers.java is java.V4 else [b"after", b"at", b"one way", b"plain"]
    assert asyncio.run(play()) == expected


def test_transactions_end_as_decided_and_open_ones_are_checked(peers, topic):
    states = {b"commit": LocalState.COMMIT, b"rollback": LocalState.ROLLBACK, b"open": LocalState.UNKNOWN}
    checked: list[bytes] = []

    async def check(message: ReceivedMessage) -> LocalState:
        checked.append(message.body)
        return LocalState.COMMIT

    async def play():
        arrivals = Arrivals()
        async with (
            TransactionProducer(peers.name_server, f"{topic}-p", check=check) as producer,
            PushConsumer(peers.name_server, f"{topic}-g", {topic: "*"}, arrivals, start="first", settings=FAST),
        ):
            for body, state in states.items():
                result = await producer.send_in_transaction(
                    Message(topic=topic, body=body), lambda _, state=state: state
                )
                assert result.state is state
            async with producer.transaction(Message(topic=topic, body=b"block")):
                pass
            await until(lambda: len(arrivals.messages) >= 3)
        return arrivals.bodies

    assert asyncio.run(play()) == [b"block", b"commit", b"open"]
    assert checked
    assert set(checked) == {b"open"}


def test_lite_pull_polls_commits_and_seeks(peers, topic):
    group = f"{topic}-g"

    async def poll(consumer: LitePullConsumer, count: int) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(messages) < count:
                messages += await consumer.poll(timeout=1)
        return messages

    async def play():
        async with Producer(peers.name_server, "P") as producer:
            await producer.send_batch([Message(topic=topic, body=b"%d" % n, tags="AB"[n % 2]) for n in range(20)])
        manual = {"start": "first", "auto_commit": False}
        async with LitePullConsumer(peers.name_server, group, {topic: "A"}, **manual) as consumer:
            first = await poll(consumer, 10)
            await consumer.commit()
            queue = first[0].queue
            committed = await consumer.committed(queue)
            await consumer.seek_to_begin(queue)
            again = await poll(consumer, 10)
            await consumer.commit()
        async with LitePullConsumer(peers.name_server, group, {topic: "A"}, **manual) as consumer:
            rest = await consumer.poll(timeout=1)
        async with LitePullConsumer(peers.name_server, f"{topic}-other") as consumer:
            await consumer.assign([queue])
            await consumer.seek(queue, 15)
            assigned = await poll(consumer, 5)
        return first, committed, again, rest, assigned

    first, committed, again, rest, assigned = asyncio.run(play())
    evens = [b"%d" % n for n in range(0, 20, 2)]
    assert [message.body for message in first] == [message.body for message in again] == evens
    assert committed in {19, 20}  # the last message of the queue does not match
    assert rest == []
    assert [message.queue_offset for message in assigned] == [15, 16, 17, 18, 19]


def test_pull_by_tags_sql_and_time(peers, topic):
    async def play():
        async with Producer(peers.name_server, "P") as producer:
            messages = [
                Message(topic=topic, body=b"%d" % n, tags="AB"[n % 2], properties={"n": str(n)}) for n in range(10)
            ]
            queue = (await producer.send_batch(messages)).queue
        async with PullConsumer(peers.name_server) as consumer:
            # A consume queue is written a moment after the log.
            async with asyncio.timeout(PATIENCE_S):
                while await consumer.bounds(queue) != (0, 10):
                    await asyncio.sleep(0.02)
            results = [
                await consumer.pull(queue, 0, expression=expression, can_wait=False)
                for expression in ("*", "A", Sql("n > 6"))
            ]
            assert await consumer.offset_for_time(queue, datetime.now(UTC) - timedelta(hours=1)) == 0
            beyond = await consumer.pull(queue, 10, can_wait=False)
        return [[message.body for message in result.messages] for result in results], beyond.messages

    (every, tagged, selected), beyond = asyncio.run(play())
    assert every == [b"%d" % n for n in range(10)]
    assert tagged == every[::2]
    assert selected == [b"7", b"8", b"9"]
    assert beyond == []


def test_push_by_sql(peers, topic):
    async def play():
        arrivals = Arrivals()
        subscriptions = {topic: Sql("n BETWEEN 3 AND 5 OR kind = 'x'")}
        async with Producer(peers.name_server, "P") as producer:
            for n in range(8):
                await producer.send(topic, b"%d" % n, properties={"n": str(n), "kind": "x" if n == 7 else "y"})
            async with PushConsumer(peers.name_server, f"{topic}-g", subscriptions, arrivals, start="first"):
                await until(lambda: len(arrivals.messages) == 4)
            with pytest.raises(ReplyError):
                async with PushConsumer(peers.name_server, f"{topic}-h", {topic: Sql("n >")}, arrivals):
                    pass
        return arrivals.bodies

    assert asyncio.run(play()) == [b"3", b"4", b"5", b"7"]


def test_requests_and_replies_both_ways(peers, topic):
    """Ours ask ours, ours ask Java, Java asks ours."""

    async def respond(responder: Producer, topic_of: str) -> PushConsumer:
        async def answer(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                await responder.reply(message, message.body.upper())

        return PushConsumer(peers.name_server, f"{topic_of}-r", {topic_of: "*"}, answer, start="first")

    async def play():
        async with Admin(peers.name_server) as admin:
            await admin.create_topic(f"{topic}J")  # Java looks for a new topic every 20 s
        async with Producer(peers.name_server, "P") as asking, Producer(peers.name_server, "R") as responder:
            async with await respond(responder, topic):
                ours = await asking.request(topic, b"ours", timeout=30)
                asked = await asyncio.to_thread(
                    peers.java.run, "ariane.peers.Request", [peers.name_server, topic, "J", "2"]
                )
            with peers.java.start("ariane.peers.Reply", [peers.name_server, f"{topic}J", f"{topic}-j"]) as program:
                events = program.events(time.monotonic() + PATIENCE_S)
                await asyncio.to_thread(next, events)
                theirs = await asking.request(f"{topic}J", b"theirs", timeout=30)
        return ours.body, theirs.body, [base64.b64decode(event["body"]) for event in java.events(asked)]

    assert asyncio.run(play()) == (b"OURS", b"THEIRS", [b"REQUEST 0", b"REQUEST 1"])


@pytest.mark.parametrize("algorithm", ["LZ4", "ZSTD"])
def test_we_read_what_java_compresses(peers, topic, algorithm):
    jvm = [*peers.java.quick_start(), f"-Drocketmq.message.compressType={algorithm}"]
    arguments = [peers.name_server, topic, "P", "2", "size=20000"]
    sent = java.events(peers.java.run("ariane.peers.Produce", arguments, jvm_args=jvm))

    async def play():
        async with PullConsumer(peers.name_server) as consumer:
            pulled = [await consumer.pull(queue, 0, can_wait=False) for queue in await consumer.queues_of(topic)]
        return [message for result in pulled for message in result.messages]

    messages = asyncio.run(play())
    assert {message.message_id for message in messages} == {event["msgId"] for event in sent}
    for message in messages:
        assert (message.body[:8], len(message.body)) == (b"message ", 20_000)
        assert message.stored_size < 2_000


def test_administration(peers, topic):
    """Topic, route, bounds, lag, offsets, queries by key and id; and mqadmin of the same release shows the group."""
    group = f"{topic}-g"

    async def play():
        arrivals = Arrivals()
        async with Admin(peers.name_server) as admin, Producer(peers.name_server, "P") as producer:
            await admin.create_topic(topic, queues=3)
            assert topic in await admin.list_topics()
            route = await admin.fetch_route(topic)
            assert [(queue.read_queue_nums, queue.write_queue_nums) for queue in route.queue_datas] == [(3, 3)]
            await admin.create_topic(topic, queues=5)
            sent = [await producer.send(topic, b"%d" % n, keys=[f"{topic}-{n}"]) for n in range(6)]
            async with PushConsumer(
                peers.name_server, group, {topic: "*"}, arrivals, start="first", settings=FAST
            ) as consumer:
                await until(lambda: len(arrivals.messages) == 6)
                connected = await admin.consumer_connections(group)
                printed = mqadmin_of(peers, f"consumerProgress -g {group}", f"topicStatus -t {topic}")
                assert consumer.client_id in str(connected)
            lag = await admin.group_lag(group, topic)
            bounds = await admin.fetch_bounds(topic)
            by_id = await admin.view_by_offset_id(sent[2].offset_message_id)
            async with asyncio.timeout(PATIENCE_S):  # an index is written a moment after the log
                while not (by_key := (await admin.query_by_key(topic, f"{topic}-3")).messages):
                    await asyncio.sleep(0.05)
                while not (by_unique := (await admin.query_by_unique_key(topic, sent[4].message_id)).messages):
                    await asyncio.sleep(0.05)
            await admin.reset_offsets(group, topic, OffsetTarget(time_ms=0))
            after = await admin.group_lag(group, topic)
            await admin.delete_topic(topic)
            assert topic not in await admin.list_topics()
        return lag, bounds, (by_id, *by_key, *by_unique), after, printed

    lag, bounds, found, after, (progress, status) = asyncio.run(play())
    assert sum(queue.lag for queue in lag.queues if queue.queue.topic == topic) == 0
    assert sum(queue.max_offset - queue.min_offset for queue in bounds.queues) == 6
    assert [message.body for message in found] == [b"2", b"3", b"4"]
    assert sum(queue.lag for queue in after.queues if queue.queue.topic == topic) == 6
    assert progress.count(topic) >= 5
    assert status.count("broker-a") == 5 or status.count("broker-a") == 3


def mqadmin_of(peers: JavaServers, *lines: str) -> list[str]:
    return mqadmin(peers.name_server, *lines, release=peers.java)


def test_traces_of_java_and_ours_are_in_one_topic(peers, topic):
    """Every client writes to RMQ_SYS_TRACE_TOPIC; a trace of Java is found with ours."""
    wait = "trace=6000" if peers.java is java.V5 else "trace"
    (sent,) = java.events(peers.java.run("ariane.peers.Produce", [peers.name_server, topic, "JP", "1", wait]))

    async def play():
        arrivals = Arrivals()
        group = f"{topic}-g"
        async with PushConsumer(
            peers.name_server, group, {topic: "*"}, arrivals, start="first", settings=FAST, trace=True
        ):
            await until(lambda: len(arrivals.messages) == 1)

    asyncio.run(play())
    (printed,) = mqadmin_of(peers, f"queryMsgTraceById -i {sent['msgId']}")
    assert Counter(printed.split())["success"] == 2, printed
    assert "JP" in printed.split()
    assert f"{topic}-g" in printed
