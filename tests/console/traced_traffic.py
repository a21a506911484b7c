"""Traffic of traced clients for tests of messages and traces: retries, a dead letter, a delay, transactions, hostile texts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from ariane.client import ConsumerSettings, LocalState, Producer, PushConsumer, ReconsumeLater, TransactionProducer
from ariane.client.instance.settings import TraceSettings
from ariane.cluster.admin import Admin
from ariane.model import ids
from ariane.model.message import Message, ReceivedMessage
from ariane.testing import LocalCluster

TRACES = TraceSettings(flush_interval=0.05)
QUICK: dict[str, Any] = {"commit_interval": 0.05, "rebalance_interval": 0.2, "suspend_time": 0.2, "close_timeout": 1}
# Settings of the broker: short delays and early transaction checks.
BROKER: dict[str, Any] = {
    "trace_topic_enable": True,
    "message_delay_level": "1s 2s 200s",
    "transaction_check_interval": 200,
    "transaction_time_out": 300,
}
HOSTILE = "<script>alert(1)</script>"
HOSTILE_ATTRIBUTE = "\"'><img/src=x/onerror=alert(1)>"
CLOCK_AHEAD_MS = 1_200


class Traffic(msgspec.Struct):
    """Ids of the messages that were sent."""

    retried: str = ""  # group billing fails twice, group mail consumes it at once
    dead: str = ""  # group audit fails until it is a dead letter
    delayed: str = ""  # held back for a second
    checked: str = ""  # a transaction that was committed after a check
    hostile: str = ""  # markup in key, tag, properties and body
    ahead: str = ""  # unique key of a client whose clock is ahead
    binary: str = ""
    large: str = ""
    document: str = ""  # a JSON body


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.02)


async def traced_traffic(servers: LocalCluster) -> Traffic:
    """Send and consume messages; return when all of it is traced."""
    async with Admin(servers.namesrv) as admin:
        for topic in ("orders", "failing"):
            await admin.create_topic(topic, queues=2)
    traffic = Traffic()
    attempts: Counter[tuple[str, str]] = Counter()  # calls by group and message

    def listener(group: str, fails: Callable[[str, int], bool]) -> Callable[[list[ReceivedMessage]], Any]:
        async def listen(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                attempts[group, message.message_id] += 1
                if fails(message.message_id, attempts[group, message.message_id]):
                    raise ReconsumeLater("not yet", delay_level=1)

        return listen

    def consumer(group: str, topic: str, fails: Callable[[str, int], bool], **settings: int) -> PushConsumer:
        return PushConsumer(
            servers.namesrv, group, {topic: "*"}, listener(group, fails), start="first", trace=TRACES,
            settings=ConsumerSettings(**{**QUICK, **settings}),
        )  # fmt: skip

    async with (
        consumer(
            "billing", "orders", lambda message_id, number: message_id == traffic.retried and number <= 2
        ) as billing,
        consumer("mail", "orders", lambda *_: False) as mail,
        consumer("audit", "failing", lambda *_: True, max_reconsume_times=1) as audit,
        Producer(servers.namesrv, "shop", trace=TRACES) as producer,
        TransactionProducer(servers.namesrv, "bank", check=lambda _: LocalState.COMMIT, trace=TRACES) as bank,
    ):
        traffic.retried = ids.unique_ids(_now_ms, ip="10.0.0.9")()
        await _send(producer, traffic)
        checked = await bank.send_in_transaction(
            Message(topic="orders", body=b"pay", keys=["PAY-1"]), lambda _: LocalState.UNKNOWN
        )
        traffic.checked = checked.sent.message_id
        await until(lambda: attempts["billing", traffic.retried] == 3 and attempts["mail", traffic.retried] == 1)
        await until(lambda: attempts["audit", traffic.dead] == 2 and attempts["mail", traffic.checked] == 1)
        await until(lambda: attempts["mail", traffic.delayed] == 1 and attempts["billing", traffic.delayed] == 1)
        for client in (billing, mail, audit, producer, bank):
            assert client.trace is not None
    # Clients send what is left of their traces when they close.
    return traffic


async def _send(producer: Producer, traffic: Traffic) -> None:
    ahead = ids.unique_ids(lambda: _now_ms() + CLOCK_AHEAD_MS, ip="10.0.0.9")()

    async def send(body: bytes, topic: str = "orders", **facts: Any) -> str:
        return (await producer.send(Message(topic=topic, body=body, **facts))).message_id

    await send(b"retry me", keys=["ORDER-1", "CUSTOMER-7"], tags="new", message_id=traffic.retried)
    traffic.dead = await send(b"never", "failing", keys=["DEAD-1"])
    traffic.delayed = await send(b"later", keys=["LATE-1"], delay_level=1)
    traffic.ahead = await send(b"from the future", keys=["AHEAD-1"], message_id=ahead)
    traffic.binary = await send(bytes(range(256)), keys=["BINARY-1"])
    traffic.large = await send(b"x" * 200_000, keys=["LARGE-1"])
    traffic.document = await send(b'{"order": 17, "items": ["<b>bold</b>"]}', keys=["JSON-1"])
    traffic.hostile = await send(
        HOSTILE.encode(),
        keys=[HOSTILE, HOSTILE_ATTRIBUTE],
        tags=HOSTILE_ATTRIBUTE,
        properties={HOSTILE: HOSTILE_ATTRIBUTE},
    )


def _now_ms() -> int:
    from ariane.clock import SYSTEM_CLOCK

    return SYSTEM_CLOCK.now_ms()
