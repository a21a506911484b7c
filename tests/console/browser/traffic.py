"""A program: a cluster with traffic for every page of the console. `python traffic.py DIR [--java] [--trouble]`

name server, master, slave ◄── producers and consumers in this process [and of Java]

It prints one line of JSON when everything that pages show is stored, then sends on slowly until its standard input closes.

orders       stock and billing consume it; billing fails: retries, then dead letters. archive is offline and lags. Traced.
payments     transactions: committed, rolled back, open                reminders   delay levels and a delivery time
hostile      markup in keys, tags, properties, ids and bodies          JavaTopic   sent and consumed by Java
invoices     invoicing has listeners that hang, and long client ids    legacy      bodies in GBK, Shift_JIS and Latin-1

With --trouble the slave does not answer, and the broker broker-b is registered but dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import hostile_texts
import msgspec

from ariane.client.delivery.listener_invoker import ReconsumeLater
from ariane.client.instance.hooks import LocalState
from ariane.client.instance.settings import ClientSettings, ConsumerSettings
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.client.transaction_producer import TransactionProducer
from ariane.cluster.admin import Admin
from ariane.errors import RouteNotFound
from ariane.model.message import Message, ReceivedMessage
from ariane.model.topic import DataVersion, TopicConfig
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.replies import Reply
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.callbacks import RunningInfo
from ariane.protocol.requests.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from ariane.protocol.requests.routing import RegisterBroker, RegisterBrokerBody, TopicTable
from ariane.testing import AsyncLocalCluster, java

LONG_TOPIC = "com-example-warehouse-inventory-replenishment-requests-production-eu-central-1-version2"
TOPICS = ("orders", "payments", "reminders", "hostile", "deletable", "JavaTopic", "invoices", "legacy", LONG_TOPIC)
LONG_CLIENT = "pod-invoicing-7d9f8b6c5d-" + "x7k2p-" * 26 + "{}"  # with the address before it: 200 characters
ENCODED_BODIES = {"gbk": "订单已创建，祝您购物愉快", "shift_jis": "注文を受け付けました", "latin-1": "Größe 12, Café"}
ORDERS = 24
HEARTBEAT_S = 20.0
HOUR_MS = 3_600_000
JAVA_MESSAGES = 5


async def main(home: Path, with_java: bool, in_trouble: bool) -> None:
    for store in ("store", "slave1"):
        _write_hostile_topic(home / store / "config")
    # Checks soon and without end: transactions stay open for as long as the tests run.
    settings = {"transaction_check_interval": 2_000, "transaction_time_out": 1_000, "transaction_check_max": 100_000}
    async with AsyncLocalCluster(home, slaves=1, **settings) as servers, contextlib.AsyncExitStack() as clients:
        async with Admin(servers.namesrv) as admin:
            for topic in TOPICS:
                await admin.create_topic(topic, queues=4)
        java_client = clients.enter_context(_java_consumer(servers.namesrv)) if with_java else None
        producer = await clients.enter_async_context(Producer(servers.namesrv, "shop", trace=True))
        payments = TransactionProducer(servers.namesrv, "cashier", check=lambda message: LocalState.UNKNOWN, trace=True)
        await clients.enter_async_context(payments)
        closing = asyncio.Event()  # listeners that hang end with the program: their clients wait for them
        for consumer in _consumers(servers.namesrv, closing):
            await clients.enter_async_context(consumer)
        clients.callback(closing.set)
        ids = await _send_all(producer, payments)
        await _leave_an_offline_group(servers.namesrv)
        await clients.enter_async_context(
            _hostile_client([broker.addr for broker in (servers.broker, *servers.slaves)])
        )
        if java_client:
            await asyncio.to_thread(_send_from_java, servers.namesrv, java_client)
        await _wait_for_dead_letters(servers.namesrv)
        if in_trouble:
            await clients.enter_async_context(_dead_broker(servers.namesrv))
            servers.slaves[0].lose_requests()
        addresses = {
            "namesrv": servers.namesrv,
            "broker": servers.broker.addr,
            "slaves": [slave.addr for slave in servers.slaves],
        }
        print(json.dumps({**addresses, "ids": ids, "has_java": java_client is not None}), flush=True)
        await _send_on(producer)


def _write_hostile_topic(config: Path) -> None:
    """Write a topic into the files of a broker that has not started: its requests would reject the name."""
    config.mkdir(parents=True)
    topic = {"topicName": hostile_texts.TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    topic |= {"order": False, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
    version = {"counter": 1, "timestamp": 1}
    document = {"dataVersion": version, "topicConfigTable": {hostile_texts.TOPIC: topic}}
    (config / "topics.json").write_text(json.dumps(document), encoding="utf-8")


def _consumers(namesrv: str, closing: asyncio.Event) -> list[PushConsumer]:
    async def accept(messages: Sequence[ReceivedMessage]) -> None:
        return None

    async def fail_some(messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            number = int(message.properties.get("number", "1"))
            # Every 6th message fails always and becomes a dead letter, every 4th fails once.
            if number % 6 == 0 or (number % 4 == 0 and message.reconsume_times == 0):
                raise ReconsumeLater("the till is closed", delay_level=1)

    async def hang(messages: Sequence[ReceivedMessage]) -> None:
        await closing.wait()

    few_retries = ConsumerSettings(max_reconsume_times=1)
    hostile_client = ClientSettings(instance_name=hostile_texts.IMAGE_WITHOUT_SPACES)
    return [
        PushConsumer(namesrv, "stock", {"orders": "*"}, accept, start="first", trace=True),
        PushConsumer(namesrv, "billing", {"orders": "*"}, fail_some, start="first", settings=few_retries, trace=True),
        # Two members whose subscriptions differ, one with markup in its client id.
        PushConsumer(namesrv, "mixed", {"orders": "created"}, accept, start="first"),
        PushConsumer(namesrv, "mixed", {"orders": "paid || shipped"}, accept, start="first", client=hostile_client),
        PushConsumer(namesrv, "reminder-sender", {"reminders": "*"}, accept, start="first", trace=True),
        # The retry topic %RETRY%accounts looks like an escaped byte in an address: %ac.
        PushConsumer(namesrv, "accounts", {"payments": "*"}, accept, start="first", trace=True),
        *(
            PushConsumer(
                namesrv, "invoicing", {"invoices": "*"}, hang, start="first", client=ClientSettings(instance_name=name)
            )
            for name in (LONG_CLIENT.format(1), LONG_CLIENT.format(2))
        ),
        PushConsumer(namesrv, "curious", {"hostile": "*"}, fail_some, start="first", settings=few_retries, trace=True),
    ]


async def _send_all(producer: Producer, payments: TransactionProducer) -> dict[str, str]:
    """Send everything that the tests look for; return the ids of some messages."""
    ids: dict[str, str] = {}
    for number in range(1, ORDERS + 1):
        body = json.dumps({"order": number, "goods": hostile_texts.EMOJI}).encode()
        tag = ("created", "paid", "shipped")[number % 3]
        message = Message(
            topic="orders", body=body, tags=tag, keys=[f"ORDER-{number}", "ORDERS"], properties={"number": str(number)}
        )
        ids[f"order {number}"] = (await producer.send(message)).message_id
    for number, text in enumerate(hostile_texts.ALL, start=5):
        properties = {"number": str(number), "payload": text, text.replace(" ", ""): "a hostile name"}
        key = text.replace(" ", "") or "empty"
        message = Message(topic="hostile", body=text.encode(), tags=text, keys=[key], properties=properties)
        ids[f"hostile {number}"] = (await producer.send(message)).message_id
    strange_id = hostile_texts.IMAGE_WITHOUT_SPACES
    binary = Message(topic="hostile", body=b"\x00\xff binary", message_id=strange_id, properties={"number": "1"})
    ids["hostile id"] = (await producer.send(binary)).message_id
    for number in range(1, 9):
        await producer.send(
            Message(topic="reminders", body=b"soon", keys=[f"REMINDER-{number}"], delay_level=1 + number * 2)
        )
    later = Message(topic="reminders", body=b"later", keys=["LATER"], deliver_at_ms=int(time.time() * 1000) + HOUR_MS)
    ids["delayed"] = (await producer.send(later)).message_id
    # That one is cancelled by the tests of forms; this one stays.
    due_ms = int(time.time() * 1000) + 2 * HOUR_MS
    await producer.send(Message(topic="reminders", body=b"later", keys=["STAYS"], deliver_at_ms=due_ms))
    for number in range(1, 41):
        await producer.send(Message(topic="invoices", body=b"42.00", keys=[f"INVOICE-{number}"]))
    for encoding, text in ENCODED_BODIES.items():
        body = text.encode(encoding)
        ids[encoding] = (await producer.send(Message(topic="legacy", body=body, keys=[encoding]))).message_id
    await producer.send(Message(topic=LONG_TOPIC, body=b"replenish", keys=["LONG"]))
    states = (LocalState.COMMIT, LocalState.ROLLBACK, LocalState.UNKNOWN)
    for number, state in zip(range(1, 10), itertools.cycle(states)):
        payment = Message(topic="payments", body=b"100.00", keys=[f"PAYMENT-{number}"])
        await payments.send_in_transaction(payment, lambda sent, state=state: state)
    return ids


@contextlib.asynccontextmanager
async def _dead_broker(namesrv: str) -> AsyncIterator[None]:
    """Register a broker at a port that is closed. It stays in all routes for as long as the connection is open."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        addr = f"127.0.0.1:{closed.getsockname()[1]}"
    topics = {
        name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4) for name in ("invoices", "refunds")
    }
    body = msgspec.json.encode(RegisterBrokerBody((), TopicTable(DataVersion(1, 1), topics)))
    header = RegisterBroker("broker-b", addr, "DefaultCluster", addr, 0)

    async def register(peers: ConnectionPool) -> None:
        while True:
            await peers.request_ok(namesrv, RequestCode.REGISTER_BROKER, header, body)
            await asyncio.sleep(HEARTBEAT_S)

    async with ConnectionPool() as peers:
        task = asyncio.ensure_future(register(peers))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def _leave_an_offline_group(namesrv: str) -> None:
    """Consume one message in the group archive, then leave: the group has offsets, lag and no member."""
    consumed = asyncio.Event()

    async def listener(messages: Sequence[ReceivedMessage]) -> None:
        consumed.set()

    async with PushConsumer(namesrv, "archive", {"orders": "*"}, listener, start="first"):
        await asyncio.wait_for(consumed.wait(), 30)


@contextlib.asynccontextmanager
async def _hostile_client(addresses: Sequence[str]) -> AsyncIterator[None]:
    """Register a client whose names, subscription, properties and thread dump are markup."""
    group, text = hostile_texts.GROUP, hostile_texts.SCRIPT
    subscription = SubscriptionData(topic="orders", sub_string=hostile_texts.IMAGE)
    consumer = ConsumerData(group_name=group, subscription_data_set=(subscription,))
    producer = ProducerData(group_name=group)
    body = fastjson.write(HeartbeatData(hostile_texts.CLIENT_ID, (consumer,), (producer,)))
    info = RunningInfo(jstack=text, properties={text: hostile_texts.ATTRIBUTE}, subscription_set=(subscription,))

    def answer(command: object, peer: object) -> Reply:
        return Reply(body=fastjson.write(info))

    async def send_heartbeats(peers: ConnectionPool) -> None:
        while True:
            for addr in addresses:
                await peers.request_ok(addr, RequestCode.HEART_BEAT, body=body)
            await asyncio.sleep(HEARTBEAT_S)

    async with ConnectionPool({RequestCode.GET_CONSUMER_RUNNING_INFO: answer}) as peers:
        task = asyncio.ensure_future(send_heartbeats(peers))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


@contextlib.contextmanager
def _java_consumer(namesrv: str) -> Iterator[java.JavaProgram]:
    arguments = [namesrv, "JavaTopic", "JavaGroup", "*", "0", "3600", "trace"]
    with java.start("ariane.peers.Consume", arguments) as program:
        yield program


def _send_from_java(namesrv: str, consumer: java.JavaProgram) -> None:
    """Send messages from Java and wait until Java has consumed them."""
    java.run("ariane.peers.Produce", [namesrv, "JavaTopic", "JavaShop", str(JAVA_MESSAGES), "trace"])
    received = list(itertools.islice(consumer.events(time.monotonic() + 60), JAVA_MESSAGES))
    assert len(received) == JAVA_MESSAGES, f"Java consumed {len(received)} of {JAVA_MESSAGES} messages"


async def _wait_for_dead_letters(namesrv: str) -> None:
    """Wait until retries of `billing` have ended: they take a second each."""
    async with Admin(namesrv) as admin, asyncio.timeout(60):
        while True:
            with contextlib.suppress(RouteNotFound):  # the topic does not exist before the first dead letter
                if len((await admin.search("%DLQ%billing")).messages) >= ORDERS // 6:
                    return
            await asyncio.sleep(0.2)


async def _send_on(producer: Producer) -> None:
    """Send two messages per second until standard input closes."""
    closed = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    while True:
        message = Message(topic="orders", body=b"live", tags="created", keys=["LIVE"], properties={"number": "1"})
        await producer.send(message)
        done, _ = await asyncio.wait([closed], timeout=0.5)
        if done:
            return


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), "--java" in sys.argv, "--trouble" in sys.argv))
