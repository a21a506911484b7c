"""Clients of 4.x and 5.x that load a broker which is killed again and again, and the judgement of what they were given.

    Mixed   remoting and gRPC producers ─▶ push consumer that pulls, SimpleConsumer (POP), gRPC consumers
    Fifo    gRPC producers of message groups ─▶ gRPC consumers of an ordered group

The broker may be Ariane's or Java's. Clients of 4.x are ours; the gRPC clients are passed to `Load`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ariane.client import Producer, ProducerSettings, PushConsumer, SendStatus, SimpleConsumer
from ariane.client.delivery.popped_message import receipt_of
from ariane.errors import ArianeError
from ariane.model.message import ReceivedMessage

MIXED, FIFO = "Mixed", "Fifo"
PULL, SIMPLE, ORDERED = "pull", "simple", "ordered"
INVISIBLE_S = 10
MESSAGE_GROUPS = 6
SENDERS = 2  # of gRPC, to Mixed
SETTLE_S = 120.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def ordered_body(message_group: str, number: int) -> bytes:
    return f"{message_group}-{number}".encode()


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
            self.counts["came back"] += 1
            self.faults.append(f"{body!r} is delivered at {taken_ms}, acknowledged at {self.acknowledged[body]}")

    def answered(self, body: bytes, taken_ms: int, at_ms: int) -> None:
        if at_ms < taken_ms + INVISIBLE_S * 1000:
            self.acknowledged.setdefault(body, at_ms)


class GrpcClients(Protocol):
    """Producers and consumers of RocketMQ 5."""

    groups: tuple[str, ...]
    """Consumer groups of Mixed, besides the ordered one of Fifo."""

    async def produce(self, load: Load) -> None:
        """Send until `load.is_sending` is false."""
        ...

    async def consume(self, load: Load) -> None:
        """Consume until cancelled."""
        ...


class Load:
    """The clients of a broker, and what they were promised."""

    def __init__(self, namesrv: str, clients: GrpcClients) -> None:
        self.namesrv, self.clients = namesrv, clients
        self.sent: set[bytes] = set()  # acknowledged sends to MIXED
        self.in_groups: dict[str, list[int]] = defaultdict(list)  # numbers of acknowledged sends, by message group
        self.ledgers = {group: Ledger() for group in (PULL, SIMPLE, *clients.groups, ORDERED)}
        self.failed = Counter[str]()
        self.is_sending = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def listen(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                self.ledgers[PULL].deliver(message.body)
                self.ledgers[PULL].asked.add(message.body)

        async with PushConsumer(self.namesrv, PULL, MIXED, listen, start="first"), asyncio.TaskGroup() as tasks:
            consuming = [tasks.create_task(work) for work in (self._consume_simple(), self.clients.consume(self))]
            sending = [tasks.create_task(work) for work in (self._send_remoting(), self.clients.produce(self))]
            yield
            self.is_sending = False
            await asyncio.gather(*sending)
            deadline = time.monotonic() + SETTLE_S
            while any(self.missing().values()) and time.monotonic() < deadline:
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

    def missing(self) -> dict[str, set[bytes]]:
        """Return the acknowledged sends that each group has not consumed."""
        ordered = {ordered_body(name, number) for name, numbers in self.in_groups.items() for number in numbers}
        return {
            group: (ordered if group == ORDERED else self.sent) - ledger.asked for group, ledger in self.ledgers.items()
        }

    def total(self, name: str) -> int:
        """Return the sum of a count over all groups."""
        return sum(ledger.counts[name] for ledger in self.ledgers.values())

    def faults(self) -> Iterator[str]:
        """Yield the messages that came back after their acknowledgement, or overtook others."""
        return itertools.chain.from_iterable(ledger.faults for ledger in self.ledgers.values())

    def report(self) -> str:
        groups = {
            group: dict(ledger.counts) | {"acknowledged": len(ledger.acknowledged)}
            for group, ledger in self.ledgers.items()
        }
        lost = sum(map(len, self.missing().values()))
        return (
            f"{len(self.sent)} + {self.ordered_count} acknowledged sends, lost {lost}, came back {self.total('came back')},"
            f" overtook {self.total('overtook')}, duplicates {self.total('duplicates')}; {groups}, failed: {dict(self.failed)}"
        )

    # --- what clients report ---

    def deliver_in_order(self, data: bytes, taken_ms: int | None = None) -> None:
        """Note a delivery to the ordered group."""
        ledger = self.ledgers[ORDERED]
        ledger.deliver(data, taken_ms)
        name, number = data.decode().split("-")
        before = {ordered_body(name, each) for each in self.in_groups[name] if each < int(number)}
        if overtaken := before - ledger.asked:
            ledger.counts["overtook"] += 1
            ledger.faults.append(f"{data!r} is delivered before {min(overtaken)!r}")
        ledger.asked.add(data)

    # --- clients of 4.x ---

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
                        ledger.answered(message.body, taken_ms, now_ms())
