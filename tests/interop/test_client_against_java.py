"""Our Producer and PushConsumer against Java name servers and brokers of 4.9.4 and 5.3.3, alongside clients of the same release."""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from interop_servers import RELEASES, JavaServers, JavaServersOf, mqadmin
from typer.testing import CliRunner

from ariane.cli.main import app
from ariane.cli.mqadmin import main as our_mqadmin
from ariane.client import (
    ClientInstance,
    ClientSettings,
    Consumer,
    ConsumerSettings,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReconsumeLater,
    SendStatus,
)
from ariane.errors import ReplyError
from ariane.model import clock_offset
from ariane.model.message import Message, ReceivedMessage
from ariane.model.topic import TRACE_TOPIC
from ariane.testing import java

pytestmark = pytest.mark.interop

PATIENCE_S = 60.0
FAST = ConsumerSettings(commit_interval=0.2)


@pytest.fixture(params=RELEASES, ids=lambda release: release.version)
def peers(request: pytest.FixtureRequest, java_servers: JavaServersOf) -> JavaServers:
    return java_servers(request.param, True)


_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    return f"Against{next(_numbers)}"


@pytest.fixture
def group() -> str:
    return f"against-{next(_numbers)}"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


class Inbox:
    """Listener that records its messages."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        self.messages.extend(messages)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


def consume_with_java(
    peers: JavaServers, topic: str, group: str, expression: str, count: int
) -> list[dict[str, object]]:
    result = java.events(
        peers.java.run("ariane.peers.Consume", [peers.name_server, topic, group, expression, str(count), "60"])
    )
    for message in result:
        message["body"] = base64.b64decode(message["body"])
    return result


def test_our_500_messages_are_consumed_by_our_and_by_java_clients(peers, topic, group):
    bodies = [b"message %d" % number * (500 if number % 10 == 0 else 1) for number in range(500)]

    async def play():
        inbox = Inbox()
        async with Producer(peers.name_server, "producers") as producer:
            first = await producer.send(Message(topic=topic, body=b"first", tags="first"))
            results = await asyncio.gather(
                *(
                    producer.send(
                        Message(
                            topic=topic, body=body, tags="AB"[number % 2], keys=[f"key-{number}", "all"],
                            properties={"mine": str(number)}, flag=number,
                        )
                    )
                    for number, body in enumerate(bodies)
                )
            )  # fmt: skip
            assert {send_result.status for send_result in [first, *results]} == {SendStatus.SEND_OK}
            assert len({send_result.queue for send_result in results}) == 4
            subscriptions = {topic: "A || B"}
            async with PushConsumer(peers.name_server, group, subscriptions, inbox, start="first", settings=FAST):
                await until(lambda: len(inbox.messages) >= 500)
        return results, inbox

    results, inbox = asyncio.run(play())
    assert sorted(inbox.bodies) == sorted(bodies)
    by_id = {message.message_id: message for message in inbox.messages}
    for number, sent in enumerate(results):
        result = by_id[sent.message_id]
        assert (result.body, result.tags, result.keys, result.flag) == (
            bodies[number], "AB"[number % 2], (f"key-{number}", "all"), number,
        )  # fmt: skip
        assert result.properties["mine"] == str(number)
        assert (result.offset_message_id, result.queue, result.queue_offset) == (
            sent.offset_message_id, sent.queue, sent.queue_offset,
        )  # fmt: skip
    theirs = consume_with_java(peers, topic, group + "-java", "A", 250)
    expected = {
        (send_result.message_id, bodies[number]) for number, send_result in enumerate(results) if number % 2 == 0
    }
    assert {(send_result["msgId"], send_result["body"]) for send_result in theirs} == expected
    assert {send_result["key"] for send_result in theirs} == {f"key-{number} all" for number in range(0, 500, 2)}


@pytest.mark.parametrize("algorithm", ["lz4", "zstd"])
def test_java_reads_what_we_compress_and_send_over_tls(peers, topic, group, algorithm):
    """Java servers accept both plain and encrypted connections, with a certificate that they generate."""
    encrypted = ClientSettings(use_tls=True, tls_verify="false")
    settings = ProducerSettings(compression=algorithm)

    async def play() -> None:
        inbox = Inbox()
        async with Producer(peers.name_server, group, settings=settings, client=encrypted) as producer:
            await producer.send(topic, b"large" * 5_000, keys=["K"])
        async with PushConsumer(
            peers.name_server, f"{group}-ours", {topic: "*"}, inbox, start="first", client=encrypted
        ):
            await until(lambda: len(inbox.messages) == 1)
        assert inbox.bodies == [b"large" * 5_000]

    asyncio.run(play())
    (received,) = consume_with_java(peers, topic, group, "*", 1)
    assert received["body"] == b"large" * 5_000


def test_our_commands_connect_over_tls(peers, capfd, monkeypatch):
    arguments = ["topicList", "-n", peers.name_server, "--useTls"]
    assert our_mqadmin.main([*arguments, "--tlsVerify", "false"]) == 0
    assert "TBW102" in capfd.readouterr().out
    assert our_mqadmin.main(arguments) == 1  # nothing trusts the certificate that the servers generate
    assert "certificate verify failed" in capfd.readouterr().err
    for name, value in (("NAMESRV_ADDR", peers.name_server), ("ARIANE_TLS", "1"), ("ARIANE_TLS_VERIFY", "false")):
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["topic", "list", "--all"])
    assert (result.exit_code, "TBW102" in result.stdout) == (0, True), result.output


def test_our_consumer_reads_java_messages(peers, topic, group):
    plain = java.events(peers.java.run("ariane.peers.Produce", [peers.name_server, topic, "P", "40", "tags=A,B,C"]))
    large = java.events(
        peers.java.run("ariane.peers.Produce", [peers.name_server, topic, "P", "6", "tags=A", "size=20000"])
    )
    batch = java.events(
        peers.java.run("ariane.peers.Produce", [peers.name_server, topic, "P", "30", "tags=B", "batch=10"])
    )

    async def play():
        inbox = Inbox()
        async with PushConsumer(peers.name_server, group, {topic: "A||B"}, inbox, start="first", settings=FAST):
            await until(lambda: len(inbox.messages) >= 27 + 6 + 30)
            await asyncio.sleep(0.5)
        return inbox

    inbox = asyncio.run(play())
    sent = {item["msgId"]: item for number, item in enumerate(plain) if number % 3 != 2}
    sent |= {item["msgId"]: item for item in large + batch}
    assert Counter(message.message_id for message in inbox.messages) == Counter(sent.keys())
    for message in inbox.messages:
        assert message.offset_message_id == sent[message.message_id]["offsetMsgId"]
        assert " ".join(message.keys) == sent[message.message_id]["key"]
    assert sorted(len(body) for body in inbox.bodies if len(body) > 1000) == [20_000] * 6


def test_batches_and_one_way_sends_arrive_while_one_name_server_is_down(peers, topic, group):
    async def play():
        inbox = Inbox()
        name_servers = f"127.0.0.1:1;{peers.name_server};127.0.0.1:2"
        async with Producer(name_servers, "producers") as producer:
            batch = [Message(topic=topic, body=b"%d" % number, keys=[f"b{number}"]) for number in range(20)]
            result = await producer.send_batch(batch)
            assert len(result.message_id.split(",")) == len(result.offset_message_id.split(",")) == 20
            await producer.send_one_way(Message(topic=topic, body=b"one way"))
            async with PushConsumer(name_servers, group, {topic: "*"}, inbox, start="first", settings=FAST):
                await until(lambda: len(inbox.messages) >= 21)
        return result, inbox

    result, inbox = asyncio.run(play())
    assert sorted(inbox.bodies) == sorted([*(b"%d" % number for number in range(20)), b"one way"])
    batch = [message for message in inbox.messages if message.body != b"one way"]
    assert {message.queue for message in batch} == {result.queue}
    assert [message.message_id for message in sorted(batch, key=lambda one: one.queue_offset)] == (
        result.message_id.split(",")
    )


@pytest.mark.long(
    "tests/interop/test_mixed_groups.py::test_three_members_share_the_queues_without_loss_or_double_assignment",
    "tests/simulation/test_order.py::test_order_is_preserved",
)
def test_orderly_delivery_is_preserved_while_members_join_and_leave(peers, topic, group):
    steps: dict[str, list[int]] = defaultdict(list)

    async def listener(messages):
        for message in messages:
            steps[message.keys[0]].append(int(message.body))

    def member():
        return PushConsumer(
            peers.name_server, group, {topic: "*"}, listener, start="first", orderly=True, settings=FAST
        )

    async def play():
        async with Producer(peers.name_server, "producers") as producer:

            async def order(name: str, first: int, count: int) -> None:
                for step in range(first, first + count):
                    await producer.send(Message(topic=topic, body=b"%d" % step, keys=[name]), order_key=name)

            async def orders(first: int, count: int) -> None:
                await asyncio.gather(*(order(f"o{number}", first, count) for number in range(50)))

            await orders(0, 2)
            async with member() as item:
                await until(lambda: sum(map(len, steps.values())) >= 100)
                async with member() as two:
                    await until(lambda: len(item.queues) + len(two.queues) == 5 and len(two.queues) >= 2)
                    await orders(2, 3)
                    await until(lambda: sum(map(len, steps.values())) >= 250)
                await until(lambda: len(item.queues) == 5)
                await orders(5, 1)
                await until(lambda: sum(map(len, steps.values())) >= 300)

    asyncio.run(play())
    assert steps == {f"o{number}": [0, 1, 2, 3, 4, 5] for number in range(50)}


def test_two_members_share_the_queues_and_each_message_is_consumed_once(peers, topic, group):
    async def play():
        first, second = Inbox(), Inbox()
        async with (
            Producer(peers.name_server, "producers") as producer,
            PushConsumer(peers.name_server, group, {topic: "*"}, first, start="first", settings=FAST) as item,
            PushConsumer(peers.name_server, group, {topic: "*"}, second, start="first", settings=FAST) as two,
        ):
            await producer.send(Message(topic=topic, body=b"creates the topic"))
            python_members = [item, two]
            await until(lambda: all(len([q for q in c.queues if q.topic == topic]) == 2 for c in python_members))
            await until(lambda: len(first.messages) + len(second.messages) >= 1)
            # The first message may come to both: its queue may move before its offset is committed.
            first.messages.clear()
            second.messages.clear()
            await asyncio.gather(*(producer.send(Message(topic=topic, body=b"%d" % n)) for n in range(200)))
            await until(lambda: sent <= {*first.bodies, *second.bodies})
        return [[body for body in inbox.bodies if body in sent] for inbox in (first, second)]

    sent = {b"%d" % n for n in range(200)}
    bodies = asyncio.run(play())
    assert Counter(bodies[0] + bodies[1]) == Counter(sent)
    assert min(map(len, bodies)) == 100  # two queues of four each


def test_a_java_member_and_ours_share_one_group(peers, topic, group):
    peers.java.run("ariane.peers.Produce", [peers.name_server, topic, "P", "4"])

    async def play():
        inbox = Inbox()
        async with PushConsumer(peers.name_server, group, {topic: "*"}, inbox, start="first", settings=FAST) as ours:
            await until(lambda: len([q for q in ours.queues if q.topic == topic]) == 4)
            with peers.java.start("ariane.peers.Consume", [peers.name_server, topic, group, "*", "0", "60"]) as theirs:
                await until(lambda: len([q for q in ours.queues if q.topic == topic]) == 2)
                await asyncio.to_thread(time.sleep, 1)  # Java begins its queues
                inbox.messages.clear()
                async with Producer(peers.name_server, "producers") as producer:
                    sent = [await producer.send(Message(topic=topic, body=b"%d" % n)) for n in range(40)]
                await until(lambda: len(inbox.messages) >= 20)
                ids = {message.message_id for message in inbox.messages}
                deadline = time.monotonic() + PATIENCE_S
                missing = {sent_message.message_id for sent_message in sent} - ids
                for event in theirs.events(deadline):
                    missing.discard(event["msgId"])
                    if not missing:
                        break
            await until(lambda: len([q for q in ours.queues if q.topic == topic]) == 4)
        return missing

    assert asyncio.run(play()) == set()


def test_a_java_push_consumer_and_a_consumer_that_is_iterated_over_share_one_group(peers, topic, group):
    peers.java.run("ariane.peers.Produce", [peers.name_server, topic, "P", "4"])

    async def iterate(consumer: Consumer, seen: list[ReceivedMessage]) -> None:
        async for message in consumer:
            if message.body == b"later" and message.attempt == 1:
                await message.retry(delay_level=1)
                continue
            seen.append(message)
            await message.ack()

    async def play():
        ours: list[ReceivedMessage] = []
        theirs: set[str] = set()
        arguments = {"ack": "manual", "start": "first", "settings": FAST}
        async with Consumer(peers.name_server, group, {topic: "*"}, **arguments) as consumer:
            loops = [asyncio.create_task(iterate(consumer, ours)) for _ in range(3)]
            with peers.java.start("ariane.peers.Consume", [peers.name_server, topic, group, "*", "0", "60"]) as program:
                await until(lambda: len([q for q in consumer.queues if q.topic == topic]) == 2)
                async with Producer(peers.name_server, "producers") as producer:
                    bodies = [b"later" if n % 10 == 0 else b"%d" % n for n in range(40)]
                    sent = {(await producer.send(Message(topic=topic, body=body))).message_id for body in bodies}
                events = program.events(time.monotonic() + PATIENCE_S)
                reading = asyncio.create_task(
                    asyncio.to_thread(lambda: [theirs.add(event["msgId"]) for event in events])
                )
                await until(lambda: sent <= theirs | {message.message_id for message in ours})
            await reading
            # What Java held without having committed it comes to us.
            await until(lambda: len([q for q in consumer.queues if q.topic == topic]) == 4)
            consumer.stop()
            await asyncio.gather(*loops)
        return ours, theirs

    ours, theirs = asyncio.run(play())
    assert len(ours) >= 15
    assert theirs
    assert all(message.attempt == 2 for message in ours if message.body == b"later")


def test_offsets_survive_a_restart_of_the_consumer(peers, topic, group):
    async def play():
        before, after = Inbox(), Inbox()
        async with Producer(peers.name_server, "producers") as producer:
            await asyncio.gather(*(producer.send(Message(topic=topic, body=b"a%d" % n)) for n in range(60)))
            async with PushConsumer(peers.name_server, group, {topic: "*"}, before, start="first"):
                await until(lambda: len(before.messages) >= 60)
            await asyncio.gather(*(producer.send(Message(topic=topic, body=b"b%d" % n)) for n in range(60)))
            async with PushConsumer(peers.name_server, group, {topic: "*"}, after, start="first"):
                await until(lambda: len(after.messages) >= 60)
                await asyncio.sleep(0.5)
        return before, after

    before, after = asyncio.run(play())
    assert sorted(before.bodies) == sorted(b"a%d" % n for n in range(60))
    assert sorted(after.bodies) == sorted(b"b%d" % n for n in range(60))


def test_failed_messages_are_redelivered_with_their_original_topic(peers, topic, group):
    seen: dict[bytes, list[tuple[str, int]]] = defaultdict(list)

    async def listener(messages):
        for message in messages:
            seen[message.body].append((message.topic, message.reconsume_times))
            if message.reconsume_times == 0 and message.body != b"good":
                raise ReconsumeLater("the first time never works", delay_level=1)

    async def play():
        async with (
            ClientInstance(peers.name_server) as shared,
            Producer(shared, "producers") as producer,
            PushConsumer(shared, group, {topic: "*"}, listener, start="first", settings=FAST),
        ):
            for body in (b"good", b"bad", b"worse"):
                await producer.send(Message(topic=topic, body=body))
            await until(lambda: len(seen[b"bad"]) == len(seen[b"worse"]) == 2)

    asyncio.run(play())
    assert seen == {
        b"good": [(topic, 0)],
        b"bad": [(topic, 0), (topic, 1)],
        b"worse": [(topic, 0), (topic, 1)],
    }


def test_messages_without_remaining_attempts_become_dead_letters(peers, topic, group):
    async def listener(messages):
        raise ReconsumeLater("never", delay_level=-1)

    async def play():
        dead = Inbox()
        async with (
            Producer(peers.name_server, "producers") as producer,
            PushConsumer(peers.name_server, group, {topic: "*"}, listener, start="first", settings=FAST),
            PushConsumer(peers.name_server, f"{group}-dead", {f"%DLQ%{group}": "*"}, dead, start="first"),
        ):
            sent = await producer.send(Message(topic=topic, body=b"hopeless", keys=["k"]))
            await until(lambda: len(dead.messages) == 1)
        return sent, dead.messages[0]

    sent, dead = asyncio.run(play())
    assert (dead.message_id, dead.body, dead.keys) == (sent.message_id, b"hopeless", ("k",))
    assert dead.topic == topic  # where it came from; the queue says where it lies
    assert dead.queue.topic == f"%DLQ%{group}"


def test_an_error_response_is_raised_with_the_remark_of_the_broker(peers):
    async def play():
        async with Producer(peers.name_server, "producers") as producer:
            queue = (await producer.queues("TBW102"))[0]
            beyond = type(queue)(topic="TBW102", broker=queue.broker, queue_id=99)
            with pytest.raises(ReplyError) as caught:
                await producer.send(Message(topic="TBW102", body=b"x"), queue=beyond)
            assert caught.value.code in {1, 29}  # 29: invalid parameter, in 5.x
            assert "queueId" in (caught.value.remark or "")

    asyncio.run(play())


@pytest.mark.long(
    "tests/integration/test_local_cluster_kill.py::test_consumers_go_on_when_the_broker_is_back",
)
def test_clients_survive_a_restart_of_their_broker(tmp_path, topic, group):
    port, store = java.free_port(), tmp_path / "store"
    files = {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}

    async def play(ns: str):
        inbox = Inbox()
        async with (
            Producer(ns, "producers") as producer,
            PushConsumer(ns, group, {topic: "*"}, inbox, start="first", settings=FAST),
        ):
            with java.broker(tmp_path / "first", ns, port=port, properties=files):
                await producer.send(Message(topic=topic, body=b"before"))
                await until(lambda: b"before" in inbox.bodies)
                await asyncio.sleep(1)  # the offset is committed within 200 ms; Java writes it down when it stops
            with java.broker(tmp_path / "second", ns, port=port, properties=files):
                await producer.send(Message(topic=topic, body=b"after"))
                await until(lambda: b"after" in inbox.bodies)
        return inbox

    with java.name_server(tmp_path / "ns") as ns:
        inbox = asyncio.run(play(ns.addr))
    assert inbox.bodies == [b"before", b"after"]


def test_mqadmin_reads_our_traces(peers, topic, group):
    async def play():
        inbox = Inbox()
        async with (
            Producer(peers.name_server, "traced-producers", trace=True) as producer,
            PushConsumer(
                peers.name_server, group, {topic: "*"}, inbox, start="first", settings=FAST, trace=True
            ) as consumer,
        ):
            single = await producer.send(Message(topic=topic, body=b"single", tags="A", keys=["ORDER-17"]))
            batch = await producer.send_batch([Message(topic=topic, body=b"%d" % n) for n in range(3)])
            # In one trace message with the batch: readers that do not have this type of record read the others.
            await producer.trace.on_recall(single, is_success=True)
            await until(lambda: len(inbox.messages) >= 4)
            await until(lambda: producer.trace.clock_offsets and consumer.trace.clock_offsets)
        assert (producer.trace.sent, producer.trace.failed, producer.trace.dropped) == (5, 0, 0)
        assert (consumer.trace.sent, consumer.trace.failed, consumer.trace.dropped) == (8, 0, 0)
        # A Java broker has the clock of this machine; its trace messages carry that, and Java reads them nevertheless.
        for client in (producer, consumer):
            (offset,) = client.trace.clock_offsets.values()
            assert offset.lower_ms <= 0 <= offset.upper_ms
        traces, subscriptions = Inbox(), {TRACE_TOPIC: "*"}
        async with PushConsumer(
            peers.name_server, f"{group}-traces", subscriptions, traces, start="first", settings=FAST
        ):
            await until(lambda: sum(clock_offset.PROPERTY in trace.properties for trace in traces.messages) >= 2)
        return [single.message_id, *batch.message_id.split(",")]

    queries = [f"queryMsgTraceById -i {message_id}" for message_id in asyncio.run(play())]
    for printed in mqadmin(peers.name_server, *queries, release=peers.java):
        assert "traced-producers" in printed, printed
        assert group in printed, printed
        assert printed.count("success") == 2, printed
