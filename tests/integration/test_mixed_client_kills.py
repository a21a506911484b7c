"""A broker process that is killed again and again under clients of 4.x and 5.x, of the same topics.

    Mixed   remoting and gRPC producers ─▶ push consumer that pulls, SimpleConsumer (POP), gRPC consumers
    Fifo    gRPC producers of message groups ─▶ gRPC consumers of an ordered group

No acknowledged send is lost; no message is delivered after its acknowledgement was answered; message groups stay in order.

ARIANE_CI=long ARIANE_KILLS=100 pytest -s tests/integration/test_mixed_client_kills.py       kills the broker 100 times
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the extra grpc is not installed")

import grpc
import grpc.aio

from ariane.client import Producer, ProducerSettings, PushConsumer, SendStatus, SimpleConsumer
from ariane.client.delivery.popped_message import receipt_of
from ariane.cluster.admin import Admin
from ariane.errors import ArianeError
from ariane.model.message import ReceivedMessage
from ariane.model.topic import SubscriptionGroupConfig
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.proxy import api
from failover_processes import BrokerProcess, broker_ports

KILLS = int(os.environ.get("ARIANE_KILLS") or 20)
MIXED, FIFO = "Mixed", "Fifo"
PULL, SIMPLE, GRPC, ORDERED = "pull", "simple", "grpc", "ordered"
OK, INVISIBLE_S = 20000, 10
MESSAGE_GROUPS = 6
SETTLE_S = 120.0
RECONNECT = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 300)]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Ledger:
    """What one group was given, and has acknowledged."""

    asked: set[bytes] = field(default_factory=set)  # consumed, or an acknowledgement was sent
    acknowledged: dict[bytes, int] = field(default_factory=dict)  # answered at this time, in ms
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _seen: set[bytes] = field(default_factory=set)

    def deliver(self, body: bytes, taken_ms: int | None = None) -> None:
        self.counts["deliveries"] += 1
        self.counts["duplicates"] += body in self._seen
        self._seen.add(body)
        if taken_ms is not None and taken_ms > self.acknowledged.get(body, taken_ms):
            self.faults.append(f"{body!r} is delivered at {taken_ms}, acknowledged at {self.acknowledged[body]}")

    def answered(self, body: bytes, taken_ms: int) -> None:
        if now_ms() < taken_ms + INVISIBLE_S * 1000:
            self.acknowledged.setdefault(body, now_ms())


class Load:
    """The clients of a broker, and what they were promised."""

    def __init__(self, namesrv: str, endpoints: str) -> None:
        self.namesrv, self.endpoints = namesrv, endpoints
        self.sent: set[bytes] = set()  # acknowledged sends to MIXED
        self.in_groups: dict[str, list[int]] = defaultdict(list)  # numbers of acknowledged sends, by message group
        self.ledgers = {group: Ledger() for group in (PULL, SIMPLE, GRPC, ORDERED)}
        self.failed = Counter[str]()
        self.is_sending = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        producers = [self._send_remoting(), *(self._send_grpc(number) for number in range(2))]
        producers += [self._send_in_order(f"g{number}") for number in range(MESSAGE_GROUPS)]
        consumers = [self._consume_simple(), *(self._consume_grpc(GRPC, MIXED) for _ in range(2))]
        consumers += [self._consume_grpc(ORDERED, FIFO) for _ in range(2)]

        async def listen(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                self.ledgers[PULL].deliver(message.body)
                self.ledgers[PULL].asked.add(message.body)

        async with PushConsumer(self.namesrv, PULL, MIXED, listen, start="first"), asyncio.TaskGroup() as tasks:
            consuming = [tasks.create_task(work) for work in consumers]
            sending = [tasks.create_task(work) for work in producers]
            yield
            self.is_sending = False
            await asyncio.gather(*sending)
            deadline = time.monotonic() + SETTLE_S
            while self.missing() and time.monotonic() < deadline:
                await asyncio.sleep(0.2)
            for task in consuming:
                task.cancel()

    async def wait_for_sends(self, mixed: int, ordered: int) -> None:
        """Wait until that many more sends to each topic are acknowledged."""
        mixed, ordered = mixed + len(self.sent), ordered + self.ordered_count
        async with asyncio.timeout(SETTLE_S):
            while len(self.sent) < mixed or self.ordered_count < ordered:
                await asyncio.sleep(0.05)

    @property
    def ordered_count(self) -> int:
        """Number of acknowledged sends of message groups."""
        return sum(map(len, self.in_groups.values()))

    def missing(self) -> list[str]:
        """Return the acknowledged sends that a group has not consumed."""
        lost = [f"{group}: {self.sent - self.ledgers[group].asked}" for group in (PULL, SIMPLE, GRPC)
                if self.sent - self.ledgers[group].asked]  # fmt: skip
        ordered = {body(name, number) for name, numbers in self.in_groups.items() for number in numbers}
        left = ordered - self.ledgers[ORDERED].asked
        return lost + ([f"{ORDERED}: {left}"] if left else [])

    # --- producers ---

    async def _send_remoting(self) -> None:
        settings = ProducerSettings(retries=0, send_timeout=2)
        async with Producer(self.namesrv, "P", settings=settings) as producer:
            for number in itertools.count():
                if not self.is_sending:
                    return
                try:
                    result = await producer.send(MIXED, b"remoting-%d" % number)
                except ArianeError as error:
                    self.failed[type(error).__name__] += 1
                    await asyncio.sleep(0.05)
                    continue
                if result.status is SendStatus.SEND_OK:
                    self.sent.add(b"remoting-%d" % number)
                await asyncio.sleep(0.005)

    async def _send_grpc(self, sender: int) -> None:
        async with self._channel(f"sender-{sender}") as call:
            for number in itertools.count():
                if not self.is_sending:
                    return
                if await self._send(call, MIXED, b"grpc%d-%d" % (sender, number)):
                    self.sent.add(b"grpc%d-%d" % (sender, number))
                await asyncio.sleep(0.02)

    async def _send_in_order(self, group: str) -> None:
        async with self._channel(f"ordered-{group}") as call:
            for number in itertools.count():
                if not self.is_sending:
                    return
                if await self._send(call, FIFO, body(group, number), message_group=group):
                    self.in_groups[group].append(number)
                await asyncio.sleep(0.1)

    async def _send(self, call: Callable[..., Awaitable[Any]], topic: str, data: bytes, **system: str) -> bool:
        system = {"message_id": f"01{data.hex()}", **system}
        message = {"topic": {"name": topic}, "body": data, "system_properties": system}
        reply = await call("SendMessage", messages=[message])
        return reply is not None and reply.status.code == OK

    # --- consumers ---

    async def _consume_simple(self) -> None:
        ledger = self.ledgers[SIMPLE]
        async with SimpleConsumer(self.namesrv, SIMPLE, MIXED, start="first") as consumer:
            while True:
                with contextlib.suppress(ArianeError):
                    messages = await consumer.receive(16, invisible=INVISIBLE_S, timeout=2)
                    for message in messages:
                        ledger.deliver(message.body, receipt_of(message).delivery.taken_ms)
                    for message in messages:
                        taken_ms = receipt_of(message).delivery.taken_ms
                        ledger.asked.add(message.body)
                        await message.ack()
                        ledger.answered(message.body, taken_ms)

    async def _consume_grpc(self, group: str, topic: str) -> None:
        async with self._channel(f"{group}-{random.randrange(10**9)}") as call:
            fields = {"group": {"name": group}, "message_queue": {"topic": {"name": topic}, "id": -1}, "batch_size": 16}
            fields |= {"invisible_duration": {"seconds": INVISIBLE_S}, "long_polling_timeout": {"seconds": 5}}
            while True:
                messages = await call("ReceiveMessage", **fields, filter_expression={"type": 1, "expression": "*"})
                for message in messages or ():
                    if not await self._consume(call, group, topic, message):
                        break  # those after it come again, in their order

    async def _consume(self, call: Callable[..., Awaitable[Any]], group: str, topic: str, message: Any) -> bool:
        """Consume a message; return whether its acknowledgement was answered."""
        ledger, system = self.ledgers[group], message.system_properties
        taken_ms = int(system.receipt_handle.split()[1])
        ledger.deliver(message.body, taken_ms)
        if group == ORDERED:
            name, number = message.body.decode().split("-")
            before = {body(name, each) for each in self.in_groups[name] if each < int(number)}
            if overtaken := before - ledger.asked:
                ledger.faults.append(f"{message.body!r} is delivered before {min(overtaken)!r}")
        ledger.asked.add(message.body)
        entry = {"message_id": system.message_id, "receipt_handle": system.receipt_handle}
        reply = await call("AckMessage", group={"name": group}, topic={"name": topic}, entries=[entry])
        if reply is None or reply.status.code != OK:
            return False
        ledger.answered(message.body, taken_ms)
        return True

    # --- gRPC ---

    @contextlib.asynccontextmanager
    async def _channel(self, client_id: str) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Yield a function that calls the port: it returns the reply, the received messages, or None if the call failed."""
        metadata = [("x-mq-client-id", client_id), ("x-mq-language", "PYTHON")]
        async with grpc.aio.insecure_channel(self.endpoints, options=RECONNECT) as channel:

            async def call(name: str, **fields: Any) -> Any:
                request, response = getattr(api, f"{name}Request"), getattr(api, f"{name}Response")
                path, encode, decode = f"/{api.SERVICE}/{name}", request.SerializeToString, response.FromString
                received: list[Any] = []
                try:
                    if name != "ReceiveMessage":
                        method = channel.unary_unary(path, encode, decode)
                        return await method(request(**fields), timeout=10, metadata=metadata)
                    stream = channel.unary_stream(path, encode, decode)(
                        request(**fields), timeout=15, metadata=metadata
                    )
                    async for reply in stream:
                        if reply.HasField("message"):
                            received.append(reply.message)
                except grpc.aio.AioRpcError as error:
                    self.failed[error.code().name] += 1
                    await asyncio.sleep(0.1)
                return received or None

            yield call


def body(group: str, number: int) -> bytes:
    return f"{group}-{number}".encode()


async def play(home: Path, transport: str, kills: int) -> Load:
    names = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(home / "kvConfig.json"))
    port, grpc_port = broker_ports(2)
    rng = random.Random(kills)
    async with NameServer(names) as name_server:
        namesrv = f"127.0.0.1:{name_server.port}"
        settings: dict[str, object] = {
            "brokerName": "broker-a", "brokerIP1": "127.0.0.1", "listenPort": port, "namesrvAddr": namesrv,
            "storePathRootDir": home / "store", "grpcServerEnable": "true", "grpcServerPort": grpc_port,
            "grpcTransport": transport,
        }  # fmt: skip
        broker = BrokerProcess(home, "broker", port, settings)
        broker.start()
        try:
            await create_topics(namesrv)
            load = Load(namesrv, f"127.0.0.1:{grpc_port}")
            async with load.running():
                for _ in range(kills):
                    await load.wait_for_sends(20, 5)  # on a busy machine the broker takes long to start
                    await asyncio.sleep(rng.uniform(0, 2))
                    await asyncio.to_thread(broker.kill)
                    await asyncio.sleep(rng.uniform(0, 0.5))
                    broker.start()
        finally:
            broker.kill()
    return load


async def create_topics(namesrv: str) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(ArianeError):
                async with Admin(namesrv) as admin:
                    for topic in (MIXED, FIFO):
                        await admin.create_topic(topic, queues=4)
                    config = SubscriptionGroupConfig(group_name=ORDERED, consume_message_orderly=True)
                    await admin.save_group(config)
                    return
            await asyncio.sleep(0.2)


@pytest.mark.long(
    "tests/simulation/test_pop_kills.py::test_kills_lose_no_message_and_bring_no_consumed_one_back",
    "tests/integration/test_local_cluster_kill.py::test_acknowledged_messages_survive_a_kill_under_load",
)
@pytest.mark.timeout(300 + 20 * KILLS)
def test_kills_lose_no_send_bring_no_consumed_message_back_and_keep_order(tmp_path: Path) -> None:
    load = asyncio.run(play(tmp_path, "aio", KILLS))
    figures = {
        group: dict(ledger.counts) | {"acknowledged": len(ledger.acknowledged)}
        for group, ledger in load.ledgers.items()
    }
    print(
        f"{KILLS} kills, {len(load.sent)} + {load.ordered_count} acknowledged sends, {figures}, failed calls: {dict(load.failed)}"
    )
    assert load.missing() == []
    assert [fault for ledger in load.ledgers.values() for fault in ledger.faults] == []
