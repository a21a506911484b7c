"""The clock of a test cluster: what moves with it happens without waiting, while clients run in real time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ariane import (
    LocalState,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
)
from ariane.errors import ConfigError
from ariane.testing import AsyncLocalCluster, LocalCluster


def bodies(messages: Sequence[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def test_the_clock_shows_real_time_until_it_is_advanced() -> None:
    with LocalCluster() as cluster:
        before = datetime.now(UTC) - timedelta(milliseconds=1)
        assert before < cluster.clock.now() <= datetime.now(UTC)
        cluster.clock.advance(timedelta(days=30))
        assert before < cluster.clock.now() - timedelta(days=30) <= datetime.now(UTC)
        cluster.clock.advance(0.5)
        assert before < cluster.clock.now() - timedelta(days=30, milliseconds=500) <= datetime.now(UTC)
        for invalid in (-1, timedelta(hours=-1), "1h"):
            with pytest.raises(ConfigError, match="duration"):
                cluster.clock.advance(invalid)  # type: ignore[arg-type]


def test_delayed_messages_are_delivered_when_the_clock_reaches_their_time() -> None:
    with LocalCluster(brokers=2) as cluster:
        cluster.send("t", b"level", delay_level=4)  # 30 s
        cluster.send("t", b"delay", delay=timedelta(hours=1))
        tomorrow = cluster.clock.now() + timedelta(days=1)
        cluster.send("t", b"at", deliver_at=tomorrow)
        assert cluster.messages("t") == []
        cluster.clock.advance(31)
        assert bodies(cluster.messages("t")) == [b"level"]
        cluster.clock.advance(timedelta(minutes=58))
        assert bodies(cluster.messages("t")) == [b"level"]
        cluster.clock.advance(timedelta(minutes=2))
        assert bodies(cluster.messages("t")) == [b"level", b"delay"]
        cluster.clock.advance(timedelta(days=1))
        messages = cluster.messages("t")
        assert bodies(messages) == [b"level", b"delay", b"at"]
        assert messages[2].stored_at >= tomorrow


def test_many_delayed_messages_are_delivered_before_advance_returns() -> None:
    async def send(namesrv: str) -> None:
        async with Producer(namesrv, "p") as producer:
            await asyncio.gather(
                *(producer.send(Message(topic="t", body=b"%d" % n, delay=600 + n % 7)) for n in range(500))
            )

    with LocalCluster() as cluster:
        asyncio.run(send(cluster.namesrv))
        cluster.clock.advance(620)
        assert len(cluster.messages("t")) == 500


def test_failed_messages_are_retried_and_end_as_dead_letters_without_waiting() -> None:
    attempts: list[int] = []

    async def listener(messages: Sequence[ReceivedMessage]) -> None:
        attempts.append(messages[0].reconsume_times)
        raise ValueError("cannot be consumed")

    async def main() -> list[ReceivedMessage]:
        async with AsyncLocalCluster() as cluster:
            await cluster.create_topic("orders", queues=1)
            # A consumer that starts before its retry topic has a route finds it at its next refresh, seconds later.
            await cluster.create_topic("%RETRY%billing", queues=1)
            async with PushConsumer(cluster.namesrv, "billing", {"orders": "*"}, listener, start="first"):
                await cluster.send("orders", b"bad")
                for attempt in range(16):
                    async with asyncio.timeout(30):
                        while len(attempts) <= attempt:
                            await asyncio.sleep(0.005)
                    await cluster.wait_consumed("billing", "%RETRY%billing" if attempt else "orders")
                    cluster.clock.advance(timedelta(hours=2))
                return await cluster.wait_messages("%DLQ%billing", timeout=30)

    [dead] = asyncio.run(main())
    assert dead.body == b"bad"
    assert attempts == list(range(17))


def test_open_transactions_are_checked_each_time_the_clock_moves_by_the_interval() -> None:
    checks: list[str] = []

    async def check(message: ReceivedMessage) -> LocalState:
        checks.append(message.message_id)
        return LocalState.UNKNOWN if len(checks) < 3 else LocalState.COMMIT

    async def main() -> list[ReceivedMessage]:
        async with (
            AsyncLocalCluster() as cluster,
            TransactionProducer(cluster.namesrv, "shop", check=check) as producer,
        ):
            await producer.send_in_transaction(Message(topic="paid", body=b"1"), lambda sent: LocalState.UNKNOWN)
            assert await cluster.messages("paid") == []
            for number in range(1, 4):
                cluster.clock.advance(timedelta(minutes=1))
                async with asyncio.timeout(30):
                    while len(checks) < number:
                        await asyncio.sleep(0.005)
            return await cluster.wait_messages("paid")

    [message] = asyncio.run(main())
    assert message.body == b"1"
    assert checks == [message.message_id] * 3


def test_held_pulls_end_and_live_clients_stay_members() -> None:
    async def main() -> None:
        async with AsyncLocalCluster() as cluster:
            await cluster.create_topic("t", queues=1)
            async with PullConsumer(cluster.namesrv, "g") as consumer:
                [queue] = await consumer.queues_of("t")
                pull = asyncio.create_task(consumer.pull(queue, 0))
                held = cluster.broker._hosted.running.services.dispatcher.pull_waiters
                async with asyncio.timeout(30):
                    while not len(held):
                        await asyncio.sleep(0.005)
                    cluster.clock.advance(timedelta(hours=3))
                    assert not (await pull).messages
                await cluster.send("t", b"1")  # the producer and the consumer are still connected
                assert bodies((await consumer.pull(queue, 0)).messages) == [b"1"]

    asyncio.run(main())


@pytest.mark.parametrize("in_memory", [True, False])
def test_old_messages_expire(in_memory: bool, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "mapped_file_size_commit_log": 64 * 1024,
        "max_message_size": 32 * 1024,
        "file_reserved_time": 1,
        "delete_when": ";".join(f"{hour:02}" for hour in range(24)),
    }

    with LocalCluster(None if in_memory else tmp_path, **settings) as cluster:
        cluster.create_topic("t", queues=1)
        for number in range(60):
            cluster.send("t", bytes([number]) * 3000)  # too short to be compressed
        assert len(cluster.messages("t")) == 60, "in several files of 64 KiB"
        cluster.clock.advance(timedelta(hours=2))
        deadline = time.monotonic() + 60
        while len(messages := cluster.messages("t")) == 60:
            assert time.monotonic() < deadline
            cluster.clock.advance(10)  # to the next run; the first one may find files that are not flushed yet
            time.sleep(0.05)
        assert 0 < len(messages) < 60
        assert messages[-1].body[:1] == bytes([59])
